"""The sub-commands of `sdp-facade alerts` with which an operator views and handles alarms."""

import getpass
import json
import os
from collections.abc import Callable, Sequence
from inspect import Signature, signature
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape
from rich.progress import track

from clients.alarm_choice import ACTIONS, AlarmDict, OperatorAction, choose, request, urgency
from clients.alarm_lines import alarm_lines, entry_line, without_repeats
from facade.cli.tango_host import TangoHost, require_tango_database
from facade.console import ERR, OUT, AsJson, say
from facade.durations import parse_duration
from facade.errors import CommandRefused, ConfigError
from facade.flows.alerts.follower import FollowedAlert
from facade.icd.load import load

DEVICE, SERVER = "mid-sdp/alerts/0", "alerts"
_MOST_ENTRIES = 1000
"""Entries requested from SdpAlerts at once; entries that only changed a text are removed."""
_MANY = 100
"""Number of alarms above which progress is shown."""

DeviceName = Annotated[str, typer.Option(help="The device of the alerts.")]
Which = Annotated[
    list[str] | None, typer.Argument(help="Numbers as `alerts list` shows them, conditions, or condition@source.")
]
Every = Annotated[bool, typer.Option("--all", help="All alarms to which the action applies.")]
Why = Annotated[str, typer.Option(help="The reason; it is kept with the alarm.")]
User = Annotated[str, typer.Option(help="Name of the operator. Default: the login name.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask, also for several alarms at once.")]


def list_alarms(tango_host: TangoHost = "", device: DeviceName = DEVICE, as_json: AsJson = False) -> None:
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
    device: DeviceName = DEVICE,
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
        say(entry_line(entry, date=True))
    if not entries:
        OUT.print(f"nothing is remembered of {escape(repr(which))}")


def show(
    which: Annotated[str, typer.Argument(help="Number as `alerts list` shows it, condition, or condition@source.")],
    most: Annotated[int, typer.Option(min=1, max=_MOST_ENTRIES, help="Number of entries of its history to print.")] = 5,
    tango_host: TangoHost = "",
    device: DeviceName = DEVICE,
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
        for text in (*alarm_lines(alarm, conditions, clients=True), *(entry_line(one, date=True) for one in entries)):
            say(text)


def _entries(server: Any, condition: str, source: str | None) -> list[FollowedAlert]:
    """Return the history of the alarms of a condition, the newest entry first."""
    asked: dict[str, Any] = {"condition": condition, "most": _MOST_ENTRIES}
    asked |= {} if source is None else {"source": source}
    answer = server.command("GetAlertHistory", json.dumps(asked))
    return without_repeats(msgspec.json.decode(answer, type=list[FollowedAlert]))


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
    duration: Annotated[str, typer.Option("--for", help="How long, up to 7d, such as 30m or 1h.")],
    which: Which = None,
    every: Every = False,
    comment: Why = "",
    user: User = "",
    yes: Yes = False,
    tango_host: TangoHost = "",
    device: DeviceName = DEVICE,
    as_json: AsJson = False,
) -> None:
    seconds = parse_duration(duration, "--for") if name == "shelve" else 0.0
    action = ACTIONS[name]
    if action.why and not comment:
        raise ConfigError(f"--comment: expected a reason, got none; {name} keeps it with the alarm")
    user = user or _login()
    server = _server(tango_host, device)
    chosen = choose(_alarms(server), which or (), action, every=every)
    if len(chosen) > 1 and not yes:
        _show(chosen, as_json)
        ERR.print(f"nothing was done yet: {name} concerns {len(chosen)} alarms; say --yes to do it")
        raise typer.Exit(1)
    each = track(chosen, console=ERR, transient=True, disable=as_json or len(chosen) < _MANY)
    done = [
        _do(server, one, action, request(one, action, user=user, comment=comment, duration=seconds)) for one in each
    ]
    if as_json:
        typer.echo(json.dumps(done, indent=2))
    else:
        for one in done:
            what = f"[red]refused: {escape(one['refused'])}[/red]" if "refused" in one else f"action {one['id']}"
            OUT.print(f"{name} {escape(one['condition'])} of {escape(one['source'])} by {escape(user)}: {what}")
        if not done:
            OUT.print(f"nothing to do: no alarm is in a state for {name}")
    if any("refused" in one for one in done):
        raise typer.Exit(1)


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
    """Suppress an alarm for a limited time; its state is still evaluated, and it comes back by itself.

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
    for alarm in alarms:
        OUT.print(next(alarm_lines(alarm, {})))


def _server(tango_host: str, device: str) -> Any:
    require_tango_database(tango_host)
    from clients.ask import AskedDevice  # the import takes a second: a wrong address is refused before

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
            f"--user: expected the name of the operator, got none, and user {os.getuid()} has no login name"
        ) from error
