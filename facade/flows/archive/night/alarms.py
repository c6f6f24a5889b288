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


@dataclass(slots=True)
class NightAlarm:
    """One alarm in a night."""

    condition: str
    source: str
    raised: int = 0
    occurrence: int = 0
    active_since: int | None = None
    annunciated: bool = True
    """Whether the newest occurrence was annunciated."""
    times: int = 0
    recent: deque[tuple[int, int]] = field(default_factory=deque)
    """Times of the last minute, each with a number of annunciations."""
    most: int = 0
    """Annunciations in the worst minute."""
    stale_us: tuple[int, int] | None = None
    """Begin and end of the last time in which it was active for too long."""


class NightAlarms:
    """The alarm system in a night."""

    def __init__(self, night: Night) -> None:
        self._night = night
        self._alarms: dict[bytes, NightAlarm] = {}
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
                self._rest(alarm, record.timestamp_us)
                alarm.raised = alarm.occurrence = 0
        if not isinstance(state, AlertState):
            return state
        key = f"{state.condition}@{state.source}".encode()
        alarm = self._alarms.get(key)
        at_us = since_us = min(state.changed_at or record.timestamp_us, record.timestamp_us)
        if alarm is None:
            alarm = self._alarms[key] = NightAlarm(state.condition, state.source)
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
        if state.state not in _ACTIVE:
            self._rest(alarm, at_us)
        elif alarm.active_since is None:
            alarm.active_since = since_us
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
    def stale(self) -> list[tuple[NightAlarm, int, int]]:
        """Return the stale alarms, the oldest first, with the begin and the end of that time [Unix us]."""
        found = [(one, *one.stale_us) for one in self._alarms.values() if one.stale_us is not None]
        return sorted(found, key=lambda one: one[1])

    @property
    def chattering(self) -> list[NightAlarm]:
        """Return the chattering alarms, the worst first."""
        found = (one for one in self._alarms.values() if one.most >= CHATTERING)
        return sorted(found, key=lambda one: (-one.most, one.condition, one.source))

    @property
    def worst(self) -> list[NightAlarm]:
        """Return the ten alarms with most annunciations."""
        found = (one for one in self._alarms.values() if one.times)
        return sorted(found, key=lambda one: (-one.times, one.condition, one.source))[:_WORST]

    @property
    def worst_fraction(self) -> float:
        """Return the share of the ten alarms with most annunciations."""
        return sum(one.times for one in self.worst) / self.annunciated if self.annunciated else 0.0

    def _annunciate(self, alarm: NightAlarm, at_us: int, times: int) -> None:
        at_us = min(max(at_us, self._night.begin_us), self._night.end_us - 1)
        self.annunciated += times
        self.periods[(at_us - self._night.begin_us) // PERIOD_US] += times
        self.slots[self._night.slot(at_us)] += times
        alarm.times += times
        alarm.recent.append((at_us, times))
        while at_us - alarm.recent[0][0] >= _MINUTE_US:
            alarm.recent.popleft()
        alarm.most = max(alarm.most, sum(number for _, number in alarm.recent))

    def _rest(self, alarm: NightAlarm, at_us: int) -> None:
        since, alarm.active_since = alarm.active_since, None
        if since is not None and at_us > self._night.begin_us and at_us - since > STALE_US:
            alarm.stale_us = since, at_us


def _times_raised(alarm: NightAlarm, state: AlertState) -> int:
    """Return the number of occurrences of an alarm between two records of its state."""
    if state.occurrence == alarm.occurrence and state.raised == alarm.raised:
        return 0
    if state.raised > alarm.raised:
        return state.raised - alarm.raised
    return state.raised  # it was at rest and forgotten in between
