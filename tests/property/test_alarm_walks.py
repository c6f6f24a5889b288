"""Random lives of alarms: the table of states holds, and a replay from any place ends in the same states."""

from dataclasses import dataclass

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from facade.flows.alerts.ledger import AlarmLedger
from facade.flows.alerts.messages import Action, Alarm, Alert, decode_alarm, encode
from facade.kernel.icd.model import Condition, Location
from facade.sdp import alarm_states as states

PLAIN = Condition(label="", description="", response="", priority="LOW")
CONDITIONS = {
    "plain": PLAIN,
    "latching": msgspec.structs.replace(PLAIN, latching=True),
    "delayed": msgspec.structs.replace(PLAIN, on_delay=3.0, off_delay=2.0),
    "counting": msgspec.structs.replace(PLAIN, re_alarm=4.0, re_alarm_growth=2.0),
    "explained": msgspec.structs.replace(PLAIN, suppressed_by=("plain",)),
    "located": msgspec.structs.replace(PLAIN, suppressed_by=("plain@rack", "explained@node"), on_delay=2.0),
}
LOCATIONS = {
    "node": Location(description="", sources=("node/{node}",), within="rack"),
    "rack": Location(description="", sources=("rack/{rack}",)),
}
SOURCES = ("node/0", "node/1", "node/2", "rack/0")
"""Nodes 0 and 1 are in rack 0."""
ACTIONS = ("ACKNOWLEDGE", "COMMENT", "SHELVE", "UNSHELVE", "RESET", "REMOVE_FROM_SERVICE", "RETURN_TO_SERVICE")
START_US = 1_800_000_000_000_000


@dataclass(frozen=True)
class Step:
    """One record on the log."""

    after: int
    """Time since the one before [s]."""
    condition: str
    source: str
    what: str
    severity: str
    old: bool
    """Whether an acknowledgement names an occurrence that is not the newest."""


STEPS = st.lists(
    st.builds(
        Step,
        after=st.integers(0, 5),
        condition=st.sampled_from([*CONDITIONS, "unknown"]),
        source=st.sampled_from(SOURCES),
        what=st.sampled_from(["ACTIVE", "CLEARED", *ACTIONS]),
        severity=st.sampled_from(["INFO", "WARNING", "CRITICAL"]),
        old=st.booleans(),
    ),
    max_size=60,
)


class Walk:
    """Folds steps, one record after the other."""

    def __init__(self) -> None:
        self.ledger = AlarmLedger(CONDITIONS, LOCATIONS, rack_size=2)
        self.records: list[tuple[Alert | Action, int]] = []
        self.now_us = START_US

    def take(self, step: Step) -> str | None:
        self.now_us += step.after * 1_000_000
        record = self.record(step)
        self.records.append((record, self.now_us))
        return fold(self.ledger, record, len(self.records), self.now_us)

    def record(self, step: Step) -> Alert | Action:
        where = {"condition": step.condition, "source": step.source}
        if step.what in ("ACTIVE", "CLEARED"):
            number = len(self.records)
            raised_at = START_US if step.condition == "counting" else self.now_us
            return Alert(
                **where,
                state=step.what,
                severity=step.severity,
                text="",
                raised_at=raised_at,
                sequence=number,
                values={"n": number},
            )
        alarm = self.ledger.get((step.condition, step.source))
        return Action(
            **where,
            id=str(len(self.records)),
            action=step.what,
            operator="o",
            comment="",
            time=self.now_us,
            origin="t",
            occurrence=0 if alarm is None or step.old else alarm.occurrence,
            until=self.now_us + 4_000_000,
        )


def fold(ledger: AlarmLedger, record: Alert | Action, sequence: int, at_us: int) -> str | None:
    if isinstance(record, Alert):
        ledger.apply(record, sequence, at_us, redriven=False)
        return None
    return ledger.act(record, sequence, at_us)


def picture(ledger: AlarmLedger) -> dict[tuple[str, str], Alarm]:
    return {alarm.key: decode_alarm(encode(alarm)) for alarm in ledger.alarms()}


@given(STEPS)
def test_every_change_of_state_is_in_the_table(steps):
    walk = Walk()
    for step in steps:
        before = {alarm.key: alarm.state for alarm in walk.ledger.alarms()}
        walk.take(step)
        for alarm in walk.ledger.alarms():
            was = before.get(alarm.key, states.NORM)
            allowed = {was} | set(states.TRANSITIONS[was].values())
            # A delay may end just before the record is taken: two steps in one.
            allowed |= {last for one in set(allowed) for last in states.TRANSITIONS[one].values()}
            assert alarm.state in allowed


@given(STEPS, st.data())
def test_a_replay_over_states_that_were_written_ends_in_the_same_states(steps, data):
    walk, written, at, effects = Walk(), {}, 0, []
    cut = data.draw(st.integers(0, len(steps)), label="states written up to")
    # As many actions are remembered as come between two snapshots.
    again_from = data.draw(st.integers(max(0, cut - 16), cut), label="read again from")
    for index, step in enumerate(steps):
        if index == cut:
            written, at = picture(walk.ledger), len(walk.records)
        effects.append(walk.take(step))
    if cut == len(steps):
        written, at = picture(walk.ledger), len(walk.records)
    restarted = AlarmLedger(CONDITIONS, LOCATIONS, rack_size=2)
    for alarm in written.values():
        restarted.recall(alarm)
    for number, (record, at_us) in enumerate(walk.records[again_from:], again_from + 1):
        again = fold(restarted, record, number, at_us)
        assert (again is None) is (effects[number - 1] is None), "what was refused stays refused"
    for ledger in (walk.ledger, restarted):
        ledger.fire(walk.now_us)
    assert at == cut
    assert picture(restarted) == picture(walk.ledger)


@given(STEPS)
def test_a_new_occurrence_is_never_acknowledged_by_an_old_acknowledgement(steps):
    walk = Walk()
    for step in steps:
        alarm = walk.ledger.get((step.condition, step.source))
        before = None if alarm is None else alarm.state
        why = walk.take(step)
        if step.what == "ACKNOWLEDGE" and step.old:
            after = walk.ledger.get((step.condition, step.source))
            assert why is not None
            assert after is None or after.state == before or step.condition == "delayed"


@given(STEPS)
def test_shelving_ends_and_what_is_covered_goes_on(steps):
    walk = Walk()
    for step in steps:
        walk.take(step)
    walk.ledger.fire(walk.now_us + 10_000_000)
    for alarm in walk.ledger.alarms():
        assert not alarm.shelved_until
        assert not alarm.pending
        covered = alarm.out_of_service or is_explained(walk.ledger, alarm)
        assert (walk.ledger.shown(alarm) == alarm.state) is not covered


def is_explained(ledger: AlarmLedger, alarm: Alarm) -> bool:
    """Say by hand what CONDITIONS and LOCATIONS say."""
    causes = {
        "explained": [("plain", source) for source in SOURCES],
        "located": [("plain", "rack/0"), ("explained", alarm.source)]
        if alarm.source in ("node/0", "node/1")
        else [("explained", "node/2")]
        if alarm.source == "node/2"
        else [("plain", "rack/0")],
    }.get(alarm.condition, [])
    found = [one for key in causes if (one := ledger.get(key)) is not None]
    return alarm.state != states.NORM and any(
        one.state in states.ACTIVE and not one.out_of_service and not one.shelved_until for one in found
    )


@given(STEPS)
def test_of_each_alarm_operators_are_told_unless_another_one_explains_it(steps):
    """After each step the raised alarms are the suppressed and the annunciated ones."""
    walk = Walk()
    for step in steps:
        walk.take(step)
        walk.ledger.fire(walk.now_us)
        for alarm in walk.ledger.alarms():
            explained = is_explained(walk.ledger, alarm)
            assert (walk.ledger.cause(alarm) is not None) is explained
            if alarm.state in states.UNACKNOWLEDGED:
                assert alarm.annunciated or explained, "it is not lost"
            if alarm.state == states.RTNUN:
                assert alarm.annunciated, "what nobody was told of asks for no acknowledgement"


@given(st.floats(0.0, 1.999), st.sampled_from(["node/0", "node/1"]))
def test_a_cause_that_comes_within_the_delay_of_its_consequence_is_told_first(later, source):
    ledger, number = AlarmLedger(CONDITIONS, LOCATIONS, rack_size=2), iter(range(1, 9))

    def send(condition: str, source: str, state: str, at: float) -> None:
        sequence, at_us = next(number), START_US + round(at * 1e6)
        text = Alert(
            condition=condition,
            source=source,
            state=state,
            severity="ALARM",
            text="",
            raised_at=at_us,
            sequence=sequence,
        )
        ledger.apply(text, sequence, at_us, redriven=False)

    send("located", source, "ACTIVE", 0.0)
    send("plain", "rack/0", "ACTIVE", later)
    ledger.fire(START_US + 9_000_000)
    alarm = ledger.get(("located", source))
    assert (ledger.shown(alarm), ledger.cause(alarm), alarm.annunciated) == ("DSUPR", ("plain", "rack/0"), False)
    assert len(ledger.take_annunciations()) == 1
    send("plain", "rack/0", "CLEARED", 10.0)
    assert (ledger.shown(alarm), alarm.annunciated) == ("UNACK", True)
    assert ledger.take_annunciations() == [START_US + 10_000_000]


def test_the_table_names_every_state_and_only_those():
    reached = {state for row in states.TRANSITIONS.values() for state in row.values()}
    assert set(states.TRANSITIONS) == reached | {states.NORM} == set(states.STATES)
    assert set(states.URGENCY) == {*states.STATES, states.SHLVD, states.DSUPR, states.OOSRV}
