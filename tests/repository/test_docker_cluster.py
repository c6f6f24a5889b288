"""docker/cluster.yaml and sign-in.yaml over compose.yaml: logins, rights, replicas, and secrets that are made."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import pytest
from typer.testing import CliRunner

from facade.admin.quotas import name_of
from facade.infra.security import ADMINISTRATOR, Security
from facade.kernel.cli.app import app
from facade.kernel.config import load_settings
from facade.kernel.errors import ConfigError
from facade.kernel.manifest import manifests
from facade.kernel.resources import resource
from tests.support.docker import DOCKER, ICD, ROOT, SEARCHED, SERVER, read_by_the_code

BROKERS = ("kafka", "kafka-2", "kafka-3")
SIMULATORS = {
    "controller": "controller",
    "ingest": "ingest-node",
    "alerts": "alert-source",
    "calibration": "calibration-pipeline",
    "quality": "quality-pipeline",
}
"""Roles of the simulators."""
MADE = ("infra", "secrets", "--broker", "kafka:9092", "--broker", "kafka-2:9092", "--broker", "kafka-3:9092")

Service = dict[str, Any]
# In one group: the secrets are made once, and Compose is asked once.
pytestmark = [pytest.mark.xdist_group("compose"), pytest.mark.needs("repository")]


def compose(*arguments: str, secrets: Path) -> str:
    program = shutil.which("docker-compose", path=SEARCHED)
    assert program is not None, "docker-compose is part of the extra `test`: scripts/bootstrap"
    files = [f"--file={DOCKER / name}" for name in ("compose.yaml", "cluster.yaml", "sign-in.yaml")]
    environment = {**os.environ, "SKA_IMAGES": "images.example.org", "SDP_SECRETS": str(secrets)}
    argv = [program, *files, "--profile", "*", "config", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder of secrets by the command of the documentation."""
    folder = tmp_path_factory.mktemp("secrets")
    done = CliRunner().invoke(app, [*MADE, str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def merged(secrets: Path) -> Service:
    found: Service = json.loads(compose("--format", "json", secrets=secrets))
    return found


@pytest.fixture(scope="module")
def services(merged: Service) -> dict[str, Service]:
    return merged["services"]


def role_of(service: Service) -> str:
    command: list[str] = service["command"]
    if service.get("entrypoint") == [SERVER]:
        return re.sub(r"-\d+$", "", command[0])
    if command[0] == "simulate":
        return SIMULATORS[command[1]]
    starts = {worker.name: worker.start for one in manifests() for worker in one.workers}
    starts |= {role: words[:-1] for one in manifests() for role, words in one.processes.items()}
    found = [role for role, words in starts.items() if command[: len(words)] == [*words]]
    return found[0] if found else {"topics": "deployer", "web": "operator-tool"}[command[0]]


def properties(service: Service) -> dict[str, str]:
    """Return the properties of a broker, as the official image makes them of its environment."""
    found = {name: value for name, value in service["environment"].items() if name.startswith("KAFKA_")}
    del found["KAFKA_HEAP_OPTS"]
    return {
        name.removeprefix("KAFKA_").lower().replace("___", "-").replace("_", "."): value
        for name, value in found.items()
    }


def infra_properties(
    folder: Path, files: Sequence[str] = ("server.properties", "cluster.properties")
) -> dict[str, str]:
    """Return the properties that `infra up --brokers 3 --secure` gives a broker."""
    (path := folder / "server.properties").write_text(
        "".join(resource("docker", "kafka", one).read_text() for one in files)
    )
    path.write_text(
        Template(path.read_text()).safe_substitute(host="127.0.0.1", port=1, controller_port=2, brokers_port=3)
    )
    Security(folder / "security").secure(path)
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_each_process_logs_in_as_its_role_and_knows_all_brokers(services: dict[str, Service], secrets: Path) -> None:
    clients = [one for name, one in services.items() if "KAFKA_BOOTSTRAP" in one.get("environment", {})]
    clients = [one for one in clients if one["command"] not in (["register"], services["rights"]["command"])]
    assert len(clients) == 22
    for one in clients:
        environment = one["environment"]
        assert set(environment) <= read_by_the_code()
        assert environment["KAFKA_BOOTSTRAP"] == ",".join(f"{broker}:9092" for broker in BROKERS)
        assert environment["SDP_TOPIC_REPLICAS"] == str(len(BROKERS))
        mounted = {secret["target"].rpartition("/")[2]: secret["source"] for secret in one["secrets"]}
        files = [path.removeprefix("/run/secrets/") for path in environment["SDP_FACADE_CONFIG"].split(":")]
        user = name_of(role_of(one))
        assert [mounted[file] for file in files] == ["sdp-facade.toml", user]
        login = load_settings({"SDP_FACADE_CONFIG": str(secrets / "clients" / f"{user}.toml")}).kafka
        assert login["sasl.username"] == user
        assert not [value for value in environment.values() if login["sasl.password"] in value]


def test_the_brokers_have_what_infra_gives_its_own(services: dict[str, Service], tmp_path: Path) -> None:
    wanted = infra_properties(tmp_path)
    place = {"ssl.keystore.location": "/run/secrets/broker.pem", "ssl.truststore.location": "/run/secrets/ca.pem"}
    # Each listener of `infra` names its key store once more, so that its certificate can be renewed without a stop.
    renewed = {name for name in wanted if name.startswith("listener.name.") and name.endswith("keystore.location")}
    for node, broker in enumerate(BROKERS, 1):
        found = properties(services[broker])
        listeners = {
            one.partition("://")[0]: one.partition("://")[2] for one in found["advertised.listeners"].split(",")
        }
        protocols = dict(one.split(":") for one in found["listener.security.protocol.map"].split(","))
        assert protocols.pop("HOST") == protocols["CLIENTS"]
        assert protocols == dict(one.split(":") for one in wanted["listener.security.protocol.map"].split(","))
        assert listeners == {
            "CLIENTS": f"{broker}:9092",
            "BROKERS": f"{broker}:9095",
            "HOST": f"127.0.0.1:{services[broker]['ports'][0]['published']}",
        }
        assert [one.partition("://")[0] for one in found["listeners"].split(",")] == [*listeners, "CONTROLLER"]
        assert found["controller.quorum.voters"] == ",".join(f"{n}@{one}:9093" for n, one in enumerate(BROKERS, 1))
        assert (found["node.id"], found["broker.rack"]) == (str(node), f"rack-{node}")
        own = {"listeners", "advertised.listeners", "listener.security.protocol.map", "controller.quorum.voters"}
        own |= {"node.id", "broker.rack", "log.dirs"}
        login = found.pop("listener.name.host.scram-sha-512.sasl.jaas.config")
        assert login == found["listener.name.clients.scram-sha-512.sasl.jaas.config"]
        assert found.keys() == wanted.keys() - renewed
        assert {name: value for name, value in (wanted | place).items() if name in found.keys() - own} == {
            name: value for name, value in found.items() if name not in own
        }
        # Else the official image expects key stores in Java's own form.
        assert not {"SSL", "SASL_SSL"} & listeners.keys()


def test_people_sign_in_at_the_page_by_a_file_that_it_has(services: dict[str, Service]) -> None:
    page = services["page"]
    mounted = {f"/run/secrets/{secret['target'].rpartition('/')[2]}" for secret in page["secrets"]}
    assert {page["environment"][f"SDP_WEB_{name}_FILE"] for name in ("TOKENS", "OIDC")} < mounted
    assert "/run/secrets/page-oidc-secret" in mounted


def test_the_users_are_those_of_the_secrets(services: dict[str, Service], monkeypatch: pytest.MonkeyPatch) -> None:
    created: dict[str, str] = {}
    monkeypatch.setattr("facade.tools.rights.create_users", lambda _, found: created.update(found))
    monkeypatch.setattr("facade.tools.rights.read_acls", lambda _: [])
    monkeypatch.setattr("facade.tools.rights.create_acls", lambda *_: None)
    monkeypatch.setattr("facade.tools.rights.delete_acls", lambda *_: None)
    (folder,) = (Path(one["source"]) for one in services["rights"]["volumes"] if one["target"] == "/run/clients")
    words = [str(folder) if word == "/run/clients" else word for word in services["rights"]["command"]]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert created.keys() == {ADMINISTRATOR, *map(name_of, ICD.roles)}
    assert f"{len(created)} users are there" in done.output
    assert not [one for one in created.values() if one in done.output]
    refused = CliRunner().invoke(app, ["rights", "apply", "--users", str(ROOT / "docker")])
    assert isinstance(refused.exception, ConfigError)


def test_the_certificate_has_the_name_of_each_broker_and_passwords_are_kept(tmp_path: Path) -> None:
    settings: list[str] = []
    for _ in "12":
        assert CliRunner().invoke(app, [*MADE, "--broker", "192.0.2.7:9092", str(tmp_path)]).exit_code == 0
        settings.append((tmp_path / "clients" / "sdp-control.toml").read_text())
    assert settings[0] == settings[1]
    argv = ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", tmp_path / "broker.pem"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    names = {one.strip() for one in said.splitlines()[1].split(",")}
    assert names == {f"DNS:{one}" for one in (*BROKERS, "localhost")} | {"IP Address:127.0.0.1", "IP Address:192.0.2.7"}
    for broker in ("kafka", "kafka:", "kafka:port", "a b:9092", "[fe80::1]:9092"):
        refused = CliRunner().invoke(app, ["infra", "secrets", "--broker", broker, str(tmp_path)])
        assert f"expected HOST:PORT, with a name or an IPv4 address, got '{broker}'" in str(refused.exception)
