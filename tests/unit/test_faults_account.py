"""The account of the fault run finds what is wrong: each kind of wrong, made on purpose."""

import pytest

from facade.controller.simulator.controller import ExecutionLine
from facade.flows.commands.messages import AckMessage, CommandMessage
from proving.fault_runs.commands import CallLine, FoundCommands, account

DEVICE, ID = "mid-sdp/subarray/01", "1800000000.000000_1_Scan"
T0 = 1_800_000_000_000_000


def call(**changes) -> CallLine:
    fields = {"device": DEVICE, "command": "Scan", "called": T0 / 1e6, "seconds": 0.002, "answer": "given", "id": ID}
    return CallLine(**fields | changes)


def command(**changes) -> CommandMessage:
    fields = {
        "id": ID,
        "device": DEVICE,
        "command": "Scan",
        "argument": None,
        "transaction_id": "txn",
        "issued": T0,
        "not_after": T0 + 2_000_000,
        "deadline": T0,
        "ceiling": T0,
        "repeatable": False,
        "origin": "server",
    }
    return CommandMessage(**fields | changes)


def ack(status: str = "COMPLETED", **changes) -> AckMessage:
    fields = {"id": ID, "device": DEVICE, "command": "Scan", "time": T0, "origin": "controller"}
    return AckMessage(status=status, **fields | changes)


def execution(**changes) -> ExecutionLine:
    fields = {"id": ID, "command": "Scan", "device": DEVICE, "begun_at": T0, "not_after": T0 + 2_000_000}
    return ExecutionLine(**fields | {"repeatable": False, "again": False} | changes)


GOOD = {
    "calls": [call()],
    "commands": [command()],
    "acks": [ack("ACCEPTED"), ack()],
    "shown": {ID: "COMPLETED"},
    "executions": [execution()],
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"commands": []}, "told that it is on the bus, and it is not"),
        ({"calls": [call(answer="not sent")]}, "told that it is not on the bus, and it is"),
        ({"calls": []}, "no caller was told of"),
        ({"calls": [call(answer="unknown")], "commands": [], "shown": {ID: "COMPLETED"}}, "is not on the bus, and is"),
        ({"acks": [ack("ACCEPTED")]}, "has no outcome"),
        ({"shown": {ID: "FAILED"}}, "the log says COMPLETED, the device FAILED"),
        ({"executions": [execution(), execution()]}, "must not be repeated, and was executed 2 times"),
        ({"executions": []}, "COMPLETED and was never executed"),
        ({"acks": [ack("REJECTED")], "shown": {ID: "REJECTED"}}, "is REJECTED and was executed"),
        ({"acks": [ack(), ack("FAILED")]}, "its controller has said COMPLETED and FAILED"),
        ({"executions": [execution(begun_at=T0 + 2_500_000)]}, "begun 0.500 s after its not_after"),
    ],
)
def test_each_kind_of_wrong_is_found(changes, words):
    (finding,) = account(FoundCommands(**GOOD | changes)).wrong
    assert words in finding
