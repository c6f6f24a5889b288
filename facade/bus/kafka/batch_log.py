"""Where the batches of a producer go, and what is there already."""

from collections.abc import Iterator

from facade.bus.kafka.admin import find_range
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.producer import KafkaReceipt, KafkaWriter
from facade.bus.kafka.read_range import read_range
from facade.bus.port import BusHealth, Record


class KafkaBatchLog:
    """See `facade.producer.forwarding.BatchLog`."""

    def __init__(self, connection: Connection, *, client: str) -> None:
        self._connection = connection
        self._writer = KafkaWriter(connection, health=BusHealth(), client=client)

    def post(self, record: Record) -> KafkaReceipt:
        """Queue a record behind those that were posted before, without waiting."""
        return self._writer.post([record])

    def since(self, topic: str, time: float) -> Iterator[Record]:
        """Return what stands on a topic now and was written at a time or later [Unix s]."""
        return read_range(self._connection, topic, find_range(self._connection, topic, since=time), whole=True)

    def close(self, timeout: float) -> None:
        """Wait for what is queued, at most `timeout` [s]."""
        self._writer.close(timeout)
