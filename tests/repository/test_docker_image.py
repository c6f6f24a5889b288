"""docker/Dockerfile: what is copied makes the wheel, versions are the project's, the health check asks each role."""

import importlib.util
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from types import ModuleType

import pytest

from facade.kernel.manifest import manifests
from tests.support.docker import DOCKER, ROOT, SEARCHED, instructions, parse

pytestmark = pytest.mark.needs("repository")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINES = list(instructions(DOCKER / "Dockerfile"))


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


def test_the_extras_are_all_but_tracing_and_those_that_the_others_have() -> None:
    (every,) = PROJECT["project"]["optional-dependencies"]["all"]
    at_run_time = set(re.findall(r"\[(.*)\]", every)[0].split(","))
    rest = {"batches", "demo", "telemetry"}
    assert set(argument("EXTRAS").split(",")) == (at_run_time - rest) | {"tables", "tools"}


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
