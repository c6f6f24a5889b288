"""docker/compose.yaml: versions, commands, variables, health, limits, and each instance of the deployment once."""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from typing import Any

import pytest
import yaml

from facade.kernel import config
from facade.kernel.config import Settings
from facade.kernel.instances import instances
from facade.kernel.manifest import manifests
from tests.support.docker import (
    DOCKER,
    ICD,
    SERVER,
    defaults,
    parse,
    read_by_the_code,
    variables,
)

pytestmark = pytest.mark.needs("repository")

RAW = yaml.safe_load((DOCKER / "compose.yaml").read_text())
COMPOSE = defaults(RAW)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
FACADE = {name: one for name, one in SERVICES.items() if one["image"].startswith("sdp-tango-facade:")}
SERVERS = {name: one for name, one in FACADE.items() if one.get("entrypoint") == [SERVER]}
WORKERS = [worker for one in manifests() for worker in one.workers]
SERVING = (*(list(worker.start) for worker in WORKERS), ["simulate", "controller"])
"""Commands that serve /metrics; the device servers do as well."""


def test_each_instance_of_the_default_deployment_is_there_exactly_once() -> None:
    assert Counter(one["command"][0] for one in SERVERS.values()) == Counter(instances(ICD, Settings()))
    assert all([name] == one["command"] for name, one in SERVERS.items())


def test_every_other_command_is_one_of_sdp_facade() -> None:
    for name, one in FACADE.items():
        if name not in SERVERS:
            assert "entrypoint" not in one, name
            assert all(isinstance(word, str) for word in one["command"]), name
            parse(one["command"])
    with pytest.raises(BaseException, match="no-such-option"):
        parse(["aggregate", "--no-such-option"])


def test_each_worker_of_a_group_has_a_slot_of_its_own() -> None:
    slots = [tuple(one["command"]) for one in FACADE.values() if "--slot" in one["command"]]
    assert len(set(slots)) == len(slots)
    for worker in WORKERS:
        mine = [slot for slot in slots if slot[: len(worker.start)] == worker.start]
        assert mine, worker.name
        windowed = [ICD.topics[name].partitions for name in worker.topics if ICD.topics[name].window]
        assert len(mine) == sum(windowed) or not windowed


def test_every_variable_is_read_by_the_code_and_the_defaults_are_the_same() -> None:
    known, settings = read_by_the_code(), Settings()
    for name, one in FACADE.items():
        assert set(one["environment"]) <= known, name
        for variable, field in config.ENVIRONMENT.items():
            if variable in one["environment"] and variable != "KAFKA_BOOTSTRAP":
                assert str(one["environment"][variable]) == str(getattr(settings, field)), (name, variable)


def test_kafka_has_the_version_and_the_settings_of_docker_kafka() -> None:
    pom = ElementTree.parse(DOCKER / "kafka" / "pom.xml")
    version = pom.findtext(".//{*}kafka.version")
    kafka = SERVICES["kafka"]
    environment = kafka["environment"] | variables(DOCKER / kafka["env_file"][0])
    assert kafka["image"] == f"apache/kafka:{version}"
    assert f"--kafka.version={version}" in SERVICES["kafka-exporter"]["command"]
    for line in (DOCKER / "kafka" / "server.properties").read_text().splitlines():
        key, _, value = line.partition("=")
        if line and not line.startswith("#"):
            given = environment["KAFKA_" + key.upper().replace(".", "_")]
            assert "${" in value or given == value, key


def test_a_tango_database_that_has_lost_its_mariadb_is_ended_and_started_again() -> None:
    """It answers a ping without MariaDB, and never connects again: only a question that needs MariaDB finds it."""
    one = SERVICES["tango-databaseds"]
    kind, check = one["healthcheck"]["test"]
    question, _, remedy = check.partition(" || ")
    assert kind == "CMD-SHELL"
    assert question.split()[2:] == ["/usr/local/bin/tango_admin", "--check-device", "sys/database/2"]
    assert int(question.split()[1]) < int(one["healthcheck"]["timeout"].removesuffix("s")), "it ends by itself"
    assert "kill 1" in remedy
    assert one["restart"] == "unless-stopped"
    probe = re.search(r"command: \[timeout, \"6\", (.+)\]", (DOCKER / "README.md").read_text())
    assert probe is not None
    assert probe[1].split(", ") == question.split()[2:], "the page for Kubernetes has the same"


def test_only_loopback_ports_are_published_each_once() -> None:
    ports = [port for one in SERVICES.values() for port in one.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)


def test_secrets_come_from_files_that_are_not_committed() -> None:
    used = {secret for one in SERVICES.values() for secret in one.get("secrets", [])}
    assert used == set(COMPOSE["secrets"])
    for name, one in SERVICES.items():
        for variable in one.get("environment", {}):
            secret = re.search("PASSWORD|SECRET|TOKEN", variable) and "RANDOM" not in variable
            assert not secret or variable.endswith("_FILE"), (name, variable)
    assert (DOCKER / "secrets" / ".gitignore").read_text().split("\n")[1] == "*"


def test_displays_of_the_page_are_on_a_volume_that_its_user_may_write() -> None:
    folder = SERVICES["page"]["environment"]["SDP_WEB_DISPLAYS"]
    assert SERVICES["page"]["volumes"] == [f"displays:{folder}"]
    assert "displays" in COMPOSE["volumes"]
    image = (DOCKER / "Dockerfile").read_text()
    user = re.search(r"^USER (\d+):(\d+)$", image, re.MULTILINE)
    assert user is not None
    assert f"install -d -o {user[1]} -g {user[2]} {folder}\n" in image, "a new volume has the owner of the folder"


def test_prometheus_scrapes_what_serves_metrics() -> None:
    jobs = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in jobs for one in job["static_configs"] for target in one["targets"]]
    serving = {name for name, one in FACADE.items() if any(one["command"][: len(words)] == words for words in SERVING)}
    assert sorted(targets) == sorted([*(f"{name}:9100" for name in serving | set(SERVERS)), "kafka-exporter:9308"])
