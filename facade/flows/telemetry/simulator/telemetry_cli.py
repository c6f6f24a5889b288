"""`sdp-facade simulate telemetry`: the senders of any windowed topic, with values made up from its schema."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from facade.clock import SystemClock
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import plan, windowed
from facade.flows.telemetry.simulator.records import Range, RecordStream
from facade.flows.telemetry.simulator.sending import TelemetryReport, TelemetrySimulator
from facade.icd.fields import properties
from facade.icd.load import load
from facade.simulate.sender import Stop
from facade.simulate.sending import (
    Bootstrap,
    Count,
    Prefix,
    ReportFile,
    Seconds,
    Seed,
    deployment,
    send,
    sending,
)

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
        list[str] | None, sending(help="Name or number of a group. Repeatable. Default: all of the deployment.")
    ] = None,
    rate: Annotated[float, sending(min=0.001, help="Records/s of all groups together.")] = 10.0,
    seconds: Seconds = None,
    count: Count = None,
    seed: Seed = 1,
    epoch: Annotated[int | None, sending(min=0, help="Default: the Unix time at the start.")] = None,
    range_: Annotated[
        list[str] | None, sending("--range", metavar="FIELD=LOW:HIGH", help="Values of a field. Repeatable.")
    ] = None,
    report: ReportFile = None,
    bootstrap: Bootstrap = None,
    prefix: Prefix = None,
) -> None:
    """Send records of a windowed topic; the groups send in turn.

    The exit code is 1 if a record was not delivered.
    """
    icd, settings = load(), deployment(bootstrap, prefix)
    if topic not in windowed(icd):
        raise typer.BadParameter(f"expected one of {', '.join(windowed(icd))}, got {topic}")
    found = plan(icd, topic)
    known: Sequence[Group] = found.groups(settings)
    groups = [found.group(one) for one in group] if group else known
    if not groups:
        raise typer.BadParameter("expected --group, because the interface does not list the names of the groups")
    schema = icd.messages[found.message]
    ranges = dict(_range(text, properties(schema)) for text in range_ or ())
    began = int(SystemClock().now()) if epoch is None else epoch
    stream = RecordStream(found, schema, groups, seed=seed, epoch=began, ranges=ranges)
    make, stop = partial(TelemetrySimulator, stream, rate), Stop(count=count, seconds=seconds)
    send(make, settings, topic, stop, client="simulate-telemetry", file=report, summary=_summary)


def _summary(report: TelemetryReport) -> str:
    return f"sent {report.sent:,} records of {len(report.groups)} groups in {report.elapsed:.1f} s"


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
