"""The alarms: the state after all alerts and all actions of operators.

The ledger is a fold over the log ``alerts``: it depends only on the records in their order, and on the broker's clock
for delays and shelving. A record already in an alarm changes nothing when it is read again after a restart.

The log keeps the order in which a source wrote. So an alert with a lower number than the last one comes from a
restarted source whose count began with 1 again, or from a dead letter that was put back much later. The first counts if
its `raised_at` names the present occurrence of the alarm. The second must neither bring back an old occurrence nor
overrule a later alert.
"""

import heapq
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from facade.flows.alerts.messages import ACTIVE, Action, ActionTaken, Alarm, AlarmKey, Alert
from facade.flows.alerts.refusals import refusal
from facade.flows.alerts.suppression import Suppression, explains
from facade.kernel.clock import DAY, MINUTE, NEVER, SECOND, Time, as_duration
from facade.kernel.icd.model import Condition, Location
from facade.kernel.recent import Bounded
from facade.kernel.severities import SEVERITIES
from facade.sdp import alarm_states as states

_AHEAD, _BEHIND = 10 * SECOND, 7 * DAY
"""Limits of the difference between a source's clock and the broker's; beyond them the source's time is not used."""
_REST = 10 * MINUTE
"""Time for which an alarm at rest is remembered, so that a late alert is recognized."""
_MOST_AT_REST = 10_000
_MOST_ACTED = 256
"""Actions that an alarm remembers as effective: more than come between two snapshots."""
_MOST_ACTIONS = 16
"""Actions shown with an alarm."""
AGAIN, OVERTAKEN = "again", "overtaken"
"""Reasons why an alert changes no alarm: it is included already; the alarm has a newer alert."""
_NOWHERE: Mapping[str, Location] = MappingProxyType({})
_NO_STREAMS: Mapping[str, Collection[AlarmKey]] = MappingProxyType({})
_UNKNOWN = Condition(label="", description="", response="", priority="MEDIUM")
"""Defaults for a condition that is not in the ICD."""


class AlarmLedger:
    """All alarms that are not at rest, and those that have recently come to rest.

    Parameters
    ----------
    conditions
        Conditions of the ICD; other alarms have no delays and do not latch.
    locations
        Locations of sources, by the ICD.
    rack_size
        Nodes of a rack.
    streams
        See `facade.flows.alerts.suppression.Suppression`.
    """

    def __init__(
        self,
        conditions: Mapping[str, Condition],
        locations: Mapping[str, Location] = _NOWHERE,
        rack_size: int = 1,
        streams: Mapping[str, Collection[AlarmKey]] = _NO_STREAMS,
    ) -> None:
        self._conditions = conditions
        self._suppression = Suppression(conditions, locations, rack_size, streams)
        self.by_condition: dict[str, dict[str, Alarm]] = {}
        """By condition and source."""
        self._due: list[tuple[Time, AlarmKey]] = []
        self._resting: dict[AlarmKey, None] = {}
        self._touched: dict[AlarmKey, None] = {}
        self._moved: set[str] = set()
        self._recalled_until = NEVER
        """Newest change of a recalled alarm [Unix us]; 0: none is unchecked."""
        self._forgotten: Bounded[AlarmKey, None] = Bounded(_MOST_AT_REST)
        """The alarms dropped last, in case their last records are lost."""
        self._occurrences: list[tuple[AlarmKey, Time]] = []
        self._annunciations: list[Time] = []
        self.out_of_order = 0
        """Alerts that were overtaken."""
        self.skewed = 0
        """Alerts whose source's time was not used."""

    def get(self, key: AlarmKey) -> Alarm | None:
        """Return the alarm of a condition and source."""
        return self.by_condition.get(key[0], {}).get(key[1])

    def alarms(self) -> Iterable[Alarm]:
        """Return all alarms; any thread may ask, as each step copies at once."""
        for sources in list(self.by_condition.values()):
            yield from list(sources.values())

    def shown(self, alarm: Alarm) -> str:
        """Return the state that operators see."""
        return _shown(alarm, suppressed=self.cause(alarm) is not None)

    def cause(self, alarm: Alarm) -> AlarmKey | None:
        """Return the first alarm by which another one is suppressed by design; None: it is not."""
        return None if alarm.state == states.NORM else self._suppression.cause(alarm.key, self.by_condition)

    def shown_of(self, condition: str) -> Iterable[tuple[str, Alarm]]:
        """Return the alarms of a condition with the states that operators see; any thread may ask."""
        causes = (self.by_condition.get(one, {}) for one, _ in self._suppression.suppressors.get(condition, ()))
        any_explains = any(explains(one) for alarms in causes for one in list(alarms.values()))
        for alarm in list(self.by_condition.get(condition, {}).values()):
            yield _shown(alarm, suppressed=any_explains and self.cause(alarm) is not None), alarm

    def all_shown(self) -> Iterable[tuple[str, Alarm]]:
        """Return all alarms with the states that operators see; any thread may ask."""
        for condition in list(self.by_condition):
            yield from self.shown_of(condition)

    def recall(self, alarm: Alarm) -> None:
        """Restore an alarm from before a restart."""
        self.by_condition.setdefault(alarm.condition, {})[alarm.source] = alarm
        if alarm.action and not alarm.actions:  # written by a release that kept the last one only
            alarm.actions = [ActionTaken(alarm.action, alarm.operator, alarm.comment, alarm.acted_at)]
        self._recalled_until = max(alarm.changed_at, self._recalled_until)
        self._plan(alarm)
        self._move(alarm.condition)

    def forget(self, key: AlarmKey) -> None:
        """Drop an alarm that is at rest."""
        sources = self.by_condition.get(key[0], {})
        sources.pop(key[1], None)
        if not sources:
            self.by_condition.pop(key[0], None)
        self._resting.pop(key, None)
        self._move(key[0])

    def apply(self, alert: Alert, sequence: int, at_us: Time, *, redriven: bool) -> str | None:
        """Process one alert; return None if it took effect, else `AGAIN` or `OVERTAKEN`.

        Parameters
        ----------
        sequence
            Sequence number of its record.
        at_us
            Append time of its record.
        redriven
            Whether it was a dead letter before: its offset then says nothing of its order among the alerts of its
            source.
        """
        self.fire(at_us)
        believed = at_us - _BEHIND <= alert.raised_at <= at_us + _AHEAD
        self.skewed += not believed
        alarm = self.get(alert.key) or self._new(alert.key)
        if sequence <= alarm.through:
            return AGAIN
        # A time far ahead must not hide later alerts of the same source.
        repaired = believed and alarm.source_raised_at > at_us + _AHEAD
        if not repaired and _is_overtaken(alarm, alert, redriven=redriven):
            self.out_of_order += 1
            return OVERTAKEN
        anew = alert.raised_at > alarm.source_raised_at or not alarm.raised_at or repaired
        if alert.state == ACTIVE:
            self._raise(alarm, alert, sequence, at_us, anew=anew)
        else:
            self._clear(alarm, at_us)
        alarm.text, alarm.values = alert.text, alert.values
        alarm.source_sequence, alarm.through = alert.sequence, sequence
        if anew or (alert.state == ACTIVE and alert.raised_at != alarm.source_raised_at):
            alarm.source_raised_at = alert.raised_at
            alarm.raised_at = alert.raised_at if believed else at_us
        is_active = alert.state == ACTIVE
        assert alarm.is_active == is_active, f"{alarm.key}: {alarm.state} {alarm.pending} after {alert.state}"
        self._touch(alarm, at_us)
        return None

    def act(self, action: Action, sequence: int, at_us: Time) -> str | None:
        """Process an operator's action; return None if it took effect, else the reason."""
        self.fire(at_us)
        alarm = self.get(action.key)
        if alarm is not None and sequence <= alarm.through:
            return None if sequence in alarm.acted else "it had no effect when it was first read"
        if why := refusal(action, alarm):
            return why
        if alarm is None:
            alarm = self._new(action.key)
        self._forget_actions_before_rest(alarm)
        take(action, alarm, at_us)
        is_over = NEVER < alarm.shelved_until <= at_us
        assert not is_over, f"{alarm.key} is shelved until {alarm.shelved_until}, which is past: it would not end"
        alarm.through = sequence
        alarm.acted = [*alarm.acted, sequence][-_MOST_ACTED:]
        if action.action == "SHELVE":
            self._plan(alarm)
        self._touch(alarm, at_us)
        return None

    def fire(self, now_us: Time) -> None:
        """End the delays and shelvings that are over."""
        while self._due and self._due[0][0] <= now_us:
            at_us, key = heapq.heappop(self._due)
            alarm = self.get(key)
            if alarm is None:
                continue
            if alarm.pending and alarm.pending_at <= at_us:
                event, alarm.pending = alarm.pending, ""
                if event == states.RAISE:
                    self._begin(alarm, states.RAISE, alarm.pending_occurrence, at_us)
                else:
                    self._end(alarm)
                self._touch(alarm, at_us)
            if alarm.shelved_until and alarm.shelved_until <= at_us:
                alarm.shelved_until = NEVER
                self._touch(alarm, at_us)
        if NEVER < self._recalled_until < now_us:
            # If the server was killed between two writes, the cause may be stored as cleared while the alarms it
            # suppressed were never annunciated. All records up to the newest stored state have been read again by now.
            self._recalled_until = NEVER
            for condition in self._suppression.explained:
                self._uncover(condition, now_us)

    def take_touched(self, now_us: Time) -> list[tuple[AlarmKey, Alarm | None]]:
        """Return the alarms that changed since the last call; None for a forgotten alarm."""
        touched, self._touched = self._touched, {}
        for key in self._overdue(now_us):
            alarm = self.get(key)
            state = states.NORM if alarm is None else alarm.state
            assert state == states.NORM, f"{key} would be forgotten, and is {state}"
            self.forget(key)
            touched[key] = None
            self._forgotten[key] = None
        return [(key, self.get(key)) for key in touched]

    def take_moved(self) -> set[str]:
        """Return the conditions with alarms whose shown state may have changed since the last call."""
        moved, self._moved = self._moved, set()
        return moved

    def touch_all(self) -> None:
        """Mark all alarms as changed, forgotten ones too: any of their states may be lost."""
        self._touched |= {**self._forgotten, **dict.fromkeys(alarm.key for alarm in self.alarms())}

    def take_occurrences(self) -> list[tuple[AlarmKey, Time]]:
        """Return the new occurrences of alarms since the last call, with their times."""
        occurrences, self._occurrences = self._occurrences, []
        return occurrences

    def take_annunciations(self) -> list[Time]:
        """Return the times of annunciations since the last call."""
        annunciations, self._annunciations = self._annunciations, []
        return annunciations

    def _new(self, key: AlarmKey) -> Alarm:
        condition, source = key
        alarm = Alarm(condition=condition, source=source, state=states.NORM, through=0)
        return self.by_condition.setdefault(condition, {}).setdefault(source, alarm)

    def _raise(self, alarm: Alarm, alert: Alert, sequence: int, at_us: Time, *, anew: bool) -> None:
        delay = self._condition(alarm).on_delay
        self._forget_actions_before_rest(alarm)
        if alarm.state in states.ACTIVE:
            alarm.pending = ""  # it has come back within the off-delay
            worse = SEVERITIES.index(alert.severity) > SEVERITIES.index(alarm.severity)
            if worse or anew or self._has_to_ask_again(alarm, alert, at_us):
                self._begin(alarm, states.ESCALATE, sequence, at_us)
        elif not delay:
            self._begin(alarm, states.RAISE, sequence, at_us)
        elif alarm.pending != states.RAISE:
            alarm.pending, alarm.pending_at = "RAISE", at_us + as_duration(delay)
            alarm.pending_occurrence = sequence
            self._plan(alarm)
        alarm.severity = alert.severity

    def _has_to_ask_again(self, alarm: Alarm, alert: Alert, at_us: Time) -> bool:
        """Return whether a new alert of an acknowledged alarm is a re-alarm (IEC 62682)."""
        condition, before = self._condition(alarm), alarm.acknowledged_values
        after, growth = as_duration(condition.re_alarm), condition.re_alarm_growth
        is_late = after and after <= at_us - alarm.acknowledged_at
        has_grown = growth and any(
            value >= growth * before[name] > 0 for name, value in alert.values.items() if name in before
        )
        return alarm.state == states.ACKED and bool(is_late or has_grown)

    def _begin(self, alarm: Alarm, event: str, occurrence: int, at_us: Time) -> None:
        is_open = alarm.state in states.UNACKNOWLEDGED
        _step(alarm, event)
        alarm.occurrence, alarm.raised = occurrence, alarm.raised + 1
        self._occurrences.append((alarm.key, at_us))
        if self.cause(alarm) is None:
            self._annunciate(alarm, at_us)
        elif not is_open:  # otherwise operators still have to acknowledge the earlier annunciation
            alarm.annunciated = False

    def _annunciate(self, alarm: Alarm, at_us: Time) -> None:
        alarm.annunciated = True
        self._annunciations.append(at_us)

    def _uncover(self, condition: str, at_us: Time) -> None:
        """Annunciate alarms that were suppressed since they were raised and have no cause any more."""
        for name in self._suppression.explained.get(condition, ()):
            for alarm in self.by_condition.get(name, {}).values():
                if not alarm.annunciated and alarm.state in states.UNACKNOWLEDGED and self.cause(alarm) is None:
                    self._annunciate(alarm, at_us)
                    self._touched[alarm.key] = None

    def _clear(self, alarm: Alarm, at_us: Time) -> None:
        delay = self._condition(alarm).off_delay
        if alarm.state not in states.ACTIVE:
            alarm.pending = ""  # it was gone before the on-delay had ended
        elif not delay:
            self._end(alarm)
        elif alarm.pending != states.CLEAR:
            alarm.pending, alarm.pending_at = "CLEAR", at_us + as_duration(delay)
            self._plan(alarm)

    def _end(self, alarm: Alarm) -> None:
        """Clear an alarm. An alarm that was never annunciated needs no acknowledgement."""
        is_latching = self._condition(alarm).latching
        is_hidden = not alarm.annunciated and self.cause(alarm) is not None
        _step(alarm, states.CLEAR_LATCHED if is_latching else states.CLEAR)
        if is_hidden and not is_latching:
            _step(alarm, states.ACKNOWLEDGE)
        assert alarm.state not in states.ACTIVE, f"{alarm.key} is cleared, and {alarm.state}"

    def _forget_actions_before_rest(self, alarm: Alarm) -> None:
        if alarm.key in self._resting:
            alarm.actions = []

    def _condition(self, alarm: Alarm) -> Condition:
        return self._conditions.get(alarm.condition, _UNKNOWN)

    def _plan(self, alarm: Alarm) -> None:
        if alarm.pending:
            heapq.heappush(self._due, (alarm.pending_at, alarm.key))
        if alarm.shelved_until:
            heapq.heappush(self._due, (alarm.shelved_until, alarm.key))
        self._rest(alarm)

    def _touch(self, alarm: Alarm, at_us: Time) -> None:
        alarm.changed_at = at_us
        self._touched[alarm.key] = None
        self._move(alarm.condition)
        self._rest(alarm)
        if not explains(alarm):
            self._uncover(alarm.condition, at_us)

    def _move(self, condition: str) -> None:
        self._moved.add(condition)
        self._moved.update(self._suppression.explained.get(condition, ()))

    def _rest(self, alarm: Alarm) -> None:
        covered = alarm.pending or alarm.shelved_until or alarm.out_of_service
        self._resting.pop(alarm.key, None)
        if alarm.state == states.NORM and not covered:
            self._resting[alarm.key] = None  # in the order in which they came to rest

    def _overdue(self, now_us: Time) -> list[AlarmKey]:
        surplus = len(self._resting) - _MOST_AT_REST
        overdue = []
        for index, key in enumerate(self._resting):
            alarm = self.get(key)
            if index >= surplus and alarm is not None and alarm.changed_at > now_us - _REST:
                break
            overdue.append(key)
        return overdue


def take(action: Action, alarm: Alarm, at_us: Time) -> None:
    """Apply a possible action to an alarm."""
    match action.action:
        case "ACKNOWLEDGE":
            _step(alarm, states.ACKNOWLEDGE)
            alarm.acknowledged_at, alarm.acknowledged_values = at_us, alarm.values
        case "RESET":
            _step(alarm, states.RESET)
        case "SHELVE":
            alarm.shelved_until = at_us + (action.until - action.time)
        case "UNSHELVE":
            alarm.shelved_until = NEVER
        case "REMOVE_FROM_SERVICE":
            alarm.out_of_service = True
        case "RETURN_TO_SERVICE":
            alarm.out_of_service = False
    alarm.action, alarm.operator, alarm.comment = action.action, action.operator, action.comment
    alarm.acted_at = action.time
    taken = ActionTaken(action.action, action.operator, action.comment, action.time, action.client)
    alarm.actions = _without_surplus([*alarm.actions, taken], alarm)
    count = len(alarm.actions)
    assert 0 < count <= _MOST_ACTIONS, f"{alarm.key}: a state with {count} actions would be refused after a restart"


def _without_surplus(actions: list[ActionTaken], alarm: Alarm) -> list[ActionTaken]:
    """Drop the oldest surplus actions; the newest action that explains the state of the alarm stays."""
    explains = {
        "ACKNOWLEDGE": alarm.state not in (states.NORM, *states.UNACKNOWLEDGED),
        "SHELVE": alarm.shelved_until,
        "REMOVE_FROM_SERVICE": alarm.out_of_service,
    }
    newest = {one.action: index for index, one in enumerate(actions) if explains.get(one.action)}
    others = [index for index in range(len(actions)) if index not in newest.values()]
    surplus = others[: max(0, len(actions) - _MOST_ACTIONS)]
    return [one for index, one in enumerate(actions) if index not in surplus]


def _step(alarm: Alarm, event: str) -> None:
    alarm.state = states.TRANSITIONS[alarm.state].get(event, alarm.state)


def _is_overtaken(alarm: Alarm, alert: Alert, *, redriven: bool) -> bool:
    """Return whether an alarm has a newer alert."""
    if not alarm.raised_at:
        return False
    is_lower = alert.sequence < alarm.source_sequence
    if alert.raised_at != alarm.source_raised_at:
        return alert.raised_at < alarm.source_raised_at and (is_lower or redriven)
    is_over = alert.state == ACTIVE and not alarm.is_active
    return is_over or is_lower if redriven else is_over and is_lower


def _shown(alarm: Alarm, *, suppressed: bool) -> str:
    return states.shown(
        alarm.state, shelved=bool(alarm.shelved_until), suppressed=suppressed, out_of_service=alarm.out_of_service
    )
