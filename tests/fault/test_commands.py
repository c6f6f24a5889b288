"""What goes wrong on the way of a command, each fault by its name: none is lost, doubled or left without an outcome.

One device server with sixteen subarrays and one controller serve all tests; each test has subarrays of its own. Only
Scan and Abort have a deadline, for the tests of deadlines: how fast a controller starts again decides nothing.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
import tango

from facade.controller.simulator.controller import CRASHED
from facade.infra import local
from tests.support.deployment import Deployment
from tests.support.processes import Running
from tests.support.subarrays import Subarrays, standing_still
from tests.support.waiting import until

# In one group: they share a deployment.
pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.xdist_group("commands")]


@pytest.fixture(scope="module")
def subarrays(infra: local.Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subarrays]:
    folder = tmp_path_factory.mktemp("commands")
    with Deployment(infra, folder, nodes=1, subarrays=16, deadlines="Scan,Abort") as deployment:
        deployment.prepare()
        yield Subarrays(deployment)


# A controller that does not keep the rules, or cannot.


def test_a_controller_that_refuses(subarrays: Subarrays) -> None:
    """The outcome is REJECTED with the controller's reason; nothing has changed, the next command is taken."""
    device = subarrays.devices[0]
    subarrays.controller("reject:Scan")
    told = subarrays.outcome(device, subarrays.give(device, "Scan"))
    assert (told["status"], told["text"], told["result_code"]) == ("REJECTED", "simulated refusal", 5)
    assert subarrays.obs_state(device) == "READY"
    subarrays.does(device, "End")
    assert subarrays.obs_state(device) == "IDLE"
    subarrays.does(device, "Configure")


def test_a_controller_that_fails(subarrays: Subarrays) -> None:
    """The outcome is FAILED with the reason, obsState FAULT is shown with its messages and in healthState; ObsReset
    leads out of it."""
    device = subarrays.take()
    subarrays.controller("fail:Configure")
    told = subarrays.outcome(device, subarrays.give(device, "Configure"))
    assert (told["status"], told["result_code"]) == ("FAILED", 3)
    assert "simulated failure of Configure" in told["text"]
    subarrays.becomes(device, "FAULT")
    assert subarrays.read(device, "errorMessages") == ("SimulatedFailure: simulated failure of Configure",)
    until(lambda: subarrays.read(device, "healthState") == 2, "healthState is FAILED")
    subarrays.does(device, "ObsReset")
    subarrays.becomes(device, "IDLE")


def test_a_controller_that_hangs(subarrays: Subarrays) -> None:
    """Nothing but Abort is taken meanwhile; it frees the subarray, and the command is ABORTED. Others go on."""
    device, other = subarrays.take(), subarrays.devices[0]
    subarrays.controller("hang:Configure")
    hanging = subarrays.give(device, "Configure")
    until(lambda: subarrays.executions(hanging) == 1, "Configure is being executed")
    subarrays.does(other, "Scan")
    subarrays.does(other, "EndScan")
    why = subarrays.refusal(device, "End")
    assert "CONFIGURING" in why
    subarrays.does(device, "Abort")
    told = subarrays.outcome(device, hanging)
    assert (told["status"], told["result_code"]) == ("ABORTED", 7)
    subarrays.becomes(device, "ABORTED")


def test_acknowledgements_that_come_twice(subarrays: Subarrays) -> None:
    """A repeated acknowledgement changes nothing and is counted as late where it can mean nothing any more."""
    device = subarrays.devices[0]
    subarrays.controller("duplicate-acks:Scan")
    # What ended just before the kill of the controller before has its outcome again, in front of that of Configure.
    subarrays.does(device, "Configure")
    late, finished = subarrays.read(device, "acksLate"), subarrays.read(device, "commandsFinished")
    id = subarrays.does(device, "Scan")
    until(lambda: len(subarrays.statuses(device, id)) == 4, "all four acknowledgements")
    assert subarrays.statuses(device, id) == ["ACCEPTED", "ACCEPTED", "COMPLETED", "COMPLETED"]
    until(lambda: subarrays.read(device, "acksLate") == late + 2, "the two that were repeated are counted")
    assert subarrays.read(device, "commandsFinished") == finished + 1
    assert subarrays.executions(id) == 1
    subarrays.does(device, "EndScan")


@pytest.fixture(scope="module")
def unheard(subarrays: Subarrays) -> dict[str, tuple[str, str]]:
    """One subarray each with a command that is never acknowledged, too late, and under a wrong id."""
    kinds = {"no-acks": "Scan", "late-acks": "Abort", "wrong-ids": "Configure"}
    subarrays.controller(*(f"{kind}:{name}" for kind, name in kinds.items()))
    given = {}
    for kind, name in kinds.items():
        device = subarrays.take()
        given[kind] = (device, subarrays.give(device, name))
    return given


def test_acknowledgements_under_a_wrong_id(subarrays: Subarrays, unheard: dict[str, tuple[str, str]]) -> None:
    """They are counted as unknown and end no command; what was reported of obsState holds."""
    device, id = unheard["wrong-ids"]
    until(lambda: (subarrays.read(device, "acksUnknown") or 0) >= 2, "they are counted")
    assert subarrays.told(device, id)["status"] == "QUEUED" or subarrays.told(device, id)["acks"] == []
    assert subarrays.obs_state(device) == "READY"
    assert subarrays.read(device, "commandsPending") == 1


def test_a_controller_that_never_acknowledges(subarrays: Subarrays, unheard: dict[str, tuple[str, str]]) -> None:
    """At the deadline the facade itself ends the command as TIMED_OUT, on the bus; what was reported is shown."""
    device, id = unheard["no-acks"]
    told = subarrays.outcome(device, id)
    assert (told["status"], told["result_code"], "not known" in told["text"]) == ("TIMED_OUT", 4, True)
    assert [ack["status"] for ack in subarrays.written("command-acks", id)] == ["TIMED_OUT"]
    assert subarrays.obs_state(device) == "SCANNING"
    assert any("timed out" in line for line in subarrays.read(device, "healthInfo"))
    assert subarrays.executions(id) == 1


def test_an_acknowledgement_after_the_deadline(subarrays: Subarrays, unheard: dict[str, tuple[str, str]]) -> None:
    """The first outcome holds: the late one is counted and kept with the command."""
    device, id = unheard["late-acks"]
    until(lambda: "COMPLETED" in subarrays.statuses(device, id), "the late acknowledgement")
    assert subarrays.statuses(device, id) == ["ACCEPTED", "TIMED_OUT", "COMPLETED"]
    assert subarrays.told(device, id)["status"] == "TIMED_OUT"
    until(lambda: subarrays.read(device, "acksLate") == 1, "it is counted")


@pytest.mark.parametrize(
    ("moment", "name", "executions", "outcome", "obs_state"),
    [
        ("crash-before", "End", 2, "COMPLETED", "IDLE"),
        ("crash-after", "End", 2, "COMPLETED", "IDLE"),
        ("crash-before", "Configure", 1, "FAILED", "FAULT"),
        ("crash-after", "Configure", 1, "FAILED", "READY"),
    ],
    ids=lambda value: str(value),
)
def test_the_controller_dies(
    subarrays: Subarrays, moment: str, name: str, executions: int, outcome: str, obs_state: str
) -> None:
    """It dies before or after the effect: a repeatable command is executed again, another one has failed and says that
    nobody knows how far it came."""
    device = subarrays.take()
    controller = subarrays.controller(f"{moment}:{name}")
    id = subarrays.give(device, name)
    assert controller.exit_code() == CRASHED
    until(lambda: subarrays.told(device, id)["status"] in ("ACCEPTED", "IN_PROGRESS"), "it is under way")
    subarrays.controller(f"{moment}:{name}")
    told = subarrays.outcome(device, id)
    assert told["status"] == outcome, told
    assert outcome == "COMPLETED" or "interrupted" in told["text"]
    assert subarrays.executions(id) == executions
    subarrays.becomes(device, obs_state)


def test_the_controller_falls_silent(subarrays: Subarrays) -> None:
    """healthState says so, and why; and that all is well once the controller is heard again."""
    device = subarrays.devices[0]
    controller = subarrays.controller()
    until(lambda: subarrays.read(device, "healthState") == 0, "all is well")

    def seen() -> bool:
        silent = "controller simulated-controller has been silent since"
        lines = subarrays.read(device, "healthInfo") or ()
        return subarrays.read(device, "healthState") == 2 and any(silent in line for line in lines)

    with standing_still(controller.pid):
        until(seen, "it is noticed")
    until(lambda: subarrays.read(device, "healthState") == 0, "all is well again")


# The device server.


def test_the_device_server_is_killed_with_a_command_under_way(subarrays: Subarrays) -> None:
    """It comes back with the command, the state that the command leads through, and outcomes from before: of a command
    that ended meanwhile as well; each has the same id, and is executed once."""
    device, other = subarrays.take(), subarrays.take()
    subarrays.controller("hang:Configure", "slow:Scan")
    before = subarrays.does(device, "Scan")
    subarrays.does(device, "EndScan")
    hanging = subarrays.give(device, "Configure")
    until(lambda: subarrays.executions(hanging) == 1, "Configure is being executed")
    transaction = {"scan_id": 9, "transaction_id": "txn-test-20261121-00007"}
    ends_meanwhile = subarrays.give(other, "Scan", transaction)
    subarrays.kill_server()
    until(lambda: len(subarrays.written("command-acks", ends_meanwhile)) >= 2, "it ends while nobody listens")
    subarrays.start_server()
    assert subarrays.told(device, hanging)["status"] in ("ACCEPTED", "IN_PROGRESS")
    assert (subarrays.read(device, "commandsPending"), subarrays.obs_state(device)) == (1, "CONFIGURING")
    assert subarrays.told(device, before)["status"] == "COMPLETED"
    assert subarrays.outcome(other, ends_meanwhile)["status"] == "COMPLETED"
    assert subarrays.obs_state(other) == "SCANNING"
    assert subarrays.give_once_alone(other, "Scan", transaction) == ends_meanwhile, "transaction ids are known as well"
    assert subarrays.executions(ends_meanwhile) == 1
    subarrays.does(device, "Abort")
    assert subarrays.outcome(device, hanging)["status"] == "ABORTED"


def second_server(subarrays: Subarrays) -> tuple[Running, Callable[[], tango.DeviceProxy]]:
    """Start the same device server elsewhere: with another database, which cannot know of the first one."""
    deployment = subarrays.deployment
    host = deployment.database("another-db")
    deployment.command("register", TANGO_HOST=host)
    process = deployment.start("second", ["SdpFacade", "subarray"], TANGO_HOST=host)
    return process, lambda: tango.DeviceProxy(f"tango://{host}/{subarrays.devices[0]}")


def test_a_second_device_server(subarrays: Subarrays) -> None:
    """The database refuses a second instance; one elsewhere notices the first by the bus and refuses to command, until
    the first has been silent for long enough; then it is the first that refuses when it comes back."""
    device = subarrays.devices[0]
    subarrays.controller()
    again = subarrays.deployment.start("again", ["SdpFacade", "subarray"])
    assert again.exit_code() != 0, "the Tango database has let it in"
    second, connect = second_server(subarrays)

    def refusal() -> str:
        assert second.running, second.tail()
        try:
            connect().command_inout("End")
        except tango.DevFailed as failed:
            return failed.args[0].desc
        return "taken"

    until(lambda: "another device server of the name SdpFacade-subarray is alive" in refusal(), "it refuses")
    until(lambda: connect().obsState == 4, "it shows what the bus says, READY")
    subarrays.does(device, "Scan")
    subarrays.kill_server()
    until(lambda: "expected obsState" in refusal(), "it takes over: what it refuses is the state")
    connect().command_inout("EndScan")
    subarrays.server = subarrays.deployment.server("subarray")
    until(lambda: "another device server" in subarrays.refusal(device, "End"), "the first one refuses now")
    second.kill()
    subarrays.until_ready(device)
    subarrays.becomes(device, "READY")
    subarrays.does(device, "Configure")


# The broker.


@dataclass(frozen=True)
class Call:
    """A call that failed, and what its caller was told."""

    device: str
    transaction: str
    why: str


def call_in_vain(subarrays: Subarrays, device: str, number: int) -> Call:
    """Return a command while no broker answers: it fails."""
    transaction = f"txn-fault-20261121-{device[-2:]}x{number}x{os.urandom(3).hex()}"
    why = subarrays.refusal(device, "Scan", {"scan_id": 1, "transaction_id": transaction})
    return Call(device, transaction, why)


def judge(subarrays: Subarrays, calls: Sequence[Call]) -> Counter[str]:
    """See that what a failed call said is what the log says: what was not sent is not there, else the tracker knows."""
    kinds: Counter[str] = Counter()
    on_bus = [json.loads(message.value()) for message in subarrays.messages("commands")]
    for call in calls:
        written = [one["id"] for one in on_bus if one["transaction_id"] == call.transaction]
        if "outcome unknown" not in call.why:
            assert "was not sent" in call.why or "is under way" in call.why, call.why
            assert not written, f"{call}, and yet it is on the bus"
            kinds["not sent"] += 1
            continue
        id = call.why.partition("GetCommand('")[2].partition("'")[0]
        told = subarrays.outcome(call.device, id)
        assert written in ([], [id])
        assert (told["status"] == "UNDELIVERED") == (not written), (told, written)
        assert subarrays.executions(id) == (told["status"] == "COMPLETED"), told
        kinds[f"unknown, then {told['status']}"] += 1
    return kinds


@pytest.mark.parametrize("how", ["stands still", "is killed"])
def test_the_broker_is_away(subarrays: Subarrays, how: str) -> None:
    """Every call answers with an error that says what is known; afterwards the bus and the device agree with
    it, and commands are taken again."""
    subarrays.controller()
    devices = [subarrays.take(), subarrays.take()]
    broker = subarrays.deployment.broker
    calls: list[Call] = []

    def lease_is_lost() -> bool:
        calls.extend(call_in_vain(subarrays, device, len(calls)) for device in devices)
        return all("heartbeats do not come back" in call.why for call in calls[-len(devices) :])

    if how == "stands still":
        with standing_still(broker.pid):
            until(lease_is_lost, "the server says that it cannot know whether it may command", every=0.3)
    else:
        broker.kill()
        try:
            until(lease_is_lost, "the server says that it cannot know whether it may command", every=0.3)
        finally:
            broker.start()
    subarrays.until_ready(devices[0])
    kinds = judge(subarrays, calls)
    print(dict(kinds))
    assert kinds["not sent"] >= len(devices)

    until(lambda: takes(subarrays, devices[0]), "commands are taken again", every=0.2)
    subarrays.becomes(devices[0], "ABORTED")


def takes(subarrays: Subarrays, device: str) -> bool:
    """Return an Abort; a producer that was without a broker may still be getting itself in order."""
    try:
        return bool(subarrays.give(device, "Abort"))
    except tango.DevFailed as failed:
        if "was not sent" not in failed.args[0].desc:
            raise
        return False


# The bus carries what it should not.


def test_garbage_on_every_topic(subarrays: Subarrays) -> None:
    """Records that are none, or say what cannot be, stop neither the device server nor the controller: they are set
    aside or ignored, and the next command is executed."""
    device = subarrays.devices[0]
    controller = subarrays.controller()
    subarrays.does(device, "Configure")
    key, now = device.encode(), time.time_ns() // 1000
    id = subarrays.does(device, "Scan")
    ack = {"schema": "command-ack/1", "id": id, "device": device, "command": "Scan", "time": now, "origin": "x"}
    state = {"schema": "state/1", "device": device, "time": now, "origin": "x"}
    beat = {"schema": "heartbeat/1", "component": "x", "incarnation": "1", "devices": [device], "time": now}
    (command,) = subarrays.written("commands", id)
    odd: dict[str, list[object]] = {
        "command-acks": [
            {**ack, "status": "DONE"},
            {**ack, "status": "COMPLETED", "time": 2**53 - 1},
            {**ack, "status": "COMPLETED", "time": 2**62},
            {**ack, "status": "COMPLETED", "time": -(2**62)},
            {**ack, "status": "COMPLETED", "device": "no/such/device"},
            {**ack, "status": "IN_PROGRESS", "remaining": 1e300, "progress": -1},
            {**ack, "status": "FAILED", "result": {"deep": [[[[]]]]}, "text": "x" * 100_000},
        ],
        "state": [
            {**state, "attribute": "obsState", "value": "HAPPY"},
            {**state, "attribute": "scanID", "value": "1e9"},
            {**state, "attribute": "noSuchThing", "value": "1"},
            {**state, "attribute": "errorMessages", "value": "[1, 2"},
            {**state, "attribute": "ebID", "value": "eb", "time": 2**53 - 1},
            {**state, "attribute": "ebID", "value": "eb", "time": 2**62},
            {**state, "attribute": "ebID", "value": "eb", "time": -(2**62)},
        ],
        "heartbeats": [
            {**beat, "interval": -1},
            {**beat, "interval": 1e300, "time": 2**62},
            {**beat, "interval": 1, "role": "king"},
        ],
        "commands": [
            {**command, "id": "no form at all", "command": "Dance"},
            {**command, "id": "1e400_1_Scan", "issued": 2**62, "not_after": 2**62, "deadline": 2**62, "ceiling": 2**62},
            {**command, "id": "-1_1_Scan", "issued": -(2**62), "not_after": 0, "deadline": 0, "ceiling": 0},
            {**command, "id": "2_2_End", "command": "End", "device": "no/such/device"},
            {**command, "id": "4_4_End", "command": "End", "argument": [1, 2]},
        ],
    }
    rough = [b"", b"\xff\xfe\x00", b"{", b"null", b"[]", b"[" * 20_000, b'{"schema": "heap/1"}', b"x" * 100_000]
    for topic, documents in odd.items():
        values = [*rough, *(json.dumps(document).encode() for document in documents)]
        keyless = [] if topic == "state" else [(None, b"{}")]  # a compacted topic takes none
        subarrays.write(topic, *((key, value) for value in values), (key, None), (b"\xff", b"{}"), *keyless)
    subarrays.write("commands", (b"another key", json.dumps({**command, "id": "3_3_End", "command": "End"}).encode()))
    subarrays.becomes(device, "SCANNING")
    subarrays.does(device, "EndScan")
    assert subarrays.obs_state(device) == "READY"
    subarrays.does(device, "End")
    assert subarrays.told(device, id)["status"] == "COMPLETED"
    assert controller.running
    reasons = Counter(dict(m.headers())[name] for m in subarrays.messages("dead-letters") for name in ("dl.reason",))
    print(reasons)
    assert sum(reasons.values()) > 30
    # And whoever starts now has to read all of it.
    subarrays.kill_server()
    subarrays.start_server()
    subarrays.controller()
    assert subarrays.told(device, id)["status"] == "COMPLETED"
    subarrays.does(device, "Configure")
