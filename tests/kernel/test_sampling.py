"""When an attribute may speak: the rule of KATCP's event-rate strategies, by a table and by properties."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facade.kernel.icd.model import Sampling
from facade.kernel.icd.topic_model import Limits
from facade.kernel.reading import Quality, Reading, judge
from facade.kernel.runtime.publisher import Sampler

INVALID = Quality.INVALID


def run(rule: Sampling, offers: dict[float, Reading], until: float, tick: float = 0.1) -> list[tuple[float, object]]:
    """Offer readings at their times, ask each tick, and give (time, value) of what was sent."""
    sampler, sent = Sampler(rule), []
    steps = round(until / tick)
    for step in range(steps + 1):
        now = round(step * tick, 6)
        event = sampler.offer(offers[now], now) if now in offers else sampler.due(now)
        if event is not None:
            sent.append((now, event.value))
    return sent


@pytest.mark.parametrize(
    ("rule", "offers", "expected"),
    [
        pytest.param(Sampling(shortest=1), {0.0: 1, 0.2: 2, 0.4: 3}, [(0.0, 1), (1.0, 3)], id="trailing edge: newest"),
        pytest.param(Sampling(shortest=1), {0.0: 1, 2.0: 2}, [(0.0, 1), (2.0, 2)], id="a change after the hold-off"),
        pytest.param(Sampling(shortest=1, absolute=5), {0.0: 10, 2.0: 14}, [(0.0, 10)], id="inside absolute deadband"),
        pytest.param(Sampling(shortest=1, absolute=5), {0.0: 10, 2.0: 16}, [(0.0, 10), (2.0, 16)], id="outside it"),
        pytest.param(Sampling(shortest=1, relative=0.5), {0.0: 10, 2.0: 14}, [(0.0, 10)], id="inside relative"),
        pytest.param(
            Sampling(shortest=1, longest=3, absolute=5), {0.0: 10, 2.0: 11}, [(0.0, 10), (3.0, 11)], id="longest"
        ),
        pytest.param(Sampling(shortest=1), {0.0: "a", 2.0: "a", 3.0: "b"}, [(0.0, "a"), (3.0, "b")], id="text"),
        pytest.param(Sampling(shortest=1), {0.0: 1, 0.2: 2, 0.4: 1}, [(0.0, 1)], id="back again within the hold-off"),
    ],
)
def test_the_rule_by_example(rule, offers, expected):
    readings = {at: Reading(value, at) for at, value in offers.items()}
    assert run(rule, readings, until=4.0) == expected


def test_a_change_of_quality_bypasses_every_filter():
    rule = Sampling(shortest=100, longest=1000, absolute=1e9)
    offers = {0.0: Reading(1, 0), 0.1: Reading(1, 0, INVALID), 0.2: Reading(2, 0), 0.3: Reading(3, 0)}
    assert run(rule, offers, until=1.0) == [(0.0, 1), (0.1, 1), (0.2, 2)]


@given(
    st.lists(st.tuples(st.floats(0.001, 3), st.integers(0, 5)), min_size=1, max_size=40),
    st.floats(0.1, 2),
)
@settings(max_examples=200, deadline=None)
def test_gaps_are_kept_and_the_last_value_always_arrives(steps, shortest):
    sampler, now, sent = Sampler(Sampling(shortest=shortest, longest=10)), 0.0, []
    for gap, value in steps:
        now += gap
        if (event := sampler.offer(Reading(value, now), now)) is not None:
            sent.append((now, event.value))
    now += 10 + shortest
    if (event := sampler.due(now)) is not None:
        sent.append((now, event.value))
    assert all(b[0] - a[0] >= shortest for a, b in itertools.pairwise(sent))
    assert sent[-1][1] == steps[-1][1]


@pytest.mark.parametrize(
    ("value", "quality"),
    [(-1, "ALARM"), (0, "ALARM"), (1, "WARNING"), (5, "VALID"), (9, "WARNING"), (10, "ALARM"), ("text", "VALID")],
)
def test_reaching_a_limit_counts_as_in_tango(value, quality):
    limits = Limits(min_alarm=0, min_warning=2, max_warning=9, max_alarm=10)
    assert judge(value, limits) is Quality(quality)
