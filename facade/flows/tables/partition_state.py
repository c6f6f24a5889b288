"""The state of one partition in a worker, from which its next transaction and the reader after a restart follow.

A record is settled by the transaction whose position is after it; a segment, by the transaction in which its table
ends. After a restart reading continues at the first segment in flight, see `facade.flows.tables.recall`. Settled
records that come again are skipped.

The account counts the segments of a table when it ends. Its entries cover the offsets from position to position, so
they join, also after a restart. An entry that was written twice begins before the end of the counted offsets, and
readers refuse it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from facade.flows.tables.assembly import PartialTable, Repeated
from facade.flows.tables.messages import (
    CALIBRATION,
    COMPLETE,
    FAILED,
    account_record,
    former_key,
    reason_of,
    table_record,
    tombstone,
    under_way_key,
)
from facade.flows.tables.places import without_secrets
from facade.flows.tables.recall import InFlight, Mark, Recalled, in_flight
from facade.kernel.bus.dead_letters import dead_letter
from facade.kernel.bus.offsets import WorkerPosition, position_record
from facade.kernel.bus.port import OffsetRange, Record
from facade.kernel.clock import Time
from facade.kernel.outcome import RecordRejected, Suppressed
from facade.kernel.runtime.accounts import RunningAccount
from facade.sdp.messages import Table, TableSegment


class PartitionState:
    """Outcomes of one partition; they are kept until `written`."""

    def __init__(self, partition: int, assigned: int, past: Recalled, *, by: str) -> None:
        self.partition, self.assigned, self.log = partition, assigned, past.log
        self.position = past.begin
        """Offset after the newest record read."""
        self.account = RunningAccount()
        """Outcomes since the last transaction."""
        # Without the ended tables, whose summaries are large.
        self._by, self._past = by, dataclasses.replace(past, ended={}, lost=[], renamed=[])
        self._written = self.tried = past.mark
        """The state that the bus has, and the one in the newest transaction."""
        self._records: list[Record] = []
        for table in past.renamed:
            reports = [table_record(table)] if table.table in past.under_way else []
            self._records += [tombstone(former_key(table)), *reports]

    @property
    def next(self) -> int:
        """Return the offset from which on records are new."""
        return max(self.position, self._written.next)

    def is_done(self, record: Record, header: TableSegment | RecordRejected | None) -> bool:
        """Return whether a record was settled before a restart."""
        before = self._past.under_way.get(header.table) if isinstance(header, TableSegment) else None
        return record.offset < self._written.next and (before is None or record.offset < in_flight(before).first)

    def decide(self, record: Record, outcome: RecordRejected | Suppressed) -> None:
        """Count a single record that belongs to no table."""
        if record.offset < self._written.next:  # it was counted before a restart, unlike the table around it
            return
        self.account.consumed += 1
        self.account.settle(outcome)
        if isinstance(outcome, RecordRejected) and not isinstance(outcome, Repeated):
            self._records.append(dead_letter(record, outcome, by=self._by))

    def end(self, table: PartialTable, now_us: Time, rejected: RecordRejected | None, summary: Any) -> None:
        """Report that a table has ended, and count its segments."""
        header, said = table.header, table.message(self.log, now_us, self._segments(table))
        said = replace(said, last_offset=table.newest.offset, url=header.url)
        self.account.consumed += said.segments
        if rejected is None:
            self.account.used += said.segments
            said = replace(said, state=COMPLETE, summary=summary, earlier=self._past.add_version(header))
        else:
            url = said.url and without_secrets(said.url)
            said = replace(said, state=FAILED, reason=reason_of(rejected), url=url)
            if header.count > 0:
                rejected = dataclasses.replace(rejected, detail=f"{table}: {rejected.detail}")
            self.account.settle(rejected, count=said.segments)
            self._records.append(dead_letter(table.newest, rejected, by=self._by))
        self._report_end(said)

    def lose(self, table: Table, now_us: Time) -> RecordRejected:
        """Report that a table is lost, as its first segments are not on the log any more."""
        what = f"expected its records from offset {table.first_offset} on, got none any more"
        rejected = RecordRejected("lost", "$", what)
        if table.log == self.log:  # otherwise a new epoch of totals begins
            self.account.skipped += table.segments
            text = f"{CALIBRATION}, partition {self.partition}: table {table.table} of {table.product}: {what}"
            self._past.note += f"; {text}" if self._past.note else text
        reason = reason_of(rejected)
        self._report_end(replace(table, state=FAILED, time=now_us, last_offset=None, log=self.log, reason=reason))
        return rejected

    def write(self, tables: Sequence[PartialTable], now_us: Time, *, group: str, is_due: bool) -> list[Record]:
        """Return the records to write, given the tables under way; none: there is no news, and no report is due."""
        before, opened = self._written.in_flight, {table.header.table for table in tables}
        if self.position >= self._past.mark.next:  # all that was to be read again has been
            for lost in [table for name, table in self._past.under_way.items() if name not in opened]:
                self.lose(lost, now_us)
        now = {name: in_flight(table) for name, table in self._past.under_way.items()}
        now |= {table.header.table: InFlight(table.first_offset, self._segments(table)) for table in tables}
        if not (is_due or self._records or self._past.note or self.account.consumed or now.keys() - before.keys()):
            self.tried = self._written
            return []
        self.tried = Mark(self.log, self.next, now)
        grown = [table for table in tables if now[table.header.table] != before.get(table.header.table)]
        reports = (table.message(self.log, now_us, self._segments(table)) for table in grown)
        records = [*self._records, *map(table_record, reports), self._entry(now_us)]
        if self.tried[:2] != self._written[:2]:
            position = WorkerPosition(
                group=group, topic=CALIBRATION, partition=self.partition, log=self.log, next=self.next, worker=self._by
            )
            records.append(position_record(position))
        return records

    def has_happened(self, past: Recalled) -> bool | None:
        """Return whether a failed transaction is on the bus after all; None: unknown."""
        if past.mark != self.tried:
            return False if past.mark == self._written else None
        return None if self.tried == self._written and (self._past.note or self._records) else True

    def written(self) -> None:
        """Forget all written records."""
        is_back = self.tried.log == self._written.log and self.tried.next < self._written.next
        assert not is_back, f"partition {self.partition}: {self.tried.next} is written after {self._written.next}"
        self._written, self._records, self._past.note, self.account = self.tried, [], "", RunningAccount()

    def _entry(self, now_us: Time) -> Record:
        begin = self._written.next
        assert not self.account.balance, f"{self.account.balance} records without an outcome"
        if self._past.note:
            self.account.corrected, self.account.last_error = 1, self._past.note[:500]
        self.account.cover(OffsetRange(self.log, begin, self.next))
        entry = self.account.entry(self._by, CALIBRATION, self.partition, now_us)
        oldest = min((one.first for one in self._written.in_flight.values()), default=begin)
        return account_record(replace(entry, counted_from=oldest) if entry.consumed and oldest < begin else entry)

    def _segments(self, table: PartialTable) -> int:
        """Return the number of segments that have come; after a restart some of them may not be read yet."""
        before = self._past.under_way.get(table.header.table)
        return max(table.records, before.segments if before else 0)

    def _report_end(self, table: Table) -> None:
        self._past.under_way.pop(table.table, None)
        # The tombstone comes after the end: compaction may remove the end in favour of a newer version's, but not this.
        self._records += [table_record(table), tombstone(under_way_key(table))]
