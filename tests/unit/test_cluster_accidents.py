"""Accidents of a cluster: their schedule, and the brokers that they hit."""

from pathlib import Path

import pytest

from proving.fault_runs.cluster import (
    ALL,
    CONTROLLER,
    KINDS,
    ONE,
    ROLES,
    TWO,
    active_controller,
    partition_of,
    schedule,
)


def test_a_seed_gives_the_same_accidents_and_each_kind_comes_before_one_comes_again() -> None:
    made = schedule(7, 2 * len(KINDS))
    assert made == schedule(7, 2 * len(KINDS)) != schedule(8, 2 * len(KINDS))
    assert made[:5] == schedule(7, 5)
    for turn in (made[: len(KINDS)], made[len(KINDS) :]):
        assert {(one.deed, one.to) for one in turn} == set(KINDS)
    assert {whom for _, whom in KINDS} <= {*ROLES, ONE, TWO, ALL, CONTROLLER}


@pytest.mark.parametrize(("name", "code"), [("hello", 99162322), ("polygenelubricants", 0), ("", 0)])
def test_a_coordinator_is_found_by_the_hash_that_java_has(name: str, code: int) -> None:
    """The hash of the second text is the smallest number: Kafka takes the highest bit away."""
    assert [partition_of(name, count) for count in (4, 50)] == [code % 4, code % 50]


def test_the_active_controller_is_that_of_the_newest_election_that_any_broker_knows(tmp_path: Path) -> None:
    states = [(2, 4), (3, 7), (-1, 8)]
    folders = [tmp_path / f"kafka-{number}" for number in range(3)]
    for folder, (leader, epoch) in zip(folders, states, strict=True):
        file = folder / "data" / "__cluster_metadata-0" / "quorum-state"
        file.parent.mkdir(parents=True)
        file.write_text(f'{{"leaderId":{leader},"leaderEpoch":{epoch},"votedId":-1,"data_version":0}}')
    assert active_controller(folders) == 3
