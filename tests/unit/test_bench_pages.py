"""Tables of the bench in pages: blocks get what was measured, and rows say what ran."""

import pytest

from sdp_facade_lab.bench.report import BenchOutcome, Report, machine, with_tables
from sdp_facade_lab.bench.sweep import ROWS, SweepResult, SweepRow
from sdp_facade_lab.bench.sweep_tables import TABLES, figure, tables

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
