"""The brokers, their topics and groups as they are now, for checks and commands of an administrator."""

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.admin import ask_coordinator, asking, describe, offsets_at
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.kafka.refusals import NO_BROKER, failing
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import NEVER, Time
from facade.kernel.errors import BusError

_NEAR = 100
"""Offsets after the position of a group in which a record is searched."""
_FAULT = re.compile(r"FAIL .*?/(?:bootstrap|\d+): (.*?)(?: \(after |$)", re.DOTALL)
_CONNECTED = "Updated enabled protocol features +"
"""In lines of the client's log."""
_API = re.compile(r"ApiKey (\w+) \(\d+\) Versions \d+\.\.(\d+)")
_Partition = tuple[str, int]
_REASONS: Final = {
    "SASL authentication error": "the broker refuses this login; correct sasl.username and sasl.password",
    "SASL mechanism": "the broker does not know this login's mechanism; correct sasl.mechanism",
    "certificate": "the broker's certificate is not trusted; correct ssl.ca.location, or the host in KAFKA_BOOTSTRAP",
    "SSL": "the broker has another protocol; correct security.protocol",
    "": NO_BROKER,
}
"""What a line of the client's log about a broker means, by a part of the line: the first one counts."""


class Cluster(NamedTuple):
    """The brokers of a deployment."""

    id: str
    brokers: frozenset[str]
    """host:port of each broker that is alive."""
    apis: Mapping[str, int]
    """Newest version of each request that a broker supports, by Kafka's names."""


class TopicState(NamedTuple):
    """A topic as it is now."""

    partitions: int
    leaderless: int
    """Partitions without a leader: they cannot be read or written."""
    replicas: int
    in_sync: int
    """Replicas in sync, of the partition that has the fewest."""
    rights: frozenset[str]
    """Operations that this principal may do: READ, WRITE, DESCRIBE ..."""


class GroupPosition(NamedTuple):
    """Position of a group in a partition."""

    topic: str
    partition: int
    committed: int
    begin: int
    end: int
    waiting_since: Time
    """Time of the first record after the position; 0: there is none, or it cannot be read."""


class GroupState(NamedTuple):
    """A consumer group as it is now."""

    members: int
    positions: tuple[GroupPosition, ...]
    rights: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """Configuration of a topic at the brokers."""

    partitions: int
    replicas: int
    """Replicas of the partition that has the fewest."""
    settings: dict[str, str]


def inspect_topics(connection: Connection, topics: Iterable[str]) -> dict[str, FoundTopic]:
    """Return the topics that exist, by name."""
    admin = connection.admin()
    with failing(f"no answer about topics from the brokers {connection.bootstrap}"):
        existing = admin.list_topics(timeout=timeouts.COMMAND).topics
        there = [name for name in topics if connection.topic(name) in existing]
        resources = [ConfigResource(ResourceType.TOPIC, connection.topic(name)) for name in there]
        futures = admin.describe_configs(resources) if resources else {}
        found = {}
        for resource, future in futures.items():
            settings = {key: entry.value for key, entry in future.result(timeout=timeouts.COMMAND).items()}
            partitions = existing[resource.name].partitions
            replicas = min((len(one.replicas) for one in partitions.values()), default=0)
            found[connection.name(resource.name)] = FoundTopic(
                partitions=len(partitions), replicas=replicas, settings=settings
            )
        return found


def describe_states(connection: Connection, topics: Iterable[str]) -> dict[str, TopicState | str]:
    """Return topics by name; for a topic that does not exist or is not shown, Kafka's name of the error."""
    found: dict[str, TopicState | str] = {}
    futures = describe(connection, topics, timeouts.COMMAND, include_authorized_operations=True)
    for name, future in futures.items():
        try:
            topic = future.result()
        except KafkaException as error:
            found[name] = error.args[0].name()
            continue
        found[name] = TopicState(
            partitions=len(topic.partitions),
            leaderless=sum(one.leader is None or one.leader.id < 0 for one in topic.partitions),
            replicas=min((len(one.replicas) for one in topic.partitions), default=0),
            in_sync=min((len(one.isr) for one in topic.partitions), default=0),
            rights=_rights(topic.authorized_operations),
        )
    return found


def describe_group(connection: Connection, group: str) -> GroupState:
    """Return a consumer group, by its name without the prefix, with all positions that it has committed.

    For commands only: see the top of this module.
    """
    name, admin = connection.prefix + group, connection.admin()
    with failing(f"group {name}"):
        described = ask_coordinator(admin.describe_consumer_groups, name, include_authorized_operations=True)
        own = _committed(connection, group)
        with asking(connection) as consumer:
            ask = partial(offsets_at, connection, consumer, own, within=timeouts.COMMAND, leave_out=True)
            first, end = ask(OFFSET_BEGINNING, OFFSET_END)
        positions = []
        for place, at in own.items():
            if place in first and place in end:
                since = _time_at(connection, place, max(at, first[place]), end[place])
                positions.append(GroupPosition(*place, at, first[place], end[place], since))
    return GroupState(len(described.members), tuple(positions), _rights(described.authorized_operations))


def _committed(connection: Connection, group: str) -> dict[_Partition, int]:
    """Return the offsets that a group has committed, by topic and partition of the deployment."""
    with asking(connection, group) as consumer:
        there = consumer.list_topics(timeout=timeouts.COMMAND).topics
        wanted = [name for name in there if name.startswith(connection.prefix)]
        places = [TopicPartition(name, one) for name in wanted for one in there[name].partitions]
        answers = consumer.committed(places, timeout=timeouts.COMMAND) if places else []
    return {(connection.name(one.topic), one.partition): one.offset for one in answers if one.offset >= 0}


def _time_at(connection: Connection, place: _Partition, offset: int, end: int) -> Time:
    """Return the time of the first record at or after an offset; 0: there is none, or it may not be read."""
    topic, partition = place
    if offset >= end:
        return NEVER
    try:
        first = next(read_range(connection, topic, {partition: (offset, min(end, offset + _NEAR))}), None)
    except BusError:
        return NEVER
    return NEVER if first is None else first.timestamp_us


def _rights(operations: Iterable[object] | None) -> frozenset[str]:
    return frozenset(getattr(one, "name", str(one)) for one in operations or ())


def describe_cluster(connection: Connection) -> Cluster:
    """Return the brokers of a deployment and the requests that they support.

    Raises
    ------
    BusError
        No broker serves this client; the text tells a wrong login, protocol or certificate from a broker that is away.
    """
    log = _ClientLog()
    client = connection.producer(BusHealth(), {"debug": "feature", "logger": log.logger})
    try:
        client.list_topics(timeout=timeouts.COMMAND)
    except KafkaException as error:
        client.poll(0.0)  # delivers the lines of its log
        raise BusError(f"{connection.bootstrap}: {_why_silent(log.faults, connected=log.connected)}") from error
    client.poll(0.0)
    with failing(f"no answer at {connection.bootstrap}"):
        found = connection.admin().describe_cluster(request_timeout=timeouts.COMMAND).result()
    return Cluster(found.cluster_id or "", frozenset(f"{node.host}:{node.port}" for node in found.nodes), log.apis)


def _why_silent(faults: Collection[str], *, connected: bool) -> str:
    """Return why no broker serves a client, and the remedy.

    Parameters
    ----------
    faults
        Lines of the client's log about brokers.
    connected
        Whether a connection was made. A broker with TLS breaks off without a line if the client has none.
    """
    if connected and not faults:
        return "a connection is made, but no broker answers it; correct security.protocol, or see if the broker hangs"
    known = ((text, fault) for part, text in _REASONS.items() for fault in faults if part in fault)
    text, fault = next(known, (NO_BROKER, "it cannot be reached"))
    return f"{text} ({fault})"


def find_cluster(bootstrap: str, within: float, login: Mapping[str, str] | None = None) -> Cluster | None:
    """Return the cluster of the broker at an address; None: no Kafka broker answers in time [s].

    `login`: Kafka settings of the client; None: the broker accepts any client.
    """
    # Silence is an answer.
    quick = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 50, "log_level": 0, "error_cb": lambda _: None}
    try:
        # A producer, as an admin client must not be thrown away.
        found = Producer({"bootstrap.servers": bootstrap, **quick, **(login or {})}).list_topics(timeout=within)
    except KafkaException:
        return None
    return Cluster(found.cluster_id or "", frozenset(f"{one.host}:{one.port}" for one in found.brokers.values()), {})


class _ClientLog(logging.Handler):
    """Takes from the log of a client what nothing else has: requests that a broker supports, and faults."""

    def __init__(self) -> None:
        super().__init__()
        self.apis: dict[str, int] = {}
        """Newest version of each request, by name."""
        self.faults, self.connected = set[str](), False
        self.logger = logging.Logger("client")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.connected = self.connected or _CONNECTED in text
        if named := _API.search(text):
            self.apis[named[1]] = int(named[2])
        elif fault := _FAULT.search(text):
            self.faults.add(fault[1])
