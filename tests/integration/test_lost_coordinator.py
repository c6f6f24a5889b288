"""A group's coordinator that its cluster has lost holds no worker up: the brokers are librdkafka's own simulation."""

import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.transactional_producer import TransactionalProducer
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.config import Settings
from tests.support.waiting import until

GROUP, SLOT, TOPIC = "aggregate", "aggregate-0", "ingest.heaps"
COORDINATOR, OTHER = 3, 1
_FIND_COORDINATOR = 10
"""Number of the request in Kafka's protocol."""
ENOUGH = 30.0
"""The client would wait for ever [s]."""


class SimulatedBrokers:
    """Three brokers of librdkafka within this process."""

    def __init__(self) -> None:
        lines = Path("/proc/self/maps").read_text().splitlines()
        self._library = ctypes.CDLL(next(line.split()[-1] for line in lines if "librdkafka" in line))
        client = self._ask("new", 0, None, None, 0)
        self._brokers = self._ask("mock_cluster_new", client, 3)

    def _ask(self, name: str, *arguments: Any, answers: Any = ctypes.c_void_p) -> Any:
        call = getattr(self._library, f"rd_kafka_{name}")
        call.restype = answers
        return call(*(ctypes.c_void_p(one) if isinstance(one, int) and one > 1 << 20 else one for one in arguments))

    def bootstrap(self) -> str:
        return str(self._ask("mock_cluster_bootstraps", self._brokers, answers=ctypes.c_char_p).decode())

    def coordinate(self, kind: str, name: str, broker: int) -> None:
        self._ask("mock_coordinator_set", self._brokers, kind.encode(), name.encode(), broker)

    def lead(self, topic: str, broker: int) -> None:
        self._ask("mock_partition_set_leader", self._brokers, topic.encode(), 0, broker)

    def watch(self) -> None:
        self._ask("mock_start_request_tracking", self._brokers)

    def were_asked(self) -> bool:
        """Return whether a client has asked for a coordinator."""
        count = ctypes.c_size_t()
        found = self._ask(
            "mock_get_requests", self._brokers, ctypes.byref(count), answers=ctypes.POINTER(ctypes.c_void_p)
        )
        return any(
            self._ask("mock_request_api_key", found[number], answers=ctypes.c_int16) == _FIND_COORDINATOR
            for number in range(count.value)
        )

    def kill(self, broker: int) -> None:
        self._ask("mock_broker_set_down", self._brokers, broker)

    def drop(self, broker: int) -> None:
        """Let the others name a broker no more."""
        self._ask("mock_broker_decommission", self._brokers, broker)

    def close(self) -> None:
        self._ask("mock_cluster_destroy", self._brokers)


@pytest.fixture
def brokers() -> Iterator[SimulatedBrokers]:
    made = SimulatedBrokers()
    yield made
    made.close()


def test_a_transaction_goes_on_when_the_coordinator_of_its_group_is_dropped(brokers: SimulatedBrokers) -> None:
    connection = Connection(Settings(bootstrap=brokers.bootstrap()))
    member = connection.consumer(BusHealth(), {"group.id": GROUP})
    producer = TransactionalProducer(connection, SLOT, BusHealth())
    records = [Record(topic=TOPIC, key=b"0", value=b"", partition=0)]
    brokers.coordinate("transaction", SLOT, OTHER)
    producer.write(records, [], member)
    brokers.lead(TOPIC, OTHER)
    brokers.coordinate("group", GROUP, COORDINATOR)
    client = producer.open(member).client
    brokers.kill(COORDINATOR)
    brokers.watch()
    writes = threading.Thread(target=producer.write, args=(records, [TopicPartition(TOPIC, 0, 1)], member), daemon=True)
    writes.start()
    until(brokers.were_asked, "the client has asked for the coordinator")
    brokers.drop(COORDINATOR)
    client.list_topics(timeout=ENOUGH)
    brokers.coordinate("group", GROUP, OTHER)
    writes.join(ENOUGH)
    assert not writes.is_alive()
