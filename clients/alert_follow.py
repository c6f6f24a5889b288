"""The command `sdp-facade alerts follow`: every alert and every operator's action as a line, live."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer
from rich.markup import escape

from clients.alarm_lines import entry_line
from facade.cli.tango_host import TangoHost, require_tango_host
from facade.clock import SystemClock
from facade.console import ERR, OUT
from facade.flows.alerts.filter import AlertFilter, Comparison
from facade.flows.alerts.follower import FollowedAlert
from facade.runtime.stopping import stopping
from facade.severities import Severity

DEVICE = "mid-sdp/alerts/0"

_LOOK = 0.1

_wanted: Callable[..., Any] = partial(typer.Option, rich_help_panel="Only some")


def follow(
    tango_host: TangoHost = "",
    device: Annotated[str, typer.Option(help="The device of the alerts.")] = DEVICE,
    since: Annotated[
        int | None, typer.Option(min=0, help="Begin after this sequence number. Default: only new entries.")
    ] = None,
    most: Annotated[int | None, typer.Option(min=1, help="Stop after this many. Default: at Ctrl-C.")] = None,
    condition: Annotated[str, _wanted(help="Name, or pattern with * and ?.")] = "*",
    source: Annotated[str, _wanted(help="Name, or pattern with * and ?.")] = "*",
    severity: Annotated[Severity | None, _wanted(help="Lowest severity.")] = None,
    field: Annotated[
        list[str] | None, _wanted(metavar="FIELD>=VALUE", help="Such as 'values.snr >= 7'; repeatable, all must hold.")
    ] = None,
) -> None:
    """Print each alert and each action of an operator, live. Lost events are fetched again.

    With --severity or --field it prints no actions, as they have neither.

    The exit code is 1 if entries could no longer be fetched.

    Example: TANGO_HOST=localhost:10000 sdp-facade alerts follow --since 0
    """
    fields = tuple(map(Comparison.parse, field or ()))
    only = AlertFilter(condition=condition, source=source, severity=severity, fields=fields)
    require_tango_host(tango_host)
    from clients.alert_subscription import AlertSubscription  # imports Tango, which takes a second

    clock, enough, lost = SystemClock(), threading.Event(), threading.Event()
    printed = 0

    def on_entry(entry: FollowedAlert) -> None:
        nonlocal printed
        if not enough.is_set():
            OUT.print(entry_line(entry))
            printed += 1
            if printed == most:
                enough.set()

    def on_lost(text: str) -> None:
        lost.set()
        ERR.print(f"[bold red]lost:[/bold red] {escape(text)}")

    with stopping() as stopped:
        name = f"tango://{tango_host}/{device}"
        subscription = AlertSubscription(name, on_entry, start=since, on_lost=on_lost, only=only)
        is_known = False
        while not stopped() and not enough.is_set():
            if not is_known and subscription.place is not None:
                is_known = True  # from here on no entry is missed
                ERR.print(f"following {escape(name)} after number {subscription.place}; Ctrl-C ends it")
            clock.sleep(_LOOK)
        subscription.close()
    if lost.is_set():
        raise typer.Exit(1)
