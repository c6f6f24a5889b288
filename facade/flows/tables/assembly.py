"""Puts tables together from their segments, many at a time, whatever comes in between.

Nothing here knows the bus: segments go in, and what became of them comes out. A table is known by its id, within
its partition. The first segment says what the table is to be; one that says something else is set aside alone, so that
nobody can destroy a table by naming it. A table that cannot become complete any more is given up as a whole.
"""

import errno
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from facade.bus.port import Record
from facade.flows.tables.buffers import BufferPool, Content, SegmentBuffer
from facade.flows.tables.messages import Identity, identity
from facade.messages import Table, TableSegment
from facade.outcome import RecordRejected, Suppressed

NO_SPACE, STORAGE = OUR_DISK = "no-space", "storage"
"""Reasons that lie in the disk of this machine, and not in the table, which may be sent again under its id."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_REPORTED = 16
"""Other tables under one id of which a dead letter is written each."""
_REMEMBERED = 10_000
"""Tables whose end is remembered, so that what still comes of them is known."""

TableKey = tuple[int, str]
"""Partition and table id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyLimits:
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
class PartialTable:
    """A table of which segments are missing."""

    header: TableSegment
    """Of the segment that came first."""
    partition: int
    first_offset: int
    newest: Record
    """The record that came last, without its value."""
    buffer: SegmentBuffer
    touched: float
    """When that was, by the monotonic clock [s]."""
    records: int = 0

    @property
    def key(self) -> TableKey:
        """Return partition and id."""
        return self.partition, self.header.table


DUPLICATE = Suppressed("duplicate")


@dataclass(frozen=True, slots=True)
class Repeated(RecordRejected):
    """A record that belongs to what has a dead letter already, and gets none of its own."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A table is complete, or is given up; `close` it when it has been looked at."""

    table: PartialTable
    rejected: RecordRejected | None = None
    content: Content | None = None
    unseen: str = ""
    """Why the content of a complete table cannot be looked into."""

    def close(self) -> None:
        """Free what its bytes take."""
        self.table.buffer.close()


@dataclass(slots=True)
class EndedTable:
    """A table that has ended."""

    identity: Identity
    rejected: RecordRejected | None
    sent_at: int
    """When its producer began to send it [Unix us]."""
    reported: set[str] = field(default_factory=set)
    """Checksums of other tables under its id of which one record was set aside."""


class Assembly:
    """Takes segments; what becomes of them is what `add` and `expire` give."""

    def __init__(self, pool: BufferPool, limits: AssemblyLimits) -> None:
        self._pool = pool
        self._limits = limits
        self._tables: dict[TableKey, PartialTable] = {}
        """The oldest one first."""
        self._past: OrderedDict[TableKey, EndedTable] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[PartialTable]:
        return iter(self._tables.values())

    def add(self, header: TableSegment, record: Record, now: float) -> list[Ended]:
        """Take a segment that `judge` had nothing against; return which tables that ends."""
        table = self._tables.get((record.partition, header.table))
        ended: list[Ended] = []
        if table is None:
            if len(self._tables) >= self._limits.tables:
                ended.append(self._evict(next(iter(self)), f"expected at most {self._limits.tables} tables under way"))
            table = self._open(header, record)
        table.newest, table.touched = replace(record, value=None), now
        table.records += 1
        if (end := self._take(table, header, record.value or b"")) is not None:
            ended.append(end)
        while self._pool.on_disk > self._limits.disk and (large := [one for one in self if one.buffer.is_on_disk]):
            ended.append(self._evict(large[0], f"expected at most {self._limits.disk} bytes on disk"))
        return ended

    def judge(self, header: TableSegment, partition: int) -> RecordRejected | Suppressed | None:
        """Say what is the matter with a record because of what came before it; None: nothing."""
        key = (partition, header.table)
        past = self._past.get(key)
        if past is not None and not _is_sent_again(header, past):
            return _after_the_end(header, past)
        if key not in self._tables:
            return None
        table = self._tables[key]
        if (identity(header), header.count) != (identity(table.header), table.header.count):
            what = f"expected what the first segment of {header.table} says, at {table.first_offset}: "
            return RecordRejected("contradiction", "headers.segment", what + _difference(table.header, header))
        return DUPLICATE if header.index in table.buffer else None

    def wait(self, seconds: float) -> None:
        """Take note that for so long nobody listened: what came meanwhile waits on the bus."""
        for table in self:
            table.touched += seconds

    def expire(self, now: float) -> list[Ended]:
        """Give up the tables of which nothing has come for too long."""
        late = [table for table in self if now - table.touched >= self._limits.expiry]
        what = f"expected all segments, with at most {self._limits.expiry:g} s between two"
        return [self._give_up(table, RecordRejected("expired", "$", what)) for table in late]

    def end(self, key: TableKey, table: TableSegment | Table, rejected: RecordRejected | None = None) -> None:
        """Remember that a table has ended; here, or before this process began."""
        self._past[key] = EndedTable(identity(table), rejected, table.sent_at)
        self._past.move_to_end(key)
        while len(self._past) > _REMEMBERED:
            self._past.popitem(last=False)

    def drop(self, partition: int) -> None:
        """Forget a partition: it is another's now."""
        for key in [key for key in self._tables if key[0] == partition]:
            self._tables.pop(key).buffer.close()
        for key in [key for key in self._past if key[0] == partition]:
            del self._past[key]

    def _open(self, header: TableSegment, record: Record) -> PartialTable:
        self._past.pop((record.partition, header.table), None)
        table = self._tables[record.partition, header.table] = PartialTable(
            header=header,
            partition=record.partition,
            first_offset=record.offset,
            newest=record,
            buffer=self._pool.buffer(),
            touched=0.0,
        )
        return table

    def _take(self, table: PartialTable, header: TableSegment, content: bytes) -> Ended | None:
        """Take a segment's bytes; give the end of the table if this is it."""
        rejected = self._judge(table, header, content)
        if rejected is not None:
            return self._give_up(table, rejected)
        try:
            table.buffer.add(header.index, content)
            if table.buffer.next < header.count:
                return None
            if (rejected := _whole(table)) is not None:
                return self._give_up(table, rejected)
        except OSError as error:
            reason = NO_SPACE if error.errno in _FULL else STORAGE
            return self._give_up(
                table, RecordRejected(reason, "$", f"a temporary file failed: {error.strerror or error}")
            )
        self._forget(table, None)
        return complete(table)

    def _judge(self, table: PartialTable, header: TableSegment, content: bytes) -> RecordRejected | None:
        limits, buffer, at = self._limits, table.buffer, "headers.segment"
        if header.count > limits.segments:
            what = f"expected at most {limits.segments} segments, got {header.count}"
            return RecordRejected("too-many-segments", f"{at}.count", what)
        if header.size > limits.disk:
            return RecordRejected("size", f"{at}.size", f"expected at most {limits.disk} bytes, got {header.size}")
        if buffer.size + len(content) > header.size:
            what = f"expected {header.size} bytes in all, got {buffer.size + len(content)} up to now"
            return RecordRejected("overlong", "$", what)
        if not content and header.count > 1:
            return RecordRejected("size", "$", f"expected a segment with bytes, got an empty one of {header.count}")
        if header.index == buffer.next and header.start not in (None, buffer.hashed):
            what = f"expected segment {header.index} to begin at {buffer.hashed}, got {header.start}"
            return RecordRejected("contradiction", f"{at}.start", what)
        return None

    def _evict(self, table: PartialTable, why: str) -> Ended:
        return self._give_up(table, RecordRejected("evicted", "$", f"{why}, and this is the oldest"))

    def _give_up(self, table: PartialTable, rejected: RecordRejected) -> Ended:
        self._forget(table, rejected)
        table.buffer.close()
        return Ended(table, rejected)

    def _forget(self, table: PartialTable, rejected: RecordRejected | None) -> None:
        del self._tables[table.key]
        self.end(table.key, table.header, rejected)


def complete(table: PartialTable) -> Ended:
    """Return the end of a table of which all bytes have come and are right."""
    if not table.buffer.is_kept:
        return Ended(table, unseen="too large to be looked into where it is")
    try:
        return Ended(table, content=table.buffer.content())
    except OSError as error:  # it is whole all the same, and on the bus
        return Ended(table, unseen=f"a temporary file failed: {error.strerror or error}")


def _whole(table: PartialTable) -> RecordRejected | None:
    """Say what is wrong with a table of which every segment has come."""
    if table.buffer.size != table.header.size:
        return RecordRejected("size", "$", f"expected {table.header.size} bytes in all, got {table.buffer.size}")
    if (found := table.buffer.sha256()) != table.header.sha256:
        return RecordRejected("digest", "$", f"expected the digest {table.header.sha256}, got {found}")
    return None


def _is_sent_again(header: TableSegment, past: EndedTable) -> bool:
    """Return whether a record begins what our disk has not taken once more; what is left of that tells its time."""
    return past.rejected is not None and past.rejected.reason in OUR_DISK and header.sent_at != past.sent_at


def _after_the_end(header: TableSegment, past: EndedTable) -> RecordRejected | Suppressed:
    """Judge a record of a table that is complete already, or was given up."""
    if past.rejected is not None:
        what = f"the table was given up before: {past.rejected.detail}"
        return Repeated(past.rejected.reason, past.rejected.path, what)
    if identity(header) == past.identity:
        return DUPLICATE
    first = header.sha256 not in past.reported and len(past.reported) < _MOST_REPORTED
    if first:
        past.reported.add(header.sha256)
    what = f"expected a new id for another table, got {header.table}, which has been complete before"
    return (RecordRejected if first else Repeated)("reused-id", "headers.segment.table", what)


def _difference(first: TableSegment, other: TableSegment) -> str:
    names = ("product", "kind", "content_type", "count", "size", "sha256")
    pairs = ((name, getattr(first, name), getattr(other, name)) for name in names)
    return ", ".join(f"{name} {ours!r:.80}, got {theirs!r:.80}" for name, ours, theirs in pairs if ours != theirs)
