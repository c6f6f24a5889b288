"""The secrets of a secured broker: who may read them, and that they are made once."""

import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import pytest
from typer.testing import CliRunner

from facade.admin.quotas import name_of
from facade.infra import local, security, tools
from facade.infra.local import InfraState, ServiceName, ServiceState
from facade.infra.local import load as load_state
from facade.infra.security import ADMINISTRATOR, Security
from facade.kernel.cli.app import app
from facade.kernel.config import Settings, load_settings
from facade.kernel.errors import InfraError
from facade.kernel.icd.load import load
from facade.kernel.resources import resource

USERS = {ADMINISTRATOR, *map(name_of, load().roles)}


class Brokers:
    """Takes what is asked of the brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passwords: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        monkeypatch.setattr("facade.infra.security.access.create_users", lambda _, found: self.passwords.update(found))
        monkeypatch.setattr("facade.infra.security.access.set_on_brokers", lambda _, found: self.settings.update(found))


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


def secured(
    folder: Path, *, files: Sequence[str] = ("server.properties",), host: str = "127.0.0.1"
) -> tuple[Security, dict[str, str]]:
    """Return the secrets of a broker and its properties, made of some files."""
    path, made = folder / "server.properties", Security(folder / "security", host)
    template = Template("".join(resource("docker", "kafka", file).read_text() for file in files))
    path.write_text(template.safe_substitute(host=host, port=1, controller_port=2, brokers_port=3))
    made.secure(path)
    lines = [line for line in path.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return made, dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("files", [("server.properties",), ("server.properties", "cluster.properties")])
def test_a_secured_broker_takes_nobody_without_a_login_and_gives_no_right_by_itself(
    tmp_path: Path, files: Sequence[str]
) -> None:
    made, properties = secured(tmp_path, files=files)
    assert "PLAINTEXT" not in properties["listeners"] + properties["listener.security.protocol.map"]
    assert properties["authorizer.class.name"].endswith("StandardAuthorizer")
    assert properties["allow.everyone.if.no.acl.found"] == "false"
    assert {one.removeprefix("User:") for one in properties["super.users"].split(";")} & USERS == {ADMINISTRATOR}
    for listener in ("brokers", "controller"):
        assert properties[f"listener.name.{listener}.ssl.client.auth"] == "required"
    where = made.address(tmp_path / "server.properties")
    assert properties["advertised.listeners"].endswith(f",BROKERS://{where}")


def test_only_the_owner_reads_secrets_and_users_keep_their_passwords(tmp_path: Path, brokers: Brokers) -> None:
    (tmp_path / "security").mkdir(mode=0o755)  # as in a checkout
    made, _ = secured(tmp_path)
    made.create_users("127.0.0.1:3", "127.0.0.1:1", "mid.")
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    first = dict(brokers.passwords)
    assert set(first) == USERS
    assert len(set(first.values())) == len(USERS)
    others = stat.S_IRWXG | stat.S_IRWXO
    readable = {path.name for path in made.folder.rglob("*") if path.stat().st_mode & others}
    assert readable == {"ca.pem"}, "the certificate of the authority is no secret"
    made.create_users("127.0.0.1:3", "127.0.0.1:9", "mid.")
    assert brokers.passwords == first
    settings = load_settings({"SDP_FACADE_CONFIG": str(made.settings_of("sdp-aggregate"))})
    assert (settings.bootstrap, settings.prefix) == ("127.0.0.1:9", "mid.")
    assert settings.kafka["sasl.password"] == first["sdp-aggregate"]
    shown = f"{made!r} {settings!r} {made.login()}"
    keys = {
        user: [one.key for one in load_settings({"SDP_FACADE_CONFIG": str(made.settings_of(user))}).controller_keys]
        for user in USERS
    }
    assert {user for user, found in keys.items() if found} == {
        "sdp-control", "sdp-subarray", "sdp-controller", "sdp-mirror"
    }, "they read what controllers sign"  # fmt: skip
    assert len({*map(tuple, keys.values())}) == 2, "they have the same key"
    assert not [one for one in first.values() if one in shown]


def test_a_renewed_certificate_replaces_the_one_before_and_the_brokers_are_told(
    tmp_path: Path, brokers: Brokers
) -> None:
    made, properties = secured(tmp_path)
    files = [made.folder / "broker.pem", made.folder / "manager.pem"]
    renewals = (lambda: made.renew("127.0.0.1:3"), lambda: made.make("127.0.0.1:1", "mid."))
    for renew in renewals:  # the managing program logs in by a certificate, which ends as early
        before = [file.read_text() for file in files]
        renew()
        after = [file.read_text() for file in files]
        assert not set(before) & set(after)
        assert after[0].count("PRIVATE KEY-----") == 2
    assert brokers.settings == {name: properties[name] for name in brokers.settings}
    assert len(brokers.settings) == 3


def test_a_broker_that_exists_is_not_secured_afterwards(tmp_path: Path) -> None:
    state = InfraState(services={ServiceName.KAFKA.value: ServiceState(port=1, since=0.0)})
    with pytest.raises(InfraError, match="infra down --wipe"):
        local._merged(state, local.LocalOptions(secure=True))
    assert local._merged(InfraState(), local.LocalOptions(secure=True)).secure
    with pytest.raises(InfraError, match="no secured broker runs"):
        local.renew_certificates(tmp_path)
    assert not load_state(tmp_path).secure


def test_a_broker_for_other_hosts_has_its_address_in_its_certificate(tmp_path: Path) -> None:
    host = "127.0.0.2"
    made, properties = secured(tmp_path, host=host)
    said = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", made.folder / "broker.pem"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"IP Address:{host}," in said.stdout
    assert {one.split("://")[1].split(":")[0] for one in properties["listeners"].split(",")} == {host}
    assert made.address(tmp_path / "server.properties").startswith(f"{host}:")


@pytest.mark.parametrize("address", ["192.0.2.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "127.0.0.01", "localhost"])
def test_an_address_that_is_none_of_this_machine_is_refused(address: str) -> None:
    with pytest.raises(InfraError, match=f"the address '{address}' is wrong: expected one of this machine"):
        local._merged(InfraState(), local.LocalOptions(address=address))


def test_services_keep_their_address() -> None:
    first = local._merged(InfraState(), local.LocalOptions(address="127.0.0.2"))
    assert local._merged(first, local.LocalOptions()).host == "127.0.0.2"
    running = first.with_service(ServiceName.KAFKA, ServiceState(port=1, since=0.0))
    with pytest.raises(InfraError, match=r"the address is 127.0.0.2 here, asked for was 127.0.0.1.*infra down --wipe"):
        local._merged(running, local.LocalOptions(address="127.0.0.1"))


def test_without_openssl_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfraError, match="apt install openssl"):
        secured(tmp_path)


@pytest.mark.parametrize("option", ["-keyout", "-out"])
def test_a_key_for_which_the_disk_has_no_room_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """OpenSSL reports success, and later runs took the empty file for the key of the authority."""
    run = tools.run

    def run_on_full_disk(argv: Sequence[str], **options: Any) -> str:
        output = run(argv, **options)
        Path(argv[argv.index(option) + 1]).write_text("")
        return output

    with monkeypatch.context() as patched:
        patched.setattr(tools, "run", run_on_full_disk)
        with pytest.raises(InfraError, match=r"expected a whole PEM file, got 0 bytes; make space"):
            secured(tmp_path)
    made, _ = secured(tmp_path)
    assert (made.folder / "ca.key").read_text().endswith("-----END PRIVATE KEY-----\n")


def test_the_variables_of_a_shell_name_the_settings_file_of_a_user(tmp_path: Path, brokers: Brokers) -> None:
    made, _ = secured(tmp_path)
    made.create_users("127.0.0.1:3", "127.0.0.1:1", "mid.")
    endpoints = local.Endpoints(
        bootstrap="127.0.0.1:1", tango_host="h:1", topic_prefix="mid.", state_dir=tmp_path, security=made
    )
    variables = endpoints.environment("sdp-quality")
    file = variables["SDP_FACADE_CONFIG"]
    assert variables["SDP_TOPIC_REPLICAS"] == "1", "a shell that had the three of another cluster has them no more"
    assert file == str(made.settings_of("sdp-quality"))
    assert Settings().kafka == {}
    elsewhere = tmp_path / "gone" / "security" / "clients" / "sdp-admin.toml"
    before = f"site.toml:{elsewhere}:{made.settings_of('sdp-control')}"
    assert made.kafka_settings()["sasl.username"] == ADMINISTRATOR
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("facade.tools.infra.local.endpoints", lambda _: endpoints)
        patched.setenv("SDP_FACADE_CONFIG", before)
        said = CliRunner().invoke(app, ["infra", "env", "--user", "sdp-quality"]).output
        assert f"SDP_FACADE_CONFIG=site.toml:{file}\n" in said, "the shell keeps its settings, and one login"
        done = CliRunner().invoke(app, ["infra", "env", "--user", "sdp-nobody"])
    assert "expected sdp-admin, or sdp- and a role of the ICD" in str(done.exception)
    assert security.ADMINISTRATOR in USERS
