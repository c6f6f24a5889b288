"""Partitions as the brokers keep them: records, marks of transactions, ends, and what readers may see."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Entry:
    """What has one offset: a record, or the mark that ends a transaction."""

    __slots__ = ("attempt", "by", "headers", "key", "leader_epoch", "mark", "offset", "time_us", "value")

    def __init__(
        self, offset: int, time_us: int, key: bytes | None, value: bytes | None, headers: Any, leader_epoch: int
    ) -> None:
        self.offset, self.time_us, self.key, self.value, self.headers = offset, time_us, key, value, headers
        self.leader_epoch = leader_epoch
        self.mark: bool | None = None
        """Whether it is the mark that commits or aborts; None: it is a record."""
        self.by: Author | None = None
        """Who wrote it, if that is an idempotent producer."""
        self.attempt: int | None = None
        """Producer whose open transaction it belongs to; None: it belongs to none, or that was committed."""

    @property
    def is_mark(self) -> bool:
        return self.mark is not None


class Author(NamedTuple):
    """What stands in a batch of its producer, so that a broker that starts again knows it."""

    producer: int
    epoch: int
    after: int = 0
    """Number of the record after the batch."""
    base: int = -1
    """Number of the first record of the batch."""
    transactional: bool = True


@dataclass(slots=True)
class Numbered:
    """The newest batch of a producer on a partition."""

    epoch: int
    sequence: int
    """Number of the next record."""
    base: int = -1
    """Number of the first record of the newest batch."""


class _Changes:
    """Numbers the changes of all partitions."""

    newest = 0

    def number(self) -> int:
        self.newest += 1
        return self.newest


CHANGES = _Changes()
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
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Leader epochs, and the first offset of each."""
    open: dict[int, int] = field(default_factory=dict)
    """First offset of the open transaction, by producer."""
    numbers: dict[int, Numbered] = field(default_factory=dict)
    """By producer."""
    state: int = field(default_factory=CHANGES.number)
    """Another number after each change, so that who has read all of it need not look again."""

    @property
    def stable(self) -> int:
        """Return the last stable offset: before it no transaction is open."""
        return min(self.open.values(), default=self.end)

    def append(self, time_us: int, key: bytes | None, value: bytes | None, headers: Any, by: Author | None) -> None:
        """Append a record; one of a transaction is seen by readers of committed records when that is committed."""
        self._add(Entry(self.end, time_us, key, value, headers, self.leader_epoch), by)

    def mark(self, time_us: int, producer: int, epoch: int, *, committed: bool) -> None:
        """End the transaction of a producer that is open here, if there is one."""
        entry = Entry(self.end, time_us, None, None, (), self.leader_epoch)
        entry.mark = committed
        self._add(entry, Author(producer, epoch))

    def _add(self, entry: Entry, by: Author | None) -> None:
        entry.by = by
        self.entries.append(entry)
        self.end += 1
        self.state = CHANGES.number()
        if by is not None:
            self._learn(entry, by)

    def _learn(self, entry: Entry, by: Author) -> None:
        """Take note of what a batch says of its producer and its transaction."""
        before = self.numbers.get(by.producer)
        if entry.mark is None:
            self.numbers[by.producer] = Numbered(by.epoch, by.after, by.base)
            if by.transactional:
                entry.attempt = by.producer
                self.open.setdefault(by.producer, entry.offset)
            return
        if before is None or before.epoch < by.epoch:
            self.numbers[by.producer] = Numbered(by.epoch, 0)
        begin = self.open.pop(by.producer, None)
        if begin is None:
            return
        for one in self.entries[self._index(begin) : self._index(entry.offset)]:
            if one.attempt == by.producer:
                one.attempt = None if entry.mark else ABORTED

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

    def remove(self, before: int) -> list[Entry]:
        """Remove what is before an offset, as retention does, and an administrator; return it."""
        self.first = max(self.first, min(before, self.end))
        self.state = CHANGES.number()
        index = self._index(self.first)
        gone = self.entries[:index]
        del self.entries[:index]
        return gone

    def expire(self, before_us: int) -> list[Entry]:
        """Remove what is older than some time, but nothing of open transactions; return it."""
        limit = self.stable
        kept = (one.offset for one in self.entries if one.time_us >= before_us or one.offset >= limit)
        return self.remove(next(kept, limit))

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
        for one in self.entries:
            if one.offset < limit and one.by is not None:  # its mark is gone
                one.by = one.by._replace(transactional=False)

    def lead_anew(self) -> None:
        """Begin another leader epoch, as after each start of a broker."""
        self.leader_epoch += 1
        self.epochs = [one for one in self.epochs if one[1] < self.end] + [(self.leader_epoch, self.end)]
        self.state = CHANGES.number()

    def end_of(self, epoch: int) -> int:
        """Return the offset after the newest entry of a leader epoch, or of those before it (KIP-320)."""
        return next((first for number, first in self.epochs if number > epoch), self.end)

    def cut(self, end: int) -> list[Entry]:
        """Lose the end of the log, as a broker may that is stopped uncleanly; return what was lost."""
        index = self._index(end)
        lost = self.entries[index:]
        del self.entries[index:]
        self.end = min(max(end, self.first), self.end)
        self.lead_anew()
        self.open, self.numbers = {}, {}
        for entry in self.entries:
            entry.attempt = None
            if entry.by is not None:
                self._learn(entry, entry.by)
        return lost

    def _index(self, offset: int) -> int:
        if self.entries and len(self.entries) == self.end - self.entries[0].offset:  # without holes
            return min(max(offset - self.entries[0].offset, 0), len(self.entries))
        return bisect_left(self.entries, offset, key=lambda one: one.offset)
