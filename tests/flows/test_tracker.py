"""Commands and their one outcome: the table, the order on the log, time-outs, bounds, restarts."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import get_args

import msgspec
import pytest

from facade.flows.commands import outcomes
from facade.flows.commands.messages import AckMessage, AckStatus, CommandMessage, command_id, issued
from facade.flows.commands.outcomes import (
    ENDED,
    FINAL,
    OFF_THE_LOG,
    RESULT_CODE,
    TASK_STATUS,
    TRANSITIONS,
    Tracked,
    command_of,
)
from facade.flows.commands.tracker import Tracker
from facade.flows.commands.view import CommandView
from facade.kernel.bus.port import Record
from facade.kernel.icd.load import load
from facade.kernel.outcome import USED, RecordRejected, Suppressed
from facade.sdp.device_state import DeviceStates

DEVICE = "mid-sdp/subarray/01"
T0 = 1_800_000_000_000_000
S = 1_000_000
STATES = sorted(TRANSITIONS)
ACKED = sorted(get_args(AckStatus))
WAY = {
    "NEW": (),
    "SENT": (),
    "ACCEPTED": ("ACCEPTED",),
    "IN_PROGRESS": ("ACCEPTED", "IN_PROGRESS"),
    **{status: (status,) for status in FINAL},
}
"""Acknowledgements that lead to each state."""

numbers = itertools.count()


def has_read_all(_: int) -> bool:
    """Say that everything on the log has been read."""
    return True


def command(name: str = "Configure", **changes) -> CommandMessage:
    fields = {
        "id": command_id(T0, next(numbers), name),
        "device": DEVICE,
        "command": name,
        "argument": {"scan_type": "a"},
        "transaction_id": f"txn-{next(numbers)}",
        "issued": T0,
        "not_after": T0 + 5 * S,
        "deadline": T0 + 10 * S,
        "ceiling": T0 + 60 * S,
        "repeatable": False,
        "origin": "server",
    }
    return CommandMessage(**fields | changes)


def ack(one: CommandMessage, status: str, at: int = T0 + S, **more) -> AckMessage:
    return AckMessage(
        id=one.id, device=one.device, command=one.command, status=status, time=at, origin="controller", **more
    )


def record(offset: int = 0) -> Record:
    return Record(topic="commands", key=None, value=b"", partition=1, offset=offset, timestamp_us=T0)


def tracker_with(one: CommandMessage, state: str, devices: Sequence[str] = (DEVICE,)) -> Tracker:
    tracker = Tracker(devices)
    if state in ("HELD", "CLOSED", "WITHDRAWN"):
        tracker.begin(one, "HELD")
    else:
        tracker.begin(one)
    if state == "CLOSED":
        tracker.change(one.id, "CLOSED")
    elif state == "WITHDRAWN":
        tracker.fold_unapproved(ack(one, "ABORTED", withdrawer="ann"))
    elif state == "GIVEN_UP":
        tracker.change(one.id, "GIVEN_UP", ended=T0, text="no broker")
    elif state == "NOTED":
        tracker.note(ack(one, "COMPLETED"))
    elif state in WAY and state not in ("NEW", "UNDELIVERED"):
        tracker.change(one.id, "SENT")
        tracker.fold_command(one, record())
    for step in WAY.get(state, ()):
        tracker.fold_ack(ack(one, step), 0.0)
    assert tracker.find(one.id).state == state
    return tracker


@pytest.mark.parametrize("state", ["GIVEN_UP", "WITHDRAWN"])
def test_a_finished_command_that_the_log_overrules_is_shown_with_its_new_outcome(state):
    one, icd = command(), load()
    tracker = tracker_with(one, state)
    states = DeviceStates(icd, {DEVICE: "SdpSubarray"})
    view = CommandView(DEVICE, icd.classes["SdpSubarray"], tracker, states, lambda: True)

    def shown(now: int) -> tuple[str, dict]:
        values = {name: reading.value for _, name, reading in view.readings(now)}
        (text,) = values["lrcFinished"]
        return values["longRunningCommandStatus"][1], json.loads(text)

    shown(T0)
    tracker.fold_ack(ack(one, "COMPLETED"), 0.0)
    tracker.fold_command(one, record())
    status, finished = shown(T0 + 2 * S)
    assert (status, finished["status"], finished["result"][0]) == ("COMPLETED", "COMPLETED", RESULT_CODE["COMPLETED"])


def test_the_table_is_complete():
    shown = {Tracked(message=command_of("1_1_Scan", DEVICE, "Scan"), state=state).status for state in TRANSITIONS}
    assert set(TASK_STATUS) == shown - {"NOTED"}, "which no device server shows"
    assert set(RESULT_CODE) == FINAL
    for state, following in TRANSITIONS.items():
        assert following <= set(TRANSITIONS)
        assert not following or state not in FINAL, f"{state} is an outcome and nothing may follow it"
    reachable = {"HELD"}
    for _ in TRANSITIONS:
        reachable |= {after for before in reachable for after in TRANSITIONS[before]}
    assert reachable == set(TRANSITIONS)


@pytest.mark.parametrize(("before", "status"), itertools.product(STATES, ACKED))
def test_an_acknowledgement_does_what_the_table_says(before, status):
    one = command()
    tracker = tracker_with(one, before)
    tracker.fold_ack(ack(one, status, text="news"), 0.0)
    # Of a command that waits, or was given up, an acknowledgement says that its record is still to be read.
    waits = before in OFF_THE_LOG
    allowed = status in TRANSITIONS[before] and not waits
    assert tracker.find(one.id).state == (status if allowed else before)
    assert tracker.late[DEVICE] == (0 if allowed or waits else 1)


@pytest.mark.parametrize("before", STATES)
def test_a_record_on_the_log_does_what_the_table_says(before):
    one = command()
    tracker = tracker_with(one, before)
    after = "SENT" if "SENT" in TRANSITIONS[before] else before
    for state in (before, after):
        found, is_ended = tracker.find(one.id), state in ENDED
        assert (found.state, found.final) == (state, is_ended or state == "NOTED")
        assert (tracker.finished_total(DEVICE), len(tracker.pending(DEVICE))) == (is_ended, not is_ended)
        tracker.fold_command(one, record())
    assert found.place == "commands/1@0"


@pytest.mark.parametrize("status", ["ABORTED", "UNDELIVERED"])
def test_a_command_that_waits_ends_by_a_device_server_only(status):
    """Whoever may write acknowledgements, a controller, can neither withdraw it nor let it expire."""
    one = command()
    tracker = tracker_with(one, "HELD")
    for withdrawer in ("", "ann"):
        forged = ack(one, status, withdrawer=withdrawer)
        assert isinstance(tracker.fold_ack(forged, 0.0), RecordRejected) == bool(withdrawer)
    assert tracker.find(one.id).status == "HELD"
    tracker.fold_unapproved(ack(one, status, withdrawer="ann" if status == "ABORTED" else ""))
    assert tracker.find(one.id).status == status


@pytest.mark.parametrize("order", itertools.permutations(("begin", "command", "undelivered", "a minute later")))
def test_a_command_that_was_given_up_on_the_log_ends_once_whenever_its_record_comes(order):
    """Also for a server that has started in between, and knows only that the command was given up."""
    one, tracker = command(), Tracker([DEVICE])
    for step in order:
        if step == "begin" and tracker.find(one.id) is None:
            tracker.begin(one)
        elif step == "command":
            tracker.fold_command(one, record())
        elif step == "undelivered":
            tracker.fold_ack(ack(one, "UNDELIVERED"), 0.0)
        elif step == "a minute later":
            tracker.due(one.issued, 60.0, "server", lambda _: True)
    found = tracker.find(one.id)
    assert (found.status, tracker.finished_total(DEVICE), tracker.pending(DEVICE)) == ("UNDELIVERED", 1, [])
    assert tracker.due(one.ceiling + S, 999.0, "server", lambda _: True) == []
    assert tracker.unknown[DEVICE] == tracker.late[DEVICE] == 0


@pytest.mark.parametrize(
    "order",
    [
        one
        for one in itertools.permutations(("held", "command", "withdrawal", "outcome"))
        if one.index("held") < one.index("withdrawal")  # they are on one partition
    ],
)
def test_a_withdrawal_beside_an_approval_does_not_count(order):
    """They are on topics between which there is no order: all readers find what the controller says."""
    one, tracker = command(), Tracker([DEVICE])
    for step in order:
        if step == "held":
            tracker.fold_held(one, record())
        elif step == "command":
            tracker.fold_command(one, record())
        elif step == "withdrawal":
            tracker.fold_unapproved(ack(one, "ABORTED", withdrawer="ann"))
        else:
            tracker.fold_ack(ack(one, "COMPLETED"), 0.0)
    found = tracker.find(one.id)
    assert (found.status, tracker.finished_total(DEVICE), tracker.pending(DEVICE)) == ("COMPLETED", 1, [])


def test_a_withdrawal_that_is_repeated_is_late_and_not_of_an_unknown_command():
    one, tracker = command(), Tracker([DEVICE])
    tracker.fold_unapproved(ack(one, "ABORTED", withdrawer="ann"))  # of a command that is not kept any more
    tracker.fold_held(one, record())
    for _ in range(3):
        tracker.fold_unapproved(ack(one, "ABORTED", withdrawer="ann"))
    tracker.fold_held(one, record())
    tracker.due(0, 20.0, "server", has_read_all)
    assert (tracker.find(one.id).status, tracker.late[DEVICE], tracker.unknown[DEVICE]) == ("ABORTED", 2, 0)


def test_a_completed_command_is_done_to_the_end():
    found = []
    for options in ({"progress": 75}, {}):
        one = command()
        tracker = tracker_with(one, "SENT")
        tracker.fold_ack(ack(one, "IN_PROGRESS", **options), 0.0)
        tracker.fold_ack(ack(one, "COMPLETED"), 0.0)
        found.append(tracker.find(one.id).progress)
    assert found == [100, None], "of the other none was reported"


def test_acknowledgements_of_no_command_are_counted_and_forgotten():
    tracker = Tracker([DEVICE])
    tracker.fold_ack(ack(command(), "COMPLETED"), 0.0)  # before the start, of a command that left the log
    assert tracker.due(T0, 1.0, "server", has_read_all) == []
    for _ in range(3):
        tracker.fold_ack(ack(command(), "COMPLETED"), 2.0)
    assert tracker.due(T0, 5.0, "server", has_read_all) == []
    assert tracker.unknown[DEVICE] == 0
    tracker.due(T0, 13.0, "server", has_read_all)
    assert tracker.unknown[DEVICE] == 3
    assert len(tracker._orphans) == 0
    noisy = command()
    for _ in range(5000):
        tracker.fold_ack(ack(command(), "COMPLETED"), 20.0)
        tracker.fold_ack(ack(noisy, "IN_PROGRESS"), 20.0)
    assert len(tracker._orphans) == 1000
    assert sum(map(len, tracker._orphans.values())) < 1100
    assert tracker.unknown[DEVICE] > 3 + 4000


@pytest.mark.parametrize(
    ("acks", "silent_until", "timed_out"),
    [
        ([], 10.0, False),
        ([], 10.001, True),
        ([("ACCEPTED", 1.0, None)], 10.001, True),
        ([("IN_PROGRESS", 9.0, 5.0)], 14.0, False),
        ([("IN_PROGRESS", 9.0, 5.0)], 14.001, True),
        ([("IN_PROGRESS", 1.0, 2.0)], 10.0, False),  # it never shortens the deadline
        ([("IN_PROGRESS", 9.0, 500.0)], 60.0, False),
        ([("IN_PROGRESS", 9.0, 500.0)], 60.001, True),  # the ceiling stands
    ],
)
def test_deadlines_and_ceilings(acks, silent_until, timed_out):
    one = command()
    tracker = tracker_with(one, "SENT")
    for status, at, remaining in acks:
        tracker.fold_ack(ack(one, status, T0 + round(at * S), remaining=remaining), 0.0)
    made = tracker.due(T0 + round(silent_until * S), 100.0, "server", has_read_all)
    assert [(a.id, a.status, a.origin) for a in made] == ([(one.id, "TIMED_OUT", "server")] if timed_out else [])


def test_a_command_that_the_bus_has_is_never_undelivered_and_its_time_out_says_how_long_it_was_waited_for():
    one, tracker = command(), Tracker([DEVICE])
    tracker.begin(one)
    tracker.change(one.id, "SENT")
    assert tracker.due(one.not_after + S + 1, 0.0, "server", has_read_all) == []
    (made,) = tracker.due(T0 + 25 * S // 2, 0.0, "server", has_read_all)
    assert made.text == "no outcome within 12.5 s; whether it took effect is not known"


def test_a_time_out_counts_from_the_append_time_if_the_issue_time_is_ahead():
    one, tracker = command(issued=T0 + 3600 * S), Tracker([DEVICE])
    tracker.fold_command(one, dataclasses.replace(record(), timestamp_us=T0))
    (made,) = tracker.due(T0 + 25 * S // 2, 0.0, "server", has_read_all)
    assert made.text.startswith("no outcome within 12.5 s;")


@pytest.mark.parametrize(
    ("statuses", "began"),
    [
        (("ACCEPTED", "IN_PROGRESS"), 1),
        (("COMPLETED",), 1),
        (("ACCEPTED", "REJECTED"), 1),
        (("REJECTED",), 0),
        (("TIMED_OUT",), 0),
    ],
)
def test_a_command_began_when_a_controller_first_took_it(statuses, began):
    one = command()
    tracker = tracker_with(one, "SENT")
    for at, status in enumerate(statuses, 1):
        tracker.fold_ack(ack(one, status, T0 + at * S), 0.0)
    assert tracker.find(one.id).began == (T0 + began * S if began else 0)


@pytest.mark.parametrize(
    ("statuses", "kept"),
    [
        (("ACCEPTED",) * 2, 2),
        (("ACCEPTED",) * 3, 2),
        (("ACCEPTED", "IN_PROGRESS", "COMPLETED"), 3),
        (("ACCEPTED", "COMPLETED", "FAILED"), 2),
    ],
)
def test_acknowledgements_that_wait_for_a_command_are_few_and_the_first_outcome_is_among_them(statuses, kept):
    one, tracker = command(), Tracker([DEVICE], acks=2)
    tracker.due(T0, 7.0, "server", has_read_all)
    for status in statuses:
        tracker.fold_ack(ack(one, status), 8.0)
    tracker.due(T0, 18.0, "server", has_read_all)
    assert tracker.unknown[DEVICE] == 0
    tracker.due(T0, 18.1, "server", has_read_all)
    assert tracker.unknown[DEVICE] == kept


def test_the_version_of_a_device_grows_with_all_that_happens_to_its_commands():
    one, tracker = command(), Tracker([DEVICE])
    versions = [tracker.version(DEVICE)]
    for happens in (
        lambda: tracker.begin(one),
        lambda: tracker.change(one.id, "GIVEN_UP", ended=T0, text="no broker"),
        lambda: tracker.fold_command(one, record()),
        lambda: tracker.fold_ack(ack(one, "ACCEPTED"), 0.0),
        lambda: tracker.fold_ack(ack(one, "NEW"), 0.0),  # late
        lambda: tracker.fold_ack(ack(one, "COMPLETED"), 0.0),
        lambda: [tracker.fold_ack(ack(command(), "ACCEPTED"), 0.0), tracker.due(T0, 11.0, "server", has_read_all)],
    ):
        happens()
        versions.append(tracker.version(DEVICE))
    assert versions == sorted(set(versions)), "each is larger than the one before"


def test_a_time_out_counts_once_the_log_has_it_and_not_before():
    one = command()
    tracker = tracker_with(one, "ACCEPTED")
    (made,) = tracker.due(T0 + 11 * S, 100.0, "server", has_read_all)
    assert tracker.due(T0 + 11 * S, 101.0, "server", has_read_all) == [], "not once more in each cycle"
    assert tracker.due(T0 + 20 * S, 105.0, "server", has_read_all) == []
    assert len(tracker.due(T0 + 20 * S, 105.1, "server", has_read_all)) == 1, "but again when it does not come back"
    assert tracker.find(one.id).status == "ACCEPTED"
    tracker.fold_ack(ack(one, "COMPLETED"), 0.0)  # was on the log before
    tracker.fold_ack(made, 0.0)
    assert tracker.find(one.id).status == "COMPLETED"
    assert tracker.late[DEVICE] == 1


def test_a_command_that_never_appears_on_the_log_ends_undelivered_once_it_could_not_be_executed_any_more():
    one, tracker = command(), Tracker([DEVICE])
    tracker.begin(one)
    assert tracker.due(one.not_after + S, 0.0, "server", has_read_all) == []
    (made,) = tracker.due(one.not_after + S + 1, 0.0, "server", has_read_all)
    assert (made.status, made.text) == ("UNDELIVERED", "its record never appeared on the bus")
    tracker.fold_ack(made, 0.0)
    assert tracker.find(one.id).status == "UNDELIVERED"


@pytest.mark.parametrize("is_held", [False, True])
def test_a_command_whose_record_may_be_unread_is_not_undelivered(is_held: bool) -> None:
    one, tracker, asked = command(), Tracker([DEVICE]), []
    tracker.begin(one, "HELD") if is_held else tracker.begin(one)

    def has_read(time_us: int) -> bool:
        asked.append(time_us)
        return False

    assert tracker.due(one.not_after + S, 0.0, "server", has_read) == []
    assert asked == [], "as it is not overdue"
    assert tracker.due(one.not_after + 99 * S, 99.0, "server", has_read) == []
    assert asked == [one.not_after + S]
    assert len(tracker.due(one.not_after + 99 * S, 99.0, "server", has_read_all)) == 1


def test_acknowledgements_read_before_thousands_of_commands_at_a_start_are_not_lost():
    tracker, made = Tracker([DEVICE]), [command() for _ in range(1500)]
    for one in made:
        tracker.fold_ack(ack(one, "COMPLETED"), 0.0)
    for one in made:
        tracker.fold_command(one, record())
    assert tracker.pending(DEVICE) == []
    assert {one.status for one in tracker.finished(DEVICE, 2000)} == {"COMPLETED"}


def test_who_gave_a_command_up_and_who_never_knew_it_find_the_same_outcome():
    """The record was given up, and its acknowledgements are read before it is."""
    one = command()
    sender, reader = Tracker([DEVICE]), Tracker([DEVICE])
    sender.begin(one)
    sender.change(one.id, "GIVEN_UP", ended=T0, text="no broker")
    for tracker in (sender, reader):
        for status in ("ACCEPTED", "COMPLETED"):
            tracker.fold_ack(ack(one, status), 0.0)
        tracker.fold_command(one, record())
        assert tracker.find(one.id).status == "COMPLETED"


@pytest.mark.parametrize("first", sorted(set(ACKED) - {"UNDELIVERED"}))
def test_a_controller_goes_by_acknowledgements_alone_and_finds_the_same_outcome(first):
    """A device server counts a command with its record; both fold the log in the same store."""
    for others in itertools.product(sorted(set(ACKED) - {"UNDELIVERED"}), repeat=2):
        one = command()
        server, controller = Tracker([DEVICE]), Tracker([DEVICE], with_commands=False)
        server.fold_command(one, record())
        for tracker in (server, controller):
            for status in (first, *others):
                tracker.fold_ack(ack(one, status), 0.0)
        assert controller.newest(one.device, one.id) == server.newest(one.device, one.id)
        (known,) = controller._all()
        assert known.status == server.find(one.id).status
        left_open = controller.left_open("controller")
        assert bool(left_open) == (not server.find(one.id).final)
        begun_and_given_up = server.find(one.id).status == "TIMED_OUT" and first in ("ACCEPTED", "IN_PROGRESS")
        ended = {"COMPLETED", "FAILED", "ABORTED", "REJECTED"} & {first, *others}
        assert bool(controller.given_up("controller")) == (begun_and_given_up and not ended)
        assert controller.given_up("another") == controller.left_open("another") == []


@pytest.mark.parametrize("before", ["NEW", "ACCEPTED", "IN_PROGRESS", "TIMED_OUT"])
def test_an_own_outcome_is_the_newest_until_the_log_has_one(before):
    one = command()
    tracker = tracker_with(one, before)
    own, first = ack(one, "FAILED"), ack(one, "COMPLETED")
    is_over = tracker.find(one.id).final
    tracker.note(own)
    assert (tracker.newest(one.device, one.id) is own) != is_over
    tracker.fold_ack(ack(one, "IN_PROGRESS"), 0.0)  # of its own, read after the outcome was written
    assert (tracker.newest(one.device, one.id) is own) != is_over
    assert tracker.left_open("controller") == []
    tracker.fold_ack(first, 0.0)
    assert (tracker.newest(one.device, one.id) is first) != is_over


def test_the_memory_of_a_controller_is_bounded():
    tracker = Tracker([DEVICE], keep=10, acks=0, with_commands=False)
    made = [command() for _ in range(50)]
    for one in made:
        for status in ("ACCEPTED", *["IN_PROGRESS"] * 100):
            tracker.fold_ack(ack(one, status), 0.0)
        tracker.note(ack(one, "COMPLETED"))
        tracker.fold_ack(ack(one, "COMPLETED"), 0.0)
    assert [tracker.newest(one.device, one.id) is not None for one in made] == [False] * 40 + [True] * 10
    assert tracker._all()[-1].acks == []


def test_an_outcome_from_another_device_is_refused():
    one, tracker = command(), Tracker([DEVICE, "mid-sdp/subarray/02"])
    tracker.fold_command(one, record())
    stranger = AckMessage(
        id=one.id, device="mid-sdp/subarray/02", command="Scan", status="FAILED", time=T0, origin="other"
    )
    what = f"{one.id}: expected {DEVICE}, got mid-sdp/subarray/02"
    assert str(tracker.fold_ack(stranger, 0.0)) == f"device: $.device: {what}"
    assert not tracker.find(one.id).final


@pytest.mark.parametrize("with_commands", [True, False])
def test_who_may_speak_for_another_device_ends_no_command_before_it_is_read(with_commands):
    """The ids of orders are known before they are given."""
    other = "mid-sdp/subarray/02"
    one, tracker = command(), Tracker([DEVICE, other], with_commands=with_commands)
    for status in ("COMPLETED", *["ACCEPTED"] * 60):
        stranger = AckMessage(id=one.id, device=other, command="Scan", status=status, time=T0, origin="other")
        tracker.fold_ack(stranger, 0.0)
    if with_commands:
        tracker.fold_command(one, record())
    assert tracker.newest(DEVICE, one.id) is None
    assert tracker.fold_ack(ack(one, "FAILED"), 0.0) is USED
    assert tracker.newest(DEVICE, one.id).status == "FAILED"


def test_issue_times_never_go_back():
    one, tracker = command(), Tracker([DEVICE])
    tracker.fold_command(one, record())
    assert tracker.next_issue(DEVICE, T0 - 5 * S) == T0 + 1
    assert tracker.next_issue(DEVICE, T0 + 5 * S) == T0 + 5 * S


def test_a_repeated_record_is_left_out_and_other_devices_are_not_ours():
    one, tracker = command(), Tracker([DEVICE])
    assert tracker.fold_command(one, record(0)) is USED
    assert tracker.fold_command(one, record(1)) == Suppressed("repeated")
    stranger = command(device="mid-sdp/subarray/02")
    assert tracker.fold_command(stranger, record(2)) == Suppressed("other-device")
    assert tracker.fold_ack(ack(stranger, "COMPLETED"), 0.0) == Suppressed("other-device")
    assert len(tracker.pending(DEVICE)) == 1


@pytest.mark.parametrize("state", ["HELD", "WITHDRAWN", "GIVEN_UP", "NEW", "SENT"])
@pytest.mark.parametrize(
    "other", [{"device": "mid-sdp/subarray/02"}, {"command": "Scan"}, {"transaction_id": "txn-of-another"}], ids=str
)
def test_a_record_with_the_id_of_another_command_is_refused_and_changes_nothing(state, other):
    one = command()
    tracker = tracker_with(one, state, devices=[DEVICE, "mid-sdp/subarray/02"])
    for fold in (tracker.fold_command, tracker.fold_held):
        refused = fold(msgspec.structs.replace(one, **other), record(7))
        (name,) = other
        what = f"{one.id}: expected {getattr(one, name)}, got {other[name]}"
        assert str(refused) == f"id: $.{name}: {what}"
    assert tracker.find(one.id).state == state
    assert tracker.find(one.id).message.device == DEVICE
    assert tracker.pending("mid-sdp/subarray/02") == []


def test_memory_is_bounded_and_what_was_forgotten_is_forgotten_whole():
    tracker = Tracker([DEVICE], keep=10)
    made = [command() for _ in range(50)]
    for one in made:
        tracker.fold_command(one, record())
        for status in ("ACCEPTED", *["IN_PROGRESS"] * 100, "COMPLETED"):
            tracker.fold_ack(ack(one, status), 0.0)
    assert [f.id for f in tracker.finished(DEVICE, 100)] == [one.id for one in made[-10:]]
    assert [f.id for f in tracker.finished(DEVICE, 2)] == [one.id for one in made[-2:]]
    assert tracker.finished_total(DEVICE) == 50
    assert tracker.find(made[0].id) is None
    assert tracker.of_transaction(DEVICE, "Configure", made[0].transaction_id) is None
    assert len(tracker.find(made[-1].id).acks) == 50


def test_who_reads_the_log_anew_finds_the_same():
    """A restarted server, and one that never heard the caller, agree with the one that sent."""
    made = [command() for _ in range(5)]
    log = [(one, status) for one in made for status in ("ACCEPTED", "COMPLETED", "FAILED")]
    sender, reader = Tracker([DEVICE]), Tracker([DEVICE])
    for one in made:
        sender.begin(one)
        sender.change(one.id, "SENT")
    for tracker in (sender, reader):
        for one in made:
            tracker.fold_command(one, record())
        for one, status in log:
            tracker.fold_ack(ack(one, status), 0.0)
    shown = [[(t.id, t.status, len(t.acks), t.place) for t in tr.finished(DEVICE, 9)] for tr in (sender, reader)]
    assert shown[0] == shown[1]
    assert sender.late == reader.late


@pytest.mark.parametrize(
    ("id", "when"),
    [
        (command_id(T0, 7, "Scan"), T0),
        ("1800000000.5_1_Scan", T0 + S // 2),
        ("", 0),
        ("Scan", 0),
        ("inf_1_Scan", 0),
        ("nan_1_Scan", 0),
        ("1e400_1_Scan", 0),
    ],
)
def test_an_id_says_when_it_was_issued(id, when):
    assert issued(id) == when


def test_every_outcome_has_its_result_code_by_name():
    wanted = {"COMPLETED": outcomes.OK, "REJECTED": outcomes.RESULT_REJECTED, "ABORTED": outcomes.RESULT_ABORTED}
    assert {name: RESULT_CODE[name] for name in wanted} == wanted


@pytest.mark.parametrize(("text", "wanted"), [("why", "why"), ("", "REJECTED")])
def test_a_result_is_the_code_with_the_text_or_else_the_status(text, wanted):
    one = Tracked(message=command_of("id", "device", "Scan"), state="REJECTED", text=text)
    assert outcomes.result(one) == [RESULT_CODE["REJECTED"], wanted]
