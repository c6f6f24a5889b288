"""Without anything of ours between: the raw limit of the client, and records that are written just as they are.

The settings are those of a worker, but for the news of the end of a partition, which would count as a record.
"""

from collections import Counter
from collections.abc import Iterator

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from facade.kernel.bus.kafka.client_settings import settings_of
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.group import member_names
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.errors import BusError


def bare_batches(connection: Connection, topic: str, *, group: str, batch: int) -> Iterator[int]:
    """Consume a topic from its beginning without end, and give how many records each call of the client gave, or 0.

    Parameters
    ----------
    group
        A consumer group that has never committed anything.
    batch
        Most records of one call.
    """
    name = connection.prefix + group
    settings = {
        **settings_of("consumer", "member", "worker"),
        **member_names(name, f"{name}-bare"),
        "auto.offset.reset": "earliest",
        "enable.partition.eof": False,
    }
    consumer = connection.consumer(BusHealth(), settings)
    # A subscription and not an assignment: the worker's own start has the same steps.
    consumer.subscribe([connection.topic(topic)])
    for messages in _consumed(consumer, connection.topic(topic), batch, 0.1):
        yield len(messages)


def bare_values(connection: Connection, topic: str, partition: int, *, batch: int) -> Iterator[list[bytes]]:
    """Consume a partition from its beginning without end, with the settings of a group's member."""
    name = f"{connection.prefix}bare"
    consumer = connection.consumer(
        BusHealth(), {**settings_of("consumer", "member", "partition holder"), **member_names(name, name)}
    )
    consumer.assign([TopicPartition(connection.topic(topic), partition, OFFSET_BEGINNING)])
    for messages in _consumed(consumer, connection.topic(topic), batch, 0.01):
        yield [message.value() or b"" for message in messages]


def _consumed(consumer: Consumer, topic: str, batch: int, timeout: float) -> Iterator[list[Message]]:
    try:
        while True:
            messages = consumer.consume(batch, timeout)
            if messages and (error := messages[-1].error()) is not None:
                raise BusError(f"topic {topic} cannot be consumed: {error.str()}")
            yield messages
    finally:
        consumer.close()


class RawSender:
    """Writes records as they are: in any codec, to any partition; those that the brokers refuse are counted.

    Parameters
    ----------
    codec
        Of the batches: none, gzip, snappy, lz4 or zstd.
    """

    def __init__(self, connection: Connection, codec: str) -> None:
        own = {"compression.type": codec, "message.max.bytes": 100_000_000, "enable.idempotence": True}
        self._producer = connection.producer(BusHealth(), {**own, "linger.ms": 20})
        self._connection = connection
        self.delivered: Counter[str] = Counter()
        """Records by topic."""
        self.refused: Counter[str] = Counter()

    def send(self, record: Record) -> None:
        name = self._connection.topic(record.topic)

        def on_delivery(error: KafkaError | None, _: Message) -> None:
            (self.delivered if error is None else self.refused)[record.topic] += 1

        while True:
            try:
                self._producer.produce(
                    name, record.value, record.key, record.partition, on_delivery, headers=list(record.headers)
                )
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException:  # larger than this client sends
                self.refused[record.topic] += 1
                return
            else:
                self._producer.poll(0)
                return

    def flush(self, timeout: float) -> int:
        return int(self._producer.flush(timeout))
