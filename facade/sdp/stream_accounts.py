"""The accounts of all streams, gathered from workers and device servers.

Workers write an entry for each transaction; the entries add up. Device servers write totals into their snapshots; the
newest of each instance counts. Either way the sum is exact over restarts, because account and offsets are committed
together.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from facade.kernel.bus.offsets import CountedOffsets, Gap, LogCut, Overlap, id_of
from facade.kernel.bus.port import Record
from facade.kernel.clock import MINUTE, NEVER, NOTHING, SECOND, Time, as_duration, as_seconds, as_time
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.numbers import Seconds
from facade.kernel.outcome import INCONSISTENT, USED, Outcome, RecordRejected
from facade.kernel.runtime.accounts import ACCOUNTS, MOST_ROWS, OVERLAP, AccountEntry, AccountTotals, RunningAccount
from facade.kernel.runtime.flow import Flow
from facade.kernel.runtime.snapshots import TOPIC, Snapshot
from facade.sdp.demand import RateMeter, Work

_EVERY = SECOND
"""Least time between two stored log ends."""
_MOST_ENDS = 3600
"""Stored log ends; beyond it every second one is dropped."""


class Backlog:
    """The waiting records of one partition, or of several partitions together.

    Log ends are stored with their times until the reader reaches them. The first waiting record came after the last
    time at which the log ended before it.
    """

    __slots__ = ("_ends", "records")

    def __init__(self) -> None:
        self._ends: list[tuple[Time, int]] = []
        """Time and end, the oldest first; the reader has passed the first one, except at the begin."""
        self.records = 0

    def note(self, at: Time, position: int, end: int) -> None:
        """Note the reader's position on a log, and the log's end, at a time."""
        self.records = max(end - position, 0)
        if self._ends and end < self._ends[-1][1]:
            self._ends.clear()  # another log
        if not self.records:
            self._ends = [(at, end)]
            return
        while len(self._ends) > 1 and self._ends[1][1] <= position:
            del self._ends[0]
        if not self._ends or (end > self._ends[-1][1] and at - self._ends[-1][0] >= _EVERY):
            self._ends.append((at, end))
        if len(self._ends) > _MOST_ENDS:
            del self._ends[1::2]

    def seconds(self, now: Time) -> float:
        """Return the longest possible waiting time of the first waiting record, at a time [s]; 0: none waits."""
        return as_seconds(max(now - self._ends[0][0], NOTHING)) if self.records else 0.0


class _CountedSnapshot(Snapshot, frozen=True, kw_only=True):
    """The account in a snapshot; the large rest, which only its writer reads, is skipped."""

    ledger: msgspec.Raw  # type: ignore[assignment]
    readings: msgspec.Raw  # type: ignore[assignment]


_decode_snapshot = BatchDecoder(_CountedSnapshot).decode_one
_decode_entry = BatchDecoder(AccountEntry).decode_one
_MOST = 100_000_000
"""Upper bound of the records in a transaction."""
_CLOCK_SLACK = MINUTE
"""Largest difference between the clocks of a worker and of the broker."""


class Covered(CountedOffsets):
    """The accounted offsets of one partition."""

    heard: Seconds = 0.0
    """Time of the last entry [Unix s]."""
    measured: Seconds = 0.0
    """Time of the last entry with a log end, or of the first entry [Unix s]; 0: restored from an older server."""

    @property
    def topic_id(self) -> str:
        """Return the id of the topic."""
        return id_of(self.log)


class StreamTotals:
    """The account of one stream over all partitions and readers."""

    def __init__(self) -> None:
        self.account = RunningAccount()
        self.rate = RateMeter()
        self.work = Work()
        self.heard = NEVER
        """Time of the last entry."""
        self.newest = NEVER
        """Time of the last entry with records."""
        self.backlogs: dict[str, Backlog] = {}
        """Waiting records, by partition or instance."""
        self.partitions: dict[int, Covered] = {}
        """Offsets accounted for by workers that report them, by partition."""
        self.has_ends = False
        """Whether any entry has had a log end."""
        self.shape = (0, NEVER)
        """Number of partitions of the topic, and the time of its first report."""

    @property
    def lag(self) -> int:
        """Records not yet consumed."""
        return sum(one.records for one in self.backlogs.values())

    def lag_time(self, now: Time) -> float:
        """Return the waiting time of the oldest waiting record, at a time [s]."""
        return max((one.seconds(now) for one in self.backlogs.values()), default=0.0)

    def untaken(self, now: Time, within: float) -> list[int]:
        """Return the partitions without an entry of a worker within the last `within` [s].

        A worker that cannot learn the log end gets no records, so it writes no entry. An added partition has the same
        time limit as any other.
        """
        newest = max(self.partitions.values(), key=lambda one: one.heard, default=None)
        if newest is None:
            return []
        number, since = self.shape
        longest = as_duration(within)
        unheard = [one for one in range(number) if one not in self.partitions and now - since > longest]
        silent = [
            number
            for number, one in self.partitions.items()
            if now - self._told(one) > longest and one.topic_id == newest.topic_id
        ]
        return sorted([*unheard, *silent])

    def _told(self, one: "Covered") -> Time:
        return as_time(min(one.heard, one.measured) if self.has_ends and one.measured else one.heard)

    def note(self, entry: AccountEntry, heard: Time) -> None:
        """Note an entry's facts about the topic and the end of its log."""
        if entry.partitions and entry.partitions != self.shape[0]:
            self.shape = entry.partitions, heard
        at = self.partitions.get(entry.partition)
        if entry.high_watermark >= 0 or not self.has_ends:
            self.has_ends |= entry.high_watermark >= 0
            end = max(entry.high_watermark, entry.offset_to)
            self.backlogs.setdefault(str(entry.partition), Backlog()).note(heard, entry.offset_to, end)
            if at is not None:
                at.measured = max(at.measured, as_seconds(heard))

    def take(self, entry: AccountEntry, heard: Time) -> str:
        """Count an entry; return the reason of a refusal, or empty text."""
        if entry.partition >= 0:
            found = self._cover(entry, heard)
            if isinstance(found, Overlap):
                return self._refuse(entry, found)
            if isinstance(found, LogCut):
                entry = replace(entry, corrected=0)  # the alarm about the log covers it
        self.account.add(entry)
        self.newest = max(self.newest, heard if entry.consumed else NEVER)
        self.rate.add(entry.time, entry.consumed)
        self.work.note(entry)
        return ""

    def _cover(self, entry: AccountEntry, time: Time) -> Overlap | Gap | LogCut | None:
        at, heard = self.partitions.get(entry.partition), as_seconds(time)
        if at is None:
            first, after = entry.offset_from, entry.offset_to
            self.partitions[entry.partition] = Covered(entry.log, first, after, heard=heard, measured=heard)
            return None
        at.heard = max(at.heard, heard)
        found = at.take(entry.log, entry.offset_from, entry.offset_to, counts=bool(entry.consumed))
        if isinstance(found, Gap):
            self.account.deviate("skipped", found.records, f"{_where(entry)}: {found}")
        elif isinstance(found, LogCut):
            self.backlogs.clear()  # they may concern partitions that no longer exist
            self.account.deviate("log_cuts", 1, f"{_where(entry)}: {found}")
        return found

    def _refuse(self, entry: AccountEntry, found: Overlap) -> str:
        text = f"{_where(entry)}: offsets {entry.offset_from} to {entry.offset_to - 1} came again: {found}"
        self.account.deviate("overlap", entry.consumed, text)
        if entry.corrected:
            self.account.deviate("corrected", entry.corrected, entry.last_error)
        return text


def _where(entry: AccountEntry) -> str:
    return f"{entry.stream}, partition {entry.partition}"


class _Stored(msgspec.Struct):
    """A stream in a snapshot."""

    heard: Seconds
    totals: AccountTotals
    partitions: dict[int, Covered] = {}


class WorkerAccounts(Flow):
    """A flow: the workers' entries about their streams."""

    topic = ACCOUNTS
    durable = True

    def __init__(self) -> None:
        self.streams: dict[str, StreamTotals] = {}

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Add an entry; see `facade.kernel.runtime.flow.Flow`."""
        entry = _decode_entry(record.value)
        if not isinstance(entry, AccountEntry):
            return entry
        if rejected := _inconsistency(entry, record.timestamp_us):
            return rejected
        heard = self.heard(record)
        stream = self.streams.setdefault(entry.stream, StreamTotals())
        if entry.redriven:  # a redrive consumes no records: this is no heartbeat of a worker
            stream.account.redriven += entry.redriven if count else 0
            return USED
        stream.heard = max(stream.heard, heard)
        if count and (trouble := stream.take(entry, heard)):
            return RecordRejected(OVERLAP, "$.offset_from", trouble)
        if entry.partition >= 0:
            stream.note(entry, heard)
        return USED

    def as_dict(self) -> dict[str, Any]:
        """Return the totals by stream."""
        stored = {
            name: _Stored(as_seconds(stream.heard), stream.account.totals(), stream.partitions)
            for name, stream in self.streams.items()
        }
        builtins: dict[str, Any] = msgspec.to_builtins(stored)
        return builtins

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the totals by stream."""
        for name, stored in msgspec.convert(state, dict[str, _Stored], strict=False).items():
            stream = self.streams.setdefault(name, StreamTotals())
            stream.account.restore(stored.totals)
            stream.heard, stream.partitions = as_time(stored.heard), stored.partitions


def _inconsistency(entry: AccountEntry, written_us: Time) -> RecordRejected | None:
    """Return the reason why an entry cannot be true: totals cannot be corrected later."""
    settled = (entry.used, entry.late, entry.suppressed, entry.dead_lettered)
    counts = (entry.consumed, *settled, entry.in_flight, entry.redriven)
    if max(*counts, *entry.reasons.values()) > _MOST:
        return RecordRejected(
            INCONSISTENT, "$", f"expected at most {_MOST:,} records in one transaction, got {max(counts)}"
        )
    if entry.time > written_us + _CLOCK_SLACK:
        return RecordRejected(INCONSISTENT, "$.time", f"{entry.time} is ahead of the writing at {written_us}")
    if entry.partition >= 0 and not (entry.log or entry.redriven):
        return RecordRejected(INCONSISTENT, "$.log", "expected the log of the offsets: workers must be of this version")
    if entry.offset_to < entry.offset_from or entry.offset_to > entry.high_watermark >= 0:
        text = f"expected {entry.offset_from} to {entry.high_watermark}, got {entry.offset_to}"
        return RecordRejected(INCONSISTENT, "$.offset_to", text)
    # A table counts at its end, with records from before the entry's range.
    first = entry.offset_from if entry.counted_from < 0 else min(entry.counted_from, entry.offset_from)
    most = entry.offset_to - first
    if entry.batches > most or entry.consumed > most + MOST_ROWS * entry.batches:
        return RecordRejected(
            INCONSISTENT, "$.consumed", f"expected at most {most}, by its offsets, got {entry.consumed}"
        )
    return None


class ReaderAccounts(Flow):
    """A flow: the device servers' totals, in their snapshots, of the streams that they read."""

    topic = TOPIC

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], tuple[Time, AccountTotals]] = {}
        self._backlogs: dict[tuple[str, str], Backlog] = {}
        self._rates: dict[str, RateMeter] = {}
        self._grown: dict[str, Time] = {}
        """Time of the last account of a topic that has new records."""
        self.newest_us: dict[str, Time] = {}
        """Time of the last account of each instance, by the clock of its host."""
        self._streams: dict[str, StreamTotals] | None = None
        """The cached sum."""

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Keep the newest account of an instance and topic; see `facade.kernel.runtime.flow.Flow`."""
        snapshot = _decode_snapshot(record.value)
        if not isinstance(snapshot, Snapshot):
            return snapshot
        key = (snapshot.instance, snapshot.topic)
        _, before = self._newest.get(key, (NEVER, None))
        if before is not None:
            meter = self._rates.setdefault(snapshot.topic, RateMeter())
            meter.add(snapshot.time, max(snapshot.account.consumed - before.consumed, 0))
            if snapshot.account.consumed > before.consumed:
                self._grown[snapshot.topic] = snapshot.time
        position = sum(snapshot.offsets.values())
        backlog = self._backlogs.setdefault(key, Backlog())
        backlog.note(snapshot.time, position, position + snapshot.account.behind)
        self._newest[key] = snapshot.time, snapshot.account
        self.newest_us[snapshot.instance] = record.timestamp_us  # the topic has the writer's timestamps
        self._streams = None
        return USED

    @property
    def streams(self) -> dict[str, StreamTotals]:
        """Return the sum over the instances, by stream."""
        if self._streams is None:
            self._streams = self._sum()
        return self._streams

    def _sum(self) -> dict[str, StreamTotals]:
        streams: dict[str, StreamTotals] = {}
        for (instance, topic), (time, totals) in self._newest.items():
            stream = streams.setdefault(topic, StreamTotals())
            one = RunningAccount()
            one.restore(totals)
            stream.account.add(one)
            stream.account.in_flight += one.in_flight
            stream.heard, stream.newest = max(stream.heard, time), self._grown.get(topic, NEVER)
            stream.backlogs[instance] = self._backlogs[instance, topic]
            stream.rate = self._rates.get(topic, stream.rate)
        return streams


def reasons_by_stream(streams: Mapping[str, StreamTotals]) -> list[str]:
    """Return 'stream reason count' lines, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    for name, stream in streams.items():
        for reason, count in stream.account.reasons.items():
            counts[name, reason] = count
    return [f"{name} {reason} {count}" for (name, reason), count in counts.most_common()]
