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
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.epochs import find_kept
from facade.bus.kafka.grounds import find_grounds
from facade.bus.kafka.runs import KafkaRun, by_partition
from facade.bus.kafka.sessions import HEARTBEAT, joins_anew
from facade.bus.kafka.topic_watch import KafkaTopicWatch
from facade.bus.port import Aborted, BusHealth, Fenced, Record, Run, Span
from facade.bus.standings import Standings
from facade.bus.worker_positions import POSITIONS, Place, accounted, furthest, newest
from facade.errors import BusError

_log = logging.getLogger(__name__)

_BROKER_WAIT = 4.0
"""Longest wait for one step of a transaction [s]; a worker that is told to stop waits no longer."""
_TRANSACTION = 5.0
"""The transaction's own time-out [s]."""
_LOST_MARKS = 15.0
"""An answer that waits for the end of a transaction for so long waits for one that has ended: none lasts longer [s]."""
_COORDINATOR_STUCK = 15.0
"""A coordinator that says for so long that a transaction of this id has yet to end says so for ever [s]."""
_NOT_FETCHED = 30.0
"""A partition whose end the client does not know for so long is not fetched, and is assigned anew [s]."""
_NOT_THERE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)
"""What the client says when a log does not have the place that is to be read."""


class KafkaTransactionalLog:
    """One worker slot of a consumer group of one or more topics."""

    def __init__(self, connection: Connection, *topics: str, group: str, slot: str, health: BusHealth) -> None:
        self._connection = connection
        self._health = health
        self._slot = f"{connection.prefix}{group}-{slot}"
        self._group = connection.prefix + group
        self._topics = [connection.topic(topic) for topic in topics]
        self._joined_at = self._lost_at = 0.0
        self._consumer = self._join()
        self._producer: Producer | None = None
        self._link = _Link()
        self._id_number = 0
        """How often another transactional id had to be taken."""
        self._ending_since = math.inf
        """Monotonic time since which the coordinator says that a transaction of the id has yet to end [s]."""
        self._revoked = False
        self._must_rewind = False
        self._assigned: list[TopicPartition] = []
        """Partitions that the group has given to this worker."""
        self._group_name = group
        self._standings = Standings(group, slot)
        self._held: list[Message] = []
        """What comes behind a place where the open transaction has to end."""
        self._watch = KafkaTopicWatch(connection)
        self._shapes: dict[str, int] = {}
        """How many partitions each topic has, as last heard."""
        self._fetched_at = 0.0
        """Monotonic time at which it was last known of each partition where its log ends [s]."""
        self._stuck_since = math.inf
        """Monotonic time since which it cannot be learned where to go on [s]."""
        self._no_producer_before = 0.0
        """Monotonic time before which no producer may be opened [s]."""

    def take(self, limit: int, timeout: float) -> Sequence[Run]:
        """Return the next records; see `facade.bus.port.TransactionalLog`."""
        if self._must_rewind:
            self._rewind()
        if self._standings.is_at_stop:
            return []
        messages = self._held or self._consumer.consume(limit, timeout)
        self._held = []
        if self._revoked or self._must_rewind:
            self._hear(messages)
            return []
        self._look_at_topics()
        events: list[KafkaError] = []
        parts = by_partition(messages, events.append)
        self._on_events(events)
        runs = [self._run(part) for part in parts]
        return [run for run in runs if run is not None]

    def _run(self, messages: list[Message]) -> KafkaRun | None:
        """Take what comes of one partition before the open transaction has to end; hold the rest until it has."""
        topic, partition = messages[0].topic(), messages[0].partition()
        place = (self._connection.name(topic), partition)
        stop, rest = self._standings.stop(place), list[Message]()
        if messages[-1].offset() >= stop:
            rest = [message for message in messages if message.offset() >= stop]
            messages = [message for message in messages if message.offset() < stop]
        run = KafkaRun(self._connection, messages, self._high_watermark(topic, partition)) if messages else None
        if run is not None:
            self._standings.take(place, run.last_offset + 1, run.leader_epoch)
        if rest:
            self._held += rest
            self._standings.take_up_to_stop(place)
        return run

    @property
    def must_commit(self) -> bool:
        """Return whether the open transaction is to end here; see `facade.bus.port.TransactionalLog`."""
        return self._standings.is_at_stop

    def spans(self) -> Mapping[Place, Span]:
        """Return what the open transaction covers; see `facade.bus.port.TransactionalLog`."""
        found = self._standings.spans
        for (topic, partition), span in found.items():
            newest = self._high_watermark(self._connection.topic(topic), partition)
            span.high_watermark = max(newest, span.end) if newest >= 0 else -1
            span.partitions = self._shapes.get(topic, 0)
        return found

    def commit(self, records: Iterable[Record]) -> None:
        """Write and commit in one transaction; see `facade.bus.port.TransactionalLog`."""
        try:
            producer = self._open_producer()
            producer.begin_transaction()
            for record in (*records, *self._standings.records()):
                self._produce(producer, record)
            if offsets := self._places(self._standings.offsets()):
                producer.send_offsets_to_transaction(offsets, self._consumer.consumer_group_metadata(), _BROKER_WAIT)
            producer.commit_transaction(_BROKER_WAIT)
        except KafkaException as error:
            self._give_up(error)
        self._standings.committed()
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
            settings = {**_producer_settings(self._slot, self._id_number), "logger": self._link}
            producer = self._connection.producer(self._health, settings)
            try:
                producer.init_transactions(_BROKER_WAIT)
            except KafkaException as error:
                self._look_at_coordinator(error.args[0])
                raise
            self._ending_since = math.inf
            self._producer = producer
        return self._producer

    def _look_at_coordinator(self, error: KafkaError) -> None:
        """Take another transactional id where the coordinator of this one will never answer.

        A coordinator that lost the end of its own log repeats the end of a transaction of the past. The partitions know
        of later ones and refuse that, so it is never done. Nothing of an id protects what is counted, the order of the
        questions in `_begin` does.
        """
        now = self._connection.clock.monotonic()
        if error.code() != KafkaError.CONCURRENT_TRANSACTIONS or self._health.down_at > self._ending_since:
            self._ending_since = math.inf
            return
        self._ending_since = min(self._ending_since, now)
        if now - self._ending_since >= _COORDINATOR_STUCK:
            self._id_number, self._ending_since = self._id_number + 1, math.inf
            text = (
                f"transactional id of {self._slot} is stuck at its coordinator; going on with number {self._id_number}"
            )
            self._connection.note(self._health, text)

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
            self._no_producer_before = self._connection.clock.monotonic() + 2 * HEARTBEAT
        self._connection.note(self._health, f"transaction of {self._slot} given up: {reason}")
        raise Aborted(f"transaction of {self._slot} given up, its records will be taken again: {reason}") from error

    def _rewind(self) -> None:
        """Set every assigned partition to where this worker goes on."""
        self._standings.forget()
        self._held = []
        if self._connection.clock.monotonic() < self._no_producer_before:
            self._serve_consumer()
            raise Aborted(f"producer of {self._slot} was fenced; waiting to learn whether its slot was taken")
        try:
            self._open_producer()  # completes or undoes what an earlier producer of this slot left open
            if self._assigned:
                self._begin()
        except (KafkaException, BusError) as error:
            self._serve_consumer()
            self._renew_marks()
            raise Aborted(f"it is not known yet where {self._slot} goes on: {error}") from error
        self._must_rewind = False
        self._stuck_since = math.inf

    def _renew_marks(self) -> None:
        """End once more what this slot's transactions ended long ago, when nothing else helps.

        A broker that loses the end of a log may lose the mark that ends a transaction there, while its coordinator
        knows that all marks are written. Then `positions`, or the group's answer, wait for that mark for ever; the
        next mark of the same producer ends what is open before it as well.
        """
        now = self._connection.clock.monotonic()
        self._stuck_since = min(self._stuck_since, now)
        if now - self._stuck_since < _LOST_MARKS or self._producer is None:
            return
        self._stuck_since = now
        _log.warning("no answer about the places of %s for %g s; writing marks again", self._slot, _LOST_MARKS)
        try:
            self._producer.begin_transaction()
            self._produce(self._producer, Record(topic=POSITIONS, key=b"mark", value=None, partition=0))
            place = TopicPartition(self._connection.topic(POSITIONS), 0, 0)
            group = self._consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction([place], group, _BROKER_WAIT)
            self._producer.commit_transaction(_BROKER_WAIT)
        except KafkaException as error:
            self._producer = None
            self._connection.note(self._health, f"marks of {self._slot} cannot be written: {error.args[0]}")

    def _begin(self) -> None:
        """Go on from this worker's own positions; see ``docs/decisions/0020``.

        The group is asked first: its answer waits for what a former holder of a partition has begun to commit, and
        from then on the group refuses that one. So whatever it has written stands before the end that `positions`
        has now.
        """
        committed = self._consumer.committed(self._assigned, timeout=_BROKER_WAIT)
        grounds, records = find_grounds(self._connection, self._watch, committed, self._health)
        own, troubles = newest(records, self._group_name)
        own, counted = self._standings.counted(own, accounted(records, self._group_name, grounds), grounds)
        places = {place: (at.next, at.leader_epoch) for place, at in furthest(own, counted, grounds).items()}
        for place, kept in find_kept(self._connection, places, self._health).items():
            grounds[place] = grounds[place].cut_at(kept)
        troubles += self._standings.begin(own, grounds, counted)
        for trouble in troubles:
            self._connection.note(self._health, trouble)
        self._fetched_at = self._connection.clock.monotonic()
        # With the leader epoch the client says it when the log is cut and grows again before the next record is taken.
        self._consumer.assign(
            [
                TopicPartition(self._connection.topic(topic), partition, span.begin, leader_epoch=span.leader_epoch)
                for (topic, partition), span in self._standings.spans.items()
            ]
        )

    def _look_at_topics(self) -> None:
        """Begin anew where a topic was made again meanwhile: the client goes on with the new one by itself."""
        for topic, shape in self._watch.step({topic for topic, _ in self._standings.spans}).items():
            if not self._standings.confirm(topic, shape.id):
                self._must_rewind = True
                raise Aborted(f"topic {topic} was made again; what was taken since the last transaction is given up")
            self._shapes[topic] = shape.partitions
            self._look_at_ends()

    def _look_at_ends(self) -> None:
        """Begin anew where the client fetches nothing from a partition: it does not say why, nor until when."""
        now = self._connection.clock.monotonic()
        places = [place for place in self._standings.spans if self._high_watermark(*self._on_broker(place)) < 0]
        if not places:
            self._fetched_at = now
        elif now - self._fetched_at > _NOT_FETCHED:
            self._must_rewind = True
            text = ", ".join(f"{topic}, partition {partition}" for topic, partition in places)
            raise Aborted(f"the broker gave nothing of {text} for {_NOT_FETCHED:g} s; it is asked anew from where on")

    def _on_broker(self, place: Place) -> tuple[str, int]:
        return self._connection.topic(place[0]), place[1]

    def _places(self, offsets: Mapping[Place, int]) -> list[TopicPartition]:
        return [
            TopicPartition(self._connection.topic(topic), partition, offset)
            for (topic, partition), offset in offsets.items()
        ]

    def _hear(self, messages: list[Message]) -> None:
        """Hear the events in a batch whose records are not taken; each event comes but once.

        Raises
        ------
        Aborted
            Partitions were taken away.
        """
        was_revoked, self._revoked = self._revoked, False
        self._must_rewind = True
        self._on_events([error for message in messages if (error := message.error()) is not None])
        if was_revoked:
            raise Aborted("partitions were taken away from this worker; what it had not committed goes to others")

    def _serve_consumer(self) -> None:
        """Keep the membership alive and hear what the group has to say; what is taken here is taken again."""
        for message in self._consumer.consume(1, 0.0):
            if (error := message.error()) is not None:
                self._on_event(error)

    def _high_watermark(self, topic: str, partition: int) -> int:
        return max(int(self._consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)[1]), -1)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = partitions
        self._must_rewind = True
        consumer.assign([])  # nothing is fetched before it is known from where on

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = []
        self._revoked = True

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._lost_at = self._connection.clock.monotonic()
        self._on_revoke(consumer, partitions)

    def _on_events(self, events: list[KafkaError]) -> None:
        """Hear the events of a batch; first the one after which the client gives nothing more, not even it again."""
        for error in sorted(events, key=_is_final, reverse=True):
            self._on_event(error)

    def _on_event(self, error: KafkaError) -> None:
        if _is_final(error):
            self._on_fenced(error)
        self._connection.note(self._health, f"{error.name()}: {error.str()}")
        if error.code() in _NOT_THERE:
            self._must_rewind = True
            raise Aborted(f"the log of {self._slot} is not as it was; where to go on is asked again: {error.str()}")

    def _on_fenced(self, error: KafkaError) -> NoReturn:
        """Stop for good, unless it was the broker that forgot about us; see `joins_anew`."""
        _log.error("consumer cannot go on: %s", error.str())
        now, down_at = self._connection.clock.monotonic(), self._health.down_at
        if joins_anew(now, joined_at=self._joined_at, down_at=down_at, lost_at=self._lost_at):
            self._producer = None
            self._must_rewind = True
            self._consumer.close()
            self._revoked = False  # closing takes the partitions away as well
            self._consumer = self._join()
            raise Aborted(f"{self._slot} was fenced after the broker had been away; it joins its group anew")
        raise Fenced(f"another process has taken slot {self._slot}; give each worker its own --slot")

    def _join(self) -> Consumer:
        self._joined_at = self._connection.clock.monotonic()
        consumer = self._connection.consumer(self._health, _consumer_settings(self._group, self._slot))
        consumer.subscribe(self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
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


def _is_final(error: KafkaError) -> bool:
    return error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL) or error.fatal()


def retire(consumer: Consumer) -> None:
    """Leave a group member's client to the end of the process, instead of closing it.

    Closing is not safe: an assignment that waits to be served is then served while the client shuts
    down, which waits for ever for an answer, and with the interpreter's lock held, so that no other
    thread could set a limit to it. Its destructor would do the same, so it must never run.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(consumer))


def _consumer_settings(group: str, slot: str) -> dict[str, object]:
    return {
        "group.id": group,
        "group.instance.id": slot,
        "client.id": slot,
        "enable.auto.commit": False,
        # A place that is not on the log is for `facade.bus.worker_positions` to judge.
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": round(HEARTBEAT * 1000),
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


def _producer_settings(slot: str, number: int) -> dict[str, object]:
    return {
        "transactional.id": f"{slot}~{number}" if number else slot,
        "client.id": slot,
        # But for one that was idle: the broker closes it after some minutes, and nothing was on its way.
        "log.connection.close": True,
        # When all brokers are away, the client would forget them and begin with the bootstrap servers, but for the
        # group's coordinator: send_offsets_to_transaction waits for the forgotten one, whatever time-out it is given.
        # Whoever lost a connection gets a new producer in any case, which begins with the bootstrap servers.
        "metadata.recovery.strategy": "none",
        "transaction.timeout.ms": round(_TRANSACTION * 1000),
        "linger.ms": 0,
        "message.max.bytes": 16_777_216,
    }
