"""Runs docker/compose.yaml, drives it from outside as a Tango client, kills containers, leaves nothing."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import tango

from facade.infra import tools
from facade.kernel.clock import SystemClock
from facade.kernel.console import ERR, OUT
from facade.kernel.errors import FacadeError, InfraError
from facade.kernel.runtime.stopping import end_process
from sdp_facade_lab.containers import cluster, kube, page, systemd
from sdp_facade_lab.containers.images import RELEASES, UBUNTU, Images, installed, podman
from sdp_facade_lab.containers.project import NAME, SERVERS, Phases, Project, drive
from sdp_facade_lab.progress import ProgressLine

_TESTS: Final = "tests/tools/test_topics.py tests/integration/test_example_flow.py"
"""One without processes, and one with a broker, a Tango database and device servers; all tests take too long here."""
_REFUSAL: Final = "neither root nor sudo; install by hand"
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_JAVA_CERTIFICATES: Final = Path("/etc/ssl/certs/java/cacerts")
_PIP: Final = Path("/etc/pip.conf")


def run_bare(images: Images, progress: ProgressLine, folder: Path, releases: Sequence[str] = RELEASES) -> None:
    """Try README's two commands on a Debian that has nothing but make: as root, with sudo, and without any rights."""
    archive = folder / "sources.tar"
    _pack(Path(__file__).parents[3], archive)
    for release in releases:
        image = images.make_debian(release)
        with_root = BareMachine(f"{NAME}_{release}-root_1", image, archive, progress)
        said = with_root.refused("make demo", user="nobody-special")
        progress.step(f"{release}, a user without sudo: {said}")
        for command in ("make demo", f"make test ARGS='{_TESTS}'"):
            begin = progress.elapsed
            said = with_root.do(command)
            progress.step(f"{release}, root, `{command}`: exit code 0 after {progress.elapsed - begin:.0f} s; {said}")
        with_root.remove()
        begin = progress.elapsed
        with_sudo = BareMachine(f"{NAME}_{release}-sudo_1", image, archive, progress)
        with_sudo.allow_sudo("user")
        said = with_sudo.do("make demo", user="user")
        progress.step(
            f"{release}, a user with sudo, `make demo`: exit code 0 after {progress.elapsed - begin:.0f} s; {said}"
        )
        with_sudo.remove()


class BareMachine:
    """A container of a Debian without anything, with the sources in the home of each user."""

    def __init__(self, name: str, image: str, archive: Path, progress: ProgressLine) -> None:
        self._name, self._progress = name, progress
        podman("run", "--detach", "--network=host", "--init", *_settings(), "--name", name, image, "sleep", "infinity")
        podman("cp", str(archive), f"{name}:/sources.tar")
        self._install("make")

    def allow_sudo(self, user: str) -> None:
        self._install("sudo")
        self._exec(f"useradd --create-home {user} && echo '{user} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{user}")

    def remove(self) -> None:
        podman("rm", "--force", "--time=0", self._name)

    def do(self, command: str, *, user: str = "root") -> str:
        """Run a command in the sources as a user and return its last line."""
        return _last(self._exec(self._within(command, user)))

    def refused(self, command: str, *, user: str) -> str:
        self._exec(f"useradd --create-home {user}")
        try:
            self._exec(self._within(command, user))
        except InfraError as error:
            said = [line.strip() for line in str(error).splitlines() if _REFUSAL in line]
            if said:
                return said[0]
            raise
        raise InfraError(f"`{command}` as a user without rights: expected a refusal with {_REFUSAL!r}, got success")

    def _install(self, package: str) -> None:
        install = f"apt-get -qq update && apt-get -qq install --yes --no-install-recommends {package}"
        installed(lambda: self._exec(install), self._progress)

    def _within(self, command: str, user: str) -> str:
        unpack = "mkdir -p ~/sources && tar --extract --file /sources.tar --directory ~/sources && cd ~/sources"
        script = f"{unpack} && {command}"
        # Not a log-in shell: it would drop the settings of this machine.
        return script if user == "root" else f'su {user} --command "{script}"'

    def _exec(self, script: str) -> str:
        return podman("exec", self._name, "sh", "-c", script)


def _pack(root: Path, archive: Path) -> None:
    """Pack what git knows, as it is in the working folder."""
    names = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=True).stdout
    (names_file := archive.with_suffix(".names")).write_bytes(names)
    argv = ["tar", "--create", "--file", str(archive), "--directory", str(root), "--null", f"--files-from={names_file}"]
    tools.run(argv, what="packing the sources")


def _settings() -> Iterator[str]:
    """Give a container the certificates of this machine, and where pip was told to install from."""
    if _PIP.is_file():
        yield f"--volume={_PIP}:{_PIP}:ro"
    certificates = Path(os.environ.get("PIP_CERT", _CERTIFICATES))
    if certificates.is_file():
        yield f"--volume={certificates}:/run/host-certificates:ro"
        yield from (f"--env={name}=/run/host-certificates" for name in ("PIP_CERT", "SSL_CERT_FILE"))
    if _JAVA_CERTIFICATES.is_file():
        yield f"--volume={_JAVA_CERTIFICATES}:/run/host-java-certificates:ro"
        yield "--env=MAVEN_OPTS=-Djavax.net.ssl.trustStore=/run/host-java-certificates"


def _last(said: str) -> str:
    lines: Sequence[str] = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


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


_NOT_STARTED: Final = frozenset({"kafka"})
"""Jobs of services whose images come from a registry alone."""
_DOWN: Final = "SdpProcessDown"
_UP_WITHIN_S, _FIRES_WITHIN_S = 300.0, 300.0


def _check_prometheus(project: Project, progress: ProgressLine, worker: str) -> None:
    """Start Prometheus, wait for its targets, and stop a worker until a rule fires that names it."""
    project.start("prometheus")
    project.await_healthy(["prometheus"])
    if progress.wait_until(lambda: not _down(project), _UP_WITHIN_S, "all targets of Prometheus") is None:
        raise InfraError(
            f"Prometheus: expected all targets within {_UP_WITHIN_S:g} s, not reached: {'; '.join(_down(project))}"
        )
    progress.step(f"Prometheus reaches {len(_targets(project))} targets")
    project.stop(worker)
    progress.demand(lambda: worker in _fired(project), _FIRES_WITHIN_S, f"{_DOWN} of {worker}")
    progress.step(f"{worker}: stopped; {_DOWN} fires")
    project.start(worker)
    project.await_healthy([worker])
    progress.demand(lambda: not _fired(project), _FIRES_WITHIN_S, f"the end of {_DOWN}")
    progress.step(f"{worker}: started again; no rule fires")


def _targets(project: Project) -> list[dict[str, Any]]:
    found = _ask(project, "targets").get("activeTargets", [])
    return [one for one in found if one["labels"]["job"] not in _NOT_STARTED]


def _down(project: Project) -> list[str]:
    targets = _targets(project)
    away = [one for one in targets if one["health"] != "up"]
    return [f"{one['labels']['instance']} ({one['lastError']})" for one in away] if targets else ["all"]


def _fired(project: Project) -> set[str]:
    alerts = _ask(project, "alerts").get("alerts", [])
    mine = [one for one in alerts if one["labels"]["alertname"] == _DOWN and one["state"] == "firing"]
    return {one["labels"]["instance"].partition(":")[0] for one in mine}


def _ask(project: Project, what: str) -> dict[str, Any]:
    try:
        url = f"http://127.0.0.1:{project.ports['PROMETHEUS_PORT']}/api/v1/{what}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
            return found
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}


def start(project: Project, progress: ProgressLine, phases: Phases) -> None:
    phases.begin("start")
    begin = progress.elapsed
    project.prepare()
    project.start(*SERVERS, *_WORKERS)
    project.await_healthy([*SERVERS, *_WORKERS])
    progress.step(f"all services are healthy {progress.elapsed - begin:.0f} s after the start of the first")


def run(project: Project, progress: ProgressLine, phases: Phases, folder: Path) -> None:
    def disturb() -> None:
        phases.begin("Prometheus")
        _check_prometheus(project, progress, "aggregate-1")
        phases.begin("kills")
        for service in _KILLED:
            if service == "tango-db":  # its clients must survive its death
                project.await_healthy(["tango-databaseds"])
            project.kill(service)
            progress.step(f"{service}: killed, and started again by podman")
        # First what the others need: the check of the Tango database's device ends it if it has lost MariaDB.
        project.await_healthy([*project.others, *SERVERS, *_WORKERS, "prometheus"])
        phases.begin("page")
        project.start(page.SERVICE)
        project.await_healthy([page.SERVICE])
        page.see(project, progress)
        phases.begin("second observation")

    phases.begin("observation")
    drive(project, progress, folder, disturb)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make containers ARGS=", description=__doc__)
    parser.add_argument("--systemd", action="store_true", help="start packaging/systemd instead of Compose")
    parser.add_argument("--bare", action="store_true", help="try README's commands on Debian alone instead")
    parser.add_argument("--cluster", action="store_true", help="three secured brokers: docker/cluster.yaml as well")
    parser.add_argument("--kube", action="store_true", help="play docker/kubernetes by podman instead")
    parser.add_argument("--release", choices=(*RELEASES, *UBUNTU), help="for --bare (otherwise those of Debian)")
    parser.add_argument("--keep-images", action="store_true", help="leave the images for the next time")
    given = parser.parse_args()
    progress, docker = ProgressLine(OUT, SystemClock()), Path(__file__).parents[3] / "docker"
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
        project = Project(docker, secrets, progress, cluster=given.cluster)
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
        run_bare(images, progress, folder, [given.release] if given.release else RELEASES)
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
        start(project, progress, phases)
        (cluster.run if given.cluster else run)(project, progress, phases, folder)
        for service, used in sorted(project.memory().items()):
            OUT.print(f"  memory of {service}: {used}")


def _try(clean: Callable[[], None]) -> None:
    try:
        clean()
    except InfraError as error:
        ERR.print(f"make containers: {error}", markup=False)


if __name__ == "__main__":
    end_process(main())
