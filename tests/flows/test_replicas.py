"""What the brokers say of the replicas of the topics, and what SdpBus and the operators are told of it."""

from types import SimpleNamespace
from typing import Any

import pytest

from facade.flows.overview.replicas import Replicas
from facade.kernel.bus.offsets import PartitionReplicas, TopicShape
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.reading import Quality

ICD = load()
BUS = "mid-sdp/bus/0"
ALL = (1, 2, 3)


def partition(leader: int, *in_sync: int) -> PartitionReplicas:
    return PartitionReplicas(leader, frozenset(ALL), frozenset(in_sync))


class Brokers:
    """Answers once for each call, about the topics that it is asked for."""

    def __init__(self) -> None:
        self.partitions: dict[str, list[PartitionReplicas]] = {}

    def step(self, topics: list[str]) -> dict[str, TopicShape]:
        assert {"commands", "state", "ingest.heaps"} <= set(topics)
        return {name: TopicShape("id", len(these), tuple(these)) for name, these in self.partitions.items()}


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def replicas(brokers: Brokers) -> Replicas:
    bus = SimpleNamespace(replica_watch=lambda: brokers)
    server: Any = SimpleNamespace(icd=ICD, settings=Settings(), bus=bus)
    return Replicas(server, ICD.classes["SdpBus"], (BUS,))


def shown(replicas: Replicas, now: float = 1.0) -> dict[str, tuple[Any, Quality]]:
    return {name: (one.value, one.quality) for _, name, one in replicas.readings(round(now * 1e6))}


def told(replicas: Replicas) -> dict[tuple[str, str], tuple[str, str]]:
    found = {one.alarm: (one.health_state, one.text) for one in replicas.issues(1_000_000) if one.alarm}
    assert all(key[0] in ICD.conditions and key[1].startswith(replicas.conditions[key[0]]) for key in found)
    return found


def test_issues_end_when_the_brokers_say_nothing_any_more(brokers: Brokers, replicas: Replicas) -> None:
    brokers.partitions = {"commands": [partition(-1, 1)]}
    shown(replicas, now=100.0)
    assert [*replicas.issues(130_000_000)]
    assert not [*replicas.issues(130_100_000)], "the figures are invalid by then"


def test_a_single_replica_is_enough_where_there_is_no_other(brokers: Brokers, replicas: Replicas) -> None:
    brokers.partitions = {"commands": [PartitionReplicas(1, frozenset({1}), frozenset({1}))]}
    assert set(shown(replicas).values()) == {(0, Quality.VALID)}
    assert told(replicas) == {}


def test_all_is_well(brokers: Brokers, replicas: Replicas) -> None:
    brokers.partitions = {"commands": [partition(1, *ALL), partition(2, *ALL)]}
    assert set(shown(replicas).values()) == {(0, Quality.VALID)}
    assert told(replicas) == {}


def test_one_broker_is_away(brokers: Brokers, replicas: Replicas) -> None:
    brokers.partitions = {"commands": [partition(1, 1, 2), partition(2, 1, 2)], "state": [partition(1, 1, 2)]}
    assert shown(replicas) == {
        "brokersMissing": (1, Quality.WARNING),
        "offlinePartitions": (0, Quality.VALID),
        "underReplicatedPartitions": (3, Quality.WARNING),
    }
    text = "broker 3 is away: it should have replicas of 3 partitions"
    assert told(replicas) == {("brokerMissing", "sdp-facade/broker-3"): ("DEGRADED", text)}, "one cause, one alarm"


def test_two_brokers_are_away_and_writes_are_refused(brokers: Brokers, replicas: Replicas) -> None:
    brokers.partitions = {"commands": [partition(1, 1)], "state": [partition(1, 1)]}
    assert shown(replicas)["brokersMissing"] == (2, Quality.WARNING)
    found = told(replicas)
    assert found["replicasTooFew", "sdp-facade"] == (
        "FAILED",
        "too few replicas of 2 partitions (commands, state) are in sync: writes are refused",
    )
    assert {key for key in found if key[0] == "brokerMissing"} == {
        ("brokerMissing", "sdp-facade/broker-2"),
        ("brokerMissing", "sdp-facade/broker-3"),
    }


def test_a_partition_without_a_leader_keeps_the_last_replica_in_sync_and_that_broker_is_away(
    brokers: Brokers, replicas: Replicas
) -> None:
    brokers.partitions = {"commands": [partition(-1, 2)], "state": [partition(1, 1, 3)]}
    assert shown(replicas)["offlinePartitions"] == (1, Quality.ALARM)
    assert told(replicas).keys() == {("partitionsOffline", "sdp-facade"), ("brokerMissing", "sdp-facade/broker-2")}


def test_replicas_that_lag_while_all_brokers_are_there_are_another_alarm(brokers: Brokers, replicas: Replicas) -> None:
    brokers.partitions = {"commands": [partition(1, 1, 2)], "state": [partition(3, *ALL)]}
    assert shown(replicas)["brokersMissing"] == (0, Quality.VALID)
    assert told(replicas).keys() == {("replicasOutOfSync", "sdp-facade")}


def test_without_an_answer_nothing_new_is_shown_and_no_alarm_is_cleared(brokers: Brokers, replicas: Replicas) -> None:
    brokers.partitions = {"commands": [partition(1, 1, 2)]}
    shown(replicas)
    before = told(replicas)
    brokers.partitions = {}
    assert shown(replicas) == {}
    assert told(replicas) == before != {}
