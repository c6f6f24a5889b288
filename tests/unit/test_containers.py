"""`make containers`: how it waits for health, and what it makes of the manifests for podman."""

import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from facade.clock import ManualClock
from facade.console import OUT
from facade.errors import InfraError
from proving.containers import bare
from proving.containers.bare import Machine
from proving.containers.images import installed
from proving.containers.manifests import for_podman
from proving.containers.phases import Phases
from proving.containers.project import Project
from proving.progress import Progress
from tests.support.docker import DOCKER
from tests.unit.test_docker_kubernetes import BASE, built


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def project(tmp_path: Path, clock: ManualClock) -> Project:
    return Project(DOCKER, tmp_path, Progress(OUT, clock))


def test_a_round_of_slow_checks_is_no_failure(
    project: Project, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All checks together took longer than the wait, so the run failed though each service was healthy."""
    asked: dict[str, int] = {}

    def ailment(service: str) -> str:
        clock.sleep(100.0)
        asked[service] = asked.get(service, 0) + 1
        return "starting" if asked[service] == 1 else ""

    monkeypatch.setattr(project, "ailment", ailment)
    project.await_healthy(["one", "two", "three", "four"])
    assert set(asked) == {"one", "two", "three", "four"}


def test_a_service_that_stays_away_is_named_with_its_log(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "ailment", lambda service: "exited, exit code 1" if service == "two" else "")
    monkeypatch.setattr(project, "log", lambda service: f"last words of {service}")
    with pytest.raises(InfraError, match=r"two: exited, exit code 1; its log ends:\nlast words of two") as caught:
        project.await_healthy(["one", "two"])
    assert "last words of one" not in str(caught.value)


def test_a_container_without_a_process_is_not_killed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Podman says process 0 of it, and signal 9 to process 0 ended the run itself."""
    pids: Iterator[int] = iter([0, 0, 4711, 4711, 0, 4712])
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(project, "_pid", lambda _service: next(pids))
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    project.kill("one")
    assert killed == [(4711, signal.SIGKILL)]


def test_no_other_program_is_given_a_port_of_the_project(project: Project) -> None:
    """Prometheus is started minutes after its port was chosen; an outgoing connection of another program had it."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(project.ports.values())) == len(project.ports)
    assert all(0 < port < lowest for port in project.ports.values())


def test_an_installation_is_tried_once_more(clock: ManualClock) -> None:
    answers: Iterator[str | InfraError] = iter([InfraError("no route"), "done", InfraError("a"), InfraError("b")])

    def install() -> str:
        answer = next(answers)
        if isinstance(answer, InfraError):
            raise answer
        return answer

    assert installed(install, Progress(OUT, clock)) == "done"
    with pytest.raises(InfraError, match="b"):
        installed(install, Progress(OUT, clock))


def test_a_check_that_fails_on_a_bare_machine_is_not_tried_again(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all is installed, a failure is what the command says."""
    asked: list[str] = []

    def podman(*arguments: str) -> str:
        asked.append(arguments[-1])
        if arguments[-1].endswith("make demo"):
            raise InfraError("a record is missing")
        return ""

    monkeypatch.setattr(bare, "podman", podman)
    machine = Machine("one", "debian", Path("sources.tar"), Progress(OUT, clock))
    with pytest.raises(InfraError, match="a record is missing"):
        machine.do("make demo")
    assert len([one for one in asked if one.endswith("make demo")]) == 1


def test_phases_account_for_the_time(clock: ManualClock) -> None:
    phases = Phases(Progress(OUT, clock))
    assert phases.current == "preparation"
    phases.begin("start")
    clock.sleep(5.0)
    phases.begin("kills")
    clock.sleep(7.0)
    assert phases.current == "kills"
    assert str(phases) == "start 5 s, kills 7 s"


def test_what_podman_lacks_is_put_in() -> None:
    played, left_out = for_podman(built(BASE))
    pods = {one["metadata"]["name"]: one["spec"] for one in played if one["kind"] == "Pod"}
    assert {"aggregate-0", "aggregate-1", "topics", "register"} <= set(pods)
    (worker,) = pods["aggregate-1"]["containers"]
    assert worker["args"] == ["aggregate", "--slot", "1"]
    assert {"name": "SDP_SLOT", "value": "1"} in worker["env"]
    assert {one["kind"] for one in played} == {"ConfigMap", "Deployment", "Pod"}
    assert {one.split()[0] for one in left_out} == {"Service", "PodDisruptionBudget", "NetworkPolicy"}
    for spec in [*pods.values(), *(one["spec"]["template"]["spec"] for one in played if one["kind"] == "Deployment")]:
        (container,) = spec["containers"]
        assert "ports" not in container
        assert "httpGet" not in container.get("livenessProbe", {})
        if probe := container.get("livenessProbe"):
            said = shlex.split(" ".join(probe["exec"]["command"]))  # so podman hands it to a shell
            assert len(said) == 3
            assert said[:2] == ["python", "-c"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert all("optional" in one["secret"] for one in spec["volumes"] if "secret" in one)
    volumes = [volume["name"] for spec in pods.values() for volume in spec["volumes"]]
    assert len(set(volumes)) == len(volumes), "podman gives pods the same volume by its name"
