"""The command `sdp-facade bench`."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.text import Text

from facade.kernel.clock import SystemClock
from facade.kernel.console import OUT, table, wide
from facade.kernel.errors import ConfigError, FacadeError
from facade.kernel.runtime.stopping import terminable
from facade.sdp.files import write_json
from sdp_facade_lab.bench.report import BenchOutcome, Report, machine, summary, with_tables
from sdp_facade_lab.progress import ProgressLine
from sdp_facade_lab.testbed import Testbed, testbed

Measure = Callable[..., BenchOutcome]

MEASUREMENTS = {
    "worker": "sdp_facade_lab.bench.throughput:one_worker",
    "columnar": "sdp_facade_lab.bench.throughput:columnar",
    "growth": "sdp_facade_lab.bench.throughput:growth",
    "two-workers": "sdp_facade_lab.bench.throughput:two_workers",
    "peers": "sdp_facade_lab.bench.throughput:peers",
    "stream-processors": "sdp_facade_lab.bench.stream_processors:stream_processors",
    "brokers": "sdp_facade_lab.bench.brokers:brokers",
    "latency": "sdp_facade_lab.bench.latency:latency",
    "low-rate": "sdp_facade_lab.bench.delays:low_rate",
    "reads": "sdp_facade_lab.bench.latency:reads",
    "elastic": "sdp_facade_lab.bench.restarts:elastic",
    "outage": "sdp_facade_lab.bench.restarts:outage",
    "standby": "sdp_facade_lab.bench.standby:standby",
    "commands": "sdp_facade_lab.bench.hops:commands",
    "large-commands": "sdp_facade_lab.bench.hops:large_commands",
    "alerts": "sdp_facade_lab.bench.hops:alerts",
    "secured": "sdp_facade_lab.bench.secured:secured",
    "lost-broker": "sdp_facade_lab.bench.lost_broker:lost_broker",
    "blocks": "sdp_facade_lab.bench.blocks:blocks",
    "logs": "sdp_facade_lab.bench.logs:logs",
    "flood": "sdp_facade_lab.bench.logs:flood",
    "visit": "sdp_facade_lab.bench.visit:visit",
    "tables": "sdp_facade_lab.bench.tables:tables",
    "archive": "sdp_facade_lab.bench.archive:archive",
    "sweep": "sdp_facade_lab.bench.sweep:sweep",
    "scale": "sdp_facade_lab.bench.latency:scale",
    "web": "sdp_facade_lab.bench.web:web",
    "web-past": "sdp_facade_lab.bench.web_past:web_past",
    "live": "sdp_facade_lab.bench.latency:live",
}
"""Where each measurement is; loaded only when it is made."""
SINCE = {"sweep": "d116a918", "latency": "4530b4fc"}
"""Commit since which a measurement is made otherwise, so that figures of earlier commits are not its own."""

DEFAULT_REPORT = Path(".run/bench-report.json")

_COLOURS = {"REACHED": "green", "NOT REACHED": "red", "FAILED": "red", "NOT MEASURED": "yellow"}
_WIDTH = 150


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer records, two pairs, shorter runs.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Only this measurement; repeatable. One of: {', '.join(MEASUREMENTS)}."),
    ] = None,
    report: Annotated[Path, typer.Option(help="JSON file for everything measured.")] = DEFAULT_REPORT,
    page: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Page in Markdown whose blocks `<!-- bench NAME -->` get the tables, as of `sweep`.",
        ),
    ] = None,
) -> None:
    """Measure the facade beside the raw limits of this machine, with a Kafka and a Tango database of its own.

    Each bar comes from the project's budgets. A bar that is not reached is no error: the exit code is 0 unless a
    measurement could not be made.

    Example: sdp-facade bench --quick --only commands
    """
    names = list(dict.fromkeys(only or MEASUREMENTS))
    if unknown := [name for name in names if name not in MEASUREMENTS]:
        raise ConfigError(f"--only {unknown[0]}: expected one of {', '.join(MEASUREMENTS)}")
    clock, where = SystemClock(), machine()
    began, progress, outcomes = clock.now(), ProgressLine(OUT, clock), list[BenchOutcome]()
    OUT.print(
        f"{where.cores} cores, {where.cpu}, {where.memory_gb:g} GB, {where.system}, Python {where.python};"
        f" load average {where.load_average[0]:.1f} before the bench began"
    )

    def save(*, finished: bool) -> None:
        made, seconds = tuple(outcomes), progress.elapsed
        whole = Report(began=began, seconds=seconds, quick=quick, finished=finished, machine=where, outcomes=made)
        write_json(report, whole)
        if page:
            page.write_text(with_tables(page.read_text(), whole))

    try:
        with terminable(), testbed(report.parent, progress, brokers=1, secure=False) as bed:
            for name in names:
                outcomes.append(_measure(bed, name, quick=quick))
                save(finished=len(outcomes) == len(names))
                _show(outcomes[-1])
    finally:
        save(finished=len(outcomes) == len(names))
        _conclude(outcomes, report)
    if any(outcome.failure for outcome in outcomes):
        raise typer.Exit(1)


def _measure(made: Testbed, name: str, *, quick: bool) -> BenchOutcome:
    """Make one measurement; one that fails does not take the others with it."""
    module, _, function = MEASUREMENTS[name].partition(":")
    made.progress.step(name)
    try:
        measure: Measure = getattr(import_module(module), function)
        return msgspec.structs.replace(measure(made, quick=quick), name=name)
    except (FacadeError, OSError, ImportError, ValueError, msgspec.MsgspecError) as error:
        return BenchOutcome(name=name, what="", verdicts=(), failure=f"{type(error).__name__}: {error}")


def _show(outcome: BenchOutcome) -> None:
    OUT.print(f"\n[bold]{outcome.name}[/bold]  {escape(outcome.what)}")
    for line in outcome.notes:
        OUT.print(f"  {escape(line)}")
    for _, what, bar, found, word in summary([outcome]):
        OUT.print(f"  {escape(what)}: {escape(found)}  bar {bar or '-'}  {_coloured(word)}")
    OUT.print()


def _conclude(outcomes: Sequence[BenchOutcome], report: Path) -> None:
    rows = [
        (name, what, bar, found.partition("\n")[0], Text(word, _COLOURS.get(word, "")))
        for name, what, bar, found, word in summary(outcomes)
    ]
    wide(_WIDTH).print(table(("measurement", "figure", "bar", "found", ""), rows))
    OUT.print(f"everything measured is in {report}")


def _coloured(word: str) -> str:
    colour = _COLOURS.get(word)
    return f"[{colour}]{word}[/{colour}]" if colour else word
