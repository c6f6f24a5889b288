"""Assembles tables from segments, many at a time, or reads them by reference.

Nothing here knows the bus. A table is identified by its id, within its partition. Its first segment describes it. A
segment that contradicts this becomes a dead letter alone, so that a foreign segment cannot destroy a table. A table
that cannot become complete any more is given up as a whole.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from facade.flows.tables.buffers import BufferPool, Content, SegmentBuffer
from facade.flows.tables.messages import ASSEMBLING, fingerprint, identity, read_header
from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, Clock, Time
from facade.kernel.outcome import TOMBSTONE, RecordRejected, Suppressed
from facade.kernel.recent import Bounded
from facade.sdp.messages import Table, TableSegment

NO_SPACE, STORAGE = OUR_DISK = "no-space", "storage"
"""Reasons caused by the disk of this machine; the table may be sent again under its id."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_REPORTED = 16
"""Most dead letters for other tables under the same id."""
_REMEMBERED = 10_000
"""Ended tables that are remembered, to recognise their late records."""

TableKey = tuple[int, str]
"""Partition and table id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyLimits:
    """Limits of the tables under way."""

    tables: int = 1000
    """Most tables at a time; a further one displaces the oldest."""
    disk: int = 20_000_000_000
    """Size of all tables on disk [bytes]; beyond it the oldest is given up. Also the size of the largest table."""
    expiry: float = 600.0
    """Time without records after which a table is given up [s]."""
    segments: int = 200_000


@dataclass(slots=True, kw_only=True)
class PartialTable:
    """A table that lacks segments."""

    header: TableSegment
    """Header of the first segment that came."""
    partition: int
    first_offset: int
    newest: Record
    """The last record that came, without its value."""
    buffer: SegmentBuffer
    touched: float
    """Arrival of the last record, by the monotonic clock [s]."""
    records: int = 0

    @property
    def key(self) -> TableKey:
        """Return partition and id."""
        return self.partition, self.header.table

    def __str__(self) -> str:
        """Return the table's name, and how much of it has come."""
        header, buffer = self.header, self.buffer
        return (
            f"table {header.table} of {header.product}, {self.records} of {header.count} segments and {buffer.size} of"
            f" {header.size} bytes, from offset {self.first_offset} to {self.newest.offset}"
        )

    def message(self, log: str, time: Time, segments: int) -> Table:
        """Return the message about this table, with the number of segments that have come."""
        names = ("table", "product", "kind", "content_type", "size", "sha256", "sent_at")
        return Table(
            state=ASSEMBLING,
            received=self.buffer.size,
            segments=segments,
            time=time,
            partition=self.partition,
            first_offset=self.first_offset,
            log=log,
            **{name: getattr(self.header, name) for name in names},
        )


DUPLICATE = Suppressed("duplicate")


@dataclass(frozen=True, slots=True)
class Repeated(RecordRejected):
    """A record of a table that already has its dead letter."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A table that is complete or given up; the receiver calls `close`."""

    table: PartialTable
    rejected: RecordRejected | None = None
    content: Content | None = None
    unseen: str = ""
    """Reason why the content of a complete table was not examined."""

    def close(self) -> None:
        """Free memory and disk."""
        self.table.buffer.close()


@dataclass(slots=True)
class EndedTable:
    """A remembered ended table."""

    fingerprint: str
    rejected: RecordRejected | None = None
    sent_at: Time = NEVER
    """Time at which its producer began to send it."""
    reported: set[str] = field(default_factory=set)
    """Checksums of other tables under its id that already have a dead letter."""


class Assembly:
    """Collects segments; `add` and `expire` return the tables that end."""

    def __init__(self, pool: BufferPool, limits: AssemblyLimits) -> None:
        self._pool = pool
        self._limits = limits
        self._tables: dict[TableKey, PartialTable] = {}
        """The oldest one first."""
        self._past: Bounded[TableKey, EndedTable] = Bounded(_REMEMBERED)

    def __len__(self) -> int:
        return len(self._tables)

    def __iter__(self) -> Iterator[PartialTable]:
        return iter(self._tables.values())

    def add(self, header: TableSegment, record: Record, now: float) -> list[Ended]:
        """Add a segment that `judge` has accepted; return the tables that end by it."""
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
        """Judge a record by the records before it; None: it can be added."""
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
        """Extend the time of all tables by a time without records [s]."""
        for table in self:
            table.touched += seconds

    def expire(self, now: float) -> list[Ended]:
        """Give up the tables without records for too long."""
        late = [table for table in self if now - table.touched >= self._limits.expiry]
        what = f"expected all segments, with at most {self._limits.expiry:g} s between two"
        return [self._give_up(table, RecordRejected("expired", "$", what)) for table in late]

    def end(self, key: TableKey, table: TableSegment | Table, rejected: RecordRejected | None = None) -> None:
        """Remember that a table has ended, here or before this process began."""
        self._past[key] = EndedTable(fingerprint(table), rejected, table.sent_at)

    def was_complete(self, key: TableKey, fingerprint: str) -> None:
        """Remember a table that was complete before this process began; only its fingerprint is known."""
        self._past[key] = EndedTable(fingerprint)

    def drop(self, partition: int) -> None:
        """Forget a partition: another worker has it now."""
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
        assert len(self) <= self._limits.tables, f"{len(self)} tables are under way, of {self._limits.tables} allowed"
        return table

    def _take(self, table: PartialTable, header: TableSegment, content: bytes) -> Ended | None:
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
        assert table.records == header.count, f"complete, of {table.records} segments: {table}"
        assert table.buffer.hashed == table.buffer.size, f"complete, of {table.buffer.hashed} bytes in order: {table}"
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
    """Return the end of a table with all bytes, which are right."""
    if not table.buffer.is_kept:
        return Ended(table, unseen="too large to be looked into where it is")
    try:
        return Ended(table, content=table.buffer.content())
    except OSError as error:  # the table is complete all the same, and on the bus
        return Ended(table, unseen=f"a temporary file failed: {error.strerror or error}")


def _whole(table: PartialTable) -> RecordRejected | None:
    if table.buffer.size != table.header.size:
        return RecordRejected("size", "$", f"expected {table.header.size} bytes in all, got {table.buffer.size}")
    if (found := table.buffer.sha256()) != table.header.sha256:
        return RecordRejected("digest", "$", f"expected the digest {table.header.sha256}, got {found}")
    return None


def _is_sent_again(header: TableSegment, past: EndedTable) -> bool:
    """Return whether a table comes again after our disk has failed. Late records of the first sending have its time."""
    return past.rejected is not None and past.rejected.reason in OUR_DISK and header.sent_at != past.sent_at


def _after_the_end(header: TableSegment, past: EndedTable) -> RecordRejected | Suppressed:
    if past.rejected is not None:
        what = f"the table was given up before: {past.rejected.detail}"
        return Repeated(past.rejected.reason, past.rejected.path, what)
    if fingerprint(header) == past.fingerprint:
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


SegmentOutcome = RecordRejected | Suppressed | TableSegment | Ended
"""A header belongs to a reference, which must be read."""


class SegmentReader:
    """Reads records, and yields the outcome of each.

    Parameters
    ----------
    take
        Returns up to a number of records, with a longest wait for the first one [s].
    is_wanted
        Returns by record and header whether a record is of interest; the header is None for an invalid one.
    """

    def __init__(
        self,
        take: Callable[[int, float], Sequence[Record]],
        assembly: Assembly,
        clock: Clock,
        *,
        batch: int,
        is_wanted: Callable[[Record, TableSegment | RecordRejected | None], bool],
    ) -> None:
        self._take, self._assembly, self._clock = take, assembly, clock
        self._batch, self._is_wanted = batch, is_wanted
        self.waiting: list[Record] = []
        """Records without an outcome yet."""

    def take(self, wait: float) -> None:
        """Read records up to the size of a batch."""
        if (room := self._batch - len(self.waiting)) > 0:
            self.waiting += self._take(room, 0.0 if self.waiting else wait)

    def outcomes(self, until: float = float("inf")) -> Iterator[tuple[Record, SegmentOutcome]]:
        """Yield outcomes; a record of a table under way has none.

        It ends after a reference, which is read before the next record, and at `until` by the monotonic clock [s].
        """
        while self.waiting and self._clock.monotonic() < until:
            record = self.waiting.pop(0)
            header = None if record.value is None else read_header(record)
            if not self._is_wanted(record, header):
                continue
            if header is None:
                yield record, TOMBSTONE
            elif isinstance(header, RecordRejected):
                yield record, header
            elif (known := self._assembly.judge(header, record.partition)) is not None:
                yield record, known
            elif header.count == 0:
                yield record, header
                return
            else:
                for ended in self._assembly.add(header, record, self._clock.monotonic()):
                    yield record, ended
