"""A broker that keeps a transaction open whose coordinator knows that it has ended.

It holds no worker up for good, and the next transaction does not commit it.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Condition
from typing import Any, NamedTuple

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from facade.infra import local
from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.admin import open_ranges
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import ProducerCore
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.kafka.transactional_producer import TransactionalProducer
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.offsets import POSITIONS
from facade.kernel.bus.port import TRANSACTION, Aborted, BusHealth, Record
from facade.kernel.config import Settings
from tests.support.deployment import Deployment
from tests.support.topics import last_offset
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
SOURCE, RESULT = "ingest.heaps", "ingest.summary"


def cut_last_batches(folder: Path, count: int) -> None:
    """Cut the last batches off a partition, which are ends of transactions, up to the middle of the first of them.

    The broker drops a batch that is not whole.
    """
    log = max(one for one in folder.glob("*.log") if one.stat().st_size)
    data, at, begins = log.read_bytes(), 0, list[int]()
    while at < len(data):
        begins.append(at)
        at += 12 + int.from_bytes(data[at + 8 : at + 12])  # offset and length of the rest come first
    os.truncate(log, begins[-count] + 20)


def sizes(data: Path) -> list[int]:
    """Return the sizes of the log of all transactions."""
    return [one.stat().st_size for one in sorted(data.glob("__transaction_state-*/*.log"))]


def lose_last_ends(deployment: Deployment, data: Path, *topics: str, count: int = 1) -> None:
    """Kill the broker once the coordinator knows that all transactions have ended; the last ends on topics are lost."""
    before: list[int] = []

    def has_ended() -> bool:
        known, before[:] = before[:], sizes(data)
        return known == before

    until(has_ended, "the transaction's coordinator knows that it has ended", every=0.5)
    deployment.broker.kill()
    for topic in topics:
        cut_last_batches(data / f"{topic}-0", count)
    deployment.broker.start()


class KilledAtCommit:
    """A client whose process is killed before it asks for the end, when the broker has its records.

    Parameters
    ----------
    not_taken
        Topic of which the broker has not taken the record yet: it takes those of each partition by themselves.
    """

    def __init__(self, client: Producer, not_taken: str = "") -> None:
        self._client, self._not_taken = client, not_taken

    def produce(self, topic: str, *values: Any, **more: Any) -> None:
        if topic != self._not_taken:
            self._client.produce(topic, *values, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def commit_transaction(self, timeout: float) -> None:
        self._client.flush(timeout)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def slot_of_ends(settings: Settings, slot: str) -> KafkaTransactionalLog:
    return KafkaTransactionalLog(
        Connection(settings), SOURCE, group="ends", slot=slot, health=BusHealth(), outputs=[RESULT]
    )


def test_a_given_up_transaction_that_stayed_open_is_not_committed_with_the_next_one(
    deploy: Callable[..., Deployment], infra: local.Endpoints
) -> None:
    deployment = deploy(nodes=1, prepare=False, tango_host="none")
    deployment.create_topics()
    connection = Connection(Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix))
    name, topic = f"{deployment.prefix}marks-0", deployment.topic(SOURCE)
    producer = TransactionalProducer(connection, name, BusHealth(), outputs=[SOURCE])
    member = connection.consumer(BusHealth(), {"group.id": f"{deployment.prefix}marks"})
    core = producer.open(member)
    core.client = KilledAtCommit(core.client)
    with pytest.raises(KafkaException) as failure:
        producer.write([Record(topic=SOURCE, key=b"0", value=b"given up", partition=0)], [], member)
    producer.give_up(failure.value)
    # The coordinator aborts it, as for a new producer of the same name.
    Producer({"bootstrap.servers": deployment.bootstrap, "transactional.id": name}).init_transactions()
    until(lambda: last_offset(deployment.bootstrap, topic, 0) >= 2, "the record, and the end behind it")
    lose_last_ends(deployment, infra.state_dir / "kafka" / "data", topic)

    def write() -> bool:
        with suppress(KafkaException):
            producer.write([Record(topic=SOURCE, key=b"0", value=b"next", partition=0)], [], member)
            return True
        return False

    until(write, "the next transaction")
    assert [message.value() for message in deployment.messages(SOURCE)] == [b"next"]
    member.close()


class Case(NamedTuple):
    """A transaction whose end is lost on a topic."""

    is_commit: bool
    lost: str
    not_taken: str = ""


def test_a_new_process_ends_a_transaction_as_its_coordinator_decided(
    deploy: Callable[..., Deployment], infra: local.Endpoints
) -> None:
    """The broker loses the end on the topic of results or positions, and the worker goes: each result is there once.

    The last case has the position of a transaction whose result the broker had not taken. It was committed, and 10,000
    heaps of 1,079,000 were in no total.

    All combinations are in tests/property/test_position_walks.py.
    """
    cases = (Case(False, RESULT), Case(True, POSITIONS), Case(False, POSITIONS, RESULT))
    deployments = [deploy(nodes=1, prepare=False, tango_host="none") for _ in cases]
    lives = [an_end_is_lost(*one) for one in zip(deployments, cases, strict=True)]
    cuts = [next(life) for life in lives]
    lose_last_ends(deployments[0], infra.state_dir / "kafka" / "data", *cuts)
    for life in lives:
        assert [*life] == []


def an_end_is_lost(deployment: Deployment, case: Case) -> Iterator[str]:
    """Live until the end of the second transaction; then its topic must lose it, and the next process goes on."""
    is_commit, lost, not_taken = case
    deployment.create_topics()
    settings, cut = Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix), deployment.topic(lost)

    def start() -> KafkaTransactionalLog:
        return slot_of_ends(settings, "0")

    def copy(log: KafkaTransactionalLog, *, kill: bool = False) -> list[bytes | None]:
        with suppress(Aborted):
            values = [value for batch in log.take(10, 0.5) for value in batch.values()]
            if kill and values:
                core = log._producer.open(log._consumer)
                core.client = KilledAtCommit(core.client, not_taken and deployment.topic(not_taken))
                with suppress(Aborted):
                    log.commit([Record(topic=RESULT, key=b"0", value=value, partition=0) for value in values])
            elif values:
                log.commit([Record(topic=RESULT, key=b"0", value=value, partition=0) for value in values])
            return values
        return []

    log = start()
    deployment.send(Record(topic=SOURCE, key=b"0", value=b"first", partition=0))
    assert until(lambda: copy(log), "the first record") == [b"first"]
    deployment.send(Record(topic=SOURCE, key=b"0", value=b"second", partition=0))
    assert until(lambda: copy(log, kill=not is_commit), "the second record") == [b"second"]
    log.close()
    if not is_commit:  # as the coordinator does when the transaction takes too long
        name = f"{deployment.prefix}ends-0"
        Producer({"bootstrap.servers": deployment.bootstrap, "transactional.id": name}).init_transactions()
    after = {RESULT: 4, POSITIONS: 6}[lost]  # each transaction also writes its number to `positions`
    until(lambda: last_offset(deployment.bootstrap, cut, 0) >= after, "two transactions, and the ends behind them")
    yield cut
    log = start()
    deployment.send(Record(topic=SOURCE, key=b"0", value=b"third", partition=0))
    taken: list[bytes | None] = []

    def goes_on() -> bool:
        taken.extend(copy(log))
        return b"third" in taken

    until(goes_on, "the third record")
    assert taken == ([b"third"] if is_commit else [b"second", b"third"]), case
    found = [message.value() for message in deployment.messages(RESULT) if message.value() is not None]
    assert found == [b"first", b"second", b"third"], case
    log.close()


class InTurn:
    """A client of a slot that writes to each topic when it is its turn, and asks for the end when all have written.

    Parameters
    ----------
    turns
        Slots with the topics to which they write, in this order.
    ends
        Whether it asks for the end of its transaction; otherwise its process is killed before.
    """

    def __init__(
        self, client: Producer, slot: str, turns: list[tuple[str, str]], changed: Condition, *, ends: bool
    ) -> None:
        self._client, self._slot, self._turns, self._changed, self._ends = client, slot, turns, changed, ends
        self._topic = ""

    def _go_on(self, topic: str) -> None:
        self._client.flush(timeouts.STEP)
        with self._changed:
            if self._topic:
                self._turns.remove((self._slot, self._topic))
                self._changed.notify_all()
            self._topic, wanted = topic, [(self._slot, topic)] if topic else []
            if not self._changed.wait_for(lambda: self._turns[:1] == wanted, timeouts.STEP):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def produce(self, topic: str, *values: Any, **more: Any) -> None:
        if topic != self._topic:
            self._go_on(topic)
        self._client.produce(topic, *values, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def commit_transaction(self, timeout: float) -> None:
        self._go_on("")
        if not self._ends:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self._client.commit_transaction(timeout)


def open_slots(connection: Connection, topic: str) -> list[str]:
    """Return the slots whose transactions are open on a topic, the first one first."""
    member = connection.consumer(BusHealth(), {"group.id": f"{connection.prefix}looks"})

    def ask() -> Mapping[int, tuple[int, int]]:
        with suppress(KafkaException):  # a broker that has just started may be behind with its epoch
            return open_ranges(connection, member, [topic])[topic]
        return {}

    records = read_range(connection, topic, until(ask, "the ends of the topic"), committed=False)
    member.close()
    said = [dict(one.headers)[TRANSACTION].decode().split()[0] for one in records]
    return [*dict.fromkeys(one.removeprefix("ends-") for one in said)]


def test_two_slots_whose_lost_ends_lie_in_opposite_orders_both_go_on(
    deploy: Callable[..., Deployment], infra: local.Endpoints
) -> None:
    """Each has the first open transaction of one topic, which hides the end of the other slot's one behind it."""
    deployments = [deploy(nodes=1, prepare=False, tango_host="none") for _ in range(2)]
    lives = [two_slots(*one) for one in zip(deployments, (True, False), strict=True)]
    cuts = [topic for life in lives for topic in next(life)]
    lose_last_ends(deployments[0], infra.state_dir / "kafka" / "data", *cuts, count=2)
    for life in lives:
        assert [*life] == []


def two_slots(deployment: Deployment, is_commit: bool) -> Iterator[tuple[str, str]]:
    """Live until two transactions have ended; then both topics must lose their ends, and the next processes go on."""
    deployment.create_topics()
    settings = Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix)
    result, positions = map(deployment.topic, (RESULT, POSITIONS))
    sent, number = list[bytes](), itertools.count()

    def start() -> dict[str, KafkaTransactionalLog]:
        return {slot: slot_of_ends(settings, slot) for slot in "01"}

    def send() -> None:
        for partition in range(2):
            sent.append(f"{next(number)}".encode())
            deployment.send(Record(topic=SOURCE, key=b"0", value=sent[-1], partition=partition))

    def take(log: KafkaTransactionalLog) -> list[bytes | None]:
        with suppress(Aborted):
            return [value for batch in log.take(10, 0.5) for value in batch.values()]
        return []

    def opened(log: KafkaTransactionalLog) -> ProducerCore:
        cores: list[ProducerCore] = []

        def ask() -> list[ProducerCore]:
            with suppress(KafkaException):
                cores.append(log._producer.open(log._consumer))
            return cores

        return until(ask, "a producer")[0]

    def commit(log: KafkaTransactionalLog, values: Sequence[bytes | None]) -> bool:
        with suppress(Aborted):
            log.commit([Record(topic=RESULT, key=b"0", value=value, partition=0) for value in values])
            return True
        return False

    def all_is_taken() -> bool:
        for log in logs.values():
            if values := take(log):
                commit(log, values)
        found = [message.value() for message in deployment.messages(RESULT) if message.value() is not None]
        return len(found) >= len(sent)

    def both_have_written_in_opposite_orders() -> bool:
        """Return False if a transaction took longer than it may."""
        send()
        taken = {slot: list[bytes | None]() for slot in logs}

        def both_have_taken() -> bool:
            for slot, log in logs.items():
                taken[slot] += take(log)
            return all(taken.values())

        until(both_have_taken, "a record for each slot", every=0)
        turns, changed = [("0", result), ("1", result), ("1", positions), ("0", positions)], Condition()
        cores = {slot: opened(log) for slot, log in logs.items()}
        clients = {slot: core.client for slot, core in cores.items()}
        for slot, core in cores.items():
            core.client = InTurn(core.client, slot, turns, changed, ends=is_commit)
        with ThreadPoolExecutor() as pool:
            done = [*pool.map(lambda slot: commit(logs[slot], taken[slot]), logs)]
        for slot, core in cores.items():
            core.client = clients[slot]
        return not turns and done == [is_commit] * 2

    logs = start()
    send()
    until(all_is_taken, "both slots have a partition")
    until(both_have_written_in_opposite_orders, "two transactions in opposite orders")
    for slot, log in logs.items():
        log.close()
        if not is_commit:
            name = f"{deployment.prefix}ends-{slot}"
            Producer({"bootstrap.servers": deployment.bootstrap, "transactional.id": name}).init_transactions()
    yield result, positions
    assert open_slots(Connection(settings), RESULT) == ["0", "1"]
    assert open_slots(Connection(settings), POSITIONS) == ["1", "0"]
    logs = start()
    send()
    until(all_is_taken, "both slots go on")
    found = [message.value() for message in deployment.messages(RESULT) if message.value() is not None]
    assert sorted(found) == sorted(sent), f"{is_commit=}"
    for log in logs.values():
        log.close()


def test_an_end_that_is_written_again_leaves_no_offset_in_the_group(deploy: Callable[..., Deployment]) -> None:
    """`bus check` found the group behind on a partition that it does not read, for good."""
    deployment = deploy(nodes=1, prepare=False, tango_host="none")
    deployment.create_topics()
    connection = Connection(Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix))
    group, place = f"{deployment.prefix}again", TopicPartition(deployment.topic(SOURCE), 0, 7)
    member = connection.consumer(BusHealth(), {"group.id": group})
    producer = TransactionalProducer(connection, f"{group}-0", BusHealth())
    producer.write([Record(topic=SOURCE, key=b"0", value=b"", partition=0)], [place], member)
    producer._unanswered_since = -timeouts.HANGING
    producer.end_again(member)
    admin = AdminClient({"bootstrap.servers": deployment.bootstrap})  # without a name it is gone before the answer
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], require_stable=True)
    found = asked[group].result().topic_partitions
    assert [(one.topic, one.partition, one.offset) for one in found] == [(place.topic, 0, 7)]
    member.close()
