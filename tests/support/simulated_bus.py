"""The simulation's model of the brokers, for tests of one thread: what a client waits for is served at once.

The test is the only task. The brokers' own time moves while a client waits, and costs nothing; the clock that the code
under test reads is the test's, and only the test moves it. There are no faults but those that a test makes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import cache
from heapq import heappop
from typing import Any

from greenlet import getcurrent

from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.group import KafkaGroupMember
from facade.kernel.bus.kafka.reader import KafkaReader
from facade.kernel.bus.kafka.transactional_member import KafkaTransactionalMember
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.port import Aborted, BusHealth, PartitionBatch, Record
from facade.kernel.clock import Clock
from facade.kernel.config import Settings
from facade.kernel.errors import BusError, FacadeError, NotSent, OutcomeUnknown
from facade.kernel.icd.load import load
from tests.simulation.broker import Broker, Place
from tests.simulation.clients import clients
from tests.simulation.groups import Groups
from tests.simulation.logs import Entry
from tests.simulation.network import Network
from tests.simulation.scheduler import Process, Scheduler, Task

_ROUND_TRIP = 0.01
"""Longer than the model's requests and answers take [s]."""
_LONGEST_JUMP = 120.0
"""Where a test's clock jumps further, all that was due earlier happens this long before the end of the jump [s]."""
_PATIENCE = 0.05
"""How long a client waits for records, by the brokers' time [s]."""


class Inline(Scheduler):
    """Serves what the one task of a test waits for before it goes on."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(0)
        self._clock, self._began = clock, clock.monotonic()
        self.process = Process(self, "test", clock)  # type: ignore[arg-type]
        self.current = self._test = Task(self.process, getcurrent())

    def pause(self, until: float | None) -> None:
        """Let the brokers' time pass up to some moment [s], or until the test is woken."""
        test = self._test
        test.turn += 1
        waits = test.turn
        if until is not None:
            self.at(max(until - self.now, 0.0), self._resume, test, waits)
        while test.turn == waits:
            assert self._events, "the test waits for what never comes"
            self._next()

    def settle(self, seconds: float = _ROUND_TRIP) -> None:
        """Let happen what is under way, and what is due by the test's clock."""
        until = max(self.now + seconds, self._clock.monotonic() - self._began)
        self.now = max(self.now, until - _LONGEST_JUMP)
        while self._events and self._events[0][0] <= until:
            self._next()

    def _next(self) -> None:
        at, _, call, args = heappop(self._events)
        self.now, self.current = max(self.now, at), None
        call(*args)
        self.current = self._test

    def _resume(self, task: Task, turn: int) -> None:
        if task.turn == turn:
            task.turn += 1


class _Model(Broker):
    """Gives records the time of the test's clock."""

    clock: Clock

    def now_us(self) -> int:
        return self.clock.now_us()


class MemoryBroker:
    """Topics on the model of the brokers, with what a test does to them by hand.

    Parameters
    ----------
    partitions
        Number of partitions by topic; by default those of the shipped interface.
    """

    def __init__(self, clock: Clock, partitions: Mapping[str, int] | None = None) -> None:
        self.clock, self.scheduler = clock, Inline(clock)
        self.model = _Model(self.scheduler, {}, "", lambda *_: None)
        self.model.clock = clock
        for name, count in (_shipped() if partitions is None else partitions).items():
            self.model.create(name, count, _limits().get(name, {}))
        self.groups = Groups(self.scheduler, self.model, lambda *_: None)
        self.members: dict[tuple[str, str], MemoryMember] = {}
        """The newest member of each name, by group and name."""
        self.network = Network(self.scheduler, lambda *_: None)

    @property
    def partitions(self) -> dict[str, int]:
        return {name: len(topic.partitions) for name, topic in self.model.topics.items()}

    @property
    def logs(self) -> dict[Place, list[Record]]:
        """Return all that is on the topics, by topic and partition; of transactions what is committed."""
        self.scheduler.settle()
        return {
            (topic, one.number): [
                _record(topic, one.number, entry) for entry in one.read(0, 1 << 60, committed=True)[0]
            ]
            for topic, known in self.model.topics.items()
            for one in known.partitions
        }

    def connection(self) -> Connection:
        made = clients(self.scheduler.process, self.model, self.groups, self.network)
        return Connection(Settings(prefix=""), clock=self.clock, clients=made)

    def append(self, record: Record) -> None:
        """Write a record to the partition that it names, or to the one of its key."""
        self.scheduler.settle()
        if record.topic not in self.model.topics:
            raise BusError(f"topic {record.topic} does not exist")
        number = record.partition if record.partition >= 0 else self.model.place_of(record.topic, record.key)
        partition = self._partition(record.topic, number)
        now_us = record.timestamp_us or self.model.now_us()
        partition.append(now_us, record.key, record.value, record.headers, None)
        self.model.tell(record.topic)

    def read(self, topic: str) -> list[Record]:
        self.scheduler.settle()
        return [
            _record(topic, one.number, entry)
            for one in self.model.topics[topic].partitions
            for entry in one.read(0, 1 << 60, committed=True)[0]
        ]

    def read_from(self, topic: str, partition: int, offset: int) -> list[Record]:
        """Return what is committed on a partition from an offset on."""
        self.scheduler.settle()
        entries, _ = self._partition(topic, partition).read(offset, 1 << 60, committed=True)
        return [_record(topic, partition, entry) for entry in entries]

    def end(self, topic: str, partition: int) -> int:
        self.scheduler.settle()
        return self._partition(topic, partition).end

    def remove(self, topic: str, partition: int, before: int) -> None:
        """Remove the records before an offset, as retention does, and an administrator."""
        self.scheduler.settle()
        log = self._partition(topic, partition)
        while log.end < before:
            log.append(self.model.now_us(), None, None, (), None)
        log.remove(before)

    def cut(self, topic: str, partition: int, end: int) -> None:
        """Lose the records from an offset on, as a broker may that is stopped uncleanly."""
        self.scheduler.settle()
        self._partition(topic, partition).cut(end)

    def make_again(self, topic: str) -> None:
        """Delete a topic and make it again; the groups keep their offsets."""
        self.scheduler.settle()
        committed = {group: dict(offsets) for group, offsets in self.model.committed.items()}
        self.model.make_again(topic)
        self.model.committed.update(committed)

    def share(self, shares: "Mapping[MemoryMember, Iterable[int]]") -> None:
        """Play the coordinator of a group: all members get their partitions at once, with their next `take`."""
        (group,) = {member._group for member in shares}
        given = {member._name: [(member._topic, one) for one in sorted(places)] for member, places in shares.items()}
        self.groups.give(group, given)
        self.scheduler.settle()

    @property
    def committed(self) -> "_Committed":
        """Return what groups have committed, by group, topic and partition; a test may change it."""
        self.scheduler.settle()
        return _Committed(self.model.committed)

    def _partition(self, topic: str, number: int) -> Any:
        return self.model.topics[topic].partitions[number]


class _Committed(MutableMapping[tuple[str, str, int], int]):
    def __init__(self, of: dict[str, dict[Place, int]]) -> None:
        self._of = of

    def __getitem__(self, key: tuple[str, str, int]) -> int:
        return self._of[key[0]][key[1:]]

    def __setitem__(self, key: tuple[str, str, int], offset: int) -> None:
        self._of.setdefault(key[0], {})[key[1:]] = offset

    def __delitem__(self, key: tuple[str, str, int]) -> None:
        del self._of[key[0]][key[1:]]

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        return iter([(group, *place) for group, offsets in self._of.items() for place in offsets])

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))


@cache
def _shipped() -> dict[str, int]:
    return {name: topic.partitions for name, topic in load().topics.items()}


@cache
def _limits() -> dict[str, dict[str, str]]:
    """Return the settings of the ICD's topics that the model knows."""
    return {
        name: {"cleanup.policy": topic.cleanup, "max.message.bytes": str(topic.max_bytes)}
        for name, topic in load().topics.items()
    }


def _record(topic: str, partition: int, entry: Entry) -> Record:
    return Record(
        topic=topic,
        key=entry.key,
        value=entry.value,
        headers=tuple(entry.headers or ()),
        partition=partition,
        offset=entry.offset,
        timestamp_us=entry.time_us,
    )


class MemoryReader(KafkaReader):
    """Reads at once what there is."""

    bus: "MemoryBus"

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records; when there are none, wait by the test's clock if the bus was made to."""
        records = super().take(limit, _PATIENCE)
        if not records and self.bus.waits:
            self._connection.clock.sleep(timeout)
        return records


class MemoryBus(KafkaBus):
    """The bus of one device server, its writer included; see `facade.kernel.runtime.event_loop.Bus`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        super().__init__(broker.connection(), client="test")
        self.health.connected = True
        self._lost: Counter[str] = Counter()
        """Records that no broker was there to take, by topic."""
        self.refused: Sequence[str] = ()
        """Topics to which nothing can be written, as too few replicas are in sync, while all is read."""
        self.deaf = False
        """Set to play a broker that a command does not reach, without its sender learning of it."""
        self.mute = False
        """Set to play a broker that takes a command, and whose confirmation does not arrive."""
        self.waits = False
        """Set to let readers wait for records, by the clock; otherwise only the test moves it."""

    @property
    def away(self) -> bool:
        return self._broker.network.is_down

    @away.setter
    def away(self, away: bool) -> None:
        network = self._broker.network
        if away and not network.is_down:
            network.go_down(1e9)
        elif network.is_down and not away:
            network.come_up()

    def open_reader(self, topics: Any, start: Any, **options: Any) -> MemoryReader:
        """Read some partitions of topics from given offsets on."""
        reset = options.pop("resets", True)
        options.pop("together", None)
        reader = MemoryReader(self._connection, topics, start=start, health=self.health, resets=reset, **options)
        reader.bus = self
        return reader

    def send(self, record: Record) -> None:
        """Write a record; a failure is counted."""
        if self.away or record.topic in self.refused:
            self._lost[record.topic] += 1
            return
        self._writer.send(record)
        self._serve()

    def post(self, records: Sequence[Record]) -> Any:
        """Write records; without a broker a wait for their receipt would not end, as the test's clock stands still."""
        self._require()
        return self._writer.post(records)

    def send_durably(self, record: Record, timeout: float) -> None:
        self.send_all_durably([record], timeout)

    def send_all_durably(self, records: Sequence[Record], timeout: float) -> None:
        self.post(records).wait(timeout)

    def _require(self) -> None:
        if self.away:
            raise BusError("no broker answers")

    def settled(self, mark: int) -> bool:
        """Return whether the fate of everything before a mark is known."""
        self._serve()
        return not self.away and self._writer.settled(mark)

    def failures(self, topic: str) -> int:
        """Count the records for a topic that the broker did not take."""
        self._serve()
        return self._writer.failures(topic) + self._lost[topic]

    def _serve(self) -> None:
        self._broker.scheduler.settle()
        self._writer.poll()

    def writer(self) -> Any:
        """Return the writer: the bus itself, so that a test may put something of its own in its place."""
        return self

    def sender(self) -> "MemorySender":
        return MemorySender(self._broker, self)

    def open_writer(self, purpose: str) -> Any:
        return self

    def replica_watch(self) -> Any:
        return self.watch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_writer"], name)


class MemoryTransactionalLog(KafkaTransactionalLog):
    """One member of a group; see `facade.kernel.bus.port.TransactionalLog`.

    Parameters
    ----------
    fault
        Called before each commit; what it raises is what the commit raises.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        *topics: str,
        group: str,
        fault: Callable[[], None] = lambda: None,
        broker_time: Callable[[], int] | None = None,
    ) -> None:
        self._fault = fault
        about: dict[str, Any] = {"group": group, "slot": "memory", "health": BusHealth(), "broker_time": broker_time}
        super().__init__(broker.connection(), *topics, **about)

    def take(self, limit: int, timeout: float) -> Sequence[PartitionBatch]:
        """Return the next records, once the group has given partitions and it is known where to go on."""
        for _ in range(100):
            runs = super().take(limit, _PATIENCE)
            if runs or not (self._must_rewind or not self._assigned):
                return runs
        raise AssertionError("the group gave no partitions")

    def commit(self, records: Iterable[Record]) -> None:
        try:
            self._fault()
        except Aborted:
            self._must_rewind = True
            raise
        super().commit(records)


class MemoryMember(KafkaGroupMember):
    """A member of a group, with all partitions until told otherwise; it ends the one before, as kill -9 does."""

    def __init__(self, broker: MemoryBroker, topic: str, *, group: str, slot: str = "0", **options: Any) -> None:
        self._broker, self._group, self._name = broker, group, f"{group}-{slot}"
        if (former := broker.members.get((group, self._name))) is not None:
            former._consumer._leave()  # type: ignore[attr-defined]
        broker.members[group, self._name] = self
        options |= {"slot": slot} if isinstance(self, KafkaTransactionalMember) else {}
        super().__init__(broker.connection(), topic, group=group, member=self._name, health=BusHealth(), **options)
        broker.scheduler.settle()
        self.assign(range(broker.partitions[topic]))

    def assign(self, partitions: Iterable[int]) -> None:
        """Play the group's coordinator; takes effect with the next `take`. Another member gets the rest."""
        chosen = set(partitions)
        others = [
            one for (group, name), one in self._broker.members.items() if group == self._group and one is not self
        ]
        rest = set(range(self._broker.partitions[self._topic])) - chosen
        self._broker.share({self: chosen, **dict(zip(others, (rest, *({} for _ in others)), strict=False))})

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records; never waits, so that only the test moves its clock."""
        self._broker.scheduler.settle()
        return super().take(limit, 0.0)

    def hear(self) -> None:
        """Hear of partitions that were given and taken, and take no record."""
        self._broker.scheduler.settle()
        self._consumer.consume(0, 0.0)
        self.assignment = dict(self._partitions)


class MemoryTransactionalMember(MemoryMember, KafkaTransactionalMember):
    """The same; what it writes and its places are one transaction."""


class Answer:
    """What the bus says of a record; see `facade.kernel.bus.port.Sending`."""

    def __init__(self, error: FacadeError | None = None, before: Callable[[], object] = lambda: None) -> None:
        self._error, self._before = error, before

    def result(self) -> None:
        self._before()
        if self._error is not None:
            raise self._error


class MemorySender:
    """Puts single commands on the log; see `facade.kernel.bus.port.CommandSender`."""

    def __init__(self, broker: MemoryBroker, bus: MemoryBus) -> None:
        self._broker, self._bus = broker, bus

    def send(self, record: Record, timeout: float) -> Answer:
        if self._bus.away:
            return Answer(NotSent("the broker in memory plays dead"))
        if self._bus.deaf:
            return Answer(OutcomeUnknown("the broker in memory plays deaf"))
        self._broker.append(record)
        return Answer(OutcomeUnknown("the broker in memory plays mute") if self._bus.mute else None)

    def post(self, record: Record) -> None:
        """Write a record; a failure is counted."""
        self._bus.send(record)

    def perform(self) -> None:
        pass

    def end(self) -> None:
        pass

    def close(self, timeout: float) -> None:
        pass
