"""The raw limit of this client: consuming and doing nothing, to set our own worker's speed beside it.

The settings are those of a worker, all of them; what differs is only what happens to the records.
"""

from collections.abc import Iterator

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.group import _settings
from facade.bus.kafka.transactions import _consumer_settings
from facade.bus.port import BusHealth
from facade.errors import BusError


def bare_batches(connection: Connection, topic: str, *, group: str, batch: int, timeout: float = 0.1) -> Iterator[int]:
    """Consume a topic from its beginning without end, and give how many records each call of the client gave.

    Parameters
    ----------
    group
        A consumer group that has never committed anything.
    batch
        Most records of one call.
    timeout
        Longest wait in one call [s]; a call that gave nothing is 0.

    Raises
    ------
    BusError
        The client reports an error instead of records.
    """
    name = connection.prefix + group
    settings = {**_consumer_settings(name, f"{name}-bare"), "auto.offset.reset": "earliest"}
    consumer = Consumer(connection.config(BusHealth(), settings))
    try:
        # A subscription and not an assignment: the worker's own start has the same steps.
        consumer.subscribe([connection.topic(topic)])
        while True:
            messages = consumer.consume(batch, timeout)
            if messages and (error := messages[-1].error()) is not None:
                raise BusError(f"topic {connection.topic(topic)} cannot be consumed: {error.str()}")
            yield len(messages)
    finally:
        consumer.close()


def bare_values(connection: Connection, topic: str, partition: int, *, batch: int) -> Iterator[list[bytes]]:
    """Consume a partition from its beginning without end, with the settings of a group's member.

    Raises
    ------
    BusError
        The client reports an error instead of records.
    """
    name = f"{connection.prefix}bare"
    consumer = Consumer(connection.config(BusHealth(), _settings(name, name)))
    try:
        consumer.assign([TopicPartition(connection.topic(topic), partition, OFFSET_BEGINNING)])
        while True:
            messages = consumer.consume(batch, 0.01)
            if messages and (error := messages[-1].error()) is not None:
                raise BusError(f"topic {connection.topic(topic)} cannot be consumed: {error.str()}")
            yield [message.value() or b"" for message in messages]
    finally:
        consumer.close()
