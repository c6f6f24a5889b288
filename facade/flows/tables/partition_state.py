"""One partition of a worker: its state from before, the messages to write, and the offset to commit.

The committed offset stays at the first record of the oldest table under way, so settled records come again after a
restart. ``tables`` identifies them: it has every table under way before anything that ends after its first record, and
the largest ``last_offset`` of all entries of a partition is the settled offset. A record before it is settled, unless
its table is under way. ``positions`` has the offset to continue from. All entries name the log of their offsets;
entries of another log do not count.

Compaction leaves one complete table of each product. It names the versions before it, because a table may come again
after a newer version: one copy fails, its owner sends another one, and meanwhile a second copy is complete.

The entries of the account join at the same offset, also after a restart. An entry that was written twice, or that
counts again because ``tables`` lost messages, begins before the end of the counted offsets, and readers refuse it.
"""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec.structs import replace

from facade.bus.dead_letters import dead_letter
from facade.bus.offsets import (
    POSITIONS,
    Beginning,
    CountedOffsets,
    Extent,
    PartitionFacts,
    TopicWatch,
    WorkerPosition,
    begin,
    newest,
)
from facade.bus.port import OffsetRange, Record, TransactionalMember
from facade.clock import Time
from facade.errors import BusError
from facade.flows.tables.assembly import PartialTable, Repeated
from facade.flows.tables.messages import (
    ASSEMBLING,
    CALIBRATION,
    COMPLETE,
    FAILED,
    TABLES,
    decode_table,
    encode,
    fingerprint,
    table_record,
    tombstone,
    under_way_key,
)
from facade.flows.tables.places import without_secrets
from facade.messages import Table, TableSegment
from facade.outcome import RecordRejected, Suppressed
from facade.runtime.accounts import ACCOUNTS, AccountEntry, RunningAccount


class TablesBus(Protocol):
    """The operations of a bus that are used here."""

    def read_all(self, topic: str, *, settled: bool) -> list[Record]:
        """Return all records of a topic; settled: wait for the end of open transactions."""

    def watch(self) -> TopicWatch:
        """Return a watch of topics."""


@dataclass(slots=True)
class Recalled:
    """The state of one partition from before."""

    counted: CountedOffsets
    """Begins where reading continues; all records before its end are settled, except those of tables under way."""
    note: str = ""
    """Difference between position, group and log; empty text: they agree."""
    under_way: dict[str, Table] = field(default_factory=dict)
    ended: dict[str, Table] = field(default_factory=dict)
    complete: dict[str, dict[str, str]] = field(default_factory=dict)
    """The newest complete versions of each product, oldest first: fingerprints by id."""
    leftover: list[Table] = field(default_factory=list)
    """Ended tables whose entry as under way still exists."""
    gone: list[Table] = field(default_factory=list)
    """Tables under way on a former log."""


def find(
    bus: TablesBus, member: TransactionalMember, group: str, partitions: Collection[int]
) -> tuple[dict[int, Recalled], list[str]]:
    """Return the state of partitions from before, and warnings about it.

    The group is asked before the topics are read, see `TransactionalMember`.
    """
    extent = bus.watch().extents([CALIBRATION]).get(CALIBRATION, Extent("", {}))
    if missing := sorted(set(partitions) - set(extent.ranges)):
        raise BusError(f"partitions {missing} of {CALIBRATION} are assigned; expected them to exist, they do not")
    committed = member.committed(partitions)
    positions, troubles = newest(bus.read_all(POSITIONS, settled=True), group)
    records = bus.read_all(TABLES, settled=True)
    last = {record.key: record.offset for record in records}
    about: dict[int, list[tuple[Table, bool]]] = {one: [] for one in partitions}
    for record in records:  # records that compaction has not removed yet are useful as well
        table = decode_table(record.value)
        if isinstance(table, Table) and table.partition in about:
            about[table.partition].append((table, last[record.key] == record.offset))
    found = {
        one: _recall(
            one,
            about[one],
            positions.get((CALIBRATION, one)),
            PartitionFacts(extent.id, *extent.ranges[one], committed[one]),
        )
        for one in partitions
    }
    return found, troubles + [past.note for past in found.values() if past.note]


def _recall(
    partition: int, said: list[tuple[Table, bool]], own: WorkerPosition | None, facts: PartitionFacts
) -> Recalled:
    beginning = _begin(partition, [table for table, _ in said], own, facts)
    mine = Recalled(CountedOffsets(beginning.log, beginning.offset, beginning.offset), beginning.note)
    for table, is_newest in said:
        if table.log != beginning.log:
            if table.state == ASSEMBLING and is_newest:
                mine.gone.append(table)
            continue
        mine.counted.end = max(mine.counted.end, _after(table))
        if table.state != ASSEMBLING:
            mine.ended[table.table] = table
            if table.state == COMPLETE:
                mine.complete[table.product] = {**table.earlier, table.table: fingerprint(table)}
        elif is_newest:
            mine.under_way[table.table] = table
    for name in mine.under_way.keys() & mine.ended.keys():
        if mine.under_way[name].first_offset == mine.ended[name].first_offset:
            mine.leftover.append(mine.under_way.pop(name))
        else:
            del mine.ended[name]
    return mine


def _begin(partition: int, said: list[Table], own: WorkerPosition | None, facts: PartitionFacts) -> Beginning:
    place = (CALIBRATION, partition)
    if own is None:
        return begin(place, None, facts)
    reached = max([own.next, *(_after(table) for table in said if table.log == own.log)])
    group = reached if facts.group == own.next else facts.group
    beginning = begin(place, replace(own, next=reached), PartitionFacts(facts.topic_id, facts.first, facts.end, group))
    if beginning.log != own.log:
        return beginning
    return Beginning(beginning.log, max(own.next, facts.first), beginning.note)


def _after(table: Table) -> int:
    return 0 if table.last_offset is None else table.last_offset + 1


MOST_EARLIER = 20
"""Complete versions of a product that are named with a newer one."""
_EACH = 1.0
"""Least time between two reports about one table under way [s]."""


_Reported = tuple[float, int]
"""Time of the last report about a table under way [monotonic s], and the number of received bytes."""


class PartitionState:
    """Records to write about one partition; they are kept until `written`."""

    def __init__(self, partition: int, assigned: int, recalled: Recalled, *, by: str) -> None:
        self.partition = partition
        self.assigned = assigned
        self.counted = recalled.counted
        """The offsets of all entries of the account."""
        self.position = self.counted.begin
        """Offset after the newest record read."""
        self.pending = 0
        """Records read without a written outcome."""
        self.committed = -1
        self._before, self._complete = recalled.under_way, recalled.complete
        self._reported: dict[str, _Reported] = {
            name: (0.0, table.received) for name, table in recalled.under_way.items()
        }
        self._by = by
        self._told = self.counted.end
        """Settled offset, by ``tables`` or ``positions``."""
        self._oldest = self.counted.end
        """Offset of the oldest record of the next entry, if its table began before it."""
        self._open = RunningAccount()
        """Outcomes since the last entry."""
        self.account = RunningAccount()
        """Sum of the entries that may be unwritten."""
        self._entries: list[Record] = []
        self._sure = self.counted.end
        """Settled offset of the last transaction that is known to have happened."""
        self._entered_at = float("-inf")
        if recalled.note:
            self._open.corrected, self._open.last_error = 1, recalled.note[:500]
        self._reporting: dict[str, _Reported] = {}
        """Reports that may be unwritten."""
        self._letters: list[Record] = []
        self._firsts: list[Record] = []
        self._ends = [tombstone(under_way_key(table)) for table in recalled.leftover]
        self._beyond = False
        """Whether single records were settled, so that the settled offset must be written."""

    def lost(self) -> list[Table]:
        """Forget and return the tables under way whose first records have been removed from the log."""
        lost = [table for table in self._before.values() if _first(table) < self.counted.begin]
        for table in lost:
            del self._before[table.table]
        return lost

    def is_done(self, record: Record, header: TableSegment | RecordRejected | None) -> bool:
        """Return whether a record was settled before a restart."""
        if record.offset >= self.counted.end:
            return False
        before = self._before.get(header.table) if isinstance(header, TableSegment) else None
        return before is None or record.offset < _first(before)

    def decide(self, record: Record, fate: RecordRejected | Suppressed) -> None:
        """Count a single record that belongs to no table."""
        if record.offset < self.counted.end:  # it was counted before a restart
            self.pending -= 1
            return
        self._open.consumed += 1
        self._open.settle(fate)
        self._beyond = True
        if isinstance(fate, RecordRejected) and not isinstance(fate, Repeated):
            self._set_aside(record, fate)

    def end(self, table: PartialTable, now_us: Time, rejected: RecordRejected | None, summary: Any) -> None:
        """Report that a table has ended, and count its records."""
        name, last = table.header.table, table.newest.offset
        if name not in self._reported and last > table.first_offset:
            # Another table may have ended in between; its entry alone would mark this one as settled.
            self._firsts.append(table_record(under_way(table, self.counted.log, now_us)))
            self._reported[name] = (0.0, 0)
        report = replace(under_way(table, self.counted.log, now_us), url=table.header.url)
        self._open.consumed += table.records
        self._oldest = min(self._oldest, table.first_offset)
        if rejected is None:
            self._open.used += table.records
            report = replace(report, state=COMPLETE, last_offset=last, summary=summary, earlier=self._earlier(table))
            self._told = max(self._told, last + 1)
        else:
            self._give_up(table, rejected)
            self._told = max(self._told, self._dealt_with() + 1)
            url = report.url and without_secrets(report.url)
            report = replace(report, state=FAILED, last_offset=self._dealt_with(), reason=_why(rejected), url=url)
        self._report_end(report)

    def _earlier(self, table: PartialTable) -> dict[str, str]:
        """Return the newest complete versions of the product before a table, which is the newest one now."""
        versions = self._complete.setdefault(table.header.product, {})
        while len(versions) > MOST_EARLIER:
            del versions[next(iter(versions))]
        earlier = dict(versions)
        versions[table.header.table] = fingerprint(table.header)
        return earlier

    def _give_up(self, table: PartialTable, rejected: RecordRejected) -> None:
        header = table.header
        if header.count > 0:
            where = (
                f"table {header.table} of {header.product}, {table.records} of {header.count} segments and"
                f" {table.buffer.size} of {header.size} bytes,"
                f" from offset {table.first_offset} to {table.newest.offset}"
            )
            rejected = dataclasses.replace(rejected, detail=f"{where}: {rejected.detail}")
        self._open.dead_lettered += table.records
        self._open.reasons[rejected.reason] += table.records
        self._open.last_error = str(rejected)[:500]
        self._set_aside(table.newest, rejected)

    def lose(self, table: Table, now_us: Time) -> RecordRejected:
        """Report that a table is lost, as its first records have been removed from the log."""
        rejected = RecordRejected(
            "lost", "$", f"expected its records from offset {table.first_offset} on, got none any more"
        )
        reached = None if self._dealt_with() < 0 else self._dealt_with()
        said = replace(
            table, state=FAILED, time=now_us, last_offset=reached, log=self.counted.log, reason=_why(rejected)
        )
        self._report_end(said)
        return rejected

    def _dealt_with(self) -> int:
        return max(self.position, self.counted.end) - 1

    def _report_end(self, table: Table) -> None:
        self._ends.append(table_record(table))
        self._before.pop(table.table, None)
        reported = [names.pop(table.table, None) for names in (self._reported, self._reporting)]
        if any(reported):
            # Right after its end: compaction may remove the end in favour of a newer version's, but not this.
            self._ends.append(tombstone(under_way_key(table)))

    def _set_aside(self, record: Record, rejected: RecordRejected) -> None:
        self._letters.append(dead_letter(record, rejected, by=self._by))

    def letters(self) -> list[Record]:
        """Return the dead letters, which are written first."""
        return list(self._letters)

    def reports(self, tables: Sequence[PartialTable], now: float, now_us: Time) -> list[Record]:
        """Return the reports and entries, which are written next, in this order."""
        new = [table for table in tables if table.header.table not in self._reported]
        records = [*self._firsts, *(table_record(under_way(table, self.counted.log, now_us)) for table in new)]
        records += self._ends
        self._reporting = {table.header.table: (now, table.buffer.size) for table in new}
        for number, table in enumerate(tables):
            reported = self._reported.get(table.header.table)
            moved = reported is not None and now - reported[0] >= _EACH and table.buffer.size != reported[1]
            if moved or (number == 0 and self._beyond):
                report = under_way(table, self.counted.log, now_us)
                if number == 0:  # the oldest table: its entry stays as long as records can come again
                    report = replace(report, last_offset=self._dealt_with())
                    self._told = max(self._told, self._dealt_with() + 1)
                records.append(table_record(report))
                self._reporting[table.header.table] = (now, table.buffer.size)
        if self._beyond:  # without a table under way the position has it
            self._told = max(self._told, self._dealt_with() + 1)
        if self._open.consumed or self._open.corrected or self._told > self.counted.end:
            self._close_entry(now, now_us)
        return [*records, *self._entries]

    def has_happened(self, past: Recalled) -> bool | None:
        """Return whether a failed transaction is on the bus after all; None: unknown.

        Without entries it does not matter, as the other records may come twice.
        """
        if past.counted.log != self.counted.log or (self._entries and self.counted.end == self._sure):
            return None
        if past.counted.end not in (self._sure, self.counted.end):
            return None
        return past.counted.end == self.counted.end != self._sure

    def written(self) -> None:
        """Forget all written records."""
        self._sure = self.counted.end
        self._reported |= self._reporting
        self._reporting = {}
        self._letters, self._firsts, self._ends, self._beyond = [], [], [], False
        self.pending -= self.account.consumed
        self.account, self._entries = RunningAccount(), []

    def offset(self, tables: Sequence[PartialTable]) -> int:
        """Return the offset before which no record will be needed again."""
        return min([self.position, *(table.first_offset for table in tables)])

    def _close_entry(self, now: float, now_us: Time) -> None:
        self._entries.append(self._entry(self._open, now_us))
        self.account.add(self._open)
        self._open, self._entered_at = RunningAccount(), now
        self.counted.take(self.counted.log, self.counted.end, self._told)
        self._oldest = self.counted.end

    def signs(self, now: float, now_us: Time, interval: float) -> list[Record]:
        """Return an empty entry, if there was none within an interval [s]."""
        if self._entries or self._told > self.counted.end or now - self._entered_at < interval:
            return []
        self._entered_at = now
        return [self._entry(RunningAccount(), now_us)]

    def _entry(self, account: RunningAccount, now_us: Time) -> Record:
        account.cover(OffsetRange(self.counted.log, self.counted.end, self._told))
        entry = account.entry(self._by, CALIBRATION, self.partition, now_us)
        if self._oldest < self.counted.end:
            entry = replace(entry, counted_from=self._oldest)
        return account_record(entry)


def account_record(entry: AccountEntry) -> Record:
    """Return the record of an entry of the account."""
    return Record(topic=ACCOUNTS, key=f"{CALIBRATION}/{entry.partition}".encode(), value=encode(entry))


def under_way(table: PartialTable, log: str, now_us: Time) -> Table:
    """Return the message about a table under way."""
    names = ("table", "product", "kind", "content_type", "size", "sha256", "sent_at")
    return Table(
        state=ASSEMBLING,
        received=table.buffer.size,
        time=now_us,
        partition=table.partition,
        first_offset=table.first_offset,
        log=log,
        **{name: getattr(table.header, name) for name in names},
    )


def failure_of(table: Table) -> RecordRejected | None:
    """Return the reason of a table's failure from its message; None: it is complete."""
    if table.state == COMPLETE:
        return None
    reason, _, detail = ("" if table.reason is None else table.reason).partition(": ")
    return RecordRejected(reason or "failed", "$", detail)


def _why(rejected: RecordRejected) -> str:
    return f"{rejected.reason}: {rejected.detail}"[:1000]


def _first(table: Table) -> int:
    return -1 if table.first_offset is None else table.first_offset
