"""What a command reports and its outcome are on two partitions: whoever sees the outcome sees the reports too."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from facade.flows.commands.flow import flows
from facade.flows.commands.messages import (
    ACKS,
    COMMANDS,
    CommandMessage,
    ReportedState,
    command_record,
)
from facade.flows.commands.refused import Refusals
from facade.flows.commands.tracker import Tracker
from facade.kernel.bus.port import Record
from facade.kernel.outcome import USED, Outcome
from facade.sdk.controller.call import Call
from facade.sdk.controller.ownership import PROVEN
from facade.sdp.device_state import DeviceStates, StateMessage, state_record
from tests.support.controllers import COMPONENT, DEVICES, FIRST, ICD, SECOND, Life, Site, live


@pytest.fixture
def site() -> Site:
    site = Site()
    for device in DEVICES:
        site.say(device, State="ON", obsState="IDLE")
    site.clock.sleep(1.0)
    return site


def configure(call: Call) -> None:
    call.report(scanType="a", obsState="READY")


def executed(site: Site, *, late: bool) -> CommandMessage:
    message = site.send()
    site.late = late
    Life(site, handle=configure).work()
    return message


def test_what_is_not_confirmed_travels_with_the_outcome(site: Site) -> None:
    """With the times that the records of their own have."""
    message = executed(site, late=True)
    told = {one.attribute: one for one in map(_state, site.broker.read("state")) if one.command == message.id}
    assert set(told) == {"scanType", "obsState"}
    assert site.acks(message)[-1].states == {name: ReportedState(one.value, one.time) for name, one in told.items()}
    assert site.acks(message)[0].states == {}


def test_what_comes_before_the_effect_is_on_the_bus_before_it(site: Site) -> None:
    """Killed right after it, the next life must find that the command may have begun to take effect."""
    message = site.send()
    site.late = True
    seen = []

    def handle(call: Call) -> None:
        call.report(obsState="CONFIGURING")
        seen.append(site.reported("obsState")[-1])
        call.report(scanType="a", obsState="READY")
        seen.append(site.reported("obsState")[-1])

    Life(site, handle=handle).work()
    assert seen == ["CONFIGURING", "CONFIGURING"]
    assert site.reported("obsState")[-1] == "READY"
    assert set(site.acks(message)[-1].states) == {"scanType", "obsState"}


def test_the_outcome_is_first(site: Site) -> None:
    """It is what everybody waits for, and it carries the states."""
    executed(site, late=False)
    ends = [step for step in site.passed if step.startswith("after ") and not step.endswith("commit")]
    assert ends == ["after ACCEPTED", "after COMPLETED", "after state", "after state"]


@pytest.mark.parametrize("how", ["waits", "computes", "says how far it is"])
def test_a_handler_that_goes_on_does_not_hold_its_state_back(site: Site, how: str) -> None:
    message = site.send()
    life = Life(site)
    seen = []

    def handle(call: Call) -> None:
        configure(call)
        match how:
            case "waits":
                call.wait(1.0)
            case "computes":  # while the other thread goes on
                life.step()
            case _:
                call.progress(50)
        seen.append(site.reported("obsState")[-1])

    life.handle = handle
    life.work()
    assert (seen, site.acks(message)[-1].states) == (["READY"], {})


def test_a_handler_may_wait_for_it(site: Site) -> None:
    message = site.send()
    site.late = True
    seen = []

    def handle(call: Call) -> None:
        configure(call)
        call.confirm()
        seen.append(site.reported("obsState")[-1])

    Life(site, handle=handle).work()
    assert (seen, site.acks(message)[-1].states) == (["READY"], {})


def test_long_values_are_waited_for(site: Site) -> None:
    """An acknowledgement stays small enough for its topic: the state is there before the outcome is written."""
    message = site.send()
    site.late = True
    life = Life(site)
    life.handle = lambda call: call.report(resources="x" * 70_000, obsState="READY")
    seen = []
    site.when["before COMPLETED"] = lambda: seen.append(site.reported("obsState")[-1])
    life.work()
    assert (seen, site.acks(message)[-1].states) == (["READY"], {})


def test_a_repeated_command_repeats_the_outcome_without_its_states(site: Site) -> None:
    """They may be history by now."""
    message = executed(site, late=True)
    site.repeat(message)
    live(site)
    assert [bool(ack.states) for ack in site.outcomes(message)] == [True, False]


def test_who_was_killed_before_the_state_was_there_writes_it_at_the_next_start(site: Site) -> None:
    message = executed(site, late=True)
    for place, log in site.broker.logs.items():
        if place[0] == "state" and (of_it := [one.offset for one in log if _state(one).command == message.id]):
            site.broker.cut(*place, min(of_it))
    assert site.reported("obsState") == ["IDLE"]
    life = Life(site).start()
    assert life.loop._states.label(FIRST, "obsState") == "READY"  # what the next command is judged by
    assert (site.reported("scanType"), site.reported("obsState")) == (["a"], ["IDLE", "READY"])
    newest = _state(site.broker.read("state")[-1])
    assert (newest.command, newest.time) == (message.id, site.acks(message)[-1].states["obsState"].time)
    Life(site).start()
    assert site.reported("obsState") == ["IDLE", "READY"]


def test_a_state_that_was_reported_since_is_not_undone_at_the_next_start(site: Site) -> None:
    executed(site, late=True)
    site.clock.sleep(1.0)
    site.say(obsState="FAULT")
    life = Life(site).start()
    assert life.loop._states.label(FIRST, "obsState") == "FAULT"
    assert site.reported("obsState")[-1] == "FAULT"


@pytest.mark.parametrize(("gone", "proofs"), [("", 2), ("unheard", 2), ("heard", 1)])
def test_a_proof_that_is_old_by_the_time_of_the_acceptance_is_asked_for_again(
    site: Site, gone: str, proofs: int
) -> None:
    """The bus took long to accept; another member may have the partition by now, and have begun the command.

    Nothing is asked if the client has heard of that.
    """
    message = site.send(repeatable=False)
    life = Life(site).start()
    life.step()

    def stand_still() -> None:
        site.clock.sleep(PROVEN + 0.1)
        if gone:
            life.member.assign([])
            site.when["before early commit"] = life.step  # in the end it hears of it
        if gone == "heard":
            life.member.take(0, 0.0)

    site.late = True
    site.when["after ACCEPTED"] = stand_still
    site.passed.clear()
    life.loop.execute_next(FIRST)
    assert site.passed.count("before early commit") == proofs
    assert len(site.begun) == (0 if gone else 1)
    assert site.statuses(message) == (["ACCEPTED"] if gone else ["ACCEPTED", "COMPLETED"])


def test_what_a_stopped_handler_has_reported_is_on_the_bus(site: Site) -> None:
    """It goes on at the next start; its state must not wait for an outcome until then."""
    message = site.send()
    life = Life(site).start()

    def handle(call: Call) -> None:
        configure(call)
        life.loop.stop()
        life.loop.interrupt()
        call.check()

    life.handle = handle
    life.step()
    life.loop.execute_next(FIRST)
    life.loop.close()
    assert site.statuses(message) == ["ACCEPTED"]
    assert site.reported("obsState")[-1] == "READY"


def test_an_acceptance_that_failed_is_not_sent_again_behind_the_outcome(site: Site) -> None:
    """The bus confirmed nothing until it was too late to begin."""
    message = site.send(repeatable=False, within=5.0)
    life = Life(site).start()
    life.step()

    def refuse(record: Record) -> bool:
        site.clock.sleep(1.0)
        return site.now_us <= message.not_after + 1_000_000

    life.bus.refuse = refuse
    life.loop.execute_next(FIRST)
    assert site.begun == []
    assert site.statuses(message)[-1] == "REJECTED"


def test_a_state_is_newer_than_the_one_before_whatever_the_clock_says(site: Site) -> None:
    ahead = site.now_us + 20_000_000
    before = StateMessage(device=FIRST, attribute="obsState", value="IDLE", time=ahead, origin="earlier")
    site.broker.append(state_record(before))
    message = executed(site, late=True)
    assert site.outcomes(message)[0].states["obsState"].time > ahead


def test_the_proof_of_a_command_is_its_only_commit(site: Site) -> None:
    """The one before is committed with it: a commit of its own would have the command wait for two."""
    life = Life(site).start()
    for _ in range(3):
        site.send(repeatable=False)
        life.step()
        life.loop.execute_next(FIRST)
    assert len(site.begun) == 3
    assert len([step for step in site.passed if step.startswith("before ") and step.endswith("commit")]) == 3


def test_what_is_finished_is_committed_while_commands_come(site: Site) -> None:
    life = Life(site).start()
    committed = []
    for _ in range(4):
        site.send()
        site.clock.sleep(0.6)
        life.step()
        committed.append(site.committed(site.broker.read(COMMANDS)[-1].partition))
        life.loop.execute_next(FIRST)
    assert committed == [0, 1, 1, 3]


# What a device server makes of it.


class Server:
    """The command path's flows of a device server."""

    def __init__(self, site: Site, devices: Mapping[str, str] = DEVICES) -> None:
        self.states = DeviceStates(ICD, devices)
        self.tracker = Tracker(devices)
        refusals = Refusals(lambda record: None, origin="subarray", clock=site.clock)
        admission: Any = SimpleNamespace(fold=None, note_command=lambda command: None, note_ack=lambda ack: False)
        made = flows(self.tracker, self.states, refusals, admission, site.clock, holds=False)
        self.flows = {flow.topic: flow for flow in [self.states, *made]}

    def fold(self, record: Record) -> Outcome:
        return self.flows[record.topic].fold(record, count=True)

    @property
    def obs_state(self) -> str:
        return self.states.label(FIRST, "obsState")


def _state(record: Record) -> StateMessage:
    return msgspec.json.decode(record.value or b"", type=StateMessage)


@pytest.fixture
def server(site: Site) -> Server:
    server = Server(site)
    for record in site.broker.read("state"):
        server.fold(record)
    return server


def outcome(message: CommandMessage, value: str, time: int, attribute: str = "obsState") -> Record:
    ack = {
        "schema": "command-ack/1", "id": message.id, "device": message.device, "command": message.command,
        "status": "COMPLETED", "time": time, "origin": COMPONENT, "states": {attribute: {"value": value, "time": time}},
    }  # fmt: skip
    return Record(topic=ACKS, key=message.device.encode(), value=msgspec.json.encode(ack), timestamp_us=time)


def report(message: CommandMessage | None, value: str, time: int, appended: int = 0) -> Record:
    command = "" if message is None else message.id
    state = StateMessage(device=FIRST, attribute="obsState", value=value, time=time, origin=COMPONENT, command=command)
    return replace(state_record(state), timestamp_us=appended or time)


@pytest.mark.parametrize("outcome_first", [True, False])
def test_a_clock_that_was_set_back_hides_no_later_report(site: Site, server: Server, outcome_first: bool) -> None:
    """The two topics are read in any order at a start; what the bus took long after the outcome is newer."""
    message, now = site.send(), site.now_us
    server.fold(command_record(message))
    later = report(None, "FAULT", now - 10_000_000, appended=now + 5_000_000)
    records = [outcome(message, "READY", now), later]
    for record in records if outcome_first else reversed(records):
        assert server.fold(record) is USED
    assert server.obs_state == "FAULT"
    assert server.states.unrecorded(2**62, "") == []


def test_the_outcome_is_never_seen_without_its_state(site: Site, server: Server) -> None:
    message = site.send()
    server.fold(command_record(message))
    assert server.fold(outcome(message, "READY", site.now_us)) is USED
    assert server.tracker.find(message.id).final
    assert server.obs_state == "READY"
    assert server.states.get(FIRST, "obsState").command == message.id


def test_older_records_that_come_behind_it_undo_nothing(site: Site, server: Server) -> None:
    message, now = site.send(), site.now_us
    server.fold(command_record(message))
    server.fold(outcome(message, "READY", now))
    for value, time, shown in (
        ("CONFIGURING", now - 5, "READY"),
        ("READY", now, "READY"),
        # From its own record on the order of the log holds again, also after a clock was set back.
        ("SCANNING", now - 2, "SCANNING"),
    ):
        assert server.fold(report(message, value, time)) is USED
        assert server.obs_state == shown


def test_an_outcome_that_comes_late_undoes_nothing(site: Site, server: Server) -> None:
    message, now = site.send(), site.now_us
    server.fold(command_record(message))
    server.fold(report(None, "FAULT", now + 5))
    server.fold(outcome(message, "READY", now))
    assert server.tracker.find(message.id).final
    assert server.obs_state == "FAULT"


def test_what_is_set_aside_has_no_effect(site: Site, server: Server) -> None:
    """An outcome that names another device than its command."""
    message = site.send(device=SECOND)
    server.fold(command_record(message))
    wrong = outcome(msgspec.structs.replace(message, device=FIRST), "READY", site.now_us)
    assert str(server.fold(wrong)).startswith("device: $.device: ")
    assert server.obs_state == "IDLE"


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("obsState", "REDY", "states: $.states.obsState.value: expected one of"),
        ("obsSate", "READY", "states: $.states: mid-sdp/subarray/01: "),
    ],
)
def test_a_state_that_the_icd_forbids_sets_its_outcome_aside(
    site: Site, server: Server, attribute: str, value: str, reason: str
) -> None:
    message = site.send()
    server.fold(command_record(message))
    assert str(server.fold(outcome(message, value, site.now_us, attribute))).startswith(reason)
    assert not server.tracker.find(message.id).final
    assert server.obs_state == "IDLE"


def test_what_was_told_is_given_once_to_who_shows_it(server: Server) -> None:
    def tell(attribute: str, value: str, time: int) -> None:
        server.states.set(StateMessage(device=FIRST, attribute=attribute, value=value, time=time, origin=COMPONENT))

    def given() -> list[tuple[str, str, object]]:
        return [(device, name, reading.value) for device, name, reading in server.states.readings(1.0)]

    assert (FIRST, "scanID", 0) in given()
    assert given() == []
    before = {device: server.states.version(device) for device in (FIRST, SECOND)}
    tell("scanType", "science", 1)
    tell("scanType", "calibration", 2)
    for device, name, reading in server.states.readings(1.0):
        assert (device, name, reading.value) == (FIRST, "scanType", "calibration")
        tell("scanID", "7", 3)
    assert given() == [(FIRST, "scanID", 7)]
    assert server.states.version(FIRST) > before[FIRST]
    assert server.states.version(SECOND) == before[SECOND]


class TestTwoMembers:
    """Controllers of one group: a state under way at one of them is not lost, and an older one does not stay."""

    def test_who_starts_does_not_write_what_another_one_is_about_to_write(self, site: Site) -> None:
        message = site.send()
        site.broker.append(command_record(message))
        site.broker.append(replace(outcome(message, "READY", site.now_us)))
        other = Life(site, component="other").start()
        assert site.reported("obsState") == ["IDLE"]
        site.broker.append(report(message, "READY", site.now_us))
        site.broker.append(report(None, "FAULT", site.now_us + 1))
        site.clock.sleep(11.0)
        other.step()
        assert site.reported("obsState") == ["IDLE", "READY", "FAULT"]

    def test_who_starts_writes_what_nobody_else_has_written_for_long(self, site: Site) -> None:
        message = site.send()
        site.broker.append(outcome(message, "READY", site.now_us))
        other = Life(site, component="other").start()
        site.clock.sleep(11.0)
        other.step()
        assert site.reported("obsState") == ["IDLE", "READY"]

    def test_an_older_state_behind_a_newer_one_is_written_over_by_who_has_told_the_newer_one(self, site: Site) -> None:
        """The topic is compacted: the older one would be all that is left."""
        life = Life(site)
        life.handle = lambda call: call.report(obsState="READY")
        site.send()
        old = report(None, "IDLE", site.now_us - 1)
        site.clock.sleep(1.0)
        life.work()
        life.step()
        site.broker.append(replace(old, value=(old.value or b"").replace(COMPONENT.encode(), b"former")))
        for _ in range(3):
            life.step()
            assert life.loop._states.label(FIRST, "obsState") == "READY"
        assert site.reported("obsState") == ["IDLE", "READY", "IDLE", "READY"]
