"""Puts single commands on the bus within a bounded time, and tells what is known when that fails."""

import threading

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.writer import producer_settings
from facade.bus.port import BusHealth, Record
from facade.errors import NotSent, OutcomeUnknown

_SLICE = 0.005
"""Longest single wait for a report [s]: another thread may take it from the client in the meantime."""
_AFTER_PURGE = 0.05
"""Time for the client to report what it has just given up [s]."""

_SURELY_NOT = {
    KafkaError._PURGE_QUEUE,
    KafkaError._QUEUE_FULL,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.INVALID_MSG,
}


class KafkaSender:
    """See `facade.commands.gateway.Sender`; may be used from several threads.

    Its producer is its own: what is given up together with one command is at most another command and
    heartbeats, which find the same broker silent. The heartbeats keep its connections warm, without
    which the first command would wait for half a second.
    """

    def __init__(self, connection: Connection, *, health: BusHealth, client: str) -> None:
        self._connection = connection
        self._health = health
        self._producer = Producer(connection.config(health, producer_settings(connection.prefix + client, 0.0)))

    def send(self, record: Record, timeout: float) -> None:
        """Return once all in-sync replicas have a record."""
        done = threading.Event()
        outcome: list[KafkaError | None] = []
        was_up = self._health.connected

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            outcome.append(error)
            done.set()

        try:
            self._producer.produce(
                self._connection.topic(record.topic),
                record.value,
                record.key,
                headers=list(record.headers),
                on_delivery=on_delivery,
            )
        except (KafkaException, BufferError) as error:
            raise NotSent(f"the record for {record.topic} was not sent: {error}") from error
        self._await(done, timeout)
        if not done.is_set():
            # What has not left is dropped, so that it cannot be executed after its caller was told that it failed.
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self._await(done, _AFTER_PURGE)
        self._judge(record.topic, outcome, timeout, up=was_up or self._health.connected)

    def post(self, record: Record) -> None:
        """Queue a record without waiting for it; a failure is counted and logged, not raised."""
        try:
            self._producer.produce(
                self._connection.topic(record.topic), record.value, record.key, on_delivery=self._on_posted
            )
            self._producer.poll(0)
        except (KafkaException, BufferError) as error:
            self._failed(record.topic, str(error))

    def close(self, timeout: float) -> None:
        """Wait for what is queued, at most `timeout` [s]."""
        self._producer.flush(timeout)

    def _on_posted(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed(self._connection.name(message.topic() or ""), error.str())

    def _failed(self, topic: str, why: str) -> None:
        self._health.failed_writes += 1
        self._connection.note(self._health, f"record for {topic} was not delivered: {why}")

    def _await(self, done: threading.Event, timeout: float) -> None:
        clock = self._connection.clock
        deadline = clock.monotonic() + timeout
        while not done.is_set() and (left := deadline - clock.monotonic()) > 0:
            self._producer.poll(min(left, _SLICE))

    def _judge(self, topic: str, outcome: list[KafkaError | None], timeout: float, *, up: bool) -> None:
        brokers = self._connection.bootstrap
        error = outcome[0] if outcome else None
        if outcome and error is None:
            return
        purged = error is not None and error.code() == KafkaError._PURGE_QUEUE
        # What waits in the queue may wait there for its second try: the first may have been taken.
        if error is not None and error.code() in _SURELY_NOT and not (purged and up):
            why = f"no broker of {brokers} took it within {timeout:g} s" if purged else error.str()
            self._connection.note(self._health, f"record for {topic} was not sent: {why}")
            raise NotSent(f"the record for {topic} was not sent: {why}")
        self._connection.note(self._health, f"record for {topic} was not confirmed within {timeout:g} s")
        raise OutcomeUnknown(
            f"the record for {topic} was sent, but no broker of {brokers} confirmed it within {timeout:g} s"
            + ("" if error is None else f" ({error.str()})")
        )
