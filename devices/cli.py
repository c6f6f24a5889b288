"""The sub-commands ``register`` and ``serve`` of ``sdp-facade``."""

import json
import os
from typing import Annotated

import typer

from devices.registration import register
from facade.cli.tango_host import TangoHost, require_tango_host
from facade.config import load_settings
from facade.exports.tango_db import instances, registration
from facade.icd.load import load


def register_devices(
    tango_host: TangoHost = "",
    as_json: Annotated[bool, typer.Option("--json", help="Only print what would be registered, for dsconfig.")] = False,
) -> None:
    """Register the deployment's devices in the Tango database.

    Example: TANGO_HOST=localhost:10000 SDP_INGEST_NODES=8 sdp-facade register
    """
    if as_json:
        typer.echo(json.dumps(registration(load(), load_settings()), indent=2))
        return
    require_tango_host(tango_host)
    icd, settings = load(), load_settings()
    count = register(icd, settings, tango_host)
    typer.echo(f"{count} devices registered; server instances: {', '.join(instances(icd, settings))}")


def serve(instance: Annotated[str, typer.Argument(help="Device-server instance, such as control.")]) -> None:
    """Run one device server in the foreground; the same as the executable SdpFacade.

    Example: sdp-facade serve control
    """
    os.execvp("SdpFacade", ["SdpFacade", instance])  # noqa: S606 - replaces this process, no shell
