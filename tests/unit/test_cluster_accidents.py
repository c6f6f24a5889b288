"""The account of a run through accidents of a cluster: each kind of wrong is a finding."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import msgspec
import pytest

from facade.kernel.clock import ManualClock
from sdp_facade_lab.balance import Balance
from sdp_facade_lab.command_account import Answer, CallLine
from sdp_facade_lab.fault_runs.cluster import ClusterRun
from sdp_facade_lab.fault_runs.frame import Size


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


def made_line(seconds: float, answer: Answer, text: str = "no broker") -> CallLine:
    return CallLine(device="d", command="Scan", called=5.0, seconds=seconds, answer=answer, text=text)


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
