"""A demo that stays: a person may end, freeze and start its processes; the demo names missing ones and goes on."""

import secrets
import shlex
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from facade.admin.quotas import name_of
from facade.infra.ports import choose_port
from facade.infra.processes import GRACE, Process, ProcessRecord
from facade.kernel.config import FILE_VARIABLE
from facade.kernel.errors import InfraError
from sdp_facade_clients.web import how_to_install
from sdp_facade_lab.demo.report import Kill
from sdp_facade_lab.demo.services import adopt, alive, are_ours
from sdp_facade_lab.demo.system import INSPECTOR, SIMULATOR, Demo
from sdp_facade_lab.deployment import PROGRAM

_LOOK_EVERY: Final = 1.0
"""Time between two looks at what runs [s]."""
_GONE: Final = 60.0
"""Longest wait for Kafka and the Tango database, on which everything depends [s]."""
_BY_HAND: Final = frozenset({0, *(-one for one in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM))})
"""Exit codes of a process that somebody has ended; after any other it failed by itself."""


class _Missing(NamedTuple):
    """A service that is gone."""

    since: float
    """[s], monotonic."""
    ours: bool
    """Whether a demo had started it."""


def stay(demo: Demo, stack: ExitStack, page: str) -> None:
    """Stay until Ctrl-C, and let everything run again for the account; the stack ends what a person has started."""
    progress = demo.progress
    progress.console.print(what_to_try(demo, page), highlight=False, soft_wrap=True, markup=False)
    playground, check = Playground(demo), progress.check
    stack.callback(playground.stop_theirs)
    progress.check = playground.look
    try:
        while True:
            progress.wait(3600.0)
    except KeyboardInterrupt:
        progress.step("the account follows; Ctrl-C once more leaves it out")
    progress.check = check
    playground.restore()


class Playground:
    """What runs while a demo stays, and what a person has done to it."""

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress, self._processes = demo, demo.progress, demo.processes
        self._next = 0.0
        self._missing: set[str] = set()
        self._theirs: dict[str, Process] = {}
        """What a person has started in the place of what had ended, by its name in the demo."""
        self._frozen: set[str] = set()
        self._services = alive(demo.options)
        self._gone: dict[str, _Missing] = {}

    def look(self) -> None:
        now = self._demo.clock.monotonic()
        if now < self._next:
            return
        self._next = now + _LOOK_EVERY
        self._look_for_services(now)
        for process in self._processes.ended():
            self._missing.add(process.name)
            self._processes.forget(process.name)
            self._tell_end(process)
        for name, process in [*self._theirs.items()]:
            if not process.is_alive:
                del self._theirs[name]
                self._miss(name, f"{name}, which you had started (process {process.pid}), has ended")
        for name in [*self._missing]:
            if (found := self._find(name)) is not None:
                self._missing.discard(name)
                self._theirs[name] = found
                self._processes.pid_file(name).write_text(f"{found.pid}\n")
                self._progress.step(f"{name} runs again, as process {found.pid}")
        for process in self._processes:
            if process.is_frozen and process.name not in self._frozen:
                self._frozen.add(process.name)
                self._note(f"{process.name} (process {process.pid}) is frozen")
                self._progress.step(f"{process.name} is frozen; it goes on after: kill -CONT {process.pid}")
            elif process.name in self._frozen and not process.is_frozen:
                self._frozen.discard(process.name)
                self._progress.step(f"{process.name} goes on")

    def restore(self) -> None:
        self._next = 0.0
        self.look()  # something may have happened within the last second
        if self._gone:
            raise InfraError(f"{' and '.join(self._gone)}: not running, so there is nothing to compare")
        for process in self._processes:
            if process.is_frozen:
                process.send(signal.SIGCONT)
                self._progress.step(f"for the account {process.name} goes on")
        for name in sorted(self._missing - {SIMULATOR}):
            self._processes.start_again(name)
            self._progress.step(f"for the account {name} is started again")

    def stop_theirs(self) -> None:
        """End what a person has started in the place of what had ended: it belongs to this demo alone."""
        for name, process in self._theirs.items():
            process.send(signal.SIGTERM)  # to it alone: its group may hold a shell
            if not process.wait(GRACE):
                process.send(signal.SIGKILL)
            self._progress.step(f"{name}, which you had started, is stopped")

    def _tell_end(self, process: Process) -> None:
        code, name = process.code, process.name
        how = f"{name} (process {process.pid}) {_how(code)}"
        if code is None or code in _BY_HAND or self._gone or self._find(name) is not None:
            self._note(how)
        else:
            end = f"the end of {process.log}:\n{process.tail()}"
            self._demo.report.failures.append(f"{how} while the demo stayed; {end}")
        self._miss(name, how)

    def _miss(self, name: str, what: str) -> None:
        self._missing.add(name)
        self._processes.pid_file(name).unlink(missing_ok=True)  # another process may get the number
        lost = " What it has sent is not known any more, so records are not compared in the end." * (name == SIMULATOR)
        self._progress.step(f"{what}. The demo goes on without it.{lost} To start it again, paste into another shell:")
        self._print(self._processes.command(name))

    def _look_for_services(self, now: float) -> None:
        running, options = alive(self._demo.options), self._demo.options
        for name, pid in self._services.items():
            if name not in running and name not in self._gone:
                self._gone[name] = _Missing(now, are_ours(options))
                self._note(f"{name} (process {pid}) has ended")
                wait = self._progress.longest(_GONE)
                self._progress.step(f"{name} has ended. The demo waits {wait:.0f} s for it. To start it again, paste:")
                self._print(f"{PROGRAM} infra up --state-dir {shlex.quote(str(options.state_dir.resolve()))}")
            elif name in running and name in self._gone:
                if self._gone.pop(name).ours:
                    adopt(options)
                self._progress.step(f"{name} runs again, as process {running[name]}")
        self._services.update(running)
        for name, missing in self._gone.items():
            if now - missing.since > self._progress.longest(_GONE):
                raise InfraError(f"{name} is gone for good, and nothing works without it: the demo ends")

    def _find(self, name: str) -> Process | None:
        """Return what a person has started in the place of a process, in this deployment."""
        argv = self._processes[name].record.argv
        prefix = self._demo.deployment.settings.prefix
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                if _same(argv, one.cmdline()) and one.environ().get("SDP_TOPIC_PREFIX") == prefix:
                    record = ProcessRecord(name=name, pid=one.pid, created=one.create_time(), argv=argv, log="")
                    if (found := Process(record, self._demo.clock)).is_alive:
                        return found
        return None

    def _note(self, what: str) -> None:
        self._demo.report.experiments.append(Kill(self._demo.clock.now(), what))

    def _print(self, lines: str) -> None:
        indented = "\n".join(f"    {line}" for line in lines.splitlines())
        self._progress.console.print(f"\n{indented}\n", highlight=False, soft_wrap=True, markup=False)


def _same(argv: tuple[str, ...], found: list[str]) -> bool:
    """Return whether a process runs a program with these arguments: an interpreter's name may stand before it."""
    program, arguments = argv[0], list(argv[1:])
    at = len(found) - len(argv)
    names = {Path(program).name, "serve"}  # `sdp-facade serve INSTANCE` is a device server as well
    return at >= 0 and found[at + 1 :] == arguments and Path(found[at]).name in names


def _how(code: int | None) -> str:
    if code is None:
        return "has ended"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"has ended with exit code {code}"


def start_page(demo: Demo) -> str:
    """Start the operator's page, if it is installed; return a line with its address or its installation."""
    if how := how_to_install():
        return f"The operator's page is not installed: {how}"
    tokens = {role: secrets.token_urlsafe(16) for role in ("operator", "expert")}
    file = demo.options.folder / "tokens.txt"
    file.touch(mode=0o600)
    file.write_text("".join(f"{role} {role} {token}\n" for role, token in tokens.items()))
    port = choose_port()
    banner = "Simulated SDP: a demo"
    demo.deployment.launch("web", "web", "--port", port, "--tokens", file, "--banner", banner, login=None)
    who = ", ".join(f"{token} ({role})" for role, token in tokens.items())
    return f"The operator's page: http://localhost:{port}/   tokens to sign in: {who}"


def what_to_try(demo: Demo, page: str) -> str:
    """Say what can be done with a demo that stays."""
    made = demo.deployment.variables
    security, login = demo.deployment.endpoints.security, ""
    if security is not None:
        settings = security.settings_of(name_of(INSPECTOR))
        made |= {FILE_VARIABLE: str(settings)}
        login = f"""
The broker is secured. That shell logs in as {INSPECTOR}, which reads everything. For a program of another role, let
{FILE_VARIABLE} name its file in {settings.parent}.
A controller of your own also needs the right to its group, which the administrator gives:
sdp-facade rights apply --group controller=NAME
"""
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in made.items())
    device, subarray = demo.tango_side.devices["SdpIngestNode"][0], demo.tango_side.subarrays[0]
    return f"""The demo stays until Ctrl-C. Point another shell at it:

    export {variables}

(`sdp-facade infra env --state-dir {shlex.quote(str(demo.options.state_dir))}` prints the same, but for the topics.)
{login}
{page}

Then try:

    sdp-facade watch
    sdp-facade status             # and: alerts list, commands list, dead-letters list, bus check
    jive
    itango3
    python
    >>> import tango
    >>> node = tango.DeviceProxy("{device}")
    >>> print(node.heapRate, node.heapsTotal, node.read_attribute("latencyP99"))
    >>> subarray = tango.DeviceProxy("{subarray}")
    >>> print(subarray.On(), subarray.State(), subarray.lastCommand)

    tangogql                      # GraphQL for Taranta, where it is installed
    sdp-facade simulate --help
    kill -9 $(cat {shlex.quote(str(demo.processes.folder))}/aggregate-1.pid)    # or -STOP; each process has such a file

The account in the end is the simulator's: what you send on ingest.heaps, or put back there, shows as a difference.
Logs: {demo.options.folder}"""
