"""Looks at topics and changes nothing: how they are set up, and the newest of what is on them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.refusals import describe
from facade.bus.kafka.spans import find_span, read_span
from facade.bus.port import Record
from facade.errors import BusError

_BROKER_WAIT = 10.0
"""Longest wait for an answer of the broker [s]."""
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Id of 16 zero bytes: what the client makes of the answer of a broker that gives no ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """A topic as the brokers have it."""

    partitions: int
    replicas: int
    """Of the partition that has the fewest."""
    settings: dict[str, str]
    """By Kafka's names."""


def inspect_topics(connection: Connection, topics: Iterable[str]) -> dict[str, FoundTopic]:
    """Return those of some topics that exist, by their names in the ICD.

    Raises
    ------
    BusError
        The broker does not answer or refuses.
    """
    admin = connection.admin()
    try:
        existing = admin.list_topics(timeout=_BROKER_WAIT).topics
        there = [name for name in topics if connection.topic(name) in existing]
        resources = [ConfigResource(ResourceType.TOPIC, connection.topic(name)) for name in there]
        futures = admin.describe_configs(resources) if resources else {}
        found = {}
        for resource, future in futures.items():
            settings = {key: entry.value for key, entry in future.result(timeout=_BROKER_WAIT).items()}
            partitions = existing[resource.name].partitions
            replicas = min((len(one.replicas) for one in partitions.values()), default=0)
            found[connection.name(resource.name)] = FoundTopic(
                partitions=len(partitions), replicas=replicas, settings=settings
            )
        return found
    except KafkaException as error:
        raise BusError(f"no answer about topics from the brokers {connection.bootstrap}: {describe(error)}") from error


def id_of(description: Any) -> str:
    """Return the broker's id in a description of a topic, 22 characters of base64.

    A topic that is deleted and made again has another id, though its name and perhaps its offsets are the same. Empty
    text: the broker gives no ids, as it is older than 2.8 or has kept an older inter-broker protocol.
    """
    return str(description.topic_id).replace(_NO_ID, "")


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a broker says about its cluster."""

    id: str
    brokers: frozenset[tuple[str, int]]
    """Host and port of those that are alive."""


def find_cluster(bootstrap: str, within: float) -> Cluster | None:
    """Ask whoever listens there for its cluster; None: no Kafka broker answers in time [s]."""
    quick = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 50, "log_level": 0, "error_cb": _ignore}
    try:
        found = AdminClient({"bootstrap.servers": bootstrap, **quick}).list_topics(timeout=within)
    except KafkaException:
        return None
    return Cluster(found.cluster_id or "", frozenset((one.host, one.port) for one in found.brokers.values()))


def newest_records(connection: Connection, topic: str, count: int) -> list[Record]:
    """Return what is on the last `count` places of each partition of a topic, as far as transactions have committed it.

    Raises
    ------
    BusError
        The broker does not answer, or not within some seconds.
    """
    return [*read_span(connection, topic, find_span(connection, topic, newest=count))]


def _ignore(_: KafkaError) -> None:
    """Pass over an error: that nobody answers is an answer."""
