"""The bus as somebody else sees it: plain confluent_kafka, nothing of ours."""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from facade.kernel.bus.kafka.admin import ask_coordinator
from facade.kernel.bus.port import Headers, Record
from tests.support.waiting import HANG, until

ORDER = {"partitioner": "murmur2_random"}
"""Producers of the bus choose partitions as Java clients do."""


def read_all(bootstrap: str, topic: str) -> list[Message]:
    """Return all committed records of a topic, at least those that are there at the call.

    A topic may be written to meanwhile, faster than a busy machine reads it.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests-read-all",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 20_000_000,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        # A broker that has just started may not know who leads them.
        partitions = until(lambda: consumer.list_topics(topic, timeout=HANG).topics[topic].partitions, topic)
        ends = {one: _extent(consumer, TopicPartition(topic, one)) for one in partitions}
        left = {one for one, (first, end) in ends.items() if first < end}
        consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in left])
        found: list[Message] = []
        last_error: KafkaError | None = None
        deadline = time.monotonic() + HANG
        while left:
            assert time.monotonic() < deadline, f"the end of {topic} was not reached within {HANG:g} s: {last_error}"
            for message in consumer.consume(10_000, 0.05):
                error = message.error()
                if error is None:
                    found.append(message)
                    if message.offset() + 1 >= ends[message.partition()][1]:
                        left.discard(message.partition())
                elif error.code() == KafkaError._PARTITION_EOF:  # what is last may be the end of a transaction
                    left.discard(message.partition())
                else:  # a partition whose leader is not known for a moment is no end: the client asks again
                    last_error = error
        return found
    finally:
        consumer.close()


def _extent(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """Return where the committed records of a partition begin and end."""

    def asked() -> tuple[int, int] | None:
        with suppress(KafkaException):  # nobody leads it for a moment
            return consumer.get_watermark_offsets(place, timeout=HANG)
        return None

    extent = until(asked, f"the offsets of {place.topic} {place.partition}")
    assert extent is not None
    return extent


def send(
    bootstrap: str,
    topic: str,
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    headers: Headers = (),
    settings: Mapping[str, Any] | None = None,
    partition: int = -1,
) -> None:
    """Write keys and values in order and wait until the broker has them."""
    whole = (Record(topic=topic, key=key, value=value, headers=headers, partition=partition) for key, value in records)
    send_records(bootstrap, "", whole, settings)


def send_records(
    bootstrap: str, prefix: str, records: Iterable[Record], settings: Mapping[str, Any] | None = None
) -> None:
    """Write records in order and wait until the broker has them.

    One request at a time keeps the order; an idempotent producer would wait 0.5 s for its id. So a broker may have some
    twice that ends in the middle of it.
    """
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": 5,
            "message.max.bytes": 100_000_000,
            **(settings or {}),
        }
    )
    for one in records:
        producer.produce(
            prefix + one.topic,
            one.value,
            one.key,
            partition=one.partition,
            headers=[*one.headers],
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
        producer.poll(0)
    left = producer.flush(HANG)
    assert not left, f"{left} records were not delivered"
    assert not failures, failures[:3]


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a consumer group."""

    id: str
    """A member that joins again in its slot has another one."""
    partitions: frozenset[int]


def members(bootstrap: str, group: str) -> dict[str, Member]:
    """Return the members of a group by group.instance.id; none while its coordinator does not answer."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        description = ask_coordinator(admin.describe_consumer_groups, group, within=5.0)
    except KafkaException:
        return {}
    return {
        member.group_instance_id: Member(
            member.member_id, frozenset(place.partition for place in member.assignment.topic_partitions)
        )
        for member in description.members
    }


def delete(bootstrap: str, prefix: str, settings: Mapping[str, Any] | None = None) -> None:
    """Remove all topics whose names begin with the prefix."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **(settings or {})})
    names = [name for name in admin.list_topics(timeout=HANG).topics if name.startswith(prefix)]
    if names:
        for future in admin.delete_topics(names, operation_timeout=HANG, request_timeout=HANG).values():
            future.result()


def last_offset(bootstrap: str, topic: str, partition: int) -> int:
    """Return where the next record of a partition goes, whether those before it are committed or not."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(topic, partition)
    found = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return int(found[place].result(HANG).offset)
