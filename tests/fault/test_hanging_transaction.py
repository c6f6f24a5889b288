"""A broker that keeps a transaction open whose coordinator knows that it has ended.

It holds no worker up for good, and the next transaction does not commit it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.transactional_producer import TransactionalProducer
from facade.bus.kafka.transactions import KafkaTransactionalLog
from facade.bus.port import Aborted, BusHealth, Record
from facade.config import Settings
from facade.infra import local
from tests.support.deployment import Deployment
from tests.support.topics import last_offset
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
SOURCE = "ingest.heaps"


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


def copied(log: KafkaTransactionalLog) -> list[bytes | None]:
    """Take what there is and commit it."""
    try:
        values = [value for batch in log.take(10, 0.5) for value in batch.values()]
        if values:
            log.commit([])
    except Aborted as reason:
        print(reason)  # shown by pytest when the test has failed
        return []
    return values


def test_a_worker_goes_on_when_the_end_of_its_transaction_is_lost(
    deploy: Callable[..., Deployment], infra: local.Endpoints
) -> None:
    """The end of the last transaction on `positions` is lost, so they cannot be read to their end any more."""
    deployment = deploy(nodes=1, prepare=False)
    deployment.create_topics()
    settings = Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix)
    log = KafkaTransactionalLog(Connection(settings), SOURCE, group="marks", slot="0", health=BusHealth())
    deployment.send(Record(topic=SOURCE, key=b"0", value=b"first", partition=0))
    assert until(lambda: copied(log), "the first record") == [b"first"]
    positions, data = deployment.topic("positions"), infra.state_dir / "kafka" / "data"
    until(lambda: last_offset(deployment.bootstrap, positions, 0) >= 2, "the position, and the end behind it")
    lose_last_end(deployment, data, positions)
    deployment.send(Record(topic=SOURCE, key=b"0", value=b"second", partition=0))
    assert until(lambda: copied(log), "the second record") == [b"second"]
    log.close()


def test_a_given_up_transaction_that_stayed_open_is_not_committed_with_the_next_one(
    deploy: Callable[..., Deployment], infra: local.Endpoints
) -> None:
    deployment = deploy(nodes=1, prepare=False)
    deployment.create_topics()
    connection = Connection(Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix))
    name, topic = f"{deployment.prefix}marks-0", deployment.topic(SOURCE)
    producer = TransactionalProducer(connection, name, BusHealth())
    member = connection.consumer(BusHealth(), {"group.id": f"{deployment.prefix}marks"})
    producer.open(member).client.list_topics(topic)  # the record below leaves at once

    def written() -> Iterator[Record]:
        yield Record(topic=SOURCE, key=b"0", value=b"given up", partition=0)
        producer.open(member).client.flush()
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    with pytest.raises(KafkaException) as failure:
        producer.write(written(), [], member)
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
