"""The alerts of the facade itself. They go through the bus, as the alerts of any other source."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from facade.flows.alerts import messages
from facade.flows.alerts.messages import Alarm, AlarmKey, Alert
from facade.flows.alerts.suppression import ANYWHERE, suppression_of
from facade.kernel.bus.port import QueueingWriter, Record
from facade.kernel.clock import NEVER, Clock, Duration, Time, as_seconds
from facade.kernel.outcome import USED, Outcome, Unused
from facade.kernel.runtime.composition import FindFaults, Server
from facade.kernel.runtime.flow import Fault, FaultKey
from facade.kernel.runtime.health_issues import ORIGIN, HealthIssue, HealthSource
from facade.kernel.runtime.projection import Projection
from facade.kernel.severities import SEVERITIES, WARNING
from facade.sdp import alarm_states as states
from facade.sdp.judgement import AlarmDict
from facade.sdp.replay import why_refused

AlarmFaults = Mapping[AlarmKey, Fault]
"""By condition and source."""

_LONGEST = 2000
"""Text of an alert [characters]."""
_EACH = 1.0
"""Time between two comparisons [s]."""
_BY_TIME = 10**9
"""No smaller than the numbers of sources that count from 1; far below the time of any start [us]."""
_LOOKS = 3
"""Consecutive comparisons that must find a change: at a start, half of everything is missing."""
_QUIET = as_seconds(Duration(messages.MOST_MISSING)) + 0.1
"""Time before the first look [s]. Numbers count on from the time of the start [us], so the numbers of two runs of a
server differ by more than the largest gap reported as lost alerts."""
_MOST, _MOST_NAMED = 32, 8
"""Most alarms raised per condition, and most sources named in the alarm for the rest."""
_TEXT_EACH, _TEXTS_AT_ONCE = 10.0, 5
"""Least time between two texts of one alert [s], and most new texts in one comparison, as they are no flood."""


class ReportedBefore(Projection[Alarm]):
    """A flow: the active alarms on the bus, so that a restart clears alarms that have gone meanwhile.

    A device server has one, for all its alerts.

    Parameters
    ----------
    first
        Exclusive lower bound of the sequence numbers assigned here.
    """

    topic = messages.STATES

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self.active: dict[AlarmKey, Alarm] = {}
        self.alarms: dict[AlarmKey, Alarm] = {}
        """Alarms that are not at rest."""
        self.raised: dict[AlarmKey, Time] = {}
        """Time at which each remembered alarm was last raised, by its source [Unix us]."""
        self.sequences: dict[str, int] = {}
        """The newest number of each source."""

    def next_sequence(self, source: str) -> int:
        """Return the number of the next alert of a source."""
        self.sequences[source] = max(self.sequences.get(source, 0), self._first) + 1
        return self.sequences[source]

    def is_own(self, alarm: Alarm) -> bool:
        """Return whether an alarm may be one of an earlier run, by its number: other sources count from 1."""
        return alarm.source_sequence > min(self._first, _BY_TIME)

    def _read(self, record: Record) -> Alarm | Unused:
        return messages.decode_alarm(record.value)

    def _remove(self, key: str) -> None:
        condition, _, source = key.partition("@")
        for known in (self.active, self.alarms, self.raised):
            known.pop((condition, source), None)

    def _take(self, alarm: Alarm, record: Record) -> Outcome:
        self.raised[alarm.key] = alarm.source_raised_at
        self.sequences[alarm.source] = max(alarm.source_sequence, self.sequences.get(alarm.source, 0))
        for known, belongs in ((self.active, alarm.is_active), (self.alarms, alarm.state != states.NORM)):
            if belongs:
                known[alarm.key] = alarm
            else:
                known.pop(alarm.key, None)
        return USED


def _reported_before(server: Server) -> ReportedBefore:
    if (before := server.find(ReportedBefore)) is None:
        # Alerts of an earlier run may be missing in the states. Each run counts on from the time of its start, so that
        # no two alerts have the same number.
        before = server.share(ReportedBefore, lambda: ReportedBefore(int(server.clock.now_us())))
        server.flows.append(before)
    return before


class AlarmsHealth(HealthSource):
    """The alarms that are not at rest, for the judgement of SdpMaster."""

    conditions: Mapping[str, str] = {}

    def __init__(self, server: Server) -> None:
        self._before = _reported_before(server)

    def issues(self, now: Time) -> Sequence[HealthIssue]:
        """Return none: SdpAlerts tells of its alarms by its own health."""
        return ()

    def alarms(self) -> list[AlarmDict]:
        """Return the alarms with the states that operators see."""
        return [
            {
                "condition": one.condition,
                "source": one.source,
                "severity": one.severity,
                "text": one.text,
                "state": states.shown(
                    one.state,
                    shelved=bool(one.shelved_until),
                    suppressed=not one.annunciated,
                    out_of_service=one.out_of_service,
                ),
            }
            for one in self._before.alarms.values()
        ]


class OwnAlerts:
    """Raises and clears alerts about found faults; see `facade.kernel.runtime.event_loop.PeriodicTask`.

    Delivered alerts and found faults are compared periodically: an undelivered alert is sent again, and an alert that
    was raised before a restart is cleared after it. Absence from the found faults does not always mean that all is
    well: right after a start, or while a source of faults is away, their list is incomplete. The alert of a condition
    that was not judged stays as it is.

    Parameters
    ----------
    find
        Returns the faults at a time; None while they are unknown.
    mine
        Whether an alarm may come from `find`.
    judges
        Whether the absence of a fault from what `find` returned last means that it has gone.
    gather
        Adds the faults that explain others; see `facade.flows.alerts.suppression.Suppression.gathered`.
    known
        Whether `before` has read all records from before the start.
    others
        Source of one alarm of each condition about the faults beyond the limit; empty text: there is no limit. A raised
        alarm stays until its fault has gone, since an omitted alarm would count as gone.
    """

    def __init__(
        self,
        find: FindFaults,
        before: ReportedBefore,
        writer: QueueingWriter,
        *,
        mine: Callable[[AlarmKey], bool],
        known: Callable[[], bool],
        clock: Clock,
        judges: Callable[[AlarmKey], bool] = lambda key: True,
        gather: Callable[[AlarmFaults], AlarmFaults] = lambda found: found,
        others: str = "",
    ) -> None:
        self._find, self._judges, self._gather = find, judges, gather
        self._before = before
        self._writer = writer
        self._mine, self._known = mine, known
        self._clock, self._others = clock, others
        self._told: dict[AlarmKey, Alert] = {}
        """The alerts that are active according to the deliveries."""
        self._sent: list[Alert] = []
        """Alerts without a known delivery."""
        self._told_at: dict[AlarmKey, float] = {}
        """Time of the last sending [s]."""
        self._mark = self._failed = 0
        self._looks: Counter[AlarmKey] = Counter()
        """Consecutive comparisons that found a change against the delivered alerts."""
        self._began: dict[AlarmKey, Time] = {}
        """Time of the first report of each fault [Unix us], so that a repetition is no second occurrence."""
        self._delivered: dict[AlarmKey, Time] = {}
        """Begin of the newest occurrence that is surely on the bus [Unix us]."""
        self._cleared: dict[AlarmKey, int] = {}
        """Number of the last CLEARED alert of each."""
        self._next = clock.monotonic() + _QUIET

    def perform(self) -> None:
        """Send due alerts, without waiting."""
        if not self._known() or self._clock.monotonic() < self._next:
            return
        self._next = self._clock.monotonic() + _EACH
        if self._sent and not self._settle():
            return
        self._take_over()
        now = self._clock.now_us()
        found = self._find(now)
        if found is None:
            self._looks.clear()  # comparisons before and after are not consecutive
        else:
            found = self._gather({**self._unjudged(), **found})
            found = self._limited(found) if self._others else found
            news = [key for key in found.keys() | self._told.keys() if self._is_news(key, found)]
            self._looks = Counter({key: self._looks[key] + 1 for key in news})
            self._began = {key: at for key, at in self._began.items() if key in found}
            self._told_at = {key: at for key, at in self._told_at.items() if key in found}
            self._tell(found, now)

    def end(self) -> None:
        """Leave everything as it is: the next start continues."""

    def has_reported(self, key: AlarmKey, began: Time) -> bool:
        """Return whether an occurrence of an alarm that began at a time, or a later one, is on the bus."""
        return max(self._delivered.get(key, NEVER), self._before.raised.get(key, NEVER)) >= began

    def _take_over(self) -> None:
        """Adopt alerts of an earlier run of this server, and own ones without a known delivery.

        Anybody may raise a condition that this server raises too, about a source of the same kind: that is not ours to
        clear.
        """
        for key, alarm in self._before.active.items():
            mine = self._mine(key) and self._before.is_own(alarm)
            if mine and key not in self._told and alarm.source_sequence > self._cleared.get(key, 0):
                self._told[key] = Alert(
                    condition=alarm.condition,
                    source=alarm.source,
                    severity=alarm.severity,
                    state="ACTIVE",
                    text=alarm.text,
                    raised_at=alarm.source_raised_at,
                    sequence=alarm.source_sequence,
                )

    def _unjudged(self) -> AlarmFaults:
        """Return the faults that were told, and whose absence proves nothing now."""
        kept = (one for key, one in self._told.items() if not self._judges(key))
        return {one.key: Fault(one.text, one.severity, values=one.values) for one in kept}

    def _limited(self, found: AlarmFaults) -> AlarmFaults:
        """Return the faults within the limit, first those of raised alerts, and one for the others."""
        conditions: dict[str, list[AlarmKey]] = {}
        for key in sorted(found, key=lambda key: (key not in self._told, -self._looks[key])):
            conditions.setdefault(key[0], []).append(key)
        limited: dict[AlarmKey, Fault] = {}
        for condition, keys in conditions.items():
            room = max(_MOST, sum(key in self._told for key in keys))
            limited |= {key: found[key] for key in keys[:room]}
            if others := keys[room:]:
                worst = max((found[key].severity for key in others), key=SEVERITIES.index)
                listed = ", ".join(source for _, source in others[:_MOST_NAMED]) + ", ..." * (len(others) > _MOST_NAMED)
                text = f"and {len(others)} more: {listed}"
                limited[condition, self._others] = Fault(text, worst, values={"more": len(others)})
        return limited

    def _settle(self) -> bool:
        """Note delivered alerts; False: their delivery is not known yet."""
        if not self._writer.settled(self._mark):
            return False
        if self._writer.failures(messages.ALERTS) == self._failed:
            for alert in self._sent:
                self._delivered[alert.key] = alert.raised_at
                if alert.state == messages.ACTIVE:
                    self._told[alert.key] = alert
                else:
                    self._told.pop(alert.key, None)
                    self._cleared[alert.key] = alert.sequence
        self._sent = []  # failed alerts are found missing, and sent again
        return True

    def _is_news(self, key: AlarmKey, found: AlarmFaults) -> bool:
        fault, told = found.get(key), self._told.get(key)
        return fault is None or told is None or fault.severity != told.severity

    def _tell(self, found: AlarmFaults, now_us: Time) -> None:
        self._failed = self._writer.failures(messages.ALERTS)
        for key, fault in found.items():
            before = self._told.get(key)
            if before is None and self._looks[key] >= _LOOKS:
                began = self._began.setdefault(key, now_us) if fault.began is None else fault.began
                self._send(key, "ACTIVE", fault, began)
            elif before is not None and (fault.began or NEVER) > before.raised_at:
                self._send(key, "ACTIVE", fault, fault.began or NEVER)
            elif before is not None and before.severity != fault.severity and self._looks[key] >= _LOOKS:
                self._send(key, "ACTIVE", fault, before.raised_at)
        for key, before in self._told.items():
            if key not in found and self._looks[key] >= _LOOKS:
                self._send(key, "CLEARED", Fault(f"over; it was: {before.text}", before.severity), before.raised_at)
        for key, before in self._outdated(found)[:_TEXTS_AT_ONCE]:
            self._send(key, "ACTIVE", found[key]._replace(severity=before.severity), before.raised_at)
        self._mark = self._writer.mark()

    def _outdated(self, found: AlarmFaults) -> list[tuple[AlarmKey, Alert]]:
        """Return the active alerts with outdated texts, the oldest text first."""
        before = self._clock.monotonic() - _TEXT_EACH
        oldest_first = sorted((self._told_at.get(key, 0.0), key) for key in found.keys() & self._told.keys())
        return [
            (key, self._told[key])
            for at, key in oldest_first
            if at <= before and found[key].text[:_LONGEST] != self._told[key].text
        ]

    def _send(self, key: AlarmKey, state: str, fault: Fault, raised_at: Time) -> None:
        assert fault.severity is not None, f"a fault of {key} has no severity"
        alert = Alert(
            condition=key[0],
            source=key[1],
            severity=fault.severity,
            state="ACTIVE" if state == messages.ACTIVE else "CLEARED",
            text=fault.text[:_LONGEST],
            values=dict(fault.values),
            raised_at=raised_at,
            sequence=self._before.next_sequence(key[1]),
        )
        self._sent.append(alert)
        self._told_at[key] = self._clock.monotonic()
        self._writer.send(messages.alert_record(alert))


def reporter(
    server: Server,
    find: FindFaults,
    finds: Callable[[FaultKey], bool],
    topics: Sequence[str],
    judges: Callable[[FaultKey], bool],
    others: str,
) -> OwnAlerts:
    """Raise and clear alerts about found faults; see `facade.kernel.runtime.composition.Server.report`."""
    before = _reported_before(server)
    topics = (*topics, before.topic)
    icd = server.icd
    suppression = suppression_of(icd, server.settings.rack_size)

    def is_mine(key: AlarmKey) -> bool:
        condition, source = key
        # The sources of the facade's own faults begin with its name; an alarm that gathers them anywhere has none.
        sources = (source, f"{ORIGIN}/") if source == ANYWHERE else (source,)
        return finds(key) or any(finds((one, at)) for one in suppression.gathers(condition) for at in sources)

    severities = {name: one.severity or WARNING for name, one in icd.conditions.items()}

    def graded(now: Time) -> AlarmFaults | None:
        """Give each fault without a severity the severity of its condition."""
        return (found := find(now)) and {
            key: one if one.severity else one._replace(severity=severities.get(key[0], WARNING))
            for key, one in found.items()
        }

    made = OwnAlerts(
        graded,
        before,
        server.bus.writer(),
        mine=is_mine,
        judges=judges,
        gather=suppression.gathered,
        known=lambda: server.has_read(*topics),
        clock=server.clock,
        others=others,
    )
    if not why_refused(server.clock):  # a replay has the alerts of the night
        server.periodic_tasks.append(made)
    return made
