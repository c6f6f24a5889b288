"""Judges a deployment by the answers of its devices, for `sdp-facade status` and for the operator's page."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from facade.kernel.config import load_settings
from facade.kernel.findings import DEGRADED, FAILED, NOTE, OK, UNKNOWN, Finding
from facade.kernel.icd.model import Condition
from facade.kernel.names import domain
from facade.kernel.printable import label_of
from facade.kernel.severities import CRITICAL
from facade.sdp import alarm_states as states
from facade.sdp import judgement
from facade.sdp.judgement import AlarmDict, Judgement

_QUIET = (states.SHLVD, states.DSUPR, states.OOSRV)
"""States of an alarm that a person has silenced, or that another alarm explains."""
_OF_STATE = {"ALARM": DEGRADED, "FAULT": FAILED, "UNKNOWN": UNKNOWN}
"""Level of a finding for each Tango State."""


SERVERS = "deviceServers"
WORKERS = ("workersAlive", "workersWanted")
Answers = Mapping[str, dict[str, Any] | None]
"""Values for each of the `questions`, State as text; None: no answer."""


class Devices(NamedTuple):
    """Names of the devices that are asked."""

    master: str
    bus: str
    alerts: str


def devices() -> Devices:
    """Return the names of the devices of the telescope in the settings."""
    first = domain(load_settings().telescope)
    return Devices(f"{first}/control/0", f"{first}/bus/0", f"{first}/alerts/0")


def questions() -> Mapping[str, tuple[str, Sequence[str]]]:
    """Return the attributes to read of a device for the judgement."""
    master, bus, alerts = devices()
    return {
        "master": (master, ("State", "healthState", "healthInfo", "healthIssues")),
        "bus": (bus, ("State", "Status")),
        "alerts": (alerts, ("State", "Status")),
        # Separately, as an older server has no such attributes.
        "workers": (bus, WORKERS),
        "servers": (master, (SERVERS,)),
    }


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


def see(
    answers: Answers,
    alarms: Sequence[AlarmDict] | None,
    registered: Sequence[str],
    why: Callable[[str], str],
    labels: Sequence[str],
) -> Seen:
    """Return the answers of the devices.

    Parameters
    ----------
    registered
        Device-server instances in the Tango database: those of the deployment, if SdpMaster does not say which.
    why
        Returns why a device-server instance does not answer; empty: it does.
    labels
        Labels of healthState.
    """
    master, servers = answers["master"], answers["servers"] or {}
    if master is not None and master["healthState"] is not None:
        master["healthState"] = label_of(labels, master["healthState"])
    parts = servers.get(SERVERS) or registered
    return Seen({one: why(one) for one in parts}, master, answers["bus"], answers["alerts"], alarms, answers["workers"])


def judge(seen: Seen, conditions: Mapping[str, Condition]) -> Judgement:
    """Return the state of the deployment, and the findings, the gravest first."""
    asked = devices()
    others = [
        *_servers(seen),
        *_master(asked.master, seen.master),
        *_device("SdpBus", asked.bus, seen.bus, seen.master),
        *_alerts(asked.alerts, seen),
        *_workers(seen.workers or {}),
    ]
    health = (seen.master or {}).get("healthState") or OK
    issues = [json.loads(text) for text in (seen.master or {}).get("healthIssues") or ()]
    return judgement.judge(health, issues, seen.alarms, conditions, others, alerts=asked.alerts)


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
        do = "Register the devices: sdp-facade register."
        yield Finding(UNKNOWN, "Tango database", "no device server of SdpFacade is registered", do)
    for instance, why in seen.servers.items():
        if why:
            about, do = f"device server {instance}", f"Start it: sdp-facade serve {instance}."
            # SdpMaster misses it as well, a few seconds later.
            alarm = f"serverGone@sdp-facade/{instance}"
            yield Finding(DEGRADED, about, f"does not answer: {why}", do, severity=CRITICAL, alarm=alarm)


def _master(device: str, master: Mapping[str, Any] | None) -> Iterator[Finding]:
    if master is None or master["healthState"] is None:
        why = "does not answer" if master is None else "does not know the health of SDP"
        do = "Start its device server: sdp-facade serve control."
        yield Finding(UNKNOWN, "SdpMaster", f"{why}, so the health of SDP is not known", do, device=device)


def _device(
    name: str, device: str, shown: Mapping[str, Any] | None, master: Mapping[str, Any] | None
) -> Iterator[Finding]:
    """Return the finding of a device's State, unless SdpMaster has reported it."""
    do = "Start its device server: sdp-facade serve control."
    if shown is None:
        yield Finding(DEGRADED, name, "does not answer", do, device=device)
        return
    known = {*((master or {}).get("healthInfo") or ())}
    level = _OF_STATE.get(shown["State"])
    lines = [line for line in (shown["Status"] or "").splitlines()[1:] if line and line not in known]
    if level is not None and (lines or not known):
        do = f"Read the attributes of {device} that are not VALID."
        yield Finding(level, name, f"{shown['State']}: {' '.join(lines)}".rstrip(": "), do, device=device)


def _workers(shown: Mapping[str, Any]) -> Iterator[Finding]:
    alive, wanted = (shown.get(name) or 0 for name in WORKERS)
    if wanted > alive:
        yield Finding(NOTE, "aggregate", f"workers: {alive} alive, {wanted} wanted", "Start one: sdp-facade aggregate.")
    elif 0 < wanted < alive:
        yield Finding(NOTE, "aggregate", f"workers: {alive} alive, {wanted} would be enough")


def _alerts(device: str, seen: Seen) -> Iterator[Finding]:
    do = "Start its device server: sdp-facade serve alerts."
    if seen.alerts is None or seen.alarms is None:
        text = "does not answer, or has not read all alerts yet, so alarms are not known"
        yield Finding(DEGRADED, "SdpAlerts", text, do, device=device)
    elif seen.alerts["State"] == "UNKNOWN":
        text = " ".join(seen.alerts["Status"].splitlines()[1:])
        yield Finding(
            UNKNOWN, "SdpAlerts", text, "See whether the brokers answer: sdp-facade bus check.", device=device
        )
