"""Health of a deployment in one word, and its problems, the worst first, each with the remedy."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from clients.alarm_choice import AlarmDict, urgency
from facade.config import Settings
from facade.findings import DEGRADED, FAILED, NOTE, OK, RANKS, UNKNOWN, Finding, overall
from facade.flows.alerts import states
from facade.icd.model import Condition, Icd, instance_role
from facade.icd.words import runbook
from facade.instances import devices_of

_THERE = states.ACTIVE | {states.LTUNK, states.LTACK}
_MOST_ALARMS = 10
_COUNTED = {
    states.RTNUN: "alarms that have gone and are not acknowledged",
    states.SHLVD: "shelved alarms",
    states.DSUPR: "alarms that another condition suppresses",
    states.OOSRV: "alarms out of service",
}
"""Words for the number of alarms in a state."""
_QUIET = (states.SHLVD, states.DSUPR, states.OOSRV)
"""States of an alarm that a person has silenced, or that another alarm explains."""
_LIST = "sdp-facade alerts list"
_OF_STATE = {"ALARM": DEGRADED, "FAULT": FAILED, "UNKNOWN": UNKNOWN}
"""Level of a finding for each Tango State."""


MASTER, BUS, ALERTS = "mid-sdp/control/0", "mid-sdp/bus/0", "mid-sdp/alerts/0"
WORKERS = ("workersAlive", "workersWanted")


class Seen(NamedTuple):
    """Answers of the devices of a deployment; None for a device without an answer."""

    servers: Mapping[str, str]
    """Reason why each device-server instance does not answer; empty: it does."""
    master: Mapping[str, Any] | None
    """State, healthState as a label, healthInfo and healthIssues of SdpMaster."""
    bus: Mapping[str, Any] | None
    """State and Status of SdpBus."""
    alerts: Mapping[str, Any] | None
    """State and Status of SdpAlerts."""
    alarms: Sequence[AlarmDict] | None
    """Alarms that are not at rest."""
    workers: Mapping[str, Any] | None = None
    """Values of `WORKERS` at SdpBus."""


def left_out(icd: Icd, settings: Settings) -> set[str]:
    """Return the device-server instances that a deployment does not run, by its setting `without`."""
    return {
        instance
        for one in icd.classes.values()
        if instance_role(one.instance) in settings.left_out
        for instance in devices_of(one, settings)
    }


def without(seen: Seen, icd: Icd, settings: Settings) -> Seen:
    """Return the answers without device servers that the deployment does not run, by its setting `without`."""
    absent = left_out(icd, settings)
    return seen._replace(servers={name: why for name, why in seen.servers.items() if name not in absent})


def judge(seen: Seen, conditions: Mapping[str, Condition]) -> tuple[str, list[Finding]]:
    """Return the health of the deployment, and the findings, the worst first."""
    found = [
        *_servers(seen),
        *_health(seen.master, seen.alarms or (), conditions),
        *_device("SdpBus", seen.bus, seen.master),
        *_alerts(seen),
        *_alarms(_others(seen), conditions),
        *_workers(seen.workers or {}),
    ]
    found.sort(key=lambda one: RANKS.index(one.level))
    return overall(found), found


def counts(alarms: Sequence[AlarmDict]) -> str:
    """Return a text with the number of alarms that wait for a person, are acknowledged, and are silenced."""
    words = {
        "not acknowledged": states.UNACKNOWLEDGED,
        "acknowledged": (states.ACKED, states.LTACK),
        "shelved, suppressed or out of service": _QUIET,
    }
    numbers = {word: sum(one["state"] in kinds for one in alarms) for word, kinds in words.items()}
    return ", ".join(f"{number} {word}" for word, number in numbers.items() if number) or "none"


def _servers(seen: Seen) -> Iterator[Finding]:
    if not seen.servers:
        do = "register the devices: sdp-facade register"
        yield Finding(UNKNOWN, "Tango database", "no device server of SdpFacade is registered", do)
    for instance, why in seen.servers.items():
        if why:
            do = f"start it: sdp-facade serve {instance}"
            yield Finding(DEGRADED, f"device server {instance}", f"does not answer: {why}", do)


def _health(
    master: Mapping[str, Any] | None, alarms: Sequence[AlarmDict], conditions: Mapping[str, Condition]
) -> Iterator[Finding]:
    """Report each problem once, with its alarm; a problem whose alarm is shelved or suppressed is counted there."""
    if master is None or master["healthState"] is None:
        why = "does not answer" if master is None else "does not know the health of SDP"
        do = "start its device server control: sdp-facade serve control"
        yield Finding(UNKNOWN, "SdpMaster", f"{why}, so the health of SDP is not known", do)
        return
    known = {(one["condition"], one["source"]): one for one in alarms}
    issues = _issues(master)
    if not issues and master["healthState"] != OK:
        health = master["healthState"]
        yield Finding(health, "SdpMaster", f"health is {health}, and no reason is given")
    for issue in issues:
        if issue.get("device") == ALERTS:
            continue  # its alarms are reported one by one
        name, source = issue.get("condition", ""), issue.get("source", "")
        alarm = known.get((name, source))
        if alarm is not None and alarm["state"] in _QUIET:
            continue
        state = "" if alarm is None else f"{alarm['severity']} {alarm['state']}: "
        about = f"{name} of {source}" if name in conditions else "SdpMaster"
        yield Finding(issue["health"], about, f"{state}{issue['text']}", *_advice(name, conditions))


def _advice(name: str, conditions: Mapping[str, Condition]) -> tuple[str, str]:
    """Return the remedy of a condition, and its entry; empty for one that the ICD lacks."""
    condition = conditions.get(name)
    return ("", "") if condition is None else (condition.response, runbook(name))


def _issues(master: Mapping[str, Any] | None) -> list[dict[str, str]]:
    return [json.loads(text) for text in (master or {}).get("healthIssues") or ()]


def _others(seen: Seen) -> list[AlarmDict]:
    """Return the alarms without a problem of SdpMaster."""
    told = {(one.get("condition"), one.get("source")) for one in _issues(seen.master)}
    alarms = seen.alarms or ()
    return [one for one in alarms if (one["condition"], one["source"]) not in told or one["state"] in _COUNTED]


def _device(name: str, device: Mapping[str, Any] | None, master: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Return the finding of a device's State, unless SdpMaster has reported it."""
    if device is None:
        yield Finding(DEGRADED, name, "does not answer")
        return
    known = {*((master or {}).get("healthInfo") or ())}
    level = _OF_STATE.get(device["State"])
    lines = [line for line in (device["Status"] or "").splitlines()[1:] if line and line not in known]
    if level is not None and (lines or not known):
        yield Finding(level, name, f"{device['State']}: {' '.join(lines)}".rstrip(": "))


def _workers(shown: Mapping[str, Any]) -> Iterator[Finding]:
    alive, wanted = (shown.get(name) or 0 for name in WORKERS)
    if wanted > alive:
        yield Finding(NOTE, "aggregate", f"workers: {alive} alive, {wanted} wanted", "start one: sdp-facade aggregate")
    elif 0 < wanted < alive:
        yield Finding(NOTE, "aggregate", f"workers: {alive} alive, {wanted} would be enough")


def _alerts(seen: Seen) -> Iterator[Finding]:
    if seen.alerts is None or seen.alarms is None:
        do = "start its device server alerts: sdp-facade serve alerts"
        yield Finding(
            DEGRADED, "SdpAlerts", "does not answer, or has not read all alerts yet, so alarms are not known", do
        )
    elif seen.alerts["State"] == "UNKNOWN":
        yield Finding(UNKNOWN, "SdpAlerts", " ".join(seen.alerts["Status"].splitlines()[1:]))


def _alarms(alarms: Sequence[AlarmDict], conditions: Mapping[str, Condition]) -> Iterator[Finding]:
    there = sorted((one for one in alarms if one["state"] in _THERE), key=urgency, reverse=True)
    for alarm in there[:_MOST_ALARMS]:
        level = NOTE if alarm["severity"] == "INFO" else DEGRADED
        about = f"{alarm['condition']} of {alarm['source']}"
        text = f"{alarm['severity']} {alarm['state']}: {alarm['text']}"
        yield Finding(level, about, text, *_advice(alarm["condition"], conditions))
    rest = there[_MOST_ALARMS:]
    if rest:
        level = NOTE if all(one["severity"] == "INFO" for one in rest) else DEGRADED
        yield Finding(level, "SdpAlerts", f"more alarms: {len(rest)}", _LIST)
    for state, text in _COUNTED.items():
        if count := sum(one["state"] == state for one in alarms):
            yield Finding(NOTE, "SdpAlerts", f"{text}: {count}", _LIST)
