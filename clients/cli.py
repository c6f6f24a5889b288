"""The sub-command ``watch`` of ``sdp-facade``."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from facade.cli.tango_host import TangoHost, require_tango_database
from facade.clock import SystemClock
from facade.errors import ConfigError
from facade.exports.tango_db import SERVER
from facade.icd.load import load
from facade.runtime.stopping import stopping

_out = Console()


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
    require_tango_database(tango_host)
    from clients.events import EventRecorder, find_devices  # with Tango, whose import takes a second
    from clients.terminal import draw
    from clients.watch import Watch, look, subscribe_shown

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
