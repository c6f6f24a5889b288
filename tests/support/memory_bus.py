"""A log in memory: the whole port without a broker, for fast tests and for trying things out.

It keeps Kafka's promises as far as the port needs them: order within a partition, transactions
that happen as a whole, positions that survive the reader. It has no durability and no network.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from facade.bus.port import Aborted, BusHealth, Record, Run, Span
from facade.bus.positions import Extent, TopicShape
from facade.bus.standings import Standings
from facade.bus.worker_positions import ACCOUNTS, POSITIONS, Ground, Place, accounted, furthest, newest
from facade.clock import Clock
from facade.errors import BusError, NotSent, OutcomeUnknown


@dataclass(slots=True)
class MemoryBroker:
    """Partitions and committed offsets."""

    clock: Clock
    partitions: Mapping[str, int]
    """Number of partitions by topic."""
    logs: dict[tuple[str, int], list[Record]] = field(default_factory=dict)
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Offsets by group, topic and partition."""
    ids: dict[str, str] = field(default_factory=dict)
    """Of topics that were made again; any other has its name as its id."""
    first: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where the log of a partition begins, if not at 0."""
    cuts: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """Where the log of a partition was cut, each time."""

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics that exist."""
        return {topic: self.ids.get(topic, topic) for topic in topics if topic in self.partitions}

    def make_again(self, topic: str) -> None:
        """Delete a topic and make it again: empty, with another id; the groups keep their offsets."""
        self.ids[topic] = f"{self.ids.get(topic, topic)}'"
        for place in [place for place in self.logs if place[0] == topic]:
            del self.logs[place]
            self.first.pop(place, None)
            self.cuts.pop(place, None)

    def end(self, topic: str, partition: int) -> int:
        """Return the offset after the newest record."""
        return max(len(self.logs.get((topic, partition), ())), self.first.get((topic, partition), 0))

    def remove(self, topic: str, partition: int, before: int) -> None:
        """Remove the records before an offset, as retention does, and an admin."""
        self.first[topic, partition] = before

    def cut(self, topic: str, partition: int, end: int) -> None:
        """Lose the records from an offset on, as a broker may that is stopped uncleanly."""
        del self.logs[topic, partition][end:]
        self.cuts.setdefault((topic, partition), []).append(end)

    def kept(self, place: tuple[str, int], at: int, epoch: int) -> int:
        """Return up to where a log still has what was read; the leader epoch is how often it had been cut by then."""
        return min([at, *self.cuts.get(place, ())[epoch:]])

    def append(self, record: Record) -> None:
        """Write a record to the partition it names, or to the one of its key."""
        if record.topic not in self.partitions:
            raise BusError(f"topic {record.topic} does not exist")
        count = self.partitions[record.topic]
        partition = record.partition if record.partition >= 0 else sum(record.key or b"") % count
        log = self.logs.setdefault((record.topic, partition), [])
        now_us = record.timestamp_us or round(self.clock.now() * 1e6)
        offset = len(log)
        log.append(replace(record, partition=partition, offset=offset, timestamp_us=now_us))

    def read(self, topic: str) -> list[Record]:
        """Return everything on a topic, partition by partition."""
        places = [(topic, partition) for partition in range(self.partitions[topic])]
        return [r for place in places for r in self.logs.get(place, [])[self.first.get(place, 0) :]]


@dataclass(frozen=True, slots=True)
class MemoryRun:
    """Consecutive records of one partition; see `facade.bus.port.Run`."""

    records: Sequence[Record]
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    appended: tuple[int, int]
    high_watermark: int

    def values(self) -> list[bytes | None]:
        """Return the values in order."""
        return [record.value for record in self.records]

    def append_time(self, index: int) -> int:
        """Return the timestamp of one record [Unix us]."""
        return self.records[index].timestamp_us

    def record(self, index: int) -> Record:
        """Return one record whole."""
        return self.records[index]


class MemoryTransactionalLog:
    """One member of a group, with all partitions; see `facade.bus.port.TransactionalLog`.

    Parameters
    ----------
    fault
        Called before each commit; what it raises is what the commit raises.
    """

    def __init__(
        self, broker: MemoryBroker, *topics: str, group: str, fault: Callable[[], None] = lambda: None
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._group = group
        self._fault = fault
        self._standings = Standings(group, "memory")
        self._rewind()

    def take(self, limit: int, timeout: float) -> Sequence[Run]:
        """Return the next records; never waits, so that only the test moves its clock."""
        runs: list[Run] = []
        if self.must_commit:
            return runs
        for place, span in self._standings.spans.items():
            log = self._broker.logs.get(place, [])
            records = log[span.end : int(min(span.end + limit, self._standings.stop(place)))]
            if records:
                limit -= len(records)
                # The leader epoch is how often the log was cut.
                self._standings.take(place, span.end + len(records), len(self._broker.cuts.get(place, ())))
                times = (records[0].timestamp_us, records[-1].timestamp_us)
                first, last = records[0].offset, records[-1].offset
                runs.append(MemoryRun(records, *place, first, last, times, len(log)))
        return runs

    @property
    def must_commit(self) -> bool:
        """Return whether the open transaction is to end here."""
        return self._standings.is_at_stop

    def spans(self) -> Mapping[Place, Span]:
        """Return what the open transaction covers."""
        found = self._standings.spans
        for place, span in found.items():
            span.high_watermark = len(self._broker.logs.get(place, ()))
        return found

    def commit(self, records: Iterable[Record]) -> None:
        """Write and commit, or neither."""
        try:
            self._fault()
        except Aborted:
            self._rewind()
            raise
        for record in (*records, *self._standings.records()):
            self._broker.append(record)
        self._broker.committed |= {(self._group, *place): at for place, at in self._standings.offsets().items()}
        self._standings.committed()

    def close(self) -> None:
        """Leave without committing."""

    def _rewind(self) -> None:
        broker = self._broker
        ids = broker.topic_ids(self._topics)
        grounds = {
            place: Ground(
                ids[topic], broker.first.get(place, 0), broker.end(*place),
                broker.committed.get((self._group, *place), -1),
            )
            for topic in self._topics
            for place in ((topic, partition) for partition in range(broker.partitions[topic]))
        }  # fmt: skip
        own, _ = newest(broker.read(POSITIONS), self._group)
        known = accounted(broker.read(ACCOUNTS), self._group, grounds)
        own, counted = self._standings.counted(own, known, grounds)
        for place, at in furthest(own, counted, grounds).items():
            if at.leader_epoch >= 0:
                kept = broker.kept(place, at.next, at.leader_epoch)
                grounds[place] = replace(grounds[place], end=min(grounds[place].end, kept))
        self._standings.begin(own, grounds, counted)


class MemoryGroupMember:
    """A member of a group, with all partitions until told otherwise; see `facade.bus.port.GroupMember`."""

    def __init__(self, broker: MemoryBroker, topic: str, *, group: str, bus: "MemoryBus | None" = None) -> None:
        self._broker = broker
        self._bus = bus or MemoryBus(broker)
        """What takes the records of `write`."""
        self._topic = topic
        self._group = group
        self._positions: dict[int, int] = {}
        self._last: dict[int, tuple[int, int]] = {}
        """Offset after the last record, and how often the log had been cut by then, by partition."""
        self._changes = 0
        self.assignment: Mapping[int, int] = {}
        self._next: frozenset[int] | None = frozenset(range(broker.partitions[topic]))

    def assign(self, partitions: Iterable[int]) -> None:
        """Play the group's coordinator; takes effect with the next `take`."""
        self._next = frozenset(partitions)

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records; never waits, so that only the test moves its clock."""
        if self._next is not None:
            self._changes += 1
            self.assignment = {p: self.assignment.get(p, self._changes) for p in self._next}
            self._positions = {p: self._positions.get(p, self._committed(p)) for p in self._next}
            self._next = None
        records: list[Record] = []
        for partition, at in self._positions.items():
            place = (self._topic, partition)
            last, epoch = self._last.get(partition, (0, 0))
            is_cut = self._broker.kept(place, last, epoch) < last
            if is_cut or not self._broker.first.get(place, 0) <= at <= self._broker.end(*place):
                self._changes += 1
                self.assignment = {**self.assignment, partition: self._changes}
                continue
            found = self._broker.logs.get(place, [])[at : at + limit - len(records)]
            self._positions[partition] = at + len(found)
            if found:
                self._last[partition] = self._positions[partition], len(self._broker.cuts.get(place, ()))
            records += found
        return records

    def holds(self, partition: int, number: int) -> bool:
        """Return whether a partition is still the one that was given with a number."""
        return self.assignment.get(partition) == number

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit, for partitions that are assigned only."""
        if strange := set(offsets) - set(self.assignment):
            raise BusError(f"partitions {sorted(strange)} are not this member's")
        for partition, offset in offsets.items():
            self._broker.committed[self._group, self._topic, partition] = offset

    def write(self, records: Iterable[Record], offsets: Mapping[int, int]) -> None:
        """Write and commit, or neither: the group refuses who has lost a partition, if it has not heard of it yet."""
        if self._next is not None and not set(offsets) <= self._next:
            raise Aborted(f"partitions {sorted(set(offsets) - self._next)} are not this member's any more")
        try:
            self._bus.writer().send_all_durably(list(records), 0.0)
            self.commit(offsets)
        except BusError as error:
            raise Aborted(str(error)) from error

    def close(self) -> None:
        """Leave."""

    def committed(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return what the group has committed; -1: nothing."""
        known = self._broker.committed
        return {partition: known.get((self._group, self._topic, partition), -1) for partition in partitions}

    def leader_epoch(self, partition: int, offset: int) -> int:
        """Return how often the log had been cut when the last record was taken."""
        return self._last.get(partition, (0, -1))[1]

    def go_on(self, offsets: Mapping[int, int]) -> None:
        """Give partitions from other offsets on."""
        self._positions |= offsets
        for partition in offsets:
            self._last.pop(partition, None)

    def _committed(self, partition: int) -> int:
        return self._broker.committed.get((self._group, self._topic, partition), 0)


class MemoryReader:
    """Reads from given places on; see `facade.bus.port.Reader`."""

    def __init__(
        self,
        broker: MemoryBroker,
        topics: Mapping[str, Sequence[int] | None],
        start: Mapping[str, Mapping[int, int]],
        *,
        waits: bool = False,
    ) -> None:
        self._broker = broker
        self._waits = waits
        self.is_misplaced = False
        self._last: dict[tuple[str, int], tuple[int, int]] = {}
        self._next = {
            (topic, partition): start.get(topic, {}).get(partition, broker.first.get((topic, partition), 0))
            for topic, chosen in topics.items()
            for partition in (range(broker.partitions[topic]) if chosen is None else chosen)
        }

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records; when there are none, wait if it was made to."""
        records: list[Record] = []
        for place, at in self._next.items():
            last, epoch = self._last.get(place, (0, 0))
            is_cut = self._broker.kept(place, last, epoch) < last
            if is_cut or not self._broker.first.get(place, 0) <= at <= self._broker.end(*place):
                self.is_misplaced = True
                continue
            found = self._broker.logs.get(place, [])[at : at + limit - len(records)]
            self._next[place] = at + len(found)
            if found:
                self._last[place] = self._next[place], len(self._broker.cuts.get(place, ()))
            records += found
        if not records and self._waits:
            self._broker.clock.sleep(timeout)
        return records

    def last_read(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return the place behind the last record and its leader epoch; see `facade.bus.port.Reader`."""
        return {partition: last for (known, partition), last in self._last.items() if known == topic}

    def caught_up(self, topic: str) -> bool:
        """Return whether everything has been taken."""
        return self.lag(topic) == 0

    def lag(self, topic: str) -> int:
        """Count what is behind the last records taken of all partitions."""
        return sum(self.behind(topic).values())

    def behind(self, topic: str) -> dict[int, int]:
        """Count what is behind the last record taken, by partition."""
        return {one: self._broker.end(name, one) - at for (name, one), at in self._next.items() if name == topic}

    def reached(self, topic: str) -> dict[int, int]:
        """Return the next offset by partition."""
        return {partition: at for (known, partition), at in self._next.items() if known == topic}

    def close(self) -> None:
        """Stop reading."""


class MemoryBus:
    """The bus of one device server, its writer included; see `facade.runtime.event_loop.Bus`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.health = BusHealth(connected=True)
        self._failures: Counter[str] = Counter()
        self.away = False
        """Set to play a broker that does not answer."""
        self.deaf = False
        """Set to play a broker that a command does not reach, without its sender learning of it."""
        self.mute = False
        """Set to play a broker that takes a command, and whose confirmation does not arrive."""
        self.waits = False
        """Set to let readers wait for records, by the clock; otherwise only the test moves it."""

    def open_reader(
        self,
        topics: Mapping[str, Sequence[int] | None],
        start: Mapping[str, Mapping[int, int]],
        *,
        committed: bool = True,
        resets: bool = True,
    ) -> MemoryReader:
        """Read some partitions of topics from given offsets on."""
        self._require()
        return MemoryReader(self._broker, topics, start, waits=self.waits)

    def read_all(self, topic: str, *, settled: bool = False) -> list[Record]:
        """Return everything that is on a topic."""
        self._require()
        return self._broker.read(topic)

    def watch(self) -> "MemoryBus":
        """Return what looks at topics."""
        return self

    def extents(self, topics: Iterable[str]) -> dict[str, Extent]:
        """Return what is on topics; see `facade.bus.positions.TopicWatch`."""
        self._require()
        broker = self._broker
        return {
            topic: Extent(
                id,
                {p: (broker.first.get((topic, p), 0), broker.end(topic, p)) for p in range(broker.partitions[topic])},
            )
            for topic, id in broker.topic_ids(topics).items()
        }

    def kept(self, places: Mapping[tuple[str, int], tuple[int, int]]) -> dict[tuple[str, int], int]:
        """Return up to where logs still have what was read; see `facade.bus.positions.TopicWatch`."""
        return {place: self._broker.kept(place, *at) for place, at in places.items()}

    def step(self, topics: Iterable[str]) -> dict[str, TopicShape]:
        """Return what topics are now; see `facade.bus.positions.TopicWatch`."""
        if self.away:
            return {}
        return {
            topic: TopicShape(id, self._broker.partitions[topic])
            for topic, id in self._broker.topic_ids(topics).items()
        }

    def writer(self) -> "MemoryBus":
        """Return the writer."""
        return self

    def sender(self) -> "MemorySender":
        """Return what puts commands on the bus."""
        return MemorySender(self._broker, self)

    def send(self, record: Record) -> None:
        """Write a record; a failure is counted."""
        if self.away:
            self.health.failed_writes += 1
            self._failures[record.topic] += 1
        else:
            self._broker.append(record)

    def send_durably(self, record: Record, timeout: float) -> None:
        """Write a record."""
        self.send_all_durably([record], timeout)

    def send_all_durably(self, records: Sequence[Record], timeout: float) -> None:
        """Write records; BusError when the broker plays dead."""
        self.post(records).wait(timeout)

    def post(self, records: Sequence[Record]) -> "MemoryReceipt":
        """Write records at once; BusError when the broker plays dead."""
        self._require()
        for record in records:
            self._broker.append(record)
        return MemoryReceipt()

    def mark(self) -> int:
        """Return nothing of interest: nothing is queued."""
        return 0

    def settled(self, mark: int) -> bool:
        """Know everything, unless the broker plays dead."""
        return not self.away

    def failures(self, topic: str) -> int:
        """Count the records for a topic that the broker did not take."""
        return self._failures[topic]

    def close(self, timeout: float) -> None:
        """Have nothing queued."""

    def _require(self) -> None:
        if self.away:
            raise BusError("the broker in memory plays dead")


class MemoryReceipt:
    """Says of records that they are there."""

    confirmed = True

    def wait(self, timeout: float) -> None:
        """Have nothing to wait for."""


class MemorySender:
    """Puts single commands on the log; see `facade.flows.commands.gateway.Sender`."""

    def __init__(self, broker: MemoryBroker, bus: MemoryBus) -> None:
        self._broker = broker
        self._bus = bus or MemoryBus(broker)

    def send(self, record: Record, timeout: float) -> None:
        """Write a record."""
        if self._bus.away:
            raise NotSent("the broker in memory plays dead")
        if self._bus.deaf:
            raise OutcomeUnknown("the broker in memory plays deaf")
        self._broker.append(record)
        if self._bus.mute:
            raise OutcomeUnknown("the broker in memory plays mute")

    def post(self, record: Record) -> None:
        """Write a record; a failure is counted."""
        self._bus.send(record)

    def perform(self) -> None:
        """Have nothing to say."""

    def end(self) -> None:
        """Have nothing under way."""

    def close(self, timeout: float) -> None:
        """Have nothing queued."""
