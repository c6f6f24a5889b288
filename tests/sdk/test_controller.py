"""The duties of a controller, at every step at which it can be killed, on a bus in history."""

import json
import logging
import math
import threading
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import msgspec
import pytest

from facade.flows.commands.messages import ACKS, COMMANDS
from facade.kernel.bus.port import Fenced, Record
from facade.kernel.clock import ManualClock
from facade.kernel.errors import ConfigError
from facade.kernel.runtime.heartbeats import HeartbeatMessage, heartbeat_record
from facade.sdk.controller import process
from facade.sdk.controller.api import Controller, Rejected
from facade.sdk.controller.call import Call
from facade.sdk.controller.command_loop import LONGEST_QUEUE
from facade.sdk.controller.execution_state import NotFollowed
from facade.sdk.controller.process import Threads, await_no_duplicate
from tests.support.controllers import COMPONENT, DEVICES, FIRST, ICD, SECOND, Life, Site, live

HANDLING = "facade.sdk.controller.command_loop"
"""The logger of what handlers do."""


@pytest.fixture
def site() -> Site:
    return idle_site()


def idle_site() -> Site:
    site = Site()
    for device in DEVICES:
        site.say(device, State="ON", obsState="IDLE")
    return site


KILLED = [
    # step, repeatable: how often it begins, how often it takes effect, and what the outcome is in the end
    ("before ACCEPTED", True, 1, 1, "COMPLETED"),
    ("before ACCEPTED", False, 1, 1, "COMPLETED"),
    ("after ACCEPTED", True, 1, 1, "COMPLETED"),
    ("after ACCEPTED", False, 0, 0, "FAILED"),
    ("before early commit", False, 0, 0, "FAILED"),
    ("after early commit", False, 0, 0, "FAILED"),
    ("handler", True, 1, 1, "COMPLETED"),
    ("handler", False, 0, 0, "FAILED"),
    ("effect", True, 2, 2, "COMPLETED"),
    ("effect", False, 1, 1, "FAILED"),
    ("before COMPLETED", True, 2, 2, "COMPLETED"),
    ("before COMPLETED", False, 1, 1, "FAILED"),
    ("after COMPLETED", True, 1, 1, "COMPLETED"),
    ("after COMPLETED", False, 1, 1, "COMPLETED"),
    ("before late commit", True, 1, 1, "COMPLETED"),
    ("after late commit", True, 1, 1, "COMPLETED"),
]


@pytest.mark.parametrize(("step", "repeatable", "begins", "effects", "outcome"), KILLED)
def test_a_kill_at_any_step(site: Site, step: str, repeatable: bool, begins: int, effects: int, outcome: str) -> None:
    """A command that is not repeatable takes effect once at most, a repeatable one at least; each has its outcome."""
    message = site.send(_name(repeatable), repeatable=repeatable)
    site.crash_at = step
    live(site)
    assert site.crash_at == "", f"never came to the step; passed {site.passed}"
    assert not [outcome for outcome in site.outcomes(message) if outcome.status == "FAILED"]
    live(site)
    assert (len(site.begun), site.effects[message.id]) == (begins, effects)
    assert {ack.status for ack in site.outcomes(message)} == {outcome}
    if outcome == "FAILED":
        assert "interrupted" in site.outcomes(message)[0].text
    # A third life finds nothing to do.
    before = len(site.acks())
    live(site)
    assert (len(site.acks()), len(site.begun)) == (before, begins)


def _name(repeatable: bool) -> str:
    """A command that is as repeatable in the ICD as its record says."""
    name = "ReleaseAllResources" if repeatable else "Configure"
    assert next(c for c in ICD.classes["SdpSubarray"].commands if c.name == name).repeatable is repeatable
    return name


@pytest.mark.parametrize("repeatable", [True, False])
def test_the_plain_case(site: Site, repeatable: bool) -> None:
    """Accepted, executed, completed; the trace goes into every acknowledgement, other headers do not."""
    message = site.send(_name(repeatable), repeatable=repeatable)
    life = Life(site, handle=lambda call: call.report(obsState="READY") or {"done": 1}).work()
    assert site.statuses(message) == ["ACCEPTED", "COMPLETED"]
    assert site.acks(message)[-1].result == {"done": 1}
    assert {ack.origin for ack in site.acks(message)} == {COMPONENT}
    records = [
        *site.broker.read("command-acks"),
        *[r for r in site.broker.read("state") if message.id.encode() in r.value],
    ]
    assert [record.headers for record in records] == [(("traceparent", b"00-01"),)] * 3
    assert site.reported("obsState") == ["IDLE", "READY"]
    account = life.loop.account
    assert (account.consumed, account.used, account.in_flight, account.balance) == (1, 1, 0, 0)


def test_a_reset_of_the_group_has_nothing_executed_twice_or_late(site: Site) -> None:
    """Decision 0062: back to the beginning, and on to the end of the log, behind a command that is waiting."""
    done = [site.send(repeatable=repeatable) for repeatable in (True, False)]
    Life(site).work()
    expired = site.send(repeatable=False)
    site.clock.sleep(6.0)
    live(site)
    partition = site.broker.read(COMMANDS)[0].partition
    group = COMPONENT, COMMANDS, partition
    site.broker.committed[group] = 0
    live(site)
    assert [site.outcome(one) for one in (*done, expired)] == ["COMPLETED", "COMPLETED", "REJECTED"]
    assert [id for id, _ in site.begun] == [one.id for one in done]
    skipped = site.send(repeatable=False)
    site.broker.committed[group] = len(site.broker.logs[COMMANDS, partition])
    live(site)
    after = site.send(repeatable=False)
    live(site)
    assert (site.statuses(skipped), site.outcome(after)) == ([], "COMPLETED"), (
        "its device ends the first at its deadline"
    )


@pytest.mark.parametrize("withdrawer", ["", "ann"])
def test_a_controller_goes_by_no_withdrawal_among_the_acknowledgements(site: Site, withdrawer: str) -> None:
    """Whoever may write there, another controller, would act in a person's name."""
    message = site.send(repeatable=False)
    site.acknowledge(message, "ABORTED", withdrawer=withdrawer)
    Life(site).work()
    assert len(site.begun) == bool(withdrawer)


@pytest.mark.parametrize(
    ("outcome", "answers"),
    [("TIMED_OUT", 0), ("UNDELIVERED", 0), ("COMPLETED", 1), ("REJECTED", 1)],
)
def test_what_has_an_outcome_is_not_begun(site: Site, outcome: str, answers: int) -> None:
    """The facade may have given up, or another controller may have been quicker."""
    message = site.send()
    site.acknowledge(message, outcome)
    live(site)
    assert not site.begun
    assert site.statuses(message) == [outcome] * (1 + answers)


def test_an_expired_command_is_refused_though_another_overtakes_it(site: Site) -> None:
    """It was never begun, which ABORTED would leave open; and one that has expired itself overtakes nothing."""
    running, expired = site.send("ReleaseAllResources", within=60.0), site.send("Abort", within=2.0)
    site.clock.sleep(3.0)
    valid = site.send("Off")
    live(site)
    assert [site.outcome(message) for message in (running, expired, valid)] == ["ABORTED", "REJECTED", "COMPLETED"]
    assert [id for id, _ in site.begun] == [valid.id]


def test_what_overtakes_off_is_refused_if_off_has_taken_effect_nevertheless(site: Site) -> None:
    """In State OFF with obsState ABORTED no command would be allowed."""
    off = site.send("Off")
    life = Life(site)
    aborts = []

    def switch_off(call: Call) -> None:
        if call.command == "Off":
            aborts.append(site.send("Abort"))
            life.step()
        call.report(**({"obsState": "EMPTY", "State": "OFF"} if call.command == "Off" else {"obsState": "ABORTED"}))

    life.handle = switch_off
    life.work()
    assert [site.outcome(message) for message in (off, *aborts)] == ["COMPLETED", "REJECTED"]
    assert "not allowed when State is OFF" in site.acks(aborts[0])[-1].text
    assert site.reported("obsState")[-1] == "EMPTY"


@pytest.mark.parametrize(
    ("raised", "status", "text"),
    [
        (Rejected("no such scan type"), "REJECTED", "no such scan type"),
        (ValueError("broken"), "FAILED", "ValueError: broken"),
        (KeyError("beam"), "FAILED", "KeyError: 'beam'"),
        (OSError("no file caf\udce9"), "FAILED", r"OSError: no file caf\udce9"),
        (Rejected("no mode \ud83d"), "REJECTED", r"no mode \ud83d"),
    ],
)
def test_what_a_handler_raises_is_the_outcome(
    site: Site, caplog: pytest.LogCaptureFixture, raised: Exception, status: str, text: str
) -> None:
    """`Rejected` refuses, everything else is a failure that says what happened, be it a name that is no UTF-8."""
    caplog.set_level(logging.CRITICAL + 1, HANDLING)  # pytest-xdist cannot pass such a name on
    message = site.send()

    def handle(call: Call) -> None:
        raise raised

    Life(site, handle=handle).work()
    ack = site.acks(message)[-1]
    assert (ack.status, ack.text) == (status, text)


def test_who_has_reported_progress_cannot_refuse_any_more(site: Site) -> None:
    """The table of outcomes has no way from IN_PROGRESS to REJECTED."""
    message = site.send()

    def handle(call: Call) -> None:
        call.progress(50, 3.0)
        raise Rejected("after all")

    Life(site, handle=handle).work()
    assert site.statuses(message) == ["ACCEPTED", "IN_PROGRESS", "FAILED"]
    progress = site.acks(message)[1]
    assert (progress.progress, progress.remaining) == (50, 3.0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((math.nan,), "progress: expected a number from 0 to 100, got nan"),
        ((50, math.nan), "remaining: expected a number of seconds, or None, got nan"),
        ((math.inf, math.inf), ""),
    ],
)
def test_progress_that_is_no_number_is_refused_and_what_is_too_large_is_cut(
    site: Site, given: tuple[float, ...], text: str
) -> None:
    message = site.send()
    Life(site, handle=lambda call: call.progress(*given)).work()
    before_last, last = site.acks(message)[-2:]
    assert last.text == (f"ValueError: {text}" if text else "")
    assert before_last.progress == (None if text else 100)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"obsState": "REDY"}, "expected one of"),
        ({"nonsense": "1"}, "no reported attribute 'nonsense'"),
        ({"scanID": "x"}, "expected an integer"),
        ({"receiveAddresses": {"a": math.inf}}, "expected a text, or what JSON can hold"),
        ({"receiveAddresses": {1, 2}}, "expected a text, or what JSON can hold"),
        ({"receiveAddresses": "x" * 300_000}, "262144"),
        ({"scanType": "caf\udce9"}, "expected text of whole characters"),
    ],
)
def test_a_report_that_the_icd_forbids_fails(
    site: Site, caplog: pytest.LogCaptureFixture, values: dict[str, object], text: str
) -> None:
    """The handler hears of it, and the bus does not."""
    caplog.set_level(logging.CRITICAL + 1, HANDLING)
    message = site.send()
    life = Life(site)
    seen = []

    def handle(call: Call) -> None:
        seen.append([call.reported(name) for name in values])
        try:
            call.report(**values)
        finally:
            seen.append([call.reported(name) for name in values])

    life.handle = handle
    before = [site.reported(name) for name in values]
    life.work()
    assert site.outcome(message) == "FAILED"
    assert text in site.acks(message)[-1].text
    assert [[one for one in site.reported(name) if one != "FAULT"] for name in values] == before
    assert seen[0] == seen[1]


FAILURES = {
    "raises": lambda call: 1 / 0,
    "raises an error of ours": lambda call: throw(NotFollowed("Prepare of mid-sdp/processing/01 is FAILED")),
    "reports too long a value": lambda call: call.report(receiveAddresses="x" * 300_000, obsState="READY"),
    "publishes too large a record": lambda call: call.publish(Record(topic="state", key=b"k", value=bytes(3_000_000))),
    "refuses": lambda call: throw(Rejected("no beam")),
}


def throw(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("on_the_way", [True, False], ids=["CONFIGURING was reported", "nothing was reported"])
def test_a_handler_that_fails_leaves_fault_and_no_state_on_the_way(site: Site, failure: str, on_the_way: bool) -> None:
    message = site.send()

    def handle(call: Call) -> None:
        if on_the_way:
            call.report(obsState="CONFIGURING")
        FAILURES[failure](call)

    Life(site, handle=handle).work()
    (ack,) = site.outcomes(message)
    assert ack.status == ("REJECTED" if failure == "refuses" else "FAILED")
    if failure == "refuses" and not on_the_way:
        assert site.reported("obsState") == ["IDLE"]
    else:
        assert site.reported("obsState")[-1] == "FAULT"
        assert json.loads(site.reported("errorMessages")[-1]) == [ack.text]


@pytest.mark.parametrize("step", ["effect", "before FAILED"])
def test_a_crash_on_the_way_leaves_fault(site: Site, step: str) -> None:
    message = site.send(repeatable=False)
    site.when["handler"] = lambda: site.say(obsState="CONFIGURING")
    site.crash_at = "effect"
    live(site)
    site.crash_at = step if step != "effect" else ""
    live(site)
    live(site)
    assert site.outcome(message) == "FAILED"
    assert site.reported("obsState")[-1] == "FAULT"
    assert "interrupted" in site.reported("errorMessages")[-1]
    fault = msgspec.json.decode(site.broker.read("state")[-1].value)
    assert fault["command"] == message.id, "a newer command has not taken effect by it"


def test_reports_are_text_on_the_bus_and_values_for_the_handler(site: Site) -> None:
    """Numbers, lists, objects and nothing at all travel as JSON."""
    site.send()
    seen = {}

    def handle(call: Call) -> None:
        call.report(
            scanID=7, scanType=None, scanTypes=["a", "b"], resources={"receptors": ["SKA001"]}, obsState="READY"
        )
        seen.update({name: call.reported(name) for name in ("scanID", "scanTypes", "obsState", "ebID")})

    Life(site, handle=handle).work()
    assert [site.reported(name)[-1] for name in ("scanID", "scanType", "scanTypes", "resources", "obsState")] == [
        "7", "null", '["a", "b"]', '{"receptors": ["SKA001"]}', "READY"
    ]  # fmt: skip
    assert seen == {"scanID": 7, "scanTypes": ("a", "b"), "obsState": "READY", "ebID": "null"}


def test_the_last_value_of_a_report_is_sent_when_the_others_are_there(site: Site) -> None:
    site.send()
    life = Life(site)
    until = site.clock.now() + 60.0
    life.bus.refuse = lambda record: b"scanID" in record.value and site.clock.now() < until
    life.handle = lambda call: call.report(scanType="a", scanID=7, obsState="READY")
    life.work()
    states = [msgspec.json.decode(record.value) for record in site.broker.read("state")]
    names = [state["attribute"] for state in states if state["origin"] == COMPONENT]
    assert names[-3:] == ["scanType", "scanID", "obsState"]
    assert (names.count("scanID"), names.count("obsState")) == (1, 1)


@pytest.mark.parametrize(
    "result",
    [object(), ["x" * 524_288], math.nan, math.inf],
    ids=["no JSON", "longer than a record may be", "NaN", "infinite"],
)
def test_a_result_that_cannot_be_written_is_no_failure(site: Site, result: object) -> None:
    message = site.send()
    Life(site, handle=lambda call: result).work()
    ack = site.acks(message)[-1]
    assert (ack.status, ack.result) == ("COMPLETED", None)
    assert "cannot be written as JSON" in ack.text


@pytest.mark.parametrize(
    ("states", "name", "allowed"),
    [
        ({"State": "OFF", "obsState": "EMPTY"}, "Configure", False),
        ({"State": "OFF", "obsState": "EMPTY"}, "On", True),
        ({"State": "ON", "obsState": "EMPTY"}, "Configure", False),
        ({"State": "ON", "obsState": "READY"}, "Configure", True),
        ({"State": "ON", "obsState": "EMPTY"}, "Abort", False),
        ({"State": "ON", "obsState": "CONFIGURING"}, "Abort", True),
    ],
)
def test_a_command_in_the_wrong_state_is_refused(site: Site, states: dict[str, str], name: str, allowed: bool) -> None:
    site.say(**states)
    message = site.send(name)
    live(site)
    assert site.outcome(message) == ("COMPLETED" if allowed else "REJECTED")
    assert allowed or "not allowed when" in site.acks(message)[-1].text


def test_the_icd_is_asked_when_a_controller_is_made() -> None:
    """A handler for a command that does not exist, twice the same one, or an unknown class: said at the start."""
    controller = Controller(COMPONENT, "SdpSubarray")
    controller.command("Configure", "Dance")(lambda call: None)
    with pytest.raises(ConfigError, match="Dance: expected commands of SdpSubarray: Abort"):
        controller.commands(ICD)
    with pytest.raises(ConfigError, match="Configure has two handlers"):
        controller.command("Configure")(lambda call: None)
    with pytest.raises(ConfigError, match=r"expected device classes or executors from .* got SdpNothing"):
        Controller(COMPONENT, "SdpNothing").commands(ICD)


def test_an_abort_cancels_what_runs_and_ends_what_waits(site: Site) -> None:
    """Then it is executed itself; other devices notice nothing."""
    running, waiting, other = site.send(), site.send("Scan"), site.send(device=SECOND)
    life = Life(site)
    sent = []

    def abort() -> None:
        sent.append(site.send("Abort"))
        life.step()

    life.once(abort)
    life.work()
    (aborted,) = sent
    assert [site.outcome(message) for message in (running, waiting, aborted, other)] == [
        "ABORTED", "ABORTED", "COMPLETED", "COMPLETED"
    ]  # fmt: skip
    assert not site.effects[running.id]
    assert f"ended by Abort {aborted.id}" in site.acks(waiting)[-1].text
    assert waiting.id not in dict(site.begun)
    order = [ack.id for ack in site.acks() if ack.device == FIRST and ack.status in ("ABORTED", "COMPLETED")]
    assert order[-1] == aborted.id


@pytest.mark.parametrize("accepted", [False, True], ids=["waits", "is about to begin"])
def test_an_abort_ends_what_has_not_begun_in_the_state_that_tm_was_shown(site: Site, accepted: bool) -> None:
    site.say(obsState="EMPTY")
    assigned = site.send("AssignResources", repeatable=False)
    life = Life(site).start()
    aborts = []

    def abort() -> None:
        aborts.append(site.send("Abort"))
        for _ in range(2):
            life.step()

    if accepted:
        site.when["after ACCEPTED"] = abort
    else:
        abort()
    life.handle = lambda call: call.report(obsState="ABORTED")
    life.work()
    assert [site.outcome(message) for message in (assigned, *aborts)] == ["ABORTED", "COMPLETED"]
    assert assigned.id not in dict(site.begun)
    assert site.reported("obsState")[-1] == "ABORTED"


@pytest.mark.parametrize("why", ["expired", "ended before"])
def test_an_abort_that_is_void_cancels_nothing(site: Site, why: str) -> None:
    """A late or repeated record of an Abort must not hit what came after it."""
    abort = site.command("Abort", within=-1.0 if why == "expired" else 5.0)
    if why == "ended before":
        site.acknowledge(abort, "COMPLETED")
    message = site.send()
    life = Life(site)

    def send() -> None:
        site.repeat(abort)
        life.step()

    life.once(send)
    life.work()
    assert site.outcome(message) == "COMPLETED"


def test_a_handler_that_has_finished_anyway_has_completed(site: Site) -> None:
    message = site.send()
    life = Life(site)

    def handle(call: Call) -> None:
        site.send("Abort")
        life.step()
        assert call.cancelled

    life.handle = handle
    life.start().step()
    life.loop.execute_next(FIRST)
    assert site.outcome(message) == "COMPLETED"


def test_a_full_queue_refuses(site: Site) -> None:
    """But an Abort is taken, and empties it."""
    messages = [site.send("Restart") for _ in range(LONGEST_QUEUE + 2)]
    life = Life(site).start()
    life.step()
    life.step()
    assert [site.outcome(message) for message in messages] == [""] * LONGEST_QUEUE + ["REJECTED"] * 2
    abort = site.send("Abort")
    life.work()
    assert {site.outcome(message) for message in messages[:LONGEST_QUEUE]} == {"ABORTED"}
    assert site.outcome(abort) == "COMPLETED"


@pytest.mark.parametrize("name", ["Abort", "Configure"])
def test_the_device_of_a_command_that_timed_out_meanwhile_can_be_put_right(site: Site, name: str) -> None:
    site.say(State="ON", obsState="READY")
    message = site.send(name, repeatable=name == "Abort")
    site.crash_at = "handler"
    live(site)
    site.acknowledge(message, "TIMED_OUT")
    seen = []
    for _ in range(3):
        life = Life(site)
        life.controller.interrupted(lambda device, command: seen.append((device.device, command)))
        life.work()
    assert seen == [(FIRST, name)]
    assert site.outcome(message) == "TIMED_OUT"
    assert site.statuses(message) == ["ACCEPTED", "TIMED_OUT", "FAILED"]
    assert site.effects[message.id] == 0


def test_the_device_of_a_command_that_is_too_late_to_be_repeated_can_be_put_right(site: Site) -> None:
    message = site.send(repeatable=True, within=5.0)
    site.crash_at = "handler"
    live(site)
    site.clock.sleep(6.0)
    seen = []
    for _ in range(2):
        life = Life(site)
        life.controller.interrupted(lambda device, command: seen.append((device.device, command)))
        life.work()
    assert seen == [(FIRST, "Configure")]
    assert site.statuses(message)[:2] == ["ACCEPTED", "FAILED"]
    assert site.effects[message.id] == 0


class TestGroup:
    """Two members, by turns with and without the partitions."""

    def test_who_stood_still_and_has_its_partition_goes_on(self, site: Site) -> None:
        message = site.send("ReleaseAllResources")
        life = Life(site)
        life.meanwhile = lambda _: site.clock.sleep(7.0)
        life.handle = lambda call: call.report(obsState="EMPTY")
        life.work()
        assert (site.outcome(message), len(site.begun)) == ("COMPLETED", 1)
        assert site.reported("obsState") == ["IDLE", "EMPTY"]

    def test_what_an_earlier_life_began_is_failed_once_the_group_knows_who_has_its_name(self, site: Site) -> None:
        """Started beside itself by mistake: until then the other one goes on, and may end it."""
        message = site.send(repeatable=False)
        site.acknowledge(message, "ACCEPTED", origin=COMPONENT)
        life = Life(site)
        life.member.assign([])
        for _ in range(4):
            life.step()
        assert (life.loop.ready, site.statuses(message)) == (True, ["ACCEPTED"])
        life.member.assign([0, 1, 2, 3])
        life.work()
        assert (site.outcome(message), site.begun) == ("FAILED", [])

    def test_what_runs_ends_where_it_runs(self, site: Site) -> None:
        """A partition that goes and comes back while a command runs: it is not begun a second time."""
        message = site.send("ReleaseAllResources")
        life = Life(site)

        def away() -> None:
            for partitions in ([], [0, 1, 2, 3]):
                life.member.assign(partitions)
                for _ in range(4):
                    life.step()
            assert site.committed(site.broker.read(COMMANDS)[0].partition) == 0

        life.once(away)
        life.work()
        assert (site.statuses(message), len(site.begun)) == (["ACCEPTED", "COMPLETED"], 1)
        assert life.loop.account.balance == 0
        live(site)
        assert len(site.begun) == 1


def test_who_has_lost_its_name_cancels_what_runs_at_once() -> None:
    told, loop, stop = [], MagicMock(), threading.Event()

    def step(timeout: float) -> None:
        told.append("step")
        raise Fenced("another process has joined the group under this name")

    loop.step, loop.await_command = step, lambda device: False
    loop.interrupt = lambda: told.append("interrupt")
    loop.stop = lambda: told.append("stop")  # what runs may then go on for a while
    with pytest.raises(Fenced):
        Threads(loop, [FIRST], MagicMock(), stop, clock=ManualClock()).run()
    assert told[:3] == ["step", "interrupt", "stop"]


@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("name", ["Configure", "NoSuchCommand"])
def test_a_stop_ends_the_thread_that_writes_to_a_bus_that_confirms_nothing(
    site: Site, name: str, comes_back: bool
) -> None:
    """What it writes, also at a start after a crash, is left to the next start: an outcome never without its state."""
    message = site.send(name, repeatable=False)
    if name == "Configure":
        site.acknowledge(message, "ACCEPTED", COMPONENT)
        site.say(obsState="CONFIGURING")
    life, stop, refused = Life(site), threading.Event(), []

    def refuse(record: Record) -> bool:
        refused.append(record)
        assert len(refused) < 100, "it goes on without end"
        if len(refused) == 10:
            stop.set()
        return not (comes_back and stop.is_set() and record.topic == ACKS)

    life.bus.refuse = refuse
    life._stepping = True  # this thread reads, and does not go on while it pauses
    Threads(life.loop, [], MagicMock(), stop, clock=life.loop._clock).run()
    if name == "Configure":
        assert (site.outcome(message), site.reported("obsState")[-1]) == ("", "CONFIGURING")
    live(site)
    expected = ("FAILED", "FAULT") if name == "Configure" else ("REJECTED", "IDLE")
    assert (site.outcome(message), site.reported("obsState")[-1]) == expected


def test_a_stop_lets_the_threads_of_devices_insist(site: Site) -> None:
    """What a handler has done gets its outcome if the bus confirms it before the process must end."""
    message, refused = site.send(), []
    life = Life(site).start()
    life.loop.leave_when(lambda: True)

    def refuse(record: Record) -> bool:
        refused.append(record)
        return len(refused) < 10

    life.step()
    life.bus.refuse = refuse
    worker = threading.Thread(target=life.loop.execute_next, args=(FIRST,))
    worker.start()
    worker.join()
    assert site.outcome(message) == "COMPLETED"


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0])
@pytest.mark.parametrize(("others_beat", "it_lives", "waits"), [(True, False, 3), (False, False, 3), (True, True, 1)])
def test_another_controller_of_the_devices_is_found_whatever_the_clock_of_the_host_says(
    monkeypatch: pytest.MonkeyPatch, ahead: float, others_beat: bool, it_lives: bool, waits: int
) -> None:
    """Its first heartbeat may be the last one of a killed one; only a second one proves that it is alive."""
    clock = ManualClock()
    began, records = clock.monotonic(), []

    def newest_records(*_: object) -> list[Record]:
        for name, beats in {"rival": it_lives or not records, "alerts/0": others_beat}.items():
            if beats:
                role = "controller" if name == "rival" else "server"
                beat = HeartbeatMessage(
                    component=name, incarnation="1", devices=[FIRST], time=1, interval=1.0, role=role
                )
                records.append(replace(heartbeat_record(beat), timestamp_us=clock.now_us() + round(ahead * 1e6)))
        return records

    monkeypatch.setattr(process, "newest_records", newest_records)
    controller, connection = Controller(COMPONENT, "SdpSubarray"), SimpleNamespace(clock=clock)
    if it_lives:
        with pytest.raises(Fenced, match="got rival"):
            await_no_duplicate(controller, DEVICES, connection, stopped=lambda: False)
    else:
        assert await_no_duplicate(controller, DEVICES, connection, stopped=lambda: clock.monotonic() > began + 60)
    assert int(clock.monotonic() - began) <= waits + 1
