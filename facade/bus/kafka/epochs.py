"""Where logs were cut: of what a reader had read before its place, how much is still there.

A log that loses its end and grows again beyond a reader's place looks as if nothing had happened. But what it got
since was written under another leader. The broker knows where the records of each leader epoch end (KIP-320), and the
client asks it for that at the beginning, if it is given the leader epoch of the record before its place.
"""

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from facade.bus.kafka.connection import Connection
from facade.bus.port import BusHealth
from facade.errors import BusError

_BROKER_WAIT = 4.0
"""Longest wait for all answers [s]."""
_SETTINGS = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # Of a place that the log has not any more the client goes back to where the log was cut; of one that it
    # cannot judge, to the end, which says nothing.
    "auto.offset.reset": "latest",
    "isolation.level": "read_uncommitted",
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 10,
    # The client fetches nothing for a while from a partition of which it has so many: with few, others wait as well.
    "queued.min.messages": 1000,
    "fetch.queue.backoff.ms": 2,
    "fetch.message.max.bytes": 10_000,
}


def find_kept(
    connection: Connection, places: Mapping[tuple[str, int], tuple[int, int]], health: BusHealth
) -> dict[tuple[str, int], int]:
    """Return up to which offset a log still has the records that a reader has read.

    Parameters
    ----------
    places
        The next offset of the reader and the leader epoch of the record before it, by topic and partition. Where the
        epoch is not known (-1), nothing is asked.

    Returns
    -------
    dict of (str, int) to int
        For each place that was asked about, the place itself or an offset before it. The first record that replaces
        others may stand behind it, where offsets are marks of transactions.

    Raises
    ------
    BusError
        The brokers do not answer.
    """
    known = {place: at for place, at in places.items() if at[1] >= 0}
    if not known:
        return {}
    settings = {**_SETTINGS, "group.id": f"{connection.prefix}reader"}  # the client wants one
    consumer = connection.consumer(health, settings)
    try:
        consumer.assign(
            [
                TopicPartition(connection.topic(topic), partition, offset, leader_epoch=epoch)
                for (topic, partition), (offset, epoch) in known.items()
            ]
        )
        return _first_heard(connection, consumer, known)
    except KafkaException as error:
        raise BusError(f"no answer about leader epochs from {connection.bootstrap}: {error.args[0]}") from error
    finally:
        consumer.close()


def _first_heard(
    connection: Connection, consumer: Consumer, places: Mapping[tuple[str, int], tuple[int, int]]
) -> dict[tuple[str, int], int]:
    """Return where the first record, or the end, of each partition was found."""
    found: dict[tuple[str, int], int] = {}
    deadline = connection.clock.monotonic() + _BROKER_WAIT
    while late := places.keys() - found.keys():
        if connection.clock.monotonic() > deadline:
            raise BusError(f"no answer about leader epochs of {sorted(late)} within {_BROKER_WAIT} s")
        for message in consumer.consume(1000, 0.01):
            error, topic = message.error(), message.topic()
            if topic is not None and (error is None or error.code() == KafkaError._PARTITION_EOF):
                place = connection.name(topic), message.partition()
                found.setdefault(place, min(message.offset(), places[place][0]))
    return found
