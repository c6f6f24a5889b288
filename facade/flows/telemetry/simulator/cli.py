"""`sdp-facade simulate ingest`: the ingest nodes, for demos, tests and load.

Progress goes to standard error: a live line on a terminal, else a plain line each five seconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.markup import escape

from facade.clock import Clock, SystemClock
from facade.config import Settings
from facade.errors import ConfigError
from facade.flows.telemetry.simulator.faults import FAR, Faults, Limits, Scenario, Silence, Skew
from facade.flows.telemetry.simulator.heaps import HeapStream
from facade.flows.telemetry.simulator.ingest import TOPIC, IngestSimulator
from facade.flows.telemetry.simulator.report import Report
from facade.icd.load import load
from facade.simulate.sender import Stop
from facade.simulate.sending import console, deployment, send

_PLAIN_INTERVAL = 5.0

EPILOG = """
Examples:

[bold]sdp-facade simulate ingest --nodes 4 --rate 1000[/bold]
until Ctrl-C, 1,000 heaps/s of four nodes together

[bold]sdp-facade simulate ingest --nodes 4 --rate 127200 --seconds 60 --report sent.json[/bold]
the full load of four nodes for a minute; sent.json says what must be found at the other end

[bold]sdp-facade simulate ingest --count 100000 --garbage 0.001 --duplicates 0.001 --gaps 0.001 --disorder 0.001[/bold]
a bad day, the same one for the same --seed

[bold]sdp-facade simulate ingest --silence 2:10:25 --skew 1:-30[/bold]
node 2 says nothing from second 10 to 25; the clock of node 1 is 30 s behind, so all its records are late
"""

_SENDING, _FAULTS, _WHERE = "What to send", "Faults (probabilities per heap)", "Where to"


def ingest(
    nodes: Annotated[
        int | None, typer.Option(min=1, rich_help_panel=_SENDING, help="Ingest nodes. Default: the deployment's.")
    ] = None,
    first_node: Annotated[
        int, typer.Option(min=0, rich_help_panel=_SENDING, help="Number of the first one, to share the nodes.")
    ] = 0,
    rate: Annotated[float, typer.Option(rich_help_panel=_SENDING, help="Heaps/s of all nodes together.")] = 1000.0,
    seed: Annotated[int, typer.Option(min=0, rich_help_panel=_SENDING, help="Same seed, same stream.")] = 1,
    seconds: Annotated[
        float | None, typer.Option(min=0, rich_help_panel=_SENDING, help="Stop after so long. Default: at Ctrl-C.")
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=0, rich_help_panel=_SENDING, help="Stop after so many heaps.")
    ] = None,
    scan_id: Annotated[
        int | None, typer.Option(min=1, rich_help_panel=_SENDING, help="Default: the Unix time at the start.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(rich_help_panel=_SENDING, help="JSON file for the exact account; refreshed each second."),
    ] = None,
    gaps: Annotated[
        float, typer.Option(min=0, max=1, rich_help_panel=_FAULTS, help="A sequence number is skipped.")
    ] = 0.0,
    duplicates: Annotated[
        float, typer.Option(min=0, max=1, rich_help_panel=_FAULTS, help="A record is sent twice.")
    ] = 0.0,
    disorder: Annotated[
        float, typer.Option(min=0, max=1, rich_help_panel=_FAULTS, help="Two neighbours of one node swap places.")
    ] = 0.0,
    late: Annotated[float, typer.Option(min=0, max=1, rich_help_panel=_FAULTS, help="The data time is old.")] = 0.0,
    late_seconds: Annotated[float, typer.Option(rich_help_panel=_FAULTS, help="How old.")] = FAR,
    ahead: Annotated[
        float, typer.Option(min=0, max=1, rich_help_panel=_FAULTS, help="The data time is in the future.")
    ] = 0.0,
    ahead_seconds: Annotated[float, typer.Option(rich_help_panel=_FAULTS, help="How far.")] = FAR,
    garbage: Annotated[
        float,
        typer.Option(min=0, max=1, rich_help_panel=_FAULTS, help="A malformed record follows; all kinds in turn."),
    ] = 0.0,
    silence: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=_FAULTS, metavar="NODE:FROM:TO", help="A node stops; seconds. Repeatable."),
    ] = None,
    skew: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=_FAULTS, metavar="NODE:SECONDS", help="A node's clock is off. Repeatable."),
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option(rich_help_panel=_WHERE, help="Kafka brokers. Default: the deployment's.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(rich_help_panel=_WHERE, help="Before all topics. Default: the deployment's.")
    ] = None,
) -> None:
    """Send heap notifications as the ingest nodes do.

    The report says what was sent, per fault and node, and what must become of it at the other end.

    The exit code is 1 if a record was not delivered.
    """
    clock = SystemClock()
    settings = deployment(bootstrap, prefix)
    faults = Faults(
        gaps=gaps,
        duplicates=duplicates,
        disorder=disorder,
        late=late,
        late_seconds=late_seconds,
        ahead=ahead,
        ahead_seconds=ahead_seconds,
        garbage=garbage,
        silences=tuple(map(Silence.parse, silence or ())),
        skews=tuple(map(Skew.parse, skew or ())),
    )
    scenario = Scenario(
        nodes=settings.nodes if nodes is None else nodes,
        rate=rate,
        seed=seed,
        scan_id=int(clock.now()) if scan_id is None else scan_id,
        first_node=first_node,
        faults=faults,
        limits=_limits(),
    )
    _run(settings, scenario, Stop(count=count, seconds=seconds), report, clock)


def _run(settings: Settings, scenario: Scenario, stop: Stop, file: Path | None, clock: Clock) -> None:
    if scenario.first_node + scenario.nodes > settings.nodes:
        console.print(f"[yellow]the deployment has {settings.nodes} nodes; records of others become dead letters")
    make = partial(IngestSimulator, HeapStream(scenario))
    with _progress(clock) as show:
        final = send(make, settings, TOPIC, stop, client="simulate-ingest", file=file, show=show, clock=clock)
    console.print(_summary(final))
    if final.undelivered:
        raise typer.Exit(1)


def _limits() -> Limits:
    window = load().topics[TOPIC].window
    if window is None:
        raise ConfigError(f"topics.toml: topics.{TOPIC}: expected a [window]")
    return Limits(lateness=window.lateness, ahead=window.ahead)


@contextmanager
def _progress(clock: Clock) -> Iterator[Callable[[Report], None]]:
    """Show how things are: a live line on a terminal, else a plain one now and then."""
    last_time, last_sent, last_plain = clock.monotonic(), 0, clock.monotonic()

    def line(report: Report) -> str:
        nonlocal last_time, last_sent
        now = clock.monotonic()
        real = (report.sent - last_sent) / max(now - last_time, 1e-3)
        last_time, last_sent = now, report.sent
        trouble = f"  {escape(report.last_error)}" if report.backlog and report.last_error else ""
        return (
            f"{report.elapsed:7.1f} s  rate {report.rate:,.0f}/s, really {real:,.0f}/s"
            f"  sent {report.sent:,}  backlog {report.backlog:,}{trouble}"
        )

    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield lambda report: live.update(line(report), refresh=True)
        return

    def plain(report: Report) -> None:
        nonlocal last_plain
        if clock.monotonic() - last_plain >= _PLAIN_INTERVAL:
            last_plain = clock.monotonic()
            console.print(line(report))

    yield plain


def _summary(report: Report) -> str:
    expected = report.expected
    refused = sum(expected.dead_lettered.values())
    text = (
        f"sent {report.sent:,} records in {report.elapsed:.1f} s ({report.sent / max(report.elapsed, 1e-3):,.0f}/s):"
        f" {expected.used:,} to be used, {expected.late:,} late, {sum(expected.suppressed.values()):,} suppressed,"
        f" {refused:,} dead letters"
    )
    if report.undelivered:
        text += f"\n[bold red]undelivered: {report.undelivered:,}[/bold red]  {escape(report.last_error)}"
    if not report.certain:
        text += (
            f"\n[yellow]records waited up to {report.longest_wait:.1f} s for the broker:"
            " some of those to be used may be late instead, or ones ahead be used"
        )
    return text
