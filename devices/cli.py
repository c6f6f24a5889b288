"""The sub-commands ``register`` and ``serve`` of ``sdp-facade``."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from devices.registration import register
from facade.kernel.cli.tango_host import EachTangoHost, require_tango_host
from facade.kernel.config import Settings, load_settings
from facade.kernel.errors import ConfigError, InfraError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.instances import instances, registration
from facade.kernel.names import PROGRAM, SERVER, domain


def register_devices(
    tango_host: EachTangoHost = "",
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
    properties_of: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Of several databases: the one whose properties of devices the others get."
        ),
    ] = "",
) -> None:
    """Register the deployment's devices in the Tango database, or in each of several.

    Of several databases it shows in which properties of the devices they differ, and warns of those that are away.

    A deployment that has become smaller leaves devices behind, with which its servers do not start. `--prune` shows
    them and changes nothing; `--prune --yes` registers, then removes them. Their servers must have been stopped.

    Example: TANGO_HOST=localhost:10000 SDP_INGEST_NODES=8 sdp-facade register

    Example: SDP_INGEST_NODES=4 sdp-facade register --prune

    Example: TANGO_HOST=tango-1:10000,tango-2:10000 sdp-facade register --properties-of tango-1:10000
    """
    if yes and not prune:
        raise typer.BadParameter("expected --prune with it", param_hint="--yes")
    if as_json and not prune:
        typer.echo(json.dumps(registration(load(), load_settings()), indent=2))
        return
    hosts = tango_host.split(",")
    for host in hosts:
        require_tango_host(host)
    if properties_of and properties_of not in hosts:
        raise ConfigError(f"--properties-of: expected one of {', '.join(hosts)}, got {properties_of!r:.100}")
    icd, settings, away = load(), load_settings(), dict[str, InfraError]()
    for host in hosts:
        try:
            if not prune or yes:
                count = register(icd, settings, host)
                said = f"{count} devices registered; server instances: {', '.join(instances(icd, settings))}"
                typer.echo(f"{host}: {said}" if hosts[1:] else said, err=as_json)
            if prune:
                _prune(icd, settings, host, yes=yes, as_json=as_json)
        except InfraError as error:  # the others shall have the devices all the same
            away[host] = error
    if not prune and len(hosts) - len(away) > 1:
        _equalize(domain(settings.telescope), [host for host in hosts if host not in away], properties_of)
    if len(away) == len(hosts) or (away and (prune or properties_of)):
        raise InfraError("\n".join(map(str, away.values())))
    for missed in away.values():
        typer.echo(f"warning: {missed}; register again when it is back", err=True)


def _equalize(domain: str, hosts: list[str], source: str) -> None:
    """Show in which properties the databases differ, or give all those of one."""
    from devices import properties  # imports Tango's client

    known = {host: properties.read_properties(host, domain) for host in hosts}
    if source and source not in known:
        return  # it does not answer, which is reported
    lines = properties.differing(known)
    for line in lines:
        typer.echo(f"differs: {line}")
    if source:
        for host in hosts:
            if host != source and (count := properties.copy_properties(known[source], known[host], host)):
                typer.echo(f"{host}: {count} properties changed to those of {source}")
    elif lines:
        typer.echo(f"make them equal: {PROGRAM} register --properties-of HOST:PORT")


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
