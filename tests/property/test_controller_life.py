"""A command's life in its controller: the table that the controller goes by, walked at random."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facade.flows.commands import outcomes
from facade.sdk.controller.command_state import FINAL, TABLE, CommandState, Effect, Event, State, Transition
from tests.support.examples import examples

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command-life.md"
DONE = FINAL - {State.LEFT}
BEGUN = {State.RUNNING, State.IN_PROGRESS}
Way = list[tuple[State, Event, Transition]]


def reachable(*starts: State, without: frozenset[Event] = frozenset()) -> set[State]:
    found, open_ = set(starts), [*starts]
    while open_:
        after = {step.state for event, step in TABLE[open_.pop()].items() if event not in without} - found
        found |= after
        open_ += after
    return found


@st.composite
def ways(draw: st.DrawFn) -> tuple[CommandState, Way]:
    """Events in any order that the table knows, until nothing leads on."""
    life, way = CommandState(), []
    for _ in range(draw(st.integers(1, 40))):
        before = life.state
        event = draw(st.sampled_from(sorted(TABLE[before], key=lambda one: one.name)))
        way.append((before, event, life.happen(event)))
        assert life.state is way[-1][2].state
    return life, way


walks = settings(max_examples=examples(300), deadline=None)


def test_every_state_is_reached_and_leads_to_an_end() -> None:
    """Every line of the table is used, and nothing waits for ever: not even for a partition to go away."""
    assert set(TABLE) == set(State) == reachable(State.TAKEN)
    assert {event for steps in TABLE.values() for event in steps} == set(Event)
    for state in State:
        assert reachable(state, without=frozenset({Event.PARTITION_LOST, Event.STOP})) & DONE or state is State.LEFT


def test_final_states_are_final() -> None:
    assert FINAL == {State.ENDED, State.SKIPPED, State.MOVED, State.LEFT}
    for state in FINAL:
        assert reachable(state) == {state}
        assert set(TABLE[state].values()) == {Transition(state)}, "nothing is done any more"


@pytest.mark.parametrize("state", [one for one in State if one is not State.TAKEN], ids=lambda one: one.name)
def test_a_partition_may_go_at_any_time(state: State) -> None:
    step = TABLE[state][Event.PARTITION_LOST]
    assert step.outcome is None
    ours = FINAL | BEGUN | {State.OWNED, State.ENDING, State.LOST}
    assert (step.state is state) == (state in ours)
    if state not in ours:
        on_their_own = reachable(step.state, without=frozenset({Event.STOP, Event.BEGUN_HERE}))
        assert on_their_own <= {State.LOST, State.MOVED}, "neither begun nor ended here"


def test_the_other_thread_may_come_with_anything_after_the_partition_has_gone() -> None:
    before = (State.STARTING, State.ALLOWED, State.RESUMING, State.ACCEPTED)
    assert {event for state in before for event in TABLE[state]} <= set(TABLE[State.LOST])


def test_an_event_that_the_table_does_not_know_is_a_mistake() -> None:
    life = CommandState()
    with pytest.raises(RuntimeError, match="for a command that is TAKEN, got CONFIRM"):
        life.happen(Event.CONFIRM)
    assert life.state is State.TAKEN


@walks
@given(ways())
def test_one_outcome_at_most_and_the_first_wins(found: tuple[CommandState, Way]) -> None:
    life, way = found
    ends = [step for _, _, step in way if step.outcome is not None]
    assert len(ends) <= 1
    assert not ends or life.state in (State.ENDING, State.ENDED, State.LEFT)
    assert all(state is State.ENDING for state, event, _ in way if event is Event.CONFIRM)


@walks
@given(ways())
def test_the_outcome_is_one_that_everybody_takes(found: tuple[CommandState, Way]) -> None:
    """By the table of outcomes that device servers go by; a life before may have reported progress already."""
    said = {Event.ACCEPT: "ACCEPTED", Event.PROVE: "ACCEPTED", Event.PROGRESS: "IN_PROGRESS"}
    status, life, way = outcomes.SENT, *found
    for state, event, step in way:
        if event is Event.BEGUN_BEFORE and step.state is State.RESUMING:
            status = outcomes.IN_PROGRESS
        acknowledged = step.outcome or (said.get(event) if step.state is not State.MOVED else None)
        if acknowledged is not None:
            assert acknowledged in outcomes.TRANSITIONS[status], (state, event)
            status = acknowledged
    assert life.again == any(step.state is State.RESUMING for _, _, step in way)


@walks
@given(ways())
def test_it_begins_once_at_most_and_only_when_it_may(found: tuple[CommandState, Way]) -> None:
    """Accepted in this life or an earlier one, and not while its partition is known to be another's."""
    _, way = found
    begun = [state for state, _, step in way if state not in BEGUN and step.state in BEGUN]
    assert len(begun) <= 1
    assert set(begun) <= {State.ACCEPTED, State.OWNED, State.RESUMING}
    completed = any(step.outcome == "COMPLETED" for _, _, step in way)
    assert begun or not completed


@walks
@given(ways())
def test_its_offset_may_be_committed_once_nobody_needs_its_record(found: tuple[CommandState, Way]) -> None:
    _, way = found
    effects = Counter(effect for _, _, step in way for effect in step.effects)
    states = {step.state for _, _, step in way}
    assert bool(effects[Effect.COMMIT]) == bool(states & {State.OWNED, State.ENDED, State.SKIPPED})
    assert effects[Effect.REPEAT] <= 1 >= effects[Effect.HOOK]
    assert sum(bool(step.reason) for _, _, step in way) == bool(states & {State.SKIPPED, State.MOVED})


def table() -> str:
    """Return the page's tables of what the code goes by."""
    lines = ["| state | means | what may happen then |", "| --- | --- | --- |"]
    for state, steps in TABLE.items():
        changes = [
            f"{event.name} → {step.state.name}" + (f" ({step.outcome})" if step.outcome else "")
            for event, step in steps.items()
            if step.state is not state
        ]
        lines.append(f"| {state.name} | {state.value} | {', '.join(changes) or 'nothing'} |")
    lines += ["", "| event | means |", "| --- | --- |"]
    lines += [f"| {event.name} | {event.value} |" for event in Event]
    return "\n".join(lines)


def test_the_page_shows_the_table() -> None:
    assert table() in PAGE.read_text()
