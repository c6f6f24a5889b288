"""The command path of a device server on the simulation's brokers: what is taken, refused, shown, and remembered."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from facade.flows.commands.gateway import Gateway, read_request
from facade.flows.commands.lease import INTERVAL
from facade.flows.commands.messages import (
    CommandMessage,
    ReportedState,
    command_record,
    decode_command,
    decode_refusal,
)
from facade.flows.commands.rules import MOST_PENDING
from facade.flows.commands.view import as_dict
from facade.kernel.bus.port import Record
from facade.kernel.config import LONGEST_COMMAND_TIMEOUT, Settings
from facade.kernel.errors import CommandRefused, NotSent, OutcomeUnknown
from facade.kernel.runtime.event_loop import Timing
from tests.support.commanding import ICD, OTHER, SUBARRAY, Bench
from tests.support.waiting import HANG, until

COMMANDS = {command.name: command for command in ICD.classes["SdpSubarray"].commands}
OBS_STATES = ICD.enums["ObsState"]
CONFIGURE = {"interface": "https://schema.skao.int/ska-sdp-configure/0.4", "scan_type": "science"}
SCAN = {"interface": "https://schema.skao.int/ska-sdp-scan/0.4", "scan_id": 7}
ARGUMENTS = {
    "assignres": {"resources": {"receptors": ["SKA001"]}},
    "releaseres": {
        "interface": "https://schema.skao.int/ska-sdp-releaseres/0.4",
        "resources": {"receptors": ["SKA001"]},
    },
    "configure": CONFIGURE,
    "scan": SCAN,
}
TXN = "txn-test-20270115-0001"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def on(bench, server, obs_state="IDLE"):
    bench.report(State="ON", obsState=obs_state)
    server.cycle()


@pytest.fixture
def server(bench):
    """A device server whose subarray is ON and IDLE."""
    server = bench.server()
    on(bench, server)
    return server


def test_a_command_is_a_record_before_its_caller_has_the_id(bench, server):
    id = server.give("Configure", {**CONFIGURE, "transaction_id": TXN}, headers=(("traceparent", b"00-1-2-01"),))
    (record,) = bench.broker.read("commands")
    (command,) = bench.commands()
    entry, now_us = COMMANDS["Configure"], bench.clock.now_us()
    assert record.key == SUBARRAY.encode()
    assert record.headers == (("traceparent", b"00-1-2-01"),)
    assert (command.id, command.device, command.command) == (id, SUBARRAY, "Configure")
    assert (command.transaction_id, command.argument["scan_type"]) == (TXN, "science")
    assert command.issued == now_us
    assert command.not_after == now_us + entry.start_within * 1e6
    assert command.deadline == now_us + entry.deadline * 1e6
    assert command.ceiling == now_us + entry.ceiling * 1e6
    assert command.repeatable is entry.repeatable
    assert id.endswith("_Configure")
    assert server.gateway.show(SUBARRAY) == ("ON", "CONFIGURING"), "at once, not once the record has come back"


def test_a_transaction_id_is_made_where_there_is_none(bench):
    server = bench.server()
    on(bench, server, "READY")
    server.give("End")
    (command,) = bench.commands()
    assert command.argument is None
    assert command.transaction_id.startswith("txn-sdp-2027")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("obs_state", OBS_STATES)
def test_each_command_is_taken_in_the_states_of_the_table_and_in_no_other(bench, name, obs_state):
    entry = COMMANDS[name]
    server = bench.server()
    bench.report(State=entry.state[0], obsState=obs_state)
    server.cycle()
    argument = ARGUMENTS.get(entry.argument)
    if not entry.obs_state or obs_state in entry.obs_state:
        server.give(name, argument)
        assert len(bench.commands()) == 1
        _, shown = server.gateway.show(SUBARRAY)
        transitional = entry.transitional if entry.reports == "obsState" else None
        assert shown == (transitional or obs_state)
        return
    with pytest.raises(CommandRefused) as refused:
        server.give(name, argument)
    assert refused.value.reason == "API_CommandNotAllowed"
    assert refused.value.origin == f"SdpSubarray.is_{name}_allowed()"
    assert f"Command {name} not allowed when obsState is {obs_state}" in str(refused.value)
    assert bench.commands() == []
    assert server.gateway.show(SUBARRAY)[1] == obs_state


def block(eb_id):
    beam = {"beam_id": "vis0", "function": "visibilities"}
    scan_type = {"scan_type_id": "science", "beams": {"vis0": {}}}
    return {
        "eb_id": eb_id,
        "beams": [beam],
        "scan_types": [scan_type],
        "channels": [],
        "polarisations": [],
        "fields": [],
    }


@pytest.mark.parametrize(
    ("name", "argument", "words"),
    [
        ("Configure", {"scan_type": "science"}, ""),
        ("Configure", {"scan_type": "other"}, r"scan_type: expected one of science, calibration, got 'other'"),
        ("AssignResources", {"execution_block": block("eb-test-20270115-00001")}, "eb_id: expected a new id"),
        ("AssignResources", {"execution_block": block("eb-test-20270115-00002")}, ""),
    ],
)
def test_an_argument_that_contradicts_what_was_reported_is_refused(bench, name, argument, words):
    server = bench.server()
    bench.report(scanTypes='["science", "calibration"]', ebID="eb-test-20270115-00001")
    on(bench, server)
    argument = {**argument, **({"resources": {}, "processing_blocks": []} if name == "AssignResources" else {})}
    if not words:
        server.give(name, argument)
        return
    with pytest.raises(CommandRefused, match=words):
        server.give(name, argument)
    assert bench.commands() == []


def test_a_repeated_transaction_id_gives_the_first_id_and_sends_nothing(bench, server):
    argument = {**CONFIGURE, "transaction_id": TXN}
    first = server.give("Configure", argument)
    server.cycle()
    assert server.give("Configure", argument) == first
    bench.ack(first, "COMPLETED")
    bench.report(obsState="READY", command=first)
    server.cycle()
    assert server.give("Configure", dict(reversed(argument.items()))) == first, "also after it has ended"
    assert len(bench.commands()) == 1
    with pytest.raises(CommandRefused, match="another argument"):
        server.give("Configure", {**argument, "scan_type": "other"})
    again = bench.server(ready=False)
    assert again.gateway.tracker.of_transaction(SUBARRAY, "Configure", TXN).id == first, "also after a restart"


@pytest.mark.parametrize("reads", range(1, 7))
def test_a_command_is_checked_against_the_state_of_one_moment(bench, reads):
    """The event loop folds the outcome of a command between two reads of the call of another one."""
    server = bench.server()
    on(bench, server, "READY")
    scan = server.give("Scan", SCAN)
    server.cycle()
    states, left = server.gateway.states, [reads]

    def get(device, name):
        found = states.get(device, name)
        left[0] -= 1
        if left[0] == 0:
            bench.ack(scan, "COMPLETED", states={"obsState": ReportedState("SCANNING", bench.clock.now_us())})
            server.cycle()
        return found

    raced_states = SimpleNamespace(get=get, label=states.label, has_lost=states.has_lost, are_lost=False)
    raced = replace(server.gateway, states=raced_states, shown=replace(server.gateway.shown, states=raced_states))
    with suppress(CommandRefused):
        raced.give(SUBARRAY, "Scan", json.dumps({**SCAN, "scan_id": 8}))
    assert [command.id for command in bench.commands()] == [scan], "READY is over, as soon as the first Scan is"


@pytest.mark.parametrize(
    ("device", "device_class", "state", "advice"),
    [
        (SUBARRAY, "SdpSubarray", "ON", "wait for its outcome, or Abort"),
        (SUBARRAY, "SdpSubarray", "OFF", "wait for its outcome"),
        ("mid-sdp/control/0", "SdpMaster", "OFF", "wait for its outcome"),
    ],
)
def test_a_refusal_advises_only_what_the_device_takes(bench, device, device_class, state, advice):
    server = bench.server(devices=[device], device_class=device_class)
    bench.report(device=device, State=state)
    server.cycle()
    name, argument = ("Scan", SCAN) if state == "ON" else ("On", None)
    if state == "ON":
        bench.report(obsState="READY")
        server.cycle()
    server.give(name, argument, device=device)
    with pytest.raises(CommandRefused) as refused:
        server.give("End" if state == "ON" else "On", device=device)
    assert str(refused.value).endswith(f"is under way; {advice}")


def test_abort_overtakes_and_what_it_overtook_blocks_nobody_afterwards(bench, server):
    first = server.give("Configure", CONFIGURE)
    server.cycle()
    abort = server.give("Abort")
    server.cycle()
    assert server.shows("obsState") == "ABORTING"
    bench.report(obsState="READY", command=first)  # it was just done when Abort came
    server.cycle()
    assert server.shows("obsState") == "ABORTING"
    bench.report(obsState="ABORTED", command=abort)
    bench.ack(abort, "COMPLETED")
    server.cycle()
    assert server.shows("obsState") == "ABORTED", "though Configure's own acknowledgement was lost"
    server.give("ObsReset")


@pytest.mark.parametrize("outcome", ["FAILED", "REJECTED", "ABORTED", "TIMED_OUT"])
def test_a_command_that_came_to_nothing_leaves_what_was_reported(bench, server, outcome):
    id = server.give("Configure", CONFIGURE)
    bench.ack(id, outcome, text="because")
    server.cycle()
    assert server.shows("obsState") == "IDLE"
    assert json.loads(server.shows("longRunningCommandResult")[1])[1] == "because"
    server.give("Configure", CONFIGURE)


def test_a_client_of_protocol_2_is_told_each_change_of_its_command(bench, server):
    """As ska-tango-base's invoke_lrc reads it: the text behind the command's id, if the id is in the event."""
    id = server.give("Configure", CONFIGURE)
    seen = []

    def change():
        server.cycle()
        event = server.shows("_lrcEvent")
        return json.loads(event[event.index(id) + 1])

    seen.append(change())
    for status, options in (("ACCEPTED", {}), ("IN_PROGRESS", {"progress": 40, "remaining": 3.0}), ("COMPLETED", {})):
        bench.clock.sleep(2.0)
        bench.ack(id, status, **options)
        seen.append(change())
    assert tuple(server.shows("lrcProtocolVersions")) == (1, 2)
    completed = {"status": 5, "progress": 100, "result": [0, "COMPLETED"]}
    assert seen == [{"status": 1}, {"status": 2}, {"progress": 40}, completed]


def test_a_change_that_is_too_old_leaves_without_an_event(bench, server):
    first = server.give("Configure", CONFIGURE)
    bench.ack(first, "COMPLETED")
    server.cycle()
    bench.clock.sleep(0.8)
    abort = server.give("Abort", "")
    server.cycle()
    shown = server.shows("_lrcEvent")
    bench.clock.sleep(0.5)
    bench.ack(first, "FAILED")  # late: nothing changes
    server.cycle()
    assert {first, abort} <= set(shown)
    assert server.shows("_lrcEvent") == shown
    bench.clock.sleep(2.0)
    bench.ack(abort, "ACCEPTED")
    server.cycle()
    assert server.shows("_lrcEvent") == (abort, '{"status": 2}')


@pytest.mark.parametrize(
    ("reported", "outcome", "commanded"),
    [
        ("EMPTY", "COMPLETED", "EMPTY"),  # everything was released: the second of the states that it may lead to
        ("IDLE", "COMPLETED", "IDLE"),
        ("EMPTY", "REJECTED", "EMPTY"),
        ("SCANNING", "COMPLETED", "READY"),
        ("FAULT", "FAILED", "READY"),
    ],
)
def test_with_no_command_under_way_commanded_obs_state_is_what_was_reached(bench, server, reported, outcome, commanded):
    id = server.give("Configure", CONFIGURE)
    server.cycle()
    assert server.shows("commandedObsState") == "READY"
    bench.report(obsState=reported, command=id)
    bench.ack(id, outcome)
    server.cycle()
    assert server.shows("commandedObsState") == commanded


def test_the_long_running_command_attributes_follow_a_command(bench, server):
    id = server.give("Configure", CONFIGURE)
    server.cycle()
    assert server.shows("longRunningCommandsInQueue") == ("Configure",)
    assert server.shows("longRunningCommandIDsInQueue") == (id,)
    assert server.shows("longRunningCommandStatus") == (id, "QUEUED")
    assert [json.loads(text)["uid"] for text in server.shows("lrcQueue")] == [id]
    assert server.shows("commandedObsState") == "READY"
    bench.ack(id, "ACCEPTED")
    bench.ack(id, "IN_PROGRESS", progress=40, remaining=3.0)
    server.cycle()
    assert server.shows("longRunningCommandStatus") == (id, "IN_PROGRESS")
    assert server.shows("longRunningCommandInProgress") == ("Configure",)
    assert server.shows("longRunningCommandProgress") == (id, "40")
    assert server.shows("lrcQueue") == ()
    assert json.loads(server.shows("lrcExecuting")[0])["progress"] == 40
    assert server.shows("commandsPending") == 1
    bench.report(obsState="READY", command=id)
    bench.ack(id, "COMPLETED")
    server.cycle()
    assert server.shows("longRunningCommandStatus") == (id, "COMPLETED")
    assert server.shows("longRunningCommandResult")[0] == id
    assert json.loads(server.shows("longRunningCommandResult")[1])[0] == 0
    assert server.shows("lrcExecuting") == ()
    finished = json.loads(server.shows("lrcFinished")[0])
    assert (finished["uid"], finished["status"], finished["result"][0]) == (id, "COMPLETED", 0)
    assert (server.shows("commandsPending"), server.shows("commandsFinished")) == (0, 1)
    assert server.shows("obsState") == "READY"


def test_a_time_out_is_made_by_the_facade_kept_on_the_log_and_a_late_ack_changes_nothing(bench, server):
    id = server.give("Configure", CONFIGURE)
    server.cycle()
    for _ in range(round(COMMANDS["Configure"].deadline) * 2 + 1):
        bench.clock.sleep(0.5)
        server.cycle()
    assert [(ack.id, ack.status) for ack in bench.acks()] == [(id, "TIMED_OUT")]
    bench.ack(id, "COMPLETED")
    server.cycle()
    assert server.tracker.find(id).status == "TIMED_OUT"
    assert server.shows("acksLate") == 1
    assert "timed out" in " ".join(server.shows("healthInfo"))
    assert bench.server(ready=False).tracker.find(id).status == "TIMED_OUT"


def test_no_command_that_has_an_outcome_is_timed_out_while_that_waits_to_be_read(bench, server):
    """The server stood still until the deadline, and has more to read than it takes in one cycle."""
    id = server.give("Configure", CONFIGURE)
    for _ in range(round(COMMANDS["Configure"].deadline) * 2 - 1):
        bench.clock.sleep(0.5)
        server.cycle()
    for number in range(3 * Timing().batch):
        bench.ack(f"{bench.clock.now():.6f}_{number}_Scan", "ACCEPTED")
    bench.ack(id, "REJECTED")
    bench.clock.sleep(2.0)
    server.cycle(10)
    assert server.gateway.lease.held(bench.clock.monotonic()), "nothing else holds it up"
    assert [ack.status for ack in bench.acks() if ack.id == id] == ["REJECTED"]
    assert server.tracker.find(id).status == "REJECTED"


def test_nothing_is_timed_out_before_what_controllers_wrote_meanwhile_was_read(bench, server):
    """The broker was away for longer than a deadline, and is back; or another server holds the lease."""
    server.give("Off")
    server.cycle()
    bench.clock.sleep(40.0)
    server.service.event_loop.tick()  # nothing can be read yet
    assert bench.acks() == []
    for _ in range(12):
        bench.clock.sleep(0.5)
        server.cycle()
    assert [ack.status for ack in bench.acks()] == ["TIMED_OUT"]


def test_a_server_that_is_about_to_end_takes_no_commands(server):
    server.stop()
    with pytest.raises(CommandRefused, match="about to end"):
        server.give("Configure", CONFIGURE)


@pytest.mark.parametrize(("timeout", "spare"), [(0.4, 0.4), (LONGEST_COMMAND_TIMEOUT, INTERVAL)])
def test_no_command_leaves_when_another_server_may_hold_the_lease(bench, timeout, spare):
    """It may leave until its timeout; a long timeout counts for one heartbeat only."""
    server = bench.server(settings=Settings(command_timeout=timeout))
    on(bench, server, "READY")
    lease, began = server.gateway.lease, bench.clock.monotonic()
    lease._good_until = began + spare + 0.1
    server.give("End")
    lease._good_until = bench.clock.monotonic() + spare
    with pytest.raises(CommandRefused, match="heartbeats do not come back"):
        server.give("Abort")
    assert lease.held(bench.clock.monotonic())
    assert [one.command for one in bench.commands()] == ["End"]


def test_a_clock_that_is_set_back_hides_no_command(bench):
    server = bench.server()
    on(bench, server, "READY")
    first = server.give("End")
    bench.ack(first, "COMPLETED")
    bench.report(obsState="IDLE", command=first)
    server.cycle()
    bench.clock.sleep(-5.0)
    server.service.find(Gateway).lease._good_until = float("inf")  # the same clock is the monotonic one here
    server.give("ReleaseAllResources")
    assert server.gateway.show(SUBARRAY) == ("ON", "RESOURCING")
    with pytest.raises(CommandRefused):
        server.give("ReleaseAllResources")


def test_before_the_log_was_read_no_obs_state_is_shown(bench):
    bench.report(State="ON", obsState="SCANNING")
    server = bench.server(ready=False, start=False)
    server.service.event_loop.tick()
    assert (SUBARRAY, "obsState") not in server.sink.shown
    assert server.shows("State") == "UNKNOWN"
    assert "obsState is not known; adminMode is not known;" in server.shows("Status")
    server.open()
    server.cycle()
    assert server.shows("obsState") == "SCANNING"


def test_the_number_of_commands_without_an_outcome_is_bounded(bench):
    server = bench.server()
    on(bench, server, "READY")
    for number in range(MOST_PENDING):
        bench.report(obsState="READY")
        server.cycle()
        id = server.give("Scan", {**SCAN, "scan_id": number + 1})
        bench.report(obsState="SCANNING", command=id)
        server.cycle()
    bench.report(obsState="READY")
    server.cycle()
    with pytest.raises(CommandRefused, match=f"{MOST_PENDING} commands are without an outcome"):
        server.give("Scan", {**SCAN, "scan_id": 99})


@pytest.mark.parametrize("mode", ["OFFLINE", "NOT_FITTED", "RESERVED"])
def test_a_device_that_is_out_of_use_takes_no_commands(bench, mode):
    server = bench.server()
    bench.report(State="ON", obsState="IDLE", adminMode=mode)
    server.cycle()
    assert server.shows("State") == "DISABLE"
    with pytest.raises(CommandRefused, match=f"adminMode is {mode}"):
        server.give("Configure", CONFIGURE)


def test_an_unknown_outcome_is_said_and_the_tracker_learns_that_the_command_arrived(bench, server):
    server.bus.mute = True
    with pytest.raises(OutcomeUnknown, match=r"outcome unknown.*GetCommand"):
        server.give("Configure", {**CONFIGURE, "transaction_id": TXN})
    server.bus.mute = False
    (command,) = bench.commands()
    assert server.gateway.show(SUBARRAY) == ("ON", "IDLE"), "perhaps nothing happens"
    server.cycle()
    assert server.gateway.show(SUBARRAY) == ("ON", "CONFIGURING")
    assert server.give("Configure", {**CONFIGURE, "transaction_id": TXN}) == command.id


def test_a_command_that_comes_to_the_bus_after_it_was_given_up_stays_so_and_blocks_no_other(bench, server):
    """Brokers may hold a record back until another replica has it; nobody begins the command then."""
    server.bus.deaf = True
    with pytest.raises(OutcomeUnknown):
        server.give("Configure", CONFIGURE)
    server.bus.deaf = False
    (given,) = server.tracker.pending(SUBARRAY)
    for _ in range(20):
        bench.clock.sleep(0.5)
        server.cycle()
    assert given.status == "UNDELIVERED"
    times = {name: getattr(given.message, name) for name in ("issued", "not_after", "deadline", "ceiling")}
    late = CommandMessage(
        id=given.id, device=SUBARRAY, command="Configure", argument=CONFIGURE, transaction_id=TXN, repeatable=False,
        origin="server", **times,
    )  # fmt: skip
    bench.broker.append(command_record(late))
    for now in (server, bench.server(ready=False)):
        for _ in range(round(COMMANDS["Configure"].deadline) * 2):
            bench.clock.sleep(0.5)
            now.cycle(1)
        assert now.tracker.find(given.id).status == "UNDELIVERED"
        assert now.gateway.show(SUBARRAY) == ("ON", "IDLE")
        assert now.shows("obsState") == "IDLE"
    assert [one.status for one in bench.acks()] == ["UNDELIVERED"], "it does not end once more"
    now.give("Configure", CONFIGURE)


def test_a_repeat_that_was_not_sent_says_nothing_about_the_first_time(server):
    argument = {**CONFIGURE, "transaction_id": TXN}
    server.bus.mute = True
    with pytest.raises(OutcomeUnknown):
        server.give("Configure", argument)
    server.bus.away = True
    with pytest.raises(OutcomeUnknown):
        server.give("Configure", argument)
    (tracked,) = server.tracker.pending(SUBARRAY)
    assert tracked.status == "NEW"
    server.bus.away = server.bus.mute = False
    server.cycle()
    assert server.give("Configure", argument) == tracked.id


def test_a_command_that_may_still_appear_is_not_said_to_be_lost(bench, server):
    argument = {**CONFIGURE, "transaction_id": TXN}
    server.bus.deaf = True
    with pytest.raises(OutcomeUnknown):
        server.give("Configure", argument)
    server.bus.deaf = False
    (tracked,) = server.tracker.pending(SUBARRAY)
    while bench.clock.now() * 1e6 < tracked.message.not_after:
        bench.clock.sleep(0.5)
        server.cycle()
    with pytest.raises(OutcomeUnknown, match="not seen on the bus yet"):
        server.give("Configure", argument)
    assert bench.commands() == []


def test_a_lost_command_is_sent_again_under_the_same_id(bench, server):
    argument = {**CONFIGURE, "transaction_id": TXN}
    server.bus.deaf = True
    with pytest.raises(OutcomeUnknown):
        server.give("Configure", argument)
    server.bus.deaf = False
    (tracked,) = server.tracker.pending(SUBARRAY)
    bench.clock.sleep(1.0)
    assert server.give("Configure", argument) == tracked.id
    (command,) = bench.commands()
    assert (command.id, command.not_after) == (tracked.id, tracked.message.not_after)


def test_before_the_bus_was_read_nothing_is_sent(bench):
    server = bench.server(ready=False)
    server.service.event_loop._behind = {"commands"}
    with pytest.raises(CommandRefused, match="present state is not known"):
        server.give("On")


def test_a_second_instance_of_the_same_device_is_noticed_and_refuses(bench):
    first = bench.server()
    on(bench, first)
    second = bench.server(ready=False)
    for _ in range(5):
        bench.clock.sleep(0.4)
        first.cycle()
        second.cycle()
    with pytest.raises(CommandRefused, match="another device server of the name SdpFacade-subarray"):
        second.give("Configure", CONFIGURE)
    assert second.shows("healthState") == "FAILED"
    assert "another device server" in second.shows("healthInfo")[0]
    first.give("Configure", CONFIGURE)
    first.stop()
    bench.clock.sleep(0.6)
    second.cycle()
    second.give("Abort")
    assert [command.command for command in bench.commands()] == ["Configure", "Abort"]


def test_a_server_that_was_killed_comes_back_with_every_command_and_its_state(bench, server):
    done = server.give("Configure", CONFIGURE)
    bench.ack(done, "COMPLETED")
    bench.report(obsState="READY", command=done)
    server.cycle()
    open_ = server.give("Scan", SCAN)
    bench.ack(open_, "IN_PROGRESS", progress=10)
    server.cycle()
    names = ("obsState", "longRunningCommandStatus", "lrcFinished", "lrcExecuting")
    shown = {name: server.shows(name) for name in names}
    bench.clock.sleep(3.5)  # the lease of the one that was killed lapses
    again = bench.server()
    assert {name: again.shows(name) for name in shown} == shown
    bench.report(obsState="SCANNING", command=open_)
    again.cycle()
    again.give("EndScan")


def test_a_transaction_id_that_no_record_can_carry_is_refused(server):
    text = "txn-test-20261121-" + "x" * 183
    with pytest.raises(CommandRefused, match=r"\$\.transaction_id: expected at most 200 characters, got 201"):
        server.give("Configure", {**CONFIGURE, "transaction_id": text})
    id = server.give("Configure", {**CONFIGURE, "transaction_id": text[:-1]})
    server.cycle()
    assert server.tracker.find(id).place


@pytest.mark.parametrize("topic", ["commands", "orders", "command-acks"])
def test_the_dead_letter_of_a_wrong_key_survives_a_kill(bench, topic):
    """The server that counts the record cannot write the letter, and is killed: the next one writes it."""
    server = bench.server()
    on(bench, server)
    server.give("Configure", CONFIGURE)
    (command,) = bench.commands()
    bench.ack(command.id, "ACCEPTED")
    (record, *_) = bench.broker.read("command-acks" if topic == "command-acks" else "commands")
    server.bus.refused = ["dead-letters"]
    bench.broker.append(replace(record, topic=topic, key=OTHER.encode(), partition=0))
    for _ in range(12):
        bench.clock.sleep(0.5)
        server.cycle(1)
    assert server.service.event_loop.accounts[topic].reasons["key"] == 1
    assert bench.broker.read("dead-letters") == []
    bench.server(ready=False)
    (letter,) = bench.broker.read("dead-letters")
    assert dict(letter.headers)["dl.reason"] == b"key"
    bench.server(ready=False)
    assert len(bench.broker.read("dead-letters")) == 1


@pytest.mark.parametrize("topic", ["commands", "command-acks", "heartbeats", "state"])
def test_a_bad_record_becomes_one_dead_letter_however_many_read_it_and_start_again(bench, topic):
    """D28: one bad acknowledgement became a dead letter of each device server that reads the topic, at each start."""
    subarray = bench.server()
    control = bench.server(devices=["mid-sdp/control/0"], instance="control", device_class="SdpMaster")
    bench.broker.append(Record(topic=topic, key=b"x", value=b"junk"))
    for server in (subarray, control):
        server.cycle()
    assert subarray.service.event_loop.accounts[topic].dead_lettered == 1
    account = control.service.event_loop.accounts[topic]
    assert (account.reasons, account.dead_lettered, account.balance) == ({"other-server": 1}, 0, 0)
    bench.clock.sleep(3.0)
    subarray.cycle()  # time for a snapshot
    again = bench.server(ready=False)
    again.cycle()
    assert again.service.event_loop.accounts[topic].dead_lettered == 1
    assert len(bench.broker.read("dead-letters")) == 1


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("obsState", "BUSY"), ("State", "ALARM"), ("scanID", "seven"), ("scanTypes", "science"), ("colour", "green")],
)
def test_a_report_that_makes_no_sense_is_a_dead_letter_and_what_was_shown_stays(bench, server, attribute, value):
    bench.report(**{attribute: value})
    server.cycle()
    assert server.service.event_loop.accounts["state"].dead_lettered == 1
    assert server.gateway.show(SUBARRAY) == ("ON", "IDLE")


@pytest.mark.parametrize("refused", ["longRunningCommandResult", "obsState"])
def test_what_cannot_be_shown_hides_nothing_behind_it(bench, server, monkeypatch, refused):
    """The event loop goes on with its next cycle, and the clock stands still meanwhile."""
    show = server.sink.show

    def refuse(device, attribute, reading):
        if attribute == refused:
            raise ValueError(attribute)
        show(device, attribute, reading)

    monkeypatch.setattr(server.sink, "show", refuse)
    id = server.give("Configure", CONFIGURE)
    bench.ack(id, "COMPLETED", states={"obsState": ReportedState("READY", bench.clock.now_us() + 1)})
    for _ in range(6):
        with suppress(ValueError):
            server.cycle(1)
    assert server.shows("lastCommand") == f"{id} Configure COMPLETED"
    assert server.shows("Status").count("obsState is READY") == 1


WHO = "10.0.0.7, process 4242"


def refusals(bench):
    return [decode_refusal(record.value) for record in bench.broker.read("command-refusals")]


def test_a_command_carries_who_gave_it(bench, server):
    id = server.give("Configure", CONFIGURE, client=WHO, operator="ann")
    server.cycle()
    (sent,) = bench.commands()
    assert (sent.client, sent.operator) == (WHO, "ann")
    again = bench.server(instance="SdpFacade-again", ready=False)
    for one in (server, again):
        told = as_dict(one.tracker.find(id))
        assert (told["client"], told["operator"]) == (WHO, "ann")


def test_the_record_of_a_command_that_nobody_put_a_name_to_has_none(bench, server):
    server.give("Configure", CONFIGURE, client=WHO)
    assert b"operator" not in bench.broker.read("commands")[0].value


def test_a_request_for_a_command_names_it_its_operator_and_its_argument():
    subarray = ICD.classes["SdpSubarray"]
    request = read_request('{"command": "Scan", "argument": "{}", "operator": "\\u00c5sa"}', subarray)
    assert (request.command, request.argument, request.operator) == ("Scan", "{}", "Åsa")
    assert read_request('{"command": "Abort", "operator": "ann"}', subarray).argument is None


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ("{not json", "expected a JSON object with the keys command, operator and"),
        ("\ud800", "expected a JSON object"),
        ({"command": "Abort"}, "missing required field `operator`"),
        ({"command": "Abort", "operator": ""}, "length >= 1 - at `$.operator`"),
        ({"command": "Abort", "operator": "x" * 201}, "length <= 200 - at `$.operator`"),
        ({"command": "Abort", "operator": " "}, "$.operator: expected a name without control characters, got ' '"),
        ({"command": "Abort", "operator": "a\x1b[2J"}, r"got 'a\x1b[2J'"),
        ({"command": "Abort", "operator": "ann", "role": "expert"}, "unknown field `role`"),
        ({"command": "Abort", "operator": "ann", "argument": "{}"}, "$.argument: expected none, as Abort takes none"),
        ({"command": "Scan", "operator": "ann", "argument": {}}, "Expected `str | null`, got `object`"),
        ({"command": "GetCommand", "operator": "ann"}, "$.command: expected one of On, Off, AssignResources, "),
    ],
)
def test_a_wrong_request_for_a_command_is_refused_and_says_why(request_, why):
    text = request_ if isinstance(request_, str) else json.dumps(request_)
    with pytest.raises(CommandRefused, match=re.escape(why)) as refused:
        read_request(text, ICD.classes["SdpSubarray"])
    assert (refused.value.reason, refused.value.origin) == ("API_CommandFailed", "SdpSubarray.GiveCommand")
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("name", "argument", "reason", "text"),
    [
        ("Scan", SCAN, "API_CommandNotAllowed", "Command Scan not allowed when obsState is IDLE"),
        ("Configure", {"scan_type": 1}, "API_CommandFailed", "$.scan_type: expected text, got 1"),
    ],
)
def test_a_refused_command_is_on_the_bus_in_an_attribute_and_logged(
    bench, server, caplog, name, argument, reason, text
):
    assert server.shows("lastRefusal") == ""
    with pytest.raises(CommandRefused, match=re.escape(text)):
        server.give(name, argument, client=WHO, operator="ann")
    server.cycle()
    (refusal,) = refusals(bench)
    assert (refusal.device, refusal.command, refusal.reason) == (SUBARRAY, name, reason)
    assert (refusal.client, refusal.operator) == (WHO, "ann")
    assert (refusal.time, refusal.origin) == (bench.clock.now_us(), "SdpFacade-subarray")
    assert text in refusal.text
    assert json.loads(refusal.argument) == argument
    shown = server.shows("lastRefusal")
    assert shown.startswith(datetime.fromtimestamp(bench.clock.now(), UTC).strftime("%Y-%m-%d %H:%M:%S UTC "))
    assert f" {name} by ann, from {WHO}, {reason}: " in shown
    assert text in shown
    assert server.shows("lastRefusal", OTHER) == ""
    (line,) = [one for one in caplog.records if "command refused" in one.message]
    assert line.levelname == "WARNING"
    assert all(one in line.message for one in (SUBARRAY, name, WHO, reason, text))


def test_the_last_refusal_is_shown_again_after_a_restart(bench):
    server = bench.server()
    for name in ("Scan", "EndScan"):
        with pytest.raises(CommandRefused):
            server.give(name, SCAN if name == "Scan" else None, client=WHO)
    server.cycle()
    again = bench.server(instance="SdpFacade-again", ready=False)
    assert again.shows("lastRefusal") == server.shows("lastRefusal")
    assert f" EndScan by {WHO}, " in again.shows("lastRefusal")


def test_a_command_that_no_broker_took_is_a_refusal_that_comes_to_the_bus_later(bench, server):
    server.bus.away = True
    with pytest.raises(NotSent):
        server.give("Configure", CONFIGURE, client=WHO)
    assert "was not sent, and will not be executed" in server.gateway.refusals.reading(SUBARRAY).value
    server.bus.away = False
    server.cycle()
    assert [one.command for one in refusals(bench)] == ["Configure"]


def test_a_server_that_never_reached_the_bus_shows_and_logs_a_refusal(bench, caplog):
    server = bench.server(start=False, ready=False)
    with pytest.raises(CommandRefused, match="the bus was not read yet"):
        server.give("On", client=WHO)
    server.service.event_loop.tick()
    assert "the bus was not read yet" in server.shows("lastRefusal")
    assert "command refused" in caplog.text


def test_hostile_words_in_a_refusal_are_cut_and_only_read(bench, server):
    with pytest.raises(CommandRefused):
        server.gateway.give(SUBARRAY, "Configure", '{"a\ud800\x1b[2J": "' + "\x1b" * 5000, client="x\n" * 500)
    server.cycle()
    (refusal,) = refusals(bench)
    for text, most in ((refusal.argument, 1000), (refusal.client, 200), (refusal.text, 2000)):
        assert text.isprintable()
        assert len(text) <= most
    assert server.shows("lastRefusal").isprintable()


class Slow:
    """A bus that takes commands in their order, and confirms them when the test lets it."""

    def __init__(self):
        self.queued, self.free, self.outcome = [], threading.Event(), None

    def send(self, record, timeout):
        self.queued.append(decode_command(record.value))
        return self

    def result(self):
        assert self.free.wait(HANG)
        if self.outcome is not None:
            raise self.outcome


def slow(server) -> tuple[Slow, Gateway]:
    bus = Slow()
    return bus, replace(server.gateway, sender=bus)


def test_a_command_waits_for_the_bus_without_those_of_other_callers(server):
    bus, gateway = slow(server)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(gateway.give, SUBARRAY, "Configure", json.dumps(CONFIGURE))
        until(lambda: bus.queued, "the first command is queued")
        with pytest.raises(CommandRefused, match=r"not allowed while Configure .* is under way"):
            gateway.give(SUBARRAY, "Configure", json.dumps(CONFIGURE))
        second = pool.submit(gateway.give, SUBARRAY, "Abort", None)
        until(lambda: len(bus.queued) == 2, "the second command is queued")
        bus.free.set()
        ids = [first.result(HANG), second.result(HANG)]
    assert ids == [command.id for command in bus.queued]
    assert bus.queued[0].issued < bus.queued[1].issued


def test_a_repeated_call_is_not_sent_while_the_first_one_waits(server):
    """The first one may still be told that its command was never sent, which a second record would make untrue."""
    bus, gateway = slow(server)
    argument = json.dumps({**CONFIGURE, "transaction_id": TXN})
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(gateway.give, SUBARRAY, "Configure", argument)
        until(lambda: bus.queued, "the command is queued")
        with pytest.raises(OutcomeUnknown, match="another call is sending it"):
            gateway.give(SUBARRAY, "Configure", argument)
        bus.outcome = NotSent("no broker")
        bus.free.set()
        with pytest.raises(NotSent, match="will not be executed"):
            first.result(HANG)
    assert len(bus.queued) == 1
    with pytest.raises(CommandRefused, match="never reached the bus"):
        gateway.give(SUBARRAY, "Configure", argument)
