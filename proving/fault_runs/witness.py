"""An independent witness of the bus: sends records, knows by itself which ones arrived, and reads the log again.

It shares nothing with the facade's own clients, which it is to judge.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from facade.clock import Clock
from facade.errors import InfraError

_TICK = 0.05
"""Time between two batches of a stream [s]."""
_ANSWER = 30.0
"""Longest wait for the broker [s]."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A record as it is sent; no two have the same value."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(slots=True)
class Stream:
    """One topic to send to."""

    topic: str
    """As it is called on the brokers."""
    make: Callable[[int], Sent]
    """Gives the record of a number."""
    each: int
    """Ticks of the sender from one batch to the next."""
    batch: int = 1
    """Records in each."""
    number: int = 0
    confirmed: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Partition and offset that the broker gave to each value that it confirmed."""


class Witness:
    """Sends streams from a thread of its own, idempotently and to all in-sync replicas."""

    def __init__(self, bootstrap: str, streams: Mapping[str, Stream], clock: Clock) -> None:
        self._bootstrap, self.streams, self._clock = bootstrap, streams, clock
        self._runs = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._ends = False
        self._tick = 0
        self._producer = self._open()
        self._thread = threading.Thread(target=self._send, name="witness", daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Send."""
        self._idle.clear()
        self._runs.set()

    def pause(self) -> None:
        """Stop sending, and wait until the fate of each record is known.

        Raises
        ------
        InfraError
            It is not known in time.
        """
        self._runs.clear()
        if not self._idle.wait(2 * _ANSWER):
            raise InfraError(f"the fate of records is not known {2 * _ANSWER:g} s after the last one was sent")

    def close(self) -> None:
        """End."""
        self._ends = True
        self._runs.set()
        self._thread.join()

    def _open(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "client.id": "witness",
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": round(1000 * _ANSWER),
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1000,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "log_level": 0,
            }
        )

    def _send(self) -> None:
        while not self._ends:
            try:
                self._send_all()
            except KafkaException as error:
                if error.args[0].fatal() or error.args[0].name() == "_FATAL":
                    # The broker has lost records that it had confirmed: the numbers of this producer do not fit.
                    self._producer = self._open()
                self._clock.sleep(_TICK)  # a record that was refused, as its topic is not there, is not sent

    def _send_all(self) -> None:
        while not self._ends:
            if not self._runs.is_set():
                self._producer.flush()
                self._idle.set()
                self._runs.wait()
            self._tick += 1
            for stream in self.streams.values():
                for _ in range(stream.batch if self._tick % stream.each == 0 else 0):
                    self._produce(stream)
            self._producer.poll(_TICK)

    def _produce(self, stream: Stream) -> None:
        record = stream.make(stream.number)
        stream.number += 1

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None:
                stream.confirmed[record.value] = (message.partition(), message.offset())

        with suppress(BufferError):
            self._producer.produce(
                stream.topic, record.value, record.key, headers=list(record.headers), on_delivery=on_delivery
            )


def read_log(bootstrap: str, topic: str, clock: Clock) -> list[tuple[bytes, bytes]]:
    """Read a whole topic as it is; return keys and values.

    Raises
    ------
    InfraError
        Its end is not reached in time.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "witness",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    found: list[tuple[bytes, bytes]] = []
    try:
        partitions = consumer.list_topics(topic, timeout=_ANSWER).topics[topic].partitions
        consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in partitions])
        ended: set[int] = set()
        deadline = clock.monotonic() + _ANSWER
        while len(ended) < len(partitions):
            if clock.monotonic() > deadline:
                raise InfraError(f"the end of {topic} was not reached within {_ANSWER:g} s")
            for message in consumer.consume(5000, 0.2):
                if message.error() is None:
                    found.append((message.key() or b"", message.value() or b""))
                elif message.error().name() == "_PARTITION_EOF":
                    ended.add(message.partition())
    finally:
        consumer.close()
    return found
