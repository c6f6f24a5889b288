"""What a demo leaves behind: one JSON file for programs, tables for people."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from devices.demo.account import NODE_TOTALS, Line
from devices.demo.timing import Interval, Pace, Spread
from facade.simulate.report import Report

_MOST_NODES = 20
_NODE = "node "
_TITLES = {
    "heapsTotal": "heaps",
    "heapsLate": "late",
    "heapsMissing": "missing",
    "heapsDuplicated": "twice",
    "packetsReceivedTotal": "packets",
    "packetsLostTotal": "lost",
    "packetsLateTotal": "late",
}
"""Of the attributes of a node."""


class DemoReport(msgspec.Struct, kw_only=True):
    """The result of a demo; the file holds nothing else."""

    schema: str = "demo/1"
    began: float
    """[Unix s]."""
    elapsed: float = 0.0
    """[s]."""
    nodes: int
    rate: float
    """Asked for, of each node [heaps/s]."""
    seconds: float
    topic_prefix: str = ""
    balanced: bool = False
    """Whether every figure agrees to the last record."""
    failures: list[str] = []
    """What does not balance, which limit was passed, what went wrong; empty: all is well."""
    restarts: list[Interval] = []
    """From each kill until all was back and quiet [Unix s]."""
    first_values_after: float | None = None
    """From the start of the simulator until all nodes showed a value [s]."""
    worker_recovery: float | None = None
    """From the new start of the killed worker until all nodes showed data from after it [s]."""
    server_recovery: float | None = None
    """From the new start of the killed device server until its totals and a new window were back [s]."""
    drained_after: float | None = None
    """From the last record sent until all were accounted for [s]."""
    invalid_after: float | None = None
    """From the last record sent until the last windowed attribute was ATTR_INVALID [s]."""
    notification_latency: Spread | None = None
    """From a heap to the event whose value contains it."""
    window_latency: Spread | None = None
    """From the end of a window to its event."""
    window_latency_undisturbed: Spread | None = None
    """The same, outside of restarts."""
    pace: Pace | None = None
    account: list[Line] = []
    sent: Report | None = None
    """The simulator's own report."""

    def write(self, path: Path) -> None:
        """Write the file so that a reader never meets half of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        beside.replace(path)


def print_account(console: Console, sent: Report, lines: Sequence[Line]) -> None:
    """Print what was sent beside what Tango clients read."""
    console.print(_equation(sent), highlight=False)
    table = Table("read from", "figure", title="THE ACCOUNT", title_style="bold", title_justify="left")
    for title in ("sent", "read over Tango", ""):
        table.add_column(title, justify="right", no_wrap=True)
    for line in lines:
        if not line.where.startswith(_NODE):
            table.add_row(line.where, line.what, f"{line.expected:,}", _found(line), _verdict(line.agrees))
    console.print(table)
    nodes: dict[str, list[Line]] = {}
    for line in lines:
        if line.where.startswith(_NODE):
            nodes.setdefault(line.where, []).append(line)
    table = Table("node", title="Each node, read over Tango (what was sent, where it differs)", title_justify="left")
    for attribute in NODE_TOTALS:
        table.add_column(_TITLES.get(attribute, attribute), justify="right")
    table.add_column("")
    wrong_first = sorted(nodes.items(), key=lambda item: all(line.agrees for line in item[1]))
    for name, figures in wrong_first[:_MOST_NODES]:
        cells = [_found(line) if line.agrees else f"{_found(line)} ({line.expected:,})" for line in figures]
        table.add_row(name.removeprefix(_NODE), *cells, _verdict(all(line.agrees for line in figures)))
    if len(nodes) > _MOST_NODES:
        table.caption = f"and {len(nodes) - _MOST_NODES} more"
    console.print(table)


def _equation(sent: Report) -> str:
    expected = sent.expected
    suppressed, dead_lettered = sum(expected.suppressed.values()), sum(expected.dead_lettered.values())
    return (
        f"\n{sent.sent:,} sent = {expected.used:,} used + {expected.late:,} late"
        f" + {suppressed:,} suppressed + {dead_lettered:,} dead-lettered\n"
    )


def print_figures(console: Console, report: DemoReport) -> None:
    """Print the times."""
    table = Table.grid(padding=(0, 2))
    for text, value in _figures(report):
        table.add_row(Text(text), Text(value, style="bold"))
    console.print(table)


def print_verdict(console: Console, report: DemoReport, file: Path) -> None:
    """Print whether all is well, and if not, what is not."""
    for failure in report.failures:
        console.print(f"[bold red]failure:[/bold red] {escape(failure)}")
    if not report.failures:
        console.print("[bold green]Everything balances to the last record, and every limit is kept.[/bold green]")
    console.print(f"report: {escape(str(file))}")


def _figures(report: DemoReport) -> list[tuple[str, str]]:
    figures = [
        ("first values of all nodes after", _seconds(report.first_values_after)),
        ("worker killed and started again: all data flow after", _seconds(report.worker_recovery)),
        ("device server killed and started again: values back after", _seconds(report.server_recovery)),
        ("last record sent: all accounted for after", _seconds(report.drained_after)),
        ("last record sent: windowed attributes ATTR_INVALID after", _seconds(report.invalid_after)),
        ("heap to the event that shows it (windows of 1 s)", _spread(report.notification_latency)),
        ("end of the window to its event", _spread(report.window_latency)),
        ("the same, away from restarts", _spread(report.window_latency_undisturbed)),
    ]
    if (pace := report.pace) is not None:
        figures += [
            ("events received", f"{pace.events:,}, of {pace.attributes:,} attributes"),
            (
                "most events of one attribute",
                f"{pace.busiest_rate:.2f}/s ({pace.busiest}; the ICD allows {pace.busiest_limit:g}/s)",
            ),
            ("closest two of one attribute", f"{pace.closest_gap:.2f} s ({pace.closest}; {pace.shortest:g} s)"),
        ]
    return figures


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _spread(value: Spread | None) -> str:
    return (
        "-" if value is None else f"p50 {value.p50:,.0f} ms, p99 {value.p99:,.0f} ms, longest {value.longest:,.0f} ms"
    )


def _found(line: Line) -> str:
    return "-" if line.found is None else f"{line.found:,}"


def _verdict(agrees: bool) -> Text:
    return Text("equal", style="green") if agrees else Text("DIFFERS", style="bold red")
