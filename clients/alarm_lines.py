"""Alarms, alerts and actions as lines for a terminal, without control characters of the bus."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape

from facade.flows.alerts.follower import FollowedAlert
from facade.icd.model import Condition
from facade.icd.words import runbook
from facade.printable import printable

_COLOURS = {"CRITICAL": "bold red", "ALARM": "red", "WARNING": "yellow", "INFO": "cyan"}
_STATES = {"UNACK": "bold red", "LTUNK": "bold red", "RTNUN": "yellow"}


def entry_line(entry: FollowedAlert, *, date: bool = False) -> str:
    """Return one entry as a line with rich's markup."""
    head = f"[dim]{entry.sequence:>8}  {_time(entry.time, date=date)}[/dim]"
    if (alert := entry.alert) is not None:
        severity, state = alert["severity"], alert["state"]
        colour = _COLOURS.get(severity, "") if state == "ACTIVE" else "green"
        what = f"[{colour}]{severity:<8} {state:<7}[/{colour}]" if colour else f"{severity:<8} {state:<7}"
        return f"{head}  {what}  {_name(alert)}  {_plain(alert['text'])}"
    action = entry.action or {}
    until = f" until {_moment(action['until'] / 1e6)}" if action.get("until") else ""
    comment = f": {action['comment']}" if action.get("comment") else ""
    said = f"{action.get('operator', '')}{until}{comment}"
    return f"{head}  {action.get('action', ''):<16}  {_name(action)}  {_plain(said)}"


def alarm_lines(
    alarm: Mapping[str, Any], conditions: Mapping[str, Condition], *, clients: bool = False
) -> Iterator[str]:
    """Return an alarm, in the form of GetAlarms, as lines with rich's markup: state, time, text, actions, response."""
    state, severity = alarm["state"], alarm["severity"]
    number = alarm["occurrence"] or "-"
    since = f"  since {_moment(alarm['raised_at'])}" if alarm["raised_at"] else ""
    style = _STATES.get(state, "default")
    colour = _COLOURS.get(severity, "default")
    what = f"[{style}]{state:<5}[/{style}]  [{colour}]{severity:<8}[/{colour}]"
    yield f"{number:>8}  {what}  [bold]{_name(alarm)}[/bold]{since}"
    if alarm["text"]:
        yield f"          {_plain(alarm['text'])}"
    if alarm.get("suppressed_by"):
        yield f"          suppressed by {_plain(alarm['suppressed_by'])}"
    if alarm.get("shelved_until"):
        yield f"          shelved until {_moment(alarm['shelved_until'])}"
    for one in alarm.get("actions", ()):
        comment = f": {one['comment']}" if one["comment"] else ""
        client = f" ({one['client']})" if clients and one.get("client") else ""
        did = f"{one['action']} by {one['operator']}{client} at {_moment(one['time'])}{comment}"
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


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _time(seconds: float, *, date: bool) -> str:
    return _moment(seconds) if date else datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S.%f")[:-3]
