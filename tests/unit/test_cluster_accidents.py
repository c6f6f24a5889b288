"""Accidents of a cluster: their schedule, and the brokers that they hit."""

import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import msgspec
import pytest
from rich.table import Table

from facade.clock import ManualClock
from facade.infra import local
from facade.infra.local import BROKERS
from proving.fault_runs.callers import Answer, CallLine
from proving.fault_runs.cluster import (
    ALL,
    CONTROLLER,
    CUT,
    KILL,
    KINDS,
    ONE,
    ROLES,
    STOP,
    TWO,
    ClusterFault,
    ClusterRun,
    _Accident,
    active_controller,
    partition_of,
    schedule,
)
from proving.fault_runs.commands import CommandFaultRun
from proving.fault_runs.frame import Balance, Gaps, Silence, Size, Tally


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


@pytest.mark.parametrize("deed", [KILL, STOP, CUT])
def test_no_two_brokers_confirm_a_command_only_while_all_of_them_are_away(
    deed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What begins and ends an accident takes 1 s here, and is none of that time."""
    clock = ManualClock()
    for name in BROKERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "server.properties").write_text("listeners=BROKERS://127.0.0.1:9\n")

    def takes_a_second(answer: object = None) -> Callable[..., object]:
        return lambda *_, **__: clock.sleep(1.0) or answer

    monkeypatch.setattr(local, "status", takes_a_second([]))
    for name in ("stop_services", "start_services"):
        monkeypatch.setattr(local, name, takes_a_second())
    monkeypatch.setattr(subprocess, "run", takes_a_second())
    run = object.__new__(ClusterRun)
    run.clock, run._state_dir, run._chance, run._alone, run._accidents = clock, tmp_path, random.Random(1), [], []
    monkeypatch.setattr(run, "_is_whole", lambda: True)
    monkeypatch.setattr(run, "_act", lambda until: None)
    monkeypatch.setattr(run, "_try_what_is_forbidden", lambda: None)
    began = clock.now()
    run._happen(ClusterFault(deed, ALL, seconds=5.0, calm=0.0))
    ((begin, end),) = run._alone
    assert (begin - began, end - begin) == (1.0, 5.0)


class _Flow:
    """Goes on for as many steps as are left."""

    def __init__(self, folder: Path, left: int) -> None:
        self.deployment, self.left = SimpleNamespace(folder=folder), left

    def step(self) -> bool:
        self.left -= 1
        return self.left > 0

    def stop_sending(self) -> None:
        self.left = 0

    def account(self) -> Balance:
        return Balance()


@pytest.fixture
def run(tmp_path: Path) -> ClusterRun:
    """Return a run whose commands stand still."""
    made = ClusterRun(MagicMock(clock=ManualClock(), folder=tmp_path), Size(3, 0), 1)
    made._all = {"commands": _Flow(tmp_path, 2), "alerts": _Flow(tmp_path, 1_000)}
    made._goes_on = dict(made._all)
    return made


def test_a_flow_that_ends_before_the_last_accident_is_a_finding(run: ClusterRun) -> None:
    """It sends nothing through the accidents that are left, and its account balances."""
    assert [run.step() for _ in range(5)] == [True] * 5
    run._schedule.clear()
    assert not run.step()
    assert run.account().wrong == ["commands: ended before the last accident"]


def test_no_accident_begins_after_the_time_that_is_given(run: ClusterRun) -> None:
    run._last_at = run.clock.monotonic() + 60.0
    assert run.step()
    assert run.due()
    run.clock.sleep(60.0)
    assert not run.step()
    assert run.due() == ""


@pytest.mark.parametrize("is_judged", [False, True])
def test_the_history_of_the_commands_is_judged_if_that_is_asked_for(
    run: ClusterRun, is_judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClusterRun, "flows", {"commands": CommandFaultRun})
    monkeypatch.setattr(run, "_endpoints_of_operators", MagicMock())
    monkeypatch.setattr("proving.fault_runs.cluster.Testbed", MagicMock())
    monkeypatch.setattr("proving.fault_runs.frame.FaultRun.run", lambda self: Balance())
    run.is_judged = is_judged
    run.run()
    assert run._all["commands"].is_judged == is_judged


def made_line(seconds: float, answer: Answer, text: str = "no broker") -> CallLine:
    return CallLine(device="d", command="Scan", called=5.0, seconds=seconds, answer=answer, text=text)


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "0.400 s"), (0.6, "0.600 s, missed by 1")])
def test_a_refusal_that_takes_too_long_is_named_in_its_row(run: ClusterRun, seconds: float, shown: str) -> None:
    """A command that its state does not allow says nothing of brokers."""
    lines = [made_line(seconds, "not sent"), made_line(3.0, "refused")]
    file = run._all["commands"].deployment.folder / "calls.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    run._alone, run._acts = [(1.0, 10.0)], [made_line(0.1, "unknown", "perhaps")]
    found = run.account()
    assert found.wrong == []
    assert found.rows[-8:] == [
        ("commands refused while no two brokers could confirm one", 1),
        ("... not sent", 1),
        ("... ... a reason", "no broker"),
        ("... the longest wait, which is to be at most 0.5 s", shown),
        ("acts on alarms refused while no two brokers could confirm one", 1),
        ("... unknown", 1),
        ("... ... a reason", "perhaps"),
        ("... the longest wait, which is to be at most 0.5 s", "0.100 s"),
    ]


def test_an_act_that_nobody_could_confirm_or_that_is_forbidden_is_a_finding_if_it_was_taken(run: ClusterRun) -> None:
    run.injected["kill"] = 1
    run._alone, run._acts = [(1.0, 10.0)], [made_line(0.1, "given", "")]
    run._forbidden = [("logs", "write to x.alerts", "TOPIC_AUTHORIZATION_FAILED"), ("storage", "write to y", "done")]
    assert run.account().wrong == [
        ": was given, and no two brokers could confirm it",
        "storage may not write to y: done",
    ]
    assert not run.injected, "accidents have a table of their own"


@pytest.mark.parametrize(("seconds", "again", "count"), [(0.9, False, 1), (1.1, False, 0), (0.9, True, 0)])
def test_a_command_that_brokers_may_have_confirmed_was_rightly_given(
    run: ClusterRun, seconds: float, again: bool, count: int
) -> None:
    """They are back before a long call ends, and a repeated one returns the id of a record confirmed before."""
    line = msgspec.structs.replace(made_line(seconds, "given", ""), again=again)
    file = run._all["commands"].deployment.folder / "calls.jsonl"
    file.write_bytes(msgspec.json.encode(line) + b"\n")
    run._alone = [(1.0, 6.0)]
    assert len(run.account().wrong) == count


def test_a_silence_is_put_down_to_the_first_accident_in_it_or_else_to_the_last_before_it(run: ClusterRun) -> None:
    faults = [ClusterFault(KILL, whom, 1.0, 0.0) for whom in (ONE, TWO, ALL)]
    run._accidents = [_Accident(fault, 100.0 * number, 7.0) for number, fault in enumerate(faults, 1)]
    assert [run._cause(Silence(*gap)) for gap in ((50.0, 20.0), (90.0, 20.0), (190.0, 200.0), (150.0, 5.0))] == [
        (-1, 0),
        (0, 0),
        (1, 1),
        (0, 0),
    ]
    made = Balance(
        tallies={"heaps": Tally(1, 1, 0, 0, [Silence(101.0, 4.0), Silence(190.0, 200.0), Silence(301.0, 3.0)])}
    )
    (longest,), kinds = rows_of(run._silences(made)), rows_of(run._by_kind(made))
    assert longest == ("heaps", "200.0 s", f"no. 2: {faults[1]}, 1.0 s; in sync 7.0 s later", "1")
    assert kinds == [
        (str(faults[2]), "1", "7.0", "3.0"),
        (str(faults[0]), "1", "7.0", "4.0"),
        (str(faults[1]), "1", "7.0", "200.0"),
    ]


def rows_of(table: Table) -> list[tuple[str, ...]]:
    return list(zip(*(map(str, column.cells) for column in table.columns), strict=True))


def test_gaps_of_a_second_are_kept_and_the_longest_of_the_shorter_ones() -> None:
    clock = ManualClock()
    gaps = Gaps(clock)
    for pause in (9.0, 0.3, 0.2, 0.4, 2.0, 1.5, 0.9):
        clock.sleep(pause)
        gaps.hear()
    clock.sleep(50.0)
    gaps.wait_anew()
    clock.sleep(0.5)
    gaps.hear()
    assert [round(gap.seconds, 3) for gap in gaps.found] == [0.3, 0.4, 2.0, 1.5]
    assert gaps.longest == pytest.approx(2.0)
