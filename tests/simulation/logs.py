"""Partitions as the brokers keep them: records, marks of transactions, ends, and what readers may see."""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import count
from typing import Any


class Entry:
    """What has one offset: a record, or the mark that ends a transaction."""

    __slots__ = ("attempt", "headers", "is_mark", "key", "offset", "time_us", "value")

    def __init__(
        self, offset: int, time_us: int, key: bytes | None, value: bytes | None, headers: Any, *, is_mark: bool = False
    ) -> None:
        self.offset, self.time_us, self.key, self.value, self.headers = offset, time_us, key, value, headers
        self.is_mark = is_mark
        self.attempt: int | None = None
        """Producer whose open transaction it belongs to; None: it belongs to none, or that was committed."""


@dataclass(slots=True)
class Numbered:
    """The newest batch of a producer on a partition."""

    epoch: int
    sequence: int
    """Number of the next record."""
    base: int = -1
    """Number of the first record of the newest batch."""


_states = count(1)
ABORTED = -1
"""In the place of a producer: the transaction of the record was aborted."""


@dataclass(slots=True)
class Partition:
    """One partition of one topic."""

    topic: str
    number: int
    entries: list[Entry] = field(default_factory=list)
    first: int = 0
    """Where the log begins."""
    end: int = 0
    """Offset after the newest entry."""
    leader_epoch: int = 0
    open: dict[int, int] = field(default_factory=dict)
    """First offset of the open transaction, by producer."""
    numbers: dict[int, Numbered] = field(default_factory=dict)
    """By producer."""
    state: int = field(default_factory=_states.__next__)
    """Another number after each change, so that who has read all of it need not look again."""

    @property
    def stable(self) -> int:
        """Return the last stable offset: before it no transaction is open."""
        return min(self.open.values(), default=self.end)

    def append(self, time_us: int, key: bytes | None, value: bytes | None, headers: Any, producer: int | None) -> int:
        """Append a record, of an open transaction if a producer is named; return its offset."""
        entry = Entry(self.end, time_us, key, value, headers)
        if producer is not None:
            entry.attempt = producer
            self.open.setdefault(producer, entry.offset)
        self.entries.append(entry)
        self.end += 1
        self.state = next(_states)
        return entry.offset

    def mark(self, time_us: int, producer: int, *, committed: bool) -> None:
        """End the transaction of a producer that is open here, if there is one."""
        begin = self.open.pop(producer, None)
        self.entries.append(Entry(self.end, time_us, None, None, (), is_mark=True))
        self.end += 1
        self.state = next(_states)
        if begin is None:
            return
        for index in range(self._index(begin), len(self.entries)):
            entry = self.entries[index]
            if entry.attempt == producer:
                entry.attempt = None if committed else ABORTED

    def read(self, at: int, limit: int, *, committed: bool) -> tuple[list[Entry], int]:
        """Return records from an offset on as a reader sees them, and the offset to go on from."""
        end = self.stable if committed else self.end
        found: list[Entry] = []
        index = self._index(at)
        while index < len(self.entries) and len(found) < limit:
            entry = self.entries[index]
            if entry.offset >= end:
                break
            if not entry.is_mark and (not committed or entry.attempt is None):
                found.append(entry)
            at = entry.offset + 1
            index += 1
        if index >= len(self.entries):
            at = max(at, min(end, self.end))
        return found, at

    def remove(self, before: int) -> None:
        """Remove what is before an offset, as retention does, and an administrator."""
        self.first = max(self.first, min(before, self.end))
        self.state = next(_states)
        del self.entries[: self._index(self.first)]

    def expire(self, before_us: int) -> None:
        """Remove what is older than some time, but nothing of open transactions."""
        limit = self.stable
        for entry in self.entries:
            if entry.time_us >= before_us or entry.offset >= limit:
                self.remove(entry.offset)
                return
        self.remove(limit)

    def compact(self) -> None:
        """Keep the newest record of each key; what is behind the last stable offset stays as it is."""
        limit, newest = self.stable, {}
        for entry in self.entries:
            if entry.offset < limit and not entry.is_mark and entry.attempt is None:
                newest[entry.key] = entry.offset
        self.entries = [
            one
            for one in self.entries
            if one.offset >= limit or (not one.is_mark and one.attempt is None and newest[one.key] == one.offset)
        ]

    def cut(self, end: int) -> list[Entry]:
        """Lose the end of the log, as a broker may that is stopped uncleanly; return what was lost."""
        index = self._index(end)
        lost = self.entries[index:]
        del self.entries[index:]
        self.end = max(end, self.first)
        self.leader_epoch += 1
        self.state = next(_states)
        self.open = {producer: at for producer, at in self.open.items() if at < self.end}
        self.numbers = {}
        return lost

    def _index(self, offset: int) -> int:
        if self.entries and len(self.entries) == self.end - self.entries[0].offset:  # without holes
            return min(max(offset - self.entries[0].offset, 0), len(self.entries))
        return bisect_left(self.entries, offset, key=lambda one: one.offset)
