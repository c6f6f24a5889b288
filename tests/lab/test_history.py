"""The history of a run has what clients saw, and says of what nobody learned that it may have happened later."""

from typing import Any

import msgspec
import pytest

from facade.flows.commands.messages import AckMessage, CommandMessage
from facade.flows.commands.outcomes import UNDELIVERED
from sdp_facade_lab.command_account import CallLine, FoundCommands, SeenLine
from sdp_facade_lab.fault_runs.history import operations

DEVICE, ID, OTHER = "mid-sdp/subarray/01", "100.500000_1_Scan", "100.700000_2_Scan"
END = 900.0


def call(called: float = 100.0, **changes: Any) -> CallLine:
    fields = {"client": 1, "device": DEVICE, "command": "Scan", "called": called, "seconds": 1.0, "answer": "given"}
    return CallLine(**fields | {"id": ID, "scan": 7} | changes)


def command(id: str = ID, **changes: Any) -> CommandMessage:
    times = dict.fromkeys(("issued", "not_after", "deadline", "ceiling"), 100_500_000)
    fields = {"device": DEVICE, "command": "Scan", "argument": None, "transaction_id": "txn", "origin": "server"}
    return CommandMessage(**{"id": id, "repeatable": False} | times | fields | changes)


def ack(status: str = "COMPLETED", text: str = "") -> AckMessage:
    return AckMessage(
        id=ID, device=DEVICE, command="Scan", status=status, time=102_000_000, origin="controller", text=text
    )


def seen(what: str, value: str, called: float) -> SeenLine:
    return SeenLine(client=2, device=DEVICE, called=called, seconds=0.5, what=what, value=value)


def history(**changes: Any) -> list[tuple[str, int, int | None, dict[str, Any]]]:
    """Return each operation of a subarray with its times [Unix s] and what came of it."""
    found = {"calls": [call()], "commands": [command()], "acks": [ack()], "shown": {}, "executions": []} | changes
    made = operations(FoundCommands(**found), END)
    spans = ((one, one.call / 1e6, one.returned and one.returned / 1e6) for one in made if one.input["op"] != "look")
    return [(one.input["op"], begin, end, one.output) for one, begin, end in spans]


def test_a_command_is_on_the_bus_when_the_call_returns_and_ends_before_a_client_has_seen_that() -> None:
    assert history(seen=[seen(ID, "SENT", 101.0), seen(ID, "COMPLETED", 103.0), seen(ID, "COMPLETED", 104.0)]) == [
        ("give", 100.0, 101.0, {}),
        ("take", 100.0, 101.0, {}),
        ("end", 102.0, 103.5, {"status": "COMPLETED"}),
    ]


@pytest.mark.parametrize(
    ("known", "admitted_by"), [({"id": ID, "answer": "unknown"}, 101.0), ({"id": "", "answer": "no answer"}, None)]
)
def test_a_command_whose_record_was_not_confirmed_may_come_to_the_bus_until_it_ends(
    known: dict[str, str], admitted_by: float | None
) -> None:
    """A device server that ends it knows its record; a controller may end it before the device server does."""
    first = ("give", 100.0, admitted_by)
    (give, take, end) = history(calls=[call(**known)], acks=[ack("TIMED_OUT")])
    assert (give[:3], take[:3], end[:3]) == (first, ("take", 100.0, 102.0), ("end", 102.0, None))
    (give, take, end) = history(calls=[call(**known)])
    assert (give[:3], take[:3], end[:3]) == (first, ("take", 100.0, None), ("end", 102.0, None))
    (give, take, end) = history(calls=[call(**known)], seen=[seen(ID, "COMPLETED", 110.0)])
    assert (give[:3], take[:3], end[:3]) == (first, ("take", 100.0, 110.5), ("end", 102.0, 110.5))


def test_a_command_that_was_given_up_is_never_taken_though_its_record_comes_to_the_bus() -> None:
    given_up = msgspec.structs.replace(ack(UNDELIVERED), time=101_500_000)
    found = history(calls=[call(answer="unknown")], acks=[given_up, ack("TIMED_OUT")])
    assert found == [("give", 100.0, 101.0, {}), ("end", 101.5, None, {"status": UNDELIVERED})]


def test_a_command_that_is_not_on_the_bus_was_admitted_only_if_its_id_was_told() -> None:
    told = call(answer="unknown")
    assert history(calls=[told], commands=[], acks=[]) == [
        ("give", 100.0, 101.0, {}),
        ("end", 100.0, None, {"status": "UNDELIVERED"}),
    ]
    lost = call(answer="no answer", id="")
    assert history(calls=[lost], commands=[], acks=[]) == []
    text = f"Command Scan not allowed while Scan ({ID}) is under way; wait for its outcome, or Abort"
    refused = call(answer="refused", id="", text=text)
    assert history(calls=[lost, refused], commands=[], acks=[]) == [
        ("refuse", 100.0, 101.0, {"while": ID}),
        ("give", 100.0, None, {}),
        ("end", 100.0, None, {"status": "UNDELIVERED"}),
    ]
    elsewhere = call(102.0, answer="no answer", id="")
    assert [one[0] for one in history(calls=[elsewhere, refused], commands=[], acks=[])] == ["refuse"]


def test_the_first_outcome_on_the_log_holds_and_a_command_that_was_begun_is_not_given_up() -> None:
    looks = [seen(ID, UNDELIVERED, 101.0), seen(ID, "COMPLETED", 103.0)]
    assert statuses(looks, [ack(UNDELIVERED), ack()]) == [UNDELIVERED, "COMPLETED", UNDELIVERED]
    assert statuses(looks, [ack("ACCEPTED"), ack(UNDELIVERED), ack()]) == [UNDELIVERED, "COMPLETED", "COMPLETED"]


def statuses(looks: list[SeenLine], acks: list[AckMessage]) -> list[str]:
    found = FoundCommands(calls=[call()], commands=[command()], acks=acks, shown={}, executions=[], seen=looks)
    return [one.output["status"] for one in operations(found, END) if one.input["op"] == "look"]


def test_a_call_that_is_repeated_is_the_same_command() -> None:
    first = call(answer="no answer", id="", transaction_id="txn")
    (give, take, _) = history(calls=[first, call(110.0, transaction_id="txn", again=True)])
    assert give[:3] == ("give", 100.0, 111.0)
    assert take[:3] == ("take", 100.0, 111.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Command Scan not allowed when obsState is IDLE; expected obsState READY, got IDLE", {"got": "IDLE"}),
        ("Command Scan not allowed when State is OFF; expected State ON, got OFF", {"got": "OFF"}),
        ("Scan was not sent: the bus was not read yet", None),
    ],
)
def test_a_refusal_by_state_is_a_read_of_it(text: str, said: dict[str, str] | None) -> None:
    refused = call(answer="refused", id="", text=text)
    assert history(calls=[refused], commands=[]) == ([("refuse", 100.0, 101.0, said)] if said else [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Command Scan not allowed when obsState is FAULT; expected obsState READY, got FAULT", {"got": "FAULT"}),
        ("$.resources.receptors: expected some of [], got ['SKA001']", {"absent": True}),
        ("simulated refusal", {}),
    ],
)
def test_an_outcome_has_the_reason_why_the_controller_refused(text: str, said: dict[str, Any]) -> None:
    assert history(acks=[ack("REJECTED", text)])[-1][3] == {"status": "REJECTED"} | said
