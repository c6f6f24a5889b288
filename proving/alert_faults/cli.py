"""The command `sdp-facade alert-faults`."""

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
from proving.alert_faults.account import account
from proving.alert_faults.run import AlertFaultRun
from proving.testbed import stage

_QUICK, _QUICK_BURST, _QUICK_KILLS = 20_000, 2_000, 2


def alert_faults(
    alerts: Annotated[int, typer.Option(min=1, help="Alerts and actions to send in all.")] = 1_000_000,
    burst: Annotated[int, typer.Option(min=1, max=50_000, help="So many at once.")] = 10_000,
    kills: Annotated[int, typer.Option(min=0, help="kill -9 of the device server, and of the broker.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the alerts and of the kills.")] = 1,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help=f"Only {_QUICK:,} alerts, in bursts of {_QUICK_BURST:,}, and {_QUICK_KILLS} kills of each."
        ),
    ] = False,
    folder: Annotated[Path, typer.Option(help="Where a broker, a Tango database and logs may live meanwhile.")] = Path(
        ".run"
    ),
) -> None:
    """Send a million alerts while device server and broker are killed (kill -9), to a client that is slow at times.

    The exit code is 1 when the client has not got exactly what was sent, in order for each source, or
    when an alarm is in another state than what was sent says.

    Example: sdp-facade alert-faults --quick
    """
    alerts, burst, kills = (_QUICK, _QUICK_BURST, _QUICK_KILLS) if quick else (alerts, burst, kills)
    logging.getLogger("facade.bus").setLevel(logging.CRITICAL)  # that no broker answers is what is wanted here
    out, clock = Console(highlight=False, soft_wrap=True), SystemClock()
    begin = clock.monotonic()

    def say(text: str) -> None:
        out.print(f"{clock.monotonic() - begin:6.0f} s  {escape(text)}")
        sys.stdout.flush()

    with terminable(), stage(folder, clock, say) as made:
        run = AlertFaultRun(made, alerts=alerts, burst=burst, kills=kills, seed=seed)
        found = run.run()
        result = account(found)
    table = Table("what", "number", title=f"{alerts:,} alerts in bursts of {burst:,}, seed {seed}")
    for part, count in run.kills.items():
        table.add_row(f"kill -9 of the {part}", f"{count:,}")
    for what, number in result.rows:
        table.add_row(what, f"{number:,}")
    table.add_row("from the first one sent to the last one received", f"{run.seconds:,.0f} s")
    table.add_row("slowest recovery: longest silence at the client", f"{found.client.silence:.1f} s")
    table.add_row("longest absence of the broker after its kill", f"{run.broker_away:.1f} s")
    table.add_row("peak memory of the device server", f"{run.peak_memory / 1e6:,.0f} MB")
    out.print(table)
    for text in result.wrong:
        out.print(f"[red]wrong[/red]  {escape(text)}")
    if result.wrong:
        raise typer.Exit(1)
    out.print("the client has exactly what was sent, each once and in order; each alarm is in the state that it says")
