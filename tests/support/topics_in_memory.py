"""A producer with transactions of its own that writes to a topic of the simulation's brokers, as SDP's may."""

from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.port import BusHealth
from tests.support.simulated_bus import MemoryBroker


class Upstream:
    """Writes in transactions, which its test ends."""

    def __init__(self, broker: MemoryBroker, topic: str) -> None:
        self._broker, self._topic = broker, topic
        connection: Connection = broker.connection()
        self._producer = connection.producer(BusHealth(), {"transactional.id": "upstream"})
        self._producer.init_transactions(5.0)

    def begin(self, partition: int, key: bytes, value: bytes) -> None:
        """Begin a transaction, and write a record."""
        self._producer.begin_transaction()
        self._producer.produce(self._topic, value, key, partition=partition)
        self._producer.flush(5.0)

    def commit(self) -> None:
        self._producer.commit_transaction(5.0)
        self._broker.scheduler.settle()
