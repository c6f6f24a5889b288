"""Detached processes that are found again later, by another run, without ever hitting a stranger.

A process id alone is no identity: the kernel reuses it. A record therefore also holds the process'
start time (in clock ticks since boot) and the boot itself; all three must match before a
signal is sent. A zombie is dead: it holds no port and no file any more, except while its other
threads still end.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from facade.clock import Clock, SystemClock
from facade.errors import InfraError

_PROC: Final = Path("/proc")
_LOOK_AGAIN_S: Final = 0.01
_KILL_TAKES_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """What is needed to find a process that was started by `spawn` again.

    Attributes
    ----------
    start_ticks
        Field 22 of ``/proc/PID/stat``: clock ticks from boot to the start of the process.
    boot_id
        The kernel's name for this boot; ids and ticks of an earlier one mean nothing.
    log
        Where the process writes its standard output and standard error.
    """

    name: str
    pid: int
    start_ticks: int
    boot_id: str
    argv: tuple[str, ...]
    log: str


class _Stat(NamedTuple):
    state: str
    threads: int
    start_ticks: int


def spawn(name: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> ProcessRecord:
    """Start a process that outlives this one and gets none of its signals (setsid).

    The log of the previous life is kept beside the new one, as ``<log>.1``.

    Parameters
    ----------
    env
        The whole environment; this process' own by default.

    Raises
    ------
    InfraError
        The program cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(log.name + ".1"))
    try:
        with log.open("wb") as output:
            child = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
            )
    except OSError as error:
        raise InfraError(f"{name} cannot be started: {error} (command: {' '.join(argv)})") from error
    # Popen would warn that it is left running, which is the very purpose; `_reap` collects it.
    child.returncode = 0
    stat = _stat(child.pid)
    return ProcessRecord(
        name=name,
        pid=child.pid,
        start_ticks=0 if stat is None else stat.start_ticks,
        boot_id=_boot_id(),
        argv=tuple(argv),
        log=str(log),
    )


def is_alive(record: ProcessRecord) -> bool:
    """Return whether exactly this process still runs: a successor with its id or a zombie is not it."""
    stat = _stat(record.pid)
    if stat is None or stat.start_ticks != record.start_ticks or record.boot_id != _boot_id():
        return False
    if stat.state in "ZX" and stat.threads <= 1:
        _reap(record.pid)
        return False
    return True


def stop(record: ProcessRecord, grace_s: float = 20.0, clock: Clock | None = None) -> bool:
    """Ask the process to end, and kill it when it has not ended after the grace time.

    Returns
    -------
    bool
        True when it ended by itself (or was not alive), False when it had to be killed.

    Raises
    ------
    InfraError
        The process survives even a SIGKILL.
    """
    clock = clock or SystemClock()
    _signal(record, signal.SIGTERM)
    if _ends_within(record, grace_s, clock):
        return True
    kill(record, clock)
    return False


def kill(record: ProcessRecord, clock: Clock | None = None) -> None:
    """End the process at once, as a power cut would, and wait until it is gone.

    Raises
    ------
    InfraError
        The process survives a SIGKILL (it hangs in the kernel, or belongs to another user).
    """
    _signal(record, signal.SIGKILL)
    if not _ends_within(record, _KILL_TAKES_S, clock or SystemClock()):
        raise InfraError(
            f"{record.name} (process {record.pid}) still runs {_KILL_TAKES_S:g} s after a SIGKILL; "
            f"look at it with `ps -o pid,stat,wchan,args -p {record.pid}`"
        )


def _signal(record: ProcessRecord, number: signal.Signals) -> None:
    if not is_alive(record):
        return
    try:
        # Its group is its own and holds nothing but itself and what it started.
        os.killpg(record.pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise InfraError(
            f"{record.name} (process {record.pid}) belongs to another user and cannot be stopped"
        ) from error


def _ends_within(record: ProcessRecord, seconds: float, clock: Clock) -> bool:
    deadline = clock.monotonic() + seconds
    while is_alive(record):
        if clock.monotonic() >= deadline:
            return False
        clock.sleep(_LOOK_AGAIN_S)
    return True


def _reap(pid: int) -> None:
    """Collect the process if it is our own dead child, so that no zombie is left."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _stat(pid: int) -> _Stat | None:
    """Read the kernel's figures, or give None if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name stands in parentheses and may itself contain spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[17]), int(fields[19]))


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
