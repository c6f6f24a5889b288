"""Exactly-once consume, transform, produce: records are consumed and results written in one transaction.

A worker slot has a stable transactional id and group instance id, so a restarted worker gets its partitions back
without a rebalance.

Theory of operation
-------------------
`take` returns records, and `commit` writes their results, the worker's own
positions (`facade.kernel.bus.offsets`) and the offsets of the group in one transaction. At each assignment, and after
each failed transaction, the order of the steps makes it exactly once:

1. ``init_transactions`` ends an open transaction of a former process of the slot.
2. The group returns its offsets. It answers when no transaction has pending offsets on these partitions. A former
   holder that sends offsets later has lost its generation, and is refused.
3. Only then the worker reads `positions` up to its end: every record of a former holder is before that end.
4. The own positions are compared with the logs, and reading continues there.

`OffsetRange.read_to` is the time up to which a partition is read, also without new records. Records have the append
time of the broker, which rises along a partition: everything appended before the last consumed record is consumed.
Without records, the broker is asked for the end of the partition. If the worker has reached it, everything appended
before the request is consumed. Ends that the client remembers prove nothing: a process that was suspended for seconds
resumes with old ones. The time before the request is the brokers', known from their answers to this worker's own
records, and never ahead; the clock of this host is not used. So only the clocks of two brokers may differ, or a
broker's clock may be set back: by less than the disorder that the interface allows each windowed topic.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NoReturn

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from facade.kernel.bus import port
from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.admin import KafkaTopicWatch, asker
from facade.kernel.bus.kafka.client_settings import settings_of
from facade.kernel.bus.kafka.connection import Connection, to_record
from facade.kernel.bus.kafka.group import fenced, joins_anew, leave, member_names, retire
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.kafka.transactional_producer import TransactionalProducer
from facade.kernel.bus.offsets import POSITIONS, PartitionFacts, PartitionPositions, newest
from facade.kernel.bus.port import Aborted, BusHealth, OffsetRange, PartitionBatch, Record, Revoked
from facade.kernel.clock import Time, from_ms
from facade.kernel.errors import BusError
from facade.kernel.icd.topic_model import slot_name
from facade.kernel.names import PROGRAM

_log = logging.getLogger(__name__)

_NOT_THERE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)
"""Errors of the client for a position that is not on the log."""

_OF_ANOTHER_LEADER = (
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
"""Errors of a leader change: a client that only sends requests finds the new leader with its next refresh of metadata,
every five minutes."""


class KafkaPartitionBatch:
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
        self.appended: tuple[Time, Time] = (from_ms(first.timestamp()[1]), from_ms(last.timestamp()[1]))
        self.high_watermark = high_watermark

    def values(self) -> list[bytes | None]:
        """Return the values in order."""
        return list(map(Message.value, self._messages))

    def append_time(self, index: int) -> Time:
        """Return the timestamp of one record."""
        return from_ms(self._messages[index].timestamp()[1])

    def record(self, index: int) -> Record:
        """Return one record whole."""
        return to_record(self._connection, self._messages[index])


def by_partition(messages: list[Message], on_event: Callable[[Message], None]) -> Iterable[list[Message]]:
    """Sort a batch by partition, each in the order of the log.

    By bisection: a key for each of 10,000 messages would cost a tenth of the whole work on them.
    """
    found: dict[tuple[str, int], list[Message]] = {}
    events, pending = 0, [(0, len(messages))] if messages else []
    while pending:
        low, high = pending.pop()
        first, last = messages[low], messages[high - 1]
        if high - low == 1:
            if first.error() is not None:
                on_event(first)
                events += 1
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
    sorted_in = events + sum(map(len, found.values()))
    assert sorted_in == len(messages), f"{sorted_in} of {len(messages)} messages are events, or in a partition"
    return found.values()


def _is_one_partition(messages: list[Message]) -> bool:
    """Return whether no message is an event or of another partition: gaps in the offsets may be either.

    The end marker of a transaction takes an offset, and so does a compacted record.
    """
    return all(len(set(map(ask, messages))) == 1 for ask in (Message.partition, Message.topic, Message.error))


def describe_partitions(
    connection: Connection, watch: KafkaTopicWatch, committed: Sequence[TopicPartition], health: BusHealth
) -> tuple[dict[port.TopicPartition, PartitionFacts], list[Record]]:
    """Return the brokers' facts about partitions, and all records of `positions`.

    Open transactions on `positions` are awaited: one of them may have the position of another worker on a partition
    that this worker has now. It ends soon, or the broker ends it after the transaction's time-out.

    `committed`: the offsets that the group has committed for each partition, as it has just answered.
    """
    topics = {connection.name(place.topic) for place in committed}
    extents = watch.extents([*topics, POSITIONS])
    if missing := {*topics, POSITIONS} - extents.keys():
        raise BusError(
            f"topics {', '.join(map(connection.topic, sorted(missing)))} are not there at {connection.bootstrap}, or"
            f" may not be seen; make them with: {PROGRAM} topics create"
        )
    found = {}
    for place in committed:
        if place.error is not None:
            raise KafkaException(place.error)
        extent = extents[connection.name(place.topic)]
        if place.partition not in extent.ranges:  # the group learns later that its topic was made again
            raise BusError(
                f"partition {place.partition} of {place.topic} is assigned; expected it to exist, it does not"
            )
        first, end = extent.ranges[place.partition]
        found[connection.name(place.topic), place.partition] = PartitionFacts(
            extent.id, first, end, max(place.offset, -1)
        )
    ranges = extents[POSITIONS].ranges
    return found, [*read_range(connection, POSITIONS, ranges, whole=True, within=timeouts.STEP, health=health)]


class KafkaTransactionalLog:
    """One worker slot of a consumer group of one or more topics.

    Parameters
    ----------
    outputs
        Topics that its transactions write to, beside `positions`.
    broker_time
        Returns the time before which all records are on the topics [Unix us]; None: the brokers' time.
    """

    def __init__(
        self,
        connection: Connection,
        *topics: str,
        group: str,
        slot: str,
        health: BusHealth,
        outputs: Collection[str] = (),
        broker_time: Callable[[], Time] | None = None,
    ) -> None:
        self._connection = connection
        self._health, self._time = health, broker_time
        self._slot = connection.prefix + slot_name(group, slot)
        self._group = connection.prefix + group
        self._topics = [connection.topic(topic) for topic in topics]
        self._joined_at = self._lost_at = 0.0
        self._consumer = self._join()
        self._producer = TransactionalProducer(connection, self._slot, health, outputs=outputs)
        self._revoked = False
        self._must_rewind = False
        self._assigned: list[TopicPartition] = []
        """Partitions that the group has given to this worker."""
        self._group_name = group
        self._positions = PartitionPositions(group, slot)
        self._watch = KafkaTopicWatch(connection)
        self._misread: dict[port.TopicPartition, str] = {}
        """What the client has left out or delivered again, for the next account of the partition."""
        self._shapes: dict[str, int] = {}
        """Number of partitions of each topic, as last reported."""
        self._fetched_at = 0.0
        """Monotonic time at which the log end of each partition was last known [s]."""
        self._asker: Consumer | None = None
        """Client for requests about partition ends; made with the first request."""
        self._patience = timeouts.END_OFFSETS
        """Longest wait for the answer to the next one [s]."""

    def take(self, limit: int, timeout: float) -> Sequence[PartitionBatch]:
        """Return the next records; see `facade.kernel.bus.port.TransactionalLog`."""
        if self._must_rewind:
            self._rewind()
        messages = self._consumer.consume(limit, timeout)
        if self._revoked or self._must_rewind:
            self._hear(messages)
            return []
        self._look_at_topics()
        events: list[Message] = []
        parts = by_partition(messages, events.append)
        batches = [self._batch(part) for part in parts]
        self._on_events(events)  # after the records: an end of a partition may be behind them
        return batches

    def _require_whole(self, messages: list[Message]) -> None:
        """Begin again if the client has left out a record before one of these, or delivers one again."""
        place = (self._connection.name(messages[0].topic()), messages[0].partition())
        begin, first, end = self._positions.end(place), messages[0].offset(), messages[-1].offset() + 1
        if first < begin:
            self._begin_again(place, f"offset {first} came again, expected {begin} or later")
        if end - first < len(messages):
            self._begin_again(place, f"of the offsets {first} to {end - 1}, some came again")
        if end - begin > len(messages):
            self._require_empty(place, begin, end, set(map(Message.offset, messages)))

    def _require_empty(self, place: port.TopicPartition, begin: int, end: int, taken: Collection[int] = ()) -> None:
        """Begin again if a second reader gets records that this client has left out.

        Ends of transactions and aborted records have offsets, and are never delivered. Topics of workers have few of
        them: those of a redrive, or of a source that writes in transactions.
        """
        try:
            records = read_range(self._connection, place[0], {place[1]: (begin, end)}, within=timeouts.STEP)
            skipped = [record.offset for record in records if record.offset not in taken]
        except BusError as error:
            self._must_rewind = True
            raise Aborted(f"it is not known yet if the client has left out records: {error}") from error
        if skipped:
            self._begin_again(place, f"{len(skipped)} records from offset {skipped[0]} on were not delivered")

    def _begin_again(self, place: port.TopicPartition, what: str) -> NoReturn:
        self._must_rewind = True
        text = f"{place[0]}, partition {place[1]}: {what}: a defect of Kafka's client"
        self._connection.note(self._health, text)
        self._misread[place] = f"{text}; the records since the last transaction were taken again"
        raise Aborted(f"{text}; the records since the last transaction are taken again")

    def _batch(self, messages: list[Message]) -> KafkaPartitionBatch:
        self._require_whole(messages)
        newest = self._high_watermark(messages[0].topic(), messages[0].partition())
        batch = KafkaPartitionBatch(self._connection, messages, newest)
        self._positions.take((batch.topic, batch.partition), batch.last_offset + 1, batch.appended[1])
        return batch

    def ranges(self) -> Mapping[port.TopicPartition, OffsetRange]:
        """Return the ranges of the open transaction; see `facade.kernel.bus.port.TransactionalLog`."""
        found = self._positions.ranges
        for (topic, partition), one in found.items():
            newest = self._high_watermark(self._connection.topic(topic), partition)
            one.high_watermark = max(newest, one.end) if newest >= 0 else -1
            one.partitions = self._shapes.get(topic, 0)
        return found

    @property
    def broker_time(self) -> Time:
        """Return the brokers' time; see `facade.kernel.bus.port.TransactionalLog`."""
        return self._producer.broker_time if self._time is None else self._time()

    def ask_ends(self, places: Collection[port.TopicPartition]) -> None:
        """Request the ends of partitions; see `facade.kernel.bus.port.TransactionalLog`.

        Uncommitted records count as well: those of an open transaction are not delivered yet.
        """
        before, ranges = self.broker_time, self._positions.ranges
        asked = [place for place in places if place in ranges and self._is_at_end(place)]
        if not before or not asked:
            return
        if self._asker is None:
            self._asker = asker(self._connection, self._group)
        clock = self._connection.clock
        began = clock.monotonic()
        try:
            places = self._places(dict.fromkeys(asked, OFFSET_END))
            ends = self._asker.offsets_for_times(places, timeout=self._patience)
        except KafkaException as error:
            self._patience = min(2 * self._patience, timeouts.END_OFFSETS_AT_MOST)
            self._connection.note(self._health, f"no answer where partitions end: {error.args[0]}")
            if error.args[0].code() in _OF_ANOTHER_LEADER:  # the client would use the former leader for minutes
                self._asker.close()
                self._asker = None
            return
        took = clock.monotonic() - began
        self._patience = min(max(2 * took, timeouts.END_OFFSETS), timeouts.END_OFFSETS_AT_MOST)
        for one in ends:
            place = (self._connection.name(one.topic), one.partition)
            if one.error is None and one.offset == ranges[place].end:
                self._positions.is_read(place, before)

    def _is_at_end(self, place: port.TopicPartition) -> bool:
        return self._high_watermark(*self._on_broker(place)) <= self._positions.ranges[place].end

    def commit(self, records: Iterable[Record]) -> None:
        """Write and commit in one transaction; see `facade.kernel.bus.port.TransactionalLog`."""
        try:
            places = self._places(self._positions.offsets())
            self._producer.write((*records, *self._positions.records()), places, self._consumer)
        except KafkaException as error:
            self._give_up(error)
        self._positions.committed()

    def close(self) -> None:
        """Leave without committing: other workers take the partitions, or the slot waits for its next holder.

        See `leave`.
        """
        self._producer.close()
        if self._assigned and not (self._must_rewind or self._has_all()):
            leave(self._connection, self._consumer, self._assigned[0])
        retire(self._consumer)
        if self._asker is not None:
            self._asker.close()

    def _has_all(self) -> bool:
        """Return whether this worker has all partitions, so that it is alone in its group, or the others stand by."""
        mine = Counter(place.topic for place in self._assigned)
        return all(mine[topic] == self._shapes.get(self._connection.name(topic)) for topic in self._topics)

    def _give_up(self, error: KafkaException) -> NoReturn:
        self._must_rewind = True
        reason = self._producer.give_up(error)
        if reason.code() == KafkaError.FENCED_INSTANCE_ID:
            self._on_fenced(reason)
        raise Aborted(f"transaction of {self._slot} given up, its records will be taken again: {reason}") from error

    def _rewind(self) -> None:
        self._positions.forget()
        if self._producer.must_wait:
            self._serve_consumer()
            raise Aborted(f"producer of {self._slot} was fenced; waiting to learn whether its slot was taken")
        try:
            # completes or undoes an open transaction of an earlier producer of this slot
            self._producer.open(self._consumer)
            if self._assigned:
                self._begin()
        except (KafkaException, BusError) as error:
            self._serve_consumer()
            self._producer.end_again(self._consumer)
            raise Aborted(f"it is not known yet where {self._slot} goes on: {error}") from error
        self._must_rewind = False
        self._producer.found_positions()

    def _begin(self) -> None:
        """Continue from this worker's own positions; see ``docs/decisions/0020``.

        The group is asked first: its answer waits for commits that a former holder of a partition has begun, and from
        then on the group refuses that holder. So all its records are before the present end of `positions`.
        """
        committed = self._consumer.committed(self._assigned, timeout=timeouts.STEP)
        facts, records = describe_partitions(self._connection, self._watch, committed, self._health)
        own, troubles = newest(records, self._group_name)
        troubles += self._positions.begin(own, facts)
        for place in self._misread.keys() & self._positions.ranges.keys():
            one = self._positions.ranges[place]
            one.note = "; ".join(filter(None, (one.note, self._misread.pop(place))))
        for trouble in troubles:
            self._connection.note(self._health, trouble)
        self._fetched_at = self._connection.clock.monotonic()
        given, read = len(self._assigned), len(self._positions.ranges)
        assert given == read, f"{self._slot}: {given} partitions are assigned, and {read} would be read"
        self._consumer.assign(self._places({place: one.begin for place, one in self._positions.ranges.items()}))

    def _look_at_topics(self) -> None:
        """Begin again if a topic was created again: the client continues with the new one by itself."""
        for topic, shape in self._watch.step({topic for topic, _ in self._positions.ranges}).items():
            if not self._positions.is_of(topic, shape.id):
                self._must_rewind = True
                raise Aborted(f"topic {topic} was made again; what was taken since the last transaction is given up")
            self._shapes[topic] = shape.partitions
            self._look_at_ends()

    def _look_at_ends(self) -> None:
        """Begin again if the client fetches nothing from a partition: it gives no reason."""
        now = self._connection.clock.monotonic()
        places = [place for place in self._positions.ranges if self._high_watermark(*self._on_broker(place)) < 0]
        if not places:
            self._fetched_at = now
        elif now - self._fetched_at > timeouts.NOT_FETCHED:
            self._must_rewind = True
            text = ", ".join(f"{topic}, partition {partition}" for topic, partition in places)
            raise Aborted(
                f"the broker gave nothing of {text} for {timeouts.NOT_FETCHED:g} s; it is asked anew from where on"
            )

    def _on_broker(self, place: port.TopicPartition) -> tuple[str, int]:
        return self._connection.topic(place[0]), place[1]

    def _places(self, offsets: Mapping[port.TopicPartition, int]) -> list[TopicPartition]:
        return [
            TopicPartition(self._connection.topic(topic), partition, offset)
            for (topic, partition), offset in offsets.items()
        ]

    def _hear(self, messages: list[Message]) -> None:
        """Handle the events in a batch whose records are not used; each event comes only once.

        Raises
        ------
        Revoked
            Partitions were taken away.
        """
        was_revoked, self._revoked = self._revoked, False
        self._must_rewind = True
        self._on_events([message for message in messages if message.error() is not None])
        if was_revoked:
            raise Revoked("partitions were taken away from this worker; what it had not committed goes to others")

    def _serve_consumer(self) -> None:
        """Keep the membership alive and handle its events; records delivered here are delivered again."""
        for message in self._consumer.consume(1, 0.0):
            if message.error() is not None:
                self._on_event(message)

    def _high_watermark(self, topic: str, partition: int) -> int:
        return max(int(self._consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)[1]), -1)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = partitions
        self._must_rewind = True
        consumer.assign([])  # nothing is fetched before the start offsets are known

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = []
        self._revoked = True

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._lost_at = self._connection.clock.monotonic()
        self._on_revoke(consumer, partitions)

    def _on_events(self, events: list[Message]) -> None:
        """Handle the events of a batch, the final one first: the client delivers nothing after it."""
        for event in sorted(events, key=lambda event: _is_final(event.error()), reverse=True):
            self._on_event(event)

    def _on_event(self, event: Message) -> None:
        error = event.error()
        if error.code() == KafkaError._PARTITION_EOF:
            place, end = (self._connection.name(event.topic()), event.partition()), event.offset()
            if not self._must_rewind and place in self._positions.ranges:  # otherwise the records before are not used
                if end > self._positions.end(place):
                    self._require_empty(place, self._positions.end(place), end)
                self._positions.reach(place, end)
            return
        if _is_final(error):
            self._on_fenced(error)
        self._connection.note(self._health, f"{error.name()}: {error.str()}")
        if error.code() in _NOT_THERE:
            self._must_rewind = True
            raise Aborted(f"the log of {self._slot} is not as it was; where to go on is asked again: {error.str()}")

    def _on_fenced(self, error: KafkaError) -> NoReturn:
        """Stop for good, unless the broker has lost the session itself; see `joins_anew`."""
        _log.error("consumer cannot go on: %s", error.str())
        now, down_at = self._connection.clock.monotonic(), self._health.down_at
        if joins_anew(now, joined_at=self._joined_at, down_at=down_at, lost_at=self._lost_at):
            self._producer.close()
            self._must_rewind = True
            self._consumer.close()
            self._revoked = False  # closing takes the partitions away as well
            self._consumer = self._join()
            raise Aborted(f"{self._slot} was fenced after the broker had been away; it joins its group anew")
        raise fenced(self._group, self._slot)

    def _join(self) -> Consumer:
        self._joined_at = self._connection.clock.monotonic()
        settings = {**settings_of("consumer", "member", "worker"), **member_names(self._group, self._slot)}
        consumer = self._connection.consumer(self._health, settings)
        consumer.subscribe(self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        return consumer


def _is_final(error: KafkaError) -> bool:
    return error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL) or error.fatal()
