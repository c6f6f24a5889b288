"""The command `sdp-facade table-faults`."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from facade.clock import SystemClock
from facade.runtime.stopping import terminable
from proving.table_faults.run import TableFaultRun
from proving.testbed import stage

_QUICK = 8


def table_faults(
    tables: Annotated[int, typer.Option(min=1, help="Tables to send.")] = 50,
    megabytes: Annotated[float, typer.Option(min=0.2, max=500, help="Size of each.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of the tables and of the kills.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help=f"Only {_QUICK} tables.")] = False,
    folder: Annotated[Path, typer.Option(help="Where a broker, a Tango database and logs may live meanwhile.")] = Path(
        ".run"
    ),
) -> None:
    """Send tables while producer, worker, device server and broker are killed (kill -9), and account for each.

    The exit code is 1 when a table was announced twice or with other bytes, or was lost without a report.

    Example: sdp-facade table-faults --quick
    """
    tables = _QUICK if quick else tables
    logging.getLogger("facade.bus").setLevel(logging.CRITICAL)  # that no broker answers is what is wanted here
    out, clock = Console(highlight=False, soft_wrap=True), SystemClock()
    begin = clock.monotonic()

    def say(text: str) -> None:
        out.print(f"{clock.monotonic() - begin:6.0f} s  {escape(text)}")
        sys.stdout.flush()

    with terminable(), stage(folder, clock, say) as made:
        run = TableFaultRun(made, tables=tables, size=round(megabytes * 1e6), seed=seed)
        found = run.run()
    table = Table("what", "number", title=f"{tables:,} tables of {megabytes:g} MB, seed {seed}")
    for part, count in run.kills.items():
        table.add_row(f"kill -9 of the {part}", f"{count:,}")
    for what, number in found.rows.items():
        table.add_row(what, f"{number:,}")
    out.print(table)
    for text in found.wrong:
        out.print(f"[red]wrong[/red]  {escape(text)}")
    if found.wrong:
        raise typer.Exit(1)
    out.print("each table was announced once and whole, or reported as never completed")
