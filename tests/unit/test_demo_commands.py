"""The account of a demo's commands by device; what it finds, tests/unit/test_faults_account.py has."""

import io
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from facade.flows.commands.messages import AckMessage, AckStatus, CommandMessage
from facade.kernel.icd.load import load
from facade.sdk.controller.simulator.controller import ExecutionLine
from sdp_facade_lab.command_account import FoundCommands
from sdp_facade_lab.demo.command_account import balance, calls, timeline, unfinished
from sdp_facade_lab.demo.plan import Given
from sdp_facade_lab.demo.report import DemoReport, print_commands

ICD = load()
COMMANDS = {command.name: command for command in ICD.classes["SdpSubarray"].commands}
DEVICE = "mid-sdp/subarray/01"
US = 1_000_000


def given(name: str, id: str, **changed: object) -> Given:
    values = {"device": DEVICE, "name": name, "id": id, "called": 100.0, "calls": 1, "took": 0.002, "reached": 101.0}
    return Given(**{**values, "path": ["A", "B"], **changed})


def command(name: str, id: str) -> CommandMessage:
    return CommandMessage(
        id=id,
        device=DEVICE,
        command=name,
        argument=None,
        transaction_id="txn-demo-20261121-01",
        issued=100 * US,
        not_after=105 * US,
        deadline=110 * US,
        ceiling=160 * US,
        repeatable=COMMANDS[name].repeatable,
        origin="subarray",
    )


def ack(name: str, id: str, status: AckStatus, time: int = 101) -> AckMessage:
    return AckMessage(id=id, device=DEVICE, command=name, status=status, time=time * US, origin="controller")


def execution(name: str, id: str, at: int = 100, again: bool = False) -> ExecutionLine:
    repeatable = COMMANDS[name].repeatable
    return ExecutionLine(
        id=id, command=name, device=DEVICE, begun_at=at * US, not_after=105 * US, repeatable=repeatable, again=again
    )


NAMES = {"1": "On", "2": "Configure", "3": "Off"}
GIVEN = [given(name, id) for id, name in NAMES.items()]
FOUND = FoundCommands(
    calls=calls(GIVEN),
    commands=[command(name, id) for id, name in NAMES.items()],
    acks=[ack(name, id, status) for id, name in NAMES.items() for status in ("ACCEPTED", "COMPLETED")],
    shown=dict.fromkeys(NAMES, "COMPLETED"),
    executions=[execution(name, id) for id, name in NAMES.items()],
)


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        ("commands", lambda all: all[:1] + all[2:], "2: its caller was told that it is on the bus, and it is not"),
        ("commands", lambda all: [*all, command("Scan", "9")], "1 commands on the bus that no caller was told of"),
        ("acks", lambda all: [one for one in all if one.id != "2"], "2: has no outcome"),
        ("shown", lambda all: {**all, "1": "FAILED"}, "1: the log says COMPLETED, the device FAILED"),
        ("executions", lambda all: [*all, all[1]], "2: must not be repeated, and was executed 2 times"),
        ("calls", lambda all: [*all, *calls([given("Scan", "", refusals=["no"])])], "Scan: was refused: no"),
    ],
)
def test_the_account_of_the_fault_runs_judges_each_device(part: str, change: Callable[..., object], says: str) -> None:
    assert balance(FOUND, orders=False)[1] == []
    lines, wrong = balance(replace(FOUND, **{part: change(getattr(FOUND, part))}), orders=False)
    assert any(says in text for text in wrong), wrong
    assert {line.where for line in lines} == {DEVICE}
    assert not all(line.agrees for line in lines) or part == "calls"


def test_an_observation_that_stopped_half_way_is_named() -> None:
    assert unfinished(GIVEN, {DEVICE: "Off"}) == []
    assert unfinished(GIVEN[:2], {DEVICE: "Off"}) == [
        f"{DEVICE}: expected the observation to get to its end, got to Configure"
    ]


def test_no_time_of_a_command_is_cut_off_beside_a_long_path() -> None:
    lines = [msgspec.structs.replace(line, path=("RESOURCING", "IDLE") * 8) for line in timeline(GIVEN, FOUND)[:2]]
    console = Console(record=True, width=120, file=io.StringIO())
    print_commands(console, DemoReport(began=90.0, nodes=1, rate=1.0, seconds=1.0, commands=lines))
    text = console.export_text()
    assert "10.0" in text
    assert "…" not in text
