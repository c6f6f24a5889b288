"""What sources and operators say in the fault run, and the states that it adds up to. No I/O.

The states are worked out here a second time, by rules written down apart from `facade.flows.alerts`, so that the
run can hold the device against them. Conditions that have delays, or suppress each other, are left out:
their states depend on the broker's clock, or on what is shown beside them.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterator

import msgspec

from facade.flows.alerts.messages import Action, ActionKind, Alert, encode
from facade.severities import Severity

LATCHING = {
    "receiveOverrun": False,
    "calibrationFailed": False,
    "controllerSilent": False,
    "storageLow": True,
    "pipelineFailed": True,
    "transientDetected": True,
    "neverHeardOf": False,
}
"""Conditions of the run, and whether their alarms latch; the last one is not in the ICD."""
SOURCES = tuple(f"source/{number:02d}" for number in range(20))

_SEVERITIES: tuple[Severity, ...] = ("INFO", "WARNING", "ALARM", "CRITICAL")
_ACTIONS = 0.1
"""How often an operator is next, where there is something to be done."""
_LATE = 0.01
"""How often an acknowledgement names another occurrence than the newest: it does nothing, and no client hears of it."""


class Standing(msgspec.Struct):
    """How one alarm stands."""

    state: str = "NORM"
    severity: Severity = "INFO"
    text: str = ""
    occurrence: int = 0
    raised_at: int = 0


Alarms = dict[tuple[str, str], Standing]
"""By condition and source."""


class AlertScenario:
    """Gives records one by one, the same ones for the same seed, and follows what they add up to.

    Parameters
    ----------
    begin_us
        Time before the first record; each is a microsecond later than the one before [Unix us].
    """

    def __init__(self, seed: int, begin_us: int) -> None:
        self.refused: set[int] = set()
        """Numbers of the actions that come too late."""
        self.alarms: Alarms = {(condition, source): Standing() for condition in LATCHING for source in SOURCES}
        self._chance = random.Random(seed)  # noqa: S311 - a scenario that can be repeated
        self._keys = [*self.alarms]
        self._now = begin_us
        self._number = 0
        """On the log; its first record is number 1."""
        self._sequences: Counter[str] = Counter()

    def records(self, count: int) -> Iterator[Alert | Action]:
        """Return the next records."""
        for _ in range(count):
            self._now += 1
            self._number += 1
            key = self._chance.choice(self._keys)
            alarm = self.alarms[key]
            possible = _possible(alarm.state)
            if self._chance.random() < _LATE:
                self.refused.add(self._number)
                yield self._action(key, "ACKNOWLEDGE", alarm.occurrence - 1 if alarm.occurrence else self._number)
            elif possible and self._chance.random() < _ACTIONS:
                yield self._act(key, alarm, self._chance.choice(possible))
            elif self._chance.random() < 0.5:
                yield self._raise(key, alarm)
            else:
                yield self._clear(key, alarm)

    def _raise(self, key: tuple[str, str], alarm: Standing) -> Alert:
        active = alarm.state in ("UNACK", "ACKED")
        raised_at = alarm.raised_at if active and self._chance.random() < 0.5 else self._now
        severity = self._chance.choice(_SEVERITIES)
        worse = _SEVERITIES.index(severity) > _SEVERITIES.index(alarm.severity)
        if not active or worse or raised_at > alarm.raised_at:
            alarm.state, alarm.occurrence = "UNACK", self._number
        alarm.severity, alarm.raised_at = severity, raised_at
        return self._alert(key, alarm, "ACTIVE")

    def _clear(self, key: tuple[str, str], alarm: Standing) -> Alert:
        latching = LATCHING[key[0]]
        if alarm.state == "UNACK":
            alarm.state = "LTUNK" if latching else "RTNUN"
        elif alarm.state == "ACKED":
            alarm.state = "LTACK" if latching else "NORM"
        return self._alert(key, alarm, "CLEARED")

    def _alert(self, key: tuple[str, str], alarm: Standing, state: str) -> Alert:
        condition, source = key
        self._sequences[source] += 1
        alarm.text = f"no. {self._sequences[source]} of {source}, 5 µs → late"
        return Alert(
            condition=condition,
            source=source,
            severity=alarm.severity,
            state="ACTIVE" if state == "ACTIVE" else "CLEARED",
            text=alarm.text,
            raised_at=alarm.raised_at or self._now,
            sequence=self._sequences[source],
        )

    def _act(self, key: tuple[str, str], alarm: Standing, kind: ActionKind) -> Action:
        if kind == "ACKNOWLEDGE":
            alarm.state = {"UNACK": "ACKED", "RTNUN": "NORM", "LTUNK": "LTACK"}[alarm.state]
        elif kind == "RESET":
            alarm.state = "NORM"
        return self._action(key, kind, alarm.occurrence if kind == "ACKNOWLEDGE" else 0)

    def _action(self, key: tuple[str, str], kind: ActionKind, occurrence: int) -> Action:
        return Action(
            id=f"fault-run-{self._number}",
            action=kind,
            condition=key[0],
            source=key[1],
            operator="operator",
            comment=f"no. {self._number}",
            time=self._now,
            origin="fault run",
            occurrence=occurrence,
        )


def _possible(state: str) -> list[ActionKind]:
    found: list[ActionKind] = [] if state == "NORM" else ["COMMENT"]
    if state in ("UNACK", "RTNUN", "LTUNK"):
        found.append("ACKNOWLEDGE")
    if state in ("LTUNK", "LTACK"):
        found.append("RESET")
    return found


def digest(content: object) -> bytes:
    """Return what stands for the content of an alert or an action, be it a message or the same as a dict."""
    return hashlib.blake2b(encode(content), digest_size=8).digest()
