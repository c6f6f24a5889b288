"""The page of the papers' tables: every point has its row, and a sweep that is not whole is refused."""

import msgspec
import pytest

from facade.errors import FacadeError
from proving.bench.report import Outcome, Report, machine
from proving.bench.sweep_figures import Sweep, number, size_text
from proving.bench.sweep_page import page
from proving.bench.sweep_points import points
from proving.bench.sweep_report import Delay, Flow, Found, Large


def _flow(rate: float) -> Flow:
    return Flow(messages=1000, rate=rate, seconds=2.0, cpu=1.0, peak_mb=50.0, broker_cpu=0.5, broker_mb=300.0)


def _report(found: list[Found]) -> Report:
    outcome = Outcome(name="sweep", what="", how=(), verdicts=(), figures={"points": msgspec.to_builtins(found)})
    return Report(began=1.8e9, seconds=1.0, quick=False, finished=True, machine=machine(), outcomes=(outcome,))


def _whole() -> list[Found]:
    flows = {name: _flow(rate) for rate, name in enumerate(("in", "out", "stream-in", "stream-out"), start=1000)}
    delay = Delay(p50=0.0041, p99=0.0123, p999=0.5, highest=0.6, count=9)
    large = {side: Large(each=[0.5, 1.5], seconds=2.0, cpu=1.0, peak_mb=90.0) for side in ("in", "out")}
    return [Found(point=one, flows=flows, delay=delay, large=large, stored=100.0) for one in points(quick=False)]


def test_each_point_has_a_row_beside_what_the_papers_say() -> None:
    text = page(Sweep(_report(_whole())))
    assert "| 256 B | 1,000 | 0.256 | 1,000 | 0.256 | 4.1 | 12.3 | 500 |" in text
    assert "| 1 MB | 20 | 1 | 0.896 | 1 | 160.16 |" in text
    assert "| 4 B | 1,000 | 2,010,000 | 1,000 | 4,255,000 |" in text
    assert "100 MB take the least time" in text
    assert "nan" not in text


def test_a_sweep_that_lacks_points_is_refused_with_the_point() -> None:
    with pytest.raises(FacadeError, match="without the point size"):
        page(Sweep(_report([one for one in _whole() if one.point.series != "size"])))
    with pytest.raises(FacadeError, match="without a sweep"):
        Sweep(Report(began=0, seconds=0, quick=True, finished=True, machine=machine(), outcomes=()))


@pytest.mark.parametrize(
    ("value", "text"), [(317_344.0, "317,000"), (1_004, "1,000"), (999.9, "1,000"), (31.24, "31.2"), (0.0456, "0.0456")]
)
def test_a_figure_has_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_sizes() -> None:
    assert [size_text(one) for one in (256, 1_024, 10_000, 1_000_000, 10_240)] == [
        "256 B", "1,024 B", "10 kB", "1 MB", "10,240 B",
    ]  # fmt: skip
