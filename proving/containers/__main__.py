"""Runs docker/compose.yaml, drives it from outside as a Tango client, kills containers, leaves nothing."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import tango

from facade.clock import SystemClock
from facade.console import ERR, OUT
from facade.errors import FacadeError, InfraError
from facade.infra import tools
from proving.containers import bare, prometheus, systemd
from proving.containers.images import Images
from proving.containers.operator import Operator
from proving.containers.project import OTHERS, SERVERS, Project
from proving.demo.journal import JournalWriter
from proving.demo.plan import OBSERVATION
from proving.demo.tm import Subarray
from proving.progress import Progress

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
_SHOWN_WITHIN_S: Final = 60.0


def run(project: Project, progress: Progress, folder: Path) -> None:
    """Start the project and drive it.

    Raises
    ------
    FacadeError
        Something does not come about.
    """
    begin = progress.elapsed
    project.prepare()
    project.start(*SERVERS, *_WORKERS)
    project.await_healthy([*SERVERS, *_WORKERS])
    progress.step(f"all services are healthy {progress.elapsed - begin:.0f} s after the start of the first")
    journal = JournalWriter(folder / "journal.json")
    # One for both observations: another one would give the same transaction_ids again, which are answered and not sent.
    tm = Subarray(project.outside["TANGO_HOST"], "mid-sdp/subarray/01", journal, SystemClock())
    tm.observe(OBSERVATION, 2.0, {})
    progress.step("one observation is through, by commands and events from outside")
    table = _send_table(project, progress)
    operator = Operator(project.outside, progress)
    operator.acknowledge_an_alert()
    prometheus.check(project, progress, "aggregate-1")
    for service in _KILLED:
        project.kill(service)
        progress.step(f"{service}: killed, and started again by podman")
    project.await_healthy([*SERVERS, *_WORKERS, *OTHERS, "prometheus"])
    _await_location(project, progress, table)
    operator.await_state("ACKED")
    progress.step("after the kills: table and acknowledgement are still shown, and one more observation follows")
    tm.observe(OBSERVATION, 2.0, {})
    balances = operator.account()
    progress.step(f"{len(balances)} figures of SdpBus: every account balances, and there is no dead letter")
    for service, used in sorted(project.memory().items()):
        OUT.print(f"  memory of {service}: {used}")


def _send_table(project: Project, progress: Progress) -> str:
    """Send a table and return its digest when SdpCalibration shows it."""
    argv = [str(Path(sys.executable).with_name("sdp-facade")), "simulate", "calibration"]
    tools.run([*argv, "--count", "1", "--megabytes", "1"], what="sending a table", env=project.outside)
    return _await_location(project, progress, "")


def _await_location(project: Project, progress: Progress, digest: str) -> str:
    """Wait until SdpCalibration shows a table, of this digest if there is one; return its digest."""
    shown: list[str] = []

    def is_shown() -> bool:
        device = f"tango://{project.outside['TANGO_HOST']}/mid-sdp/calibration/01"
        try:
            shown[:] = [tango.DeviceProxy(device).read_attribute("digest").value or ""]
        except tango.DevFailed:
            return False
        return bool(shown[0]) and shown[0] == (digest or shown[0])

    progress.demand(is_shown, _SHOWN_WITHIN_S, "the table in SdpCalibration")
    return shown[0]


def main() -> int:
    """Build, run, and remove; return the exit code."""
    parser = argparse.ArgumentParser(prog="make containers ARGS=", description=__doc__)
    parser.add_argument("--systemd", action="store_true", help="start packaging/systemd instead of Compose")
    parser.add_argument("--bare", action="store_true", help="try README's commands on Debian alone instead")
    parser.add_argument("--keep-images", action="store_true", help="leave the images for the next time")
    given = parser.parse_args()
    progress, docker = Progress(OUT, SystemClock()), Path(__file__).parents[2] / "docker"
    images = Images(docker, progress)
    with tempfile.TemporaryDirectory(prefix="sdp-facade-") as folder:
        secrets = Path(folder) / "secrets"
        secrets.mkdir()
        project = Project(docker, secrets, progress)
        try:
            project.remove()
            if given.bare:
                bare.run(images, progress, Path(folder))
                return 0
            images.make_bases()
            images.make_ours(local=True)
            progress.step(f"{images.ours}: {images.size() / 1e6:.0f} MB")
            if given.systemd:
                systemd.run(project, images, progress)
            else:
                run(project, progress, Path(folder))
        except (FacadeError, tango.DevFailed) as error:
            ERR.print(f"make containers: {error}", style="red", markup=False)
            return 1
        finally:
            _try(project.remove)
            _try(lambda: images.remove(bases=not given.keep_images))
    progress.step("passed; containers, network and volumes are removed")
    return 0


def _try(clean: Callable[[], None]) -> None:
    try:
        clean()
    except InfraError as error:
        ERR.print(f"make containers: {error}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
