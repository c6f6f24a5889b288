"""Runs docker/compose.yaml, drives it from outside as a Tango client, kills containers, leaves nothing."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import tango

from facade.clock import SystemClock
from facade.console import ERR, OUT
from facade.errors import FacadeError, InfraError
from facade.infra import tools
from facade.runtime.stopping import end_process
from proving.containers import bare, kube, prometheus, systemd
from proving.containers.images import RELEASES, UBUNTU, Images
from proving.containers.kube import Operator
from proving.containers.project import OTHERS, SERVERS, Phases, Project, await_table, send_table
from proving.demo.plan import OBSERVATION, JournalWriter
from proving.demo.tm import Commanded
from proving.progress import ProgressLine

_WORKERS: Final = (
    "aggregate-0",
    "aggregate-1",
    "alerts-intake-0",
    "tables-assemble-0",
    "logs-aggregate-0",
    "simulate-controller",
)
_KILLED: Final = (
    "aggregate-0",
    "alerts-intake-0",
    "tables-assemble-0",
    "subarray",
    "control",
    "alerts",
    "calibration",
    "ingest-00",
    "simulate-controller",
    "tango-databaseds",
    "tango-db",
    "prometheus",
    "kafka",
)
"""One of each kind."""
_LOCK: Final = Path("/run/lock/sdp-facade-containers")
"""Names, ports and images are those of the machine, so two runs would remove each other's."""


def run(project: Project, progress: ProgressLine, phases: Phases, folder: Path) -> None:
    """Start the project and drive it."""
    phases.begin("start")
    begin = progress.elapsed
    project.prepare()
    project.start(*SERVERS, *_WORKERS)
    project.await_healthy([*SERVERS, *_WORKERS])
    progress.step(f"all services are healthy {progress.elapsed - begin:.0f} s after the start of the first")
    phases.begin("observation")
    journal = JournalWriter(folder / "journal.json")
    # One for both observations: another one would give the same transaction_ids again, which are answered and not sent.
    tm = Commanded(project.outside["TANGO_HOST"], "mid-sdp/subarray/01", journal, SystemClock())
    tm.go_through(OBSERVATION, 2.0, {})
    progress.step("one observation is through, by commands and events from outside")
    table = send_table(project, progress)
    operator = Operator(project.outside, progress)
    operator.acknowledge_an_alert()
    phases.begin("Prometheus")
    prometheus.check(project, progress, "aggregate-1")
    phases.begin("kills")
    for service in _KILLED:
        if service == "tango-db":  # what is connected to it must get over its death
            project.await_healthy(["tango-databaseds"])
        project.kill(service)
        progress.step(f"{service}: killed, and started again by podman")
    project.await_healthy([*SERVERS, *_WORKERS, *OTHERS, "prometheus"])
    await_table(project, progress, table)
    operator.await_state("ACKED")
    phases.begin("second observation")
    progress.step("after the kills: table and acknowledgement are still shown, and one more observation follows")
    tm.go_through(OBSERVATION, 2.0, {})
    balances = operator.account()
    progress.step(f"{len(balances)} figures of SdpBus: every account balances, and there is no dead letter")
    for service, used in sorted(project.memory().items()):
        OUT.print(f"  memory of {service}: {used}")


def main() -> int:
    """Build, run, and remove; return the exit code."""
    parser = argparse.ArgumentParser(prog="make containers ARGS=", description=__doc__)
    parser.add_argument("--systemd", action="store_true", help="start packaging/systemd instead of Compose")
    parser.add_argument("--bare", action="store_true", help="try README's commands on Debian alone instead")
    parser.add_argument("--kube", action="store_true", help="play docker/kubernetes by podman instead")
    parser.add_argument("--release", choices=(*RELEASES, *UBUNTU), help="for --bare (otherwise those of Debian)")
    parser.add_argument("--keep-images", action="store_true", help="leave the images for the next time")
    given = parser.parse_args()
    progress, docker = ProgressLine(OUT, SystemClock()), Path(__file__).parents[2] / "docker"
    phases = Phases(progress)
    signal.signal(signal.SIGTERM, partial(_stop, phases))
    with tools.locked(_LOCK, lambda: progress.step("another run of this machine comes first: waiting for its end")):
        begin = progress.elapsed
        passed = _run_alone(given, docker, progress, phases)
    progress.step(f"phases: {phases}")
    if passed:
        progress.step(f"passed in {progress.elapsed - begin:.0f} s; containers, network and volumes are removed")
    return 0 if passed else 1


def _stop(phases: Phases, *_signal: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(f"make containers: {phases.current}: stopped by SIGTERM; what was made is removed")


def _run_alone(given: argparse.Namespace, docker: Path, progress: ProgressLine, phases: Phases) -> bool:
    with tempfile.TemporaryDirectory(prefix="sdp-facade-") as folder:
        (secrets := Path(folder) / "secrets").mkdir()
        (scratch := Path(folder) / "scratch").mkdir()
        images = Images(docker, scratch, progress)
        project = Project(docker, secrets, progress)
        try:
            project.remove()
            _do(given, project, images, phases, Path(folder))
        except (FacadeError, tango.DevFailed) as error:
            ERR.print(f"make containers: {phases.current}: {error}", style="red", markup=False)
            return False
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # half of a removal would leave the rest
            phases.begin("removal")
            _try(project.remove)
            _try(lambda: images.remove(bases=not given.keep_images))
    return True


def _do(given: argparse.Namespace, project: Project, images: Images, phases: Phases, folder: Path) -> None:
    progress = phases.progress
    if given.bare:
        phases.begin("Debian alone")
        bare.run(images, progress, folder, [given.release] if given.release else RELEASES)
        return
    phases.begin("bases")
    images.make_bases()
    phases.begin("image")
    images.make_ours(local=True)
    progress.step(f"{images.ours}: {images.size() / 1e6:.0f} MB")
    if given.systemd:
        phases.begin("systemd")
        systemd.run(project, images, progress)
    elif given.kube:
        phases.begin("Kubernetes")
        kube.run(project, images, progress, folder)
    else:
        run(project, progress, phases, folder)


def _try(clean: Callable[[], None]) -> None:
    try:
        clean()
    except InfraError as error:
        ERR.print(f"make containers: {error}", markup=False)


if __name__ == "__main__":
    end_process(main())
