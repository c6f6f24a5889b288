"""Creates the ICD's topics and compares existing ones with it; nothing is ever created by accident."""

from collections.abc import Collection, Iterator, Mapping

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from facade.admin.cluster import FoundTopic, inspect_topics
from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.admin import KafkaTopicWatch
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.refusals import failing
from facade.kernel.errors import BusError
from facade.kernel.icd.topic_model import Topic

_MIN_INSYNC, _TIMESTAMPS = "min.insync.replicas", "message.timestamp.type"


def create_topics(connection: Connection, topics: dict[str, Topic], *, replicas: int = 1) -> list[str]:
    """Create the topics that are missing.

    `replicas`: replicas of each topic; all but one of them must confirm a record, see `min.insync.replicas`.

    Returns
    -------
    list of str
        How existing topics differ from the ICD and from `replicas`, one line each; empty when all is well.

    Raises
    ------
    BusError
        The broker does not answer or refuses, or there are fewer brokers than replicas.
    """
    # Topics created now agree with the ICD, and may not be known by all brokers yet.
    found = inspect_topics(connection, topics)
    missing = [
        NewTopic(connection.topic(name), topic.partitions, replicas, config=_all_settings(topic, replicas))
        for name, topic in topics.items()
        if name not in found
    ]
    admin = connection.admin()
    with failing(f"topics with {replicas} replicas cannot be created at {connection.bootstrap}"):
        futures = admin.create_topics(missing, operation_timeout=timeouts.COMMAND) if missing else {}
        for future in futures.values():
            future.result()
    if missing:
        _await_leaders(connection, topics.keys() - found.keys())
    return [
        f"{connection.topic(name)}: {text}"
        for name in found
        for text in differences(topics[name], found[name], replicas)
    ]


def _await_leaders(connection: Connection, topics: Collection[str]) -> None:
    """Return when the leader of each partition answers.

    A producer that writes earlier, with several requests under way, may lose its first records, though they are
    confirmed (KAFKA-15591): the leader refuses the first request, and accepts the second one.
    """
    clock, watch = connection.clock, KafkaTopicWatch(connection, patience=timeouts.NEW_TOPICS)
    deadline = clock.monotonic() + timeouts.NEW_TOPICS
    while unknown := set(topics) - watch.extents(topics).keys():
        if clock.monotonic() > deadline:
            raise BusError(
                f"topics at {connection.bootstrap} are created, but not known to the brokers yet: {sorted(unknown)}"
            )
        clock.sleep(0.05)


def delete_topics(connection: Connection, names: Collection[str]) -> int:
    """Delete topics, if they exist, with all their records; return their number.

    Raises
    ------
    BusError
        The broker does not answer or refuses.
    """
    admin = connection.admin()
    with failing(f"topics cannot be deleted at {connection.bootstrap}"):
        existing = admin.list_topics(timeout=timeouts.COMMAND).topics
        mine = [topic for name in names if (topic := connection.topic(name)) in existing]
        futures = admin.delete_topics(mine, operation_timeout=timeouts.COMMAND) if mine else {}
        for future in futures.values():
            future.result()
    return len(mine)


def delete_records(connection: Connection, topic: str, partition: int, before: int) -> None:
    """Delete the records of a partition before an offset."""
    place = TopicPartition(connection.topic(topic), partition, before)
    admin = connection.admin()
    with failing(f"records of {place.topic} at {connection.bootstrap} cannot be deleted"):
        for future in admin.delete_records([place], request_timeout=timeouts.COMMAND).values():
            future.result()


def set_timestamps(connection: Connection, topics: Mapping[str, Topic]) -> None:
    """Give later records of topics the timestamps of the ICD; earlier records keep theirs."""
    resources = [
        ConfigResource(
            ResourceType.TOPIC,
            connection.topic(name),
            incremental_configs=[
                ConfigEntry(_TIMESTAMPS, topic.timestamp, incremental_operation=AlterConfigOpType.SET)
            ],
        )
        for name, topic in topics.items()
    ]
    admin = connection.admin()
    with failing(f"topics at {connection.bootstrap} cannot be altered"):
        for future in admin.incremental_alter_configs(resources, request_timeout=timeouts.COMMAND).values():
            future.result()


def broker_settings(topic: Topic) -> dict[str, str]:
    """Return the topic settings that follow from the ICD, by Kafka's names."""
    settings = {
        "cleanup.policy": topic.cleanup,
        "max.message.bytes": str(topic.max_bytes),
        _TIMESTAMPS: topic.timestamp,
        # The limit holds for a batch as it arrives: 94 MB of zeros are 3 kB of zstd, at which readers would hang.
        "compression.type": "uncompressed",
    }
    if topic.retention is not None:
        settings["retention.ms"] = str(round(topic.retention * 1000))
    return {**settings, **topic.config}


def _all_settings(topic: Topic, replicas: int) -> dict[str, str]:
    return {_MIN_INSYNC: str(max(1, replicas - 1)), **broker_settings(topic)}


def differences(wanted: Topic, found: FoundTopic, replicas: int) -> Iterator[str]:
    """Return how a topic differs from the ICD and from `replicas`, one line each."""
    if not wanted.allows(found.partitions):
        yield f"partitions: ICD says {wanted.partitions}, broker has {found.partitions}"
    if found.replicas != replicas:
        yield f"replicas: deployment says {replicas}, broker has {found.replicas}"
    by_icd = broker_settings(wanted)
    for key, value in _all_settings(wanted, replicas).items():
        if found.settings.get(key) != value:
            who = "ICD" if key in by_icd else "deployment"
            yield f"{key}: {who} says {value}, broker has {found.settings.get(key)}"
