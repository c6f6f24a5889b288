"""What the bench makes of figures of a cluster: the lines of Kafka's producer, phases, and pairs of samples."""

import pytest

from facade.errors import InfraError
from proving.bench.hops import Sample
from proving.bench.lost_broker import (
    AFTER,
    BEFORE,
    DURING,
    SentWindow,
    batch_of,
    in_words,
    phases,
    read_window,
    verdicts,
)
from proving.bench.secured import OPEN, SECURED, _in_turn, hop_verdicts, worker_verdicts
from proving.bench.standby import _longest
from proving.bench.sweep import ROWS, SweepResult
from proving.bench.throughput_roles import ProgressMark, RoleTiming

LINE = "13403 records sent, 2680.6 records/sec (0.08 MB/sec), 504.5 ms avg latency, 1683.0 ms max latency.\n"
SUMMARY = (
    "135100 records sent, 2701.9 records/sec (0.08 MB/sec), 25.1 ms avg latency, 4624.0 ms max latency,"
    " 3 ms 50th, 504 ms 95th, 1683 ms 99th, 4624 ms 99.9th.\n"
)
FULL = [row for row in ROWS if row.series == "001"]


def window(ended: float, messages: int = 100, mean: float = 2.0, longest: float = 9.0) -> SentWindow:
    return SentWindow(ended, 1.0, messages, mean, longest)


def test_a_line_of_the_producer_is_read_and_its_summary_is_not():
    read = read_window(LINE, 7.0)
    assert read is not None
    assert read._replace(seconds=0.0) == (7.0, 0.0, 13403, 504.5, 1683.0)
    assert read.seconds == pytest.approx(5.0, abs=1e-3)
    assert read_window(SUMMARY, 7.0) is None
    assert read_window("Number of records read: 1000\n", 7.0) is None


def test_a_second_in_which_the_broker_is_killed_or_returns_belongs_to_its_absence():
    found = phases([window(1), window(2, 0), window(3, 300, 5.0, 70.0), window(4.5), window(6)], lost=1.5, back=4.0)
    assert [one.what for one in found] == [BEFORE, DURING, AFTER]
    assert [one.rate for one in found] == [100, 400 / 3, 100]
    assert [one.mean for one in found] == [2.0, 4.25, 2.0]
    assert [one.longest for one in found] == [9.0, 70.0, 9.0]


def test_a_run_that_ends_before_the_broker_is_back_says_nothing():
    with pytest.raises(InfraError, match=f"no messages {AFTER}"):
        phases([window(1), window(3)], lost=1.5, back=4.0)


@pytest.mark.parametrize(("kept", "lost", "doubled"), [(1000, 0, 0), (990, 10, 0), (1001, 0, 1)])
def test_each_message_lost_or_doubled_is_told(kept, lost, doubled):
    assert [one.found for one in verdicts(kept, 1000)] == [f"{lost} of 1,000", f"{doubled} of 1,000"]
    assert [one.reached for one in verdicts(kept, 1000)] == [not lost, not doubled]


def test_each_row_of_the_paper_stands_beside_its_figures():
    assert {batch_of(row) for row in FULL} == {1, 20, 50}
    lines = [*in_words([SweepResult(row=row, sent=1000.0, taken=2000.0) for row in FULL])]
    assert len(lines) == len(FULL) / 2
    assert lines[2] == (
        "32 B, batches of 20: in 1,000/s (paper 63,615), out 2,000/s (paper 79,900),"
        " both: in 1,000/s (paper 28,774), both: out 2,000/s (paper 32,488)"
    )


@pytest.mark.parametrize(
    ("times", "longest"),
    [([0, 1, 2, 10, 11], 8), ([0, 1, 2, 3, 7, 30], 23), ([0, 1, 2, 3, 9, 30], 6), ([0, 2], None)],
)
def test_the_gap_of_a_hand_over_counts_however_long_it_is(times: list[float], longest: float | None) -> None:
    """The change is at 2.05; what begins more than 6 s later is none of its."""
    assert _longest(times, [2.05]) == longest


def test_the_side_that_is_measured_first_alternates():
    sides = {SECURED: 1, OPEN: 2}
    assert [[side for side, _ in _in_turn(sides, number)] for number in range(3)] == [
        [SECURED, OPEN],
        [OPEN, SECURED],
        [SECURED, OPEN],
    ]


def timing(seconds: float, cpu: float) -> RoleTiming:
    return RoleTiming(marks=[ProgressMark(0.0, 0, 0.0, 0.0), ProgressMark(seconds, 1_000_000, cpu, 0.0)])


def test_a_worker_is_compared_in_pairs():
    pairs = [(timing(2.0, 1.5), timing(1.0, 1.0)), (timing(4.0, 1.5), timing(1.0, 1.0))]
    assert [one.found for one in worker_verdicts("JSON", pairs, rows=1)] == [
        "0.38 (0.25 to 0.50 of 2 pairs): 0.375 M/s beside 1 M/s",
        "1.50 (1.50 to 1.50 of 2 pairs)",
    ]


def test_commands_and_alerts_are_compared_round_by_round():
    rounds = [
        {SECURED: {"commands": [Sample(slow / 1e3, 0.0, 0.0)]}, OPEN: {"commands": [Sample(0.01, 0.0, 0.0)]}}
        for slow in (20, 30, 60)
    ]
    assert [(one.what, one.found) for one in hop_verdicts(rounds)] == [
        ("commands: p50", "3.00 (2.00 to 6.00 of 3 pairs): 30.0 ms beside 10.0 ms"),
        ("commands: p99", "3.00 (2.00 to 6.00 of 3 pairs): 30.0 ms beside 10.0 ms"),
    ]
