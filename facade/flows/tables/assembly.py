"""Puts tables together from their segments, many at a time, whatever comes in between.

Nothing here knows the bus: segments go in, and what became of them comes out. A table is known by its id, within
its partition. The first segment says what the table is to be; one that says something else is set aside alone, so that
nobody can destroy a table by naming it. A table that cannot become complete any more is given up as a whole.
"""

import errno
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import msgspec

from facade.bus.port import Record
from facade.flows.tables.messages import Refused, Said, SegmentHeader
from facade.flows.tables.spool import Content, Pile, Spool

NO_SPACE, STORAGE = OUR_DISK = "no-space", "storage"
"""Reasons that lie in the disk of this machine, and not in the table."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_TOLD = 16
"""Other tables under one id of which a dead letter is written each."""
_REMEMBERED = 10_000
"""Tables whose end is remembered, so that what still comes of them is known."""

Key = tuple[int, str]
"""Partition and table id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What tables under way may take."""

    tables: int = 1000
    """So many at a time; a further one drives out the oldest."""
    disk: int = 20_000_000_000
    """All of them on disk [bytes]; beyond it the oldest goes. Also the largest table."""
    expiry: float = 600.0
    """A table of which nothing came for so long is given up [s]."""
    segments: int = 200_000
    """Of one table."""


@dataclass(slots=True, kw_only=True)
class UnderWay:
    """A table of which segments are missing."""

    header: SegmentHeader
    """Of the segment that came first."""
    partition: int
    first_offset: int
    newest: Record
    """The record that came last, without its value."""
    pile: Pile
    touched: float
    """When that was, by the monotonic clock [s]."""
    records: int = 0

    @property
    def key(self) -> Key:
        """Return partition and id."""
        return self.partition, self.header.table


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The record says what has been said before."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A table is complete, or is given up; `close` it when it has been looked at."""

    table: UnderWay
    refused: Refused | None = None
    content: Content | None = None
    unseen: str = ""
    """Why the content of a complete table cannot be looked into."""

    def close(self) -> None:
        """Free what its bytes take."""
        self.table.pile.close()


Event = Refused | Duplicate | Ended


@dataclass(slots=True)
class Past:
    """A table that has ended."""

    said: Said
    refused: Refused | None
    told: set[str] = field(default_factory=set)
    """Digests of other tables under its id of which one record was set aside."""


class Assembly:
    """Takes segments; what becomes of them is what `add` and `expire` give."""

    def __init__(self, spool: Spool, limits: Limits) -> None:
        self._spool = spool
        self._limits = limits
        self._tables: dict[Key, UnderWay] = {}
        """The oldest one first."""
        self._past: OrderedDict[Key, Past] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[UnderWay]:
        return iter(self._tables.values())

    def add(self, header: SegmentHeader, record: Record, now: float) -> list[Event]:
        """Take a segment; no events: it belongs to a table that is under way."""
        if (known := self.judge(header, record.partition)) is not None:
            return [known]
        table = self._tables.get((record.partition, header.table))
        events: list[Event] = []
        if table is None:
            if len(self._tables) >= self._limits.tables:
                events.append(self._evict(next(iter(self)), f"expected at most {self._limits.tables} tables under way"))
            table = self._open(header, record)
        table.newest, table.touched = replace(record, value=None), now
        table.records += 1
        if (end := self._take(table, header, record.value or b"")) is not None:
            events.append(end)
        while self._spool.on_disk > self._limits.disk and (large := [one for one in self if one.pile.is_on_disk]):
            events.append(self._evict(large[0], f"expected at most {self._limits.disk} bytes on disk"))
        return events

    def judge(self, header: SegmentHeader, partition: int) -> Refused | Duplicate | None:
        """Say what is the matter with a record because of what came before it; None: nothing."""
        key = (partition, header.table)
        if key in self._past:
            return _after_the_end(header, self._past[key])
        if key not in self._tables:
            return None
        table = self._tables[key]
        if header.whole != table.header.whole:
            what = f"expected what the first segment of {header.table} says, at {table.first_offset}: "
            return Refused("contradiction", "headers.segment", what + _difference(table.header, header))
        return Duplicate() if header.index in table.pile else None

    def wait(self, seconds: float) -> None:
        """Take note that for so long nobody listened: what came meanwhile waits on the bus."""
        for table in self:
            table.touched += seconds

    def expire(self, now: float) -> list[Ended]:
        """Give up the tables of which nothing has come for too long."""
        late = [table for table in self if now - table.touched >= self._limits.expiry]
        what = f"expected all segments, with at most {self._limits.expiry:g} s between two"
        return [self._end(table, Refused("expired", "$", what)) for table in late]

    def end(self, key: Key, said: Said, refused: Refused | None = None) -> None:
        """Remember that a table has ended; here, or before this process began."""
        self._past[key] = Past(said, refused)
        self._past.move_to_end(key)
        while len(self._past) > _REMEMBERED:
            self._past.popitem(last=False)

    def drop(self, partition: int) -> None:
        """Forget a partition: it is another's now."""
        for key in [key for key in self._tables if key[0] == partition]:
            self._tables.pop(key).pile.close()
        for key in [key for key in self._past if key[0] == partition]:
            del self._past[key]

    def _open(self, header: SegmentHeader, record: Record) -> UnderWay:
        table = self._tables[record.partition, header.table] = UnderWay(
            header=header,
            partition=record.partition,
            first_offset=record.offset,
            newest=record,
            pile=self._spool.pile(),
            touched=0.0,
        )
        return table

    def _take(self, table: UnderWay, header: SegmentHeader, content: bytes) -> Ended | None:
        """Take a segment's bytes; give the end of the table if this is it."""
        refused = self._judge(table, header, content)
        if refused is not None:
            return self._end(table, refused)
        try:
            table.pile.add(header.index, content)
            if table.pile.next < header.count:
                return None
            if (refused := _whole(table)) is not None:
                return self._end(table, refused)
        except OSError as error:
            reason = NO_SPACE if error.errno in _FULL else STORAGE
            return self._end(table, Refused(reason, "", f"a temporary file failed: {error.strerror or error}"))
        try:
            return self._end(table, None, table.pile.content())
        except OSError as error:  # it is whole all the same, and on the bus
            return self._end(table, None, memoryview(b""), f"a temporary file failed: {error.strerror or error}")

    def _judge(self, table: UnderWay, header: SegmentHeader, content: bytes) -> Refused | None:
        limits, pile, at = self._limits, table.pile, "headers.segment"
        if header.count > limits.segments:
            what = f"expected at most {limits.segments} segments, got {header.count}"
            return Refused("too-many-segments", f"{at}.count", what)
        if header.size > limits.disk:
            return Refused("size", f"{at}.size", f"expected at most {limits.disk} bytes, got {header.size}")
        if pile.size + len(content) > header.size:
            what = f"expected {header.size} bytes in all, got {pile.size + len(content)} up to now"
            return Refused("overlong", "$", what)
        if not content and header.count > 1:
            return Refused("size", "$", f"expected a segment with bytes, got an empty one of {header.count}")
        if header.index == pile.next and header.start not in (msgspec.UNSET, pile.hashed):
            what = f"expected segment {header.index} to begin at {pile.hashed}, got {header.start}"
            return Refused("contradiction", f"{at}.start", what)
        return None

    def _evict(self, table: UnderWay, why: str) -> Ended:
        return self._end(table, Refused("evicted", "$", f"{why}, and this is the oldest"))

    def _end(self, table: UnderWay, refused: Refused | None, content: Content | None = None, unseen: str = "") -> Ended:
        del self._tables[table.key]
        self.end(table.key, table.header.said, refused)
        ended = Ended(table, refused, content, unseen)
        if refused is not None:
            ended.close()
        return ended


def _whole(table: UnderWay) -> Refused | None:
    """Say what is wrong with a table of which every segment has come."""
    if table.pile.size != table.header.size:
        return Refused("size", "$", f"expected {table.header.size} bytes in all, got {table.pile.size}")
    if (found := table.pile.sha256()) != table.header.sha256:
        return Refused("digest", "$", f"expected the digest {table.header.sha256}, got {found}")
    return None


def _after_the_end(header: SegmentHeader, past: Past) -> Refused | Duplicate:
    """Judge a record of a table that is complete already, or was given up."""
    if past.refused is not None:
        what = f"the table was given up before: {past.refused.detail}"
        return Refused(past.refused.reason, past.refused.path, what, letter=False)
    if header.said == past.said:
        return Duplicate()
    first = header.sha256 not in past.told and len(past.told) < _MOST_TOLD
    if first:
        past.told.add(header.sha256)
    what = f"expected a new id for another table, got {header.table}, which has been complete before"
    return Refused("reused-id", "headers.segment.table", what, letter=first)


def _difference(first: SegmentHeader, other: SegmentHeader) -> str:
    names = ("product", "kind", "content_type", "count", "size", "sha256")
    pairs = ((name, getattr(first, name), getattr(other, name)) for name in names)
    return ", ".join(f"{name} {ours!r:.80}, got {theirs!r:.80}" for name, ours, theirs in pairs if ours != theirs)
