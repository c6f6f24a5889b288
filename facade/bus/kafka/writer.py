"""Writes records, idempotently and to all in-sync replicas: single ones, or streams at full speed."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from facade.bus.kafka.connection import ANSWER_MS, Connection
from facade.bus.kafka.refusals import WRITE, explain, require_present
from facade.bus.port import BusHealth, Headers, Record
from facade.clock import Clock
from facade.errors import BusError

_LAST_REPORTS = 1.0
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
        _drain(self._producer, self._connection.clock, timeout)

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
        if not _is_dead(error):
            raise error
        with self._replacing:
            if self._producer is dead:
                self._producer = self._open()
                dead.purge()
                _drain(dead, self._connection.clock, _LAST_REPORTS)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self._health.failed_writes += 1
            self._connection.note(self._health, _undelivered(error, message))


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


class KafkaStreamWriter:
    """Sends a stream of records at full speed and knows how many of them arrived; for one thread.

    No Python code runs for a record that arrives: what was queued, is not waiting any more and has
    not failed, is what all in-sync replicas have. A full local queue blocks; nothing is dropped.

    Parameters
    ----------
    patience
        A record that cannot be delivered for so long has failed [s].
    """

    def __init__(
        self, connection: Connection, *, health: BusHealth, client: str, linger: float = 0.005, patience: float = 600.0
    ) -> None:
        self._connection = connection
        self._health = health
        self.queued = 0
        """Records accepted for sending."""
        self.failed = 0
        """Records that are known not to be delivered."""
        self._settings = {
            **producer_settings(connection.prefix + client, linger),
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
            "message.timeout.ms": round(patience * 1000),
            "delivery.report.only.error": True,
            "on_delivery": self._on_failure,
        }
        self._producer = connection.producer(health, self._settings)

    @property
    def backlog(self) -> int:
        """Records queued whose fate is not known yet."""
        return len(self._producer)

    @property
    def delivered(self) -> int:
        """Records that all in-sync replicas have."""
        # A failure stays in the client's queue until it is served, so it is never taken for a success.
        return self.queued - self.backlog - self.failed

    def require_topic(self, topic: str, timeout: float) -> bool:
        """Make sure that a topic exists; False when no broker answers within `timeout` [s].

        Raises
        ------
        BusError
            The brokers do not have it, or it may not be written.
        """
        name = self._connection.topic(topic)
        try:
            found = self._producer.list_topics(name, timeout=timeout).topics.get(name)
        except KafkaException as error:
            self._connection.note(self._health, f"no broker answers yet: {error.args[0].str()}")
            return False
        require_present(found, name, WRITE)
        return True

    def send_many(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Queue records in order; waits while the local queue is full. Without `headers` they have none."""
        name = self._connection.topic(topic)
        produce: Callable[..., None] = self._producer.produce
        more: list[dict[str, Any]] = (
            [{}] * len(values) if headers is None else [{"headers": list(one)} for one in headers]
        )
        for key, value, options in zip(keys, values, more, strict=True):
            while True:
                try:
                    produce(name, value, key, **options)
                except BufferError:
                    self.poll(0.05)
                    produce = self._producer.produce
                    continue
                except KafkaException as error:
                    if _is_dead(error):
                        self._replace()
                        produce = self._producer.produce
                        continue
                    self.failed += 1
                    self._note(f"record was refused by the client: {error.args[0].str()}")
                break
        self.queued += len(values)

    def poll(self, timeout: float = 0.0) -> None:
        """Serve failures, waiting at most `timeout` [s] for one."""
        try:
            self._producer.poll(timeout)
        except KafkaException as error:
            if not _is_dead(error):
                raise
            self._replace()

    def flush(self, timeout: float) -> bool:
        """Wait until the fate of all records is known, at most `timeout` [s]; False: not yet."""
        _drain(self._producer, self._connection.clock, timeout)
        return not self.backlog

    def abandon(self) -> None:
        """Give up what is still waiting: it counts as failed, though what is under way may yet arrive."""
        self._producer.purge()
        _drain(self._producer, self._connection.clock, _LAST_REPORTS)

    def _replace(self) -> None:
        """Go on with another producer: to a broker that lost confirmed records this one's numbers do not follow.

        What it had not delivered counts as failed.
        """
        self.abandon()
        self.failed += self.backlog  # of which nothing is told any more
        self._producer = self._connection.producer(self._health, self._settings)

    def _on_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            self._note(_undelivered(error, message))

    def _note(self, text: str) -> None:
        self._health.failed_writes += 1
        if self._health.last_error != text:  # a whole backlog fails at once, for one reason
            self._connection.note(self._health, text)


def _is_dead(error: KafkaException) -> bool:
    """Return whether a client takes no further record."""
    return bool(error.args[0].code() == KafkaError._FATAL or error.args[0].fatal())


def _drain(producer: Producer, clock: Clock, timeout: float) -> None:
    """Serve reports until there are no more of a producer, at most for `timeout` [s].

    The client's ``flush`` does the same, but goes on with the next report when one has raised that the producer has
    died: what runs then has an exception pending, and may leave a lock taken for ever.
    """
    deadline = clock.monotonic() + timeout
    while len(producer) and (left := deadline - clock.monotonic()) > 0:
        with suppress(KafkaException):
            producer.poll(min(left, 0.05))


def _undelivered(error: KafkaError, message: Message) -> str:
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
