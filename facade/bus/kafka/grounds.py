"""What the brokers say when a worker begins: where each log begins and ends, and the worker's own positions."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from confluent_kafka import KafkaException, TopicPartition

from facade.bus.kafka import timeouts
from facade.bus.kafka.admin import KafkaTopicWatch
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.read_range import read_range
from facade.bus.port import BusHealth, Record
from facade.bus.positions import Extent
from facade.bus.worker_positions import ACCOUNTS, POSITIONS, Ground, Place
from facade.errors import BusError

_RECENT = 20_000
"""So many of the newest offsets on `accounts` are of what may be lost: some 30 s of twenty busy workers."""


def find_grounds(
    connection: Connection, watch: KafkaTopicWatch, committed: Sequence[TopicPartition], health: BusHealth
) -> tuple[dict[Place, Ground], list[Record]]:
    """Return what the brokers say of partitions, everything on `positions`, and the newest accounts.

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
    extents = watch.extents([*topics, POSITIONS, ACCOUNTS])
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
    return found, _read(connection, extents, health)


def _read(connection: Connection, extents: Mapping[str, Extent], health: BusHealth) -> list[Record]:
    """Read `positions` up to its end, and the newest accounts, unless an open transaction is in the way."""
    recent = extents[ACCOUNTS].ranges if ACCOUNTS in extents else {}
    recent = {one: (max(first, end - _RECENT), end) for one, (first, end) in recent.items()}
    read = partial(read_range, connection, whole=True, health=health)
    records = [*read(POSITIONS, extents[POSITIONS].ranges, within=timeouts.STEP)]
    with suppress(BusError):  # what they would tell is not known
        records += [*read(ACCOUNTS, recent, within=timeouts.ACCOUNTS)]
    return records
