"""The accounts of all streams, gathered from workers and device servers.

Workers write what each transaction did; those entries add up. Device servers write totals into
their snapshots; the newest of each instance counts. Either way the sum is exact over restarts,
because account and offsets are committed together.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.outcome import INCONSISTENT, USED, Outcome, Rejected
from facade.runtime.accounts import ACCOUNTS, OVERLAP, AccountEntry, AccountTotals, StreamAccount
from facade.runtime.backlog import Backlog
from facade.runtime.demand import RateMeter, Work
from facade.runtime.flow import Flow
from facade.runtime.snapshots import TOPIC, Snapshot, decode_snapshot

_decode_entry = BatchDecoder(AccountEntry).decode_one
_MICRO = 1_000_000
_LOGS = 8
"""So many former logs of a partition are remembered."""
_MOST = 100_000_000
"""No transaction has so many records."""
_MOST_ROWS = 65_536
"""Of a columnar batch."""
_CLOCK_SLACK_US = 60_000_000
"""Most by which the clocks of a worker and of the broker may differ [us]."""


class Covered(msgspec.Struct):
    """Which offsets of one partition are accounted for."""

    logs: list[str]
    """Which logs it had, see `facade.bus.port.Span`; the newest is the last."""
    end: int
    """Offset after the last one that an entry covers."""
    heard: float
    """When an entry last came [Unix s]."""
    measured: float = 0.0
    """When one last came that knew where the log ends, or the first one [Unix s]; 0: an older server kept it."""
    begin: int = 0
    """Offset of the first log from which on they are accounted for."""

    @property
    def topic_id(self) -> str:
        """Return the id of the topic."""
        return self.logs[-1].partition("#")[0]


class StreamTotals:
    """The account of one stream over all partitions and readers."""

    def __init__(self) -> None:
        self.account = StreamAccount()
        self.rate = RateMeter()
        self.work = Work()
        self.heard = 0.0
        """When its account last came [Unix s]."""
        self.backlogs: dict[str, Backlog] = {}
        """What waits, by partition or instance."""
        self.partitions: dict[int, Covered] = {}
        """What workers that say it have accounted for, by partition."""
        self.has_ends = False
        """Whether any entry has said where the log ends."""
        self.shape = (0, 0.0)
        """How many partitions the topic has, and when that was first heard [Unix s]."""

    @property
    def lag(self) -> int:
        """Records that are not yet taken."""
        return sum(one.records for one in self.backlogs.values())

    def lag_time(self, now: float) -> float:
        """Return for how long the oldest record that waits has done so, at a time [Unix s]."""
        return max((one.seconds(now) for one in self.backlogs.values()), default=0.0)

    def untaken(self, now: float, within: float) -> list[int]:
        """Return the partitions of which no worker has said anything within the last `within` [s].

        A worker that does not learn where the log ends gets nothing from it, so it says nothing. A partition that was
        added is waited for as long as any other.
        """
        newest = max(self.partitions.values(), key=lambda one: one.heard, default=None)
        if newest is None:
            return []
        number, since = self.shape
        unheard = [one for one in range(number) if one not in self.partitions and now - since > within]
        silent = [
            number
            for number, one in self.partitions.items()
            if now - self._told(one) > within and one.topic_id == newest.topic_id
        ]
        return sorted([*unheard, *silent])

    def _told(self, one: "Covered") -> float:
        return min(one.heard, one.measured) if self.has_ends and one.measured else one.heard

    def note(self, entry: AccountEntry, heard: float) -> None:
        """Note what an entry knows of its topic and of the end of its log."""
        if entry.partitions and entry.partitions != self.shape[0]:
            self.shape = entry.partitions, heard
        at = self.partitions.get(entry.partition)
        if entry.high_watermark >= 0 or not self.has_ends:
            self.has_ends |= entry.high_watermark >= 0
            end = max(entry.high_watermark, entry.offset_to)
            self.backlogs.setdefault(str(entry.partition), Backlog()).note(heard, entry.offset_to, end)
            if at is not None:
                at.measured = max(at.measured, heard)

    def cover(self, entry: AccountEntry, heard: float) -> str:
        """Note which offsets an entry accounts for; give why it must not be added, or empty text.

        Where an entry begins behind the end of the one before, the records between are nobody's. Marks of transactions
        leave no such hole: an entry begins where its worker stood, not with its first record.
        """
        at, where = self.partitions.get(entry.partition), f"{entry.stream}, partition {entry.partition}"
        if at is None:
            if entry.log:
                self.partitions[entry.partition] = Covered(
                    [entry.log], entry.offset_to, heard, heard, entry.offset_from
                )
            return ""
        at.heard = max(at.heard, heard)
        if not entry.log:  # of an older worker, whose entries begin with their first record
            at.end = max(at.end, entry.offset_to)
            return ""
        offsets = f"offsets {entry.offset_from} to {entry.offset_to - 1}"
        if entry.log in at.logs[:-1]:
            return self._refuse(entry, f"{where}: {offsets} are of log {entry.log}, expected log {at.logs[-1]}")
        if entry.log != at.logs[-1]:
            self._change_log(at, entry, where)
        elif entry.offset_from < at.end and entry.consumed:
            return self._refuse(
                entry,
                f"{where}: {offsets} came again. Offsets before {at.end} were already counted, so these were refused",
            )
        elif entry.offset_from > at.end:
            self._skip(where, at.end, entry.offset_from)
        at.end = max(at.end, entry.offset_to)
        return ""

    def _change_log(self, at: "Covered", entry: AccountEntry, where: str) -> None:
        """Begin with another log: the topic was made again, or the end of its log was lost."""
        before, after = at.topic_id, entry.log.partition("#")[0]
        self.backlogs.clear()  # perhaps of partitions that are no more
        if before == after and entry.offset_from < at.end:
            lost = f"offsets {entry.offset_from} to {at.end - 1} are counted, but are no longer on the log"
            self.account.deviate("overlap", at.end - entry.offset_from, f"{where}: {lost}; others get these offsets")
        elif before != after and entry.offset_from and "?" not in (before, after):
            self._skip(where, 0, entry.offset_from)
        at.logs, at.end = [*at.logs, entry.log][-_LOGS:], entry.offset_to

    def _refuse(self, entry: AccountEntry, text: str) -> str:
        self.account.deviate("overlap", entry.consumed, text)
        if entry.corrected:
            self.account.deviate("corrected", entry.corrected, entry.last_error)
        return text

    def _skip(self, where: str, first: int, after: int) -> None:
        text = f"{where}: offsets {first} to {after - 1} were not taken: up to {after - first} records are missing"
        self.account.deviate("skipped", after - first, text)


class _Stored(msgspec.Struct):
    """A stream in a snapshot."""

    heard: float
    totals: AccountTotals
    partitions: dict[int, Covered] = {}


class WorkerAccounts(Flow):
    """A flow: what workers say about the streams that they take."""

    topic = ACCOUNTS
    durable = True

    def __init__(self) -> None:
        self.streams: dict[str, StreamTotals] = {}

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Add an entry; see `facade.runtime.flow.Flow`."""
        entry = _decode_entry(record.value)
        if not isinstance(entry, AccountEntry):
            return entry
        if rejected := _inconsistency(entry, record.timestamp_us):
            return rejected
        heard = record.timestamp_us / _MICRO
        stream = self.streams.setdefault(entry.stream, StreamTotals())
        if entry.redriven:  # whoever puts records back takes none: this is no sign of life of a worker
            stream.account.redriven += entry.redriven if count else 0
            return USED
        stream.heard = max(stream.heard, heard)
        if count and (trouble := stream.cover(entry, heard)):
            return Rejected(OVERLAP, "$.offset_from", trouble)
        if entry.partition >= 0:
            stream.note(entry, heard)
        if count:
            stream.account.add(entry)
            stream.rate.add(entry.time, entry.consumed)
            stream.work.note(entry)
        return USED

    def as_dict(self) -> dict[str, Any]:
        """Return the totals by stream."""
        stored = {
            name: _Stored(stream.heard, stream.account.totals(), stream.partitions)
            for name, stream in self.streams.items()
        }
        builtins: dict[str, Any] = msgspec.to_builtins(stored)
        return builtins

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the totals by stream."""
        for name, stored in msgspec.convert(state, dict[str, _Stored], strict=False).items():
            stream = self.streams.setdefault(name, StreamTotals())
            stream.account.restore(stored.totals)
            stream.heard, stream.partitions = stored.heard, stored.partitions


def _inconsistency(entry: AccountEntry, written_us: int) -> Rejected | None:
    """Return why an entry cannot be true: what is added once stays in the totals for good."""
    settled = (entry.used, entry.late, entry.suppressed, entry.dead_lettered)
    counts = (entry.consumed, *settled, entry.in_flight, entry.redriven)
    if max(*counts, *entry.reasons.values()) > _MOST:
        return Rejected(INCONSISTENT, "$", f"expected at most {_MOST:,} records in one transaction, got {max(counts)}")
    if entry.time > written_us + _CLOCK_SLACK_US:
        return Rejected(INCONSISTENT, "$.time", f"{entry.time} is ahead of the writing at {written_us}")
    if entry.offset_to < entry.offset_from or (entry.log and entry.offset_to > entry.high_watermark >= 0):
        text = f"expected {entry.offset_from} to {entry.high_watermark}, got {entry.offset_to}"
        return Rejected(INCONSISTENT, "$.offset_to", text)
    # A table counts when it ends, with records from before the entry's range; without a log nobody says from where.
    first = entry.offset_from if entry.counted_from < 0 else min(entry.counted_from, entry.offset_from)
    most = entry.offset_to - first if entry.log else max(entry.offset_to, 0)
    if entry.batches > most or entry.consumed > most + _MOST_ROWS * entry.batches:
        return Rejected(INCONSISTENT, "$.consumed", f"expected at most {most}, by its offsets, got {entry.consumed}")
    return None


class ReaderAccounts(Flow):
    """A flow: what device servers say, in their snapshots, about the streams that they read."""

    topic = TOPIC

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], tuple[int, AccountTotals]] = {}
        self._backlogs: dict[tuple[str, str], Backlog] = {}
        self._rates: dict[str, RateMeter] = {}
        self.newest_us: dict[str, int] = {}
        """When each instance last gave an account, by its own clock [Unix us]."""
        self._streams: dict[str, StreamTotals] | None = None
        """The sum as it was last made, while it holds."""

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Keep the newest account of an instance and topic; see `facade.runtime.flow.Flow`."""
        snapshot = decode_snapshot(record.value)
        if not isinstance(snapshot, Snapshot):
            return snapshot
        key = (snapshot.instance, snapshot.topic)
        _, before = self._newest.get(key, (0, None))
        if before is not None:
            meter = self._rates.setdefault(snapshot.topic, RateMeter())
            meter.add(snapshot.time, max(snapshot.account.consumed - before.consumed, 0))
        position = sum(snapshot.offsets.values())
        backlog = self._backlogs.setdefault(key, Backlog())
        backlog.note(snapshot.time / _MICRO, position, position + snapshot.account.behind)
        self._newest[key] = snapshot.time, snapshot.account
        self.newest_us[snapshot.instance] = snapshot.time
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
            one = StreamAccount()
            one.restore(totals)
            stream.account.add(one)
            stream.account.in_flight += one.in_flight
            stream.heard = max(stream.heard, time / _MICRO)
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
