"""What the bench says about figures: ratios, distributions, verdicts. Nothing is timed here."""

import math
from collections.abc import Sequence

import pytest

from facade.errors import InfraError
from proving.bench import report
from proving.bench.throughput import together_rate
from proving.bench.throughput_roles import ProgressMark, RoleTiming


def test_what_never_came_is_infinitely_late() -> None:
    """One in a hundred may be lost before the p99 says so; two may not."""
    one = report.quantiles([0.1] * 99 + [math.inf])
    two = report.quantiles([0.1] * 98 + [math.inf] * 2)
    assert one is not None
    assert two is not None
    assert one.p99 == 0.1
    assert one.highest == math.inf
    assert two.p99 == math.inf
    assert report.quantiles([]) is None


def timing(*marks: tuple[float, int], given_up: Sequence[float] = ()) -> RoleTiming:
    return RoleTiming(
        marks=[ProgressMark(t, n, t / 2, t / 4) for t, n in marks], peak_rss_mb=1.0, given_up=list(given_up)
    )


def test_figures_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InfraError, match="counted twice"):
        together_rate([timing((0.0, 0), (10.0, 1000), given_up=[5.0])], warm=0)
    with pytest.raises(InfraError, match=r"worked together for 0\.00 s"):
        together_rate([timing((0.0, 0), (5.0, 1000)), timing((6.0, 0), (9.0, 1000))], warm=0)
