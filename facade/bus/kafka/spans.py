"""Reads a part of a topic that is known before: what comes meanwhile may be without end."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from facade.bus.kafka.connection import ANSWER_MS, Connection
from facade.bus.kafka.records import to_record
from facade.bus.kafka.refusals import READ, ask_again, describe, require_present
from facade.bus.port import BusHealth, Record
from facade.errors import BusError

_BROKER_WAIT = 10.0
"""Longest wait for an answer of the broker [s]."""
_STANDSTILL = 20.0
"""Longest time in which nothing comes [s]; more than a transaction of ours may stay open."""

Span = Mapping[int, tuple[int, int]]
"""Offsets by partition: the first, and the one behind the last."""


def find_span(connection: Connection, topic: str, *, since: float = 0.0, newest: int = 0) -> dict[int, tuple[int, int]]:
    """Return what stands on a topic now, without partitions on which nothing does.

    Parameters
    ----------
    since
        Only records of that time or later [Unix s].
    newest
        Only the last so many places of each partition; 0: all.

    Raises
    ------
    BusError
        The broker does not answer, or the topic is not there or may not be read.
    """
    # A reader of what is committed is told of the end before the first transaction that is open.
    with _consumer(connection, topic, isolation="read_uncommitted") as consumer:
        name = connection.topic(topic)
        found = require_present(consumer.list_topics(name, timeout=_BROKER_WAIT).topics.get(name), name, READ)
        places = [TopicPartition(name, partition, round(since * 1000)) for partition in found.partitions]
        clock, begins = connection.clock, {}
        if since > 0:
            at_time = ask_again(lambda: consumer.offsets_for_times(places, timeout=_BROKER_WAIT), clock, _BROKER_WAIT)
            begins = {at.partition: at.offset for at in at_time}
        span = {}
        for place in places:
            marks = partial(consumer.get_watermark_offsets, place, timeout=_BROKER_WAIT)
            low, high = ask_again(marks, clock, _BROKER_WAIT)
            begin = begins.get(place.partition, low)
            begin = high if begin < 0 else max(begin, low, high - newest if newest else low)
            if begin < high:
                span[place.partition] = begin, high
        return span


def read_span(connection: Connection, topic: str, span: Span, *, whole: bool = False) -> Iterator[Record]:
    """Return the committed records of a span, each partition in its order.

    Parameters
    ----------
    whole
        Wait for transactions that were open: what stands behind them is seen only then. Else such a partition ends
        before them.

    Raises
    ------
    BusError
        The topic may not be read, or nothing came for `_STANDSTILL`.
    """
    clock, left = connection.clock, {partition: end for partition, (_, end) in span.items()}
    with _consumer(connection, topic) as consumer:
        consumer.assign([TopicPartition(connection.topic(topic), at, begin) for at, (begin, _) in span.items()])
        heard = clock.monotonic()
        while left:
            messages = consumer.consume(1000, 0.1)
            for message in messages:
                error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                end = span[partition][1]
                if error is None and offset < end:
                    yield to_record(connection, message)
                if offset >= (end if error is not None else end - 1) or (error is not None and not whole):
                    left.pop(partition, None)
            now = clock.monotonic()
            heard = now if messages else heard
            if now - heard > _STANDSTILL:
                raise BusError(
                    f"the end of partitions {sorted(left)} was not reached: nothing came for {_STANDSTILL:g} s; a"
                    " transaction may be open, or the broker be away: try again"
                )


@contextmanager
def _consumer(connection: Connection, topic: str, *, isolation: str = "read_committed") -> Iterator[Consumer]:
    settings = {**_settings(connection.prefix), "isolation.level": isolation}
    consumer = connection.consumer(BusHealth(), settings)
    try:
        yield consumer
    except KafkaException as error:
        where = f"topic {connection.topic(topic)} cannot be read at {connection.bootstrap}"
        raise BusError(f"{where}: {describe(error)}") from error
    finally:
        consumer.close()


def _settings(prefix: str) -> dict[str, object]:
    return {
        "group.id": f"{prefix}inspection",  # the client wants one; nothing is ever committed to it
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "socket.timeout.ms": ANSWER_MS,
        "fetch.wait.max.ms": 20,
    }
