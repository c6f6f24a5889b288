"""One partition of a worker: what was settled before, what is to be written, and how far it may be committed.

The committed offset stays at the first record of the oldest table under way, so after a restart records come
again that have been dealt with. They are recognised by two things that are on ``tables``: the tables under way, each
of which is there before anything that ends behind its first record, and how far the partition has been dealt with,
which is the largest ``last_offset`` of all entries about it. A record before that, of no table under way, is done.

The entries of the account join at that same offset, after a restart as well: one that was written twice, or that counts
again what ``tables`` lost, begins before the end of what is counted, and whoever folds it refuses it by its offsets.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from facade.bus.dead_letters import dead_letter
from facade.bus.port import OffsetRange, Record
from facade.flows.tables.assembly import PartialTable, Repeated
from facade.flows.tables.messages import (
    ASSEMBLING,
    CALIBRATION,
    COMPLETE,
    FAILED,
    encode,
    table_record,
    tombstone,
    under_way_key,
)
from facade.flows.tables.recalled import Recalled
from facade.flows.tables.roots import without_secrets
from facade.messages import Table, TableSegment
from facade.outcome import RecordRejected, Suppressed
from facade.runtime.accounts import ACCOUNTS, AccountEntry, RunningAccount

_EACH = 1.0
"""Least time between two reports about one table under way [s]."""


@dataclass(slots=True)
class _Reported:
    """What was last said of a table under way."""

    at: float
    received: int


class PartitionState:
    """What one worker has to say of one partition; nothing of it is forgotten before it is `written`."""

    def __init__(self, partition: int, assigned: int, recalled: Recalled, *, by: str, most: int) -> None:
        self.partition = partition
        self.assigned = assigned
        self.counted = recalled.counted
        """The offsets of all entries of the account; a record before its end was dealt with, or is of a table under
        way."""
        self.position = self.counted.begin
        """After the newest record that was looked at."""
        self.pending = 0
        """Records taken whose fate is not written yet."""
        self.committed = -1
        self._before = recalled.under_way
        self._reported = {name: _Reported(0.0, table.received) for name, table in recalled.under_way.items()}
        self._by, self._most = by, most
        self._told = self._oldest = self.counted.end
        """How far ``tables`` or ``positions`` says what was done."""
        """Offset of the oldest record that the next entry counts, if that is of a table that began before it."""
        self._open = RunningAccount()
        """What has been decided since the last entry."""
        self.account = RunningAccount()
        """What the entries count of which nobody knows yet whether they are written."""
        self._entries: list[Record] = []
        self._entered_at = float("-inf")
        if recalled.note:
            self._open.corrected, self._open.last_error = 1, recalled.note[:500]
        self._reporting: dict[str, _Reported] = {}
        """What the reports say of which nobody knows yet whether they are written."""
        self._letters: list[Record] = []
        self._firsts: list[Record] = []
        self._ends = [tombstone(under_way_key(table)) for table in recalled.leftover]
        self._beyond = False
        """Whether single records were decided, so that it must be written how far all is dealt with."""

    def lost(self) -> list[Table]:
        """Forget the tables under way whose first records are not on the log any more, and return them."""
        lost = [table for table in self._before.values() if _first(table) < self.counted.begin]
        for table in lost:
            del self._before[table.table]
        return lost

    def is_done(self, record: Record, header: TableSegment | RecordRejected | None) -> bool:
        """Return whether a record was dealt with before a restart."""
        if record.offset >= self.counted.end:
            return False
        before = self._before.get(header.table) if isinstance(header, TableSegment) else None
        return before is None or record.offset < _first(before)

    def decide(self, record: Record, fate: RecordRejected | Suppressed) -> None:
        """Count a single record that is no part of a table."""
        if record.offset < self.counted.end:  # it was counted before a restart
            self.pending -= 1
            return
        self._open.consumed += 1
        self._open.settle(fate)
        self._beyond = True
        if isinstance(fate, RecordRejected) and not isinstance(fate, Repeated):
            self._set_aside(record, fate)

    def end(self, table: PartialTable, now_us: int, rejected: RecordRejected | None, summary: Any) -> None:
        """Report that a table has ended, and count its records."""
        name, last = table.header.table, table.newest.offset
        if name not in self._reported and last > table.first_offset:
            # Another may have ended in between: from its entry nobody could know that this one had not.
            self._firsts.append(table_record(under_way(table, self.counted.log, now_us)))
            self._reported[name] = _Reported(0.0, 0)
        report = replace(under_way(table, self.counted.log, now_us), url=table.header.url)
        self._open.consumed += table.records
        self._oldest = min(self._oldest, table.first_offset)
        if rejected is None:
            self._open.used += table.records
            report = replace(report, state=COMPLETE, last_offset=last, summary=summary)
            self._told = max(self._told, last + 1)
        else:
            self._give_up(table, rejected)
            self._told = max(self._told, self._dealt_with() + 1)
            url = report.url and without_secrets(report.url)
            report = replace(report, state=FAILED, last_offset=self._dealt_with(), reason=_why(rejected), url=url)
        self._report_end(report)

    def _give_up(self, table: PartialTable, rejected: RecordRejected) -> None:
        """Count the records of a table as dead letters, and write one for all of them."""
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

    def lose(self, table: Table, now_us: int) -> RecordRejected:
        """Say that a table was under way whose first records are not on the log any more."""
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
        """Return the newest record that was dealt with: while records come again it is still ahead."""
        return max(self.position, self.counted.end) - 1

    def _report_end(self, table: Table) -> None:
        self._ends.append(table_record(table))
        self._before.pop(table.table, None)
        reported = [names.pop(table.table, None) for names in (self._reported, self._reporting)]
        if any(reported):
            # Right behind its end: a newer version's end would let compaction remove that one, and not this.
            self._ends.append(tombstone(under_way_key(table)))

    def _set_aside(self, record: Record, rejected: RecordRejected) -> None:
        if len(record.value or b"") + len(record.key or b"") + sum(len(raw) for _, raw in record.headers) > self._most:
            # Compressed it passed the broker; as it is, no topic takes it, and it would come again for ever.
            record = dataclasses.replace(record, key=None, value=None, headers=())
            rejected = dataclasses.replace(rejected, detail=f"{rejected.detail}; left where it is")
        self._letters.append(dead_letter(record, rejected, by=self._by))

    def letters(self) -> list[Record]:
        """Return the dead letters that are to be written before all else."""
        return list(self._letters)

    def reports(self, tables: Sequence[PartialTable], now: float, now_us: int) -> list[Record]:
        """Return what is to be written then, in this order."""
        new = [table for table in tables if table.header.table not in self._reported]
        records = [*self._firsts, *(table_record(under_way(table, self.counted.log, now_us)) for table in new)]
        records += self._ends
        self._reporting = {table.header.table: _Reported(now, table.buffer.size) for table in new}
        for number, table in enumerate(tables):
            reported = self._reported.get(table.header.table)
            moved = reported is not None and now - reported.at >= _EACH and table.buffer.size != reported.received
            if moved or (number == 0 and self._beyond):
                report = under_way(table, self.counted.log, now_us)
                if number == 0:  # the oldest one: its entry stays as long as records can come again
                    report = replace(report, last_offset=self._dealt_with())
                    self._told = max(self._told, self._dealt_with() + 1)
                records.append(table_record(report))
                self._reporting[table.header.table] = _Reported(now, table.buffer.size)
        if self._beyond:  # with no table under way the position says it
            self._told = max(self._told, self._dealt_with() + 1)
        if self._open.consumed or self._open.corrected or self._told > self.counted.end:
            self._close_entry(now, now_us)
        return [*records, *self._entries]

    def written(self) -> None:
        """Forget what has been written."""
        self._reported |= self._reporting
        self._reporting = {}
        self._letters, self._firsts, self._ends, self._beyond = [], [], [], False
        self.pending -= self.account.consumed
        self.account, self._entries = RunningAccount(), []

    def offset(self, tables: Sequence[PartialTable]) -> int:
        """Return the offset before which nothing will be needed again."""
        return min([self.position, *(table.first_offset for table in tables)])

    def _close_entry(self, now: float, now_us: int) -> None:
        """Close an entry of the account: written again after a write that failed, it says the same."""
        self._entries.append(self._entry(self._open, now_us))
        self.account.add(self._open)
        self._open, self._entered_at = RunningAccount(), now
        self.counted.take(self.counted.log, self.counted.end, self._told)
        self._oldest = self.counted.end

    def signs(self, now: float, now_us: int, interval: float) -> list[Record]:
        """Return an entry that counts nothing, if there was none within an interval [s]."""
        if self._entries or self._told > self.counted.end or now - self._entered_at < interval:
            return []
        self._entered_at = now
        return [self._entry(RunningAccount(), now_us)]

    def _entry(self, account: RunningAccount, now_us: int) -> Record:
        account.cover(OffsetRange(self.counted.log, self.counted.end, self._told))
        entry = account.entry(self._by, CALIBRATION, self.partition, now_us)
        if self._oldest < self.counted.end:
            entry = replace(entry, counted_from=self._oldest)
        return account_record(entry)


def account_record(entry: AccountEntry) -> Record:
    """Return the record of an entry of the account."""
    return Record(topic=ACCOUNTS, key=f"{CALIBRATION}/{entry.partition}".encode(), value=encode(entry))


def under_way(table: PartialTable, log: str, now_us: int) -> Table:
    """Return what is to be said of a table under way."""
    header = table.header
    return Table(
        table=header.table,
        product=header.product,
        kind=header.kind,
        content_type=header.content_type,
        state=ASSEMBLING,
        size=header.size,
        received=table.buffer.size,
        sha256=header.sha256,
        sent_at=header.sent_at,
        time=now_us,
        partition=table.partition,
        first_offset=table.first_offset,
        log=log,
    )


def failure_of(table: Table) -> RecordRejected | None:
    """Return why a table was given up, by what was said of it; None: it was not."""
    if table.state == COMPLETE:
        return None
    reason, _, detail = ("" if table.reason is None else table.reason).partition(": ")
    return RecordRejected(reason or "failed", "$", detail)


def _why(rejected: RecordRejected) -> str:
    return f"{rejected.reason}: {rejected.detail}"[:1000]


def _first(table: Table) -> int:
    return -1 if table.first_offset is None else table.first_offset
