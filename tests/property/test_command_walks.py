"""Random walks over the command table and the obsState table, with faults, against models written apart from them."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from facade.flows.commands.messages import AckMessage, CommandMessage
from facade.flows.commands.outcomes import ENDED, FINAL, TRANSITIONS, Tracked
from facade.flows.commands.tracker import Tracker
from facade.kernel.bus.port import Record
from facade.kernel.errors import CommandRefused, NotSent, OutcomeUnknown
from tests.support.commanding import ICD, SUBARRAY, Bench
from tests.support.examples import examples

COMMANDS = {command.name: command for command in ICD.classes["SdpSubarray"].commands}
ACKS = ["ACCEPTED", "IN_PROGRESS", "COMPLETED", "FAILED", "ABORTED", "REJECTED"]
ARGUMENTS = {
    "assignres": {"resources": {"receptors": ["SKA001"]}},
    "releaseres": {
        "interface": "https://schema.skao.int/ska-sdp-releaseres/0.4",
        "resources": {"receptors": ["SKA001"]},
    },
    "configure": {"interface": "https://schema.skao.int/ska-sdp-configure/0.4", "scan_type": "science"},
    "scan": {"interface": "https://schema.skao.int/ska-sdp-scan/0.4", "scan_id": 1},
}
SKA_MACHINE = {
    # The obsState machine of the SKA control model, with a fault from anywhere.
    "EMPTY": {"RESOURCING"},
    "RESOURCING": {"IDLE", "EMPTY", "ABORTING"},
    "IDLE": {"RESOURCING", "CONFIGURING", "ABORTING"},
    "CONFIGURING": {"READY", "IDLE", "ABORTING"},
    "READY": {"CONFIGURING", "SCANNING", "IDLE", "ABORTING"},
    "SCANNING": {"READY", "ABORTING"},
    "ABORTING": {"ABORTED"},
    "ABORTED": {"RESETTING", "RESTARTING"},
    "RESETTING": {"IDLE", "ABORTING"},
    "RESTARTING": {"EMPTY"},
    "FAULT": {"RESETTING", "RESTARTING"},
}
"""What may follow on each obsState; Off leads to EMPTY from everywhere."""

walk = settings(
    deadline=None, max_examples=examples(60), stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)


def test_the_icds_commands_are_edges_of_the_control_models_machine():
    for command in COMMANDS.values():
        if command.reports != "obsState":
            continue
        for before in command.obs_state:
            steps = [command.transitional] if command.transitional else command.targets
            assert set(steps) <= SKA_MACHINE[before], f"{command.name} from {before}"
        if command.transitional:
            assert set(command.targets) <= SKA_MACHINE[command.transitional], command.name


class Walk(RuleBasedStateMachine):
    """An obedient controller, one client, and the server killed at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.server = self.bench.server()
        self.obs_state, self.on = "EMPTY", False
        self.open: tuple[str, str] | None = None
        """Id and name of the command that the controller has not carried out."""
        self.times_out_at = 0.0

    def legal(self, name):
        command = COMMANDS[name]
        state = "ON" if self.on else "OFF"
        legal = state in command.state and (not command.obs_state or self.shown() in command.obs_state)
        return legal and (self.open is None or command.overtakes)

    @rule(name=st.sampled_from(sorted(COMMANDS)))
    def give(self, name):
        self.try_to_give(name)

    @rule(data=st.data())
    def give_what_is_allowed(self, data):
        allowed = [name for name in COMMANDS if self.legal(name) and name != "Off"]
        if allowed:
            self.try_to_give(data.draw(st.sampled_from(allowed)))

    def try_to_give(self, name):
        command, legal = COMMANDS[name], self.legal(name)
        if not legal:
            with pytest.raises(CommandRefused):
                self.server.give(name, ARGUMENTS.get(command.argument))
            return
        id = self.server.give(name, ARGUMENTS.get(command.argument))
        if self.open is not None:
            self.bench.ack(self.open[0], "ABORTED")
        self.open = (id, name)
        self.times_out_at = self.bench.clock.now() + command.deadline
        self.server.cycle()

    @precondition(lambda self: self.open is not None)
    @rule(data=st.data(), says_why=st.booleans(), acks=st.booleans())
    def carry_out(self, data, says_why, acks):
        id, name = self.open
        command = COMMANDS[name]
        target = data.draw(st.sampled_from(command.targets))
        if name == "Off":
            self.on, self.obs_state = False, "EMPTY"
            self.bench.report(State="OFF", obsState="EMPTY", command=id if says_why else "")
        elif command.reports == "State":
            self.on = target == "ON"
            self.bench.report(State=target, command=id if says_why else "")
        else:
            self.obs_state = target
            self.bench.report(obsState=target, command=id if says_why else "")
        if acks:  # or it is lost
            self.bench.ack(id, "COMPLETED")
        self.open = None
        self.server.cycle()

    @precondition(lambda self: self.open is not None)
    @rule(outcome=st.sampled_from(["FAILED", "REJECTED"]))
    def fail(self, outcome):
        self.bench.ack(self.open[0], outcome)
        self.open = None
        self.server.cycle()

    @precondition(lambda self: self.open is None and self.obs_state != "EMPTY" and self.on)
    @rule()
    def fault(self):
        self.obs_state = "FAULT"
        self.bench.report(obsState="FAULT")
        self.server.cycle()

    @precondition(lambda self: self.open is None or self.bench.clock.now() < self.times_out_at - 3.5)
    @rule()
    def kill_the_server(self):
        self.server = self.bench.server(ready=False)
        self.bench.clock.sleep(3.1)
        self.server.cycle()

    @precondition(lambda self: self.open is None)
    @rule(seconds=st.floats(0.1, 100.0))
    def wait(self, seconds):
        self.bench.clock.sleep(seconds)
        self.server.cycle(6)

    @invariant()
    def what_is_shown_is_what_the_model_says(self):
        self.server.cycle()
        state, obs_state = self.server.gateway.show(SUBARRAY)
        assert state == ("ON" if self.on else "OFF")
        assert obs_state == self.server.shows("obsState") == self.shown()

    def shown(self):
        if self.open is not None:
            return COMMANDS[self.open[1]].transitional or self.obs_state
        return self.obs_state


class Faults(RuleBasedStateMachine):
    """Acknowledgements of any kind in any order, lost and repeated records, restarts: the log decides."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.server = self.bench.server()
        self.ids: list[str] = []
        self.lost: set[str] = set()

    @initialize()
    def switch_on(self):
        self.bench.report(State="ON", obsState="READY")
        self.server.cycle()

    @rule(trouble=st.sampled_from(["", "", "", "away", "deaf", "mute"]))
    def give(self, trouble):
        self.bench.report(obsState="READY")
        self.server.cycle()
        if trouble:
            setattr(self.server.bus, trouble, True)
        before = len(self.bench.commands())
        try:
            self.ids.append(self.server.give("Configure", ARGUMENTS["configure"]))
        except CommandRefused:
            assert len(self.bench.commands()) == before
        except (NotSent, OutcomeUnknown):
            found = self.bench.commands()[before:]
            assert len(found) == (1 if trouble == "mute" else 0)
            self.ids += [command.id for command in found]
        finally:
            if trouble:
                setattr(self.server.bus, trouble, False)

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), status=st.sampled_from(ACKS), remaining=st.none() | st.floats(0.0, 500.0))
    def ack(self, data, status, remaining):
        self.bench.ack(data.draw(st.sampled_from(self.ids)), status, remaining=remaining)

    @rule(status=st.sampled_from(ACKS))
    def ack_of_nothing(self, status):
        self.bench.ack("1_1_Nothing", status)

    @precondition(lambda self: self.ids)
    @rule()
    def repeat_the_record(self):
        self.bench.broker.append(self.bench.broker.read("commands")[0])

    @rule(seconds=st.floats(0.0, 30.0))
    def wait(self, seconds):
        self.bench.clock.sleep(seconds)

    @rule()
    def kill_the_server(self):
        self.server = self.bench.server(ready=False)
        self.bench.clock.sleep(3.1)

    @invariant()
    def each_command_has_the_first_outcome_of_the_log(self):
        self.server.cycle()
        for id in self.ids:
            outcome = self.first_outcome(id)
            tracked = self.server.tracker.find(id)
            assert tracked is not None, "nothing is lost"
            assert (tracked.status if tracked.final else None) == outcome
        finished = self.server.tracker.finished(SUBARRAY, 10_000)
        assert len({one.id for one in finished}) == len(finished)
        assert not {one.id for one in finished} & {one.id for one in self.server.tracker.pending(SUBARRAY)}

    def first_outcome(self, id):
        """Judge by the log alone: a refusal does not count once the controller has said that it is at work."""
        working = False
        for ack in self.bench.acks():
            if ack.id != id:
                continue
            if ack.status in FINAL and not (ack.status == "REJECTED" and working):
                return ack.status
            working = working or ack.status == "IN_PROGRESS"
        return None

    def teardown(self):
        """In the end, everything has an outcome, whatever was lost."""
        self.bench.clock.sleep(1000.0)
        self.server = self.bench.server(ready=False)
        for _ in range(20):  # who has just come waits before it judges
            self.bench.clock.sleep(0.5)
            self.server.cycle()
        assert self.server.tracker.pending(SUBARRAY) == []
        for id in self.ids:
            assert self.server.tracker.find(id).status in FINAL


STATE = vars(Tracked)["state"]


class Row:
    """Stands in for `Tracked.state`, and takes a change only if it is a row of the table."""

    def __get__(self, one: Tracked | None, owner: type | None = None) -> str:
        return self if one is None else STATE.__get__(one)

    def __set__(self, one: Tracked, state: str) -> None:
        before = getattr(one, "state", None)
        assert state in (("HELD", "NEW") if before is None else TRANSITIONS[before]), f"{before} to {state}"
        STATE.__set__(one, state)


class States(RuleBasedStateMachine):
    """All that may happen to the commands of a tracker, of a device server or a controller, in any order."""

    def __init__(self) -> None:
        super().__init__()
        Tracked.state = Row()
        self.time, self.offset = 1_800_000_000_000_000, 0
        self.commands: list[CommandMessage] = []

    def teardown(self) -> None:
        Tracked.state = STATE

    @initialize(with_commands=st.booleans(), keep=st.sampled_from([1, 100]))
    def start(self, with_commands, keep):
        self.tracker = Tracker([SUBARRAY], keep=keep, with_commands=with_commands)

    def known(self, data, *states):
        """Draw a command that the tracker knows, perhaps in one of some states; None: there is none."""
        found = [one for one in map(self.tracker.find, (one.id for one in self.commands)) if one is not None]
        found = [one for one in found if not states or one.state in states]
        return data.draw(st.sampled_from(found)) if found else None

    @precondition(lambda self: len(self.commands) < 3)  # so that much happens to each
    @rule(is_held=st.booleans())
    def give(self, is_held):
        self.time += 1000
        id = f"{self.time / 1e6:.6f}_{len(self.commands)}_Configure"
        one = CommandMessage(
            id=id, device=SUBARRAY, command="Configure", argument={}, transaction_id=id, issued=self.time,
            not_after=self.time + 5_000_000, deadline=self.time + 10_000_000, ceiling=self.time + 60_000_000,
            repeatable=False, origin="server",
        )  # fmt: skip
        self.commands.append(one)
        self.tracker.begin(one, "HELD" if is_held else "NEW")

    @precondition(lambda self: self.commands)
    @rule(data=st.data(), is_held=st.booleans())
    def read_a_record(self, data, is_held):
        self.offset += 1
        record = Record(topic="commands", key=None, value=b"", partition=0, offset=self.offset, timestamp_us=self.time)
        fold = self.tracker.fold_held if is_held else self.tracker.fold_command
        fold(data.draw(st.sampled_from(self.commands)), record)

    @precondition(lambda self: self.commands)
    @rule(data=st.data(), status=st.sampled_from([*ACKS, "TIMED_OUT", "UNDELIVERED"]), is_read=st.booleans())
    def acknowledge(self, data, status, is_read):
        one = data.draw(st.sampled_from(self.commands))
        self.time += 1
        ack = AckMessage(
            id=one.id, device=SUBARRAY, command=one.command, status=status, time=self.time, origin="controller"
        )
        if is_read:
            self.tracker.fold_ack(ack, self.time / 1e6)
        elif status in FINAL:
            self.tracker.note(ack)

    @precondition(lambda self: self.commands)
    @rule(data=st.data(), withdrawer=st.sampled_from(["", "ann"]))
    def read_that_it_was_not_approved(self, data, withdrawer):
        one = data.draw(st.sampled_from(self.commands))
        status = "ABORTED" if withdrawer else "UNDELIVERED"
        ack = AckMessage(
            id=one.id, device=SUBARRAY, command=one.command, status=status, time=self.time, origin="server",
            withdrawer=withdrawer,
        )  # fmt: skip
        self.tracker.fold_unapproved(ack)

    @rule(data=st.data(), is_sent=st.booleans())
    def the_bus_answers(self, data, is_sent):
        if (one := self.known(data, "NEW", "ACCEPTED", "COMPLETED")) is not None:
            self.tracker.change(one.id, "SENT" if is_sent else "GIVEN_UP", ended=self.time)

    @rule(data=st.data(), withdraws=st.booleans(), is_sent=st.booleans())
    def decide(self, data, withdraws, is_sent):
        one = self.known(data, "HELD", "CLOSED")
        if one is None:
            return
        message, appended_us = one.message, one.appended_us
        was_open = one.state == "HELD"
        is_taken = self.tracker.change(one.id, "CLOSED" if withdraws else "NEW", None if withdraws else message)
        assert is_taken == was_open
        if is_taken and not is_sent:
            self.tracker.change(one.id, "HELD", message, appended_us=appended_us)
            assert one.state == "HELD"

    @rule(seconds=st.sampled_from([0, 3, 7, 100]))
    def wait(self, seconds):
        self.time += seconds * 1_000_000
        for ack in self.tracker.due(self.time, self.time / 1e6, "server", lambda _: True):
            assert ack.status in TRANSITIONS[self.tracker.find(ack.id).state]

    @invariant()
    def each_command_is_in_one_place(self):
        if not hasattr(self, "tracker"):
            return
        pending, finished = self.tracker.pending(SUBARRAY), self.tracker.finished(SUBARRAY, 1000)
        assert not any(one.state in ENDED for one in pending)
        assert all(one.state in ENDED and one.ended for one in finished)
        assert len({one.id for one in pending + finished}) == len(pending) + len(finished)
        assert self.tracker.finished_total(SUBARRAY) >= len(finished)


TestWalk = pytest.mark.filterwarnings("default")(Walk.TestCase)
TestWalk.settings = walk
TestFaults = pytest.mark.filterwarnings("default")(Faults.TestCase)
TestFaults.settings = walk
TestStates = pytest.mark.filterwarnings("default")(States.TestCase)
TestStates.settings = settings(walk, max_examples=examples(400))
