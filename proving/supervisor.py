"""The processes of a deployment: each is written down as soon as it runs, so that none is ever forgotten."""

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from facade.clock import Clock
from facade.errors import InfraError
from facade.infra.processes import Process, ProcessRecord

_FILE = "processes.json"
_ENDING = (signal.SIGINT, signal.SIGTERM)

Kind = TypeVar("Kind", bound=Process)


class _Start(NamedTuple):
    process: Process
    environment: Mapping[str, str] | None
    ends: bool


class Supervisor:
    """Starts, kills and stops processes, and knows at any time which ones should run.

    Parameters
    ----------
    folder
        For the logs and the list of what runs.
    append
        Whether a process that is started again goes on in the log of its previous life.
    """

    def __init__(self, folder: Path, clock: Clock, *, append: bool = False) -> None:
        self.folder = folder
        self._clock, self._append = clock, append
        self._newest: dict[str, _Start] = {}
        self._running: dict[str, Process] = {}
        self.started: list[Process] = []
        """All that were ever started here."""

    def __getitem__(self, name: str) -> Process:
        """Return the newest process of a name."""
        return self._newest[name].process

    def __iter__(self) -> Iterator[Process]:
        """Return all that should run."""
        return iter([*self._running.values()])

    def stop_left_over(self) -> list[str]:
        """Stop what an earlier run, which could not tidy up, left running; return the names."""
        try:
            records = msgspec.json.decode((self.folder / _FILE).read_bytes(), type=list[ProcessRecord])
        except FileNotFoundError:
            return []
        except msgspec.MsgspecError as error:
            raise InfraError(f"{self.folder / _FILE} cannot be read: {error}; it lists processes to stop") from error
        alive = [process for record in records if (process := Process(record, self._clock)).is_alive]
        for process in alive:
            process.stop()
        return [process.name for process in alive]

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
        with _signals_wait():
            process = kind.start(name, argv, log=log, env=environment, append=self._append, clock=self._clock)
            self._newest[name], self._running[name] = _Start(process, environment, ends), process
            self.started.append(process)
            self._save()
        return process

    def start_again(self, name: str) -> Process:
        """Start a process that was killed or has ended, with the same arguments."""
        process, environment, ends = self._newest[name]
        return self.start(type(process), name, process.record.argv, environment, ends=ends)

    def forget(self, name: str) -> None:
        """Take note that a process has done its work."""
        self._running.pop(name, None)
        self._save()

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
        """Stop everything that was ever started here, the newest first."""
        for process in reversed(self.started):
            if kill:
                process.kill()
            else:
                process.stop()
        self._running.clear()
        self._save()

    def check(self) -> None:
        """Make sure that everything runs that should.

        Raises
        ------
        InfraError
            A process has ended by itself; the message has the end of its log.
        """
        for name, process in self._running.items():
            if not self._newest[name].ends and not process.is_alive:
                raise InfraError(
                    f"{name} (process {process.pid}) ended by itself; the end of {process.log}:\n{process.tail()}"
                )

    def last_words(self) -> str:
        """Return the last line of each log: when something does not happen, one of them mostly says why."""
        lines = [(process.name, process.tail().strip().rpartition("\n")[2].strip()) for process in self]
        return "\n".join(f"    {name}: {line or '(nothing)'}" for name, line in lines)

    def alive(self) -> list[str]:
        """Return the names of all processes ever started here that still run."""
        return [f"{process.name} (process {process.pid})" for process in self.started if process.is_alive]

    def _save(self) -> None:
        beside = self.folder / f".{_FILE}"
        beside.write_bytes(msgspec.json.encode([process.record for process in self._running.values()]))
        beside.replace(self.folder / _FILE)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Take signals later: one between the start of a process and its being written down would leave it behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal is handled here
        return
    came: list[int] = []
    # A handler of our own, as a signal that is blocked or ignored would stay so in the process that is started.
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
