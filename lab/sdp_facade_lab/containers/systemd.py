"""The units of packaging/systemd, started by a real systemd: process 1 of a container beside those of Compose."""

from typing import Final

from facade.kernel.errors import InfraError
from sdp_facade_lab.containers.images import HOST, Images, podman
from sdp_facade_lab.containers.project import NAME, PREFIX, SERVERS, Project
from sdp_facade_lab.progress import ProgressLine

_HOST: Final = f"{NAME}_host_1"
_TARGET: Final = "sdp-facade.target"
_WORKERS: Final = ("aggregate@0", "alerts-intake@0", "tables@0", "logs-aggregate@0")
UNITS: Final = (
    *(f"sdp-facade@{instance}.service" for instance in SERVERS),
    *(f"sdp-facade-{worker}.service" for worker in _WORKERS),
)
_KILLED: Final = ("sdp-facade@control.service", "sdp-facade-aggregate@0.service")
_ENVIRONMENT: Final = f"""\
TANGO_HOST=tango-databaseds:10000
KAFKA_BOOTSTRAP=kafka:9092
SDP_TOPIC_PREFIX={PREFIX}
SDP_INGEST_NODES=4
SDP_SUBARRAYS=2
SDP_LOG_FORMAT=ska
"""
_BOOTS_WITHIN_S, _ANSWERS_WITHIN_S, _STOPS_WITHIN_S = 300.0, 300.0, 120.0
_ENDED: Final = ("inactive", "success")
_NOT_WRITABLE: Final = ("/etc", "/usr", "/opt/sdp-facade", "/home")
"""Folders that a unit must not write to."""


def run(project: Project, images: Images, progress: ProgressLine) -> None:
    """Start the units, kill some, replace the programs under them, and stop them all."""
    images.make_host()
    project.prepare()
    host = Host(project, progress)
    host.boot()
    host.start()
    host.check_hardening()
    for unit in _KILLED:
        host.kill(unit)
    host.upgrade()
    host.stop()


class Host:
    """A machine with systemd, in the network of the project."""

    def __init__(self, project: Project, progress: ProgressLine) -> None:
        self._project, self._progress = project, progress

    def boot(self) -> None:
        # It makes namespaces for its units, which a container may do with all privileges alone.
        options = ["--detach", "--privileged", "--systemd=always", "--network", f"{NAME}_default", "--hostname=host"]
        podman("run", *options, "--name", _HOST, HOST)
        self._progress.demand(lambda: self._state() in ("running", "degraded"), _BOOTS_WITHIN_S, "systemd")
        version = self._do("systemctl", "--version").split()[1]
        self._progress.step(f"systemd {version} is process 1; the system is {self._state()}")

    def start(self) -> None:
        """Install and enable the units as docs/how-to/deploy.md says, and wait until all answer."""
        self._do("sh", "-c", f"printf '%s' '{_ENVIRONMENT}' >/etc/sdp-facade/environment")
        self._do("systemctl", "enable", "--now", _TARGET)
        self._do("systemctl", "enable", "--now", *UNITS)
        self._await("all units answer")
        self._progress.step(f"{len(UNITS)} units are active and answer")

    def check_hardening(self) -> None:
        for unit in _KILLED:
            pid = self._pid(unit)
            status = dict(
                line.split(":\t", 1) for line in self._do("cat", f"/proc/{pid}/status").splitlines() if ":\t" in line
            )
            found = status["NoNewPrivs"], int(status["CapEff"], 16), int(status["CapBnd"], 16)
            if found != ("1", 0, 0):
                raise InfraError(f"{unit}: expected no new privileges and no capabilities, got {found}")
            enter = ["nsenter", "--target", str(pid), "--mount", "sh", "-c"]
            for folder in _NOT_WRITABLE:
                if self._fails(*enter, f"touch {folder}/probe"):
                    continue
                raise InfraError(f"{unit}: expected {folder} to be closed to it, but a file could be made there")
            figure = self._do("systemd-analyze", "security", "--no-pager", unit).split("exposure level for", 1)[1]
            figure = figure.split(":", 1)[1].split()[0]
            closed = ", ".join(_NOT_WRITABLE)
            self._progress.step(f"{unit}: exposure {figure} of 10 by systemd-analyze; it can write to none of {closed}")

    def kill(self, unit: str) -> None:
        """Kill a unit and wait until systemd has started it again, and it answers."""
        before = self._pid(unit)
        self._do("systemctl", "kill", "--signal=SIGKILL", "--kill-who=main", unit)
        self._progress.demand(
            lambda: self._pid(unit) not in (0, before), _ANSWERS_WITHIN_S, f"another process of {unit}"
        )
        self._await(f"{unit} answers again")
        self._progress.step(f"{unit}: killed, started again by systemd, and answers")

    def upgrade(self) -> None:
        """Replace the programs while they run, and restart all units."""
        before = {unit: self._pid(unit) for unit in UNITS}
        self._do("sh", "-c", "cd /opt && cp -a sdp-facade new && mv sdp-facade old && mv new sdp-facade && rm -rf old")
        changed = [unit for unit, pid in before.items() if self._pid(unit) != pid]
        if changed:
            raise InfraError(f"expected all units to go on while the programs were replaced, got a new {changed[0]}")
        self._do("systemctl", "restart", "sdp-facade*.service", "--all")
        self._await("all units answer after the upgrade")
        self._progress.step("the programs were replaced under the units; after a restart all answer")

    def stop(self) -> None:
        self._do("systemctl", "stop", _TARGET)  # its parts end after it has

        def ends() -> dict[str, tuple[str, str]]:
            return {unit: (self._show(unit, "ActiveState"), self._show(unit, "Result")) for unit in UNITS}

        def have_ended() -> bool:
            return all(state in ("inactive", "failed") for state, _ in ends().values())

        took = self._progress.wait_until(have_ended, _STOPS_WITHIN_S, "the ends of all units")
        bad = [f"{unit}: {state} {result}" for unit, (state, result) in ends().items() if (state, result) != _ENDED]
        if bad or took is None:  # systemd kills a unit after 10 s, and its result is then no success
            raise InfraError("; ".join(["expected all units to end in good order", *bad]))
        self._progress.step(f"`systemctl stop {_TARGET}`: all units ended in good order within {took:.1f} s")

    def _await(self, what: str) -> None:
        def all_answer() -> bool:
            return all(self._show(unit, "ActiveState") == "active" for unit in UNITS) and not self._project.missing()

        if self._progress.wait_until(all_answer, _ANSWERS_WITHIN_S, what) is None:
            states = {unit: self._show(unit, "ActiveState") for unit in UNITS}
            journal = self._do("journalctl", "--no-pager", "--lines=30")
            said = f"expected that {what}, got {states}, missing {self._project.missing()}"
            raise InfraError(f"{said}; the journal ends:\n{journal}")

    def _state(self) -> str:
        try:
            return self._do("sh", "-c", "systemctl is-system-running || true").strip()
        except InfraError:
            return ""  # its bus is not there yet

    def _pid(self, unit: str) -> int:
        return int(self._show(unit, "MainPID") or 0)

    def _show(self, unit: str, name: str) -> str:
        return self._do("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def _fails(self, *argv: str) -> bool:
        try:
            self._do(*argv)
        except InfraError:
            return True
        return False

    def _do(self, *argv: str) -> str:
        return podman("exec", _HOST, *argv)
