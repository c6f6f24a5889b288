"""The account of the fault run finds what is wrong: each kind of wrong, made on purpose."""

import msgspec
import pytest

from facade.flows.alerts.messages import Alert
from facade.flows.commands.messages import AckMessage, CommandMessage
from facade.sdk.controller.simulator.controller import ExecutionLine
from sdp_facade_lab.command_account import CallLine, FoundCommands, account
from sdp_facade_lab.fault_runs.alerts import digest
from sdp_facade_lab.fault_runs.rolling import wrong_alerts

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


LOG = [
    Alert(
        condition="storageLow", source=source, severity="ALARM", state="ACTIVE", text="", raised_at=T0, sequence=number
    )
    for source, number in (("simulated-000", 1), ("facade", 1), ("simulated-000", 2))
]
RECEIVED = [(number, digest(one)) for number, one in enumerate(LOG, 1)]
AGAIN, STRANGE = (msgspec.structs.replace(LOG[0], sequence=number) for number in (1, 1_800_000_000_000_001))


@pytest.mark.parametrize(
    ("sent", "received", "says"),
    [
        ({"simulated-000": 2}, RECEIVED, ""),
        ({"simulated-000": 2}, [*RECEIVED, (4, b"came later")], ""),
        ({"simulated-000": 3}, RECEIVED, "simulated-000: 3 alerts sent, 2 on the log"),
        ({"simulated-000": 1}, RECEIVED, "1 alerts sent, 2 on the log, 0 of them twice, 1 that the source did not"),
        ({"simulated-000": 2}, RECEIVED[:2], "not the 3 of the log"),
        ({"simulated-000": 2}, [*RECEIVED, RECEIVED[2]], "not the 3 of the log"),
        ({"simulated-000": 2}, [RECEIVED[0], (2, b"another"), RECEIVED[2]], "not the 3 of the log"),
    ],
)
def test_alerts_of_a_rolling_upgrade_are_those_that_were_sent(sent, received, says):
    found = wrong_alerts(sent, LOG, received, ())
    assert len(found) == bool(says)
    assert all(says in one for one in found)
    for one, what in ((AGAIN, "1 of them twice, 0 that"), (STRANGE, "0 of them twice, 1 that")):
        (found_one,) = wrong_alerts({"simulated-000": 2}, [*LOG, one], [*RECEIVED, (4, digest(one))], ())
        assert what in found_one
    assert wrong_alerts({}, LOG, RECEIVED, ["numbers 7 to 9"]) == ["the client was told of a loss: numbers 7 to 9"]


def test_a_command_that_was_given_up_and_is_there_after_all_is_wrong_only_if_it_was_executed():
    """The device server told the caller that the record never came: it had not read it yet."""
    calls = [
        call(answer="unknown"),
        call(answer="refused", again=True, text=f"command {ID} of this transaction_id never"),
    ]
    given_up = GOOD | {"calls": calls, "acks": [ack("UNDELIVERED"), ack("TIMED_OUT")], "shown": {ID: "UNDELIVERED"}}
    assert account(FoundCommands(**given_up | {"executions": []})).wrong == []
    told, done = account(FoundCommands(**given_up)).wrong
    assert "told that it is not on the bus, and it is" in told
    assert done == f"{ID}: is UNDELIVERED and was executed"
