"""The judgement whether all is well, in the only place: for the operator's page, `sdp-facade status` and SdpMaster.

It joins what SdpMaster finds wrong with the alarms. A reason is told once, with the state of its alarm, the remedy and
a target for a link; the gravest comes first. A deployment is OK only if no alarm waits for a person: otherwise it is
ATTENTION, or worse. A reason whose alarm a person has silenced, or which another alarm explains, is only counted.
healthState is for programs, and is one of the inputs: an alarm that is over and not acknowledged does not change it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from facade.kernel.findings import ATTENTION, DEGRADED, FAILED, NOTE, OK, RANKS, UNKNOWN, Finding, overall
from facade.kernel.icd.model import Condition
from facade.kernel.runtime.health_issues import AlarmDict as AlarmDict
from facade.kernel.severities import CRITICAL, INFO, SEVERITIES, WARNING
from facade.sdp import alarm_states as states
from facade.sdp.words import runbook

Issue = Mapping[str, str]
"""A reason for healthState in the form of healthIssues."""

_SILENCED = (states.SHLVD, states.DSUPR, states.OOSRV)
_COUNTED = {
    states.SHLVD: "shelved alarms",
    states.DSUPR: "alarms that another one explains",
    states.OOSRV: "alarms out of service",
}
_LATCHED = (states.LTUNK, states.LTACK)
_MOST_ALARMS = 10
_AS_GRAVE = {FAILED: CRITICAL, UNKNOWN: CRITICAL, DEGRADED: WARNING, ATTENTION: WARNING, NOTE: INFO}
"""Severity of a finding without an alarm, by its level."""


class Judgement(NamedTuple):
    """State of a deployment, and all that a person may want to know or do."""

    state: str
    findings: tuple[Finding, ...]
    """The gravest first. All except notes have a remedy."""

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to do."""
        return self.state == OK and not any(one.do for one in self.findings)


def judge(
    health: str,
    issues: Sequence[Issue],
    alarms: Sequence[AlarmDict] | None,
    conditions: Mapping[str, Condition],
    others: Iterable[Finding] = (),
    *,
    alerts: str = "",
) -> Judgement:
    """Judge a deployment.

    Parameters
    ----------
    health
        healthState of SDP.
    issues
        Reasons for it.
    alarms
        Alarms that are not at rest; None: not known.
    others
        What else was found, such as a device that does not answer. It is left out if an issue or alarm tells of it.
    alerts
        Device with the alarms: its own issue is left out, as its alarms are listed one by one.
    """
    known = {_key(one): one for one in alarms or ()}
    told = [one for one in issues if alarms is None or not alerts or one.get("device") != alerts]
    found = [finding for one in told if (finding := _of_issue(one, known.get(_key(one)), conditions)) is not None]
    if health != OK and not issues:
        do = "Read the log of the device server control."
        found.append(Finding(_level(health), "SdpMaster", f"health is {health}, and no reason is given", do))
    with_issue = {_key(one) for one in told}
    found += _of_alarms([one for one in known.values() if _key(one) not in with_issue], conditions)
    names = {one.alarm for one in found} | {f"{one['condition']}@{one['source']}" for one in known.values()}
    found += [one for one in others if not one.alarm or one.alarm not in names]
    for state, text in _COUNTED.items():
        if count := sum(one["state"] == state for one in known.values()):
            found.append(Finding(NOTE, "SdpAlerts", f"{text}: {count}; `sdp-facade alerts list` shows them"))
    graded = [one if one.severity else one._replace(severity=_AS_GRAVE[one.level]) for one in found]
    return Judgement(overall(graded), tuple(sorted(graded, key=rank)))


def rank(finding: Finding) -> tuple[int, int]:
    """Return the sort key of a finding with a severity: the gravest first."""
    return -SEVERITIES.index(finding.severity), RANKS.index(finding.level)


def _level(health: str) -> str:
    """Return the level of a healthState; one that only a newer server has is not known here."""
    return health if health in RANKS else UNKNOWN


def _key(one: Mapping[str, Any]) -> tuple[str, str]:
    return one.get("condition", ""), one.get("source", "")


def _of_issue(issue: Issue, alarm: AlarmDict | None, conditions: Mapping[str, Condition]) -> Finding | None:
    if alarm is not None and alarm["state"] in _SILENCED:
        return None
    name, source = _key(issue)
    device = issue.get("device", "")
    condition = conditions.get(name)
    do = issue.get("response") or (condition.response if condition else "")
    severity = issue.get("severity") or (alarm["severity"] if alarm else "")
    about = f"{name} of {source}" if condition else device or "SdpMaster"
    text = issue["text"].removeprefix(f"{about}: ")
    return Finding(
        level=_level(issue["health"]),
        about=about,
        text=text if alarm is None else f"{alarm['severity']} {alarm['state']}: {text}",
        do=do or (f"Read the Status of {device}." if device else "Read the log of the device server control."),
        see=runbook(name) if condition else "",
        severity=severity,
        alarm=f"{name}@{source}" if name else "",
        device=device,
    )


def _of_alarms(alarms: Sequence[AlarmDict], conditions: Mapping[str, Condition]) -> Iterator[Finding]:
    found = sorted((_of_alarm(one, conditions) for one in alarms if one["state"] not in _SILENCED), key=rank)
    yield from found[:_MOST_ALARMS]
    if rest := found[_MOST_ALARMS:]:
        do = "Look at them on the page, or with `sdp-facade alerts list`."
        worst = min((one.level for one in rest), key=RANKS.index)
        yield Finding(worst, "SdpAlerts", f"more alarms: {len(rest)}", do, severity=rest[0].severity)


def _of_alarm(alarm: AlarmDict, conditions: Mapping[str, Condition]) -> Finding:
    state, key = alarm["state"], f"{alarm['condition']}@{alarm['source']}"
    condition = conditions.get(alarm["condition"])
    level = DEGRADED
    if state == states.RTNUN:
        level, do = ATTENTION, f"It is over. Acknowledge it on the page, or with `sdp-facade alerts ack {key}`."
    elif state in _LATCHED:
        do = f"It is over. Look for its cause, then reset it on the page, or with `sdp-facade alerts reset {key}`."
    else:
        do = condition.response if condition else "Ask the team whose program raised the alarm."
    if alarm["severity"] == INFO:
        level = ATTENTION if state in states.UNACKNOWLEDGED else NOTE
    return Finding(
        level,
        f"{alarm['condition']} of {alarm['source']}",
        f"{alarm['severity']} {state}: {alarm['text']}",
        do,
        runbook(alarm["condition"]) if condition else "",
        alarm["severity"],
        key,
    )
