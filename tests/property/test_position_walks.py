"""Any order of kills, lost ends of transactions, resets of the group, rebalances and topics made again.

Two worker slots copy records, in the client's real steps on the model of the brokers, and a reader counts the ranges of
offsets. Law: each record is counted once, or is named by offsets.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from facade.kernel.bus import offsets
from facade.kernel.bus.kafka import transactional_producer
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.kafka.transactional_producer import TransactionalProducer
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.offsets import (
    ACCOUNTS,
    POSITIONS,
    CountedOffsets,
    Gap,
    LogCut,
    Overlap,
    PartitionFacts,
    WorkerPosition,
)
from facade.kernel.bus.port import Aborted, BusHealth, Fenced, Record, Revoked
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from tests.simulation.broker import Broker, Transaction
from tests.simulation.clients import clients
from tests.simulation.groups import Groups
from tests.simulation.network import Network
from tests.simulation.scheduler import HostClock, Process, Scheduler
from tests.simulation.threads import simulated
from tests.support.examples import examples

SOURCE, RESULTS, GROUP = "source", "results", "group"
PARTITIONS = 2
SLOTS = ("0", "1")
Place = tuple[str, int, int]
"""Id of a topic, partition and offset."""
OUTPUTS = [(RESULTS, 0), (RESULTS, 1), (ACCOUNTS, 0), (POSITIONS, 0)]
REQUESTS = (
    "InitProducerId", "AddPartitionsToTxn", "Produce results/0", "Produce results/1", "Produce accounts/0",
    "Produce positions/0", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "OffsetFetch", "ListOffsets",
)  # fmt: skip
"""Requests at which a worker is killed, before and after they are carried out."""


class _Broker(Broker):
    """Notices a worker that is killed while it commits again what a broker kept open: its coordinator aborts both."""

    has_aborted_both = False
    _is_asked = False
    """Whether the producer itself ends its transaction."""

    def end_transaction(self, slot: str, epoch: int, *, committed: bool) -> int | None:
        self._is_asked = True
        try:
            return super().end_transaction(slot, epoch, committed=committed)
        finally:
            self._is_asked = False

    def end(self, slot: str, known: Transaction, *, committed: bool) -> None:
        if not committed and not self._is_asked:
            logs = [self.topics[name].partitions[number] for name, number in known.partitions if name in self.topics]
            mine = [one for log in logs for one in log.entries if one.attempt == known.producer]
            self.has_aborted_both |= any(one.by.epoch < known.epoch - 1 for one in mine if one.by is not None)
        super().end(slot, known, committed=committed)


class World:
    """The brokers, two slots of workers, and what was sent."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(0)
        self.lines: list[str] = []
        self.broker = _Broker(self.scheduler, {}, "", self._note)
        for name, count in {SOURCE: PARTITIONS, RESULTS: 2, ACCOUNTS: 1, POSITIONS: 1}.items():
            self.broker.create(name, count, {"cleanup.policy": "compact" if name == POSITIONS else "delete"})
        self.groups = Groups(self.scheduler, self.broker, self._note)
        self.network = Network(self.scheduler, self._note)
        self.network.kill = self.kill
        self.clock = HostClock(self.scheduler)
        self.processes: dict[str, Process] = {}
        self.ended: list[BaseException] = []
        self.sent: list[Place] = []
        self.may_name = False
        """Whether records may be missing, and are named."""

    def _note(self, who: str, what: str) -> None:
        self.lines.append(f"{self.scheduler.now:9.3f} {who}: {what}")

    def start(self, slot: str) -> None:
        if slot in self.processes and not self.processes[slot].is_dead:
            return
        process = self.processes[slot] = Process(self.scheduler, slot, self.clock)
        process.on_end = self._on_end
        process.spawn(partial(self._work, slot, process))

    def _on_end(self, error: BaseException | None) -> None:
        if not isinstance(error, Fenced):
            self.ended.append(error or RuntimeError("ended"))

    def kill(self, slot: str) -> None:
        if slot in self.processes:
            self._note(slot, "is killed")
            self.processes[slot].kill()

    def _work(self, slot: str, process: Process) -> None:
        made = clients(process, self.broker, self.groups, self.network)
        connection = Connection(Settings(prefix=""), clock=self.clock, clients=made)
        about: Any = {"group": GROUP, "slot": slot, "health": BusHealth()}
        log = KafkaTransactionalLog(connection, SOURCE, outputs=[RESULTS, ACCOUNTS], **about)
        signed = 0.0
        while True:
            try:
                taken = [(run.partition, run.first_offset, run.last_offset) for run in log.take(7, 0.2)]
                ranges = log.ranges()
                moved = {place: one for place, one in ranges.items() if one.begin != one.end or one.note}
                if moved or self.scheduler.now - signed >= 1.0:  # a worker gives a sign of life each second
                    signed = self.scheduler.now
                    records = [_result(place[1], one, taken) for place, one in moved.items()]
                    log.commit([*records, Record(topic=ACCOUNTS, key=b"k", value=b"{}")])
            except Aborted as reason:
                self._note(slot, f"{reason}")
                if not isinstance(reason, Revoked):
                    self.clock.sleep(0.1)

    def run(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now + seconds)

    # Accidents

    def send(self, partition: int, count: int) -> None:
        topic = self.broker.topics[SOURCE]
        for _ in range(count):
            self.sent.append((topic.id, partition, topic.partitions[partition].end))
            topic.partitions[partition].append(self.broker.now_us(), b"k", b"v", (), None)
        self.broker.tell(SOURCE)

    def lose_end(self, output: tuple[str, int]) -> None:
        """Let a broker lose the end of a transaction that its coordinator knows, together with all connections."""
        partition = self.broker.topics[output[0]].partitions[output[1]]
        if not partition.entries or not partition.entries[-1].is_mark:
            return
        author = partition.entries[-1].by
        if any(one.unmarked for one in self.broker.transactions.values() if one.producer == author.producer):
            return  # its coordinator writes the mark again
        # An open transaction of the same producer ends it as well, and may be aborted.
        mine = [one for one in self.broker.transactions.values() if one.producer == author.producer]
        is_open = any(one.state == "ongoing" and output in one.partitions for one in mine)
        self.may_name |= is_open
        self._note("broker", f"loses the end by {'commit' if partition.entries[-1].mark else 'abort'} on {output}")
        partition.cut(partition.end - 1)
        for link in list(self.network.links):
            link.drop()
        self.broker.tell(output[0])

    def lose_ends(self, outputs: Sequence[tuple[str, int]] = OUTPUTS[:-1]) -> None:
        for output in outputs:
            self.lose_end(output)

    def kill_at(self, slot: str, request: str, after: bool) -> None:
        """Kill a slot when it makes a request: before it is carried out, or after."""
        client = "reader" if request == "ListOffsets" else f"{GROUP}-{slot}"
        self.network.kills.append((f"{slot}/{client} {request}", after))

    def slow(self, output: tuple[str, int]) -> None:
        """Let the broker take a worker's records for a partition last: it takes each partition's by themselves."""
        self.network.slowed = {f"Produce {output[0]}/{output[1]}": 0.02}

    def cut_positions(self) -> None:
        """Lose all positions, so that workers begin at the beginning."""
        self.may_name = True
        self.broker.topics[POSITIONS].partitions[0].cut(0)

    def go_down(self, seconds: float) -> None:
        self.network.go_down(seconds)

    def set_group(self, offset: int | None) -> None:
        self._note("group", f"is set to {offset}")
        if offset is None:
            self.broker.committed.pop(GROUP, None)
        else:
            self.broker.commit(GROUP, {(SOURCE, number): offset for number in range(PARTITIONS)})

    def make_again(self) -> None:
        self._note("topic", "is made again")
        self.broker.make_again(SOURCE)

    def remove(self, partition: int, count: int) -> None:
        log = self.broker.topics[SOURCE].partitions[partition]
        log.remove(min(log.first + count, log.end))
        self.may_name = True

    def finish(self) -> None:
        self.network.kills.clear()
        for slot in SLOTS:
            self.start(slot)
        self.run(30.0)
        for partition in range(PARTITIONS):
            self.send(partition, 1)  # the next range shows what is missing before it
        self.run(30.0)


def _result(partition: int, one: Any, taken: list[tuple[int, int, int]]) -> Record:
    value = {"partition": partition, "log": one.log, "begin": one.begin, "end": one.end}
    value["taken"] = [(first, last) for place, first, last in taken if place == partition]
    return Record(topic=RESULTS, key=b"k", value=json.dumps(value).encode(), partition=partition)


class Reader:
    """Counts the committed ranges from the beginning, as device servers do."""

    def __init__(self, broker: Broker) -> None:
        self.counted, self.named = Counter[Place](), set[Place]()
        self.known: dict[int, CountedOffsets] = {}
        for partition in broker.topics[RESULTS].partitions:
            for entry in partition.read(0, 1 << 60, committed=True)[0]:
                if entry.value is not None:
                    self._take(**json.loads(entry.value))

    def _take(self, partition: int, log: str, begin: int, end: int, taken: list[tuple[int, int]]) -> None:
        known = self.known.setdefault(partition, CountedOffsets(log, 0, 0))
        id, expected = offsets.id_of(log), known.end
        found = known.take(log, begin, end, counts=begin < end)
        if isinstance(found, Overlap):
            self.named |= {(id, partition, one) for one in range(expected, end)}
            return
        if isinstance(found, Gap):
            self.named |= {(id, partition, one) for one in range(found.first, found.after)}
        if isinstance(found, LogCut):  # it names where the new log is read from
            self.named |= {(id, partition, one) for one in range(found.begin)}
        for offset in [one for first, last in taken for one in range(first, last + 1)]:
            self.counted[id, partition, offset] += 1


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 9)),
    st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 9)),
    st.tuples(st.just("run"), st.sampled_from((0.005, 0.02, 0.1, 0.4, 2.0, 9.0))),
    st.tuples(st.just("run"), st.sampled_from((0.005, 0.02, 0.1, 0.4, 2.0, 9.0))),
    st.tuples(st.just("start"), st.sampled_from(SLOTS)),
    st.tuples(st.just("kill"), st.sampled_from(SLOTS)),
    st.tuples(st.just("kill_at"), st.sampled_from(SLOTS), st.sampled_from(REQUESTS), st.booleans()),
    st.tuples(st.just("slow"), st.sampled_from(OUTPUTS)),
    st.tuples(st.just("lose_end"), st.sampled_from(OUTPUTS)),
    st.tuples(st.just("lose_ends")),
    st.tuples(st.just("set_group"), st.sampled_from((None, 0, 3, 1000))),
    st.tuples(st.just("go_down"), st.sampled_from((0.1, 7.0))),
    st.tuples(st.just("make_again")),
    st.tuples(st.just("remove"), st.integers(0, 1), st.integers(1, 9)),
)


def walk(steps: list[tuple[Any, ...]]) -> World:
    """Let steps happen, then let all become quiet."""
    world = World()
    with simulated(world.scheduler):
        for slot in SLOTS[:1]:
            world.start(slot)
        world.run(1.0)
        for name, *rest in steps:
            getattr(world, name)(*rest)
        world.finish()
    return world


def wrong(world: World) -> list[str]:
    """Return what breaks the law."""
    reader, topic = Reader(world.broker), world.broker.topics[SOURCE]
    found = [f"{error!r}" for error in world.ended]
    found += [f"{place} is counted {times} times" for place, times in reader.counted.items() if times > 1]
    missing = [one for one in world.sent if one[0] == topic.id and one not in reader.counted]
    found += [f"{one} is neither counted nor named" for one in missing if one not in reader.named]
    if not (world.may_name or world.broker.has_aborted_both):
        found += [f"{one} is missing" for one in missing if one in reader.named]
    return found


BEFORE = [("send", 0, 5), ("send", 1, 3), ("run", 0.4), ("send", 0, 4)]
MORE: list[tuple[Any, ...]] = [("run", 2.0), ("send", 0, 6), ("send", 1, 5)]
"""So that the next process takes another range than the killed one."""
PARTLY: list[tuple[Any, ...]] = [("slow", OUTPUTS[0]), ("kill_at", "0", "Produce results/0", False)]
KILLED = [("kill_at", "0", "EndTxn", False), *MORE, ("run", 9.0), ("lose_ends",)]
LOST = {
    # accidents after some records are counted; whether the lost end is by a commit
    "killed before it asked for the end": (KILLED, False),
    "killed in its first transaction": (
        [
            ("run", 9.0), ("kill", "0"), ("send", 0, 2), ("start", "0"), ("kill_at", "0", "Produce results/0", True),
            *MORE, ("run", 9.0), ("lose_ends",),
        ],
        False,
    ),
    "killed after it asked for the end": ([("kill_at", "0", "EndTxn", True), ("run", 0.4), ("lose_ends",)], True),
    "killed when the broker had all but one of its records": (
        [*PARTLY, *MORE, ("run", 9.0), ("lose_ends",)], False
    ),
    "killed before its offsets": (
        [("kill_at", "0", "TxnOffsetCommit", False), *MORE, ("run", 9.0), ("lose_ends",)], False
    ),
    "killed in quiet": ([("run", 0.4), ("kill", "0"), ("lose_ends",)], True),
    "lost again after it was ended": (
        [("run", 0.4), ("lose_ends",), ("kill", "0"), ("start", "0"), ("run", 9.0), ("lose_ends",)], True
    ),
    "lost long after it was ended": (
        [("run", 0.4), ("kill", "0"), ("start", "0"), ("run", 9.0), ("kill", "0"), ("lose_ends",)], True
    ),
    "alive": ([("run", 0.4), ("lose_ends",)], True),
    "killed while another slot takes over": (
        [("kill_at", "0", "EndTxn", False), *MORE, ("run", 9.0), ("lose_ends",), ("start", "1"), ("run", 9.0)], False
    ),
}  # fmt: skip


@pytest.mark.parametrize("on", [OUTPUTS[:-1], OUTPUTS[-1:], OUTPUTS], ids=["results", "positions", "all"])
@pytest.mark.parametrize("case", LOST)
def test_a_transaction_whose_end_a_broker_lost_ends_as_its_coordinator_decided(
    case: str, on: Sequence[tuple[str, int]]
) -> None:
    """The next process finds it by its header, and knows the outcome from where the end is not lost."""
    accidents, is_commit = LOST[case]
    world = walk([*BEFORE, *((name, on) if name == "lose_ends" else (name, *rest) for name, *rest in accidents)])
    assert wrong(world) == []
    lost = {line.partition("loses the end by ")[2].split()[0] for line in world.lines if "loses the end" in line}
    assert ("abort" not in lost) is is_commit
    assert not any(log.open for topic in world.broker.topics.values() for log in topic.partitions)


@pytest.mark.parametrize("third", [False, True], ids=["alone", "a third slot wrote behind them"])
def test_slots_whose_transactions_stayed_open_in_opposite_orders_do_not_wait_for_each_other(third: bool) -> None:
    """Each has the first open transaction of one partition, which hides the end of the other slot's one behind it.

    `third`: as there are ends behind both, each slot must suppose for a while that one of them is its own.
    """
    world, places = World(), ((ACCOUNTS, 0), (POSITIONS, 0))
    logs = [world.broker.topics[name].partitions[number] for name, number in places]
    with simulated(world.scheduler):
        for slot in SLOTS:
            world.start(slot)
        world.run(9.0)
        begins = [log.end for log in logs]
        world.network.slowed = {"0/group-0 Produce accounts/0": 0.05, "1/group-1 Produce positions/0": 0.05}
        for number in range(PARTITIONS):
            world.send(number, 3)
        while any(log.end - begin < 2 for log, begin in zip(logs, begins, strict=True)):
            world.run(0.001)
        world.network.slowed = {}
        world.run(0.1)
        for _ in SLOTS:
            world.lose_ends(OUTPUTS)
        first, second = ([*log.open] for log in logs)
        assert first == second[::-1] != second
        if third:
            producer, epoch = world.broker.init_producer("third", 60.0)  # type: ignore[misc]
            world.broker.add_partitions("third", epoch, [*places])
            for place in places:
                world.broker.produce(place, [(b"k", b"{}", ())], producer, epoch, 0, "third")
            world.broker.end_transaction("third", epoch, committed=True)
        world.run(0.1)
        ends = [log.end for log in logs]
        world.run(40.0 if third else 9.0)
        assert all(log.stable > end for log, end in zip(logs, ends, strict=True))
        world.finish()
    assert wrong(world) == []


def _settle_nothing(self: TransactionalProducer, *_: Any) -> None: ...


class _Alike(dict[str, int]):
    """Gives the same number for each run."""

    def get(self, run: str, default: int = 0) -> int:  # type: ignore[override]
        return max(self.values(), default=default)


def _commit_all(self: TransactionalProducer, *_: Any) -> dict[str, int]:
    return _Alike(any=1 << 60)


def _abort_all(self: TransactionalProducer, *_: Any) -> dict[str, int]:
    return {}


def _one_run(self: TransactionalProducer, left: Any) -> dict[str, int]:
    """Compare numbers, whatever the run."""
    return _Alike(_find_committed(self, left))


def _always(self: TransactionalProducer, *_: Any) -> bool:
    return True


def _never(self: TransactionalProducer, *_: Any) -> bool:
    return False


def _never_partly(self: TransactionalProducer, one: Any, left: Any) -> bool:
    """Take each transaction for whole."""
    return _is_committed_elsewhere(self, one._replace(size=0), left)


def _newest_run(self: TransactionalProducer) -> WorkerPosition:
    """Keep no former run."""
    return msgspec.structs.replace(_new_run(self), partition=0)


def _believe_group(place: Any, own: Any, facts: PartitionFacts) -> offsets.Beginning:
    return offsets.Beginning(facts.topic_id, min(max(facts.group, facts.first), facts.end))


def _commit_apart(self: KafkaTransactionalLog, records: list[Record]) -> None:
    """Write results and positions in two transactions."""
    try:
        self._producer.write(records, [], self._consumer)
        self._producer.write(self._positions.records(), self._places(self._positions.offsets()), self._consumer)
    except KafkaException as error:
        self._give_up(error)
    self._positions.committed()


def _go_on(self: KafkaTransactionalLog, error: KafkaException) -> None:
    """Give up a transaction, and take the records behind it."""
    try:
        _give_up(self, error)
    finally:
        self._must_rewind = False


def _take_all(self: CountedOffsets, log: str, begin: int, end: int, part: int = 0, *, counts: bool = True) -> Any:
    found = _take(self, log, begin, end, part, counts=counts)
    return None if isinstance(found, Overlap) else found


_new_run, _find_committed = TransactionalProducer._new_run, TransactionalProducer._find_committed
_is_committed_elsewhere = TransactionalProducer._is_committed_elsewhere
_give_up, _take = KafkaTransactionalLog._give_up, CountedOffsets.take
AGAIN = [("run", 2.0), ("kill", "0"), ("cut_positions",), ("send", 0, 6), ("start", "0"), ("run", 9.0)]
MUTANTS = {
    # what is put where; accidents that show it
    "what is open is ended first": (TransactionalProducer, "_settle", _settle_nothing, KILLED),
    "what was aborted is aborted": (TransactionalProducer, "_find_committed", _commit_all, KILLED),
    "what was committed is committed": (
        TransactionalProducer, "_find_committed", _abort_all, LOST["killed after it asked for the end"][0],
    ),
    "an abort that positions have lost is found on the outputs": (
        TransactionalProducer, "_is_committed_elsewhere", _always, [*KILLED[:-1], ("lose_end", OUTPUTS[-1])],
    ),
    "a commit that positions have lost is found on the outputs": (
        TransactionalProducer, "_is_committed_elsewhere", _never,
        [("kill_at", "0", "EndTxn", True), *MORE, ("run", 0.4), ("lose_end", OUTPUTS[-1])],
    ),
    "what was written in part is aborted": (
        TransactionalProducer, "_is_committed_elsewhere", _never_partly,
        [*PARTLY, *MORE, ("run", 9.0), ("lose_ends", OUTPUTS)],
    ),
    "each producer has a run": (
        TransactionalProducer, "_find_committed", _one_run, LOST["killed in its first transaction"][0],
    ),
    "former runs are known": (
        TransactionalProducer, "_new_run", _newest_run, LOST["lost long after it was ended"][0],
    ),
    "the group is not believed": (
        offsets, "begin", _believe_group, [("kill", "0"), ("set_group", 1000), ("start", "0"), ("run", 2.0)],
    ),
    "results and positions are one transaction": (
        KafkaTransactionalLog, "commit", _commit_apart,
        [("kill_at", "0", "TxnOffsetCommit", False), *MORE, ("run", 9.0)],
    ),
    "after a failure a worker goes back": (
        KafkaTransactionalLog, "_give_up", _go_on, [("run", 0.05), ("go_down", 7.0), ("run", 9.0)],
    ),
    "what covers offsets twice is refused": (CountedOffsets, "take", _take_all, AGAIN),
}  # fmt: skip
"""Guards that are taken out."""


@pytest.mark.parametrize("guard", MUTANTS)
def test_without_a_guard_the_law_is_broken(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, put, accidents = MUTANTS[guard]
    assert wrong(walk([*BEFORE, *accidents])) == []
    monkeypatch.setattr(where, name, put)
    assert wrong(walk([*BEFORE, *accidents])) != []


def test_a_worker_that_may_not_read_its_outputs_says_so_and_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a deployment whose rights are those of an older release."""

    def refuse(*args: Any, committed: bool = True, **options: Any) -> Iterator[Record]:
        if committed:
            return read_range(*args, committed=committed, **options)
        raise BusError("may not") from KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    monkeypatch.setattr(transactional_producer, "read_range", refuse)
    world = walk([*BEFORE, ("run", 0.4), ("kill", "0"), ("lose_end", (ACCOUNTS, 0)), *MORE])
    assert wrong(world) == []
    assert "are not ended: may not" in caplog.text


@settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, min_size=3, max_size=25))
def test_each_record_is_counted_once_or_named(steps: list[tuple[Any, ...]]) -> None:
    world = walk(steps)
    assert wrong(world) == [], "\n".join(world.lines)
