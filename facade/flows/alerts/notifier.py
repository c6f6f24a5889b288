"""Notifies people outside the control room about alarms that nobody acknowledges in time.

Theory of operation ------------------- The compacted topic ``alert-state`` has the alarms, and ``alert-notifications``
has one record for each alarm and receiver: how far the receiver was told. A process reads both topics from their
beginning. Its own records change its state only when it reads them back, so a record that the bus refused has no
effect. The second topic has one partition, because the order of all its records matters.

The process announces a message (SENDING), sends it, and notes that it was sent (SENT). The message about the end of an
alarm has the same steps (ENDING, then a tombstone). If the process is killed between the first and the last step,
nobody knows whether the message left. So the next process sends it again with the same id and content, and a receiver
that compares ids drops it. Such receivers get each message exactly once, and all others at least once.

A process sends only messages that it has announced itself, after its record that it follows the alarms. It ends when it
reads such a record by a later process. So two processes can send the same message only while it is on its way.

An alarm waits for a person until it is acknowledged, shelved, removed from service, or at rest. While another alarm
explains it, no message about it begins, because the message about the cause says more. After a restart, its counters
show whether it is the same alarm. A process that was away for minutes cannot see whether an alarm was raised again or
was acknowledged and forgotten meanwhile. It then sends a message again, because a second message does less harm than
none.

Each receiver has one message on its way at a time, in a thread, so that one that hangs holds up no other. After a
failure it gets a pause, which grows, and then the message that was tried longest ago.
"""

import logging
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from facade.flows.alerts.messages import (
    ENDING,
    FOLLOWING,
    NOTIFICATIONS,
    SENDING,
    SENT,
    STATES,
    WAITING,
    Alarm,
    AlarmKey,
    AlertNotification,
    decode_alarm,
    decode_notification,
)
from facade.flows.alerts.notify_rules import Rules
from facade.flows.alerts.receivers import Attempt, Post
from facade.flows.alerts.suppression import Suppression
from facade.kernel.bus.port import Fenced, Reader, Record
from facade.kernel.clock import DAY, MINUTE, NEVER, Clock, Time, utc_seconds
from facade.kernel.errors import BusError
from facade.kernel.outcome import Unused
from facade.kernel.printable import printable
from facade.kernel.runtime.accounts import RunningAccount
from facade.kernel.runtime.flow import Alerts
from facade.kernel.runtime.readers import Bus
from facade.kernel.severities import ALARM
from facade.sdp import alarm_states as states

__all__ = ["FAILED", "Notifier", "Waiting", "following"]

_log = logging.getLogger(__name__)

FAILED = "notificationFailed"
_PROCESS = "process"
"""Key of the record of the process."""
_READ, _WAIT, _BUSY = 10_000, 0.2, 0.02
"""Most records read at once, and the longest wait for them: while a message is on its way, it is shorter [s]."""
_RETRY = 5.0
"""Pause after a failure of the bus [s]."""
_AGAIN = 5.0
"""Time after which a record that has not come back is written again [s]."""
_SIGN_EACH = 60.0
"""Time between two records of the process [s]."""
_AWAY = 5 * MINUTE
"""A process that was away for less has missed no alarm that was forgotten: the ledger keeps one at rest for longer."""
_LONGEST = 30.0
"""Longest time for one message [s]."""
_PAUSES = (2.0, 300.0)
"""First and longest pause of a receiver after a failure [s]; each is twice the one before."""
_TEXT_EACH = 60.0
"""Least time between two texts of the alarm [s]."""
_GIVE_UP = DAY
"""Time after which the end of an alarm is not told any more."""
_MOST = 10_000
"""Most pairs of an alarm and a receiver."""
_MOST_TEXT = 2000

Key = tuple[str, AlarmKey]
"""Receiver and alarm."""


class Waiting(NamedTuple):
    """An alarm, and since when it has waited for a person; `NEVER`: it does not."""

    alarm: Alarm
    since: Time


def waits(alarm: Alarm) -> bool:
    """Return whether an alarm waits for a person: it is not acknowledged, and nothing covers it."""
    covers = {"shelved": bool(alarm.shelved_until), "suppressed": not alarm.annunciated}
    return states.shown(alarm.state, out_of_service=alarm.out_of_service, **covers) in states.UNACKNOWLEDGED


def following(
    one: AlertNotification | None, receiver: str, found: Waiting | None, rules: Rules, now: Time
) -> AlertNotification | None:
    """Return the record that follows a notification; the same one: wait, None: remove it.

    Whether its message was sent is not asked here: SENDING and ENDING last until then, or until the alarm is over.
    """
    alarm = None if found is None or found.since == NEVER else found.alarm
    rule = None if alarm is None else rules.rule(receiver, alarm)
    if one is None:
        if found is None or alarm is None or rule is None:
            return None
        return AlertNotification(
            phase=WAITING,
            receiver=receiver,
            condition=alarm.condition,
            source=alarm.source,
            since=found.since,
            severity=alarm.severity,
            raised=alarm.raised,
            occurrence=alarm.occurrence,
            acknowledged_at=alarm.acknowledged_at,
            time=now,
            origin="",
        )
    if one.phase == ENDING:
        return None if receiver not in rules.receivers or now - one.time > _GIVE_UP else one
    if found is None or alarm is None or found.since != one.since or rule is None:
        ends = one.phase != WAITING and _ends(one, receiver, found, rules)
        return _changed(one, ENDING, _why_over(found), now) if ends else None
    due = rules.rule(receiver, alarm, now)
    if due is None or one.phase == SENDING:
        return one
    if one.phase == WAITING and now - one.since >= due.wait:
        first = msgspec.structs.replace(one, severity=alarm.severity)
        return _changed(first, SENDING, alarm.text, now, number=1)
    if one.phase == SENT and due.repeat is not None and now - one.time >= due.repeat:
        return _changed(one, SENDING, alarm.text, now, number=one.number + 1)
    return one


def _ends(one: AlertNotification, receiver: str, found: Waiting | None, rules: Rules) -> bool:
    if receiver not in rules.receivers:
        return False
    alarm = Alarm(condition=one.condition, source=one.source, state=states.UNACK, through=0, severity=one.severity)
    rule = rules.rule(receiver, alarm if found is None else found.alarm) or rules.rule(receiver, alarm)
    return rule is None or rule.ends  # a receiver whose rule was removed still learns that the alarm ended


def _why_over(found: Waiting | None) -> str:
    if found is None or found.alarm.state == states.NORM:
        return "over: the alarm is at rest"
    alarm = found.alarm
    last = f"; last action: {alarm.action} by {alarm.operator}: {alarm.comment}" if alarm.action else ""
    if found.since != NEVER:
        return f"over: it was raised again meanwhile, or no rule names it now{last}"
    covers = {"shelved": bool(alarm.shelved_until), "suppressed": not alarm.annunciated}
    shown = states.shown(alarm.state, out_of_service=alarm.out_of_service, **covers)
    return f"over: it no longer waits for a person, as its state is {shown}{last}"


def _changed(one: AlertNotification, phase: str, text: str, now: Time, number: int | None = None) -> AlertNotification:
    number = one.number if number is None else number
    return msgspec.structs.replace(one, phase=phase, text=text[:_MOST_TEXT], time=now, number=number)


class _Writer(Protocol):
    def send(self, record: Record) -> None: ...


@dataclass(slots=True)
class _Line:
    """The message that is on its way to one receiver."""

    sent: AlertNotification | None = None
    attempt: Attempt | None = None
    began: float = 0.0
    """Begin of the attempt [monotonic s]."""
    pause: float = 0.0
    """The last pause [s]; 0: the last attempt was taken."""
    next: float = float("-inf")
    """Time of the next attempt [monotonic s]."""
    error: str = ""


class Notifier:
    """Reads the alarms and its own records, and sends messages that are due; a deployment runs one.

    Parameters
    ----------
    alerts
        Raises the alarm about messages that cannot be sent; None: nothing is written or sent at all.
    origin
        Identity of this run of the process; by default a new one.
    """

    accounts: Mapping[str, RunningAccount] = {}

    def __init__(
        self,
        bus: Bus,
        rules: Rules,
        post: Post,
        alerts: Alerts | None,
        *,
        suppression: Suppression,
        clock: Clock,
        origin: str = "",
    ) -> None:
        self._bus, self._rules, self._post, self._alerts, self._clock = bus, rules, post, alerts, clock
        self._suppression = suppression
        self._writer: _Writer = bus.writer()
        self._origin = origin or f"{socket.gethostname()}-{clock.now_us()}"
        self._reader: Reader | None = None
        self.alarms: dict[AlarmKey, Waiting] = {}
        self.notes: dict[Key, AlertNotification] = {}
        """As they are on the bus."""
        self._written: dict[str, float] = {}
        """Time from which a record that has not come back is written again [monotonic s], by its key."""
        self._lines = {name: _Line() for name in rules.receivers}
        self._tried: dict[Key, float] = {}
        """Time of the last attempt that failed [monotonic s]."""
        self._sign_at = float("-inf")
        self._followed = self._began = NEVER
        """Last record of another process, and the first one of this one, by the broker's clock; `NEVER`: none."""
        self._linked = False
        self._left_out = 0
        self._text_at = float("-inf")
        """Time from which the alarm may get another text [monotonic s]."""
        self._told: str | None = None
        """Text of the alarm; empty: it is not raised; None: unknown."""

    def step(self) -> None:
        """Read new records, and send messages that are due.

        Raises
        ------
        Fenced
            A later process tells of the alarms.
        """
        try:
            if self._read() and self._follow():
                self._collect()
                self._look()
                self._send()
                self._report()
        except Fenced:
            raise
        except BusError as error:
            _log.warning("notifications wait retry=%g s reason=%s", _RETRY, error)
            self._clock.sleep(_RETRY)

    def finish(self) -> None:
        """Stop reading; the next process sends messages that are on their way again, with the same ids."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def catch_up(self, within: float) -> None:
        """Read all records, and neither write nor send, so that `preview` can list messages that are due.

        Raises
        ------
        BusError
            The end was not reached in time.
        """
        deadline = self._clock.monotonic() + within
        while not self._read():
            if self._clock.monotonic() > deadline:
                raise BusError(f"the ends of {STATES} and {NOTIFICATIONS} were not reached within {within:g} s")
        self._link()

    def preview(self) -> Iterator[tuple[str, Waiting, str]]:
        """Return, for each alarm that waits and each of its receivers, when the next message is due; see `catch_up`."""
        now, alarms = self._clock.now_us(), self._by_condition()
        for key, found in self.alarms.items():
            cause = self._suppression.cause(key, alarms) if found.since else None
            for receiver in self._rules.for_alarm(found.alarm) if found.since else ():
                note = self.notes.get((receiver, key)) or following(None, receiver, found, self._rules, now)
                after = following(note, receiver, found, self._rules, now)
                due = self._rules.rule(receiver, found.alarm, now)
                is_waiting = after is not None and (after.phase == WAITING or _begins(note, after))
                if cause is not None and is_waiting:
                    yield receiver, found, f"when {'@'.join(cause)} is over, if it still waits then"
                elif after is not None and after.phase in (SENDING, ENDING):
                    yield receiver, found, f"now, message {after.number}" if after.phase == SENDING else "now, its end"
                elif after is not None and after.phase == SENT:
                    yield receiver, found, f"sent {after.number} times, at last {utc_seconds(after.time)}"
                elif due is None:
                    yield receiver, found, "in the hours of its rule"
                else:
                    yield receiver, found, f"at {utc_seconds(found.since + due.wait)}"

    # Reading

    def _read(self) -> bool:
        """Read new records; return whether all records have been read that existed at the start."""
        if self._reader is not None and self._reader.is_misplaced:
            self.finish()
        if self._reader is None:
            self.alarms, self.notes, self._began, self._linked = {}, {}, NEVER, False
            self._reader = self._bus.open_reader({STATES: None, NOTIFICATIONS: None}, {}, resets=False)
        is_busy = any(line.sent is not None for line in self._lines.values())
        for record in self._reader.take(_READ, _BUSY if is_busy else _WAIT):
            if record.topic == STATES:
                self._take_alarm(record)
            else:
                self._take_note(record)
        return self._reader.caught_up(STATES) and self._reader.caught_up(NOTIFICATIONS)

    def _take_alarm(self, record: Record) -> None:
        alarm = decode_alarm(record.value)
        if record.value is None:
            condition, _, source = (record.key or b"").decode("utf-8", "replace").partition("@")
            self.alarms.pop((condition, source), None)
        if isinstance(alarm, Unused):
            return
        known = self.alarms.get(alarm.key)
        since = record.timestamp_us if waits(alarm) else NEVER
        if since and known is not None and known.since:
            before = known.alarm
            if alarm.acknowledged_at == before.acknowledged_at and alarm.raised >= before.raised:
                since = known.since
        self.alarms[alarm.key] = Waiting(alarm, since)

    def _take_note(self, record: Record) -> None:
        name = (record.key or b"").decode("utf-8", "replace")
        self._written.pop(name, None)
        note = decode_notification(record.value)
        if record.value is None:
            receiver, _, alarm = name.partition("/")
            condition, _, source = alarm.partition("@")
            for known in (self.notes, self._tried):
                known.pop((receiver, (condition, source)), None)
        elif isinstance(note, Unused):
            _log.warning("notification not readable offset=%d reason=%s", record.offset, note)
        elif note.phase != FOLLOWING:
            key = note.receiver, (note.condition, note.source)
            if _name(key) == name:
                self.notes[key] = note
        elif note.origin == self._origin:
            self._began = self._began or record.timestamp_us
        elif self._began:
            raise Fenced(f"another process tells of the alarms since {utc_seconds(note.time)}: {note.origin}")
        else:
            self._followed = record.timestamp_us

    def _follow(self) -> bool:
        """Write that this process follows the alarms; return whether that is on the bus."""
        now = self._clock.monotonic()
        if now >= self._sign_at or not self._began:
            self._sign_at = now + _SIGN_EACH
            sign = AlertNotification(phase=FOLLOWING, time=self._clock.now_us(), origin=self._origin)
            self._write(_PROCESS, sign)
        if self._began and not self._linked:
            self._link()
        return bool(self._began)

    def _link(self) -> None:
        """Recognise the alarms of an earlier process: their records have replaced those since which they wait."""
        away = self._began - self._followed > _AWAY if self._followed else True
        for note in self.notes.values():
            key = note.condition, note.source
            found = self.alarms.get(key)
            if found is not None and found.since and _is_same(note, found.alarm, away=away):
                self.alarms[key] = found._replace(since=note.since)
        self._linked = True

    # Messages that are due

    def _look(self) -> None:
        """Write the next record for each receiver and alarm, if there is one."""
        now, due, alarms = self._clock.now_us(), dict.fromkeys(self.notes), self._by_condition()
        for key, found in self.alarms.items():
            if found.since:
                due |= dict.fromkeys((receiver, key) for receiver in self._rules.for_alarm(found.alarm))
        self._left_out = max(len(due) - _MOST, 0)
        for receiver, alarm in [*due][:_MOST]:
            note = self.notes.get((receiver, alarm))
            if note is not None and self._is_sent(note):
                continue
            after = following(note, receiver, self.alarms.get(alarm), self._rules, now)
            if _begins(note, after) and self._suppression.cause(alarm, alarms) is not None:
                continue
            if after is not None and after.phase in (SENDING, ENDING) and after.origin != self._origin:
                after = msgspec.structs.replace(after, origin=self._origin)  # of an earlier process: now ours to send
            if after != note:
                self._write(_name((receiver, alarm)), after)

    def _by_condition(self) -> Mapping[str, Mapping[str, Alarm]]:
        alarms: dict[str, dict[str, Alarm]] = {}
        for (condition, source), found in self.alarms.items():
            alarms.setdefault(condition, {})[source] = found.alarm
        return alarms

    def _write(self, name: str, note: AlertNotification | None) -> None:
        now = self._clock.monotonic()
        if now >= self._written.get(name, float("-inf")):
            self._written[name] = now + _AGAIN
            value = None if note is None else msgspec.json.encode(msgspec.structs.replace(note, origin=self._origin))
            self._writer.send(Record(topic=NOTIFICATIONS, key=name.encode(), value=value))

    # Sending

    def _is_sent(self, note: AlertNotification) -> bool:
        """Return whether a message is on its way, or was taken, and this is not noted yet."""
        line = self._lines.get(note.receiver)
        return line is not None and line.sent == note

    def _send(self) -> None:
        now = self._clock.monotonic()
        for name, line in self._lines.items():
            if line.sent is not None or now < line.next:
                continue
            ready = {
                key: note
                for key, note in self.notes.items()
                if key[0] == name and note.phase in (SENDING, ENDING) and note.origin == self._origin
                if _name(key) not in self._written
            }
            if ready:
                key = min(ready, key=lambda key: (self._tried.get(key, float("-inf")), ready[key].time))
                line.sent, line.began, line.attempt = ready[key], now, self._post(name, ready[key])

    def _collect(self) -> None:
        """Note messages that receivers took, and give receivers that failed a pause."""
        now = self._clock.monotonic()
        for name, line in self._lines.items():
            note = line.sent
            if note is None or line.attempt is None:
                continue
            key = name, (note.condition, note.source)
            error = line.attempt.error
            if error is None:
                if now - line.began >= _LONGEST:
                    line.error = f"it has not answered for {now - line.began:.0f} s"
                    line.attempt.cut()
            elif error:
                _log.warning("notification failed receiver=%s reason=%s", name, error)
                line.pause = min(max(2 * line.pause, _PAUSES[0]), _PAUSES[1])
                line.error, line.sent, line.attempt, line.next = error, None, None, now + line.pause
                self._tried[key] = now
            elif self.notes.get(key) == note:
                line.error, line.pause = "", 0.0
                told = None if note.phase == ENDING else _changed(note, SENT, note.text, self._clock.now_us())
                self._write(_name(key), told)
            else:
                _log.info("sent receiver=%s alarm=%s number=%d", name, printable("@".join(key[1])), note.number)
                line.sent = line.attempt = None

    def _report(self) -> None:
        """Raise or clear the alarm about messages that cannot be sent."""
        waiting = [note for note in self.notes.values() if note.phase in (SENDING, ENDING)]
        counts = {name: sum(note.receiver == name for note in waiting) for name in self._lines}
        failing = [
            f"{name}: {line.error}; messages that wait: {counts[name]}"
            for name, line in self._lines.items()
            if line.error and counts[name]
        ]
        if self._left_out:
            failing.append(f"{self._left_out} further alarms are told to nobody: more than {_MOST} wait")
        text = "; ".join(failing)[:_MOST_TEXT]
        now = self._clock.monotonic()
        changed = self._told is None or bool(text) is not bool(self._told)
        changed |= text != self._told and now >= self._text_at
        if self._alerts is None or not changed or (not text and waiting):
            return
        if text:
            self._alerts.raise_alert(FAILED, ALARM, text)
        else:
            self._alerts.clear(FAILED, "each message was taken, or its alarm is over")
        self._told, self._text_at = text, now + _TEXT_EACH


def _begins(note: AlertNotification | None, after: AlertNotification | None) -> bool:
    return after is not None and after.phase == SENDING and after != note


def _name(key: Key) -> str:
    receiver, (condition, source) = key
    return f"{receiver}/{condition}@{source}"


def _is_same(note: AlertNotification, alarm: Alarm, *, away: bool) -> bool:
    """Return whether an alarm has waited for a person ever since a note about it."""
    if alarm.acknowledged_at != note.acknowledged_at:
        return False
    if alarm.raised == note.raised:
        return alarm.occurrence == note.occurrence
    return alarm.raised > note.raised and not away
