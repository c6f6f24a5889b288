"""The brokers' answers when a worker begins: where each log begins and ends, and the worker's own positions."""

from collections.abc import Sequence

from confluent_kafka import KafkaException, TopicPartition

from facade.bus import port
from facade.bus.kafka import timeouts
from facade.bus.kafka.admin import KafkaTopicWatch
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.read_range import read_range
from facade.bus.offsets import POSITIONS, PartitionFacts
from facade.bus.port import BusHealth, Record
from facade.errors import BusError


def describe_partitions(
    connection: Connection, watch: KafkaTopicWatch, committed: Sequence[TopicPartition], health: BusHealth
) -> tuple[dict[port.TopicPartition, PartitionFacts], list[Record]]:
    """Return the brokers' answers about partitions, and everything on `positions`.

    Open transactions on `positions` are waited for: one of them may have the position of another worker on a partition
    that is this one's now. It is over soon, or the broker ends it after the transaction's time-out.

    Parameters
    ----------
    committed
        The offsets that the group has committed for each partition, as it has just answered.

    Raises
    ------
    KafkaException, BusError
        The brokers do not answer, a topic is not there, or a transaction stays open too long.
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
        found[connection.name(place.topic), place.partition] = PartitionFacts(
            extent.id, first, end, max(place.offset, -1)
        )
    ranges = extents[POSITIONS].ranges
    return found, [*read_range(connection, POSITIONS, ranges, whole=True, within=timeouts.STEP, health=health)]
