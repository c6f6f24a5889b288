"""What SdpAlerts shows beside the alerts themselves: states of conditions, lists, counts."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from facade.alerts import states
from facade.alerts.flow import AlertsFlow, name_of
from facade.alerts.messages import SEVERITIES, Alarm
from facade.bus.port import BusHealth
from facade.flow import DeviceReading
from facade.icd.model import Icd
from facade.reading import Reading, Value

_OTHERS = "otherConditions"
"""The attribute for all conditions that the ICD does not name."""
_GAP, _GAP_PER_ALARM = 0.2, 5e-5
"""Least time between two looks at all alarms [s]: a look at ten thousand takes some 20 ms, in which no alert leaves."""
_IDLE_GAP = 1.0
"""Most time between two: rates and chattering change by themselves [s]."""
_MOST = 256
"""Alarms in a list."""
_LISTS = {
    "activeAlerts": states.ACTIVE,
    "unacknowledgedAlerts": states.UNACKNOWLEDGED,
    "latchedAlerts": frozenset({states.LTUNK, states.LTACK}),
    "shelvedAlerts": frozenset({states.SHLVD}),
    "suppressedAlerts": frozenset({states.DSUPR}),
    "outOfServiceAlerts": frozenset({states.OOSRV}),
}
"""Attribute with a list to the states that are in it."""
_COUNTS = {"active": states.ACTIVE, "unacknowledged": states.UNACKNOWLEDGED, "shelved": frozenset({states.SHLVD})}


class AlertsPanel:
    """A panel: everything about alarms that may be coalesced; see `facade.flow.Panel`."""

    def __init__(self, icd: Icd, flow: AlertsFlow, health: BusHealth, known: Callable[[], bool], version: str) -> None:
        self._icd = icd
        self._flow = flow
        self._health = health
        self._known = known
        self._version = version
        self._shown: dict[str, Reading] = {}
        self._looked_at = 0.0
        self._dirty = True
        self._begun = False

    def readings(self, now: float) -> Iterator[DeviceReading]:
        """Give what has changed."""
        values = self._conditions() | {"alertSequence": self._flow.sequence}
        alarms = sum(map(len, self._flow.ledger.by_condition.values()))
        due = _GAP if self._dirty or values else _IDLE_GAP
        due += _GAP_PER_ALARM * alarms
        if now - self._looked_at >= due or now < self._looked_at:
            self._looked_at, self._dirty = now, False
            values |= self._lists(now) | self._figures(now)
        for name, value in values.items():
            before = self._shown.get(name)
            if before is None or before.value != value:  # the time is that of the change
                self._shown[name] = Reading(value, now)
                yield self._flow.device, name, self._shown[name]

    def _conditions(self) -> dict[str, Value]:
        """Look at the conditions whose alarms have changed."""
        ledger, moved = self._flow.ledger, self._flow.ledger.take_moved()
        if not self._begun:
            self._begun = True
            moved |= {*self._icd.conditions, *ledger.by_condition}
        self._dirty = self._dirty or bool(moved)
        values: dict[str, Value] = {
            name: self._worst(list(ledger.by_condition.get(name, {}).values()))
            for name in moved & self._icd.conditions.keys()
        }
        if moved - self._icd.conditions.keys() or _OTHERS not in self._shown:
            others = ledger.by_condition.keys() - self._icd.conditions.keys()
            values[_OTHERS] = self._worst([a for name in others for a in ledger.by_condition[name].values()])
        return values

    def _worst(self, alarms: list[Alarm]) -> str:
        return max(map(self._flow.ledger.shown, alarms), key=states.URGENCY.index, default=states.NORM)

    def _lists(self, now: float) -> dict[str, Value]:
        ledger = self._flow.ledger
        shown = [(ledger.shown(alarm), alarm) for alarm in ledger.alarms()]
        values: dict[str, Value] = {}
        for name, wanted in _LISTS.items():
            found = [alarm for state, alarm in shown if state in wanted]
            found.sort(key=lambda alarm: (-SEVERITIES.index(alarm.severity), -alarm.occurrence))
            values[name] = tuple(_text(self._flow.describe(alarm)) for alarm in found[:_MOST])
        for name, wanted in _COUNTS.items():
            values[f"{name}Count"] = sum(state in wanted for state, _ in shown)
        severities = Counter(alarm.severity for state, alarm in shown if state in states.ACTIVE)
        for severity in SEVERITIES:
            values[f"{severity.lower()}Count"] = severities[severity]
        worst = next((one for one in reversed(SEVERITIES) if severities[one]), "NONE")
        others = sorted(ledger.by_condition.keys() - self._icd.conditions.keys())
        return {**values, "worstSeverity": worst, "unknownConditions": tuple(others[:_MOST]), **self._state(values)}

    def _state(self, values: dict[str, Any]) -> dict[str, Value]:
        if not self._known():
            error = self._health.last_error or "none yet"
            return {"State": "UNKNOWN", "Status": f"The alerts were not read from the bus yet; last error: {error}."}
        active, unseen = values["activeCount"], values["unacknowledgedCount"]
        state = "ALARM" if active else "ON"
        lines = [
            f"The device is in {state} state.",
            f"{active} alarms active, {unseen} not acknowledged, {values['shelvedCount']} shelved.",
        ]
        if not self._health.connected:
            lines.append(f"No Kafka broker reachable; last error: {self._health.last_error or 'none yet'}.")
        return {"State": state, "Status": "\n".join(lines), "connected": self._health.connected}

    def _figures(self, now: float) -> dict[str, Value]:
        flow, now_us = self._flow, round(now * 1e6)
        return {
            "versionId": self._version,
            "alertRate": flow.statistics.rate(now_us),
            "chatteringAlerts": tuple(sorted(map(name_of, flow.statistics.chattering(now_us))))[:_MOST],
            "flood": flow.statistics.flood(now_us),
            "alertsTotal": flow.alerts,
            "actionsTotal": flow.actions,
            "actionsRefused": flow.refused,
            "alertsOutOfOrder": flow.ledger.out_of_order,
            "alertsSkewed": flow.ledger.skewed,
            "alertsMissing": flow.missing,
        }


def _text(content: dict[str, Any]) -> str:
    return msgspec.json.encode(content).decode()
