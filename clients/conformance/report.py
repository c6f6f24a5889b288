"""The report of a run on the terminal."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.progress import Progress as Bar
from rich.table import Table

from clients.conformance.case import Outcome, Result
from facade.console import Console

OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "skipped")
_MOST_REASONS = 12


class Progress:
    """Shows on a terminal how far the run is."""

    def __init__(self, console: Console, of: int) -> None:
        self._bar = Bar(console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=of)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, result: Result) -> None:
        """Show that a case has ended."""
        self._bar.update(self._task, advance=1, description=result.id[:40])


def print_report(console: Console, results: Sequence[Result], seconds: float) -> None:
    """Print each failure in one line, why cases were skipped, and the counts by class."""
    for result in results:
        if result.outcome == "failed":
            _line(console, "FAILED", f"{result.id}: {one_line(result.detail)}", "bold red")
    reasons = Counter(one_line(result.detail) for result in results if result.outcome == "skipped")
    for reason, count in reasons.most_common(_MOST_REASONS):
        _line(console, "not shown", f"{count} x {reason}", "yellow")
    if len(reasons) > _MOST_REASONS:
        _line(console, "not shown", f"{len(reasons) - _MOST_REASONS} more reasons; see --html", "yellow")
    console.print(_table(results, seconds))


def by_part(results: Sequence[Result]) -> dict[str, Counter[Outcome]]:
    """Count the outcomes of each device class, of the topics, and so on."""
    found: dict[str, Counter[Outcome]] = {}
    for result in results:
        found.setdefault(result.id.partition("/")[0], Counter())[result.outcome] += 1
    return found


def one_line(text: str) -> str:
    """Return a text without line breaks."""
    return " ".join(text.split())


def _table(results: Sequence[Result], seconds: float) -> Table:
    parts = by_part(results)
    sums: Counter[Any] = sum(parts.values(), Counter())
    verdict = f"{sums['failed']} failed" if sums["failed"] else "conforms, as far as it was shown"
    table = Table(title=f"conformance: {verdict}", caption=f"{len(results)} checks in {seconds:.0f} s")
    table.add_column("part")
    for outcome in OUTCOMES:
        table.add_column(outcome if outcome != "skipped" else "not shown", justify="right")
    for part, counts in parts.items():
        table.add_row(part, *(str(counts[outcome]) for outcome in OUTCOMES))
    table.add_row("all", *(str(sums[outcome]) for outcome in OUTCOMES), style="bold")
    return table


def _line(console: Console, word: str, text: str, style: str) -> None:
    console.print(word, style=style, end="  ")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
