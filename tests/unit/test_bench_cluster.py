"""Verdicts of the bench: each lost or doubled message, and each gap, counts."""

import pytest

from sdp_facade_lab.bench.lost_broker import verdicts
from sdp_facade_lab.bench.standby import _longest


@pytest.mark.parametrize(("kept", "lost", "doubled"), [(1000, 0, 0), (990, 10, 0), (1001, 0, 1)])
def test_each_message_lost_or_doubled_is_told(kept, lost, doubled):
    assert [one.found for one in verdicts(kept, 1000)] == [f"{lost} of 1,000", f"{doubled} of 1,000"]
    assert [one.reached for one in verdicts(kept, 1000)] == [not lost, not doubled]


@pytest.mark.parametrize(
    ("times", "longest"),
    [([0, 1, 2, 10, 11], 8), ([0, 1, 2, 3, 7, 30], 23), ([0, 1, 2, 3, 9, 30], 6), ([0, 2], None)],
)
def test_the_gap_of_a_hand_over_counts_however_long_it_is(times: list[float], longest: float | None) -> None:
    """The change is at 2.05; what begins more than 6 s later is none of its."""
    assert _longest(times, [2.05]) == longest
