"""The sub-command ``demo`` of ``sdp-facade``."""

from pathlib import Path
from typing import Annotated

import typer

from facade.flows.tables.arrow import require_arrow
from facade.infra.local import DEFAULT_STATE_DIR
from proving.demo.guard import console, guarded
from proving.demo.options import DemoOptions


def demo(
    nodes: Annotated[int, typer.Option(min=1, max=9999, help="Ingest nodes.")] = 4,
    rate: Annotated[float, typer.Option(min=1, help="Heaps/s of each node.")] = 31_800.0,
    seconds: Annotated[float, typer.Option(min=5, help="Time for which the simulator sends, in seconds.")] = 30.0,
    columnar: Annotated[
        bool, typer.Option("--columnar", help="Nodes send columnar batches, as they must where there are many.")
    ] = False,
    garbage: Annotated[float, typer.Option(min=0, max=1, help="Fraction of malformed records, 0 to 1.")] = 0.0002,
    kills: Annotated[
        bool, typer.Option(help="Kill (kill -9) a worker, device servers and the controller meanwhile.")
    ] = True,
    controller: Annotated[
        bool,
        typer.Option(help="Start a controller, and observe as TM does. With --no-controller, run your own (--stay)."),
    ] = True,
    logs: Annotated[
        bool, typer.Option("--logs", help="Also ship logs and metrics by rsyslog and collectd (Debian's packages).")
    ] = False,
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Also simulate a telescope, and mirror its pointing.")
    ] = False,
    orders: Annotated[
        bool,
        typer.Option("--orders", help="Switch SDP as a whole, and let controllers give orders down to workers."),
    ] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also all other flows: --logs, --mirror, --orders, and blocks that fail."),
    ] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Keep all running until Ctrl-C.")] = False,
    live: Annotated[bool, typer.Option(help="Show the live table where there is a terminal.")] = True,
    state_dir: Annotated[
        Path, typer.Option(help="The folder with the data, the logs and the state.", envvar="SDP_STATE_DIR")
    ] = DEFAULT_STATE_DIR,
    report: Annotated[
        Path | None, typer.Option(help="JSON file for the result. Default: demo-report.json in the state folder.")
    ] = None,
    patience: Annotated[
        float, typer.Option(min=1, help="Factor for every time limit, besides that for slow machines.")
    ] = 1.0,
) -> None:
    """Run the whole system here with a simulated SDP, kill parts of it, and account for every record and command.

    The exit code is 1 if anything does not balance or a limit is passed.

    Example: sdp-facade demo --nodes 2 --rate 5000 --stay
    """
    require_arrow()  # its calibration pipeline writes Arrow: said now, not by a process in the middle of the demo
    options = DemoOptions(
        nodes=nodes,
        rate=rate,
        seconds=seconds,
        columnar=columnar,
        garbage=garbage,
        kills=kills,
        controller=controller,
        logs=logs or everything,
        mirror=mirror or everything,
        blocks=everything and controller,
        orders=(orders or everything) and controller,
        stay=stay,
        live=live,
        state_dir=state_dir,
        report=report,
        patience=patience,
    )
    options.folder.mkdir(parents=True, exist_ok=True)  # said here in one line if it cannot be
    raise typer.Exit(guarded(options, console()))
