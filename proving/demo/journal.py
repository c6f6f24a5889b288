"""What TM writes down of an observation: each command that it gave, and what it saw of it. No Tango, no bus."""

import threading
from pathlib import Path
from typing import Any

import msgspec

from facade.files import write_whole


class Given(msgspec.Struct, kw_only=True):
    """One command as TM gave it and saw it."""

    device: str
    name: str
    transaction_id: str = ""
    """Empty for a command without an argument: there is no place for one."""
    called: float
    """When it was called, for the first time [Unix s]."""
    calls: int = 0
    """How often it had to be called."""
    id: str = ""
    """Empty while the facade has not taken it."""
    took: float | None = None
    """Duration of the call that gave the id, after which the command is durable [s]; None: the answer was lost."""
    refusals: list[str] = []
    """What calls without an id said."""
    path: list[str] = []
    """What events showed from the call until the next one: obsState, or OFF."""
    reached: float | None = None
    """When an event showed the state that it leads to [Unix s]."""
    heard: list[Any] | None = None
    """Result that longRunningCommandResult showed, `[ResultCode, text]`; the next one may have come too soon."""


class Journal(msgspec.Struct, kw_only=True):
    """The commands of one observation, in the order of their calls."""

    given: list[Given] = []
    errors: list[str] = []
    """Why a subarray did not get to the end."""
    finished: bool = False


def read_journal(path: Path) -> Journal:
    """Read the file; before there is one, nothing was given."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Journal)
    except FileNotFoundError:
        return Journal()


class JournalWriter:
    """The journal, written down again with each change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.journal = Journal()

    def note(self, given: Given | None = None, *, error: str = "", finished: bool = False) -> None:
        """Write down what has changed; a command when it is given for the first time."""
        with self._lock:
            if given is not None:
                self.journal.given.append(given)
            if error:
                self.journal.errors.append(error)
            self.journal.finished |= finished
            write_whole(self._path, msgspec.json.encode(self.journal))
