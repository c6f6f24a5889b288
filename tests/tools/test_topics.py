"""How topics that exist differ from the ICD is said, one line each, and nothing is made anew."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import ConfigResource, NewTopic
from typer.testing import CliRunner

from facade.admin import topics
from facade.admin.cluster import FoundTopic
from facade.kernel.bus.kafka import connection
from facade.kernel.bus.kafka.admin import KafkaTopicWatch
from facade.kernel.bus.kafka.connection import Clients, Connection
from facade.kernel.bus.offsets import Extent, PartitionReplicas, TopicShape
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load

ICD = load()


def test_each_difference_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        name: FoundTopic(
            partitions=topic.partitions,
            replicas=3,
            settings={**topics.broker_settings(topic), "min.insync.replicas": "2"},
        )
        for name, topic in ICD.topics.items()
    }
    monkeypatch.setattr(topics, "inspect_topics", lambda connection, names: found)
    shared = Connection(Settings(prefix="t.", bootstrap="127.0.0.1:1"))
    assert topics.create_topics(shared, ICD.topics, replicas=3) == []
    wanted = topics.broker_settings(ICD.topics["state"])
    changed = {**wanted, "cleanup.policy": "delete", "min.insync.replicas": "1"}
    found["state"] = FoundTopic(partitions=99, replicas=1, settings=changed)
    assert topics.create_topics(shared, ICD.topics, replicas=3) == [
        f"t.state: partitions: ICD says {ICD.topics['state'].partitions}, broker has 99",
        "t.state: replicas: deployment says 3, broker has 1",
        "t.state: min.insync.replicas: deployment says 2, broker has 1",
        "t.state: cleanup.policy: ICD says compact, broker has delete",
    ]


def test_topics_of_a_deployment_are_deleted_and_none_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes = ["t.", "t.low.", "t.ingest.", "t", "t-", ""]
    there = {f"{prefix}{name}" for prefix in prefixes for name in ICD.topics} | {"t.mine", "mine"}
    deleted = set[str]()

    def delete(names: list[str], **_: object) -> dict[str, Future[None]]:
        deleted.update(names)
        return {}

    admin = SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics=there), delete_topics=delete)
    monkeypatch.setattr(connection.Connection, "admin", lambda _: admin)
    done = CliRunner().invoke(app, ["topics", "delete", "t."], env={"SDP_TOPIC_PREFIX": "t."})
    assert f"{len(ICD.topics)} topics deleted" in done.output
    assert deleted == {f"t.{name}" for name in ICD.topics}
    done = CliRunner().invoke(app, ["topics", "delete", "t.low."], env={"SDP_TOPIC_PREFIX": "t."})
    assert "expected that of the settings, 't.', got 't.low.'" in str(done.exception)


class Admin:
    """Plays a cluster of one broker with the topic `alerts`, on which one partition has fewer replicas."""

    made: ClassVar[list[NewTopic]] = []

    def __init__(self, config: dict[str, Any]) -> None:
        pass

    def list_topics(self, timeout: float) -> SimpleNamespace:
        partitions = {number: SimpleNamespace(replicas=[1, 2, 3][: 3 - number]) for number in range(2)}
        return SimpleNamespace(topics={"t.alerts": SimpleNamespace(partitions=partitions)})

    def describe_configs(self, resources: list[ConfigResource]) -> dict[ConfigResource, Future[dict[str, Any]]]:
        return {resource: done({}) for resource in resources}

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> dict[str, Future[SimpleNamespace]]:
        missing = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        known = {"t.alerts": Uuid(1, 2), "t.old": Uuid(0, 0)} | {one.topic: Uuid(3, 4) for one in self.made}
        one, two = (SimpleNamespace(id=number, host=f"broker-{number}", port=9092) for number in (1, 2))
        partitions = [
            SimpleNamespace(id=0, leader=one, replicas=[one, two], isr=[one]),
            SimpleNamespace(id=1, leader=None, replicas=[one], isr=[]),
        ]
        return {
            name: done(SimpleNamespace(topic_id=known[name], partitions=partitions) if name in known else missing)
            for name in topics.topic_names
        }

    def poll(self, timeout: float) -> None:
        pass

    def create_topics(self, wanted: list[NewTopic], operation_timeout: float) -> dict[str, Future[None]]:
        self.made.extend(wanted)
        few = KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, "only 1 broker(s) are registered.")
        return {one.topic: done(KafkaException(few) if one.replication_factor > 1 else None) for one in wanted}


class Consumer:
    """Plays a consumer of that cluster: each partition has the offsets 3 to 6."""

    def __init__(self, config: dict[str, Any]) -> None:
        pass

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None, 1: None}, error=None)})

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        known = {OFFSET_BEGINNING: 3, OFFSET_END: 7}
        return [TopicPartition(one.topic, one.partition, known.get(one.offset, 5)) for one in places]

    def close(self) -> None:
        pass


def done(outcome: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return future


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> type[Admin]:
    monkeypatch.setattr(connection, "KAFKA", Clients(consumer=Consumer, admin=Admin))
    monkeypatch.setattr(Admin, "made", [])
    monkeypatch.setenv("SDP_TOPIC_PREFIX", "t.")
    monkeypatch.delenv("SDP_FACADE_CONFIG", raising=False)
    monkeypatch.delenv("SDP_TOPIC_REPLICAS", raising=False)
    return Admin


@pytest.mark.parametrize(
    ("given", "setting", "replicas", "confirm"),
    [([], "", 1, "1"), ([], "2", 2, "1"), ([], "3", 3, "2"), (["--replicas", "4"], "3", 4, "3")],
)
def test_replicas_are_the_options_or_the_settings_and_all_but_one_must_confirm(
    cluster: type[Admin], given: list[str], setting: str, replicas: int, confirm: str
) -> None:
    CliRunner().invoke(app, ["topics", "create", *given], env={"SDP_TOPIC_REPLICAS": setting or None})
    assert {one.topic for one in cluster.made} == {f"t.{name}" for name in ICD.topics} - {"t.alerts"}
    assert {one.replication_factor for one in cluster.made} == {replicas}
    assert {one.config["min.insync.replicas"] for one in cluster.made} == {confirm}


def test_topics_that_the_settings_do_not_use_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bus check` counts the others."""
    monkeypatch.delenv("SDP_FACADE_CONFIG", raising=False)
    monkeypatch.setattr("facade.tools.topics.create_topics", lambda *_, **__: [])
    said = CliRunner().invoke(app, ["topics", "create"], env={"SDP_TOPIC_PREFIX": "t.", "SDP_HISTORY": "true"}).output
    assert said.startswith(f"{len(ICD.topics)} topics with the prefix 't.' are as the ICD says")
    assert said.endswith("; the settings use all but replay\n")


def test_fewer_brokers_than_replicas_are_refused_in_words(cluster: type[Admin]) -> None:
    with pytest.raises(BusError, match=r"3 replicas.*only 1 broker.*--replicas or SDP_TOPIC_REPLICAS"):
        topics.create_topics(Connection(Settings(prefix="t.")), ICD.topics, replicas=3)


def test_a_topic_has_an_id_unless_its_broker_gives_none_and_each_partition_its_ends(cluster: type[Admin]) -> None:
    watch = KafkaTopicWatch(Connection(Settings(prefix="t.")))
    wanted = ["alerts", "old", "missing"]
    id, ranges = str(Uuid(1, 2)), {0: (3, 7), 1: (3, 7)}
    assert watch.extents(wanted) == {"alerts": Extent(id, ranges), "old": Extent("", ranges)}


REFUSALS = pytest.mark.parametrize(
    ("code", "times", "read"),
    [
        (KafkaError.NOT_LEADER_FOR_PARTITION, 3, True),
        (KafkaError.LEADER_NOT_AVAILABLE, 1, True),
        (KafkaError.FENCED_LEADER_EPOCH, 3, True),
        (KafkaError.UNKNOWN_LEADER_EPOCH, 3, True),  # the broker has not heard of the election yet
        (KafkaError.UNKNOWN_TOPIC_OR_PART, 1, True),
        (KafkaError._UNKNOWN_PARTITION, 3, True),  # of three brokers, one has not heard of the topic yet
        (KafkaError.NOT_LEADER_FOR_PARTITION, 10_000, False),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, 1, False),
    ],
)
"""What a broker answers to a question about offsets, how often, and whether they are known at last."""


def _refuse(monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> list[KafkaException]:
    answer, left = Consumer.offsets_for_times, [KafkaException(KafkaError(code))] * times

    def offsets_for_times(self: Consumer, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if left:
            raise left.pop()
        return answer(self, places, timeout)

    monkeypatch.setattr(Consumer, "offsets_for_times", offsets_for_times)
    return left


def test_topics_are_made_once_their_leaders_answer(cluster: type[Admin], monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that writes before may lose its first records, as Kafka issue 15591 tells.

    A busy broker refuses for longer than a process that works would wait.
    """
    clock = ManualClock()
    left = _refuse(monkeypatch, KafkaError.NOT_LEADER_FOR_PARTITION, 80)
    topics.create_topics(Connection(Settings(prefix="t."), clock=clock), ICD.topics)
    assert not left
    assert clock.monotonic() > 6.0


@REFUSALS
def test_offsets_of_a_topic_that_was_just_made_are_asked_for_until_its_leader_knows(
    cluster: type[Admin], monkeypatch: pytest.MonkeyPatch, code: int, times: int, read: bool
) -> None:
    _refuse(monkeypatch, code, times)
    clock = ManualClock()
    watch, began = KafkaTopicWatch(Connection(Settings(prefix="t."), clock=clock)), clock.monotonic()
    if read:
        assert watch.extents(["alerts"])["alerts"].ranges == {0: (3, 7), 1: (3, 7)}
    else:
        with pytest.raises(BusError, match="no answer about topics"):
            watch.extents(["alerts"])
    assert clock.monotonic() - began < 6.0


def test_topics_are_asked_for_now_and_then_and_nobody_waits_for_the_answer(cluster: type[Admin]) -> None:
    clock = ManualClock()
    watch = KafkaTopicWatch(Connection(Settings(prefix="t."), clock=clock))
    clock.sleep(10.0)
    first = PartitionReplicas(1, frozenset({1, 2}), frozenset({1}))
    second = PartitionReplicas(-1, frozenset({1}), frozenset())
    found = {"alerts": TopicShape(str(Uuid(1, 2)), 2, (first, second), frozenset({"broker-1:9092"}))}
    assert [watch.step(["alerts", "missing"]) for _ in range(3)] == [found, {}, {}]
    clock.sleep(2.0)
    assert watch.step(["alerts", "missing"]) == found


@pytest.mark.needs("sdp_facade_clients")
@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("ingest.heaps", 6, False),  # more workers
        ("alert-packets", 2, False),
        ("calibration", 2, False),
        ("commands", 4, False),
        ("command-acks", 4, False),
        ("ingest.heaps", -1, True),
        ("ingest.summary", 4, True),  # workers choose the partition by the rack
        ("alerts", 1, True),  # its one order gives the numbers
        ("heartbeats", 1, True),
        ("state", 1, True),  # compacted: the old record of a key would stay behind
        ("quality", 2, True),
    ],
)
def test_more_partitions_are_fine_where_no_reader_minds(
    monkeypatch: pytest.MonkeyPatch, name: str, more: int, said: bool
) -> None:
    from sdp_facade_clients.conformance.checks import Mismatch, Subject
    from sdp_facade_clients.conformance.devices import topic_checks

    topic = ICD.topics[name]
    settings = {**topics.broker_settings(topic), "min.insync.replicas": "1"}
    found = {name: FoundTopic(partitions=topic.partitions + more, replicas=1, settings=settings)}
    monkeypatch.setattr(topics, "inspect_topics", lambda connection, names: found)
    differences = topics.create_topics(Connection(Settings(prefix="t.", bootstrap="127.0.0.1:1")), {name: topic})
    line = f"t.{name}: partitions: ICD says {topic.partitions}, broker has {topic.partitions + more}"
    assert differences == ([line] if said else [])
    system: Any = SimpleNamespace(topics=found)
    (check,) = (one for one in topic_checks(topic) if one.aspect == "partitions")
    if said:
        with pytest.raises(Mismatch):
            check.judge(system, Subject(name=name, entry=topic))
    else:
        assert check.judge(system, Subject(name=name, entry=topic)) == str(topic.partitions + more)
