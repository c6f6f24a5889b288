"""Three secured brokers: replicas of all topics, and what is written while one or two of them are away."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from facade.admin.cluster import inspect_topics
from facade.admin.topics import create_topics
from facade.infra import local
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaSender, KafkaWriter
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load
from tests.support.waiting import HANG, until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

COMMANDS = "commands"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[local.Endpoints]:
    state_dir = tmp_path_factory.mktemp("cluster")
    try:
        yield local.up(local.LocalOptions(state_dir=state_dir, brokers=3, kafka_heap="256m", secure=True))
    finally:
        local.down(state_dir, wipe=True)


def test_a_cluster_works_without_one_broker_and_refuses_without_two(cluster: local.Endpoints) -> None:
    assert cluster.security is not None
    login = cluster.security.kafka_settings()
    connection = Connection(Settings(bootstrap=cluster.bootstrap, prefix="cluster.", kafka=login))
    create_topics(connection, {COMMANDS: load().topics[COMMANDS]}, replicas=cluster.brokers)
    found = inspect_topics(connection, [COMMANDS])[COMMANDS]
    assert (found.replicas, found.settings["min.insync.replicas"]) == (3, "2")
    Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "any", **login}).init_transactions(HANG)
    made = connection.admin().list_topics(timeout=HANG).topics
    assert {len(one.replicas) for topic in made.values() for one in topic.partitions.values()} == {3}, "Kafka's own too"

    writer = KafkaWriter(connection, health=BusHealth(), client="test")
    leaders = {number: one.leader for number, one in made[f"cluster.{COMMANDS}"].partitions.items()}
    partition = next(number for number, leader in leaders.items() if leader == 2)
    record = Record(topic=COMMANDS, key=b"k", value=b"its leader is away", partition=partition)
    local.stop_services(cluster.state_dir, "kafka-2", kill=True)
    writer.send_durably(record, HANG)

    # In order: the broker leaves the replicas that are in sync. Of a killed one nobody could tell the last controller.
    local.stop_services(cluster.state_dir, "kafka-3")
    assert [line.alive for line in local.status(cluster.state_dir)] == [True, False, False, True]
    sender = KafkaSender(connection, health=BusHealth(), client="test")

    def refusal() -> str:
        with pytest.raises(BusError) as refused:
            sender.send(replace(record, value=b"two are away"), 0.4).result()
        return str(refused.value)

    until(lambda: "Not enough in-sync replicas" in refusal(), "the reason is known to callers")
    local.start_services(cluster.state_dir, "kafka-2", "kafka-3")
    writer.send_durably(replace(record, value=b"all are there"), HANG)
    values = [record.value for record in KafkaBus(connection, client="test").read_all(COMMANDS)]
    assert values == [b"its leader is away", b"all are there"]
