"""The account of a demo's orders: what is missing, doubled or not followed is found."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from facade.flows.commands.messages import AckMessage, CommandMessage, ack_record, command_record
from facade.sdk.controller.simulator.controller import ExecutionLine
from sdp_facade_lab.command_account import FoundCommands
from sdp_facade_lab.demo.command_account import calls, compare_orders, families
from sdp_facade_lab.demo.plan import Given

SDP, ONE, TWO = "mid-sdp/control/0", "mid-sdp/subarray/01", "mid-sdp/subarray/02"
PROCESSING, WORKER = "mid-sdp/processing/01", "mid-sdp/worker/01"
US = 1_000_000


def command(id: str, device: str, parent: str = "") -> CommandMessage:
    return CommandMessage(
        id=id, device=device, command=id.split("_")[1], argument=None, transaction_id="t", issued=100 * US,
        not_after=105 * US, deadline=110 * US, ceiling=160 * US, repeatable=True, origin="c", parent=parent,
    )  # fmt: skip


def acks(message: CommandMessage, *statuses: str) -> list[AckMessage]:
    about = {"id": message.id, "device": message.device, "command": message.command, "origin": "c"}
    made = AckMessage(status="ACCEPTED", time=101 * US, **about)
    return [made, *(msgspec.structs.replace(made, status=status, time=102 * US) for status in statuses)]


COMMANDS = [
    command("1_On", SDP),
    command("2_On", ONE, "1_On"),
    command("3_On", TWO, "1_On"),
    command("4_Configure", ONE),
    command("5_Prepare", PROCESSING, "4_Configure"),
    command("6_Load", WORKER, "5_Prepare"),
]
GIVEN = ["1_On", "4_Configure"]
ACKS = [ack for one in COMMANDS for ack in acks(one, "COMPLETED")]


def found(commands: Sequence[CommandMessage] = COMMANDS, said: Sequence[AckMessage] = ACKS) -> FoundCommands:
    executions = [
        ExecutionLine(id=one.id, command=one.command, device=one.device, begun_at=101 * US, not_after=105 * US,
                      repeatable=True, again=False)
        for one in COMMANDS
    ]  # fmt: skip
    given = [Given(device=one.device, name=one.command, called=100.0, id=one.id) for one in commands if not one.parent]
    shown = {one.id: "COMPLETED" for one in commands}
    return FoundCommands(calls=calls(given), commands=commands, acks=said, shown=shown, executions=executions)


def wrong(all_: FoundCommands) -> list[str]:
    records = [command_record(one) for one in all_.commands], [ack_record(one) for one in all_.acks]
    lines, texts = compare_orders(families(GIVEN, *records), all_, 2)
    return [*(str(line) for line in lines if not line.agrees), *texts]


def without(id: str) -> list[CommandMessage]:
    return [one for one in COMMANDS if one.id != id]


def ended(id: str, *statuses: str) -> list[AckMessage]:
    return [ack for one in COMMANDS for ack in acks(one, *(statuses if one.id == id else ("COMPLETED",)))]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda: found(without("3_On")), "control: subarrays that followed On: expected 2, got 1"),
        (lambda: found(without("6_Load")), "subarray: Configure that came down to a worker: expected 1, got 0"),
        (lambda: found(said=ended("2_On")), "subarray: with an outcome on command-acks: expected 2, got 1"),
        (
            lambda: found(said=ended("5_Prepare", "COMPLETED", "FAILED")),
            "processing: 5_Prepare: its controller has said COMPLETED and FAILED",
        ),
        (
            lambda: found([*COMMANDS, command("7_Load", WORKER, "x")]),
            "orders: below a command of TM: expected 5, got 4",
        ),
    ],
)
def test_one_thing_wrong_is_named(change: Callable[[], FoundCommands], says: str) -> None:
    assert wrong(found()) == []
    assert any(text.startswith(says) for text in wrong(change())), wrong(change())
