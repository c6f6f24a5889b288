"""Exactly-once consume, transform, produce: what a worker took and what it wrote commit together.

A worker slot has a stable transactional id and group instance id. A restarted worker therefore
gets its partitions back without a rebalance, and its first act (``init_transactions``) ends the
transaction that its predecessor left open, so that readers are not held up by it.

A producer that has lost a connection begins no further transaction: a request of it that seemed lost may
still arrive, and would end the next one, or commit old offsets with it. The broker knows no transactions
apart but by the producer's epoch, as long as the client speaks no newer protocol (KIP-890), and only
``init_transactions`` of a new producer makes another one.
"""

import ctypes
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.records import to_record
from facade.bus.port import Aborted, BusHealth, Fenced, Record, Run

_log = logging.getLogger(__name__)

_BROKER_WAIT = 4.0
"""Longest wait for one step of a transaction [s]; a worker that is told to stop waits no longer."""
_TRANSACTION = 5.0
"""The transaction's own time-out [s]."""
_OUTAGE = 30.0
"""For so long after the broker was last away its answers may still be about what was before [s]."""
_HEARTBEAT = 1.5
"""Time between two signs of life to the group [s]; their answers tell a worker that its slot was taken."""


class KafkaRun:
    """Messages of one partition, in the order of the log."""

    __slots__ = ("_connection", "_messages", "appended", "first_offset", "high_watermark", "last_offset",
                 "partition", "topic")  # fmt: skip

    def __init__(self, connection: Connection, messages: list[Message], high_watermark: int) -> None:
        first, last = messages[0], messages[-1]
        self._connection = connection
        self._messages = messages
        self.topic: str = connection.name(first.topic())
        self.partition: int = first.partition()
        self.first_offset: int = first.offset()
        self.last_offset: int = last.offset()
        self.appended: tuple[int, int] = (first.timestamp()[1] * 1000, last.timestamp()[1] * 1000)
        self.high_watermark = high_watermark

    def values(self) -> list[bytes | None]:
        """Return the values in order."""
        return list(map(Message.value, self._messages))

    def append_time(self, index: int) -> int:
        """Return the timestamp of one record [Unix us]."""
        return int(self._messages[index].timestamp()[1]) * 1000

    def record(self, index: int) -> Record:
        """Return one record whole."""
        return to_record(self._connection, self._messages[index])


class KafkaTransactionalLog:
    """One worker slot of a consumer group of one or more topics."""

    def __init__(self, connection: Connection, *topics: str, group: str, slot: str, health: BusHealth) -> None:
        self._connection = connection
        self._health = health
        self._slot = f"{connection.prefix}{group}-{slot}"
        self._group = connection.prefix + group
        self._topics = [connection.topic(topic) for topic in topics]
        self._joined_at = 0.0
        self._consumer = self._join()
        self._producer: Producer | None = None
        self._link = _Link()
        self._revoked = False
        self._must_rewind = False
        self._committed: dict[tuple[str, int], int] = {}
        """Offsets by topic and partition."""
        self._no_producer_before = 0.0
        """Monotonic time before which no producer may be opened [s]."""

    def take(self, limit: int, timeout: float) -> Sequence[Run]:
        """Return the next records; see `facade.bus.port.TransactionalLog`."""
        if self._must_rewind:
            self._rewind()
        messages = self._consumer.consume(limit, timeout)
        if self._revoked:
            self._revoked = False
            self._must_rewind = True
            for message in messages:  # an event among them comes but once
                if (error := message.error()) is not None:
                    self._on_event(error)
            raise Aborted("partitions were taken away from this worker; what it had not committed goes to others")
        return [
            KafkaRun(self._connection, run, self._high_watermark(run[0]))
            for run in _by_partition(messages, self._on_event)
        ]

    def commit(self, records: Iterable[Record]) -> None:
        """Write and commit in one transaction; see `facade.bus.port.TransactionalLog`."""
        try:
            producer = self._open_producer()
            producer.begin_transaction()
            for record in records:
                self._produce(producer, record)
            positions = self._moved()
            if positions:
                producer.send_offsets_to_transaction(positions, self._consumer.consumer_group_metadata(), _BROKER_WAIT)
            producer.commit_transaction(_BROKER_WAIT)
        except KafkaException as error:
            self._give_up(error)
        self._committed.update(((at.topic, at.partition), at.offset) for at in positions)
        self._health.connected = True

    def close(self) -> None:
        """Leave without committing; the slot stays reserved for its next holder.

        A static member has nothing to tell its group; see `retire`.
        """
        self._producer = None
        retire(self._consumer)

    def _produce(self, producer: Producer, record: Record) -> None:
        while True:
            try:
                producer.produce(
                    self._connection.topic(record.topic),
                    record.value,
                    record.key,
                    partition=record.partition,
                    headers=list(record.headers),
                )
            except BufferError:  # very many dead letters: wait until some have left
                producer.poll(0.1)
            else:
                return

    def _open_producer(self) -> Producer:
        if self._producer is not None:
            self._producer.poll(0)  # what it has to say of its connections
            if self._link.was_lost:
                self._producer = None
        if self._producer is None:
            self._link = _Link()
            settings = {**_producer_settings(self._slot), "logger": self._link}
            producer = Producer(self._connection.config(self._health, settings))
            producer.init_transactions(_BROKER_WAIT)
            self._producer = producer
        return self._producer

    def _give_up(self, error: KafkaException) -> NoReturn:
        """Give up a transaction that failed, with its producer, and go back to what is committed.

        A new producer with the same id waits for whatever the old one had begun to be completed or
        undone by the broker, so afterwards the committed offsets say which of the two it was.
        """
        self._must_rewind = True
        self._producer = None
        reason = error.args[0]
        if reason.code() == KafkaError.FENCED_INSTANCE_ID:
            self._on_fenced(reason)
        if reason.code() == KafkaError._FENCED:
            # Either the broker ended a transaction that took too long, or another process has the
            # slot. A new producer would fence that one in turn, so wait until the group has told.
            self._no_producer_before = self._connection.clock.monotonic() + 2 * _HEARTBEAT
        self._connection.note(self._health, f"transaction of {self._slot} given up: {reason}")
        raise Aborted(f"transaction of {self._slot} given up, its records will be taken again: {reason}") from error

    def _rewind(self) -> None:
        """Set every assigned partition to its committed offset."""
        self._committed.clear()
        if self._connection.clock.monotonic() < self._no_producer_before:
            self._serve_consumer()
            raise Aborted(f"producer of {self._slot} was fenced; waiting to learn whether its slot was taken")
        try:
            self._open_producer()  # completes or undoes what an earlier producer of this slot left open
            assigned = self._consumer.assignment()
            if assigned:
                places = self._consumer.committed(assigned, timeout=_BROKER_WAIT)
                for place in places:
                    if place.error is not None:
                        raise KafkaException(place.error)
                    if place.offset < 0:
                        place.offset = OFFSET_BEGINNING
                self._consumer.assign(places)
        except KafkaException as error:
            self._serve_consumer()
            raise Aborted(f"committed offsets of {self._slot} cannot be read yet: {error.args[0]}") from error
        self._must_rewind = False

    def _serve_consumer(self) -> None:
        """Keep the membership alive and hear what the group has to say; what is taken here is taken again."""
        for message in self._consumer.consume(1, 0.0):
            if (error := message.error()) is not None:
                self._on_event(error)

    def _moved(self) -> list[TopicPartition]:
        places = self._consumer.position(self._consumer.assignment())
        return [p for p in places if p.offset >= 0 and self._committed.get((p.topic, p.partition)) != p.offset]

    def _high_watermark(self, message: Message) -> int:
        place = TopicPartition(message.topic(), message.partition())
        return int(self._consumer.get_watermark_offsets(place, cached=True)[1])

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._revoked = True

    def _on_event(self, error: KafkaError) -> None:
        if error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL) or error.fatal():
            self._on_fenced(error)
        self._connection.note(self._health, f"{error.name()}: {error.str()}")

    def _on_fenced(self, error: KafkaError) -> NoReturn:
        """Stop for good, unless it was the broker that forgot about us.

        A worker that loses its session while the broker is away joins again under a new id, and what
        it had sent under the old one is then answered as if another process had its slot. So after
        an outage it joins anew, once; two real holders of a slot still end with one of them.
        """
        _log.error("consumer cannot go on: %s", error.str())
        down_at = self._health.down_at
        if down_at > self._joined_at and self._connection.clock.monotonic() - down_at < _OUTAGE:
            self._producer = None
            self._must_rewind = True
            self._consumer.close()
            self._revoked = False  # closing takes the partitions away as well
            self._consumer = self._join()
            raise Aborted(f"{self._slot} was fenced after the broker had been away; it joins its group anew")
        raise Fenced(f"another process has taken slot {self._slot}; give each worker its own --slot")

    def _join(self) -> Consumer:
        self._joined_at = self._connection.clock.monotonic()
        consumer = Consumer(self._connection.config(self._health, _consumer_settings(self._group, self._slot)))
        consumer.subscribe(self._topics, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        return consumer


class _Link:
    """Takes what a producer's client logs, and knows from it whether any connection was lost.

    The client's errors say nothing of a connection that it makes again by itself, nor do results; its
    statistics do, but too late for the next transaction.
    """

    def __init__(self) -> None:
        self.was_lost = False

    def log(self, level: int, text: str, facility: str, *rest: object) -> None:
        """Take a line; see `logging.Logger.log`."""
        self.was_lost |= facility == "FAIL"
        _log.log(level, text, facility, *rest)


def retire(consumer: Consumer) -> None:
    """Leave a group member's client to the end of the process, instead of closing it.

    Closing is not safe: an assignment that waits to be served is then served while the client shuts
    down, which waits for ever for an answer, and with the interpreter's lock held, so that no other
    thread could set a limit to it. Its destructor would do the same, so it must never run.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(consumer))


def _by_partition(messages: list[Message], on_event: Callable[[KafkaError], None]) -> Iterable[list[Message]]:
    """Sort a batch by partition, each in the order of the log.

    By bisection: making a key of each of 10,000 messages would cost as much as a tenth of the whole work on it.
    """
    found: dict[tuple[str, int], list[Message]] = {}
    pending = [(0, len(messages))] if messages else []
    while pending:
        low, high = pending.pop()
        first, last = messages[low], messages[high - 1]
        if high - low == 1:
            if (error := first.error()) is not None:
                on_event(error)
            else:
                found.setdefault((first.topic(), first.partition()), []).append(first)
        elif (
            first.error() is None
            and last.error() is None
            and first.topic() == last.topic()
            and first.partition() == last.partition()
            and last.offset() - first.offset() == high - low - 1
            and _is_one_partition(part := messages[low:high])
        ):
            found.setdefault((first.topic(), first.partition()), []).extend(part)
        else:
            middle = (low + high) // 2
            pending += [(middle, high), (low, middle)]
    return found.values()


def _is_one_partition(messages: list[Message]) -> bool:
    """Return whether no message is an event or of another partition: it may be where a log has a hole.

    The mark of a transaction takes an offset, and so does a record that was compacted away.
    """
    return all(len(set(map(ask, messages))) == 1 for ask in (Message.partition, Message.topic, Message.error))


def _consumer_settings(group: str, slot: str) -> dict[str, object]:
    return {
        "group.id": group,
        "group.instance.id": slot,
        "client.id": slot,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": round(_HEARTBEAT * 1000),
        # A tenth of a second of one core's work: more is only memory, and misses the processor's cache.
        "queued.min.messages": 50_000,
        "queued.max.messages.kbytes": 49_152,
        "fetch.message.max.bytes": 4_194_304,
        "fetch.max.bytes": 20_971_520,
        "fetch.queue.backoff.ms": 2,
        # At low rates, one answer for all that comes within half of a transaction rather than one for each record.
        "fetch.min.bytes": 65_536,
        "fetch.wait.max.ms": 50,
        # A topic that is made after the start is found by looking again; the default is five minutes.
        "topic.metadata.refresh.interval.ms": 10_000,
    }


def _producer_settings(slot: str) -> dict[str, object]:
    return {
        "transactional.id": slot,
        "client.id": slot,
        # But for one that was idle: the broker closes it after some minutes, and nothing was on its way.
        "log.connection.close": True,
        "transaction.timeout.ms": round(_TRANSACTION * 1000),
        "linger.ms": 0,
        "message.max.bytes": 16_777_216,
        "compression.type": "lz4",
    }
