"""Looks at topics for readers that keep their own places: which topic it is now, and what is on it."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.inspection import id_of
from facade.bus.kafka.refusals import ask_again
from facade.bus.offsets import Extent, TopicShape
from facade.errors import BusError

_EACH = 2.0
"""Time between two questions about the ids of topics [s]: one small request for all topics of a device server."""
_BROKER_WAIT = 5.0
"""Longest wait for an answer of the broker [s]."""
_UNSEEN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)
"""Answers about topics that are not there, or that may not be seen; whoever reads them says so."""


class KafkaTopicWatch:
    """See `facade.bus.offsets.TopicWatch`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked: Mapping[str, Future[Any]] = {}
        self._due = 0.0

    def extents(self, topics: Iterable[str]) -> dict[str, Extent]:
        """Return what is on topics; see `facade.bus.offsets.TopicWatch`."""
        try:
            return ask_again(lambda: self._extents(topics), self._connection.clock, _BROKER_WAIT)
        except KafkaException as error:
            raise BusError(f"no answer about topics from {self._connection.bootstrap}: {error.args[0]}") from error

    def step(self, topics: Iterable[str]) -> dict[str, TopicShape]:
        """Return what has been said of topics; see `facade.bus.offsets.TopicWatch`."""
        now = self._connection.clock.monotonic()
        if not self._asked and now >= self._due:
            self._asked = self._describe(topics)
            if self._asked:  # who has no partitions yet wants to know as soon as it has some
                self._due = now + _EACH
        if not self._asked or not all(future.done() for future in self._asked.values()):
            return {}
        self._connection.admin().poll(0)
        asked, self._asked = self._asked, {}
        found = {}
        for topic, future in asked.items():
            if future.exception() is None:  # a broker that is away is noticed by those who read
                description = future.result()
                found[topic] = TopicShape(id_of(description), len(description.partitions))
        return found

    def _extents(self, topics: Iterable[str]) -> dict[str, Extent]:
        found = {topic: self._seen(future) for topic, future in self._describe(topics).items()}
        there = {topic: description for topic, description in found.items() if description is not None}
        places = [
            TopicPartition(self._connection.topic(topic), partition.id)
            for topic, description in there.items()
            for partition in description.partitions
        ]
        firsts, ends = (self._offsets(places, which) for which in (OffsetSpec.earliest(), OffsetSpec.latest()))
        return {
            topic: Extent(
                id_of(description),
                {one.id: (firsts[topic, one.id], ends[topic, one.id]) for one in description.partitions},
            )
            for topic, description in there.items()
        }

    def _describe(self, topics: Iterable[str]) -> dict[str, Future[Any]]:
        names = [self._connection.topic(topic) for topic in topics]
        if not names:
            return {}
        futures = self._connection.admin().describe_topics(TopicCollection(names), request_timeout=_BROKER_WAIT)
        return {self._connection.name(name): future for name, future in futures.items()}

    @staticmethod
    def _seen(future: Future[Any]) -> Any:
        try:
            return future.result()
        except KafkaException as error:
            if error.args[0].code() in _UNSEEN:
                return None
            raise

    def _offsets(self, places: list[TopicPartition], which: OffsetSpec) -> dict[tuple[str, int], int]:
        if not places:
            return {}
        futures = self._connection.admin().list_offsets(dict.fromkeys(places, which), request_timeout=_BROKER_WAIT)
        return {
            (self._connection.name(place.topic), place.partition): int(future.result().offset)
            for place, future in futures.items()
        }
