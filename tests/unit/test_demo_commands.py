"""The account of a demo's commands: whatever is lost, doubled, late or told differently is found, and named."""

import io
from collections.abc import Callable

import msgspec
import pytest
from rich.console import Console

from facade.controller.simulator.controller import ExecutionLine
from facade.flows.commands.messages import AckMessage, AckStatus, CommandMessage
from facade.icd.load import load
from proving.demo.command_account import CommandsFound, HistoryEntry, compare_commands, timeline, wrong_commands
from proving.demo.plan import Given
from proving.demo.report import DemoReport, print_commands

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
FOUND = CommandsFound(
    given=[given(name, id) for id, name in NAMES.items()],
    commands=[command(name, id) for id, name in NAMES.items()],
    acks=[ack(name, id, status) for id, name in NAMES.items() for status in ("ACCEPTED", "COMPLETED")],
    histories={DEVICE: [HistoryEntry(id, "COMPLETED") for id in NAMES]},
    executions=[execution(name, id) for id, name in NAMES.items()],
)


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        ("commands", lambda all: all[:1] + all[2:], "2: not given by TM, on the topic commands"),
        ("commands", lambda all: [*all, command("Scan", "9")], "9: on the topic commands, not given by TM"),
        (
            "acks",
            lambda all: [one for one in all if one.id != "2"],
            "2: not with exactly one outcome on command-acks",
        ),
        ("acks", lambda all: [*all, ack("Configure", "2", "TIMED_OUT")], "command-acks: COMPLETED, TIMED_OUT"),
        (
            "histories",
            lambda all: {DEVICE: all[DEVICE][1:]},
            "1: not the same outcome in GetCommandHistory",
        ),
        (
            "histories",
            lambda all: {DEVICE: [HistoryEntry("1", "FAILED"), *all[DEVICE][1:]]},
            "GetCommandHistory: FAILED",
        ),
        (
            "histories",
            lambda all: {DEVICE: [*all[DEVICE], HistoryEntry("9", "SENT")]},
            "9: in GetCommandHistory",
        ),
        ("executions", lambda all: all[1:], "1: COMPLETED, but never begun"),
        ("executions", lambda all: [*all, all[1]], "2: not repeatable, and begun twice"),
        (
            "executions",
            lambda all: [execution("On", "1", at=106), *all[1:]],
            "1: begun after not_after",
        ),
    ],
)
def test_one_thing_wrong_is_named(part: str, change: Callable[..., object], says: str) -> None:
    found = msgspec.structs.replace(FOUND, **{part: change(getattr(FOUND, part))})
    failures = wrong_commands(found)
    assert any(says in failure for failure in failures), failures
    assert all(failure.startswith(f"{DEVICE}: ") for failure in failures)
    assert not all(line.agrees for line in compare_commands(found))


def test_no_time_of_a_command_is_cut_off_beside_a_long_path() -> None:
    lines = [msgspec.structs.replace(line, path=("RESOURCING", "IDLE") * 8) for line in timeline(FOUND)[:2]]
    console = Console(record=True, width=120, file=io.StringIO())
    print_commands(console, DemoReport(began=90.0, nodes=1, rate=1.0, seconds=1.0, commands=lines))
    text = console.export_text()
    assert "10.0" in text
    assert "…" not in text
