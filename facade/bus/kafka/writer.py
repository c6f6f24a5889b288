"""Writes single records, idempotently and to all in-sync replicas; `facade.bus.kafka.stream_writer` is for streams."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from facade.bus.kafka.connection import ANSWER_MS, Connection
from facade.bus.kafka.refusals import WRITE, explain
from facade.bus.port import BusHealth, Record
from facade.clock import Clock
from facade.errors import BusError

LAST_REPORTS = 1.0
"""Longest wait for what a producer that has died has to say of its records [s]."""


class KafkaWriter:
    """An idempotent producer; may be used from several threads."""

    def __init__(self, connection: Connection, *, health: BusHealth, client: str, linger: float = 0.0) -> None:
        self._connection = connection
        self._health = health
        self._settings = {
            **producer_settings(connection.prefix + client, linger),
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
        }
        self._producer = self._open()
        self.delivered = 0
        """Records that all in-sync replicas have."""
        self._lock, self._replacing = threading.Lock(), threading.Lock()
        self._mark = 0
        self._under_way: Counter[int] = Counter()
        """Records whose fate is not known, by the mark before them; only of `send`."""
        self._failures: Counter[str] = Counter()

    def send(self, record: Record) -> None:
        """Queue a record; a failure is counted and logged, not raised."""
        mark = self._mark

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self._count(mark, -1, record.topic if error is not None else "")
            self._on_delivery(error, message)

        self._count(mark, 1)
        try:
            self._produce(record, on_delivery)
        except (KafkaException, BufferError) as error:
            self._count(mark, -1, record.topic)
            self._health.failed_writes += 1
            self._connection.note(self._health, f"record for {record.topic} was not queued: {error}")
        except BaseException:
            self._count(mark, -1, record.topic)  # or its fate would be open for ever
            raise
        self.poll()

    def mark(self) -> int:
        """Return a mark that stands behind everything queued so far."""
        self._mark += 1
        return self._mark

    def settled(self, mark: int) -> bool:
        """Return whether the fate of everything before a mark is known."""
        self.poll()
        with self._lock:
            return all(before >= mark for before in self._under_way)

    def _count(self, mark: int, change: int, failed: str = "") -> None:
        with self._lock:  # whichever thread polls is told about the records of all
            self._under_way[mark] += change
            if not self._under_way[mark]:
                del self._under_way[mark]
            if failed:
                self._failures[failed] += 1

    def failures(self, topic: str) -> int:
        """Count the records for a topic whose delivery failed."""
        return self._failures[topic]

    def send_durably(self, record: Record, timeout: float) -> None:
        """Write a record and wait until all in-sync replicas have it; see `facade.bus.port.Writer`."""
        self.send_all_durably([record], timeout)

    def send_all_durably(self, records: Sequence[Record], timeout: float) -> None:
        """Write records and wait until all in-sync replicas have them; see `facade.bus.port.Writer`."""
        self.post(records).wait(timeout)

    def post(self, records: Sequence[Record]) -> "KafkaReceipt":
        """Queue records whose receipt will be asked for; see `facade.bus.port.Writer`."""
        receipt = KafkaReceipt(self.poll, self._connection, records[0].topic if records else "", len(records))

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self._on_delivery(error, message)
            receipt.outcomes.append(error)

        for record in records:
            try:
                self._produce(record, on_delivery)
            except (KafkaException, BufferError) as error:
                raise BusError(f"record for {record.topic} was not sent: {error}") from error
        return receipt

    def poll(self, timeout: float = 0.0) -> None:
        """Serve delivery reports, waiting at most `timeout` [s] for one."""
        producer = self._producer
        try:
            producer.poll(timeout)
        except KafkaException as error:
            self._replace(producer, error)

    def close(self, timeout: float) -> None:
        """Wait for what is queued, at most `timeout` [s]."""
        drain(self._producer, self._connection.clock, timeout)

    def _produce(self, record: Record, on_delivery: object) -> None:
        topic, headers = self._connection.topic(record.topic), list(record.headers)
        producer = self._producer
        try:
            producer.produce(topic, record.value, record.key, headers=headers, on_delivery=on_delivery)
        except KafkaException as error:
            self._replace(producer, error)
            self._producer.produce(topic, record.value, record.key, headers=headers, on_delivery=on_delivery)

    def _open(self) -> Producer:
        return self._connection.producer(self._health, self._settings)

    def _replace(self, dead: Producer, error: KafkaException) -> None:
        """Go on with another producer: to a broker that lost confirmed records this one's numbers do not follow."""
        if not is_dead(error):
            raise error
        with self._replacing:
            if self._producer is dead:
                self._producer = self._open()
                dead.purge()
                drain(dead, self._connection.clock, LAST_REPORTS)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self._health.failed_writes += 1
            self._connection.note(self._health, undelivered(error, message))


class KafkaReceipt:
    """See `facade.bus.port.Receipt`."""

    def __init__(self, serve: Callable[[float], None], connection: Connection, topic: str, records: int) -> None:
        self._serve = serve
        self._connection = connection
        self._topic = topic
        self._records = records
        self.outcomes: list[KafkaError | None] = []
        """What the client has reported of each record so far."""

    def wait(self, timeout: float) -> None:
        """Wait until all in-sync replicas have the records; see `facade.bus.port.Receipt`."""
        clock = self._connection.clock
        deadline = clock.monotonic() + timeout
        while len(self.outcomes) < self._records and (left := deadline - clock.monotonic()) > 0:
            self._serve(min(left, 0.005))  # another thread may serve the report in the meantime
        if len(self.outcomes) < self._records:
            raise BusError(
                f"no broker of {self._connection.bootstrap} confirmed the record for {self._topic} within {timeout} s;"
                " it may still arrive"
            )
        for refused in filter(None, self.outcomes):
            raise BusError(f"record for {self._topic} was refused: {refused.str()}")

    @property
    def confirmed(self) -> bool:
        """Return whether all in-sync replicas are known to have the records."""
        return self.settled and not any(self.outcomes)

    @property
    def settled(self) -> bool:
        """Return whether the client has told the fate of each record."""
        self._serve(0)
        return len(self.outcomes) == self._records


def is_dead(error: KafkaException) -> bool:
    """Return whether a client takes no further record."""
    return bool(error.args[0].code() == KafkaError._FATAL or error.args[0].fatal())


def drain(producer: Producer, clock: Clock, timeout: float) -> None:
    """Serve reports until there are no more of a producer, at most for `timeout` [s].

    The client's ``flush`` does the same, but goes on with the next report when one has raised that the producer has
    died: what runs then has an exception pending, and may leave a lock taken for ever.
    """
    deadline = clock.monotonic() + timeout
    while len(producer) and (left := deadline - clock.monotonic()) > 0:
        with suppress(KafkaException):
            producer.poll(min(left, 0.05))


def undelivered(error: KafkaError, message: Message) -> str:
    """Say why a record was not delivered."""
    said = error.str()
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:  # in its own words no topic stands
        said = explain(error, str(message.topic()), WRITE)
    return f"record was not delivered: {said}"


def producer_settings(client: str, linger: float) -> dict[str, Any]:
    """Give the settings of every producer that writes idempotently and to all in-sync replicas."""
    return {
        "client.id": client,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": round(linger * 1000),
        "socket.timeout.ms": ANSWER_MS,
        "message.max.bytes": 16_777_216,
        "batch.size": 1_000_000,
        # As Java clients choose: one key is on one partition whoever writes it. (librdkafka's own choice
        # also puts the keys 0 to 3 on the same one of two partitions, so that half of the workers idle.)
        "partitioner": "murmur2_random",
    }
