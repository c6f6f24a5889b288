"""Projections: the newest record of each key of a compacted topic.

Theory of operation
-------------------
Compaction removes all records of a key but the newest, at any time, and a device server reads its topics again at each
start. So a projection has the same state after a topic was read live, was read again from any offset on, or has been
compacted: only the newest record of a key matters, and a tombstone removes its key. The writer's sequence numbers tell
which record is the newest, as a record may come again; where there are none, the last one on the log is.

A flow adds the reading of a record, the entry that it keeps, and the bound of the entries.
"""

from abc import abstractmethod
from typing import Final, Generic, TypeVar

from facade.kernel.bus.port import Record
from facade.kernel.outcome import TOMBSTONE, Outcome, Suppressed, Unused
from facade.kernel.runtime.flow import Flow

Entry = TypeVar("Entry")

OLDER: Final = Suppressed("older")
REPEATED: Final = Suppressed("repeated")
TOO_MANY: Final = Suppressed("too-many")


class Projection(Flow, Generic[Entry]):
    """A flow: the newest record of each key; see `facade.kernel.runtime.flow.Flow`."""

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Process a record: remove its key, or keep it if it is newer than the known one."""
        if record.value is None:
            self._remove((record.key or b"").decode("utf-8", "replace"))
            return TOMBSTONE
        entry = self._read(record)
        if isinstance(entry, Unused):
            return entry
        sequence, known = self._sequences(entry)
        if sequence <= known:
            return REPEATED if sequence == known else OLDER
        return self._take(entry, record)

    @abstractmethod
    def _read(self, record: Record) -> Entry | Unused:
        """Return what a record says, or the reason why it is of no use here."""

    def _sequences(self, entry: Entry) -> tuple[int, int]:
        """Return the sequence numbers of an entry and of the known one with its key; without one, a smaller number."""
        return 1, 0

    @abstractmethod
    def _take(self, entry: Entry, record: Record) -> Outcome:
        """Keep an entry in the place of the known one, if there is room."""

    @abstractmethod
    def _remove(self, key: str) -> None:
        """Remove the entry of a key, if there is one."""
