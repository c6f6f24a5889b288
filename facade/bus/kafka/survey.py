"""Asks the brokers for everything that `bus check` judges, and changes nothing."""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.coordinators import ask_coordinator
from facade.bus.kafka.refusals import describe
from facade.bus.kafka.spans import read_span
from facade.bus.port import BusHealth
from facade.errors import BusError

_BROKER_WAIT = 10.0
"""Longest wait for an answer of the broker [s]."""
_LOOKED_AT = 100
"""Places behind that of a group among which there is a record."""
_API = re.compile(r"ApiKey (\w+) \(\d+\) Versions \d+\.\.(\d+)")


class TopicState(NamedTuple):
    """A topic as it is now."""

    partitions: int
    leaderless: int
    """Partitions that nobody can read or write."""
    replicas: int
    in_sync: int
    """Of the partition that has the fewest."""
    rights: frozenset[str]
    """What this principal may do: READ, WRITE, DESCRIBE ..."""


class Place(NamedTuple):
    """Where a group is in a partition."""

    topic: str
    partition: int
    committed: int
    begin: int
    end: int
    waiting_since: float
    """Time of the first record that was not taken [Unix s]; 0: there is none, or it cannot be read."""


class GroupState(NamedTuple):
    """A consumer group as it is now."""

    members: int
    places: tuple[Place, ...]
    rights: frozenset[str]


class Cluster(NamedTuple):
    """What the brokers say of themselves."""

    id: str
    brokers: tuple[str, ...]
    apis: Mapping[str, int]
    """Newest version of each request that a broker takes, by Kafka's names."""


class Survey:
    """Asks the brokers of one deployment.

    Each method raises `facade.errors.BusError` where no answer comes.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin = connection.admin()

    def cluster(self) -> Cluster:
        """Return who the brokers are, and what they can."""
        apis = _Apis()
        try:
            client = self._connection.producer(BusHealth(), {"debug": "feature", "logger": apis.logger})
            client.list_topics(timeout=_BROKER_WAIT)
            client.poll(0.0)  # hands the lines of its log out
            found = self._admin.describe_cluster(request_timeout=_BROKER_WAIT).result()
        except KafkaException as error:
            raise BusError(f"no answer at {self._connection.bootstrap}: {describe(error)}") from error
        brokers = tuple(f"{node.host}:{node.port}" for node in found.nodes)
        return Cluster(found.cluster_id or "", brokers, apis.found)

    def topics(self, names: Iterable[str]) -> dict[str, TopicState | str]:
        """Return topics by their names in the ICD; one that is not there, or not shown, with the reason."""
        wanted = TopicCollection([self._connection.topic(name) for name in names])
        futures = self._admin.describe_topics(wanted, include_authorized_operations=True, request_timeout=_BROKER_WAIT)
        found: dict[str, TopicState | str] = {}
        for name, future in futures.items():
            try:
                topic = future.result()
            except KafkaException as error:
                found[self._connection.name(name)] = error.args[0].name()
                continue
            found[self._connection.name(name)] = TopicState(
                partitions=len(topic.partitions),
                leaderless=sum(one.leader is None or one.leader.id < 0 for one in topic.partitions),
                replicas=min((len(one.replicas) for one in topic.partitions), default=0),
                in_sync=min((len(one.isr) for one in topic.partitions), default=0),
                rights=_rights(topic.authorized_operations),
            )
        return found

    def group(self, group: str) -> GroupState:
        """Return a group by its name without the prefix, with all places that it has committed."""
        name = self._connection.prefix + group
        try:
            described = ask_coordinator(
                self._admin.describe_consumer_groups, name, within=_BROKER_WAIT, include_authorized_operations=True
            )
            about = ConsumerGroupTopicPartitions(name)
            committed = ask_coordinator(self._admin.list_consumer_group_offsets, name, within=_BROKER_WAIT, about=about)
            places = tuple(self._places(committed.topic_partitions or []))
        except KafkaException as error:
            raise BusError(f"group {name}: {describe(error)}") from error
        return GroupState(len(described.members), places, _rights(described.authorized_operations))

    def _places(self, committed: list[TopicPartition]) -> Iterable[Place]:
        mine = [one for one in committed if one.offset >= 0 and one.topic.startswith(self._connection.prefix)]
        begins, ends = (self._offsets(mine, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        for one in mine:
            key, topic = (one.topic, one.partition), self._connection.name(one.topic)
            if key in begins and key in ends:
                begin, end = begins[key], ends[key]
                since = self._time_at(topic, one.partition, max(one.offset, begin), end)
                yield Place(topic, one.partition, one.offset, begin, end, since)

    def _offsets(self, places: list[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        asked = {TopicPartition(one.topic, one.partition): spec for one in places}
        if not asked:
            return {}
        found = {}
        for place, future in self._admin.list_offsets(asked, request_timeout=_BROKER_WAIT).items():
            try:
                found[place.topic, place.partition] = future.result().offset
            except KafkaException:
                continue  # the topic is no more
        return found

    def _time_at(self, topic: str, partition: int, offset: int, end: int) -> float:
        if offset >= end:
            return 0.0
        try:
            span = {partition: (offset, min(end, offset + _LOOKED_AT))}
            first = next(read_span(self._connection, topic, span), None)
        except BusError:
            return 0.0  # without a right to read it
        return 0.0 if first is None else first.timestamp_us / 1e6


class _Apis(logging.Handler):
    """Listens to the client, which tells its log only what a broker takes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, int] = {}
        self.logger = logging.Logger("apis")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the client's log."""
        if named := _API.search(record.getMessage()):
            self.found[named[1]] = int(named[2])


def _rights(operations: Iterable[object] | None) -> frozenset[str]:
    return frozenset(getattr(one, "name", str(one)) for one in operations or ())
