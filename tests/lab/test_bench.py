"""Judgements and tables of the bench: lost and doubled messages, gaps, delays, and the pages."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import tango

from facade.kernel.clock import ManualClock
from facade.kernel.errors import InfraError
from sdp_facade_lab.bench.blocks import _flat
from sdp_facade_lab.bench.delays import shown_after
from sdp_facade_lab.bench.listening import HeardEvent
from sdp_facade_lab.bench.report import BenchOutcome, Report, machine, none_of, with_tables
from sdp_facade_lab.bench.restarts import Waits, _judge, refusals, refused
from sdp_facade_lab.bench.standby import SeenService, _longest
from sdp_facade_lab.bench.standby import _judge as _judge_standby
from sdp_facade_lab.bench.stream_processors import PEERS, Window, demand_right
from sdp_facade_lab.bench.sweep import ROWS, SweepResult, SweepRow
from sdp_facade_lab.bench.sweep_tables import TABLES, figure, tables
from sdp_facade_lab.bench.web import missed_frames


@pytest.mark.parametrize(("kept", "off"), [(1000, 0), (990, -10), (1001, 1)])
def test_a_message_lost_or_doubled_is_told(kept: int, off: int) -> None:
    verdict = none_of("messages on the topic less those sent", kept - 1000, " of 1,000")
    assert (verdict.found, verdict.reached) == (f"{off} of 1,000", not off)


@pytest.mark.parametrize(("numbers", "missed"), [([[1, 2, 3], [2, 3]], 0), ([[1, 3], [2]], 1), ([[1], []], 1)])
def test_a_browser_that_got_nothing_has_missed_frames(numbers: list[list[int]], missed: int) -> None:
    assert missed_frames(numbers) == missed


def test_a_refusal_after_400_ms_is_told_as_400_ms() -> None:
    running: Any = SimpleNamespace(clock=ManualClock())

    def call() -> None:
        running.clock.sleep(0.4)
        raise tango.DevFailed

    took = {"On": refused(running, call, 3), "Off": []}
    assert [(one.found, one.word) for one in refusals(took)] == [("400 ms", "REACHED"), ("-", "NOT MEASURED")]


def test_a_change_in_which_no_record_came_has_no_wait() -> None:
    (verdict,) = _judge({"a worker is added": Waits(longest=0.0, records=0)})
    assert verdict.word == "NOT MEASURED"


@pytest.mark.parametrize(
    ("samples", "word"), [([100.0] * 7, "REACHED"), ([*range(100, 140)], "NOT REACHED"), ([100.0] * 3, "NOT MEASURED")]
)
def test_memory_that_was_looked_at_too_seldom_is_not_judged(samples: list[float], word: str) -> None:
    assert _flat("control", samples).word == word


@pytest.mark.parametrize(
    ("window", "says"),
    [(Window(0, 8, 1, 2.0, 2.0, 2.0), "no such window"), (Window(0, 7, 2, 2.0, 2.0, 2.0), "count=1")],
)
def test_a_window_with_another_count_or_that_no_record_makes_is_named(window: Window, says: str) -> None:
    right = {(0, 7): Window(0, 7, 1, 2.0, 2.0, 2.0)}
    demand_right(PEERS[0], right, right)
    with pytest.raises(InfraError, match=says):
        demand_right(PEERS[0], {(window.node, window.window): window}, right)


@pytest.mark.parametrize(
    ("times", "longest"),
    [([0, 1, 2, 10, 11], 8), ([0, 1, 2, 3, 7, 30], 23), ([0, 1, 2, 3, 9, 30], 6), ([0, 2], None)],
)
def test_the_gap_of_a_hand_over_counts_however_long_it_is(times: list[float], longest: float | None) -> None:
    """The change is at 2.05; what begins more than 6 s later is none of its."""
    assert _longest(times, [2.05]) == longest


@pytest.mark.parametrize("instance", ["control", "alerts"])
def test_a_service_that_no_client_ever_got_is_not_measured(instance: str) -> None:
    """Without a command or an alert there was no row about them."""
    found = {one.what: one.word for one in _judge_standby(instance, SeenService(), [(False, 1.0), (True, 9.0)])}
    assert len(found) == 6
    assert {word for what, word in found.items() if "events again" not in what} == {"NOT MEASURED"}


BEGIN = 1_795_276_800
"""A whole minute [Unix s]."""
NEVER = np.inf


class Case(NamedTuple):
    sent: list[float]
    """Own times of notifications after `BEGIN` [s]."""
    events: list[tuple[float, float]]
    """Newest data time and arrival of each event after `BEGIN` [s]."""
    window: float
    expected: list[float]
    """Delays [s]."""


CASES = {
    "nothing was sent": Case([], [(0.5, 1.0)], 1.0, []),
    "no event came": Case([0.1], [], 1.0, [NEVER]),
    "the event of its window": Case([0.0, 0.4, 0.9], [(0.9, 1.25)], 1.0, [1.25, 0.85, 0.35]),
    "each its own window": Case([0.9, 1.0], [(0.9, 1.25), (1.0, 2.25)], 1.0, [0.35, 1.25]),
    "an event that does not hold it yet": Case([0.5, 0.9], [(0.5, 1.25), (0.9, 1.75)], 1.0, [0.75, 0.85]),
    "a window that no event has shown": Case([0.5, 1.5], [(1.5, 2.25)], 1.0, [NEVER, 0.75]),
    "no event has the end of its window": Case([0.5, 0.9], [(0.5, 1.25), (1.5, 2.25)], 1.0, [0.75, NEVER]),
    "an event of an older window that is corrected": Case(
        [0.5, 1.5], [(0.5, 1.25), (1.5, 2.25), (0.7, 2.5)], 1.0, [0.75, 0.75]
    ),
    "events in another order": Case([0.5, 1.5], [(1.5, 2.25), (0.5, 1.25)], 1.0, [0.75, 0.75]),
    "a value that replaced it": Case([0.5, 0.9], [(0.9, 1.0), (5.0, 5.5)], 0.0, [0.5, 0.1]),
    "a total": Case([0.5, 1.5, 9.0], [(0.5, 0.75), (1.5, 1.75)], 0.0, [0.25, 0.25, NEVER]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_notification_is_shown_by_the_first_event_that_holds_it(case: Case) -> None:
    sent = np.array([round((BEGIN + one) * 1e6) for one in case.sent], np.int64)
    events = [HeardEvent("device", "attribute", BEGIN + time, BEGIN + received) for time, received in case.events]
    assert shown_after(sent, events, case.window).tolist() == pytest.approx(case.expected, abs=1e-6)


def test_an_event_at_the_very_time_of_a_notification_holds_it_in_its_own_window() -> None:
    """Also in the first and the last microsecond of a window; times of events are floating-point numbers."""
    for time in (*range(0, 1_000_000, 19_937), 999_999):
        sent = BEGIN * 1_000_000 + time
        (delay,) = shown_after(np.array([sent]), [HeardEvent("d", "a", sent / 1e6, BEGIN + 2.0)], 1.0)
        assert delay == pytest.approx(BEGIN + 2.0 - sent / 1e6)


PAGE = """before
<!-- bench sweep -->
old
<!-- /bench -->
<!-- bench sweep.size -->
old
<!-- /bench -->
<!-- bench sweep.codec -->
kept
<!-- /bench -->
after
"""


def report(outcome: BenchOutcome) -> Report:
    return Report(began=0.0, seconds=1.0, quick=True, finished=True, machine=machine(), outcomes=(outcome,))


def outcome(**more: str) -> BenchOutcome:
    return BenchOutcome(name="sweep", what="", verdicts=(), notes=("one row",), tables={"size": "| new |"}, **more)


def test_blocks_get_what_was_measured_and_how() -> None:
    measured = report(outcome())  # once: the load of the machine is in it
    made = with_tables(PAGE, measured)
    assert "<!-- bench sweep.size -->\n| new |\n<!-- /bench -->" in made
    assert "<!-- bench sweep.codec -->\nkept\n<!-- /bench -->" in made
    assert f"`bench --only sweep --quick`, commit `{machine().commit}`, one run, 1970-01-01" in made
    assert "Failed: one row." in made
    assert (made.startswith("before\n"), made.endswith("after\n"), made.count("old")) == (True, True, 0)
    assert with_tables(made, measured) == made, "written again it is the same"


def test_what_failed_changes_no_page() -> None:
    failed = BenchOutcome(name="sweep", what="", verdicts=(), failure="no broker")
    assert with_tables(PAGE, report(failed)) == PAGE


def test_each_series_of_the_sweep_has_a_table() -> None:
    assert {row.series for row in ROWS} == TABLES.keys()
    made = tables([SweepResult(row=row, sent=2e5, taken=1e5, delays=(1.0, 2.0, 3.0)) for row in ROWS])
    for series, table in made.items():
        head, _, *lines = table.splitlines()
        assert len(lines) == sum(row.series == series for row in ROWS)
        assert {line.count(" | ") for line in lines} == {head.count(" | ")}


def test_a_row_says_how_many_producers_ran() -> None:
    """Paper 002 has 100 producers, which are more than run on one machine."""
    many = [row for row in ROWS if row.paper_producers]
    assert many
    table = tables([SweepResult(row=row, sent=1.0, taken=1.0) for row in many])["002"]
    assert all(f"| {row.producers} (paper: {row.paper_producers}) |" in table for row in many)
    assert max(row.producers for row in ROWS) <= 20


def test_a_row_that_failed_is_in_no_table() -> None:
    assert tables([SweepResult(row=SweepRow(series="size"), failure="x")]) == {}


@pytest.mark.parametrize(("number", "text"), [(1_360_000, "1,360,000"), (0.1344, "0.134"), (11.26, "11.3"), (0, "0")])
def test_figures_have_three_digits(number: float, text: str) -> None:
    assert figure(number) == text
