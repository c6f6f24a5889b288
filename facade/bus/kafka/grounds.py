"""What the brokers say when a worker begins: where each log begins and ends, and the worker's own positions."""

from collections.abc import Sequence

from confluent_kafka import KafkaException, TopicPartition

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.reader import TO_END, KafkaReader
from facade.bus.kafka.topic_watch import KafkaTopicWatch
from facade.bus.port import BusHealth, Record
from facade.bus.worker_positions import POSITIONS, Ground, Place
from facade.errors import BusError

_BROKER_WAIT = 4.0
"""Longest wait for the end of open transactions [s]."""


def find_grounds(
    connection: Connection, watch: KafkaTopicWatch, committed: Sequence[TopicPartition], health: BusHealth
) -> tuple[dict[Place, Ground], list[Record]]:
    """Return what the brokers say of partitions, and everything on `positions`.

    Open transactions on `positions` are waited for: one of them may hold what another worker has written of a partition
    that is this one's now. It is over soon, or the broker ends it after the transaction's time-out.

    Parameters
    ----------
    committed
        What the group has committed for each partition, as it has just answered.

    Raises
    ------
    KafkaException, BusError
        The brokers do not answer, a topic is not there, or a transaction stays open for so long.
    """
    topics = {connection.name(place.topic) for place in committed}
    extents = watch.extents([*topics, POSITIONS])
    if missing := {*topics, POSITIONS} - extents.keys():
        raise BusError(
            f"topics {', '.join(map(connection.topic, sorted(missing)))} are not there at {connection.bootstrap}, or"
            " may not be seen; make them with: sdp-facade topics create"
        )
    found = {}
    for place in committed:
        if place.error is not None:
            raise KafkaException(place.error)
        extent = extents[connection.name(place.topic)]
        first, end = extent.ranges[place.partition]
        found[connection.name(place.topic), place.partition] = Ground(extent.id, first, end, max(place.offset, -1))
    return found, _read_up_to(connection, {one: end for one, (_, end) in extents[POSITIONS].ranges.items()}, health)


def _read_up_to(connection: Connection, ends: dict[int, int], health: BusHealth) -> list[Record]:
    reader = KafkaReader(connection, {POSITIONS: None}, start={}, health=health, fetch=TO_END)
    try:
        return reader.read_up_to(POSITIONS, ends, _BROKER_WAIT)
    finally:
        reader.close()
