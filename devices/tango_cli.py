"""The sub-commands of ``sdp-facade`` that need Tango, beside those of the bus side."""

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clients.alert_follow import follow
from clients.conformance.cli import conformance
from clients.events import EventRecorder, find_devices
from clients.terminal import draw
from clients.watch import Watch, look, subscribe_shown
from devices.registration import register
from facade.cli.app import app
from facade.cli.stopping import stopping
from facade.clock import SystemClock
from facade.config import load_settings
from facade.errors import ConfigError
from facade.exports.tango_db import SERVER, instances, registration
from facade.flows.alerts.cli import alerts_app
from facade.flows.tables.arrow import require_arrow
from facade.icd.load import load
from facade.infra.local import DEFAULT_STATE_DIR, TangoDb
from proving.alert_faults.cli import alert_faults
from proving.bench.cli import bench
from proving.demo.options import DemoOptions
from proving.demo.scenario import play
from proving.faults.cli import faults
from proving.table_faults.cli import table_faults

_out = Console()

TangoHost = Annotated[str, typer.Option(envvar="TANGO_HOST", help="Tango database, host:port.")]


@app.command("register")
def register_devices(
    tango_host: TangoHost = "",
    as_json: Annotated[bool, typer.Option("--json", help="Only print what would be registered, for dsconfig.")] = False,
) -> None:
    """Register the deployment's devices in the Tango database.

    Example: TANGO_HOST=localhost:10000 SDP_INGEST_NODES=8 sdp-facade register
    """
    if as_json:
        print(json.dumps(registration(load(), load_settings()), indent=2))  # noqa: T201
        return
    _need_tango_host(tango_host)
    icd, settings = load(), load_settings()
    count = register(icd, settings, tango_host)
    _out.print(f"{count} devices registered; server instances: {', '.join(instances(icd, settings))}")


@app.command()
def serve(instance: Annotated[str, typer.Argument(help="Device-server instance, such as control.")]) -> None:
    """Run one device server in the foreground; the same as the executable SdpFacade.

    Example: sdp-facade serve control
    """
    os.execvp("SdpFacade", ["SdpFacade", instance])  # noqa: S606 - replaces this process, no shell


@app.command()
def watch(
    devices: Annotated[
        list[str] | None, typer.Argument(help="Device names. Default: all devices of the server SdpFacade.")
    ] = None,
    tango_host: TangoHost = "",
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after so long. Default: at Ctrl-C.")] = None,
    # How docs/images/watch.svg is made: `watch --seconds 8 --picture docs/images/watch.svg` while a demo runs.
    picture: Annotated[Path | None, typer.Option(hidden=True, help="Write the last view as SVG.")] = None,
) -> None:
    """Watch the deployment live, through Tango change events only.

    Without a terminal: one line each five seconds.

    Example: TANGO_HOST=localhost:10000 sdp-facade watch mid-sdp/ingest/0003
    """
    _need_tango_host(tango_host)
    found = find_devices(tango_host, SERVER)
    if devices:
        wanted = {name.lower() for name in devices}
        found = {name: [device for device in known if device in wanted] for name, known in found.items()}
        if missing := sorted(wanted - {device for known in found.values() for device in known}):
            raise ConfigError(f"not a device of {SERVER} in the database {tango_host}: {', '.join(missing)}")
    if not any(found.values()):
        raise ConfigError(f"the Tango database {tango_host} has no devices of {SERVER}; see `sdp-facade register`")
    clock = SystemClock()
    recorder = EventRecorder(tango_host, clock)
    with stopping() as stopped, closing(recorder):
        subscribe_shown(recorder, found)
        view = Watch(recorder, found, tango_host=tango_host, icd=load(), clock=clock)
        look(view, _out, seconds=seconds, stopped=stopped, clock=clock)
        if picture is not None:
            draw(view.scene(), picture)


@app.command()
def demo(
    nodes: Annotated[int, typer.Option(min=1, max=9999, help="Ingest nodes.")] = 4,
    rate: Annotated[float, typer.Option(min=1, help="Heaps/s of each node.")] = 31_800.0,
    seconds: Annotated[float, typer.Option(min=5, help="How long the simulator sends.")] = 30.0,
    garbage: Annotated[float, typer.Option(min=0, max=1, help="Fraction of malformed records.")] = 0.0002,
    kills: Annotated[bool, typer.Option(help="kill -9 a worker, device servers and the controller on the way.")] = True,
    stay: Annotated[bool, typer.Option("--stay", help="Keep all running until Ctrl-C.")] = False,
    live: Annotated[bool, typer.Option(help="Show the live table where there is a terminal.")] = True,
    state_dir: Annotated[
        Path, typer.Option(help="The folder with the data, the logs and the state.", envvar="SDP_STATE_DIR")
    ] = DEFAULT_STATE_DIR,
    tango_db: Annotated[TangoDb | None, typer.Option(help="Default: as the last time, else embedded.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="JSON file for the result. Default: demo-report.json in the state folder.")
    ] = None,
    patience: Annotated[
        float, typer.Option(min=1, help="Factor on every limit of time; a slow machine has one anyway, by a baseline.")
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
        garbage=garbage,
        kills=kills,
        stay=stay,
        live=live,
        state_dir=state_dir,
        tango_db=tango_db,
        report=report,
        patience=patience,
    )
    # Piped output has no width of its own; the tables need more than the usual 80.
    console = _out if _out.is_terminal else Console(width=120)
    raise typer.Exit(play(options, console, SystemClock()))


def _need_tango_host(tango_host: str) -> None:
    if not tango_host:
        raise ConfigError("TANGO_HOST is not set; expected host:port of the Tango database")


app.command()(bench)
app.command()(conformance)
app.command()(faults)
app.command()(alert_faults)
app.command()(table_faults)
alerts_app.command()(follow)
