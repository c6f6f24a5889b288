"""A broker that keeps a transaction open whose coordinator knows that it has ended.

It holds no worker up for good, and the next transaction does not commit it.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from facade.infra import local
from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.transactional_producer import TransactionalProducer
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.offsets import POSITIONS
from facade.kernel.bus.port import Aborted, BusHealth, Record
from facade.kernel.config import Settings
from tests.support.deployment import Deployment
from tests.support.topics import last_offset
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
SOURCE, RESULT = "ingest.heaps", "ingest.summary"


def cut_last_batch(folder: Path) -> None:
    """Take one byte off the end of a partition: the broker then drops its last batch, the end of a transaction."""
    log = max(one for one in folder.glob("*.log") if one.stat().st_size)
    os.truncate(log, log.stat().st_size - 1)


def sizes(data: Path) -> list[int]:
    """Return the sizes of the log of all transactions."""
    return [one.stat().st_size for one in sorted(data.glob("__transaction_state-*/*.log"))]


def lose_last_end(deployment: Deployment, data: Path, topic: str) -> None:
    """Kill the broker once the coordinator knows that all transactions have ended; the last end on a topic is lost."""
    before: list[int] = []

    def has_ended() -> bool:
        known, before[:] = before[:], sizes(data)
        return known == before

    until(has_ended, "the transaction's coordinator knows that it has ended", every=0.5)
    deployment.broker.kill()
    cut_last_batch(data / f"{topic}-0")
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


def test_a_given_up_transaction_that_stayed_open_is_not_committed_with_the_next_one(
    deploy: Callable[..., Deployment], infra: local.Endpoints
) -> None:
    deployment = deploy(nodes=1, prepare=False)
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
    lose_last_end(deployment, infra.state_dir / "kafka" / "data", topic)

    def write() -> bool:
        with suppress(KafkaException):
            producer.write([Record(topic=SOURCE, key=b"0", value=b"next", partition=0)], [], member)
            return True
        return False

    until(write, "the next transaction")
    assert [message.value() for message in deployment.messages(SOURCE)] == [b"next"]
    member.close()


@pytest.mark.parametrize(
    ("is_commit", "lost", "not_taken"),
    [(False, RESULT, ""), (True, POSITIONS, ""), (False, POSITIONS, RESULT)],
    ids=["aborted", "committed", "aborted and not whole"],
)
def test_a_new_process_ends_a_transaction_as_its_coordinator_decided(
    deploy: Callable[..., Deployment], infra: local.Endpoints, is_commit: bool, lost: str, not_taken: str
) -> None:
    """The broker loses the end on the topic of results or positions, and the worker goes: each result is there once.

    The last case has the position of a transaction whose result the broker had not taken. It was committed, and 10,000
    heaps of 1,079,000 were in no total.

    All combinations are in tests/property/test_position_walks.py.
    """
    deployment = deploy(nodes=1, prepare=False)
    deployment.create_topics()
    settings, cut = Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix), deployment.topic(lost)

    def start() -> KafkaTransactionalLog:
        about = {"group": "ends", "slot": "0", "health": BusHealth(), "outputs": [RESULT]}
        return KafkaTransactionalLog(Connection(settings), SOURCE, **about)

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
    lose_last_end(deployment, infra.state_dir / "kafka" / "data", cut)
    log = start()
    deployment.send(Record(topic=SOURCE, key=b"0", value=b"third", partition=0))
    taken: list[bytes | None] = []

    def goes_on() -> bool:
        taken.extend(copy(log))
        return b"third" in taken

    until(goes_on, "the third record")
    assert taken == ([b"third"] if is_commit else [b"second", b"third"])
    found = [message.value() for message in deployment.messages(RESULT) if message.value() is not None]
    assert found == [b"first", b"second", b"third"]
    log.close()


def test_an_end_that_is_written_again_leaves_no_offset_in_the_group(deploy: Callable[..., Deployment]) -> None:
    """`bus check` found the group behind on a partition that it does not read, for good."""
    deployment = deploy(nodes=1, prepare=False)
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
