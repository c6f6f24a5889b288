"""Reads known ranges of offsets of a topic, and ends: otherwise new records could make the read endless.

An offset may be a transaction's end marker or a compacted record, which are never delivered. So a partition ends with
the last record of its range or with the client's end-of-partition event (`_PARTITION_EOF`). For a reader of committed
records this event comes before the first open transaction.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.client_settings import settings_of
from facade.kernel.bus.kafka.connection import Connection, to_record
from facade.kernel.bus.kafka.refusals import MOVING, failing
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.errors import BusError
from facade.kernel.icd.topic_model import READER

RangeOfPartition = Mapping[int, tuple[int, int]]
"""First offset and the offset after the last, by partition."""


def read_range(
    connection: Connection,
    topic: str,
    ranges: RangeOfPartition,
    *,
    whole: bool = False,
    committed: bool = True,
    within: float | None = None,
    health: BusHealth | None = None,
) -> Iterator[Record]:
    """Return the records of ranges of offsets, each partition in its order.

    Parameters
    ----------
    whole
        Wait for open transactions. False: a partition ends before the first of them.
    committed
        False: return the records of open and aborted transactions as well.
    within
        Longest time for the whole read [s]. None: no bound, as long as records come.
    health
        Collects the errors of the client.

    Raises
    ------
    BusError
        The topic may not be read, the time is over, or no record came for `timeouts.STANDSTILL`.
    """
    clock, left = connection.clock, {partition: end for partition, (begin, end) in ranges.items() if begin < end}
    if not left:
        return
    settings = {
        **settings_of("consumer", "range"),
        "group.id": connection.prefix + READER,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }
    consumer = connection.consumer(health or BusHealth(), settings)
    with failing(f"topic {connection.topic(topic)} cannot be read at {connection.bootstrap}"), closing(consumer):
        consumer.assign([TopicPartition(connection.topic(topic), at, ranges[at][0]) for at in left])
        began = heard = clock.monotonic()
        while left:
            messages = consumer.consume(1000, 0.05)
            for message in messages:
                error, partition, offset = message.error(), message.partition(), message.offset()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    if error.code() in MOVING:
                        continue  # the client asks again
                    raise KafkaException(error)
                end = ranges[partition][1]
                if error is None and offset < end:
                    yield to_record(connection, message)
                if offset >= (end if error is not None else end - 1) or (error is not None and not whole):
                    left.pop(partition, None)
            now = clock.monotonic()
            heard = now if messages else heard
            if left and now - heard > timeouts.STANDSTILL:
                raise BusError(f"{_late(connection, topic, left)}: nothing came for {timeouts.STANDSTILL:g} s; {_WHY}")
            if left and within is not None and now - began > within:
                raise BusError(f"{_late(connection, topic, left)} within {within:g} s; {_WHY}")


_WHY = "a transaction may be open, or the broker be away: try again"


def _late(connection: Connection, topic: str, left: Mapping[int, int]) -> str:
    return f"the end of {connection.topic(topic)}, partitions {sorted(left)}, was not reached"
