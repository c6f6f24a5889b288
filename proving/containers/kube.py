"""The manifests of docker/kubernetes, played by podman beside Kafka and the Tango database of Compose."""

import json
import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Final

from facade.clock import SystemClock
from facade.errors import InfraError
from proving.containers import manifests
from proving.containers.images import Images, environment, podman
from proving.containers.operator import Operator
from proving.containers.project import NAME, PREFIX, SERVERS, Project
from proving.containers.table import await_table, send_table
from proving.demo.journal import JournalWriter
from proving.demo.plan import OBSERVATION
from proving.demo.tm import Commanded
from proving.progress import Progress

_PREFIX: Final = f"{NAME}-"
_TASKS: Final = ("topics", "register")
_WORKERS: Final = ("aggregate-0", "aggregate-1", "alerts-intake-0", "tables-assemble-0", "logs-aggregate-0")
_KILLED: Final = ("control", "subarray", "alerts", "calibration", "aggregate-0", "alerts-intake-0", "tables-assemble-0")
_WITHIN_S: Final = 300.0
_USER: Final = "10001"
_PROBE: Final = """\
import os
for folder in ('/', '/opt/sdp-facade', '/etc', '/run/secrets/sdp-facade'):
    try:
        open(os.path.join(folder, 'probe'), 'w')
    except OSError:
        continue
    raise SystemExit('could write to ' + folder)
open('/tmp/probe', 'w').close()
print(open('/proc/1/status').read())
"""


def run(project: Project, images: Images, progress: Progress, folder: Path) -> None:
    """Play the manifests, observe from outside, kill pods' processes, and remove it all.

    Raises
    ------
    InfraError
        Something does not come about.
    """
    pods = Pods(progress)
    project.prepare(tasks=False)
    settings = {
        "KAFKA_BOOTSTRAP": "kafka:9092",
        "TANGO_HOST": "tango-databaseds:10000",
        "SDP_TOPIC_PREFIX": PREFIX,
    }
    (overlay := folder / "overlay").mkdir()
    base = Path(__file__).parents[2] / "docker" / "kubernetes" / "base"
    rendered = manifests.kustomize(base, overlay, prefix=_PREFIX, image=images.ours, settings=settings)
    played, left_out = manifests.for_podman(rendered)
    progress.step(f"docker/kubernetes: {len(rendered)} objects are rendered; left out: {', '.join(left_out)}")
    begin = progress.elapsed
    pods.play(played, folder / "played.yaml")
    pods.await_tasks()
    progress.step("the Jobs have ended with exit code 0")
    pods.await_alive([*SERVERS, *_WORKERS])
    progress.demand(lambda: not project.missing(), _WITHIN_S, "all device servers and workers for SdpMaster")
    progress.step(f"{len(SERVERS) + len(_WORKERS)} pods are alive, {progress.elapsed - begin:.0f} s after the start")
    for name in ("control", "aggregate-0"):
        pods.check_confinement(name)
    _observe(project, pods, progress, folder)


def _observe(project: Project, pods: "Pods", progress: Progress, folder: Path) -> None:
    project.start("simulate-controller")  # SDP's side is no part of the manifests
    project.await_healthy(["simulate-controller"])
    tm = Commanded(
        project.outside["TANGO_HOST"], "mid-sdp/subarray/01", JournalWriter(folder / "kube.json"), SystemClock()
    )
    tm.go_through(OBSERVATION, 2.0, {})
    progress.step("one observation is through, by commands and events from outside")
    table = send_table(project, progress)
    operator = Operator(project.outside, progress)
    operator.acknowledge_an_alert()
    for name in _KILLED:
        pods.kill(name)
        progress.step(f"{name}: killed, and started again by podman")
    pods.await_alive([*SERVERS, *_WORKERS])
    await_table(project, progress, table)
    operator.await_state("ACKED")
    tm.go_through(OBSERVATION, 2.0, {})
    balances = operator.account()
    progress.step(f"after the kills: table and acknowledgement are shown, and {len(balances)} figures of SdpBus are 0")


class Pods:
    """The pods that podman has made of the manifests."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def play(self, played: list[manifests.Manifest], file: Path) -> None:
        """Start them in the network of the project."""
        file.write_text(manifests.dump(played))
        podman("kube", "play", "--network", f"{NAME}_default", str(file))

    def await_tasks(self) -> None:
        """Wait until the Jobs have ended well.

        Raises
        ------
        InfraError
            One does not; the message holds the end of its log.
        """
        for name in _TASKS:
            ended = partial(self._has_ended, name)
            if self._progress.wait_until(ended, _WITHIN_S, f"the Job {name}") is None:
                said = f"the Job {name}: expected exit code 0, got {self._state(name)}"
                raise InfraError(f"{said}; its log ends:\n{self._log(name)}")

    def await_alive(self, names: list[str]) -> None:
        """Wait until the liveness probes of pods pass.

        Raises
        ------
        InfraError
            One does not; the message holds the end of its log.
        """
        for name in names:
            if self._progress.wait_until(partial(self._is_alive, name), _WITHIN_S, f"liveness of {name}") is None:
                said = f"{name}: not alive within {_WITHIN_S:g} s, {self._state(name)}"
                raise InfraError(f"{said}; its log ends:\n{self._log(name)}")

    def check_confinement(self, name: str) -> None:
        """Look from within a pod at what it may do.

        Raises
        ------
        InfraError
            It may do more than the manifest says.
        """
        said = podman("exec", self._container(name), "python", "-c", _PROBE)
        status = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
        found = status["Uid"].split()[0], status["NoNewPrivs"], int(status["CapEff"], 16), int(status["CapBnd"], 16)
        if found != (_USER, "1", 0, 0):
            raise InfraError(f"{name}: expected user {_USER}, no new privileges and no capabilities, got {found}")
        self._progress.step(
            f"{name}: user {_USER}, no capabilities, the root file system is read-only, and /tmp is not"
        )

    def kill(self, name: str) -> None:
        """Let the process of a pod die as in a crash, and wait until podman has started another."""
        before = self._pid(name)
        if before:
            os.kill(before, signal.SIGKILL)
        self._progress.demand(lambda: self._pid(name) not in (0, before), _WITHIN_S, f"another process of {name}")

    def _has_ended(self, name: str) -> bool:
        return self._state(name) == ("exited", 0)

    def _is_alive(self, name: str) -> bool:
        """Ask for readiness, and then for liveness: podman kills a pod of which the latter fails often."""
        ready = ["podman", "exec", self._container(name), "python", "/opt/sdp-facade/healthcheck.py"]
        alive = ["podman", "healthcheck", "run", self._container(name)]
        return all(
            subprocess.run(argv, env=environment(), capture_output=True, check=False).returncode == 0
            for argv in (ready, alive)
        )

    def _state(self, name: str) -> tuple[str, int]:
        state = json.loads(podman("inspect", "--format", "{{json .State}}", self._container(name)))
        return state["Status"], state["ExitCode"]

    def _pid(self, name: str) -> int:
        return int(podman("inspect", "--format", "{{.State.Pid}}", self._container(name)))

    def _log(self, name: str) -> str:
        argv = ["podman", "logs", "--tail=15", self._container(name)]
        done = subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def _container(self, name: str) -> str:
        of_deployment = "-pod-0" if name in SERVERS else ""
        return f"{_PREFIX}{name}{of_deployment}-facade"
