"""The aggregate worker: consumes records of all windowed topics, and writes partials and offsets in one transaction.

No result depends on what the worker remembers between transactions. A record is in the partials of exactly the
transaction that commits its offset, so totals stay exact over ``kill -9``, rebalances and broker restarts; see
`facade.kernel.runtime.worker`. For the closing of windows see `facade.flows.telemetry.watermarks`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from facade.flows.telemetry.partial import FOLLOWS, Summary, split
from facade.flows.telemetry.plan import Plan, plans
from facade.flows.telemetry.rack import nothing, tables
from facade.flows.telemetry.reduce import (
    AppendTimes,
    Batches,
    Reduced,
    Together,
    combine,
    frame,
    groups,
    reduce,
    sift,
)
from facade.flows.telemetry.summed import SummedBatches
from facade.kernel.bus.dead_letters import COUNT, ROW, size_of
from facade.kernel.bus.port import OffsetRange, PartitionBatch, Record, TransactionalLog
from facade.kernel.clock import NEVER, Clock, Time, as_seconds
from facade.kernel.config import Settings
from facade.kernel.icd.fields import earlier_versions
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import LATE, USED, Outcome
from facade.kernel.runtime.accounts import WRONG_FRAMES, RunningAccount
from facade.kernel.runtime.worker import SIGN_OF_LIFE, OffsetRanges, OpenTransaction, TransactionalWorker, as_record
from facade.kernel.windows.frame import Frame, distinct, merge
from facade.sdp.batches import Joined, ReadBatch, Refused, is_batch, without
from facade.sdp.columns import Column, ColumnDecoder
from facade.sdp.messages import RackSummary, Watermark
from facade.sdp.racks import Racks
from facade.sdp.summaries import as_partials

_LOOK = 0.01
"""Shortest wait for more records [s]."""
_LONGEST = 0.1
"""Longest wait for records [s]: only between two reads does a worker see that it is to stop, or how far a replay has
come, whose time passes faster."""
_ASK_AGAIN, _ASK_AGAIN_LATER = 0.05, 1.0
"""Shortest and longest time between two requests for the ends of partitions [s]."""
_TOLD_AGAIN = 10.0
"""Time between two summaries of a partition without records [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Division of the streams into transactions."""

    interval: float = 0.1
    """Shortest time between commits while records come [s]."""
    cells_per_second: int = 4_000
    """Cells per second above which commits become rarer: a group of a partition is a cell, and work for readers."""
    longest_interval: float = 0.25
    """Longest time between commits because of many cells [s]. One commit a second saved 1,500 nodes a tenth of the
    processor time, but then one second in thirty had no event of its own."""
    behind_interval: float = 1.0
    """Time between commits while the worker is behind: then throughput matters, not latency [s]."""
    behind: int = 50_000
    """Lag above which the worker is behind [records]."""
    behind_rows: int = 1_000_000
    """The same for columnar batches, with which a worker is some 15 times as fast [notifications]."""
    idle_interval: float = SIGN_OF_LIFE
    """Time between commits without records [s]."""
    batch: int = 10_000
    """Records read at once; decoding more at once is no faster."""
    rows: int = 262_144
    limit: int = 20_000_000
    limit_bytes: int = 32_000_000
    """Most bytes of dead letters in one transaction."""
    letters: int = 10_000
    """Most dead letters in one transaction; a batch with more bad rows becomes a single dead letter."""
    retry: float = 0.5
    """Pause after a transaction that failed [s]."""
    recomputed: float = 0.01
    """Share of the batches with a frame that are summed up from their columns to compare the two."""


_MOST_FRAMES = 64
"""Frames of a partition that are kept before they are merged."""


class Summarised(NamedTuple):
    """The summary of a group or a rack, with its place on the topic."""

    key: str
    summary: Summary | RackSummary
    partition: int
    """Of the summary topic; -1: by the key."""


class _Stream:
    """State of the worker for one windowed topic."""

    def __init__(self, plan: Plan, icd: Icd, settings: Settings, recomputed: float = 1.0) -> None:
        self.plan = plan
        schema, earlier = icd.messages[plan.message], earlier_versions(icd, plan.message)
        self.decoder = ColumnDecoder(plan.message, schema, earlier)
        self.batches = Batches(plan, schema, earlier) if "arrow" in icd.topics[plan.topic].encodings else None
        self.groups = groups(plan, settings)
        self.summed = None
        if self.batches is not None:
            self.summed = SummedBatches(plan, self.batches.reader, self.groups, recomputed)
        summary = icd.topics[plan.window.summary]
        self.summary_partitions = summary.partitions
        self._racks = Racks(settings.rack_size, summary.partitions)
        nodes = [node for node in plan.groups(settings) if isinstance(node, int)] if plan.is_contiguous else []
        self._all_racks = sorted({self._racks.rack(node) for node in nodes})
        self._most_bytes = summary.max_bytes // 2

    def read(self, record: Record) -> Outcome:
        """Judge one record, without an effect, for `dead-letters redrive`; it is rejected if each of its rows is."""
        if self.batches is not None and is_batch(record.value):
            batch = self.batches.reader.read(record.value or b"", record.headers)
            if isinstance(batch, Refused):
                return batch.why
            joined = Joined(self.batches.reader, [batch])
            columns: Mapping[str, Column] = joined
            rows, rejected = joined.rows, joined.rejected
        else:
            table = self.decoder.decode([record.value])
            if table.unused:
                return table.unused[0]
            columns, rows, rejected = table.columns, 1, {}
        appended_us = record.timestamp_us
        sifted = sift(columns, self.plan, AppendTimes(appended_us, appended_us, lambda _: appended_us), self.groups)
        bad: dict[int, Any] = dict(sifted.rejected) | dict(rejected)
        if len(bad) == rows:
            outcome: Outcome = bad[min(bad)]
            return outcome
        return LATE if sifted.late is not None and sifted.late.any() else USED

    def summaries(
        self, worker: str, partition: int, frames: Sequence[Frame], offsets: OffsetRange
    ) -> Iterator[Summarised]:
        racks: dict[int, Frame | None] = dict.fromkeys(self._all_racks)
        if frames and self.plan.racks:
            racks |= self._by_rack(merge(frames))
        elif frames:
            yield from self._by_group(worker, partition, merge(frames), offsets)
        for rack, rows in racks.items():
            nodes = self._racks.nodes(rack)
            # A rack without records has a summary as well, so that a reader notices a lost one.
            found = (nothing(),) if rows is None else tables(rows, self._most_bytes)
            for number, columns in enumerate(found):
                summary = self.plan.rack_summary(worker, partition, nodes, columns, offsets, number)
                yield Summarised(self.plan.rack_key(nodes[0], nodes[-1]), summary, self._racks.partition(nodes[0]))

    def _by_rack(self, whole: Frame) -> Iterator[tuple[int, Frame]]:
        racks = whole.group // self._racks.size
        is_sorted = np.all(racks[1:] >= racks[:-1])
        assert is_sorted, f"{self.plan.topic}: a rack would have two summaries, of which one counts"
        starts = np.flatnonzero(np.diff(racks, prepend=-1)).tolist()
        for begin, end in pairwise([*starts, len(whole)]):
            yield int(racks[begin]), whole.rows(begin, end)

    def _by_group(self, worker: str, partition: int, whole: Frame, offsets: OffsetRange) -> Iterator[Summarised]:
        by_node = self.plan.window.groups == "node"
        for code, mine in groupby(as_partials(whole), itemgetter(0)):
            group = self.groups.group(code)
            to = self._racks.partition(group) if by_node and isinstance(group, int) else -1
            for number, part in enumerate(part for _, one in mine for part in split(one)):
                alone = self.plan.summary(worker, partition, group, part, offsets, number)
                yield Summarised(self.plan.key(group), alone, to)


def trials(icd: Icd, settings: Settings) -> Mapping[str, Callable[[Record], Outcome]]:
    """Return the trial of one record for each windowed topic; see `facade.kernel.manifest.Manifest.trials`."""
    return {topic: _Stream(plan, icd, settings).read for topic, plan in plans(icd).items()}


def telemetry_worker(
    log: TransactionalLog,
    icd: Icd,
    settings: Settings,
    *,
    slot: str,
    clock: Clock,
    limits: BatchLimits | None = None,
) -> TransactionalWorker:
    """Return one slot of the group that aggregates all windowed topics."""
    limits = limits or BatchLimits()
    streams = {topic: _Stream(plan, icd, settings, limits.recomputed) for topic, plan in plans(icd).items()}
    transaction = OpenTransaction(log, streams, name=slot, by=f"aggregate-{slot}", clock=clock)
    return TransactionalWorker(transaction, TelemetryFold(transaction, streams, limits, clock), retry=limits.retry)


class TelemetryFold:
    """Sums up the records of all windowed topics by partition, group and window."""

    def __init__(
        self,
        transaction: OpenTransaction,
        streams: Mapping[str, _Stream],
        limits: BatchLimits,
        clock: Clock,
    ) -> None:
        self._log, self._transaction, self._clock = transaction.log, transaction, clock
        self.streams, self._limits = streams, limits
        self._lag = 0.0
        """Largest lag of a partition, relative to the limit; above 1 the worker is behind."""
        self._frames: dict[tuple[str, int], list[Frame]] = {}
        """Partial sums of the open transaction, by topic and partition."""
        self._cells: dict[tuple[str, int], int] = {}
        """Most groups of one of these frames, by topic and partition."""
        self._wrong: set[str] = set()
        """Texts about wrong frames in the accounts of the transaction that is being committed."""
        self._most = self._limits.batch
        self._told: dict[tuple[str, int], float] = {}
        """Times of the last summaries of each topic and partition [monotonic s]."""
        self._summaries = {stream.plan.window.summary: stream.summary_partitions for stream in self.streams.values()}
        self._watermarks: dict[tuple[str, int], Time] = {}
        """The last written watermarks, by topic and partition [Unix us]."""
        self._writing: dict[tuple[str, int], Time] = {}
        """The watermarks of the open transaction."""
        self._ended: dict[tuple[str, int, bytes | None], tuple[str, int]] = {}
        """Log and end of the offsets of each group's last summary, by topic, partition and key."""
        self._ending: dict[tuple[str, int, bytes | None], tuple[str, int]] = {}
        """The same of the summaries in the open transaction."""
        self._closes_at, self._closes = NEVER, False
        """Brokers' time at which the next window ends [Unix us], and whether a commit would close a window."""
        self._ask_at, self._ask_after = 0.0, _ASK_AGAIN
        """Earliest time of the next request for partition ends [monotonic s], and the pause after it."""

    def take(self) -> bool:
        """Read some records, and look whether windows have ended."""
        self._take_records()
        self._look_at_windows()
        return self._is_due()

    def _take_records(self) -> None:
        first = 0
        if not self._transaction.taken:  # the client waits for a whole batch; the first record is awaited alone
            wait = min(max(self._limits.idle_interval - self._transaction.age(), _LOOK), _LONGEST, self._until_close())
            self._fold_all(self._transaction.read(1, wait))
            if not self._transaction.taken:
                return
            first = 1
        if self._most > first:
            left = min(self._interval() - self._transaction.age(), self._until_close(), _LONGEST)
            self._fold_all(self._transaction.read(self._most - first, max(left, _LOOK)))

    def _look_at_windows(self) -> None:
        ranges, now = self._log.ranges(), self._clock.monotonic()
        time = max(self._log.broker_time, *(offsets.read_to for offsets in ranges.values()), NEVER)
        if time < self._closes_at:
            return
        self._closes = False
        wanted = {place: self.streams[place[0]].plan.rule.newest_close(time) for place in ranges}
        lacks = [place for place, close in wanted.items() if ranges[place].read_to < close]
        if lacks and now >= self._ask_at:
            self._log.ask_ends(lacks)
            ranges, answered = self._log.ranges(), self._clock.monotonic()
            # While a broker is slow, at most half of the time is spent on waiting for it.
            self._ask_at = answered + max(self._ask_after, answered - now)
            self._ask_after = min(2 * self._ask_after, _ASK_AGAIN_LATER)
        lacks = [place for place, close in wanted.items() if ranges[place].read_to < close]
        self._closes = any(
            self._watermarks.get(place, NEVER) < close <= ranges[place].read_to and ranges[place].partitions
            for place, close in wanted.items()
        ) and (not lacks or self._transaction.age() >= self._limits.interval)
        if not lacks:
            self._ask_after = _ASK_AGAIN
            if not self._closes:
                closes = (close + self.streams[topic].plan.length_us for (topic, _), close in wanted.items())
                self._closes_at = min(closes, default=NEVER)

    def _until_close(self) -> float:
        left = as_seconds(self._closes_at - self._log.broker_time)
        return max(left, self._ask_at - self._clock.monotonic(), _LOOK)

    def _fold_all(self, runs: Sequence[PartitionBatch]) -> None:
        rows = batches = 0
        for run in runs:
            found = self._fold(run)
            batches, rows = batches + len(found), rows + sum(one.rows for one in found)
        if runs:
            self._most = max(self._limits.rows * batches // rows, 1) if rows else self._limits.batch

    def _is_due(self) -> bool:
        limits = self._limits
        if self._transaction.taken >= limits.limit or self._transaction.dead_bytes >= limits.limit_bytes:
            return True
        if len(self._transaction.dead_letters) >= limits.letters or (self._closes and self._lag <= 1.0):
            return True
        if not self._transaction.taken:
            wanted = limits.idle_interval
        else:
            wanted = limits.behind_interval if self._lag > 1.0 else self._interval()
        return self._transaction.age() >= wanted

    def _interval(self) -> float:
        limits, cells = self._limits, sum(self._cells.values())
        return max(limits.interval, min(cells / limits.cells_per_second, limits.longest_interval))

    def _fold(self, run: PartitionBatch) -> Sequence[ReadBatch | Refused]:
        stream, values = self.streams[run.topic], run.values()
        table = stream.decoder.decode(values)
        found = {} if stream.batches is None else stream.batches.read(run, values, table.unused)
        count = len(values) - len(found) + sum(one.rows for one in found.values())
        account = self._transaction.count(run, count, len(found))
        behind = self._limits.behind_rows if found else self._limits.behind
        self._lag = max(self._lag, (run.high_watermark - run.last_offset) * count / len(values) / behind)
        for at, outcome in table.unused.items():
            if at not in found:
                self._transaction.settle(run.record(at), outcome)
        index = table.index
        if len(index):
            appended = AppendTimes(*run.appended, lambda row: run.append_time(int(index[row])))
            reduced = reduce(table.columns, stream.plan, appended, stream.groups)
            for row, rejected in reduced.rejected:
                self._transaction.settle(run.record(int(index[row])), rejected)
            self._count(run, account, reduced)
        if stream.batches is not None and stream.summed is not None and found:
            for at, batch in found.items():
                if isinstance(batch, Refused):
                    self._transaction.settle(run.record(at), batch.why, {COUNT: batch.rows})
            folded = stream.summed.fold(run, found)
            if folded.frame is not None:
                rows = sum(found[at].rows for at in folded.places)
                self._count(run, account, Reduced(folded.frame, rows, 0, []))
            account.wrong_frames = [*dict.fromkeys((*account.wrong_frames, *folded.wrong))][:WRONG_FRAMES]
            for joined in stream.batches.join(run, {at: one for at, one in found.items() if at not in folded.places}):
                self._fold_batches(run, stream, account, joined)
        return list(found.values())

    def _fold_batches(self, run: PartitionBatch, stream: "_Stream", account: RunningAccount, joined: Together) -> None:
        if (cells := joined.cells(stream.plan, stream.groups)) is not None:
            self._count(run, account, Reduced(frame(joined, stream.plan, cells), joined.rows, 0, []))
            return
        sifted = sift(joined, stream.plan, joined.appended, stream.groups)
        rejected = dict(sifted.rejected) | joined.rejected
        unused: list[int] = []
        for at, rows in joined.by_batch(sorted(rejected)):
            batch, record = joined.batches[at], run.record(joined.index[at])
            start = int(joined.starts[at])
            headers = without(record.headers)
            size = len(rows) * size_of(replace(record, value=None, headers=headers))
            is_much = len(self._transaction.dead_letters) + len(rows) > self._limits.letters
            if len(rows) == batch.rows or is_much or size > self._limits.limit_bytes:
                self._transaction.settle(record, rejected[start + rows[0]], {COUNT: batch.rows})
                rows = list(range(batch.rows))
            else:
                for row in rows:
                    letter = replace(record, value=joined.reader.row(batch, row), headers=headers)
                    self._transaction.settle(letter, rejected[start + row], {ROW: row})
            unused += [start + row for row in rows]
        self._count(run, account, combine(joined, stream.plan, sifted, unused))

    def _count(self, run: PartitionBatch, account: RunningAccount, reduced: Reduced) -> None:
        account.used += reduced.used
        account.late += reduced.late
        if reduced.frame is not None:
            summed, judged = int(reduced.frame.count.sum()), reduced.used + reduced.late
            assert summed == judged, f"{run.topic}: {summed} records are summed up, {judged} are used or late"
            place = run.topic, run.partition
            self._cells[place] = max(self._cells.get(place, 0), len(distinct(reduced.frame.group)))
            mine = self._frames.setdefault(place, [])
            mine.append(reduced.frame)
            if len(mine) > _MOST_FRAMES:
                mine[:] = [merge(mine)]

    def output(self, ranges: OffsetRanges) -> Iterator[Record]:
        """Return the summaries of all partitions, and the watermarks that have moved."""
        now, self._ending = self._clock.monotonic(), {}
        self._wrong = {text for account in self._transaction.accounts.values() for text in account.wrong_frames}
        for (topic, partition), offsets in ranges.items():
            place, stream = (topic, partition), self.streams[topic]
            found = self._frames.get(place, ())
            if not found and offsets.begin == offsets.end and now - self._told.get(place, -_TOLD_AGAIN) < _TOLD_AGAIN:
                continue
            self._told[place] = now
            for one in stream.summaries(self._transaction.name, partition, found, offsets):
                made = as_record(stream.plan.window.summary, one.key, one.summary, one.partition)
                yield made if isinstance(one.summary, RackSummary) else self._following(place, made, offsets)
        yield from self._new_watermarks(ranges)

    def _following(self, place: tuple[str, int], summary: Record, offsets: OffsetRange) -> Record:
        """Return the summary of a group with the end of the one before it, if this worker has written that."""
        group = (*place, summary.key)
        self._ending[group] = offsets.log, offsets.end
        log, end = self._ended.get(group, ("", 0))
        return summary if log != offsets.log else replace(summary, headers=((FOLLOWS, b"%d" % end),))

    def _new_watermarks(self, ranges: OffsetRanges) -> Iterator[Record]:
        self._writing = {}
        for (topic, partition), offsets in ranges.items():
            plan = self.streams[topic].plan
            if offsets.partitions <= partition or plan.rule.newest_close(offsets.read_to) <= self._watermarks.get(
                (topic, partition), NEVER
            ):
                continue
            self._writing[topic, partition] = offsets.read_to
            watermark = Watermark(
                worker=self._transaction.name,
                stream=topic,
                partition=partition,
                partitions=offsets.partitions,
                log=offsets.log,
                read_to=offsets.read_to,
            )
            for to in range(self._summaries[plan.window.summary]):
                yield as_record(plan.window.summary, plan.watermark_key(partition), watermark, to)

    def end(self, *, is_committed: bool) -> None:
        """Forget the sums; watermarks that are committed hold."""
        self._frames, self._cells, self._lag = {}, {}, 0.0
        if not is_committed:
            return
        for stream in self.streams.values():
            if stream.summed is not None:
                stream.summed.said(self._wrong)
        for place, time in self._writing.items():
            assert time > self._watermarks.get(place, NEVER), f"{place}: the watermark goes back to {time}"
        self._watermarks |= self._writing
        self._ended |= self._ending
        self._closes_at, self._closes = NEVER, False
