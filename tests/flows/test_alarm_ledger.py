"""The limits of alarms, to the last microsecond and the last alarm."""

import pytest
from msgspec.structs import replace

from facade.flows.alerts import ledger as module
from facade.flows.alerts.ledger import AlarmLedger
from facade.flows.alerts.messages import Action, Alarm, Alert, decode_alarm, encode
from facade.kernel.icd.model import Condition

AT = 1_700_000_000_000_000
"""When all of it begins [Unix us]."""
SECOND, DAY = 1_000_000, 86_400_000_000
KEY = ("c", "s")


def make(**about):
    return AlarmLedger({"c": replace(Condition(label="", description="", response="", priority="MEDIUM"), **about)})


def explained(**about):
    """Return a ledger in which an alarm of `cause` explains those of `c`."""
    plain = Condition(label="", description="", response="", priority="MEDIUM")
    return AlarmLedger({"cause": plain, "c": replace(plain, suppressed_by=("cause",), **about)})


def alert(ledger, number, at=AT, *, condition="c", source="s", redriven=False, **more):
    more = {"severity": "ALARM", "state": "ACTIVE", "raised_at": AT, "sequence": number, "text": str(number), **more}
    return ledger.apply(Alert(condition=condition, source=source, **more), number, at, redriven=redriven) is None


def act(ledger, action, number, at=AT, *, condition="c", **more):
    more = {"id": "1", "operator": "ann", "comment": "why", "time": at, "origin": "test", **more}
    return ledger.act(Action(condition=condition, source="s", action=action, **more), number, at)


def acknowledged(values=None, **about):
    ledger = make(**about)
    alert(ledger, 1, values=values or {})
    assert act(ledger, "ACKNOWLEDGE", 2, occurrence=1) is None
    return ledger


def test_delays_end_to_the_microsecond():
    ledger = make(on_delay=2.0, off_delay=3.0)
    alert(ledger, 1)
    for number, delay, before, event, after in ((2, 2, "NORM", "RAISE", "UNACK"), (4, 3, "UNACK", "CLEAR", "RTNUN")):
        began = AT + number * SECOND if number == 4 else AT
        if number == 4:
            alert(ledger, number, began, state="CLEARED")
        ledger.fire(began + delay * SECOND - 1)
        alarm = ledger.get(KEY)
        assert (alarm.state, alarm.pending) == (before, event)
        ledger.fire(began + delay * SECOND)
        assert (alarm.state, alarm.pending, alarm.changed_at) == (after, "", began + delay * SECOND)


@pytest.mark.parametrize(("passed", "state"), [(2 * SECOND - 1, "ACKED"), (2 * SECOND, "UNACK")])
def test_news_of_an_acknowledged_alarm_ask_again_to_the_microsecond(passed, state):
    ledger = acknowledged(re_alarm=2.0)
    alert(ledger, 3, AT + passed)
    assert ledger.get(KEY).state == state


@pytest.mark.parametrize(
    ("growth", "before", "value", "state"),
    [
        (2.0, 3, 5.9, "ACKED"),
        (2.0, 3, 6, "UNACK"),
        (2.0, 0.5, 1, "UNACK"),
        (2.0, 0, 5, "ACKED"),
        (0.0, 3, 300, "ACKED"),
    ],
)
def test_a_value_that_grows_asks_again_from_the_factor_on(growth, before, value, state):
    ledger = acknowledged({"n": before, "other": 1}, re_alarm_growth=growth)
    alert(ledger, 3, values={"new": 100, "n": value})
    assert ledger.get(KEY).state == state


@pytest.mark.parametrize(
    ("ahead", "skewed"), [(10 * SECOND, 0), (10 * SECOND + 1, 1), (-7 * DAY, 0), (-7 * DAY - 1, 1)]
)
def test_a_clock_is_believed_up_to_a_limit(ahead, skewed):
    ledger = make()
    alert(ledger, 1, raised_at=AT + ahead)
    assert (ledger.skewed, ledger.get(KEY).raised_at) == (skewed, AT if skewed else AT + ahead)


def test_each_alert_counts_once_and_an_overtaken_one_does_not():
    ledger = make()
    assert alert(ledger, 1, sequence=5)
    assert not alert(ledger, 1, sequence=5)
    assert not alert(ledger, 2, sequence=4, raised_at=AT - 1)
    assert not alert(ledger, 2, sequence=3, raised_at=AT - 1)
    assert ledger.out_of_order == 2
    assert alert(ledger, 3, sequence=5, raised_at=AT - 1), "its source may repeat a number"
    assert alert(ledger, 4, sequence=1, raised_at=AT + 1), "the source counts anew"
    alarm = ledger.get(KEY)
    assert (alarm.source_sequence, alarm.through, alarm.text) == (1, 4, "4")
    assert ledger.out_of_order == 2


@pytest.mark.parametrize("delay", [0.0, 2.0])
def test_a_source_that_was_restarted_goes_on_with_its_alarm_under_lower_numbers(delay):
    """As `docs/how-to/raise-alerts.md` has it: the count may begin at 1 again, and raised_at stays."""
    ledger = make(on_delay=delay, off_delay=delay)
    alert(ledger, 1, sequence=41)
    assert alert(ledger, 2, AT + SECOND, sequence=1, severity="CRITICAL")
    ledger.fire(AT + 3 * SECOND)
    alarm = ledger.get(KEY)
    assert (alarm.state, alarm.severity, alarm.source_sequence) == ("UNACK", "CRITICAL", 1)
    alert(ledger, 3, AT + 3 * SECOND, sequence=41)
    assert alert(ledger, 4, AT + 4 * SECOND, sequence=1, state="CLEARED")
    assert alert(ledger, 5, AT + 4 * SECOND, sequence=2, state="CLEARED")
    ledger.fire(AT + 7 * SECOND)
    assert (alarm.state, alarm.text, ledger.out_of_order) == ("RTNUN", "5", 0)
    assert not alert(ledger, 6, AT + 7 * SECOND, sequence=1), "what is over comes back under a new raised_at only"
    assert (alarm.state, ledger.out_of_order) == ("RTNUN", 1)


def test_within_an_off_delay_an_alarm_that_was_cleared_is_over():
    ledger = make(off_delay=5.0)
    alert(ledger, 1, sequence=2)
    alert(ledger, 2, sequence=3, state="CLEARED")
    assert not alert(ledger, 3, sequence=1)
    assert ledger.get(KEY).pending == "CLEAR"
    assert alert(ledger, 4, sequence=4, raised_at=AT + 1)
    assert ledger.get(KEY).pending == "", "it has come back"


@pytest.mark.parametrize(
    ("cleared", "put_back", "counts"),
    [
        (True, {"sequence": 40}, False),
        (True, {"sequence": 99}, False),  # the source was restarted, and has cleared it under a lower number
        (True, {"sequence": 99, "raised_at": AT - 1}, False),
        (True, {"sequence": 1, "raised_at": AT + 1}, True),  # an occurrence of which nothing else was heard
        (False, {"sequence": 99}, True),
        (False, {"sequence": 40}, False),
        (False, {"sequence": 99, "state": "CLEARED"}, True),
        (False, {"sequence": 40, "state": "CLEARED"}, False),
    ],
)
def test_a_dead_letter_that_is_put_back_brings_no_old_alarm_back_and_overrules_nothing(cleared, put_back, counts):
    ledger = make()
    alert(ledger, 1, sequence=41)
    if cleared:
        alert(ledger, 2, sequence=42, state="CLEARED")
    state = ledger.get(KEY).state
    assert alert(ledger, 3, redriven=True, **put_back) is counts
    assert ledger.out_of_order == (not counts)
    assert counts or ledger.get(KEY).state == state


@pytest.mark.parametrize(
    ("first", "state", "second", "raised"),
    [
        (AT, "ACTIVE", AT - 1, AT - 1),  # its source has looked again
        (AT, "CLEARED", AT - 1, AT),
        (AT - 8 * DAY, "ACTIVE", AT - 8 * DAY, AT),  # a wrong clock: the bus's time of the first alert stays
        (0, "ACTIVE", 0, AT),
    ],
)
def test_an_alarm_was_raised_when_its_occurrence_began(first, state, second, raised):
    ledger = make()
    alert(ledger, 1, raised_at=first)
    assert alert(ledger, 2, AT + SECOND, raised_at=second, state=state)
    assert ledger.get(KEY).raised_at == raised


@pytest.mark.parametrize(
    ("about", "happens", "gone"),
    [
        ({}, ["CLEARED"], True),
        ({}, ["CLEARED", "ACTIVE"], False),
        ({"on_delay": 3600.0}, ["ACTIVE"], False),
        ({}, ["CLEARED", "SHELVE"], False),
        ({}, ["CLEARED", "REMOVE_FROM_SERVICE"], False),
    ],
)
def test_an_alarm_is_forgotten_only_at_rest_and_with_nothing_over_it(about, happens, gone):
    ledger = make(**about)
    for number, what in enumerate(happens, 1):
        if what in ("ACTIVE", "CLEARED"):
            assert alert(ledger, number, state=what)
        else:
            assert act(ledger, what, number, until=AT + DAY) is None
    ledger.take_touched(AT)
    assert ledger.take_touched(AT + 600 * SECOND) == ([(KEY, None)] if gone else [])


def test_a_due_alarm_that_is_forgotten_and_a_shelf_that_goes_on_keep_nothing_from_its_time():
    ledger = make(on_delay=1.0)
    alert(ledger, 1, source="forgotten")
    alert(ledger, 2)
    assert act(ledger, "SHELVE", 3, until=AT + 60 * SECOND) is None
    ledger.forget(("c", "forgotten"))
    ledger.fire(AT + SECOND)
    assert (ledger.get(KEY).state, ledger.get(KEY).shelved_until) == ("UNACK", AT + 60 * SECOND)


def test_an_event_that_does_not_fit_the_state_of_a_recalled_alarm_changes_nothing():
    """A newer ICD may have another off-delay than the one by which the alarm was planned."""
    ledger = make()
    ledger.recall(Alarm(condition="c", source="s", state="RTNUN", through=1, pending="CLEAR", pending_at=AT))
    assert ledger.take_moved() == {"c"}
    ledger.fire(AT)
    assert (ledger.get(KEY).state, ledger.get(KEY).pending) == ("RTNUN", "")


def test_a_clock_that_was_far_ahead_hides_nothing_once_it_is_right():
    ledger = make()
    alert(ledger, 1, sequence=5, raised_at=AT + 10 * SECOND + 1)
    assert alert(ledger, 2, sequence=4, raised_at=AT)
    assert (ledger.get(KEY).source_raised_at, ledger.get(KEY).raised_at) == (AT, AT)
    alert(ledger, 3, sequence=7, raised_at=AT + 10 * SECOND)
    assert not alert(ledger, 4, sequence=6, raised_at=AT), "ten seconds ahead is no wrong clock"


def test_a_shelf_ends_to_the_microsecond_and_says_that_it_did():
    ledger = make()
    alert(ledger, 1)
    assert act(ledger, "SHELVE", 2, until=AT + 60 * SECOND) is None
    ledger.take_touched(AT)
    ledger.fire(AT + 60 * SECOND - 1)
    assert (ledger.shown(ledger.get(KEY)), ledger.take_touched(AT)) == ("SHLVD", [])
    ledger.fire(AT + 60 * SECOND)
    assert ledger.shown(ledger.get(KEY)) == "UNACK"
    assert ledger.take_touched(AT) == [(KEY, ledger.get(KEY))]
    assert ledger.get(KEY).changed_at == AT + 60 * SECOND


def test_what_an_operator_did_is_remembered_with_the_alarm(monkeypatch):
    monkeypatch.setattr(module, "_MOST_ACTED", 2)
    ledger = make(latching=True)
    alert(ledger, 1, values={"n": 1})
    for number, action in enumerate(
        ("ACKNOWLEDGE", "SHELVE", "UNSHELVE", "REMOVE_FROM_SERVICE", "RETURN_TO_SERVICE"), 2
    ):
        assert act(ledger, action, number, AT + number, occurrence=1, until=AT + SECOND) is None
        alarm = ledger.get(KEY)
        assert (alarm.action, alarm.operator, alarm.comment) == (action, "ann", "why")
        assert (alarm.acted_at, alarm.changed_at, alarm.through) == (AT + number, AT + number, number)
    assert (alarm.acted, alarm.acknowledged_at, alarm.acknowledged_values) == ([5, 6], AT + 2, {"n": 1})
    assert (alarm.shelved_until, alarm.out_of_service) == (0, False)
    assert act(ledger, "SHELVE", 6) is None, "it had its effect"
    assert act(ledger, "SHELVE", 4) == "it had no effect when it was first read"


def done(ledger):
    return [one.action for one in ledger.get(KEY).actions]


def test_an_alarm_keeps_its_actions_until_it_has_come_to_rest():
    ledger = make(on_delay=2.0)
    alert(ledger, 1)
    ledger.fire(AT + 2 * SECOND)
    act(ledger, "SHELVE", 2, AT + 2 * SECOND, until=AT + 60 * SECOND)
    act(ledger, "ACKNOWLEDGE", 3, AT + 3 * SECOND, occurrence=1)
    alert(ledger, 4, AT + 4 * SECOND, state="CLEARED")
    alert(ledger, 5, AT + 5 * SECOND, raised_at=AT + 5 * SECOND, sequence=5)
    assert done(ledger) == ["SHELVE", "ACKNOWLEDGE"], "a shelved alarm is not at rest"
    alert(ledger, 6, AT + 6 * SECOND, state="CLEARED", raised_at=AT + 5 * SECOND, sequence=6)
    ledger.fire(AT + 60 * SECOND)
    assert done(ledger) == ["SHELVE", "ACKNOWLEDGE"], "the newest story is still told"
    alert(ledger, 7, AT + 61 * SECOND, raised_at=AT + 61 * SECOND, sequence=7)
    assert done(ledger) == [], "this is another one"


def test_a_comment_on_an_alarm_at_rest_begins_a_story_of_its_own():
    ledger = acknowledged()
    alert(ledger, 3, state="CLEARED")
    act(ledger, "COMMENT", 4)
    act(ledger, "COMMENT", 5)
    assert done(ledger) == ["COMMENT"]


def test_of_many_actions_those_that_explain_the_state_stay():
    ledger = acknowledged(latching=True)
    act(ledger, "SHELVE", 3, until=AT + 60 * SECOND, operator="first")
    act(ledger, "SHELVE", 4, until=AT + 60 * SECOND, operator="second")
    act(ledger, "REMOVE_FROM_SERVICE", 5)
    for number in range(6, 40):
        act(ledger, "COMMENT", number, comment=str(number))
    alarm = ledger.get(KEY)
    assert done(ledger) == ["ACKNOWLEDGE", "SHELVE", "REMOVE_FROM_SERVICE", *["COMMENT"] * 13]
    assert (alarm.actions[1].operator, alarm.actions[3].comment, alarm.actions[-1].comment) == ("second", "27", "39")
    act(ledger, "UNSHELVE", 40)
    assert done(ledger) == ["ACKNOWLEDGE", "REMOVE_FROM_SERVICE", *["COMMENT"] * 13, "UNSHELVE"]


def test_the_action_of_an_alarm_from_an_older_release_is_told():
    ledger = make()
    ledger.recall(
        Alarm(
            condition="c",
            source="s",
            state="ACKED",
            through=2,
            action="ACKNOWLEDGE",
            operator="ann",
            comment="why",
            acted_at=AT,
        )
    )
    (one,) = ledger.get(KEY).actions
    assert (one.action, one.operator, one.comment, one.time) == ("ACKNOWLEDGE", "ann", "why", AT)


def test_alarms_at_rest_are_forgotten_by_age_and_number(monkeypatch):
    monkeypatch.setattr(module, "_MOST_AT_REST", 2)
    ledger = make()
    for number, source in enumerate("abcd", 1):
        alert(ledger, number, AT + number, state="CLEARED", source=source)
    alert(ledger, 5, AT, source="e")
    gone = {key: alarm for key, alarm in ledger.take_touched(AT + 4) if alarm is None}
    assert list(gone) == [("c", "a"), ("c", "b")]
    assert ledger.take_touched(AT + 3 + 600 * SECOND - 1) == []
    assert ledger.take_touched(AT + 3 + 600 * SECOND) == [(("c", "c"), None)]
    assert [alarm.source for alarm in ledger.alarms()] == ["d", "e"]
    ledger.touch_all()
    touched = [key[1] for key, _ in ledger.take_touched(AT + 4)]
    assert sorted(touched) == ["b", "c", "d", "e"], "of those forgotten, the newest ones"


def test_a_condition_of_which_the_last_alarm_is_forgotten_is_gone_and_has_moved():
    ledger = make()
    alert(ledger, 1, state="CLEARED")
    assert ledger.take_moved() == {"c"}
    for unknown in (("c", "other"), ("other", "s")):
        ledger.forget(unknown)
    assert (list(ledger.by_condition), ledger.take_moved()) == (["c"], {"c", "other"})
    ledger.forget(KEY)
    assert (ledger.by_condition, ledger.take_moved()) == ({}, {"c"})
    ledger.touch_all()
    assert ledger.take_touched(AT) == [(KEY, None)], "what had changed before it was forgotten"


def test_each_occurrence_has_its_time_and_number():
    ledger = make(on_delay=1.0)
    alert(ledger, 1)
    alert(ledger, 2, AT + SECOND // 2)
    ledger.fire(AT + SECOND)
    assert ledger.take_occurrences() == [(KEY, AT + SECOND)]
    assert ledger.take_occurrences() == []
    assert (ledger.get(KEY).occurrence, ledger.get(KEY).raised) == (1, 1)
    alert(ledger, 3, AT + 2 * SECOND, severity="CRITICAL")
    assert ledger.take_occurrences() == [(KEY, AT + 2 * SECOND)]
    assert (ledger.get(KEY).occurrence, ledger.get(KEY).raised) == (3, 2)


@pytest.mark.parametrize(("latching", "state"), [(False, "RTNUN"), (True, "LTUNK")])
def test_an_occurrence_that_is_suppressed_leaves_an_alarm_open_that_operators_were_told_of(latching, state):
    ledger = explained(latching=latching)
    alert(ledger, 1)
    alert(ledger, 2, AT + 1, state="CLEARED")
    alert(ledger, 3, AT + 2, condition="cause", source="rack")
    alert(ledger, 4, AT + 3, raised_at=AT + 3)
    alert(ledger, 5, AT + 4, raised_at=AT + 3, state="CLEARED")
    alarm = ledger.get(KEY)
    assert (alarm.state, alarm.annunciated, alarm.raised) == (state, True, 2)
    assert ledger.take_annunciations() == [AT, AT + 2]


def test_an_acknowledged_alarm_that_asks_again_under_its_cause_is_told_when_the_cause_ends():
    ledger = explained()
    alert(ledger, 1)
    act(ledger, "ACKNOWLEDGE", 2, occurrence=1)
    alert(ledger, 3, AT + 1, condition="cause", source="rack")
    alert(ledger, 4, AT + 2, severity="CRITICAL")
    assert (ledger.get(KEY).state, ledger.get(KEY).annunciated) == ("UNACK", False)
    alert(ledger, 5, AT + 3, condition="cause", source="rack", state="CLEARED")
    assert ledger.take_annunciations() == [AT, AT + 1, AT + 3]


CAUSE = ("cause", "rack")


@pytest.mark.parametrize(
    ("written", "told"),
    [
        pytest.param({CAUSE: 3}, [AT + 3], id="the end of the cause, its consequence not"),
        pytest.param({KEY: 2, CAUSE: 0}, [AT, AT + 2], id="the consequence, its cause not"),
        pytest.param({KEY: 3, CAUSE: 3}, [], id="both"),
    ],
)
def test_a_kill_between_two_states_that_are_written_leaves_no_alarm_untold(written, told):
    ledger, pictures = explained(), [{}]
    records = [
        {"condition": "cause", "source": "rack"},
        {"raised_at": AT + 1},
        {"condition": "cause", "source": "rack", "state": "CLEARED"},
    ]
    for number, record in enumerate(records):
        alert(ledger, number + 1, AT + number, **record)
        pictures.append({alarm.key: encode(alarm) for alarm in ledger.alarms()})
    restarted = explained()
    for key in (KEY, CAUSE):
        if state := pictures[written.get(key, 2)].get(key):
            restarted.recall(decode_alarm(state))
    for number, record in enumerate(records):
        alert(restarted, number + 1, AT + number, **record)
    restarted.fire(AT + 3)
    assert restarted.take_annunciations() == told
    assert [restarted.get(key).annunciated for key in (KEY, CAUSE)] == [True, True]
    assert restarted.take_touched(AT + 3) or not told, "it is written"


@pytest.mark.parametrize("unshelve", [True, False])
def test_a_cause_on_the_shelf_hides_no_other_alarm(unshelve):
    ledger = explained()
    alert(ledger, 1, condition="cause")
    alert(ledger, 2, AT + 1)
    assert act(ledger, "SHELVE", 3, AT + 2, condition="cause", until=AT + 60 * SECOND) is None
    alert(ledger, 4, AT + 3, source="later")
    assert ledger.take_annunciations() == [AT, AT + 2, AT + 3]
    assert [state for state, _ in ledger.shown_of("c")] == ["UNACK", "UNACK"]
    if unshelve:
        assert act(ledger, "UNSHELVE", 5, AT + 4, condition="cause") is None
    else:
        ledger.fire(AT + 60 * SECOND)
    alert(ledger, 6, AT + 61 * SECOND, source="last")
    assert [state for state, _ in ledger.shown_of("c")] == ["DSUPR"] * 3
    assert ledger.take_annunciations() == []
