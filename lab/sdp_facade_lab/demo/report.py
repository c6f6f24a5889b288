"""The report of a demo: one JSON file for programs, and tables for a person."""

import math
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from facade.flows.telemetry.simulator.ingest import HeapReport
from facade.kernel.console import Console, table
from sdp_facade_lab.demo.command_account import CommandLine, OrderLine
from sdp_facade_lab.demo.options import BASELINE, CONTROLLER_RECOVERY, SERVER_RECOVERY, WORKER_RECOVERY
from sdp_facade_lab.demo.timing import Spread
from sdp_facade_lab.heap_account import NODE_TOTALS, BalanceLine


class Kill(msgspec.Struct, frozen=True):
    """One process that was killed."""

    time: float
    """[Unix s]."""
    what: str
    """The process."""


class AlertLine(msgspec.Struct, frozen=True, kw_only=True):
    """One alert or action, as a client was given it."""

    sequence: int
    time: float
    """When the bus took it [Unix s]."""
    alarm: str
    what: str
    text: str


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
    logins: list[str] = []
    """Roles of the ICD that logged in at a secured broker; empty: the broker was open."""
    balanced: bool = False
    """Whether every figure agrees to the last record."""
    failures: list[str] = []
    """What does not balance, which limit was passed, what went wrong; empty: all is well."""
    baselines: list[float] = msgspec.field(default_factory=list, name="yardsticks")
    """How long a device server with nothing in it took to its first answer, each time that it was started [s]."""
    patience: float = 1.0
    """How many times as long the limits of time are, as was asked for."""
    slowness: float = 1.0
    """How many times as long as on the machine for which the limits of time were set; never less than 1."""
    kills: list[Kill] = []
    experiments: list[Kill] = []
    """What ended or stood still while the demo stayed, by a person's hand: no failure."""
    first_values_after: float | None = None
    """From the start of the simulator until all nodes showed a value [s]."""
    recoveries: dict[str, float] = {}
    """From the new start of a killed process until clients saw its output again, by the key of `FAULTS` [s]."""
    drained_after: float | None = None
    """From the last record sent until all were accounted for [s]."""
    invalid_after: float | None = None
    """From the last record sent until the last windowed attribute was ATTR_INVALID [s]."""
    notification_latency: Spread | None = None
    """From a heap to the event whose value contains it."""
    window_latency: Spread | None = None
    """From the end of a window to its event."""
    account: list[BalanceLine] = []
    """Of the notifications."""
    accounts: dict[str, list[BalanceLine]] = {}
    """Of all else, by the name of `ACCOUNTS`."""
    commands: list[CommandLine] = []
    """Each command of the observation, in the order of the calls."""
    orders: list[OrderLine] = []
    """What controllers ordered each other to do, below the commands that it was for."""
    alerts: list[AlertLine] = []
    """Each alert and action that a client was given, in the order of their numbers."""
    sent: HeapReport | None = None
    """The simulator's own report."""
    late: int = 0
    """Notifications that came too late for the window that showed it, by SdpBus."""

    @property
    def held_back(self) -> int:
        """Return how many more notifications were late than the simulator meant to be."""
        return 0 if self.sent is None else max(self.late - self.sent.expected.late, 0)


class InjectedFault(NamedTuple):
    """A process that the story kills and starts again."""

    process: str
    """In the words of the report."""
    seen: str
    """What clients see when it is back, in the words of the report."""
    within: float
    """Longest time from its new start until then [s]."""
    sentence: str
    """The same in the words of the story."""


FAULTS: Final[Mapping[str, InjectedFault]] = {
    "worker": InjectedFault("worker", "all data flow", WORKER_RECOVERY, "all nodes show data from after that"),
    "server": InjectedFault("device server", "values back", SERVER_RECOVERY, "totals and a new window are back"),
    "subarrays": InjectedFault("subarrays' server", "state back", SERVER_RECOVERY, "their state and commands are back"),
    "controller": InjectedFault("controller", "outcome", CONTROLLER_RECOVERY, "the command has its outcome"),
    "alerts": InjectedFault("alerts' server", "alarms back", SERVER_RECOVERY, "the alarms, and the new one, are back"),
    "tables": InjectedFault("tables' worker", "next solution", math.inf, "the next solution is shown"),
    "logs": InjectedFault("logs' worker", "further records", WORKER_RECOVERY, "further records are counted"),
    "mirror": InjectedFault("mirror", "receptors mirrored", SERVER_RECOVERY, "the receptors are mirrored again"),
}
ACCOUNTS: Final[Mapping[str, str]] = {
    "commands": "every command",
    "orders": "every order",
    "alerts": "every alert",
    "tables": "every table",
    "blocks": "every processing block",
    "mirror": "every value of the telescope",
    "logs": "every log and metric",
    "archive": "the archive",
}
"""Accounts of a demo, and what each is of, in the order in which they are printed."""
_MOST_NODES, _NODE = 20, "node "
_TOO_LATE = re.compile(r"expected\b.*\bwithin ")
"""In a failure: a limit of time was passed."""
_PATIENCE = 4
"""The least that is suggested."""
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


Rows = Sequence[Sequence[str | Text]]


def print_account(console: Console, report: DemoReport, sent: HeapReport) -> None:
    lines = report.account
    console.print(_equation(sent), highlight=False)
    console.print(
        f"{report.late:,} of them ({report.late / max(sent.sent, 1):.2%}) came too late for the window that showed it:"
        f" {sent.expected.late:,} were to, and {report.held_back:,} waited too long for the broker. Totals have them"
        " all.\n",
        highlight=False,
    )
    rows = [
        (line.where, line.what, f"{line.expected:,}", _found(line), _verdict(line.agrees))
        for line in lines
        if not line.where.startswith(_NODE)
    ]
    _print_table(console, "THE ACCOUNT", ("read from", "figure", "sent", "read over Tango", ""), rows, counts=2)
    nodes: dict[str, list[BalanceLine]] = {}
    for line in lines:
        if line.where.startswith(_NODE):
            nodes.setdefault(line.where, []).append(line)
    wrong_first = sorted(nodes.items(), key=lambda item: all(line.agrees for line in item[1]))
    cells: Rows = [
        (name.removeprefix(_NODE), *map(_cell, figures), _verdict(all(line.agrees for line in figures)))
        for name, figures in wrong_first[:_MOST_NODES]
    ]
    headings = ("node", *(_TITLES.get(attribute, attribute) for attribute in NODE_TOTALS), "")
    _print_table(console, "Each node, read over Tango (what was sent, where it differs)", headings, cells, counts=1)
    if len(nodes) > _MOST_NODES:
        console.print(f"and {len(nodes) - _MOST_NODES} more")


def _print_table(
    console: Console,
    title: str,
    headings: Sequence[str],
    rows: Rows,
    *,
    folded: Container[str] = (),
    counts: int = 100,
) -> None:
    """Print a table; cells of some columns are folded, the columns from `counts` on have numbers."""
    whole = [heading for heading in headings if heading not in folded]
    made = table(headings, rows, whole=whole, title=title)
    for column in made.columns[counts:]:
        column.justify = "right"
    console.print(made)


def print_commands(console: Console, report: DemoReport) -> None:
    """Print the outcome of each command, and the account of them all."""
    rows = [(line.called, _command(line)) for line in report.commands]
    rows += [(kill.time, [Text(), Text(f"kill -9 {kill.what}", "red")]) for kill in report.kills]
    headings = ("at s", "device", "command", "durable ms", "begun ms", "outcome", "obsState by its events")
    cells: Rows = [(f"{time - report.began:.1f}", *cells) for time, cells in sorted(rows, key=lambda row: row[0])]
    _print_table(console, "THE COMMANDS", headings, cells, folded=headings[5:])
    print_accounts(console, report, "commands")


def print_orders(console: Console, report: DemoReport) -> None:
    """Print the orders of each command, and the account of them all."""
    if not report.orders:
        return
    rows = [
        (
            f"{line.given - report.began:.1f}",
            f"{'   ' * (line.depth - 1)}{'└─ ' if line.depth else ''}{_short(line.device)} {line.name}",
            "-" if line.took is None else f"{line.took:.2f}",
            _outcome(line),
        )
        for line in report.orders
    ]
    title = "THE ORDERS, below the commands that they were for"
    _print_table(console, title, ("at s", "command or order", "took s", "outcome"), rows, folded=("outcome",))
    print_accounts(console, report, "orders")


def print_alerts(console: Console, report: DemoReport) -> None:
    """Print each alert and action that the client received, and their account."""
    rows = [
        (f"{line.time - report.began:.1f}", f"{line.sequence:,}", line.alarm, line.what, line.text)
        for line in report.alerts
    ]
    _print_table(
        console,
        "THE ALERTS, as a client was given them",
        ("at s", "number", "alarm", "what", "text"),
        rows,
        folded=("text",),
    )
    print_accounts(console, report, "alerts")


def print_accounts(console: Console, report: DemoReport, *names: str) -> None:
    for name in names:
        if lines := report.accounts.get(name):
            _print_account(console, lines, ACCOUNTS[name])


def _print_account(console: Console, lines: Sequence[BalanceLine], of: str) -> None:
    devices = list(dict.fromkeys(line.where for line in lines))
    rows: list[Sequence[str | Text]] = []
    for what in dict.fromkeys(line.what for line in lines):
        figures = {line.where: line for line in lines if line.what == what}
        cells = [_cell(figures.get(device)) for device in devices]
        rows.append((what, *cells, _verdict(all(line.agrees for line in figures.values()))))
    _print_table(
        console, "THEIR ACCOUNT (what was expected, where it differs)", (of, *devices, ""), rows, folded=(of,), counts=1
    )


def _command(line: CommandLine) -> list[Text]:
    outcome = line.outcome or ("no outcome" if line.id else "refused")
    remarks = [outcome]
    if line.outcome != "COMPLETED":
        remarks.append(line.text.partition(":")[0])
    if line.executions > 1:
        remarks.append(f"begun {line.executions} times")
    return [
        Text(_short(line.device)),
        Text(line.name + (f" ({line.calls} calls)" if line.calls > 1 else "")),
        Text("-" if line.took is None else f"{line.took * 1e3:,.0f}"),
        Text("-" if line.begun is None else f"{line.begun * 1e3:,.0f}"),
        Text(", ".join(remarks), "green" if outcome == "COMPLETED" else "yellow"),
        Text(" → ".join(line.path)),
    ]


def _outcome(line: OrderLine) -> Text:
    said = f", {line.text.partition(':')[0]}" if line.text and line.outcome != "COMPLETED" else ""
    return Text((line.outcome or "no outcome") + said, "green" if line.outcome == "COMPLETED" else "yellow")


def _short(device: str) -> str:
    return device.partition("/")[2]


def _equation(sent: HeapReport) -> str:
    expected = sent.expected
    suppressed, dead_lettered = sum(expected.suppressed.values()), sum(expected.dead_lettered.values())
    taken = f"{expected.used:,} used + {expected.late:,} late"
    if not sent.certain:
        taken = f"{expected.used + expected.late:,} used or late"
    return f"\n{expected.consumed:,} sent = {taken} + {suppressed:,} suppressed + {dead_lettered:,} dead-lettered\n"


def print_figures(console: Console, report: DemoReport) -> None:
    grid = Table.grid(Column(no_wrap=True), Column(), padding=(0, 2))
    for text, value in _figures(report):
        grid.add_row(Text(text), Text(value, style="bold"))
    console.print(grid)


def print_verdict(console: Console, report: DemoReport, file: Path) -> None:
    for failure in report.failures:
        console.print(f"[bold red]failure:[/bold red] {escape(failure)}")
    for one in report.experiments:
        done = f"{one.what} after {one.time - report.began:.1f} s"
        console.print(f"done by a person, so no failure: {escape(done)}", highlight=False, soft_wrap=True)
    if any(_TOO_LATE.search(failure) for failure in report.failures):
        patience = max(_PATIENCE, 2 * math.ceil(max(report.patience, report.slowness)))
        console.print(
            f"Something took too long. On a slow or busy machine, allow more time with --patience {patience:g}, or send"
            " less with --nodes 2 --rate 1000.",
            highlight=False,
        )
    if report.slowness > 1:
        console.print(
            f"This machine takes {report.slowness:.1f} times as long as the one for which the limits of time were set:"
            f" limits of time are taken {report.slowness:.1f} times.",
            highlight=False,
        )
    if report.logins:
        logins = ", ".join(report.logins)
        console.print(
            f"The broker was secured (TLS, SCRAM-SHA-512, rights of the ICD). Logins: {logins}.", highlight=False
        )
    console.print(f"report: {escape(str(file))}", highlight=False, soft_wrap=True)
    colour = "red" if report.failures else "green"
    console.print(f"[bold {colour}]{_in_one_line(report)}[/bold {colour}]", soft_wrap=True)


def _in_one_line(report: DemoReport) -> str:
    late = f" ({report.held_back:,} of which no window showed in time)" if report.held_back else ""
    if not (count := len(report.failures)):
        if not report.balanced:
            return "What was compared balances, and every limit is kept. Records were not compared."
        commands = ", every command has one outcome," if report.commands else ""
        return f"Everything balances to the last record{late}{commands} and every limit is kept."
    found = f"{count} failure{'s' if count > 1 else ''}, named above"
    if report.balanced:
        commands = " and every command has one outcome" if report.commands else ""
        return f"Everything balances to the last record{late}{commands}, but there is more: {found}."
    return f"The demo has failed: {found}."


def _figures(report: DemoReport) -> list[tuple[str, str]]:
    figures = [
        ("first values of all nodes after", _seconds(report.first_values_after)),
        *(
            (f"{one.process} killed and started again: {one.seen} after", _seconds(report.recoveries.get(name)))
            for name, one in FAULTS.items()
        ),
        ("last record sent: all accounted for after", _seconds(report.drained_after)),
        ("last record sent: windowed attributes ATTR_INVALID after", _seconds(report.invalid_after)),
        ("heap to the event that shows it (windows of 1 s)", _spread(report.notification_latency)),
        ("end of the window to its event", _spread(report.window_latency)),
    ]
    if report.baselines:
        took = ", ".join(map(_seconds, report.baselines))
        figures.append(("baseline: a bare device server answers after", f"{took} (limits: for {BASELINE:g} s)"))
    return figures


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _spread(value: Spread | None) -> str:
    return (
        "-" if value is None else f"p50 {value.p50:,.0f} ms, p99 {value.p99:,.0f} ms, longest {value.longest:,.0f} ms"
    )


def _cell(line: BalanceLine | None) -> str:
    if line is None:
        return ""
    return _found(line) if line.agrees else f"{_found(line)} ({line.expected})"


def _found(line: BalanceLine) -> str:
    return "-" if line.found is None else f"{line.found:,}"


def _verdict(agrees: bool) -> Text:
    return Text("equal", style="green") if agrees else Text("DIFFERS", style="bold red")
