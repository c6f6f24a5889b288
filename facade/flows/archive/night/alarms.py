"""Figures of the alarm system by EEMUA 191 and ISA-18.2 (IEC 62682), from the states of all alarms.

An alarm is a condition and its source. It is annunciated when it is raised, and again when its severity rises or it
needs another acknowledgement. The record of a state counts the occurrences, so transitions that were merged into one
record count all the same. Hidden alarms (shelved, suppressed by design, out of service) are counted separately; a
suppressed alarm is annunciated when its cause ends first.

- Average rate: annunciated alarms by the number of periods of 10 minutes.
- In flood: share of the time, in consecutive periods of 10 minutes from the begin, with more than 10 of them.
- Stale: active for more than 24 hours without a break, at some time of the night.
- Chattering: annunciated at least three times in less than a minute.
- Most frequent: the ten alarms that were annunciated most often, and their share of all.

States of the days before the night show the alarms that stand at its begin.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.flows.archive.night.span import MICRO, Night
from facade.messages import AlertState
from facade.outcome import INCONSISTENT, TOMBSTONE, USED, Outcome, RecordRejected

STATES = "alert-state"
LOOKBACK_US = 30 * 86_400 * MICRO
"""Time before the night in which its alarms may have been raised [us]; the archive may be shorter."""
PERIOD_US = 600 * MICRO
FLOOD = 10
"""More alarms than this in a period are a flood."""
STALE_US = 86_400 * MICRO
CHATTERING = 3
_MINUTE_US = 60 * MICRO
_WORST = 10
_MOST_RAISED = 100_000
"""Upper bound of the new occurrences in one record."""
_ACTIVE = frozenset({"UNACK", "ACKED"})
_decode = BatchDecoder(AlertState).decode_one


class StaleAlarm(NamedTuple):
    """An alarm that was active for too long."""

    condition: str
    source: str
    since_us: int
    until_us: int
    """Its end, or the end of the night."""


class ChatteringAlarm(NamedTuple):
    """An alarm that was annunciated again and again."""

    condition: str
    source: str
    most: int
    """Annunciations in the worst minute."""


class FrequentAlarm(NamedTuple):
    """An alarm with its number of annunciations."""

    condition: str
    source: str
    times: int


@dataclass(slots=True)
class _Alarm:
    condition: str
    source: str
    raised: int = 0
    occurrence: int = 0
    active_since: int | None = None
    annunciated: bool = True
    """Whether the newest occurrence was annunciated."""
    count: int = 0
    recent: deque[tuple[int, int]] = field(default_factory=deque)
    """Times of the last minute, each with a number of annunciations."""
    most: int = 0
    stale_since: int | None = None
    stale_until: int = 0


class NightAlarms:
    """The alarm system in a night."""

    def __init__(self, night: Night) -> None:
        self._night = night
        self._alarms: dict[bytes, _Alarm] = {}
        self.annunciated = 0
        self.covered = 0
        """Alarms raised while shelved, suppressed by design or out of service."""
        self.periods = [0] * -(-(night.end_us - night.begin_us) // PERIOD_US)
        """Annunciated alarms in each period of 10 minutes."""
        self.slots = [0] * len(night.slots)
        """Annunciated alarms in each slot of the night."""

    def take(self, record: Record) -> Outcome:
        """Process a state, of the night or of the days before."""
        state = _decode(record.value)
        if state is TOMBSTONE:
            alarm = self._alarms.get(record.key or b"")
            if alarm is not None:
                self._stand(alarm, record.timestamp_us, None)
                alarm.raised = alarm.occurrence = 0
        if not isinstance(state, AlertState):
            return state
        key = f"{state.condition}@{state.source}".encode()
        alarm = self._alarms.get(key)
        at_us = since_us = min(state.changed_at or record.timestamp_us, record.timestamp_us)
        if alarm is None:
            alarm = self._alarms[key] = _Alarm(state.condition, state.source)
            since_us = min(at_us, state.raised_at or at_us)
            if since_us < self._night.begin_us:  # earlier occurrences are outside the night
                alarm.raised, alarm.occurrence = state.raised, state.occurrence
        times = _times_raised(alarm, state)
        if times > _MOST_RAISED:
            return RecordRejected(INCONSISTENT, "$.raised", f"expected at most {_MOST_RAISED:,} more, got {times}")
        alarm.raised, alarm.occurrence = state.raised, state.occurrence
        if times and record.timestamp_us >= self._night.begin_us:
            if state.shelved_until or state.out_of_service or not state.annunciated:
                self.covered += times
            else:
                self._annunciate(alarm, at_us, times)
        elif state.annunciated and not alarm.annunciated and record.timestamp_us >= self._night.begin_us:
            self._annunciate(alarm, at_us, 1)  # its cause has ended first
        alarm.annunciated = state.annunciated
        self._stand(alarm, at_us, since_us if state.state in _ACTIVE else None)
        return USED

    def end(self) -> None:
        """Count alarms that stand at the end of the night."""
        for alarm in self._alarms.values():
            self._rest(alarm, self._night.end_us)

    @property
    def average(self) -> float:
        """Return the number of annunciated alarms in 10 minutes, on average."""
        return self.annunciated * PERIOD_US / (self._night.end_us - self._night.begin_us)

    @property
    def flood_fraction(self) -> float:
        """Return the share of the time in flood."""
        whole = self._night.end_us - self._night.begin_us
        floods = (at for at, count in enumerate(self.periods) if count > FLOOD)
        return sum(min(PERIOD_US, whole - at * PERIOD_US) for at in floods) / whole

    @property
    def stale(self) -> list[StaleAlarm]:
        """Return the stale alarms, the oldest first."""
        found = [
            StaleAlarm(one.condition, one.source, one.stale_since, one.stale_until)
            for one in self._alarms.values()
            if one.stale_since is not None
        ]
        return sorted(found, key=lambda one: one.since_us)

    @property
    def chattering(self) -> list[ChatteringAlarm]:
        """Return the chattering alarms, the worst first."""
        found = [
            ChatteringAlarm(one.condition, one.source, one.most)
            for one in self._alarms.values()
            if one.most >= CHATTERING
        ]
        return sorted(found, key=lambda one: (-one.most, one))

    @property
    def worst(self) -> list[FrequentAlarm]:
        """Return the ten alarms with most annunciations."""
        found = [FrequentAlarm(one.condition, one.source, one.count) for one in self._alarms.values() if one.count]
        return sorted(found, key=lambda one: (-one.times, one))[:_WORST]

    @property
    def worst_fraction(self) -> float:
        """Return the share of the ten alarms with most annunciations."""
        return sum(one.times for one in self.worst) / self.annunciated if self.annunciated else 0.0

    def _annunciate(self, alarm: _Alarm, at_us: int, times: int) -> None:
        at_us = min(max(at_us, self._night.begin_us), self._night.end_us - 1)
        self.annunciated += times
        self.periods[(at_us - self._night.begin_us) // PERIOD_US] += times
        self.slots[self._night.slot(at_us)] += times
        alarm.count += times
        alarm.recent.append((at_us, times))
        while at_us - alarm.recent[0][0] >= _MINUTE_US:
            alarm.recent.popleft()
        alarm.most = max(alarm.most, sum(number for _, number in alarm.recent))

    def _stand(self, alarm: _Alarm, at_us: int, since_us: int | None) -> None:
        """Note that an alarm is active from a time on; `since_us`: None if it is not active."""
        if since_us is None:
            self._rest(alarm, at_us)
        elif alarm.active_since is None:
            alarm.active_since = since_us

    def _rest(self, alarm: _Alarm, at_us: int) -> None:
        since, alarm.active_since = alarm.active_since, None
        if since is not None and at_us > self._night.begin_us and at_us - since > STALE_US:
            alarm.stale_since, alarm.stale_until = since, at_us


def _times_raised(alarm: _Alarm, state: AlertState) -> int:
    """Return the number of occurrences of an alarm between two records of its state."""
    if state.occurrence == alarm.occurrence and state.raised == alarm.raised:
        return 0
    if state.raised > alarm.raised:
        return state.raised - alarm.raised
    return state.raised  # it was at rest and forgotten in between
