"""Puts single commands on the bus within a bounded time, and tells what is known when that fails."""

import threading
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.writer import producer_settings
from facade.bus.port import BusHealth, Record
from facade.errors import NotSent, OutcomeUnknown

_SLICE = 0.005
"""Longest single wait for a report [s]: another thread may take it from the client in the meantime."""
_PAUSE = 0.02
"""Before a second try [s]."""
_AFTER_PURGE = 0.05
"""Time for the client to report what it has just given up [s]."""

_ELSEWHERE = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_ENOUGH_REPLICAS,
}
"""The broker did not take it, but may a moment later, or another one may."""
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


class KafkaSender:
    """See `facade.flows.commands.gateway.Sender`; may be used from several threads.

    Its producer is its own: what is given up together with one command is at most another command and
    heartbeats, which find the same broker silent. The heartbeats keep its connections warm, without
    which the first command would wait for half a second.

    The client itself never tries again: of what waits for its second try it could not tell any more that
    the first one may have been taken. A record that is there twice does no harm, as readers go by its id.
    """

    def __init__(self, connection: Connection, *, health: BusHealth, client: str) -> None:
        self._connection = connection
        self._health = health
        settings = {**producer_settings(connection.prefix + client, 0.0), "enable.idempotence": False, "retries": 0}
        self._producer = connection.producer(health, settings)

    def send(self, record: Record, timeout: float, queued: Callable[[], None] = lambda: None) -> None:
        """Return once all in-sync replicas have a record; see `facade.flows.commands.gateway.Sender`."""
        clock = self._connection.clock
        deadline = clock.monotonic() + timeout - _AFTER_PURGE
        doubt = ""
        while True:
            error = self._attempt(record, deadline, queued)
            if error is None:
                return
            if error.code() not in _SURELY_NOT:
                doubt = error.str()
            if error.code() not in _WORTH_A_TRY or clock.monotonic() > deadline - _PAUSE:
                break
            clock.sleep(_PAUSE)
        self._give_up(record.topic, error, doubt, timeout)

    def _attempt(self, record: Record, deadline: float, queued: Callable[[], None]) -> KafkaError | None:
        """Try once; gives why the record is not known to be on the bus."""
        done = threading.Event()
        outcome: list[KafkaError | None] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            outcome.append(error)
            done.set()

        try:
            self._connection.queue(self._producer, record, on_delivery)
        except KafkaException as error:
            return error.args[0]
        except BufferError:
            return KafkaError(KafkaError._QUEUE_FULL)
        queued()
        self._await(done, deadline)
        if not done.is_set():
            # What has not left is dropped, so that it cannot be executed after its caller was told that it failed.
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self._await(done, self._connection.clock.monotonic() + _AFTER_PURGE)
        return outcome[0] if outcome else KafkaError(KafkaError._PURGE_INFLIGHT)

    def post(self, record: Record) -> None:
        """Queue a record without waiting for it; a failure is counted and logged, not raised."""
        try:
            self._producer.produce(
                self._connection.topic(record.topic), record.value, record.key, on_delivery=self._on_posted
            )
            self._producer.poll(0)
        except (KafkaException, BufferError) as error:
            self._failed(record.topic, str(error))

    def perform(self) -> None:
        """Take what the client has to say: statistics of each second, which it keeps in memory until somebody asks."""
        self._producer.poll(0)

    def end(self) -> None:
        """Leave what was sent to its callers, who wait for it."""

    def close(self, timeout: float) -> None:
        """Wait for what is queued, at most `timeout` [s]."""
        self._producer.flush(timeout)

    def _on_posted(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed(self._connection.name(message.topic() or ""), error.str())

    def _failed(self, topic: str, why: str) -> None:
        self._health.failed_writes += 1
        self._connection.note(self._health, f"record for {topic} was not delivered: {why}")

    def _await(self, done: threading.Event, deadline: float) -> None:
        clock = self._connection.clock
        while not done.is_set() and (left := deadline - clock.monotonic()) > 0:
            self._producer.poll(min(left, _SLICE))

    def _give_up(self, topic: str, error: KafkaError, doubt: str, timeout: float) -> None:
        brokers = self._connection.bootstrap
        if not doubt:
            purged = error.code() == KafkaError._PURGE_QUEUE
            why = f"no broker of {brokers} took it within {timeout:g} s" if purged else error.str()
            self._connection.note(self._health, f"record for {topic} was not sent: {why}")
            raise NotSent(f"the record for {topic} was not sent: {why}")
        self._connection.note(self._health, f"record for {topic} was not confirmed within {timeout:g} s")
        raise OutcomeUnknown(
            f"the record for {topic} was sent, but no broker of {brokers} confirmed it within {timeout:g} s ({doubt})"
        )
