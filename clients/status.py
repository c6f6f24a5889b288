"""Judges in one word how a deployment is, and names what is wrong, the worst first, with what to do about it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.markup import escape

from clients.alarm_choice import AlarmDict, urgency
from facade.flows.alerts import states
from facade.icd.model import Condition
from facade.printable import printable

OK, DEGRADED, FAILED, UNKNOWN = "OK", "DEGRADED", "FAILED", "UNKNOWN"
NOTE = "NOTE"
"""Of a finding: worth knowing, and no reason to call the deployment anything but OK."""
EXIT_CODES: Final = {OK: 0, DEGRADED: 1, FAILED: 2, UNKNOWN: 3}
STYLES: Final = {OK: "bold green", DEGRADED: "bold yellow", FAILED: "bold red", UNKNOWN: "bold magenta", NOTE: "dim"}
_RANKS = (FAILED, UNKNOWN, DEGRADED, NOTE)
_THERE = states.ACTIVE | {states.LTUNK, states.LTACK}
_MOST_ALARMS = 10
_COUNTED = {
    states.RTNUN: "alarms that have gone before anybody acknowledged them",
    states.SHLVD: "shelved alarms",
    states.DSUPR: "suppressed alarms, as another condition explains them",
    states.OOSRV: "alarms out of service",
}
"""What is said of the number of alarms in a state."""
_LIST = "sdp-facade alerts list"
_OF_STATE = {"ALARM": DEGRADED, "FAULT": FAILED, "UNKNOWN": UNKNOWN}
"""What a State of Tango's says of a device."""


class Finding(NamedTuple):
    """One thing to know."""

    level: str
    about: str
    """Device, device server, or alarm."""
    text: str
    do: str = ""
    """What to do; empty: the text says it."""


class Seen(NamedTuple):
    """What the devices of a deployment said; None of one that did not answer."""

    servers: Mapping[str, str]
    """Why each device-server instance does not answer; empty of those that do."""
    master: Mapping[str, Any] | None
    """State, healthState as a label, and healthInfo of SdpMaster."""
    bus: Mapping[str, Any] | None
    """State and Status of SdpBus."""
    alerts: Mapping[str, Any] | None
    """State and Status of SdpAlerts."""
    alarms: Sequence[AlarmDict] | None
    """Those that are not at rest."""


def judge(seen: Seen, conditions: Mapping[str, Condition]) -> tuple[str, list[Finding]]:
    """Return how the deployment is, and what is to be said about it, the worst first."""
    found = [
        *_servers(seen),
        *_health(seen.master),
        *_device("SdpBus", seen.bus, seen.master),
        *_alerts(seen),
        *_alarms(seen.alarms or (), conditions),
    ]
    found.sort(key=lambda one: _RANKS.index(one.level))
    return overall(found), found


def overall(findings: Sequence[Finding]) -> str:
    """Return the worst of what was found: what surely fails first, then what nobody knows."""
    levels = {one.level for one in findings}
    return next((level for level in _RANKS if level in levels and level != NOTE), OK)


def _servers(seen: Seen) -> Iterator[Finding]:
    if not seen.servers:
        do = "register the devices: sdp-facade register"
        yield Finding(UNKNOWN, "Tango database", "no device server of SdpFacade is registered", do)
    for instance, why in seen.servers.items():
        if why:
            do = f"start it: sdp-facade serve {instance}"
            yield Finding(DEGRADED, f"device server {instance}", f"does not answer: {why}", do)


def _health(master: Mapping[str, Any] | None) -> Iterator[Finding]:
    if master is None or master["healthState"] is None:
        why = "does not answer" if master is None else "does not know the health of SDP"
        do = "see that its device server control runs: sdp-facade serve control"
        yield Finding(UNKNOWN, "SdpMaster", f"{why}, so nobody knows how SDP is", do)
        return
    health = master["healthState"]
    if health == OK:
        return
    reasons = list(master["healthInfo"] or ())
    yield Finding(health, "SdpMaster", reasons[0] if reasons else f"health is {health}, and no reason is given")
    # Only the gravest one surely is what healthState says.
    yield from (Finding(DEGRADED, "SdpMaster", reason) for reason in reasons[1:])


def _device(name: str, device: Mapping[str, Any] | None, master: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Return what a device's State says that SdpMaster has not said."""
    if device is None:
        yield Finding(DEGRADED, name, "does not answer")
        return
    known = {*((master or {}).get("healthInfo") or ())}
    level = _OF_STATE.get(device["State"])
    lines = [line for line in (device["Status"] or "").splitlines()[1:] if line and line not in known]
    if level is not None and (lines or not known):
        yield Finding(level, name, f"{device['State']}: {' '.join(lines)}".rstrip(": "))


def _alerts(seen: Seen) -> Iterator[Finding]:
    if seen.alerts is None or seen.alarms is None:
        do = "see that its device server alerts runs: sdp-facade serve alerts"
        yield Finding(DEGRADED, "SdpAlerts", "does not answer, or has not read all alerts: no alarm is seen", do)
    elif seen.alerts["State"] == "UNKNOWN":
        yield Finding(UNKNOWN, "SdpAlerts", " ".join(seen.alerts["Status"].splitlines()[1:]))


def _alarms(alarms: Sequence[AlarmDict], conditions: Mapping[str, Condition]) -> Iterator[Finding]:
    there = sorted((one for one in alarms if one["state"] in _THERE), key=urgency, reverse=True)
    for alarm in there[:_MOST_ALARMS]:
        condition = conditions.get(alarm["condition"])
        level = NOTE if alarm["severity"] == "INFO" else DEGRADED
        about = f"{alarm['condition']} of {alarm['source']}"
        text = f"{alarm['severity']} {alarm['state']}: {alarm['text']}"
        yield Finding(level, about, text, condition.response if condition else "")
    rest = there[_MOST_ALARMS:]
    if rest:
        level = NOTE if all(one["severity"] == "INFO" for one in rest) else DEGRADED
        yield Finding(level, "SdpAlerts", f"more alarms: {len(rest)}", _LIST)
    for state, text in _COUNTED.items():
        if count := sum(one["state"] == state for one in alarms):
            yield Finding(NOTE, "SdpAlerts", f"{text}: {count}", _LIST)


def line(finding: Finding) -> str:
    """Return a finding as a line with rich's markup."""
    style, do = STYLES[finding.level], f" [bold]->[/bold] {escape(finding.do)}" if finding.do else ""
    about, text = escape(printable(finding.about)), escape(printable(finding.text))
    return f"[{style}]{finding.level:<8}[/{style}]  [bold]{about}[/bold]: {text}{do}"
