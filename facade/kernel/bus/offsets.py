"""Positions of readers and ranges of counted offsets: comparisons and records, without I/O.

Theory of operation
-------------------
A reader keeps its own position. A worker writes it to `positions`, in the transaction with the results of the records
before it; a device server writes it in its snapshot, beside the totals. A reader without a position begins at the
beginning of the log. The offsets of a consumer group are written too, but are never trusted: an administrator can set
them, and they expire.

An offset is only meaningful together with its log. The name of a log is the topic's id, as a topic that is deleted and
created again begins at 0 again. A log that ends before a position was cut: other records get the offsets already
counted. It begins a new epoch, whose number follows the id: ``<id>#1``. So every range of offsets that a worker writes
names its epoch.

`compare` finds the differences between a position and a topic:

* The log begins after the position: a gap. Its records were removed before they were read.
* The log ends before the position, or the topic was created again: the log was cut. Reading continues at the end, or at
  the new beginning. The alarm `logCut` names partition and offsets, and totals begin a new epoch.

A worker writes the range [begin, end) of each transaction beside its results. The ranges of a partition join: each
begins at the end of the one before, also across end markers of transactions, which have offsets and are no records. So
`CountedOffsets` finds whether a new range continues the counted ranges, overlaps them (it is refused as a whole),
leaves a gap, or begins a new epoch.

Acknowledged records that a broker loses are protected by replication. If records are lost all the same, the totals show
it, and are not repaired.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec

from facade.kernel.bus.port import OffsetRange, Record, TopicPartition
from facade.kernel.clock import NEVER, Time
from facade.kernel.messages import WorkerPosition as WorkerPosition

POSITIONS = "positions"
"""Topic with the positions of the workers."""
ACCOUNTS = "accounts"
"""Topic with the accounts of the workers; its entries have the same offsets."""

_NO_ID = "?"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WorkerPosition).decode


# Logs


def id_of(log: str) -> str:
    """Return the topic's id; empty text: not known."""
    return log.partition("#")[0].replace(_NO_ID, "")


def is_other(one: str, other: str) -> bool:
    """Return whether two ids are of different topics; an unknown id is no difference."""
    return bool(one and other) and one != other


def is_log_of(log: str, topic_id: str) -> bool:
    """Return whether a log belongs to the topic with an id; an unknown id is no difference."""
    return not is_other(id_of(log), topic_id)


def _epoch(log: str) -> int:
    number = log.partition("#")[2]
    return int(number) if number.isdecimal() else 0


def _log(topic_id: str, epoch: int = 0) -> str:
    return (topic_id or _NO_ID) + (f"#{epoch}" if epoch else "")


# Differences between a range and the ranges counted before it


class Overlap(NamedTuple):
    """A range that is refused, as it begins before the end of the counted ranges."""

    expected: int
    """The first uncounted offset."""

    def __str__(self) -> str:
        """Return a text to follow the offsets of the range."""
        return f"expected offset {self.expected} or later, as those before are counted; it was refused"


class Gap(NamedTuple):
    """Offsets [first, after) that no range covers."""

    first: int
    after: int

    @property
    def records(self) -> int:
        """Return the largest possible number of missing records."""
        return self.after - self.first

    def __str__(self) -> str:
        """Return a text to follow topic and partition."""
        return f"offsets {self.first} to {self.after - 1} were not taken: up to {self.records} records are missing"


class LogCut(NamedTuple):
    """A range of another log: the log before was cut, or its topic created again."""

    expected: int
    """Begin of the next range of the former log, had it continued."""
    begin: int
    """The offset at which the new epoch begins."""
    made_again: bool = False

    def __str__(self) -> str:
        """Return a text to follow topic and partition."""
        cause = "the topic was deleted and made again" if self.made_again else "the log was cut"
        return (
            f"{cause}: expected offset {self.expected} next, it goes on at {self.begin}; a new epoch of totals begins"
            " there, as other records have offsets that are counted, and may be in no total"
        )


# A position beside the topic as it is now


@dataclass(frozen=True, slots=True)
class Extent:
    """A topic at the brokers."""

    id: str
    """Empty text: the brokers give no ids."""
    ranges: Mapping[int, tuple[int, int]]
    """First offset on the log, and the offset after the newest, by partition."""


class PartitionReplicas(NamedTuple):
    """The brokers of a partition, by their numbers."""

    leader: int
    """Negative: the partition cannot be read or written."""
    all: frozenset[int]
    in_sync: frozenset[int]
    """Replicas that have all confirmed records."""


class TopicShape(NamedTuple):
    """Id, size and brokers of a topic."""

    id: str
    """Empty text: the brokers give no ids."""
    partitions: int
    replicas: tuple[PartitionReplicas, ...] = ()
    """One for each partition; empty: not known."""
    brokers: frozenset[str] = frozenset()
    """Living brokers with its replicas, each as host:port."""


class TopicWatch(Protocol):
    """Requests offsets and ids of topics for a reader with its own positions."""

    def extents(self, topics: Iterable[str]) -> Mapping[str, Extent]:
        """Return first and last offsets of the topics that exist and may be seen, by name.

        Raises
        ------
        BusError
            The broker does not answer.
        """

    def step(self, topics: Iterable[str]) -> Mapping[str, TopicShape]:
        """Return the answers of the brokers about some topics since the last call.

        It sends requests at intervals, and never waits.
        """


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a reader, as it stored it."""

    topic_id: str
    """Empty text: not known."""
    offsets: Mapping[int, int]
    """The next offset to read, by partition; a partition that is missing was never read."""


class Verdict(Enum):
    """A difference between a position and the topic."""

    GAP = "records went before they were read"
    CUT = "the log ends before the position"
    MADE_AGAIN = "the topic was deleted and made again"
    NO_PARTITION = "the partition does not exist"


@dataclass(frozen=True, slots=True)
class Placement:
    """A difference between a position and the topic, and its offsets [first, after).

    For a log cut, `first` is the offset at which reading continues, and `after` the position.
    """

    verdict: Verdict
    partition: int
    first: int
    after: int

    @property
    def is_log_cut(self) -> bool:
        """Return whether other records have, or get, counted offsets."""
        return self.verdict in (Verdict.CUT, Verdict.MADE_AGAIN)

    @property
    def count(self) -> int:
        """Return the largest possible number of records concerned."""
        return self.after - self.first

    def describe(self, topic: str) -> str:
        """Return a text for operators."""
        where = f"{topic}, partition {self.partition}"
        match self.verdict:
            case Verdict.GAP:
                return (
                    f"{where}: offsets {self.first} to {self.after - 1} were removed before they were read: up to"
                    f" {self.count} records are lost here"
                )
            case Verdict.CUT | Verdict.MADE_AGAIN:
                return f"{where}: {LogCut(self.after, self.first, self.verdict is Verdict.MADE_AGAIN)}"
            case Verdict.NO_PARTITION:
                return f"{where}: expected it to exist, as {self.after} is noted as its next offset; it does not"


def compare(position: Position, now: Extent) -> tuple[dict[int, int], list[Placement]]:
    """Return the offsets to continue from, by partition, and the differences.

    The start is always on the log: a difference is reported, and never makes a reader wait for records or skip them.

    Returns
    -------
    dict of int to int
        The offset to begin at, for each partition of the topic.
    list of Placement
        Empty: the position holds.
    """
    found, offsets = list[Placement](), position.offsets
    if is_other(position.topic_id, now.id):
        begins = {one: now.ranges.get(one, (0, 0))[0] for one in sorted(offsets)}
        found = [Placement(Verdict.MADE_AGAIN, one, at, offsets[one]) for one, at in begins.items() if offsets[one] > 0]
        offsets = {}
    found += [
        Placement(Verdict.NO_PARTITION, partition, 0, at)
        for partition, at in sorted(offsets.items())
        if partition not in now.ranges
    ]
    start = {}
    for partition, (first, end) in sorted(now.ranges.items()):
        at = offsets.get(partition, 0)
        start[partition] = max(min(at, end), first)
        if at < first:
            found.append(Placement(Verdict.GAP, partition, at, first))
        if at > end:
            found.append(Placement(Verdict.CUT, partition, end, at))
    moved = {one for one, at in position.offsets.items() if at > 0 and start.get(one, 0) != at}
    silent = moved - {one.partition for one in found}
    assert not silent, f"partitions {silent} go on elsewhere than at {dict(position.offsets)}, without a finding"
    return start, found


# The position of a worker, beside its group's and the log


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The brokers' answers about a partition and about the offset of a group on it."""

    topic_id: str
    """Empty text: the brokers give no ids."""
    first: int
    """First offset on the log."""
    end: int
    """Offset after the newest record."""
    group: int = -1
    """Offset that the group has committed; -1: none."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Offsets to continue from, and a note for operators."""

    log: str
    """See `facade.kernel.bus.port.OffsetRange`."""
    offset: int
    note: str = ""
    """Empty text: position, group and log agree."""


def begin(place: TopicPartition, own: WorkerPosition | None, facts: PartitionFacts) -> Beginning:
    """Compare a worker's own position with the log, which a worker without one has read up to offset 0.

    The group's offset only makes a note: anybody with the right to the group can set it.
    """
    topic, partition = place
    known, at = ("", 0) if own is None else (id_of(own.log), own.next)
    now = Extent(facts.topic_id, {partition: (facts.first, facts.end)})
    start, findings = compare(Position(known, {partition: at}), now)
    is_new = own is None or is_other(known, facts.topic_id)
    epoch = 0 if own is None or is_new else _epoch(own.log) + any(one.is_log_cut for one in findings)
    note = "; ".join(finding.describe(topic) for finding in findings)
    if not findings and facts.group != at and not (is_new and facts.group < 0):
        says = "has no position" if facts.group < 0 else f"says {facts.group}"
        goes_on = f"goes on from its own position {at}" if own else "has no position of its own and begins at 0"
        note = f"{topic}, partition {partition}: the group {says}; the worker {goes_on}"
    return Beginning(_log(facts.topic_id or known, epoch), start[partition], note)


def newest(records: Iterable[Record], group: str) -> tuple[dict[TopicPartition, WorkerPosition], list[str]]:
    """Return the newest usable position of a group on each partition, and the faults of the others."""
    found: dict[TopicPartition, WorkerPosition] = {}
    troubles: list[str] = []
    for record in records:
        if (
            record.topic != POSITIONS
            or record.key is None
            or record.value is None
            or not record.key.startswith(f"{group}/".encode())
        ):
            continue
        try:
            one = _decode(record.value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            troubles.append(f"position at offset {record.offset} is not usable: {error}")
            continue
        if record.key == _key(one):
            found[one.topic, one.partition] = one
        else:
            troubles.append(f"position at offset {record.offset} is not usable: its key is not {_key(one).decode()}")
    return found, troubles


def position_record(position: WorkerPosition) -> Record:
    """Return the record of a position; its key replaces the previous position."""
    return Record(topic=POSITIONS, key=_key(position), value=_encode(position))


def _key(position: WorkerPosition) -> bytes:
    return f"{position.group}/{position.topic}/{position.partition}".encode()


@dataclass(slots=True)
class _OpenRange:
    """The range of one partition in the open transaction."""

    range: OffsetRange
    group: int
    """Offset that the group has committed."""
    own: tuple[str, int] | None
    """Log and offset of the worker's newest position."""

    @property
    def has_moved(self) -> bool:
        return self.own != (self.range.log, self.range.end)


class PartitionPositions:
    """The positions of one worker on its partitions, within its open transaction.

    Parameters
    ----------
    group
        Consumer group, without the deployment's prefix.
    """

    def __init__(self, group: str, worker: str) -> None:
        self._group, self._worker = group, worker
        self._open: dict[TopicPartition, _OpenRange] = {}

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """Return the ranges of the open transaction, for each partition of the worker."""
        return {place: one.range for place, one in self._open.items()}

    def begin(
        self, own: Mapping[TopicPartition, WorkerPosition], facts: Mapping[TopicPartition, PartitionFacts]
    ) -> list[str]:
        """Begin on new partitions, or again after a failed transaction; return notes for operators."""
        self._open = {}
        for place, now in facts.items():
            mine = own.get(place)
            start = begin(place, mine, now)
            assert start.offset >= now.first, f"{place}: begins at {start.offset}, before the log at {now.first}"
            written = None if mine is None else (mine.log, mine.next)
            begins = OffsetRange(start.log, start.offset, start.offset, note=start.note)
            self._open[place] = _OpenRange(begins, now.group, written)
        return [one.range.note for one in self._open.values() if one.range.note]

    def is_of(self, topic: str, topic_id: str) -> bool:
        """Return whether a topic still has the logs of the open ranges."""
        return all(is_log_of(one.range.log, topic_id) for place, one in self._open.items() if place[0] == topic)

    def forget(self) -> None:
        """Drop all partitions: they were revoked, or the transaction failed."""
        self._open = {}

    def end(self, place: TopicPartition) -> int:
        """Return the offset after the consumed records."""
        return self._open[place].range.end

    def take(self, place: TopicPartition, after: int, appended: Time = NEVER) -> None:
        """Note the offset after the consumed records, and the append time of the last one."""
        taken = self._open[place].range
        assert after > taken.end, f"{place}: records up to offset {after} are taken twice, the next is {taken.end}"
        taken.end, taken.read_to = after, max(taken.read_to, appended)

    def reach(self, place: TopicPartition, offset: int) -> None:
        """Note that no record is left before an offset: end markers and aborted records are never delivered."""
        if (found := self._open.get(place)) is not None:
            found.range.end = max(found.range.end, offset)

    def is_read(self, place: TopicPartition, time: Time) -> None:
        """Note that everything appended before a time is consumed."""
        taken = self._open[place].range
        taken.read_to = max(taken.read_to, time)

    def records(self) -> list[Record]:
        """Return the positions to write in the transaction."""
        for place, one in self._open.items():
            is_back = one.own is not None and one.own[0] == one.range.log and one.own[1] > one.range.end
            assert not is_back, f"{place}: the position {one.own} would go back to {one.range.end}"
        return [
            position_record(
                WorkerPosition(
                    group=self._group,
                    topic=topic,
                    partition=partition,
                    log=one.range.log,
                    next=one.range.end,
                    worker=self._worker,
                )
            )
            for (topic, partition), one in self._open.items()
            if one.has_moved
        ]

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets for the group to commit in the transaction.

        A partition that has moved is among them also if the group was set to the same offset: with offsets, the group
        refuses a worker that has lost its partitions, and the next one waits for this transaction.
        """
        moved = {place: one for place, one in self._open.items() if one.has_moved or one.group != one.range.end}
        return {place: one.range.end for place, one in moved.items()}

    def committed(self) -> None:
        """Begin the next transaction at the end of this one."""
        for place, one in self._open.items():
            done = one.range
            assert done.begin <= done.end, f"{place}: a transaction of offsets {done.begin} to {done.end} goes back"
            one.group, one.own = done.end, (done.log, done.end)
            one.range = OffsetRange(done.log, done.end, done.end, read_to=done.read_to)


# Ranges that are counted


class CountedOffsets(msgspec.Struct):
    """The counted offsets of one partition, or of one part of its records."""

    log: str = ""
    """Empty text: unknown; any log may follow."""
    begin: int = 0
    """First counted offset of the epoch."""
    end: int = 0
    """Offset after the last counted one."""
    part: int = 0
    """Number of the newest part of the newest range, for ranges written in parts."""
    epoch: int = 1
    """Rises each time that the log was cut, or its topic created again."""

    def take(
        self, log: str, begin: int, end: int, part: int = 0, *, counts: bool = True
    ) -> Overlap | Gap | LogCut | None:
        """Count a range, unless it overlaps the counted ranges.

        `counts`: False for a range without results, which is not refused.
        """
        found: Gap | LogCut | None = None
        if self._is_cut(log):
            found = LogCut(self.end, begin, made_again=id_of(self.log) != id_of(log))
            self.epoch, self.begin, self.end = self.epoch + 1, begin, begin
        elif begin < self.end:
            is_next_part = end == self.end and part > self.part
            if counts and not is_next_part:
                return Overlap(self.end)
        elif begin > self.end:
            found = Gap(self.end, begin)
        self.log, self.end, self.part = log, max(self.end, end), part
        assert self.begin <= self.end, f"{log}: counted up to {self.end}, before the begin at {self.begin}"
        return found

    def _is_cut(self, log: str) -> bool:
        if not self.log:
            return False
        if is_other(id_of(self.log), id_of(log)):
            return self.end > 0  # a log without counted offsets loses nothing, see `compare`
        return _epoch(self.log) != _epoch(log)
