"""Writes records: one core, `ProducerCore`, in three modes.

The core is a client of Kafka's library with the settings of a mode. It queues a record on the partition of its key and
waits for room where the mode allows it. It replaces a client that the library gives up: after a broker has lost
confirmed records, the sequence numbers of an idempotent client no longer match, and the library accepts no further
record. All modes wait for all in-sync replicas. They differ in how a caller learns the result of a record.

*Durable* (`KafkaWriter`, `KafkaSender`): each record has a delivery report. The writer is idempotent and leaves retries
to the client; its callers wait for receipts, or look at counts. The sender bounds the time of a command: it retries
itself, gives up a record that has not left at the deadline, and distinguishes a record that is surely not on the bus
from one with an unknown result. A client with retries cannot distinguish them, so the sender's has none and is not
idempotent. Readers compare the ids of commands, so a duplicate record does no harm.

*Stream* (`KafkaStreamWriter`): only failures have a report, as a Python call for each record would limit the rate.
Delivered records are the queued ones, less those that wait or have failed.

*Transactional* (`facade.kernel.bus.kafka.transactional_producer`): all records of a transaction are on the bus, or
none. A failed client loses its transaction, so the core never replaces it by itself.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from operator import length_hint
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.client_settings import settings_of
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.refusals import WRITE, explain, require_present
from facade.kernel.bus.port import BusHealth, Headers, PartitionColumns, Record
from facade.kernel.bus.signatures import UNSIGNED, Signatures
from facade.kernel.errors import BusError, NotSent, OutcomeUnknown

OnDelivery = Callable[[KafkaError | None, Message], None]

_ROOM = 0.05
"""Longest single wait for room in the queue of the client [s]."""
_SLICE = 0.005
"""Longest single wait for a report [s]: another thread may serve it in the meantime."""
_PAUSE = 0.02
"""Pause before a command is sent again [s]."""
_AFTER_PURGE = 0.05
"""Time for the client to report the records of a purge [s]."""

_ELSEWHERE = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_ENOUGH_REPLICAS,
}
"""The broker refused the record, but this broker or another one may accept it a moment later."""
_SURELY_NOT = {
    KafkaError._PURGE_QUEUE,
    KafkaError._QUEUE_FULL,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.INVALID_MSG,
    *_ELSEWHERE,
}
_WORTH_A_TRY = {KafkaError._TRANSPORT, *_ELSEWHERE}


class ProducerCore:
    """A client of Kafka's library; may be used from several threads.

    Parameters
    ----------
    settings
        Of the mode.
    replaced
        Called when a new client has replaced a dead one, after all reports of the dead one. None: a dead client raises
        its error.
    signatures
        By which the records are signed; what copies the records of others signs none.
    """

    def __init__(
        self,
        connection: Connection,
        health: BusHealth,
        settings: Mapping[str, Any],
        replaced: Callable[[Producer], None] | None = None,
        *,
        signatures: Signatures = UNSIGNED,
    ) -> None:
        self.connection, self.health = connection, health
        self._settings, self._replaced, self._signatures = settings, replaced, signatures
        self._replacing = threading.Lock()
        self.client = connection.producer(health, settings)

    def produce(
        self, record: Record, on_delivery: OnDelivery | None = None, *, waits: bool = False, **more: Any
    ) -> None:
        """Queue a record, on the partition of its key unless `more` names one.

        `waits`: wait while the queue is full.

        Raises
        ------
        KafkaException
            The client refuses the record.
        BufferError
            The queue is full, and `waits` is false.
        """
        if on_delivery is not None:
            more["on_delivery"] = on_delivery
        topic = self.connection.topic(record.topic)
        headers = list(self._signatures.sign(record, self.connection.clock.now_us()))
        while True:
            client = self.client
            try:
                client.produce(topic, record.value, record.key, headers=headers, **more)
            except BufferError:
                if not waits:
                    raise
                self.poll(_ROOM)
            except KafkaException as error:
                self._replace(client, error)
            else:
                return

    def poll(self, timeout: float = 0.0) -> None:
        """Serve reports, waiting at most `timeout` [s] for one."""
        client = self.client
        try:
            client.poll(timeout)
        except KafkaException as error:
            self._replace(client, error)

    def _replace(self, dead: Producer, error: KafkaException) -> None:
        if self._replaced is None or not (error.args[0].code() == KafkaError._FATAL or error.args[0].fatal()):
            raise error
        with self._replacing:
            if self.client is dead:
                self.client = self.connection.producer(self.health, self._settings)
                self.give_up(dead)
                self._replaced(dead)

    def give_up(self, client: Producer) -> None:
        """Give up waiting records; those under way may yet arrive."""
        client.purge()
        self.drain(timeouts.LAST_REPORTS, client)

    def drain(self, timeout: float, client: Producer | None = None) -> None:
        """Serve reports until there are none left, for at most `timeout` [s].

        The client's ``flush`` does the same, but calls back with the next report after a callback has raised that the
        producer is dead: that callback runs with an exception pending, and may leave a lock locked for ever.
        """
        client, clock = self.client if client is None else client, self.connection.clock
        deadline = clock.monotonic() + timeout
        while len(client) and (left := deadline - clock.monotonic()) > 0:
            with suppress(KafkaException):
                client.poll(min(left, 0.05))

    def note(self, text: str) -> None:
        """Record the reason why a record was not written."""
        self.connection.note(self.health, text)


def undelivered(error: KafkaError, message: Message) -> str:
    """Return the reason why a record was not delivered."""
    said = error.str()
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:  # the client's own text names no topic
        said = explain(error, str(message.topic()), WRITE)
    return f"record was not delivered: {said}"


class KafkaWriter:
    """Durable mode: writes single records, and reports the result of each; may be used from several threads."""

    def __init__(self, connection: Connection, *, health: BusHealth, client: str, linger: float = 0.0) -> None:
        self._connection = connection
        settings = {
            **settings_of("durable"),
            "client.id": connection.prefix + client,
            "linger.ms": round(linger * 1000),
        }
        self._core = ProducerCore(connection, health, settings, lambda dead: None, signatures=connection.signatures)
        self.delivered = 0
        """Records that all in-sync replicas have."""
        self._lock = threading.Lock()
        self._mark = 0
        self._under_way: Counter[int] = Counter()
        """Records without a result, by the mark before them; only of `send`."""
        self._failures: Counter[str] = Counter()

    def send(self, record: Record) -> None:
        """Queue a record; a failure is counted and logged, not raised."""
        mark = self._mark

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self._count(mark, -1, record.topic if error is not None else "")
            self._on_delivery(error, message)

        self._count(mark, 1)
        try:
            self._core.produce(record, on_delivery)
        except (KafkaException, BufferError) as error:
            self._count(mark, -1, record.topic)
            self._core.note(f"record for {record.topic} was not queued: {error}")
        except BaseException:
            self._count(mark, -1, record.topic)  # otherwise its result would stay unknown
            raise
        self.poll()

    def mark(self) -> int:
        """Return a mark after everything queued so far."""
        self._mark += 1
        return self._mark

    def settled(self, mark: int) -> bool:
        """Return whether everything before a mark has a result."""
        self.poll()
        with self._lock:
            return all(before >= mark for before in self._under_way)

    def _count(self, mark: int, change: int, failed: str = "") -> None:
        with self._lock:  # the polling thread gets the reports of all threads
            self._under_way[mark] += change
            if not self._under_way[mark]:
                del self._under_way[mark]
            if failed:
                self._failures[failed] += 1

    def failures(self, topic: str) -> int:
        """Count the records for a topic whose delivery failed."""
        return self._failures[topic]

    def send_durably(self, record: Record, timeout: float) -> None:
        """Write a record and wait until all in-sync replicas have it; see `facade.kernel.bus.port.Writer`."""
        self.send_all_durably([record], timeout)

    def send_all_durably(self, records: Sequence[Record], timeout: float) -> None:
        """Write records and wait until all in-sync replicas have them; see `facade.kernel.bus.port.Writer`."""
        self.post(records).wait(timeout)

    def post(self, records: Sequence[Record]) -> "KafkaReceipt":
        """Queue records whose receipt is checked later; see `facade.kernel.bus.port.Writer`."""
        receipt = KafkaReceipt(self._core, records[0].topic if records else "", len(records))

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            self._on_delivery(error, message)
            receipt.take(error, message)

        for record in records:
            try:
                self._core.produce(record, on_delivery)
            except (KafkaException, BufferError) as error:
                raise BusError(f"record for {record.topic} was not sent: {error}") from error
        return receipt

    def poll(self, timeout: float = 0.0) -> None:
        """Serve delivery reports, waiting at most `timeout` [s] for one."""
        self._core.poll(timeout)

    def close(self, timeout: float) -> None:
        """Wait for queued records, at most `timeout` [s]."""
        self._core.drain(timeout)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.delivered += 1
        else:
            self._core.note(undelivered(error, message))


class KafkaReceipt:
    """See `facade.kernel.bus.port.Receipt`."""

    def __init__(self, core: ProducerCore, topic: str, records: int) -> None:
        self._core, self._topic, self._records = core, topic, records
        self.outcomes: list[KafkaError | None] = []
        """Delivery reports so far, one for each record."""

    def take(self, error: KafkaError | None, message: Message) -> None:
        """Handle the delivery report of a record."""
        self.outcomes.append(error)

    def is_complete(self, timeout: float) -> bool:
        """Return whether each record has a delivery report within a time [s]."""
        clock = self._core.connection.clock
        deadline = clock.monotonic() + timeout
        while len(self.outcomes) < self._records and (left := deadline - clock.monotonic()) > 0:
            self._core.poll(min(left, _SLICE))
        return len(self.outcomes) == self._records

    def wait(self, timeout: float) -> None:
        """Wait until all in-sync replicas have the records; see `facade.kernel.bus.port.Receipt`."""
        if not self.is_complete(timeout):
            raise BusError(
                f"no broker of {self._core.connection.bootstrap} confirmed the record for {self._topic} within"
                f" {timeout} s; it may still arrive"
            )
        for refused in filter(None, self.outcomes):
            raise BusError(f"record for {self._topic} was refused: {refused.str()}")

    @property
    def confirmed(self) -> bool:
        """Return whether all in-sync replicas have confirmed the records."""
        return self.settled and not any(self.outcomes)

    @property
    def settled(self) -> bool:
        """Return whether each record has a delivery report."""
        self._core.poll()
        return len(self.outcomes) == self._records


class KafkaSender:
    """Durable mode in a bounded time: see `facade.kernel.bus.port.CommandSender`; threads may share it.

    It has its own client: at most another command and heartbeats are given up together with a command, and they find
    the same broker silent. The heartbeats keep its connections warm; otherwise the first command would take half a
    second.
    """

    def __init__(self, connection: Connection, *, health: BusHealth, client: str) -> None:
        self._connection = connection
        settings = {**settings_of("bounded"), "client.id": connection.prefix + client, "linger.ms": 0}
        self._core = ProducerCore(connection, health, settings, signatures=connection.signatures)

    def send(self, record: Record, timeout: float) -> "KafkaSending":
        """Queue a record; see `facade.kernel.bus.port.CommandSender`."""
        return KafkaSending(self._core, record, timeout)

    def post(self, record: Record) -> None:
        """Queue a record without waiting for it; a failure is counted and logged, not raised."""
        try:
            self._core.produce(record, self._on_posted)
            self._core.poll()
        except (KafkaException, BufferError) as error:
            self._core.note(f"record for {record.topic} was not delivered: {error}")

    def perform(self) -> None:
        """Serve reports, also the client's statistics of each second, which stay in memory otherwise."""
        self._core.poll()

    def end(self) -> None:
        """Do nothing: the callers wait for their records."""

    def close(self, timeout: float) -> None:
        """Wait for queued records, at most `timeout` [s]."""
        self._core.drain(timeout)

    def _on_posted(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            topic = self._connection.name(message.topic() or "")
            self._core.note(f"record for {topic} was not delivered: {error.str()}")


class KafkaSending:
    """A record of `KafkaSender`; see `facade.kernel.bus.port.Sending`."""

    def __init__(self, core: ProducerCore, record: Record, timeout: float) -> None:
        self._core, self._record, self._timeout = core, record, timeout
        self._deadline = core.connection.clock.monotonic() + timeout - _AFTER_PURGE
        self._queue()

    def result(self) -> None:
        """Wait until all in-sync replicas have the record; see `facade.kernel.bus.port.Sending`."""
        clock, doubt = self._core.connection.clock, ""
        while (error := self._error()) is not None:
            if error.code() not in _SURELY_NOT:
                doubt = error.str()
            if error.code() not in _WORTH_A_TRY or clock.monotonic() > self._deadline - _PAUSE:
                raise self._given_up(error, doubt)
            clock.sleep(_PAUSE)
            self._queue()

    def _queue(self) -> None:
        self._refused: KafkaError | None = None
        self._receipt = KafkaReceipt(self._core, self._record.topic, 1)
        try:
            self._core.produce(self._record, self._receipt.take)
        except KafkaException as error:
            self._refused = error.args[0]
        except BufferError:
            self._refused = KafkaError(KafkaError._QUEUE_FULL)

    def _error(self) -> KafkaError | None:
        """Wait for the report of the last try; return its error."""
        if self._refused is not None:
            return self._refused
        receipt = self._receipt
        if not receipt.is_complete(self._deadline - self._core.connection.clock.monotonic()):
            # A record that has not left is dropped: it must not be executed after its caller was told of the failure.
            self._core.client.purge(in_queue=True, in_flight=True, blocking=False)
            receipt.is_complete(_AFTER_PURGE)
        return receipt.outcomes[0] if receipt.outcomes else KafkaError(KafkaError._PURGE_INFLIGHT)

    def _given_up(self, error: KafkaError, doubt: str) -> BusError:
        topic, brokers, within = self._record.topic, self._core.connection.bootstrap, f"within {self._timeout:g} s"
        if doubt:
            self._core.note(f"record for {topic} was not confirmed {within}")
            return OutcomeUnknown(
                f"the record for {topic} was sent, but no broker of {brokers} confirmed it {within} ({doubt})"
            )
        why = f"no broker of {brokers} took it {within}" if error.code() == KafkaError._PURGE_QUEUE else error.str()
        self._core.note(f"record for {topic} was not sent: {why}")
        return NotSent(f"the record for {topic} was not sent: {why}")


class KafkaStreamWriter:
    """Stream mode: sends records at full speed and counts the delivered ones; for one thread.

    A full local queue blocks; nothing is dropped.

    Parameters
    ----------
    linger
        Time that a record waits for further ones [s]. It should be longer than a broker takes to confirm a record: see
        the reason of ``linger.ms`` in `facade.kernel.bus.kafka.client_settings`.
    patience
        A record without delivery for this time has failed [s].
    """

    def __init__(
        self, connection: Connection, *, health: BusHealth, client: str, linger: float = 0.05, patience: float = 600.0
    ) -> None:
        self._connection = connection
        self._health = health
        self.queued = 0
        """Records accepted for sending."""
        self.failed = 0
        """Records with a known failure."""
        settings = {
            **settings_of("stream"),
            "client.id": connection.prefix + client,
            "linger.ms": round(linger * 1000),
            "message.timeout.ms": round(patience * 1000),
            "on_delivery": self._on_failure,
        }
        self._core = ProducerCore(connection, health, settings, self._on_replaced)

    @property
    def backlog(self) -> int:
        """Queued records without a result."""
        return len(self._core.client)

    @property
    def delivered(self) -> int:
        """Records that all in-sync replicas have."""
        # A failure stays in the client's queue until it is served, so it never counts as a success.
        return self.queued - self.backlog - self.failed

    def require_topic(self, topic: str, timeout: float) -> bool:
        """Return whether a topic exists; False when no broker answers within `timeout` [s].

        Raises
        ------
        BusError
            The brokers do not have it, or it may not be written.
        """
        name = self._connection.topic(topic)
        try:
            found = self._core.client.list_topics(name, timeout=timeout).topics.get(name)
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
        name, produce = self._connection.topic(topic), self._core.client.produce
        more: list[dict[str, Any]] = (
            [{}] * len(values) if headers is None else [{"headers": list(one)} for one in headers]
        )
        for key, value, options in zip(keys, values, more, strict=True):
            try:
                produce(name, value, key, **options)
            except (BufferError, KafkaException):
                self._send(Record(topic=topic, key=key, value=value, headers=tuple(options.get("headers", ()))))
                produce = self._core.client.produce
        self.queued += len(values)

    def copy(self, columns: PartitionColumns) -> None:
        """Queue records with their partition and timestamps; waits while the queue is full."""
        sizes = {len(one) for one in (columns.keys, columns.values, columns.timestamps, columns.headers)}
        assert len(sizes) == 1, f"{columns.topic}: columns of {sizes} records, of which the shortest would end all"
        name, partition, count, nothing = self._connection.topic(columns.topic), columns.partition, 0, repeat(None)
        headers = ([*one] if one else None for one in columns.headers) if any(columns.headers) else nothing
        keys, values, times = iter(columns.keys), iter(columns.values), iter(columns.timestamps)
        while count < len(columns.values):
            # No Python code runs for a record, which takes two thirds of the time of a loop. There are no keyword
            # arguments. The sixth argument is a second name of the fifth, the callback.
            produced = map(
                self._core.client.produce,
                *(repeat(name), values, keys, repeat(partition), nothing, nothing, times, headers),
            )
            try:
                deque(produced, maxlen=0)
                count = len(columns.values)
            except (BufferError, KafkaException):
                count = len(columns.values) - length_hint(values)
                (record,) = columns.part(count - 1, count).records()
                self._send(record, partition=partition, timestamp=columns.timestamps[count - 1])
        self.queued += len(columns.values)

    def _send(self, record: Record, **more: Any) -> None:
        """Queue a record as soon as there is room: the client's queue was full, or the client is dead."""
        try:
            self._core.produce(record, waits=True, **more)
        except KafkaException as error:
            self.failed += 1
            self._note(f"record was refused by the client: {error.args[0].str()}")

    def poll(self, timeout: float = 0.0) -> None:
        """Serve failures, waiting at most `timeout` [s] for one."""
        self._core.poll(timeout)

    def flush(self, timeout: float) -> bool:
        """Wait until all records have a result, at most `timeout` [s]; False: not yet."""
        self._core.drain(timeout)
        return not self.backlog

    def abandon(self) -> None:
        """Give up waiting records: they count as failed, though those under way may yet arrive."""
        self._core.give_up(self._core.client)

    def _on_replaced(self, dead: Producer) -> None:
        self.failed += len(dead)  # they have no reports

    def _on_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            self._note(undelivered(error, message))

    def _note(self, text: str) -> None:
        if self._health.last_error != text:  # a whole backlog fails at once, for the same reason
            self._core.note(text)
