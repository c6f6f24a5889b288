"""What the kit says of what it has seen: each verdict, good and bad, on data."""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace

import pytest

from facade.kernel.icd import model
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Sampling
from sdp_facade_clients.conformance import command_checks
from sdp_facade_clients.conformance.attributes import (
    judge_alarms,
    judge_events,
    judge_reported,
    judge_sampling,
    judge_value,
    newest_valid,
)
from sdp_facade_clients.conformance.checks import Mismatch, NotShown
from sdp_facade_clients.conformance.command_checks import (
    BusRecords,
    judge_acks,
    judge_bus,
    judge_effect,
    judge_forced,
    judge_name,
    judge_outcome,
    judge_overtaking,
    judge_record,
    judge_refusal,
    judge_reports,
    judge_taken,
)
from sdp_facade_clients.conformance.live_system import AttributeTrace, EventStream, TangoValue
from sdp_facade_clients.conformance.subarray_run import CommandAnswer, RefusedCall, SubarrayRun, TakenCall

ICD = load()
NOW = 1_800_000_000.0
COMMANDS = {command.name: command for command in ICD.classes["SdpSubarray"].commands}


def seen(value: object = 1.0, quality: str = "VALID", age: float = 0.0, **more: object) -> TangoValue:
    return TangoValue(value=value, quality=quality, time=NOW - age, at=NOW, **more)


def entry(device_class: str, name: str) -> model.Attribute:
    return next(one for one in ICD.classes[device_class].attributes if one.name == name)


def verdict(judge: Callable[[], str | None]) -> str:
    try:
        judge()
    except (Mismatch, NotShown) as found:
        return f"{type(found).__name__}: {found}"
    return "passed"


@pytest.mark.parametrize(
    ("attribute", "shown", "ends"),
    [
        ("latencyP99", seen(0.5), "passed"),
        ("latencyP99", seen(None, "INVALID"), "NotShown"),
        ("latencyP99", seen(0.5, age=-5.9), "passed"),
        ("latencyP99", seen(0.5, age=-6.1), "Mismatch: expected a time at most 6 s in the future"),
        ("healthState", seen(0, age=-1.1), "Mismatch: expected a time at most 1 s in the future"),
        ("latencyP99", seen(0.5, "INVALID"), "Mismatch: expected no value with ATTR_INVALID"),
        ("latencyP99", seen(None), "Mismatch: expected a value with ATTR_VALID, got none"),
        ("latencyP99", seen("0.5"), "Mismatch: expected values of DevDouble"),
        ("nodesExpected", seen(True), "Mismatch: expected values of DevLong"),
        ("latencyP99", seen(error="no time"), "Mismatch: expected a value, got an error: no time"),
        ("healthState", seen(3), "passed"),
        ("healthState", seen(4), "Mismatch: expected a value of HealthState from 0 to 3, got 4"),
        ("healthInfo", seen(None), "passed"),
        ("healthInfo", seen(("a",) * 65), "Mismatch: expected at most 64 elements, got 65"),
        ("healthInfo", seen((1,)), "Mismatch: expected values of DevString"),
    ],
)
def test_values(attribute, shown, ends):
    assert verdict(lambda: judge_value(ICD, entry("SdpMaster", attribute), shown)).startswith(ends)


@pytest.mark.parametrize(
    ("attribute", "texts", "shown", "ends"),
    [
        ("obsState", [], seen(0), "NotShown: nothing of it is among the newest records on state"),
        ("obsState", ["IDLE"], seen(2), "passed"),
        ("obsState", ["EMPTY", "IDLE", "HAPPY"], seen(2), "passed"),
        ("obsState", ["IDLE"], seen(0), "Mismatch: expected 2, as on state, got 0 VALID"),
        ("obsState", ["IDLE"], seen(None, "INVALID"), "Mismatch: expected 2, as on state, got None INVALID"),
        ("scanID", ["7", "1e9", "true", "[" * 20_000], seen(7), "passed"),
        ("scanID", ["[7]"], seen(7), "NotShown"),
        ("scanType", ["7"], seen("7"), "passed"),
        ("errorMessages", ['["a", "b"]'], seen(("a", "b")), "passed"),
        ("errorMessages", ["[]", "[1]"], seen(None), "passed"),
        ("errorMessages", ["[]"], seen(("a",)), "Mismatch: expected (), as on state, got ('a',) VALID"),
        ("ebID", ["eb-1"], seen(error="no time"), "Mismatch: expected a value, got an error: no time"),
    ],
)
def test_reported_values(attribute, texts, shown, ends):
    reported = entry("SdpSubarray", attribute)
    written = newest_valid(ICD, reported, texts)
    assert verdict(lambda: judge_reported(reported, written, shown)).startswith(ends)


def at(*times: float, quality: str = "VALID") -> list[TangoValue]:
    return [TangoValue(value=1, quality=quality, time=NOW, at=NOW + one) for one in times]


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        (at(0, 1, 2, 3, 4, 5, 6, 7, 8), "passed"),
        (at(0), "NotShown: fewer than two events"),
        (at(0, 0.4), "NotShown: two events 0.400 s apart, and no third one"),
        (at(0, 1.84, 2, 3, 4), "passed"),
        (at(0, 0.4, 0.8), "Mismatch: expected events at least 1 s apart (one may be held up on its way), got 3 within"),
        (at(0, 0.8, 1.5, 5, 9, 20, 40), "passed"),
        (at(0, 9, 9.3, 9.6, 9.9, 20, 40), "Mismatch: expected events at least 1 s apart"),
        (at(0, 0.6, 1.2), "passed"),
        (at(0, 0.6, 1.2, 1.8, 2.4, 3.0, 3.6), "Mismatch: expected at most 1 events/s"),
        ([*at(0), *at(0.1, quality="ALARM"), *at(1.2)], "passed"),
    ],
)
def test_pace(events, ends):
    assert verdict(lambda: judge_sampling(Sampling(shortest=1.0), EventStream(pushed=events), 10.0)).startswith(ends)


@pytest.mark.parametrize(
    ("changes", "alarms", "ends"),
    [
        ("V V W A V V", "W A V", "passed"),
        ("V V V", "", "passed"),
        ("V V W", "", "passed"),  # the alarm event of the last one may be on its way
        ("V V W W", "", "Mismatch: expected an alarm event when VALID becomes WARNING, got none"),
        ("V V W W", "V W", "passed"),  # the first one came before the window of the others
        ("V V W W", "W W", "Mismatch: expected alarm events when the quality changes, got two of WARNING in a row"),
    ],
)
def test_alarm_events(changes: str, alarms: str, ends: str) -> None:
    names = {"V": "VALID", "W": "WARNING", "A": "ALARM"}
    pushed = [seen(quality=names[letter], age=-float(number)) for number, letter in enumerate(changes.split())]
    turns = [event for before, event in pairwise(pushed) if before.quality != event.quality]
    told = [
        next((event for event in turns if event.quality == names[letter]), seen(quality=names[letter]))
        for letter in alarms.split()
    ]
    assert verdict(lambda: judge_alarms(EventStream(pushed=pushed), EventStream(pushed=told))) == ends


@pytest.mark.parametrize(
    ("stream", "before", "after", "ends"),
    [
        (EventStream(first=seen(1.0)), seen(1.0), seen(1.0), "passed"),
        (EventStream(first=seen(2.0, age=1)), seen(1.0, age=2), seen(3.0), "passed"),
        # How long something has waited: it grows while nothing comes, and begins anew with what comes.
        (EventStream(first=seen(3.7, age=2)), seen(3.6, age=2), seen(3.8, age=2), "passed"),
        (EventStream(first=seen(3.7, age=2)), seen(3.6, age=2), seen(3.6, age=1), "passed"),
        (EventStream(first=seen(3.7, age=3)), seen(3.6, age=2), seen(3.8, age=1), "Mismatch"),
        (EventStream(first=seen(3.7)), seen(3.6, age=2), seen(3.8, age=1), "Mismatch"),
        (EventStream(first=seen(2.0)), seen(1.0), seen(1.0), "Mismatch: expected a first change event that agrees"),
        (EventStream(first=seen(float("nan"))), seen(float("nan")), seen(1.0), "passed"),
        (EventStream(refused="no"), seen(), seen(), "Mismatch: expected a subscription to change events"),
        (EventStream(first=seen(), errors=["lost"]), seen(), seen(), "Mismatch: expected change events without errors"),
        (EventStream(), seen(), seen(), "Mismatch: expected a first change event"),
    ],
)
def test_events(stream, before, after, ends):
    trace = AttributeTrace(before, after, after, {"change": stream})
    assert verdict(lambda: judge_events(trace, "change")).startswith(ends)


def answer(error: str = "", took: float = 0.01, result: object = None) -> CommandAnswer:
    taken = ([2], ["1_1_On"]) if result is None and not error else result
    return CommandAnswer(result=taken, error=error, took=took, at=NOW)


GOOD_REFUSAL = "API: Command On not allowed when State is ON; expected State OFF, got ON"


@pytest.mark.parametrize(
    ("refusal", "changes", "ends"),
    [
        (answer(GOOD_REFUSAL), {}, "passed"),
        (answer("API: no"), {}, "Mismatch: expected a refusal that names On, ON, expected, got"),
        (answer(GOOD_REFUSAL), {"obsState": "1"}, "Mismatch: expected a refusal that changes nothing"),
        (answer(), {}, "Mismatch: expected a refusal, got it was taken"),
    ],
)
def test_refusals(refusal, changes, ends):
    tried = RefusedCall(command="On", aspect="refuses-state", words=("On", "ON"), answer=refusal, changes=changes)
    assert verdict(
        lambda: judge_refusal(SubarrayRun(device="d", began=NOW, refused=[tried]), "On", "refuses-state")
    ).startswith(ends)
    nothing = SubarrayRun(device="d", began=NOW)
    assert verdict(lambda: judge_refusal(nothing, "On", "refuses-state")).startswith("NotShown")


def given(name: str = "Configure", **more: object) -> TakenCall:
    known = {"status": "COMPLETED", "acks": [{"status": "ACCEPTED"}, {"status": "COMPLETED"}]}
    usual = {
        "answer": answer(),
        "id": "1",
        "path": ["CONFIGURING", "READY"],
        "commanded": "READY",
        "known": known,
        "at_end": known,
    }
    return TakenCall(command=COMMANDS[name], **{**usual, **more})


def in_a_name(**more: object) -> SubarrayRun:
    call = given(operator="ann", **{"at_end": {"operator": "ann"}, **more})
    return SubarrayRun(device="d", began=NOW, taken=[given(), call])


def record(**changes: object) -> BusRecords:
    command, issued = COMMANDS["Configure"], round(NOW * 1e6)
    message = {
        "command": "Configure",
        "repeatable": command.repeatable,
        "issued": issued,
        "not_after": issued + round(command.start_within * 1e6),
        "deadline": issued + round(command.deadline * 1e6),
        "ceiling": issued + round(command.ceiling * 1e6),
        **changes,
    }
    return BusRecords(records={"1": (message, NOW)}, acks={"1": ("ACCEPTED", "COMPLETED")})


NOTHING = BusRecords(records={}, acks={})


@pytest.mark.parametrize(
    ("judge", "ends"),
    [
        (lambda: judge_taken(given()), "passed"),
        (lambda: judge_taken(given(answer=answer(took=0.6))), "Mismatch: expected an answer within 0.5 s"),
        (lambda: judge_taken(given(answer=answer(result=([0], ["1"])))), "Mismatch: expected [2] (QUEUED) and one id"),
        (lambda: judge_taken(given(answer=answer(result=([2], [])))), "Mismatch: expected [2] (QUEUED) and one id"),
        (lambda: judge_record(given(), record()), "passed"),
        (lambda: judge_record(given(), NOTHING), "Mismatch: expected a record with the id 1"),
        (lambda: judge_record(given(), record(repeatable=True)), "Mismatch: expected repeatable False"),
        (lambda: judge_record(given(), record(not_after=0)), "Mismatch: expected not_after 5.0"),
        (lambda: judge_acks(given(), record()), "passed"),
        (lambda: judge_acks(given(), NOTHING), "Mismatch: expected acknowledgements on command-acks"),
        (lambda: judge_acks(given(at_end={"acks": []}), record()), "Mismatch: expected GetCommand shows ACCEPTED"),
        (lambda: judge_effect(given()), "passed"),
        (lambda: judge_effect(given(path=["READY"])), "Mismatch: expected obsState CONFIGURING -> READY"),
        (lambda: judge_effect(given(commanded="IDLE")), "Mismatch: expected commandedObsState READY"),
        (lambda: judge_reports(given(reported={"scanType": "target:a"})), "passed"),
        (lambda: judge_reports(given(reported={"scanID": "0"})), "NotShown: the controller does not report scanID"),
        (
            lambda: judge_reports(given(reported={"receiveAddresses": "null", "ebID": "eb"})),
            "Mismatch: expected receiveAddresses in IDLE",
        ),
        (lambda: judge_name(in_a_name(), record(operator="ann")), "passed"),
        (lambda: judge_name(in_a_name(), record()), "Mismatch: expected 'ann', got None"),
        (lambda: judge_name(in_a_name(at_end={}), record(operator="ann")), "Mismatch: expected 'ann', got None"),
        (lambda: judge_name(SubarrayRun(device="d", began=NOW), NOTHING), "NotShown: no command was given in a name"),
        (lambda: judge_outcome(given()), "passed"),
        (lambda: judge_outcome(given(known={"status": "FAILED"})), "Mismatch: expected the outcome COMPLETED"),
        (lambda: judge_outcome(given(at_end={"status": "FAILED"})), "Mismatch: expected 'COMPLETED', got 'FAILED'"),
        (lambda: judge_bus(SubarrayRun(device="d", began=NOW, ended=NOW, taken=[given()]), record()), "passed"),
        (lambda: judge_bus(SubarrayRun(device="d", began=NOW, ended=NOW), record()), "Mismatch: expected no records"),
    ],
)
def test_commands(judge, ends):
    assert verdict(judge).startswith(ends)


def test_one_cause_is_one_failure(monkeypatch):
    """D25: the observation breaks off at a command; all that cannot be shown behind it is no failure of its own."""
    found = SubarrayRun(
        device="d", began=NOW, taken=[given("On")], broken_off="Configure was FAILED: no such scan type"
    )
    monkeypatch.setattr(command_checks, "run_of", lambda system: found)
    monkeypatch.setattr(command_checks, "bus_of", lambda system: BusRecords(records={}, acks={}))
    of = SimpleNamespace(device="d", entry=COMMANDS["Scan"])
    checks = (*command_checks.CALL_CHECKS, command_checks._refusal("refuses-state"))
    behind = {one.aspect: verdict(lambda one=one: one.judge(None, of)) for one in checks}
    assert {one.partition(":")[0] for one in behind.values()} == {"NotShown"}
    assert all(found.broken_off in one for one in behind.values())
    (observation,) = (one for one in command_checks.RUN_CHECKS if one.aspect == "observation")
    cause = verdict(lambda: observation.judge(None, of))
    assert cause == f"Mismatch: expected an observation from On to Off, got {found.broken_off}"


def ended(
    outcome: str = "FAILED", task: str = "FAILED", code: int = 3, took: float = 1.0, **more: object
) -> SubarrayRun:
    times = [datetime.fromtimestamp(NOW + one, UTC).isoformat(timespec="milliseconds") for one in (0.0, took)]
    known = {
        "status": outcome,
        "task_status": task,
        "result_code": code,
        "text": "broken",
        "submitted_time": times[0],
        "finished_time": times[1],
        "acks": [{"status": "ACCEPTED"}, {"status": outcome}],
    }
    usual = {
        "known": known,
        "at_end": known,
        "result": ("1", f'[{code}, "broken"]'),
        "finished": {"uid": "1", "status": task, "result": [code, "broken"]},
        "before": "EMPTY",
        "commanded": "EMPTY",
        "path": [],
        "obs_state": "EMPTY",
    }
    return SubarrayRun(device="d", began=NOW, taken=[given("AssignResources", **{**usual, **more})], broken_off="")


def acknowledged(*statuses: str) -> BusRecords:
    return BusRecords(records={}, acks={"1": statuses})


FAILED = ended().taken[0].known


@pytest.mark.parametrize(
    ("walk", "outcome", "ends"),
    [
        (ended(), "FAILED", "passed"),
        (ended("REJECTED", "REJECTED", 5), "REJECTED", "passed"),
        (ended("TIMED_OUT", "FAILED", 4, took=60.1), "TIMED_OUT", "passed"),
        (
            SubarrayRun(device="d", began=NOW, broken_off="no"),
            "FAILED",
            "Mismatch: expected the outcome FAILED, got none: no",
        ),
        (ended("COMPLETED"), "FAILED", "Mismatch: expected the outcome FAILED, got COMPLETED"),
        (ended(code=0), "FAILED", "Mismatch: expected FAILED and [3, 'broken'] from GetCommand"),
        (ended(task="COMPLETED"), "FAILED", "Mismatch: expected FAILED and [3, 'broken'] from GetCommand"),
        (ended(known={**FAILED, "text": ""}), "FAILED", "Mismatch: expected a text that says why"),
        (ended(at_end={**FAILED, "status": "COMPLETED"}), "FAILED", "Mismatch: expected 'FAILED', got 'COMPLETED'"),
        (ended(at_end={**FAILED, "acks": []}), "FAILED", "Mismatch: expected GetCommand shows"),
        (ended(result=()), "FAILED", "Mismatch: expected longRunningCommandResult and lrcFinished with the outcome"),
        (ended(finished={}), "FAILED", "Mismatch: expected FAILED and [3, 'broken'] from lrcFinished"),
        (ended(result=("1", '[3, "b"]')), "FAILED", "Mismatch: expected FAILED and [3, 'broken'] from longRunning"),
        (ended("REJECTED", "REJECTED", 5, path=["RESOURCING", "EMPTY"]), "REJECTED", "passed"),
        (ended("REJECTED", "REJECTED", 5, path=["IDLE"]), "REJECTED", "Mismatch: expected obsState EMPTY again after"),
        (ended("REJECTED", "REJECTED", 5, commanded="IDLE"), "REJECTED", "Mismatch: expected 'EMPTY', got 'IDLE'"),
        (ended(obs_state="FAULT"), "FAILED", "passed"),
        (ended(obs_state="RESOURCING"), "FAILED", "Mismatch: expected an obsState that lasts after FAILED"),
        (
            ended("TIMED_OUT", "FAILED", 4, took=60.1, obs_state="RESOURCING"),
            "TIMED_OUT",
            "Mismatch: expected an obsState that lasts after TIMED_OUT",
        ),
        (ended("TIMED_OUT", "FAILED", 4, took=59.9), "TIMED_OUT", "Mismatch: expected it after 60 to 600 s"),
        (ended("TIMED_OUT", "FAILED", 4, took=700.0), "TIMED_OUT", "Mismatch: expected it after 60 to 600 s"),
    ],
)
def test_outcomes_that_are_no_good(walk, outcome, ends):
    on_bus = acknowledged("ACCEPTED", outcome)
    assert verdict(lambda: judge_forced(walk, outcome, on_bus)).startswith(ends)


def test_an_outcome_that_is_not_on_the_bus():
    found = verdict(lambda: judge_forced(ended(), "FAILED", acknowledged("ACCEPTED")))
    assert found == "Mismatch: expected FAILED on command-acks, got ACCEPTED"


@pytest.mark.parametrize(
    ("status", "ends"),
    [("ABORTED", "passed"), ("COMPLETED", "NotShown"), ("FAILED", "Mismatch: expected 'ABORTED', got 'FAILED'")],
)
def test_overtaking(status, ends):
    first = given("AssignResources", overtaken=True, known={"status": status})
    found = SubarrayRun(device="d", began=NOW, taken=[first, given("Abort")])
    assert verdict(lambda: judge_overtaking(found, COMMANDS["Abort"])).startswith(ends)
