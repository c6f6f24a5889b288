"""The account of the fault run finds what is wrong: each kind of wrong, made on purpose."""

import msgspec
import pytest

from facade.controller.simulator.controller import ExecutionLine
from facade.flows.commands.messages import AckMessage, CommandMessage
from proving.fault_runs.caller import CallLine, read_calls
from proving.fault_runs.command_account import Found, account, first_outcomes

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


def test_a_good_run_has_no_findings():
    found = account(Found(**GOOD))
    assert found.wrong == []
    assert dict(found.rows)["first outcome: COMPLETED"] == 1
    assert dict(found.rows)["slowest answer of a device that was there"] == "2 ms"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"commands": []}, "told that it is on the bus, and it is not"),
        ({"calls": [call(answer="not sent")]}, "told that it is not on the bus, and it is"),
        ({"calls": [call(answer="not sent", id="", transaction_id="txn"), call()]}, "told that it is not on the bus"),
        ({"calls": []}, "no caller was told of"),
        ({"calls": [call(answer="unknown")], "commands": [], "shown": {ID: "COMPLETED"}}, "is not on the bus, and is"),
        ({"acks": [ack("ACCEPTED")]}, "has no outcome"),
        ({"shown": {}}, "the log says COMPLETED, the device nothing"),
        ({"shown": {ID: "FAILED"}}, "the log says COMPLETED, the device FAILED"),
        ({"executions": [execution(), execution()]}, "must not be repeated, and was executed 2 times"),
        ({"executions": []}, "COMPLETED and was never executed"),
        ({"acks": [ack("REJECTED")], "shown": {ID: "REJECTED"}}, "is REJECTED and was executed"),
        ({"acks": [ack(), ack("FAILED")]}, "its controller has said COMPLETED and FAILED"),
        ({"executions": [execution(begun_at=T0 + 2_500_000)]}, "begun 0.500 s after its not_after"),
    ],
)
def test_each_kind_of_wrong_is_found(changes, words):
    (finding,) = account(Found(**GOOD | changes)).wrong
    assert words in finding


def test_a_transaction_that_became_two_commands_is_found():
    other = ID.replace("_1_", "_2_")
    changes = {
        "calls": [call(answer="no answer", id=""), call(id=other, again=True)],
        "commands": [command(), command(id=other)],
        "acks": [ack(), ack(id=other)],
        "shown": {ID: "COMPLETED", other: "COMPLETED"},
        "executions": [execution(), execution(id=other)],
    }
    (finding,) = account(Found(**changes)).wrong
    assert f"transaction_id txn is that of 2 commands: {ID}, {other}" in finding


def test_what_is_not_wrong_is_no_finding():
    """Repeated records and outcomes, a repeatable command executed twice, a call whose answer was lost."""
    changes = {
        "calls": [call(answer="no answer", id="")],
        "commands": [command(repeatable=True)] * 2,
        "acks": [ack("TIMED_OUT"), ack(), ack()],
        "shown": {ID: "TIMED_OUT"},
        "executions": [execution(repeatable=True), execution(repeatable=True, again=True)],
    }
    assert account(Found(**GOOD | changes)).wrong == []


def test_what_is_said_of_an_id_that_nobody_sent_is_no_contradiction():
    """A controller with the simulated fault `wrong-ids` has no memory of what it said before a crash."""
    wrong = f"{ID}-wrong"
    changes = {"acks": [ack(), ack(id=wrong), ack("REJECTED", id=wrong)]}
    assert account(Found(**GOOD | changes)).wrong == []


def test_the_first_outcome_is_that_of_the_table():
    assert first_outcomes([ack("REJECTED"), ack()]) == {ID: "REJECTED"}
    assert first_outcomes([ack("IN_PROGRESS"), ack("REJECTED"), ack()]) == {ID: "COMPLETED"}


def test_a_journal_that_is_being_written_is_read_as_far_as_it_goes(tmp_path):
    file = tmp_path / "calls.jsonl"
    assert read_calls(file) == []
    line = msgspec.json.encode(call())
    file.write_bytes(line + b"\n" + line[:20])
    assert read_calls(file) == [call()]
