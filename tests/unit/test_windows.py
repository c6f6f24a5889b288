"""Which window is shown when, to the hundredth of a second, of windows that last one second each."""

import pytest

from facade.flows.telemetry.plan import plan
from facade.flows.telemetry.windows import AllGroupsState, AllGroupsWindows, GroupWindows, is_over
from facade.icd.load import load
from facade.messages import Partial

ICD = load()
PLAN = plan(ICD, "ingest.heaps")
FIRST = 1_800_000_000
"""Start of window 0 [Unix s]."""
SHORT = 0.01


def partial(number, count=1, **changes):
    start = (FIRST + number) * 1_000_000
    usual = {"epoch": 7, "late": False, "time_min": start, "time_max": start, "runs": [], "fields": {}}
    return Partial(window=start, count=count, **{**usual, **changes})


def number(found):
    """Return which window is shown."""
    shown = found[0] if isinstance(found, tuple) else found
    return None if shown is None else shown.window // 1_000_000 - FIRST


@pytest.mark.parametrize("topic", ["ingest.heaps", "storage"])
def test_a_window_is_over_after_a_silence_or_when_all_that_could_come_is_late(topic):
    """Heaps may be late for longer than a window lasts; of storage it is the other way round."""
    rule = plan(ICD, topic).window
    late = FIRST + rule.length + rule.lateness + rule.hold
    silence = min(rule.length, rule.lateness) + rule.hold
    for now, silent, over in (
        (FIRST, rule.length + rule.hold, True),
        (FIRST, rule.length + rule.hold - SHORT, False),
        (late, silence, True),
        (late, silence - SHORT, False),
        (late - SHORT, silence, rule.length <= rule.lateness),
    ):
        assert is_over(plan(ICD, topic), FIRST * 1_000_000, now, silent) is over, (now - FIRST, silent)


def group(*numbers, rebuilt=False):
    windows = GroupWindows(PLAN, rebuilt=rebuilt)
    for at in numbers:
        windows.add(partial(at), FIRST + at)
    return windows


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [((), None), ((0,), None), ((0, 1), 0), ((1, 0), 0), ((0, 3), 0), ((0, 4), None), ((0, 1, 2, 3), 2)],
)
def test_a_group_shows_the_newest_window_that_it_has_left_lately(numbers, shown):
    assert number(group(*numbers).shown(FIRST + max(numbers, default=0))) == shown


def test_a_group_keeps_its_newest_windows_and_counts_neither_late_nor_empty_partials():
    assert group().heard == 0
    windows = group(3, 0, 1, 2)
    windows.add(partial(9, late=True), FIRST)
    windows.add(partial(9, count=0), FIRST)
    assert sorted(map(number, windows.as_list())) == [1, 2, 3]
    assert windows.heard == FIRST + 3
    windows.add(partial(3, 4), FIRST)
    assert windows.as_list()[0].count == 5


def test_a_window_that_silence_has_closed_stays_closed():
    windows = group(0)
    assert windows.shown(FIRST + 1.25 - SHORT) is None
    assert number(windows.shown(FIRST + 1.25)) == 0
    windows.add(partial(0, 2), FIRST + 1.3)
    assert windows.shown(FIRST + 1.3).count == 3
    windows.add(partial(1), FIRST + 1.4)
    assert number(windows.shown(FIRST + 1.4)) == 0
    windows.add(partial(2), FIRST + 2.4)
    assert number(windows.shown(FIRST + 2.4)) == 1


@pytest.mark.parametrize(("rebuilt", "shown"), [(True, [None, 1]), (False, [0, 1])])
def test_what_is_rebuilt_does_not_show_the_window_in_whose_middle_it_began(rebuilt, shown):
    windows, every = group(0, 1, rebuilt=rebuilt), AllGroupsWindows(PLAN, rebuilt=rebuilt)
    found = [number(windows.shown(FIRST + 1))]
    windows.add(partial(2), FIRST + 2)
    assert [*found, number(windows.shown(FIRST + 2))] == shown
    every.add(1, partial(0), FIRST)
    found = [number(every.shown(FIRST + 2, 10))]
    every.add(1, partial(1), FIRST + 2)
    assert [*found, number(every.shown(FIRST + 4, 10))] == shown


def groups(**numbers):
    """Return windows over all groups, each of which was last heard in its last window."""
    windows = AllGroupsWindows(PLAN, rebuilt=False)
    for name, several in numbers.items():
        for at in several:
            windows.add(name, partial(at), FIRST + at)
    return windows


@pytest.mark.parametrize(
    ("numbers", "within", "shown"),
    [
        ({}, 10, None),
        ({"a": [0, 1, 2]}, 10, 1),
        ({"a": [0, 1]}, 10, None),  # other groups may be in window 0
        ({"a": [0, 2, 4]}, 2, 2),
        ({"a": [0, 3, 5]}, 2, None),  # nothing was there shortly before window 3
        ({"a": [0, 1, 4]}, 2, None),  # window 1 was before a silence
        ({"a": [0, 1, 2], "b": [0, 1, 2], "c": [9]}, 20, 1),
        ({"a": [0, 1, 2, 3], "b": [0, 1, 3], "c": [0, 1, 3]}, 20, 1),  # one of three is less than half
        ({"a": [0, 1, 2, 3], "b": [0, 1, 3]}, 20, 2),  # one of two is half
        ({"a": [0, 1, 2], "b": [0, 1]}, 20, None),  # window 0 is the first, and b may have more for window 1
    ],
)
def test_the_newest_window_that_half_of_the_groups_are_in_and_have_left_is_shown(numbers, within, shown):
    windows = groups(**numbers)
    now = FIRST + max((several[-1] for several in numbers.values()), default=0)
    assert number(windows.shown(now, within)) == shown


def test_all_groups_wait_for_a_slow_one_for_the_hold_time():
    windows = groups(a=[0, 1, 2], b=[0, 1], c=[0, 1, 2])
    assert windows.shown(FIRST + 2.1, 10) is None
    assert windows.shown(FIRST + 2.35 - SHORT, 10) is None
    found = windows.shown(FIRST + 2.35, 10)
    assert (number(found), found[0].count, found[1]) == (1, 3, {"a", "b", "c"})
    assert windows.shown(FIRST + 2.4, 10) == found


def test_a_window_over_all_groups_that_silence_has_closed_stays_closed():
    windows = groups(a=[0], b=[0])
    assert windows.shown(FIRST + 1.25 - SHORT, 10) is None
    assert number(windows.shown(FIRST + 1.25, 10)) == 0
    windows.add("b", partial(0), FIRST + 1.3)
    assert windows.shown(FIRST + 1.3, 10)[0].count == 3


def test_groups_are_live_for_a_time_and_their_newest_window_is_shown_after_it():
    windows = groups(a=[0, 1], b=[0])
    windows.add("a", partial(0, late=True), FIRST + 3)
    windows.add("c", partial(9, count=0), FIRST + 4)
    assert windows.live(FIRST + 5, 1) == {"c"}
    assert windows.live(FIRST + 5, 2) == {"a", "c"}
    windows.add("a", partial(0), FIRST)
    assert windows.live(FIRST + 5, 2) == {"a", "c"}, "records may be read in any order"
    assert number(windows.shown(FIRST + 100, 10)) == 1


def test_a_group_is_heard_and_has_its_newest_window_from_the_first_microsecond_on():
    windows = AllGroupsWindows(PLAN, rebuilt=False)
    windows.add("a", partial(-FIRST), 0.0)
    assert (windows.live(1.0, 0.5), windows.state().newest) == (set(), [("a", 0)])


def test_a_group_is_waited_for_as_long_as_its_window_could_go_on():
    windows = groups(a=[0, 1, 2])
    assert number(windows.shown(FIRST + 3, 0.0)) == 1


def test_of_a_group_whose_newest_window_is_no_longer_kept_nothing_is_shown():
    windows = groups(a=[0], b=range(5, 20))
    windows.hear("a", FIRST + 100)
    assert windows.shown(FIRST + 101.5, 2) is None


def test_windows_over_all_groups_are_few_and_come_back_from_a_snapshot():
    windows = groups(a=range(14, -1, -1), b=[14])
    state = windows.state()
    assert sorted(number(one) for one, _ in state.windows) == [*range(3, 15)]
    assert state.newest == [("a", (FIRST + 14) * 1_000_000), ("b", (FIRST + 14) * 1_000_000)]
    again = AllGroupsWindows(PLAN, rebuilt=False)
    again.restore(AllGroupsState(state.windows, state.newest), {"a": FIRST + 14.0, "b": FIRST + 14.0})
    assert again.live(FIRST + 14, 0) == {"a", "b"}
    shown = again.shown(FIRST + 15.25, 10)
    assert (number(shown), shown[1]) == (14, {"a", "b"})
