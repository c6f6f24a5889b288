"""The page of the papers' tables: every point has its row, and a sweep that is not whole is refused."""

import msgspec
import pytest

from facade.errors import FacadeError
from proving.bench.report import Outcome, Report, machine
from proving.bench.sweep import complete
from proving.bench.sweep_figures import Sweep, number, size_text
from proving.bench.sweep_page import page
from proving.bench.sweep_papers import VISITS
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
    assert "| 1 MB | 20 | 1 | 0.5 to 1.5 | 0.896 | 1 | 0.5 to 1.5 | 160.16 |" in text
    assert "| 4 B | 1,000 | 2,010,000 | 1,000 | 4,255,000 |" in text
    assert "| 256 B, snappy | 1,000 | 80,448 | 12.3 | 0.411 | 600 | 206 |" in text
    assert "| 256 B, gzip | 1,000 |  | 12.3 |  | 600 |  |" in text
    assert "| 10, 11, 1 | 2 | 8.82 | 0 | 2068 |" in text
    assert "whichever is reached first" in text
    assert "The largest single message that arrived has 100 MB" in text
    assert "nan" not in text


def test_what_was_measured_twice_says_how_far_figures_differ() -> None:
    found = _whole()
    base = next(one for one in found if one.point.series == "partitions")
    changed = msgspec.structs.replace(base, flows={**base.flows, "in": _flow(1600.0)})
    text = page(Sweep(_report([changed if one is base else one for one in found])))
    assert "a factor of 1.6 for *in* (1,000 to 1,600/s)" in text


def test_a_point_whose_consumers_gave_up_has_failed() -> None:
    whole = _whole()[0]
    short = msgspec.structs.replace(whole, flows={"out": msgspec.structs.replace(_flow(1.0), lost=7510)})
    assert (complete(whole).failure, complete(short).failure) == ("", "7,510 messages were not received")


def test_a_message_that_failed_is_not_the_largest() -> None:
    found = [
        msgspec.structs.replace(one, failure="refused") if one.point.size > 10_000_000 else one for one in _whole()
    ]
    assert "The largest single message that arrived has 10 MB" in page(Sweep(_report(found)))


def test_each_figure_of_the_visits_has_a_point() -> None:
    """What paper 002 prints is measured with its own numbers of clients, and each group has its ten consumers."""
    visits = [one for one in points(quick=False) if one.series == "002"]
    assert {(one.producers, one.groups, one.partitions) for one in visits} == set(VISITS)
    assert {(one.partitions, one.members) for one in visits} == {(1, 1), (10, 10)}


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
