"""Totals as arrays are those that a loop over the rows finds, whatever the order of rows, epochs and numbers."""

from hypothesis import given, settings
from hypothesis import strategies as st

from facade.kernel.sequences import SeenNumbers
from facade.kernel.windows.totals import GroupTotals, Totals
from facade.sdp.messages import FieldStatistics, Partial
from tests.support.frames import rack

GROUPS = 3

numbers = st.lists(st.integers(0, 30), max_size=6)


@st.composite
def rows(draw):
    """Return a group and some of its records: mostly the next ones."""
    found = sorted(set(draw(numbers)))
    runs = []
    for number in found:
        runs = [*runs[:-1], (runs[-1][0], number)] if runs and runs[-1][1] + 1 == number else [*runs, (number, number)]
    time = draw(st.integers(0, 20))
    return draw(st.integers(0, GROUPS - 1)), Partial(
        epoch=draw(st.integers(1, 2)),
        window=0,
        late=draw(st.booleans()),
        count=len(found) + draw(st.integers(0, 1)),
        time_min=time,
        time_max=time,
        runs=runs,
        fields={"x": FieldStatistics(sum=draw(st.integers(0, 9)))},
    )


def add(totals: GroupTotals, one: Partial) -> None:
    """Count the records of one row, by the definition."""
    if one.epoch != totals.epoch and one.time_max > totals.newest_us:
        totals.epoch, totals.seen = one.epoch, SeenNumbers()
    if one.late:
        totals.late, totals.late_us = totals.late + one.count, one.time_max
    else:
        totals.count += one.count
    totals.sums["x"] = totals.sums.get("x", 0) + one.fields["x"].sum
    totals.newest_us = max(totals.newest_us, one.time_max)
    if one.epoch == totals.epoch:
        totals.seen.add(one.runs, one.count)


@given(st.lists(st.lists(rows(), min_size=1, max_size=4), max_size=8))
@settings(max_examples=300, deadline=None)
def test_totals_are_those_of_a_loop_over_the_rows(frames):
    found, expected = Totals(GROUPS), [GroupTotals(sums={}, seen=SeenNumbers()) for _ in range(GROUPS)]
    for frame in frames:
        found.add(rack(frame))
        for group, row in frame:
            add(expected[group], row)
    assert found.of_groups() == expected
    assert found.missing.tolist() == [one.seen.missing for one in expected]
    assert found.duplicates.tolist() == [one.seen.duplicates for one in expected]
