"""Whatever is lost, doubled or overtaken, and whenever the answers come: everything once, in order, nothing else."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from facade.flows.alerts.follower import Follower
from tests.support.examples import examples


@st.composite
def logs(draw) -> list[tuple[int, int]]:
    """Numbers with the number before each; some numbers are none of alerts, and a restart may forget which."""
    steps = draw(st.lists(st.integers(1, 4), min_size=1, max_size=40))
    log, number = [], 0
    for step in steps:
        before, number = number, number + step
        log.append((number, draw(st.integers(before, number - 1))))
    return log


def event(one: tuple[int, int]) -> str:
    return json.dumps({"sequence": one[0], "previous": one[1], "time": 0.0, "alert": {}})


def answer(log: list[tuple[int, int]], asked: int, most: int) -> str:
    entries = [json.loads(event(one)) for one in log if one[0] > asked][:most]
    return json.dumps({"newest": log[-1][0] if log else 0, "entries": entries})


@settings(max_examples=examples(400))
@given(st.data(), logs(), st.integers(1, 6), st.integers(1, 8))
def test_all_is_given_once_and_in_order(data, log, most, most_held):
    start = data.draw(st.integers(0, log[-1][0]))
    follower, given_out = Follower(start, most_held=most_held), []
    asked: list[tuple[int, str]] = []  # answers on their way
    grown = 0
    for _ in range(data.draw(st.integers(0, 80))):
        match data.draw(st.sampled_from(("grow", "event", "announce", "ask", "answer"))):
            case "grow":
                grown = min(grown + data.draw(st.integers(1, 5)), len(log))
            case "event" if grown:
                given_out += follower.take(event(log[data.draw(st.integers(0, grown - 1))]))
            case "announce" if grown:
                follower.announce(log[data.draw(st.integers(0, grown - 1))][0])
            case "ask" if (missing := follower.missing()) is not None:
                asked.append((missing, answer(log[:grown], missing, most)))
            case "answer" if asked:
                number, text = asked.pop(data.draw(st.integers(0, len(asked) - 1)))
                if json.loads(text)["newest"] >= number:  # else the server was still reading, and refuses
                    given_out += follower.add_page(number, text)
        assert len(follower._held) <= most_held
    follower.announce(log[-1][0])
    for _ in range(len(log) + 2):
        if (missing := follower.missing()) is not None:
            given_out += follower.add_page(missing, answer(log, missing, most))
    assert follower.missing() is None
    assert [entry.sequence for entry in given_out] == [number for number, _ in log if number > start]
    assert follower.by_event + follower.by_page == len(given_out)
    assert follower.made_anew == 0


@given(logs(), logs(), st.integers(1, 6))
def test_a_shorter_log_in_place_of_the_old_one_is_noticed_and_given_whole(old, new, most):
    follower = Follower(0)
    for one in old:
        follower.take(event(one))
    while (missing := follower.missing()) is not None:
        follower.add_page(missing, answer(old, missing, most))
    follower.announce(new[-1][0])
    given_out = []
    for _ in range(len(new) + 3):
        if (missing := follower.missing()) is not None:
            given_out += follower.add_page(missing, answer(new, missing, most))
    if new[-1][0] < old[-1][0]:
        assert follower.made_anew == 1
        assert [entry.sequence for entry in given_out] == [number for number, _ in new]
