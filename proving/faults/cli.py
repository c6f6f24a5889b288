"""The command `sdp-facade faults`."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from facade.clock import SystemClock
from facade.runtime.stopping import terminable
from proving.faults.account import account
from proving.faults.run import FaultRun, require_few
from proving.testbed import stage

_QUICK = 200
_MOST_SHOWN = 20


def faults(
    commands: Annotated[int, typer.Option(min=1, help="Commands to give in all.")] = 10_000,
    subarrays: Annotated[int, typer.Option(min=1, max=16)] = 8,
    seed: Annotated[int, typer.Option(help="Of the commands and of the kills.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"Only {_QUICK} commands, and accidents one close upon the other.")
    ] = False,
    folder: Annotated[Path, typer.Option(help="Where a broker, a Tango database and logs may live meanwhile.")] = Path(
        ".run"
    ),
) -> None:
    """Give thousands of commands while device server, controller and broker are killed (kill -9), and account for each.

    The exit code is 1 when a command was lost, executed twice although it must not be, begun too late, or
    has another outcome on the device than on the log.

    Example: sdp-facade faults --quick
    """
    commands = _QUICK if quick else commands
    require_few(commands, subarrays)
    out, clock = Console(highlight=False, soft_wrap=True), SystemClock()
    begin = clock.monotonic()

    def say(text: str) -> None:
        out.print(f"{clock.monotonic() - begin:6.0f} s  {text}")
        sys.stdout.flush()

    with terminable(), stage(folder, clock, say) as made:
        run = FaultRun(made, commands=commands, subarrays=subarrays, seed=seed, quick=quick)
        found = account(run.run())
    table = Table("what", "number", title=f"{commands:,} commands, {subarrays} subarrays, seed {seed}")
    for part, count in run.kills.items():
        table.add_row(f"kill -9 of the {part}", f"{count:,}")
    table.add_row("standstills of the broker (SIGSTOP)", f"{run.standstills:,}")
    for what, number in found.rows:
        table.add_row(what, f"{number:,}")
    table.add_row("slowest answer of a device that was there", f"{found.slowest * 1e3:.0f} ms")
    out.print(table)
    for text in found.wrong[:_MOST_SHOWN]:
        out.print(f"[red]wrong[/red]  {text}")
    if found.wrong:
        out.print(f"{len(found.wrong)} findings")
        raise typer.Exit(1)
    out.print("every command has one outcome, the same for all; none is lost, doubled against the rules, or late")
