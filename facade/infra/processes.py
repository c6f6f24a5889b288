"""Detached processes that a later run identifies safely.

A process id alone is no identity: the kernel reuses it. A record therefore also has the creation time of the process,
and both must match before a signal is sent. Each process also has the path of its log in its environment: a process
whose starter was killed before it could write a record is identified by that. A zombie is dead: it holds neither a port
nor a file, except while its other threads end.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import psutil

from facade.infra.tools import tail_of
from facade.kernel.clock import Clock, SystemClock, wait_until
from facade.kernel.errors import InfraError

LOG_VARIABLE: Final = "FACADE_PROCESS_LOG"
"""Environment variable of each started process: the path of its log."""
_LOOK_AGAIN: Final = 0.01
_BEGINNING: Final = 30.0
"""Longest time for a process to begin its program, on a machine of any speed [s]."""
_KILL_TAKES: Final = 10.0
GRACE: Final = 20.0
"""Longest time for a process to end [s]."""
_CLOCK_STEP: Final = 2.0
"""Largest step of the system's clock that still matches [s]: the kernel counts creation times from the boot."""
_PORT_IS_TAKEN: Final = ("Address already in use", "AddressAlreadyInUse", "Failed to bind")


class PortTakenError(InfraError):
    """Another program took the port between the choice and the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """Identity of a process.

    Attributes
    ----------
    created
        Creation time by the kernel [Unix s].
    log
        File with standard output and standard error of the process.
    """

    name: str
    pid: int
    created: float
    argv: tuple[str, ...]
    log: str


class Process:
    """A process started by `start`, in this run or an earlier one.

    Parameters
    ----------
    record
        Record of `start`. If the process has ended since, the object reports it and never sends a signal.
    """

    def __init__(self, record: ProcessRecord, clock: Clock | None = None) -> None:
        self.record, self._clock = record, clock or SystemClock()
        self.code: int | None = None
        """Exit code, negative for a signal; None while it runs, and for a child of another process."""
        self._found: psutil.Process | None = None
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(record.pid)
            if abs(found.create_time() - record.created) < _CLOCK_STEP:
                self._found = found

    @classmethod
    def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        append: bool = False,
        clock: Clock | None = None,
    ) -> Self:
        """Start a process that outlives this one and gets none of its signals (setsid).

        Parameters
        ----------
        env
            The whole environment; by default this process' own.
        append
            Append to the log of the previous process. Otherwise that is kept as ``<log>.1``.

        Raises
        ------
        InfraError
            The program cannot be started.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and not append:
            log.replace(log.with_name(log.name + ".1"))
        try:
            with log.open("ab") as output, _signals_deferred():
                child = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**(os.environ if env is None else env), LOG_VARIABLE: str(log.resolve())},
                    start_new_session=True,
                )
        except OSError as error:
            raise InfraError(f"{name} cannot be started: {error} (command: {' '.join(argv)})") from error
        # Popen would warn that it is left running, which is intended; `is_alive` collects it.
        child.returncode = 0
        created = psutil.Process(child.pid).create_time()  # at worst a zombie: not collected yet
        record = ProcessRecord(name=name, pid=child.pid, created=created, argv=tuple(argv), log=str(log))
        return cls(record, clock)

    @property
    def name(self) -> str:
        """Return the name of the service."""
        return self.record.name

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self.record.pid

    @property
    def log(self) -> Path:
        """Return the file with its output."""
        return Path(self.record.log)

    @property
    def is_alive(self) -> bool:
        """Return whether exactly this process still runs, and not a zombie or a successor with its id."""
        if self._found is None:
            return False
        try:
            status = self._found.status() if self._found.is_running() else psutil.STATUS_DEAD
            if status != psutil.STATUS_DEAD and (status != psutil.STATUS_ZOMBIE or self._found.num_threads() > 1):
                return True
        except psutil.NoSuchProcess:
            pass
        self._collect()
        self._found = None
        return False

    @property
    def is_frozen(self) -> bool:
        """Return whether it is suspended by a signal (SIGSTOP)."""
        with suppress(psutil.NoSuchProcess):
            return self._found is not None and self._found.status() == psutil.STATUS_STOPPED
        return False

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it alone, if it still runs."""
        if self.is_alive:
            os.kill(self.pid, number)

    def stop(self, grace: float = GRACE) -> bool:
        """Ask the process to end, and kill it if it has not ended after the grace time [s].

        Returns
        -------
        bool
            True when it ended by itself (or was not alive), False when it had to be killed.

        Raises
        ------
        InfraError
            The process survives even a SIGKILL.
        """
        self.ask()
        return self.end(grace)

    def ask(self) -> None:
        """Ask the process to end, and do not wait."""
        self._signal_group(signal.SIGTERM)

    def end(self, grace: float) -> bool:
        """Kill a process that was asked to end, if it has not ended after the grace time [s]; see `stop`."""
        if self.wait(grace):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """End the process at once, as a power cut would, and wait until it is gone.

        Raises
        ------
        InfraError
            The process survives a SIGKILL (it hangs in the kernel, or belongs to another user).
        """
        self._signal_group(signal.SIGKILL)
        if not self.wait(_KILL_TAKES):
            raise InfraError(
                f"{self.name} (process {self.pid}) still runs {_KILL_TAKES:g} s after a SIGKILL; "
                f"look at it with `ps -o pid,stat,wchan,args -p {self.pid}`"
            )

    def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it has ended in time [s]."""
        return wait_until(self._clock, lambda: not self.is_alive, seconds, _LOOK_AGAIN)

    def tail(self) -> str:
        """Return the last lines of its log, for an error message."""
        return tail_of(self.log)

    def _signal_group(self, number: signal.Signals) -> None:
        if not self.is_alive:
            return
        try:
            # Its group has only the process and its children; its leader may have ended before.
            os.killpg(os.getpgid(self.pid), number)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise InfraError(
                f"{self.name} (process {self.pid}) belongs to another user and cannot be stopped"
            ) from error

    def _collect(self) -> None:
        """Collect the exit code of our own dead child, so that no zombie is left."""
        with suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None


def check_alive(process: Process) -> None:
    """Raise an error for a dead process that should be starting.

    Raises
    ------
    PortTakenError
        It ended because its port is in use.
    InfraError
        It ended for another reason; the message has the end of its log.
    """
    if process.is_alive:
        return
    end, said = process.tail(), process.log.read_text(errors="replace")
    if any(text in said for text in _PORT_IS_TAKEN):
        raise PortTakenError(f"{process.name} cannot listen: its port is in use; the end of {process.log}:\n{end}")
    raise InfraError(f"{process.name} ended while it started; the end of {process.log}:\n{end}")


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM, if this process has handlers for them.

    A handler that raises between fork and exec would leave an unidentified child: it has neither its session nor its
    environment yet. A blocked signal would stay blocked in the child, so the handlers are exchanged instead.
    """
    came: list[int] = []
    held: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():  # other threads run no handlers
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(number)):
                held[number] = signal.signal(number, lambda one, _: came.append(one))
    try:
        yield
    finally:
        for held_back, handler in held.items():
            signal.signal(held_back, handler)
    for missed in came:
        signal.raise_signal(missed)


def started_in(folder: Path, clock: Clock | None = None) -> list[Process]:
    """Return the processes with a log in a folder: one of each group, usually its leader."""
    clock = clock or SystemClock()
    found: dict[int, Process] = {}
    for one in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            # Threads of the kernel have no session, and for ever neither arguments nor an environment.
            if os.getsid(one.pid) in (0, os.getsid(0)):
                continue
            wait_until(clock, partial(_is_in_its_program, one), _BEGINNING, _LOOK_AGAIN)
            log, group = Path(one.environ().get(LOG_VARIABLE, "")), os.getpgid(one.pid)
            if log.parent != folder.resolve():
                continue
            argv, created = tuple(one.cmdline()), one.create_time()
            record = ProcessRecord(name=log.stem, pid=one.pid, created=created, argv=argv, log=str(log))
            found.setdefault(group, Process(record, clock))
    return [*found.values()]


def _is_in_its_program(process: psutil.Process) -> bool:
    """Return whether a process is past execve, during which it seems to have neither arguments nor an environment.

    On a busy machine this may last until it gets a processor.
    """
    return bool(process.environ() or process.cmdline())
