"""The processes of a deployment: each process that was started in its folder is found again."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from facade.infra.processes import GRACE, Process, started_in
from facade.kernel.clock import Clock
from facade.kernel.errors import InfraError

Kind = TypeVar("Kind", bound=Process)
_LOOKS = 5
"""How often it is looked for what still runs, at the most."""
_OURS = ("SDP_", "KAFKA_", "TANGO_")
"""What the variables of a deployment begin with."""


class _Start(NamedTuple):
    process: Process
    environment: Mapping[str, str] | None
    ends: bool


class Supervisor:
    """Starts, kills and stops processes, and knows at any time which ones should run.

    Parameters
    ----------
    folder
        For the logs.
    append
        Whether a process that is started again goes on in the log of its previous life.
    niceness
        By how much the processes leave others the first place at the processors; see ``nice(1)``.
    """

    def __init__(self, folder: Path, clock: Clock, *, append: bool = False, niceness: int = 0) -> None:
        self.folder = folder
        self._clock, self._append, self._niceness = clock, append, niceness
        self._newest: dict[str, _Start] = {}
        self._running: dict[str, Process] = {}
        self.started: list[Process] = []
        """All that were ever started here."""

    def __getitem__(self, name: str) -> Process:
        return self._newest[name].process

    def __iter__(self) -> Iterator[Process]:
        return iter([*self._running.values()])

    def pid_file(self, name: str) -> Path:
        return self.folder / f"{name}.pid"

    def stop_left_over(self) -> list[str]:
        """Stop what an earlier run, which could not tidy up, left running; return the names."""
        left = started_in(self.folder, self._clock)
        for process in left:
            process.stop()
        return [process.name for process in left]

    def start(
        self,
        kind: type[Kind],
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        ends: bool = False,
    ) -> Kind:
        """Start a process.

        Parameters
        ----------
        environment
            The whole of it; this process' own by default.
        ends
            Whether it ends by itself when its work is done.
        """
        log = self.folder / f"{name}.log"
        process = kind.start(name, argv, log=log, env=environment, append=self._append, clock=self._clock)
        if self._niceness:
            _give_way(process.pid, self._niceness)
        self.pid_file(name).write_text(f"{process.pid}\n")
        self._newest[name], self._running[name] = _Start(process, environment, ends), process
        self.started.append(process)
        return process

    def start_again(self, name: str) -> Process:
        process, environment, ends = self._newest[name]
        return self.start(type(process), name, process.record.argv, environment, ends=ends)

    def forget(self, name: str) -> None:
        self._running.pop(name, None)

    def kill(self, name: str) -> None:
        """End a process as a power cut would."""
        self[name].kill()
        self.forget(name)

    def stop(self, name: str) -> bool:
        """Ask a process to end; False: it had to be killed."""
        ended = self[name].stop()
        self.forget(name)
        return ended

    def stop_all(self, *, kill: bool = False) -> None:
        """Stop everything that was ever started here, the newest first; also what a signal cut off while it started."""
        processes: Sequence[Process] = [*reversed(self.started)]
        # What a signal cut off while it started, or outlived the leader of its group, is found by a further look.
        for _ in range(_LOOKS):
            if kill:
                for process in processes:
                    process.kill()
            else:
                self._end(processes)
            if not (processes := started_in(self.folder, self._clock)):
                break
        self._running.clear()

    def _end(self, processes: Sequence[Process]) -> None:
        """Ask all to end, and then wait: several that hang take no longer than one."""
        for process in processes:
            process.ask()
        until = self._clock.monotonic() + GRACE
        for process in processes:
            process.end(max(until - self._clock.monotonic(), 0.0))

    def check(self) -> None:
        for process in self.ended():
            raise InfraError(
                f"{process.name} (process {process.pid}) ended by itself; the end of {process.log}:\n{process.tail()}"
            )

    def ended(self) -> list[Process]:
        """Return what should run, and has ended by itself or by another's hand."""
        running = self._running.items()
        return [process for name, process in running if not self._newest[name].ends and not process.is_alive]

    def command(self, name: str) -> str:
        """Return the lines that start a process in any shell as it was started here."""
        process, environment, _ = self._newest[name]
        ours = {key: value for key, value in (environment or {}).items() if key.startswith(_OURS)}
        export = f"export {' '.join(f'{key}={shlex.quote(value)}' for key, value in ours.items())}\n" if ours else ""
        return export + shlex.join(process.record.argv)

    def last_words(self) -> str:
        """Return the last line of each log: when something does not happen, one of them mostly says why."""
        lines = [(process.name, process.tail().strip().rpartition("\n")[2].strip()) for process in self]
        return "\n".join(f"    {name}: {line or '(nothing)'}" for name, line in lines)

    def alive(self) -> list[str]:
        return [f"{process.name} (process {process.pid})" for process in started_in(self.folder)]


def _give_way(pid: int, niceness: int) -> None:
    """Give a process a niceness, and the group of its session as well, by which some kernels share the processors."""
    with suppress(OSError):  # it has ended, or the kernel makes no groups
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        Path(f"/proc/{pid}/autogroup").write_text(f"{niceness}\n")
