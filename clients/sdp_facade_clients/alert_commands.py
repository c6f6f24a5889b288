"""The sub-commands of `sdp-facade alerts` with which an operator views, handles and follows alarms."""

import getpass
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import Signature, signature
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape
from rich.progress import track

from facade.flows.alerts.filter import AlertFilter, Comparison
from facade.flows.alerts.follower import FollowedAlert
from facade.kernel.cli.tango_host import TangoHost, device_name, require_tango_database, require_tango_host
from facade.kernel.clock import SystemClock, Time, as_time, utc_seconds
from facade.kernel.console import ERR, OUT, AsJson, say
from facade.kernel.errors import CommandRefused, ConfigError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Condition
from facade.kernel.printable import printable
from facade.kernel.runtime.stopping import stopping
from facade.kernel.severities import Severity
from facade.sdp.durations import parse_duration
from facade.sdp.judgement import AlarmDict
from facade.sdp.words import runbook
from sdp_facade_clients.alarm_choice import ACTIONS, OperatorAction, choose, request, urgency
from sdp_facade_clients.status import devices

SERVER = "alerts"
_MOST_ENTRIES = 1000
"""Entries requested from SdpAlerts at once; entries that only changed a text are removed."""
_MANY = 100
"""Number of alarms above which progress is shown."""
_LOOK = 0.1
_COLOURS = {"CRITICAL": "bold red", "ALARM": "red", "WARNING": "yellow", "INFO": "cyan"}
_STATES = {"UNACK": "bold red", "LTUNK": "bold red", "RTNUN": "yellow"}


def _device(name: str) -> str:
    return device_name(name) if name else devices().alerts


DeviceName = Annotated[
    str, typer.Option(callback=_device, help="The device of the alerts. Default: that of the telescope.")
]
Which = Annotated[
    list[str] | None, typer.Argument(help="Numbers as `alerts list` shows them, conditions, or condition@source.")
]
Every = Annotated[bool, typer.Option("--all", help="All alarms to which the action applies.")]
Why = Annotated[str, typer.Option(help="The reason; it is kept with the alarm.")]
Operator = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Name of the operator: kept with the alarm, and not checked. Default: the login name."
    ),
]
_wanted: Callable[..., Any] = partial(typer.Option, rich_help_panel="Only some")
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask, also for several alarms at once.")]


def list_alarms(tango_host: TangoHost = "", device: DeviceName = "", as_json: AsJson = False) -> None:
    """Print all alarms that are not at rest: those that wait for an acknowledgement first, then by severity.

    The number before each alarm is its occurrence; `alerts ack` takes it.

    Example: TANGO_HOST=localhost:10000 sdp-facade alerts list
    """
    server = _server(tango_host, device)
    alarms = _alarms(server)
    shown = server.read("State", "Status")
    if as_json:
        typer.echo(json.dumps(alarms, indent=2))
    else:
        conditions = load().conditions
        for alarm in alarms:
            for text in alarm_lines(alarm, conditions):
                say(text)
        if not alarms:
            OUT.print("no alarms: all conditions are at rest")
    if str(shown["State"]) == "UNKNOWN":
        ERR.print(f"[bold red]not to be relied on:[/bold red] {escape(str(shown['Status']))}")
        raise typer.Exit(1)


def history(
    which: Annotated[str, typer.Argument(help="Number as `alerts list` shows it, condition, or condition@source.")],
    most: Annotated[int, typer.Option(min=1, max=_MOST_ENTRIES, help="Number of entries to print.")] = 20,
    tango_host: TangoHost = "",
    device: DeviceName = "",
    as_json: AsJson = False,
) -> None:
    """Print the history of an alarm, the newest entry first: its alerts, and the actions of operators.

    It goes as far back as SdpAlerts remembers: its newest 100,000 alerts and actions.

    Example: TANGO_HOST=localhost:10000 sdp-facade alerts history deadLetters
    """
    server = _server(tango_host, device)
    condition, at, source = which.partition("@")
    if which.isdecimal():
        (alarm,) = choose(_alarms(server), [which], ACTIONS["comment"])[:1]
        condition, at, source = alarm["condition"], "@", alarm["source"]
    entries = _entries(server, condition, source if at else None)[:most]
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(entries), indent=2))
        return
    for entry in entries:
        say(entry_line(entry))
    if not entries:
        OUT.print(f"nothing is remembered of {escape(repr(which))}")


def show(
    which: Annotated[str, typer.Argument(help="Number as `alerts list` shows it, condition, or condition@source.")],
    most: Annotated[int, typer.Option(min=1, max=_MOST_ENTRIES, help="Number of entries of its history to print.")] = 5,
    tango_host: TangoHost = "",
    device: DeviceName = "",
    as_json: AsJson = False,
) -> None:
    """Print one alarm as a whole: state, text, all actions with operator and client, response, and its history.

    Example: TANGO_HOST=localhost:10000 sdp-facade alerts show deadLetters
    """
    server = _server(tango_host, device)
    found = choose(_alarms(server), [which], ACTIONS["comment"])
    histories = [_entries(server, alarm["condition"], alarm["source"])[:most] for alarm in found]
    if as_json:
        both = zip(found, histories, strict=True)
        typer.echo(
            json.dumps([{**alarm, "history": msgspec.to_builtins(entries)} for alarm, entries in both], indent=2)
        )
        return
    conditions = load().conditions
    for alarm, entries in zip(found, histories, strict=True):
        for text in (*alarm_lines(alarm, conditions, clients=True), *(entry_line(one) for one in entries)):
            say(text)


def _entries(server: Any, condition: str, source: str | None) -> list[FollowedAlert]:
    """Return the history of the alarms of a condition, the newest entry first."""
    asked: dict[str, Any] = {"condition": condition, "most": _MOST_ENTRIES}
    asked |= {} if source is None else {"source": source}
    answer = server.command("GetAlertHistory", json.dumps(asked))
    return without_repeats(msgspec.json.decode(answer, type=list[FollowedAlert]))


def follow(
    tango_host: TangoHost = "",
    device: DeviceName = "",
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
    from sdp_facade_clients.alert_subscription import AlertSubscription  # imports Tango, which takes a second

    clock, enough, lost = SystemClock(), threading.Event(), threading.Event()
    printed, failed = 0, list[BaseException]()

    def on_entry(entry: FollowedAlert) -> None:
        nonlocal printed
        if not enough.is_set():
            try:
                OUT.print(entry_line(entry))
            except BaseException as error:  # the disk is full; rich raises SystemExit if the pipe is closed
                failed.append(error)
            printed += 1
            if printed == most or failed:
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
    if failed:
        raise failed[0]
    if lost.is_set():
        raise typer.Exit(1)


def _command(name: str, text: str) -> Callable[..., None]:
    """Return the sub-command of an action, with the options of `_act`; only a shelf has a duration."""
    left_out = ("name",) if name == "shelve" else ("name", "duration")
    options = [one for one in signature(_act).parameters.values() if one.name not in left_out]

    def call(**given: Any) -> None:
        _act(name, **({"duration": ""} | given))

    vars(call)["__signature__"] = Signature(options)
    call.__annotations__ = {one.name: one.annotation for one in options}
    call.__doc__ = text
    return call


def _act(
    name: str,
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long, up to 7d, such as 30m or 1h.")],
    which: Which = None,
    every: Every = False,
    comment: Why = "",
    operator: Operator = "",
    user: Annotated[str, typer.Option(hidden=True)] = "",
    yes: Yes = False,
    tango_host: TangoHost = "",
    device: DeviceName = "",
    as_json: AsJson = False,
) -> None:
    seconds = parse_duration(duration, "--for") if name == "shelve" else 0.0
    action = ACTIONS[name]
    if action.why and not comment:
        raise ConfigError(f"--comment: expected a reason, got none; {name} keeps it with the alarm")
    operator = operator or user or _login()  # --user: as in 0.2.0
    server = _server(tango_host, device)
    chosen = choose(_alarms(server), which or (), action, every=every)
    if len(chosen) > 1 and not yes:
        _show(chosen, as_json)
        ERR.print(f"nothing was done yet: {name} concerns {len(chosen)} alarms; say --yes to do it")
        raise typer.Exit(1)
    done: list[dict[str, str]] = []
    try:
        for one in track(chosen, console=ERR, transient=True, disable=as_json or len(chosen) < _MANY):
            argument = request(one, action, user=operator, comment=comment, duration=seconds)
            done.append(_do(server, one, action, argument))
    except BaseException:
        if done:  # the device server may go away in the middle
            _tell(name, done, operator, as_json)
        raise
    _tell(name, done, operator, as_json)
    if any("refused" in one for one in done):
        raise typer.Exit(1)


def _tell(name: str, done: Sequence[dict[str, str]], operator: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(done, indent=2))
    else:
        for one in done:
            what = f"[red]refused: {escape(one['refused'])}[/red]" if "refused" in one else f"action {one['id']}"
            OUT.print(f"{name} {escape(one['condition'])} of {escape(one['source'])} by {escape(operator)}: {what}")
        if not done:
            OUT.print(f"nothing to do: no alarm is in a state for {name}")


acknowledge = _command(
    "ack",
    """Acknowledge an occurrence of an alarm; a later or worse occurrence is not acknowledged.

    Example: sdp-facade alerts ack 1042 --comment "called the receive team"
    """,
)
unshelve = _command(
    "unshelve",
    """End the shelving of an alarm before its time.

    Example: sdp-facade alerts unshelve qualityLow
    """,
)
reset = _command(
    "reset",
    """Reset a latched alarm whose condition has gone.

    Example: sdp-facade alerts reset storageLow
    """,
)
comment = _command(
    "comment",
    """Add a comment to an alarm.

    Example: sdp-facade alerts comment 1042 --comment "pump ordered"
    """,
)
remove_from_service = _command(
    "remove-from-service",
    """Take an alarm out of service, for maintenance, until it is returned.

    Example: sdp-facade alerts remove-from-service receiveOverrun@receive/0007 --comment "rack 7 is rebuilt"
    """,
)
return_to_service = _command(
    "return-to-service",
    """Put an alarm back into service.

    Example: sdp-facade alerts return-to-service receiveOverrun@receive/0007
    """,
)


shelve = _command(
    "shelve",
    """Shelve an alarm: hide it from operators for a limited time, after which it comes back by itself.

    Its state is evaluated as before, and the shelving is kept in its history with operator and reason (IEC 62682). Only
    the facade suppresses alarms, while their cause stands; to take one away without a limit of time, remove it from
    service.

    Example: sdp-facade alerts shelve qualityLow --for 1h --comment "known bad weather"
    """,
)


def _do(server: Any, alarm: AlarmDict, action: OperatorAction, argument: dict[str, Any]) -> dict[str, str]:
    told = {"condition": alarm["condition"], "source": alarm["source"]}
    try:
        return told | {"id": server.command(action.command, json.dumps(argument))}
    except CommandRefused as error:
        return told | {"refused": str(error)}


def _show(alarms: Sequence[AlarmDict], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(alarms, indent=2))
        return
    for alarm in alarms:  # one that may come has no state
        OUT.print(next(alarm_lines(alarm, {})) if "state" in alarm else _name(alarm))


def _server(tango_host: str, device: str) -> Any:
    require_tango_database(tango_host)
    from sdp_facade_clients.ask import AskedDevice  # the import takes a second: a wrong address is refused before

    return AskedDevice(tango_host, device, SERVER)


def _alarms(server: Any) -> list[AlarmDict]:
    """Return all alarms that are not at rest, the most urgent first."""
    found: list[AlarmDict] = json.loads(server.command("GetAlarms"))
    return sorted(found, key=urgency, reverse=True)


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise ConfigError(
            f"--operator: expected the name of the operator, got none, and user {os.getuid()} has no login name"
        ) from error


# --- Lines for a terminal, without control characters of the bus ---


def entry_line(entry: FollowedAlert) -> str:
    """Return one entry as a line with rich's markup."""
    head = f"[dim]{entry.sequence:>8}  {utc_seconds(as_time(entry.time))}[/dim]"
    if (alert := entry.alert) is not None:
        severity, state = alert["severity"], alert["state"]
        colour = _COLOURS.get(severity, "") if state == "ACTIVE" else "green"
        what = f"[{colour}]{severity:<8} {state:<7}[/{colour}]" if colour else f"{severity:<8} {state:<7}"
        return f"{head}  {what}  {_name(alert)}  {_plain(alert['text'])}"
    action = entry.action or {}
    until = f" until {utc_seconds(Time(action['until']))}" if action.get("until") else ""
    comment = f": {action['comment']}" if action.get("comment") else ""
    said = f"{action.get('operator', '')}{until}{comment}"
    return f"{head}  {action.get('action', ''):<16}  {_name(action)}  {_plain(said)}"


def alarm_lines(
    alarm: Mapping[str, Any], conditions: Mapping[str, Condition], *, clients: bool = False
) -> Iterator[str]:
    """Return an alarm, in the form of GetAlarms, as lines with rich's markup: state, time, text, actions, response."""
    state, severity = alarm["state"], alarm["severity"]
    number = alarm["occurrence"] or "-"
    since = f"  since {utc_seconds(as_time(alarm['raised_at']))}" if alarm["raised_at"] else ""
    style = _STATES.get(state, "default")
    colour = _COLOURS.get(severity, "default")
    what = f"[{style}]{state:<5}[/{style}]  [{colour}]{severity:<8}[/{colour}]"
    yield f"{number:>8}  {what}  [bold]{_name(alarm)}[/bold]{since}"
    if alarm["text"]:
        yield f"          {_plain(alarm['text'])}"
    if alarm.get("suppressed_by"):
        yield f"          suppressed by {_plain(alarm['suppressed_by'])}"
    if alarm.get("shelved_until"):
        yield f"          shelved until {utc_seconds(as_time(alarm['shelved_until']))}"
    for one in alarm.get("actions", ()):
        comment = f": {one['comment']}" if one["comment"] else ""
        client = f" ({one['client']})" if clients and one.get("client") else ""
        did = f"{one['action']} by {one['operator']}{client} at {utc_seconds(as_time(one['time']))}{comment}"
        yield f"          [dim]{_plain(did)}[/dim]"
    if (condition := conditions.get(alarm["condition"])) is not None:
        yield f"          -> {escape(condition.response)} [dim](see {runbook(alarm['condition'])})[/dim]"


def without_repeats(entries: list[FollowedAlert]) -> list[FollowedAlert]:
    """Return entries, the newest first, without alerts that only changed the text of an occurrence."""
    kept: list[FollowedAlert] = []
    for entry in entries:
        before, newer = entry.alert, kept[-1].alert if kept else None
        same = (
            before and newer and all(before[key] == newer[key] for key in ("source", "state", "severity", "raised_at"))
        )
        if not same:
            kept.append(entry)
    return kept


def _name(content: Mapping[str, Any]) -> str:
    return _plain(f"{content.get('condition')} of {content.get('source')}")


def _plain(text: str) -> str:
    return escape(printable(text))
