"""TLS, logins and ACLs for the local brokers: an authority of their own, users with passwords in files.

Theory of operation
-------------------
A folder beside the brokers' folders has all secrets. Only its owner may read it.

- The authority (``ca.pem``, ``ca.key``) signs the certificate of the brokers (``broker.pem``) and the certificate of
  the managing programs (``manager.pem``). Brokers and controllers authenticate each other by certificates, on their own
  listeners.
- Clients use SCRAM-SHA-512 on a third listener. Each role of the ICD has a user, and there is one administrator.
  ``clients/USER.toml`` is the settings file of a user, with the authority's certificate in it, so that it works on any
  host. ``admin.properties`` is the administrator's for Kafka's own tools. All roles that read signed records have the
  same key for all devices, from ``controllers.key``.
- A user without a right may do nothing: `sdp-facade rights apply` gives the rights.

SCRAM users can be created only at a running broker, on the listener of the brokers: by `sdp-facade infra up`, and for
brokers that others start by `sdp-facade rights apply --users`. A password is generated once, and is never in the
arguments or the environment of a process.

A certificate is renewed in its file. The brokers read it again when its path is set to the same value.
"""

import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from facade.admin import access
from facade.admin.quotas import name_of
from facade.infra import tools
from facade.infra.ports import HOST, choose_port
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.signatures import signed_topics
from facade.kernel.clock import SystemClock, utc_text
from facade.kernel.config import FILE_VARIABLE, Settings, load_settings
from facade.kernel.errors import InfraError
from facade.kernel.icd.load import load

ADMINISTRATOR: Final = "sdp-admin"
"""User with all rights."""
_BROKER, _MANAGER = "sdp-broker", "sdp-manager"
"""Names in certificates."""
_AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 90
_LISTENERS: Final = re.compile(r"^listeners=PLAINTEXT://(\S+:\d+),CONTROLLER://(\S+:\d+)$", re.MULTILINE)
_OWN: Final = re.compile(r"^advertised\.listeners=\S*BROKERS://(\S+:\d+)$", re.MULTILINE)
_ADDRESS: Final = re.compile(r"[\d.]+")
_KEYSTORES: Final = tuple(f"listener.name.{one}.ssl.keystore.location" for one in ("clients", "brokers", "controller"))


@dataclass(frozen=True, slots=True)
class Security:
    """The secrets of the brokers of one state folder."""

    folder: Path
    host: str = HOST
    """Address of the brokers, which is in their certificate."""
    names: Sequence[str] = ()
    """Further names and addresses in their certificate."""

    def secure(self, properties: Path) -> None:
        """Change the properties of a broker to TLS, logins and ACLs; create the certificates once."""
        self._make_certificates()
        text = properties.read_text()
        found = _LISTENERS.search(text)
        assert found is not None, f"{properties} has no listeners as docker/kafka/server.properties has them"
        clients, brokers = f"CLIENTS://{found[1]}", f"BROKERS://{self.host}:{choose_port(self.host)}"
        store, authority = self.folder / "broker.pem", self.folder / "ca.pem"
        added = {
            "listeners": f"{clients},{brokers},CONTROLLER://{found[2]}",
            "advertised.listeners": f"{clients},{brokers}",
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,BROKERS:SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "BROKERS",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority),
            **dict.fromkeys(_KEYSTORES, str(store)),
            "listener.name.brokers.ssl.client.auth": "required",
            "listener.name.controller.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.clients.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": f"User:{ADMINISTRATOR};User:CN={_BROKER};User:CN={_MANAGER}",
        }
        # Of two lines with the same name Kafka uses the second.
        properties.write_text(text + "\n" + "".join(f"{name}={value}\n" for name, value in added.items()))

    def address(self, properties: Path) -> str:
        """Return the address of a broker for `login`."""
        # Brokers of a cluster have an earlier line of this name, which is void.
        *_, found = _OWN.findall(properties.read_text())
        return str(found)

    def login(self) -> dict[str, str]:
        """Return the Kafka settings of the managing program."""
        own = str(self.folder / "manager.pem")
        return {
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.folder / "ca.pem"),
            "ssl.certificate.location": own,
            "ssl.key.location": own,
        }

    def kafka_settings(self, user: str = ADMINISTRATOR) -> dict[str, str]:
        """Return the Kafka settings of a user, as an ordinary client."""
        return _kafka_in(self.settings_of(user))

    def settings_of(self, user: str) -> Path:
        """Return the settings file of a user."""
        return self.folder / "clients" / f"{user}.toml"

    def make(self, bootstrap: str, prefix: str) -> None:
        """Write all secrets for brokers that others start; brokers and manager get new certificates each time.

        Raises
        ------
        InfraError
            OpenSSL is missing, or refuses.
        """
        self._make_certificates()
        self._sign(_BROKER, "broker.pem")
        self._sign(_MANAGER, "manager.pem")
        self._write_users(bootstrap, prefix)

    def create_users(self, address: str, bootstrap: str, prefix: str) -> None:
        """Create the administrator and the user of each role at the brokers, and write their settings files.

        An existing user keeps the password.

        Parameters
        ----------
        address
            Address of a broker for `login`.
        bootstrap, prefix
            Of the clients.

        Raises
        ------
        BusError
            A broker does not answer.
        """
        access.create_users(self._connection(address), self._write_users(bootstrap, prefix))

    def _write_users(self, bootstrap: str, prefix: str) -> dict[str, str]:
        """Write the settings files of all users, and return their passwords."""
        passwords, authority, key = {}, (self.folder / "ca.pem").read_text(), self.folder / "controllers.key"
        if not key.exists():
            since = utc_text(SystemClock().now_us())
            _write(key, f'devices = "*"\nkey = "{secrets.token_urlsafe(32)}"\nsince = {since}\n')
        icd = load()
        of_controllers = {role for name in signed_topics(icd) for role in icd.topics[name].readers}
        for user in (ADMINISTRATOR, *(name_of(role, icd.telescope) for role in icd.roles)):
            path = self.settings_of(user)
            passwords[user] = _kafka_in(path)["sasl.password"] if path.exists() else secrets.token_urlsafe(24)
            kafka = {
                "security.protocol": "SASL_SSL",
                "ssl.ca.pem": authority,
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": user,
                "sasl.password": passwords[user],
            }
            text = _as_toml({"bootstrap": bootstrap, "prefix": prefix}) + "\n[kafka]\n" + _as_toml(kafka)
            if user in {name_of(role, icd.telescope) for role in of_controllers}:
                text += "\n[[controller_keys]]\n" + key.read_text()
            _write(path, text)
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        properties = {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{module} username="{ADMINISTRATOR}" password="{passwords[ADMINISTRATOR]}";',
        }
        _write(self.folder / "admin.properties", "".join(f"{name}={value}\n" for name, value in properties.items()))
        return passwords

    def renew(self, address: str) -> None:
        """Renew the certificates of the managing program and of all brokers, without a stop.

        Raises
        ------
        BusError
            A broker does not answer.
        InfraError
            OpenSSL is missing, or refuses.
        """
        self._sign(_MANAGER, "manager.pem")
        self._sign(_BROKER, "broker.pem")
        access.set_on_brokers(self._connection(address), dict.fromkeys(_KEYSTORES, str(self.folder / "broker.pem")))

    def _connection(self, address: str) -> Connection:
        return Connection(Settings(bootstrap=address, kafka=self.login()))

    def _make_certificates(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)  # it may have been there before
        if not (self.folder / "ca.pem").exists():
            extensions = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
            key = self.folder / "ca.key"
            _openssl("SDP local authority", key, self.folder / "ca.pem", _AUTHORITY_DAYS, extensions)
        for name, file in ((_BROKER, "broker.pem"), (_MANAGER, "manager.pem")):
            if not (self.folder / file).exists():
                self._sign(name, file)

    def _sign(self, name: str, file: str) -> None:
        """Create a key with a certificate of the authority, and write both in one step."""
        made = self.folder / f"{file}.new"
        names = [f"IP:{self.host}", "DNS:localhost"]
        names += [f"{'IP' if _ADDRESS.fullmatch(one) else 'DNS'}:{one}" for one in self.names]
        extensions = ["-addext", "basicConstraints=critical,CA:FALSE"]
        extensions += ["-addext", f"subjectAltName={','.join(names)}"]
        signed = ["-CA", str(self.folder / "ca.pem"), "-CAkey", str(self.folder / "ca.key")]
        key, certificate = made.with_suffix(".key"), made.with_suffix(".crt")
        _openssl(name, key, certificate, CERTIFICATE_DAYS, [*extensions, *signed])
        _write(self.folder / file, key.read_text() + certificate.read_text())
        key.unlink()
        certificate.unlink()


def passwords_in(folder: Path) -> dict[str, str]:
    """Return the passwords of the users whose settings files are in a folder.

    Raises
    ------
    ConfigError
        A file is no settings file.
    """
    logins = [_kafka_in(path) for path in sorted(folder.glob("*.toml"))]
    return {
        one["sasl.username"]: one["sasl.password"] for one in logins if {"sasl.username", "sasl.password"} <= one.keys()
    }


def _openssl(name: str, key: Path, certificate: Path, days: int, more: list[str]) -> None:
    """Make a key and a certificate; the files are whole, or not there."""
    openssl = tools.find_program("openssl", "it makes certificates; on Debian `apt install openssl`")
    argv = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made = {path: path.with_name(f"{path.name}.tmp") for path in (key, certificate)}
    argv += ["-subj", f"/CN={name}", "-days", str(days), "-keyout", str(made[key]), "-out", str(made[certificate])]
    tools.run([*argv, *more], what=f"making the certificate of {name}")
    for path in made.values():
        if not path.read_text().endswith("-----\n"):  # OpenSSL reports success on a full disk
            raise InfraError(
                f"{path}: expected a whole PEM file, got {path.stat().st_size} bytes; make space on the disk"
            )
    made[key].chmod(0o600)
    for path, new in made.items():
        new.replace(path)


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner may read, in one step."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.tmp")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)


def _as_toml(values: Mapping[str, str]) -> str:
    # A JSON string is also a TOML string.
    return "".join(
        f"{json.dumps(name) if '.' in name else name} = {json.dumps(value)}\n" for name, value in values.items()
    )


def _kafka_in(path: Path) -> dict[str, str]:
    return load_settings({FILE_VARIABLE: str(path)}).kafka
