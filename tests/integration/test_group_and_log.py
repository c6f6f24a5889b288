"""Whatever becomes of the group's offsets and of the log: totals are exact, or it is said which records are missing."""

import itertools
import json

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.conftest import Deploy
from tests.support import topics
from tests.support.deployment import BUS, CLOCK, MASTER, Deployment
from tests.support.heaps import heap
from tests.support.waiting import HANG, until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]


class Stream:
    """Writes heaps, and knows how many; changes the topic and the group's offsets as an administrator may."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment, self.topic = deployment, deployment.topic("ingest.heaps")
        self.admin = AdminClient({"bootstrap.servers": deployment.bootstrap})
        self.sent = 0
        self._seq = itertools.count()

    def send(self, partition: int, count: int) -> None:
        now_us = CLOCK.now_us()
        values = [json.dumps(heap(partition, next(self._seq), time=now_us)).encode() for _ in range(count)]
        topics.send(self.deployment.bootstrap, self.topic, [(b"k", value) for value in values], partition=partition)
        self.sent += count

    def set_group(self, offsets: dict[int, int]) -> None:
        """Set the group's offsets: as a transaction they are taken at once, though the group still knows its member."""
        broker = {"bootstrap.servers": self.deployment.bootstrap}
        stranger = Consumer({**broker, "group.id": self.deployment.topic("aggregate")})
        producer = Producer({**broker, "transactional.id": "somebody"})
        producer.init_transactions(HANG)
        producer.begin_transaction()
        places = [TopicPartition(self.topic, partition, offset) for partition, offset in offsets.items()]
        producer.send_offsets_to_transaction(places, stranger.consumer_group_metadata(), HANG)
        producer.commit_transaction(HANG)
        stranger.close()

    def delete_records(self, partition: int, before: int) -> None:
        for future in self.admin.delete_records([TopicPartition(self.topic, partition, before)]).values():
            future.result(HANG)

    def add_partition(self) -> None:
        for future in self.admin.create_partitions([NewPartitions(self.topic, 3)]).values():
            future.result(HANG)
        until(
            lambda: len(self.admin.list_topics(self.topic, timeout=HANG).topics[self.topic].partitions) == 3,
            "clients are told of the new partition",
        )

    def make_again(self) -> None:
        for future in self.admin.delete_topics([self.topic], operation_timeout=HANG).values():
            future.result(HANG)
        until(self._create, "the topic is made again")

    def _create(self) -> bool:
        config = {"message.timestamp.type": "LogAppendTime"}
        (future,) = self.admin.create_topics([NewTopic(self.topic, 3, 1, config=config)]).values()
        return future.exception(HANG) is None

    def is_exact(self, *, lost: int = 0, corrected: int) -> None:
        """Wait until each record that was written is counted once, but for those that are said to be missing."""
        names = ("ingestHeapsConsumed", "ingestHeapsOverlap", "ingestHeapsSkipped", "ingestHeapsCorrected")

        def found() -> dict[str, object]:
            total = self.deployment.read_one(MASTER, "heapsTotal")
            return {**self.deployment.read(BUS, *names), "of the master": total}

        wanted = dict(zip(names, (self.sent - lost, 0, lost, corrected), strict=True))
        until_equal(found, wanted | {"of the master": self.sent - lost}, "totals are what was sent")

    def says(self, attribute: str, text: str) -> str:
        """Wait until an attribute of SdpBus has a text in it, and return all that it says."""

        def said() -> str:
            found = self.deployment.read_one(BUS, attribute) or ""
            return found if text in found else ""

        return until(said, f"{text!r} in {attribute}")


def test_totals_are_exact_whatever_becomes_of_group_and_log(deploy: Deploy) -> None:
    deployment = deploy(nodes=3)
    deployment.serve()
    worker = deployment.worker()
    stream = Stream(deployment)
    stream.send(0, 300)
    stream.send(1, 200)
    stream.is_exact(corrected=0)
    stream.says("Status", "All streams balance")

    # The group is set back and forward while no worker runs.
    assert worker.terminate() == 0
    stream.set_group({0: 200, 1: 250})
    stream.send(0, 10)
    stream.send(1, 80)
    worker = deployment.worker()
    stream.is_exact(corrected=2)
    stream.says("lastError", "the worker goes on from its own position")

    # Records are removed before they are taken.
    assert worker.terminate() == 0
    stream.send(0, 60)
    stream.delete_records(0, 330)
    worker = deployment.worker()
    stream.is_exact(lost=20, corrected=3)
    status = stream.says("Status", "ingest.heaps, partition 0: offsets 310 to 329")
    assert "All streams balance" not in status
    until_equal(lambda: deployment.quality(BUS, "ingestHeapsSkipped"), "ALARM", "the alarm")

    # A partition is added while the worker runs.
    stream.add_partition()
    stream.send(2, 30)
    stream.is_exact(lost=20, corrected=3)

    # A worker is added and stopped while records come: the group lets it go at once, not after its session.
    second = deployment.worker("1")

    def members() -> dict[str, topics.Member]:
        stream.send(0, 10)
        return topics.members(deployment.bootstrap, deployment.topic("aggregate"))

    until(lambda: [bool(one.partitions) for one in members().values()] == [True, True], "two share the partitions")
    stream.send(2, 20)

    # Of two workers with one slot the newer one works; the older one ends, and says what to do.
    newer = deployment.worker("1", log="aggregate-1-newer")
    assert second.exit_code() == 1, second.tail()
    group = deployment.topic("aggregate")
    assert f"another process has joined group {group} as {group}-1" in second.text
    assert "--slot" in second.text
    stream.send(2, 20)
    assert newer.terminate() == 0
    assert until(members, "the coordinator answers").keys() == {deployment.topic("aggregate-0")}
    stream.send(2, 20)
    stream.is_exact(lost=20, corrected=3)

    # The topic is made again: shorter than before, and longer.
    assert worker.terminate() == 0
    stream.make_again()
    stream.send(0, 25)
    stream.send(1, 400)
    deployment.worker()
    stream.is_exact(lost=20, corrected=3)
    stream.says("lastError", "the topic was deleted and made again: expected offset")
    stream.says("Status", "totals are of epoch 2, which began at offset 0")
