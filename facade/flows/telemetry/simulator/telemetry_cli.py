"""`sdp-facade simulate telemetry`: the senders of any windowed topic, with values made up from its schema."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from facade.clock import SystemClock
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import plan, windowed
from facade.flows.telemetry.simulator.records import Range, RecordStream
from facade.flows.telemetry.simulator.sending import TelemetryReport, TelemetrySimulator
from facade.icd.fields import properties
from facade.icd.load import load
from facade.simulate.sender import Stop
from facade.simulate.sending import console, deployment, send

EPILOG = """
Examples:

[bold]sdp-facade simulate telemetry ingest.buffers --rate 40[/bold]
until Ctrl-C, ten reports/s of each of four nodes

[bold]sdp-facade simulate telemetry flagging --count 100 --report sent.json[/bold]
sent.json has the totals that must be found at the other end

[bold]sdp-facade simulate telemetry storage --count 1 --range used=2e16:2.1e16 --range free=1e16:1.1e16[/bold]
the report of one day, with plausible figures
"""


def telemetry(
    topic: Annotated[str, typer.Argument(help="A topic of the interface that has a window.")],
    group: Annotated[
        list[str] | None, typer.Option(help="Name or number of a group. Repeatable. Default: all of the deployment.")
    ] = None,
    rate: Annotated[float, typer.Option(min=0.001, help="Records/s of all groups together.")] = 10.0,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after so long. Default: at Ctrl-C.")] = None,
    count: Annotated[int | None, typer.Option(min=0, help="Stop after so many records.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same values.")] = 1,
    epoch: Annotated[int | None, typer.Option(min=0, help="Default: the Unix time at the start.")] = None,
    range_: Annotated[
        list[str] | None, typer.Option("--range", metavar="FIELD=LOW:HIGH", help="Values of a field. Repeatable.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="JSON file for the exact account; refreshed each second.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka brokers. Default: the deployment's.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Before all topics. Default: the deployment's.")] = None,
) -> None:
    """Send records of a windowed topic; the groups send in turn.

    The exit code is 1 if a record was not delivered.
    """
    icd, clock, settings = load(), SystemClock(), deployment(bootstrap, prefix)
    if topic not in windowed(icd):
        raise typer.BadParameter(f"expected one of {', '.join(windowed(icd))}, got {topic}")
    found = plan(icd, topic)
    known: Sequence[Group] = found.groups(settings)
    groups = [found.group(one) for one in group] if group else known
    if not groups:
        raise typer.BadParameter("expected --group, because the interface does not list the names of the groups")
    schema = icd.messages[found.message]
    ranges = dict(_range(text, properties(schema)) for text in range_ or ())
    began = int(clock.now()) if epoch is None else epoch
    stream = RecordStream(found, schema, groups, seed=seed, epoch=began, ranges=ranges)
    make = partial(TelemetrySimulator, stream, rate)
    stop = Stop(count=count, seconds=seconds)
    final = send(make, settings, topic, stop, client="simulate-telemetry", file=report, show=_show, clock=clock)
    console.print(f"sent {final.sent:,} records of {len(groups)} groups in {final.elapsed:.1f} s")
    if final.undelivered:
        console.print(f"[bold red]undelivered: {final.undelivered:,}[/bold red]  {escape(final.last_error)}")
        raise typer.Exit(1)


def _show(report: TelemetryReport) -> None:
    """Show nothing while running: what there is to know is in the report."""


def _range(text: str, known: dict[str, dict[str, object]]) -> tuple[str, Range]:
    name, _, bounds = text.partition("=")
    low, _, high = bounds.partition(":")
    try:
        found = float(low), float(high)
    except ValueError:
        found = (1.0, 0.0)
    if name not in known or found[0] > found[1]:
        raise typer.BadParameter(f"--range: expected FIELD=LOW:HIGH with a field of {', '.join(known)}, got {text}")
    return name, found
