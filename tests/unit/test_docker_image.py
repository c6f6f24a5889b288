"""docker/Dockerfile: what is copied makes the wheel, versions are the project's, the health check asks each role."""

import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from types import ModuleType

import pytest

from facade.exports.tango_db import SERVER
from facade.manifest import manifests
from facade.runtime import metrics
from tests.support.docker import DOCKER, ROOT, SEARCHED, instructions, parse, read_by_the_code

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINES = list(instructions(DOCKER / "Dockerfile"))
FINAL = LINES[max(i for i, (word, _) in enumerate(LINES) if word == "FROM") :]


def final(word: str) -> list[str]:
    return [rest for name, rest in FINAL if name == word]


def argument(name: str) -> str:
    (value,) = {rest.partition("=")[2] for word, rest in LINES if word == "ARG" and rest.startswith(f"{name}=")}
    return value


def copied() -> list[str]:
    lines = [rest for word, rest in LINES if word == "COPY" and not rest.startswith("--from")]
    return [source.rstrip("/") for line in lines for source in line.split()[:-1]]


def sent(path: str) -> bool:
    there = True
    for line in (ROOT / ".dockerignore").read_text().split():
        pattern, wanted = line.removeprefix("!"), line.startswith("!")
        if any(fnmatch(part, pattern) for part in (path, *above(path))):
            there = wanted
    return there


def above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


@pytest.fixture(scope="module")
def healthcheck() -> ModuleType:
    spec = importlib.util.spec_from_file_location("healthcheck", DOCKER / "healthcheck.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_the_wheel_is_made_of_is_copied_and_gets_to_the_builder() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = {*wheel["packages"], *wheel["force-include"], "pyproject.toml", PROJECT["project"]["readme"]}
    wanted |= {*PROJECT["project"]["license-files"], "hatch_build.py"}
    there = copied()
    for path in wanted:
        assert any(path == one or path.startswith(f"{one}/") for one in there), path
    for path in there:
        assert (ROOT / path).exists(), path
        assert sent(path), path


def test_nothing_else_gets_to_the_builder() -> None:
    for path in (
        ".git/config",
        ".venv/bin/python",
        ".run/kafka",
        "tests/conftest.py",
        "docker/secrets/sdp-facade.toml",
    ):
        assert not sent(path), path
    assert not sent("facade/__pycache__/clock.pyc")


def test_versions_and_labels_are_those_of_the_project() -> None:
    project = PROJECT["project"]
    labels = dict(re.findall(r'(\S+)="([^"]*)"', " ".join(final("LABEL"))))
    assert argument("VERSION") == project["version"]
    assert labels["org.opencontainers.image.title"] == project["name"]
    assert labels["org.opencontainers.image.description"] == project["description"]
    assert labels["org.opencontainers.image.licenses"] == project["license"]
    for name in ("version", "revision", "created", "source"):
        assert labels[f"org.opencontainers.image.{name}"]
    oldest = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    assert tuple(map(int, argument("PYTHON").split("."))) >= oldest
    assert labels["org.opencontainers.image.base.name"].endswith(f"python:{argument('PYTHON')}-slim")


def test_the_extras_are_those_that_the_tests_run_with_but_for_tracing() -> None:
    project = PROJECT["project"]
    (own,) = (one for one in project["optional-dependencies"]["test"] if one.startswith(project["name"]))
    at_run_time = set(re.findall(r"\[(.*)\]", own)[0].split(","))
    assert set(argument("EXTRAS").split(",")) == at_run_time - {"telemetry"}


def test_the_entrypoint_is_a_program_of_the_project_without_a_shell() -> None:
    (entrypoint,), (command,) = final("ENTRYPOINT"), final("CMD")
    assert json.loads(entrypoint)[0] in PROJECT["project"]["scripts"]
    assert json.loads(command) == ["--help"]
    assert SERVER in PROJECT["project"]["scripts"]


def test_it_runs_as_a_numbered_user_and_may_write_to_tmp_only() -> None:
    (user,) = final("USER")
    assert all(part.isdigit() and int(part) > 0 for part in user.split(":"))
    assert final("VOLUME") == ["/tmp"]
    assert "HOME=/tmp" in final("ENV")[0]
    assert [word for word, _ in FINAL].index("USER") > [word for word, _ in FINAL].index("COPY")


def test_every_variable_that_the_image_sets_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set(re.findall(r"\b(SDP_[A-Z_]+|KAFKA_[A-Z_]+)=", final("ENV")[0]))
    assert names <= read_by_the_code()
    values = dict(re.findall(r"\b(SDP_METRICS_[A-Z]+)=(\S+)", final("ENV")[0]))
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    where: list[tuple[int, str]] = []
    monkeypatch.setattr("prometheus_client.start_http_server", lambda port, addr, registry: where.append((port, addr)))
    metrics.serve_metrics({})
    assert where == [(9100, "0.0.0.0")], "Prometheus is in another container"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/usr/bin/python /opt/sdp-facade/bin/SdpFacade control", ("SdpFacade", ["control"])),
        ("/sbin/docker-init -- SdpFacade ingest-00 -v4", ("SdpFacade", ["ingest-00", "-v4"])),
        (
            "/opt/sdp-facade/bin/python /opt/sdp-facade/bin/sdp-facade aggregate --slot 0",
            ("sdp-facade", ["aggregate", "--slot", "0"]),
        ),
        ("sleep 1", ("", ())),
    ],
)
def test_the_health_check_finds_out_the_role(healthcheck: ModuleType, line: str, expected: tuple) -> None:
    assert healthcheck.role("\0".join(line.split()).encode() + b"\0") == expected


def test_the_health_check_says_what_does_not_answer(healthcheck: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"127\.0\.0\.1:1/metrics: no answer"):
        healthcheck._scrape(1)
    healthcheck._scrape(0)  # metrics are off


def test_the_health_check_knows_the_programs_and_their_commands(healthcheck: ModuleType) -> None:
    assert {healthcheck.SERVER, healthcheck.PROGRAM} == set(PROJECT["project"]["scripts"])
    workers = {tuple(worker.start) for one in manifests() for worker in one.workers}
    assert set(healthcheck.SERVING) == workers | {("simulate", "controller")}
    for words in healthcheck.SERVING:
        parse(words)


def test_hadolint_finds_nothing() -> None:
    program = shutil.which("hadolint", path=SEARCHED)
    assert program is not None, "hadolint is part of the extra `test`: scripts/bootstrap"
    files = [DOCKER / "Dockerfile", DOCKER / "taranta" / "Dockerfile"]
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
