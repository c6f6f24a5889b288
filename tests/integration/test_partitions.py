"""A key chooses the partition, as with Java's clients, for each kind of writer; one partition keeps the order."""

import os
from collections.abc import Sequence

import pytest

from facade.admin.topics import create_topics
from facade.admin.transaction_writer import KafkaTransactionWriter
from facade.infra import local
from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaStreamWriter, KafkaWriter
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.config import Settings
from facade.kernel.icd.topic_model import Topic
from tests.support import topics
from tests.support.waiting import HANG

PARTITIONS = 6
KEYS = [*(b"%d" % node for node in range(12)), b"foobar", "réseau".encode()]
TOPICS = ("durable", "stream", "transaction")
MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Hash a key as `org.apache.kafka.common.utils.Utils.murmur2` is documented to: 32 bits, seed 0x9747b28c."""
    state = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * 0x5BD1E995 & MASK
        word = (word ^ word >> 24) * 0x5BD1E995 & MASK
        state = state * 0x5BD1E995 & MASK ^ word
    if rest := key[whole:]:
        state = (state ^ int.from_bytes(rest, "little")) * 0x5BD1E995 & MASK
    state = (state ^ state >> 13) * 0x5BD1E995 & MASK
    return state ^ state >> 15


@pytest.mark.kafka
def test_each_writer_puts_a_key_on_the_partition_of_javas_clients_in_order(infra: local.Endpoints) -> None:
    """A source in Java and one in Python that share a topic put a node's records on one partition."""
    connection = Connection(Settings(bootstrap=infra.bootstrap, prefix=f"partitions{os.getpid()}."))
    topic = Topic(
        description="Keys.", key="node", partitions=PARTITIONS, cleanup="delete", retention=3600.0, qos="telemetry"
    )
    assert create_topics(connection, dict.fromkeys(TOPICS, topic)) == []
    try:
        numbered = [(key, b"%d" % number) for number in range(20) for key in KEYS]
        KafkaWriter(connection, health=BusHealth(), client="test").send_all_durably(records("durable", numbered), HANG)
        stream = KafkaStreamWriter(connection, health=BusHealth(), client="test")
        stream.send_many("stream", *zip(*numbered, strict=True))
        assert stream.flush(HANG)
        KafkaTransactionWriter(connection, "test").write(records("transaction", numbered))

        for name in TOPICS:
            found = list(read_range(connection, name, find_range(connection, name)))
            where = {key: {record.partition for record in found if record.key == key} for key in KEYS}
            assert where == {key: {(murmur2(key) & 0x7FFFFFFF) % PARTITIONS} for key in KEYS}, name
            for key in KEYS:
                in_order = sorted((record for record in found if record.key == key), key=lambda record: record.offset)
                assert [record.value for record in in_order] == [b"%d" % number for number in range(20)], (name, key)
    finally:
        topics.delete(connection.bootstrap, connection.prefix)


def records(topic: str, numbered: Sequence[tuple[bytes, bytes]]) -> list[Record]:
    return [Record(topic=topic, key=key, value=value) for key, value in numbered]
