"""The sub-commands ``register`` and ``serve`` of ``sdp-facade``."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from devices.registration import register
from facade.kernel.cli.tango_host import TangoHost, require_tango_host
from facade.kernel.config import Settings, load_settings
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.instances import instances, registration
from facade.kernel.names import SERVER


def register_devices(
    tango_host: TangoHost = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Only print what would be registered, for dsconfig; with --prune: removed.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Show registered devices that the deployment no longer has; with --yes: remove them."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
) -> None:
    """Register the deployment's devices in the Tango database.

    A deployment that has become smaller leaves devices behind, with which its servers do not start. `--prune` shows
    them and changes nothing; `--prune --yes` registers, then removes them. Their servers must have been stopped.

    Example: TANGO_HOST=localhost:10000 SDP_INGEST_NODES=8 sdp-facade register

    Example: SDP_INGEST_NODES=4 sdp-facade register --prune
    """
    if yes and not prune:
        raise typer.BadParameter("expected --prune with it", param_hint="--yes")
    if as_json and not prune:
        typer.echo(json.dumps(registration(load(), load_settings()), indent=2))
        return
    require_tango_host(tango_host)
    icd, settings = load(), load_settings()
    if not prune or yes:
        count = register(icd, settings, tango_host)
        typer.echo(f"{count} devices registered; server instances: {', '.join(instances(icd, settings))}", err=as_json)
    if prune:
        _prune(icd, settings, tango_host, yes=yes, as_json=as_json)


def _prune(icd: Icd, settings: Settings, tango_host: str, *, yes: bool, as_json: bool) -> None:
    from devices import pruning  # imports Tango's client

    surplus = pruning.find_surplus(icd, settings, tango_host)
    if yes:
        pruning.prune(surplus, tango_host)
    if as_json:
        typer.echo(json.dumps({"removed": yes, "devices": surplus}, indent=2))
        return
    count = sum(map(len, surplus.values()))
    size = f"{settings.nodes} nodes and {settings.subarrays} subarrays"
    typer.echo(f"{count} devices {'removed' if yes else 'to remove'}; this deployment has {size}")
    for instance, devices in surplus.items():
        typer.echo(f"  {SERVER} {instance}: {', '.join(devices) or 'no device left, only its name'}")
    if surplus and not yes:
        typer.echo("nothing was changed; do it with `sdp-facade register --prune --yes`")


def serve(instance: Annotated[str, typer.Argument(help="Device-server instance, such as control.")]) -> None:
    """Run one device server in the foreground; the same as the executable SdpFacade.

    Example: sdp-facade serve control
    """
    # Beside the interpreter: the virtual environment need not be active.
    os.execv(Path(sys.executable).with_name(SERVER), [SERVER, instance])  # noqa: S606 - replaces this process, no shell
