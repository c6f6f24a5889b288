"""Reads whole topics from given offsets; no group, no commits: the reader's own snapshot has its position."""

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.client_settings import settings_of
from facade.kernel.bus.kafka.connection import Connection, to_columns, to_record
from facade.kernel.bus.kafka.refusals import READ, describe, explain, require_present
from facade.kernel.bus.kafka.transactions import by_partition
from facade.kernel.bus.port import BusHealth, PartitionColumns, Record
from facade.kernel.errors import BusError
from facade.kernel.icd.topic_model import READER

Start = Mapping[str, Mapping[int, int]]
"""Offset to begin at, by topic and partition; a partition that is not named begins at its start."""


class KafkaReader:
    """Reads some topics.

    Parameters
    ----------
    topics
        Partitions to read by topic; None: all of them.
    committed
        Only committed records. False: records as soon as all in-sync replicas have them, also those of a transaction
        that may yet be aborted.
    together
        Whether records within 200 ms come in one answer, which saves broker and reader most work. False: each comes at
        once.
    resets
        Whether to restart at the beginning of a partition if a position is not on its log. False: the reader reports
        that it is misplaced, and the caller compares its positions with the topics.

    Raises
    ------
    BusError
        The broker does not answer, or a topic does not exist or may not be read.
    """

    def __init__(
        self,
        connection: Connection,
        topics: Mapping[str, Sequence[int] | None],
        *,
        start: Start,
        health: BusHealth,
        committed: bool = True,
        together: bool = False,
        resets: bool = True,
    ) -> None:
        self.is_misplaced = False
        """Whether a position is not on its log; see `facade.kernel.bus.port.Reader`."""
        self._connection = connection
        self._health = health
        self._next: dict[tuple[str, int], int] = {}
        self._refused: dict[tuple[str, int], int] = {}
        """Offset of each partition at which a fetch was refused, which the client says once."""
        self._ended: set[tuple[str, int]] = set()
        self._first_ends: dict[tuple[str, int], int] = {}
        settings = {
            **settings_of("consumer", "reader", "together" if together else "at once"),
            "group.id": connection.prefix + READER,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "auto.offset.reset": "earliest" if resets else "error",
        }
        self._consumer = connection.consumer(health, settings)
        try:
            self._places = self._find(topics, start)
            self._consumer.assign(self._places)
            connection.answered(health)
        except (KafkaException, BusError) as error:
            if isinstance(error, BusError):
                connection.answered(health)  # the fault is the topic's
            self._consumer.close()
            raise BusError(f"cannot read {', '.join(topics)} at {connection.bootstrap}: {describe(error)}") from error

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records, at most `limit`, waiting at most `timeout` [s] for them."""
        records = []
        for message in self._consumer.consume(limit, timeout):
            if message.error() is None:
                records.append(to_record(self._connection, message))
                self._next[message.topic(), message.partition()] = message.offset() + 1
            else:
                self._hear(message)
        return records

    def take_columns(self, limit: int, timeout: float) -> Sequence[PartitionColumns]:
        """Return the next records as columns, at most `limit`, waiting at most `timeout` [s] for them."""
        events: list[Message] = []
        runs = by_partition(self._consumer.consume(limit, timeout), events.append)
        for message in events:
            self._hear(message)
        found = []
        for run in runs:
            columns = to_columns(self._connection, run)
            place = run[0].topic(), columns.partition
            self._next[place] = max(self._next.get(place, 0), columns.offsets[-1] + 1)
            found.append(columns)
        return found

    def _hear(self, message: Message) -> None:
        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            # After the last record there may be end markers of transactions, which are never delivered.
            self._next[message.topic(), message.partition()] = message.offset()
            self._ended.add((message.topic(), message.partition()))
            self._refused.pop((message.topic(), message.partition()), None)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION):
            self.is_misplaced = True
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:  # the client's own text names no topic
            self._refused[message.topic(), message.partition()] = message.offset()
            self._connection.note(self._health, explain(error, message.topic(), READ))
        else:
            self._connection.note(self._health, f"{error.name()}: {error.str()}")

    @property
    def refused(self) -> set[str]:
        """Return the topics that may not be read; see `facade.kernel.bus.port.ColumnReader`."""
        places = (place for place, at in self._refused.items() if self._next.get(place, at) <= at)
        return {self._connection.name(topic) for topic, _ in places}

    def caught_up(self, topic: str) -> bool:
        """Return whether the end of each partition was reached, at least once."""
        name = self._connection.topic(topic)
        return all(self._has_ended(place) for place in self._places if place.topic == name)

    def _has_ended(self, place: TopicPartition) -> bool:
        # Where records come more often than `fetch.wait.max.ms`, no answer is empty, and the client never reports the
        # end. So the end as first reported counts as well.
        key = place.topic, place.partition
        at = self._next.get(key)
        if key in self._ended or at is None:
            return key in self._ended
        if key not in self._first_ends:
            self._first_ends[key] = int(self._consumer.get_watermark_offsets(place, cached=True)[1])
        return at >= self._first_ends[key]

    def behind(self, topic: str) -> dict[int, int]:
        """Count the records behind the last one taken, by partition; see `facade.kernel.bus.port.Reader`."""
        name, found = self._connection.topic(topic), {}
        for place in self._places:
            at = self._next.get((place.topic, place.partition))
            if place.topic == name and at is not None:
                end = int(self._consumer.get_watermark_offsets(place, cached=True)[1])
                found[place.partition] = max(end - at, 0)
        return found

    def reached(self, topic: str) -> dict[int, int]:
        """Return the next offset to take by partition; see `facade.kernel.bus.port.Reader`."""
        name = self._connection.topic(topic)
        return {partition: at for (known, partition), at in self._next.items() if known == name}

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def _find(self, topics: Mapping[str, Sequence[int] | None], start: Start) -> list[TopicPartition]:
        # One request for all of them: a busy broker takes its time for each, while nothing is shown yet.
        only = [self._connection.topic(topic) for topic in topics if len(topics) == 1]
        known = self._consumer.list_topics(*only, timeout=timeouts.PROCESS).topics
        return [
            place
            for topic, chosen in topics.items()
            for place in self._partitions(topic, chosen, start.get(topic, {}), known)
        ]

    def _partitions(
        self, topic: str, chosen: Sequence[int] | None, at: Mapping[int, int], known: Mapping[str, Any]
    ) -> list[TopicPartition]:
        name = self._connection.topic(topic)
        found = known.get(name)
        if found is None:  # it may exist without a right to see it, which only a request for it alone shows
            found = self._consumer.list_topics(name, timeout=timeouts.PROCESS).topics.get(name)
        found = require_present(found, name, READ)
        if missing := set(chosen or ()) - set(found.partitions):
            raise BusError(f"topic {name} has no partition {sorted(missing)}, only {sorted(found.partitions)}")
        partitions = found.partitions if chosen is None else chosen
        return [TopicPartition(name, partition, at.get(partition, OFFSET_BEGINNING)) for partition in partitions]
