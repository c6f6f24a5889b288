"""SdpAlerts: its view of the alarms, and its parts in a device server."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from facade.flows.alerts import messages
from facade.flows.alerts.flow import FLOOD, AlertsFlow, name_of
from facade.flows.alerts.given import GivenActions
from facade.flows.alerts.operator_api import OperatorApi
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import NEVER, SECOND, Time, as_seconds
from facade.kernel.icd.model import Icd
from facade.kernel.printable import printable
from facade.kernel.reading import Changes, Quality, Value
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import DeviceReading, Gate
from facade.kernel.runtime.metrics import Figures, MetricFamily
from facade.kernel.severities import SEVERITIES
from facade.sdp import alarm_states as states

CLASS = "SdpAlerts"
_OTHERS = "otherConditions"
"""The attribute for all conditions that are not in the ICD."""
_GAP, _GAP_PER_ALARM = SECOND // 5, SECOND // 20_000
"""Least time between two updates of all alarms: an update of ten thousand takes some 20 ms, in which no alert
leaves."""
_IDLE_GAP = SECOND
"""Longest time between two updates: rates and chattering change by themselves."""
_NO_BROKER_FOR = 10 * SECOND
"""Time without a broker after which the shown values are marked as old."""
_ALWAYS = frozenset({"State", "Status", "connected", "versionId"})
"""Attributes that stay valid without a broker."""
_MOST = 256
"""Most alarms in a list."""
_LISTS = {
    "activeAlerts": states.ACTIVE,
    "unacknowledgedAlerts": states.UNACKNOWLEDGED,
    "latchedAlerts": frozenset({states.LTUNK, states.LTACK}),
    "shelvedAlerts": frozenset({states.SHLVD}),
    "suppressedAlerts": frozenset({states.DSUPR}),
    "outOfServiceAlerts": frozenset({states.OOSRV}),
}
"""Alarm states of each list attribute."""
_COUNTS = {
    "active": states.ACTIVE,
    "unacknowledged": states.UNACKNOWLEDGED,
    "shelved": frozenset({states.SHLVD}),
    "suppressed": frozenset({states.DSUPR}),
}


class AlertsView:
    """A view: states of conditions, lists and counts; see `facade.kernel.runtime.flow.View`."""

    def __init__(self, icd: Icd, flow: AlertsFlow, health: BusHealth, known: Callable[[], bool], version: str) -> None:
        self._icd = icd
        self._flow = flow
        self._health = health
        self._known = known
        self._version = version
        self._changes = Changes()
        self._gate = Gate()
        self.alarms: Figures = {}
        """Alarms that are not at rest, by condition, severity and state, for Prometheus."""
        self._dirty = True
        self._begun = False
        self._heard_at = NEVER
        self._stale = False

    def readings(self, now: Time) -> Iterator[DeviceReading]:
        """Return changes; before all alarms have been read, only the State."""
        if self._health.connected or not self._heard_at:
            self._heard_at = now
        stale = now - self._heard_at > _NO_BROKER_FOR
        values = self._values(now, stale) if self._known() else self._state({}, stale)
        if stale != self._stale:
            self._stale, self._gate = stale, Gate()
            values = {name: reading.value for name, reading in self._changes.shown.items()} | values
        for name, value in values.items():
            quality = Quality.INVALID if stale and name not in _ALWAYS else Quality.VALID
            yield self._flow.device, name, self._changes.reading(name, value, now, quality)

    def _values(self, now: Time, stale: bool) -> dict[str, Value]:
        newest = self._changes.shown.get("alertSequence")
        self._dirty = self._dirty or newest is None or newest.value != self._flow.sequence
        values = self._conditions() | {"alertSequence": self._flow.sequence}
        alarms = sum(map(len, self._flow.ledger.by_condition.values()))
        self._gate.period = (_GAP if self._dirty else _IDLE_GAP) + _GAP_PER_ALARM * alarms
        if self._gate.passes(now):
            self._dirty = False
            values |= self._lists(now, stale) | self._figures(now)
        return values

    def _conditions(self) -> dict[str, Value]:
        ledger, moved = self._flow.ledger, self._flow.ledger.take_moved()
        if not self._begun:
            self._begun = True
            moved |= {*self._icd.conditions, *ledger.by_condition}
        self._dirty = self._dirty or bool(moved)
        values: dict[str, Value] = {name: self._worst([name]) for name in moved & self._icd.conditions.keys()}
        if moved - self._icd.conditions.keys() or _OTHERS not in self._changes.shown:
            values[_OTHERS] = self._worst(sorted(ledger.by_condition.keys() - self._icd.conditions.keys()))
        return values

    def _worst(self, conditions: Sequence[str]) -> str:
        worst = 0
        for name in conditions:
            for state, _ in self._flow.ledger.shown_of(name):
                worst = max(worst, states.URGENCY.index(state))
                if worst == len(states.URGENCY) - 1:  # most of ten thousand alarms have this state
                    return states.URGENCY[worst]
        return states.URGENCY[worst]

    def _lists(self, now: Time, stale: bool) -> dict[str, Value]:
        ledger = self._flow.ledger
        shown = list(ledger.all_shown())
        known = self._icd.conditions
        self.alarms = Counter(
            (alarm.condition if alarm.condition in known else "", alarm.severity, state)
            for state, alarm in shown
            if state != states.NORM
        )
        values: dict[str, Value] = {}
        for name, wanted in _LISTS.items():
            found = [alarm for state, alarm in shown if state in wanted]
            found.sort(key=lambda alarm: (-SEVERITIES.index(alarm.severity), -alarm.occurrence))
            described = (self._flow.describe(alarm, whole=False) for alarm in found[:_MOST])
            values[name] = tuple(msgspec.json.encode(one).decode() for one in described)
        for name, wanted in _COUNTS.items():
            values[f"{name}Count"] = sum(state in wanted for state, _ in shown)
        severities = Counter(alarm.severity for state, alarm in shown if state in states.ACTIVE)
        for severity in SEVERITIES:
            values[f"{severity.lower()}Count"] = severities[severity]
        worst = next((one for one in reversed(SEVERITIES) if severities[one]), "NONE")
        others = sorted(ledger.by_condition.keys() - self._icd.conditions.keys())
        return {
            **values,
            "worstSeverity": worst,
            "unknownConditions": tuple(others[:_MOST]),
            **self._state(values, stale),
        }

    def _state(self, values: dict[str, Any], stale: bool) -> dict[str, Value]:
        error = self._health.last_error or "none yet"
        if not self._known():
            text = f"The alerts were not read from the bus yet; last error: {error}."
            return {"State": "UNKNOWN", "Status": printable(text), "connected": self._health.connected}
        active, unseen = values["activeCount"], values["unacknowledgedCount"]
        counts = [(values[f"{severity.lower()}Count"], severity) for severity in reversed(SEVERITIES)]
        by_severity = ", ".join(f"{count} {severity}" for count, severity in counts if count)
        by_severity = f" ({by_severity})" if by_severity else ""
        state = "UNKNOWN" if stale else "ALARM" if active else "ON"
        lines = [
            f"The device is in {state} state.",
            f"{active} alarm{'s' * (active != 1)} active{by_severity}, {unseen} not acknowledged,"
            f" {values['shelvedCount']} shelved.",
        ]
        if not self._health.connected:
            lines.append(f"No Kafka broker reachable; last error: {error}.")
        if stale:
            lines.append(f"All of this is older than {as_seconds(_NO_BROKER_FOR):.0f} s.")
        return {"State": state, "Status": "\n".join(map(printable, lines)), "connected": self._health.connected}

    def _figures(self, now: Time) -> dict[str, Value]:
        flow = self._flow
        return {
            "versionId": self._version,
            "alertRate": flow.statistics.alerts.rate(now),
            "chatteringAlerts": tuple(sorted(map(name_of, flow.statistics.chattering(now))))[:_MOST],
            "flood": (new := flow.statistics.new(now)) > FLOOD,
            "newAlarms": new,
            "alertsTotal": flow.alerts,
            "actionsTotal": flow.actions,
            "actionsRefused": flow.refused,
            "alertsOutOfOrder": flow.ledger.out_of_order,
            "alertsSkewed": flow.ledger.skewed,
            "alertsMissing": flow.missing,
        }


def compose(server: Server) -> None:
    """Add the alerts to a device server."""
    device = server.only_device(CLASS)
    given = GivenActions(lambda: server.bus.read_all(messages.ACTIONS), server.clock)
    flow = AlertsFlow(server.icd, device, server.settings.rack_size, given)
    server.flows.append(flow)
    server.effects, server.is_eager = flow, True

    def known() -> bool:
        return server.has_read(messages.ALERTS)

    view = AlertsView(server.icd, flow, server.bus.health, known, server.version)
    server.views.append(view)
    about = "Alarms that are not at rest; without a condition, those that the interface does not know."
    server.metrics.append(MetricFamily("sdp_alarms", about, ("condition", "severity", "state"), lambda: view.alarms))
    sender = server.sender()
    server.share(
        OperatorApi,
        lambda: OperatorApi(
            flow,
            lambda record, timeout: sender.send(record, timeout).result(),
            ready=known,
            origin=server.instance,
            clock=server.clock,
            timeout=server.settings.command_timeout,
        ),
    )
