"""The processes of a demo: each is written down as soon as it runs, so that none is ever forgotten."""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from facade.clock import Clock
from facade.errors import InfraError
from facade.infra import processes, tools
from facade.infra.processes import ProcessRecord

_FILE = "processes.json"
_GRACE = 20.0
_ENDING = (signal.SIGINT, signal.SIGTERM)


class Processes:
    """Starts, kills and stops processes, and knows at any time which ones should run.

    Parameters
    ----------
    folder
        For the logs and the list of what runs.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock
        self._environment: Mapping[str, str] = {}
        self._running: dict[str, ProcessRecord] = {}
        self._all: list[ProcessRecord] = []
        self._ending: set[str] = set()

    def stop_left_over(self) -> list[str]:
        """Stop what an earlier demo, which could not tidy up, left running; give the names."""
        try:
            records = msgspec.json.decode((self.folder / _FILE).read_bytes(), type=list[ProcessRecord])
        except FileNotFoundError:
            return []
        except msgspec.MsgspecError as error:
            raise InfraError(f"{self.folder / _FILE} cannot be read: {error}; it lists processes to stop") from error
        alive = [record for record in records if processes.is_alive(record)]
        for record in alive:
            processes.stop(record, _GRACE, self._clock)
        return [record.name for record in alive]

    def use_environment(self, variables: Mapping[str, str]) -> None:
        """Set the environment of everything that is started from now on."""
        self._environment = variables

    def start(self, name: str, argv: Sequence[str], *, ends: bool = False) -> None:
        """Start a process.

        Parameters
        ----------
        ends
            Whether it ends by itself when its work is done.
        """
        log = self.folder / f"{name}.log"
        with _signals_wait():
            record = processes.spawn(name, argv, log=log, env={**os.environ, **self._environment})
            self._running[name] = record
            if ends:
                self._ending.add(name)
            self._all.append(record)
            self._save()

    def start_again(self, name: str) -> None:
        """Start a process that was killed, with the same arguments."""
        self.start(name, next(record.argv for record in reversed(self._all) if record.name == name))

    def kill(self, name: str) -> None:
        """End a process as a power cut would."""
        processes.kill(self._running.pop(name), self._clock)
        self._save()

    def stop(self, name: str) -> bool:
        """Ask a process to end; False: it had to be killed."""
        ended = processes.stop(self._running.pop(name), _GRACE, self._clock)
        self._save()
        return ended

    def stop_all(self) -> None:
        """Stop everything, the newest first."""
        for name in reversed(list(self._running)):
            self.stop(name)

    def check(self) -> None:
        """Make sure that everything runs that should.

        Raises
        ------
        InfraError
            A process has ended by itself; the message has the end of its log.
        """
        for record in self._running.values():
            if record.name not in self._ending and not processes.is_alive(record):
                raise InfraError(
                    f"{record.name} (process {record.pid}) ended by itself; the end of {record.log}:\n"
                    f"{tools.tail_of(record.log)}"
                )

    def last_words(self) -> str:
        """Return the last line of each log: when something does not happen, one of them mostly says why."""
        lines = [
            (record.name, tools.tail_of(record.log).strip().rpartition("\n")[2]) for record in self._running.values()
        ]
        return "\n".join(f"    {name}: {line.strip() or '(nothing)'}" for name, line in lines)

    def alive(self) -> list[str]:
        """Return the names of all processes ever started here that still run."""
        return [f"{record.name} (process {record.pid})" for record in self._all if processes.is_alive(record)]

    def _save(self) -> None:
        beside = self.folder / f".{_FILE}"
        beside.write_bytes(msgspec.json.encode(list(self._running.values())))
        beside.replace(self.folder / _FILE)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Take signals later: one between the start of a process and its being written down would leave it behind."""
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
