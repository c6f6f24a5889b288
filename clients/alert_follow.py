"""The command `sdp-facade alerts follow`: every alert and every operator's action as a line, as it comes."""

import threading
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from clients.alert_subscription import AlertSubscription
from facade.cli.tango_host import TangoHost, require_tango_host
from facade.clock import SystemClock
from facade.flows.alerts.follower import Entry
from facade.runtime.stopping import stopping

DEVICE = "mid-sdp/alerts/0"

_COLOURS = {"CRITICAL": "bold red", "ALARM": "red", "WARNING": "yellow", "INFO": "cyan"}
_LOOK = 0.1
_out = Console(highlight=False, soft_wrap=True, emoji=False)
_err = Console(stderr=True, highlight=False, soft_wrap=True)


def follow(
    tango_host: TangoHost = "",
    device: Annotated[str, typer.Option(help="The device of the alerts.")] = DEVICE,
    since: Annotated[
        int | None, typer.Option(min=0, help="Begin after this sequence number. Default: only what comes from now on.")
    ] = None,
    most: Annotated[int | None, typer.Option(min=1, help="Stop after so many. Default: at Ctrl-C.")] = None,
) -> None:
    """Print each alert and each action of an operator, live; none is left out, whatever happens in between.

    The exit code is 1 if some could not be had any more.

    Example: TANGO_HOST=localhost:10000 sdp-facade alerts follow --since 0
    """
    require_tango_host(tango_host)
    clock, enough, lost = SystemClock(), threading.Event(), threading.Event()
    printed = 0

    def on_entry(entry: Entry) -> None:
        nonlocal printed
        if not enough.is_set():
            _out.print(line(entry))
            printed += 1
            if printed == most:
                enough.set()

    def on_lost(text: str) -> None:
        lost.set()
        _err.print(f"[bold red]lost:[/bold red] {escape(text)}")

    with stopping() as stopped:
        subscription = AlertSubscription(f"tango://{tango_host}/{device}", on_entry, start=since, on_lost=on_lost)
        while not stopped() and not enough.is_set():
            clock.sleep(_LOOK)
        subscription.close()
    if lost.is_set():
        raise typer.Exit(1)


def line(entry: Entry) -> str:
    """Return one entry as a line with rich's markup."""
    head = f"[dim]{entry.sequence:>8}  {_time(entry.time)}[/dim]"
    if (alert := entry.alert) is not None:
        severity, state = alert["severity"], alert["state"]
        colour = _COLOURS.get(severity, "") if state == "ACTIVE" else "green"
        what = f"[{colour}]{severity:<8} {state:<7}[/{colour}]" if colour else f"{severity:<8} {state:<7}"
        return f"{head}  {what}  {_name(alert)}  {_plain(alert['text'])}"
    action = entry.action or {}
    comment = f": {action['comment']}" if action.get("comment") else ""
    return f"{head}  {action.get('action', ''):<16}  {_name(action)}  {_plain(action.get('operator', '') + comment)}"


def _name(content: dict[str, object]) -> str:
    return _plain(f"{content.get('condition')} of {content.get('source')}")


def _plain(text: str) -> str:
    """Return a text that stays on its line and moves no cursor, whoever has written it."""
    return escape("".join(one if one.isprintable() else " " for one in text))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S.%f")[:-3]
