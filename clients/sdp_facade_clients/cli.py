"""The sub-commands ``status`` and ``watch`` of ``sdp-facade``."""

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from facade.kernel.cli.tango_host import TangoHost, device_name, require_tango_database
from facade.kernel.clock import SystemClock, as_seconds, utc_seconds
from facade.kernel.console import AsJson, Console, say
from facade.kernel.errors import ConfigError, FacadeError
from facade.kernel.findings import EXIT_CODES, STYLES, UNKNOWN, Finding, line
from facade.kernel.icd.load import load
from facade.kernel.icd.telescope import instance_of
from facade.kernel.names import SERVER
from facade.kernel.runtime.stopping import stopping
from sdp_facade_clients.status import counts, judge


def watch(
    devices: Annotated[
        list[str] | None, typer.Argument(help="Device names. Default: all devices of the server SdpFacade.")
    ] = None,
    tango_host: TangoHost = "",
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Stop after this time, in seconds. Default: at Ctrl-C.")
    ] = None,
    # `make screenshots` uses it for docs/images/watch.svg.
    picture: Annotated[Path | None, typer.Option(hidden=True, help="Write the last view as SVG.")] = None,
) -> None:
    """Watch the deployment live, through Tango change events only.

    Without a terminal: one line each five seconds.

    Example: TANGO_HOST=localhost:10000 sdp-facade watch mid-sdp/ingest/0003
    """
    require_tango_database(tango_host)
    from sdp_facade_clients.ask import deployed
    from sdp_facade_clients.events import (
        EventPulse,
        EventRecorder,
        by_class,
        find_servers,
    )  # imports Tango, which takes a second
    from sdp_facade_clients.terminal import draw
    from sdp_facade_clients.watch import Watch, look, subscribe_shown

    icd = load()
    parts, servers = deployed(tango_host, SystemClock()), find_servers(tango_host, SERVER)
    if parts:
        run = {f"{SERVER}/{instance_of(icd.telescope, part)}" for part in parts}
        servers = {name: known for name, known in servers.items() if name in run}
    found = by_class(servers)
    if devices:
        wanted = {device_name(name).lower() for name in devices}
        found = {name: [device for device in known if device in wanted] for name, known in found.items()}
        if missing := sorted(wanted - {device for known in found.values() for device in known}):
            raise ConfigError(f"not a device of {SERVER} in the database {tango_host}: {', '.join(missing)}")
    if not any(found.values()):
        raise ConfigError(f"the Tango database {tango_host} has no devices of {SERVER}; see `sdp-facade register`")
    clock = SystemClock()
    recorder = EventRecorder(tango_host, clock)
    shown = {device for known in found.values() for device in known}
    pulse = EventPulse(
        tango_host,
        {server: chosen for server, known in servers.items() if (chosen := sorted(shown.intersection(known)))},
        clock,
    )
    with stopping() as stopped, closing(recorder), closing(pulse):
        subscribe_shown(recorder, found)
        view = Watch(recorder, found, pulse, tango_host=tango_host, icd=icd, clock=clock)
        look(view, Console(), seconds=seconds, stopped=stopped, clock=clock)
        if picture is not None:
            draw(view.scene(), picture)


def status(tango_host: TangoHost = "", as_json: AsJson = False) -> None:
    """Show the health of the deployment in one word, then each fault, the worst first, and what to do about it.

    The exit code is 0 if it is OK, 1 DEGRADED, 2 FAILED, 3 UNKNOWN: no Tango database, no broker, or the device
    server of SdpMaster does not answer; 4 ATTENTION: all is well, but an alarm waits for a person. It takes some
    seconds at most, also when parts are down.

    Example: TANGO_HOST=localhost:10000 sdp-facade status || page-somebody
    """
    clock, health, findings, servers, alarms = SystemClock(), UNKNOWN, list[Finding](), dict[str, str](), ""
    try:
        require_tango_database(tango_host)
        from sdp_facade_clients.ask import look as look_at  # imports Tango, which takes a second

        icd = load()
        seen = look_at(tango_host, clock, icd.enums["HealthState"])
        servers = dict(seen.servers)
        alarms = "" if seen.alarms is None else f"; alarms: {counts(seen.alarms)}"
        judged = judge(seen, icd.conditions)
        health, findings = judged.state, [*judged.findings]
    except FacadeError as error:
        findings = [Finding(UNKNOWN, "sdp-facade status", str(error))]
    at = clock.now_us()
    if as_json:
        found = [finding._asdict() for finding in findings]
        answers = {name: not why for name, why in servers.items()}
        content = {"status": health, "exit_code": EXIT_CODES[health], "time": as_seconds(at), "tango_host": tango_host}
        typer.echo(json.dumps(content | {"servers": answers, "findings": found}, indent=2))
    else:
        head = f"[{STYLES[health]}]{health:<8}[/{STYLES[health]}]  SDP{escape(tango_host and f' at {tango_host}')}"
        answering = sum(not why for why in servers.values())
        say(f"{head}, {utc_seconds(at)}; {answering} of {len(servers)} device servers answer{alarms}")
        for finding in findings:
            say(line(finding))
    raise typer.Exit(EXIT_CODES[health])
