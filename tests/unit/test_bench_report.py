"""What the bench says about figures: ratios, distributions, verdicts. Nothing is timed here."""

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from facade.errors import InfraError
from facade.files import write_json
from proving.bench import report
from proving.bench.client_roles import Call, Heard
from proving.bench.growth import cost
from proving.bench.latency import first_events, latencies
from proving.bench.reads import divide
from proving.bench.report import Machine, Outcome, Ratios, Report, Verdict
from proving.bench.scale import gaps_between
from proving.bench.throughput import together_rate
from proving.bench.throughput_roles import Mark, Timing


def test_ratios_are_taken_within_pairs() -> None:
    """A machine that gets slower during the bench slows both of a pair, so the ratio stays."""
    found = report.ratios([(40.0, 100.0), (20.0, 50.0), (9.0, 20.0)])
    assert found == Ratios(median=0.4, lowest=0.4, highest=0.45, pairs=3)
    assert str(found) == "0.40 (0.40 to 0.45 of 3 pairs)"


def test_ratios_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        report.ratios([])


def test_quantiles_are_values_that_occurred() -> None:
    found = report.quantiles([float(n) for n in range(1, 201)])
    assert found is not None
    assert (found.p50, found.p99, found.highest, found.count) == (100.0, 198.0, 200.0, 200)
    assert found.text(1000, "ms") == "p50 1e+05, p99 1.98e+05, max 2e+05 ms of 200"


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


@pytest.mark.parametrize(
    ("samples", "rise"),
    [
        ([50, 100, 100, 100, 100, 100, 100, 100, 100, 100], 0.0),
        ([50, 100, 100, 110, 110, 110, 110, 120, 120, 120], 0.2),
        ([100, 100, 100], None),
        ([], None),
    ],
)
def test_flatness_compares_quarters_after_the_warm_up(samples: list[float], rise: float | None) -> None:
    found = report.flatness(samples, warm_up=0.1)
    assert found == (None if rise is None else pytest.approx(rise))


def test_verdicts() -> None:
    good = Ratios(median=0.41, lowest=0.3, highest=0.5, pairs=3)
    bad = Ratios(median=0.39, lowest=0.3, highest=0.5, pairs=3)
    assert report.at_least("x", good, 0.4).word == "REACHED"
    assert report.at_least("x", bad, 0.4).word == "NOT REACHED"
    assert report.at_most("x", 5.0, 5.0, "ms").word == "REACHED"
    assert report.at_most("x", 5.1, 5.0, "ms").word == "NOT REACHED"
    assert report.at_most("x", math.inf, 5.0, "ms").word == "NOT REACHED"
    assert report.at_most("x", None, 5.0, "ms").word == "NOT MEASURED"
    assert Verdict(what="x", bar="", found="1").word == "no bar"


def test_the_table_has_a_row_per_figure_and_names_failures() -> None:
    outcomes = [
        Outcome(
            name="worker",
            what="",
            how=(),
            verdicts=(Verdict(what="ratio", bar=">= 0.4", found="0.39", reached=False),),
        ),
        Outcome(name="peers", what="", how=(), verdicts=(), failure="BenchError: aiokafka not installed"),
    ]
    assert report.summary(outcomes) == [
        ("worker", "ratio", ">= 0.4", "0.39", "NOT REACHED"),
        ("peers", "", "", "BenchError: aiokafka not installed", "FAILED"),
    ]


def test_the_file_is_whole_json(tmp_path: Path) -> None:
    whole = Report(
        began=1.8e9,
        seconds=1.0,
        quick=True,
        finished=True,
        machine=report.machine(),
        outcomes=(Outcome(name="a", what="b", how=(), verdicts=(), figures={"p99": math.inf}),),
    )
    path = tmp_path / "new" / "report.json"
    write_json(path, whole)
    read = msgspec.json.decode(path.read_bytes())
    assert read["schema"] == "bench/1"
    assert read["outcomes"][0]["figures"]["p99"] is None, "JSON has no infinity"
    assert Machine(**read["machine"]).cores >= 1
    assert [file.name for file in path.parent.iterdir()] == ["report.json"]


def timing(*marks: tuple[float, int], given_up: Sequence[float] = ()) -> Timing:
    return Timing(marks=[Mark(t, n, t / 2, t / 4) for t, n in marks], peak_rss_mb=1.0, given_up=list(given_up))


def test_a_timing_leaves_out_the_first_batch() -> None:
    found = timing((10.0, 1000), (11.0, 501_000), (12.0, 1_001_000))
    assert (found.records, found.seconds, found.rate) == (1_000_000, 2.0, 500_000.0)
    assert found.cpu_per_million == pytest.approx(1.0)
    assert found.broker_cpu_per_million == pytest.approx(0.5)


def test_two_workers_are_counted_while_both_work() -> None:
    """The slower one's start and the longer one's end are left out."""
    first = timing((0.0, 0), (10.0, 1000))
    second = timing((2.0, 0), (8.0, 1200))
    assert together_rate([first], warm=0) == pytest.approx(100.0)
    assert together_rate([first, second], warm=0) == pytest.approx(300.0)
    assert together_rate([first, second], warm=400) == pytest.approx(300.0)


def test_figures_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InfraError, match="counted twice"):
        together_rate([timing((0.0, 0), (10.0, 1000), given_up=[5.0])], warm=0)
    with pytest.raises(InfraError, match=r"worked together for 0\.00 s"):
        together_rate([timing((0.0, 0), (5.0, 1000)), timing((6.0, 0), (9.0, 1000))], warm=0)


def test_what_is_given_up_once_another_worker_has_ended_is_not_counted_anyway() -> None:
    first = timing((0.0, 0), (8.0, 800))
    second = timing((0.0, 0), (10.0, 1000), given_up=[8.2])
    assert together_rate([first, second], warm=0) == pytest.approx(200.0)


def test_a_cost_is_that_of_all_workers_without_those_that_got_nothing() -> None:
    """The processor time of these marks is half their time: 5 s and 3 s for 2,000 records."""
    none = Timing(marks=[], peak_rss_mb=1.0)
    found = cost([timing((0.0, 0), (10.0, 1500)), timing((2.0, 0), (8.0, 500)), none])
    assert found == pytest.approx(0.004)


def test_latency_is_that_of_each_notification() -> None:
    """Windows of 1 s; the event of node 0's window 100 comes 0.2 s after its end, that of window 101 never."""
    heard = [Heard("d", "a", 100.9, 101.2), Heard("d", "a", 100.9, 101.9), Heard("d", "a", 99.9, 100.4)]
    first = first_events([(0, event) for event in heard], 1.0)
    assert first == {(0, 100): 101.2, (0, 99): 100.4}
    times = {0: np.array([99.5, 100.0, 100.5, 100.9, 101.5, 102.5])}
    each, after = latencies(times, first, 1.0, 99.7, 102.3)
    assert each.tolist() == pytest.approx([1.2, 0.7, 0.3, math.inf])
    assert after == pytest.approx([0.2])


def test_calls_belong_to_the_phase_in_which_they_began() -> None:
    calls = [Call("State()", at, 0.001, False) for at in (0.5, 1.0, 1.5, 2.5, 9.0)]
    found = {
        name: [call.began for call in part] for name, part in divide(calls, [("calm", 1.0), ("down", 2.0), ("", 3.0)])
    }
    assert found == {"calm": [1.0, 1.5], "down": [2.5]}


def test_gaps_between_events_are_per_attribute() -> None:
    events = [
        Heard("d", "a", 0.0, 1.0),
        Heard("d", "b", 0.0, 1.5),
        Heard("d", "a", 0.0, 2.5),
        Heard("d", "a", 0.0, 2.0),
    ]
    gaps, counts = gaps_between(events)
    assert sorted(gaps) == [0.5, 1.0]
    assert counts == {("d", "a"): 3, ("d", "b"): 1}
