"""The flow of alerts: each record gets a number, becomes one event, and is folded into the ledger.

The number is the record's offset plus one, so it is the same after any restart. When the topic was created again or has
lost its end, the numbers continue: the former count is added. Events leave in the order of the log and are never
merged. The offset for a restart is written only after the events have left and the states of the alarms are durable
(see `facade.kernel.runtime.event_loop`).
"""

import logging
import re
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec

from facade.admin.redrive import FROM
from facade.flows.alerts import messages
from facade.flows.alerts.given import GivenActions
from facade.flows.alerts.ledger import OVERTAKEN, AlarmLedger
from facade.flows.alerts.messages import Action, Alarm, AlarmKey, Alert
from facade.flows.alerts.suppression import alarms_by_stream
from facade.kernel.bus.offsets import Extent
from facade.kernel.bus.port import Record
from facade.kernel.clock import MINUTE, SECOND, Time, as_seconds, utc_text
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import TOMBSTONE, USED, Outcome, RecordRejected, Suppressed, Unused
from facade.kernel.reading import Reading
from facade.kernel.recent import Bounded
from facade.kernel.runtime.flow import DeviceReading, Flow
from facade.sdp import alarm_states as states
from facade.sdp.demand import RateMeter

_log = logging.getLogger(__name__)

LAST_ALERT = "lastAlert"
_MOST_SOURCES = 10_000
"""Sources whose sequence numbers are followed."""
_MOST_REFUSALS = 1_000
"""Refused actions that are remembered."""
_MOST_ACTIONS = 10_000
"""Actions that are remembered to find repetitions: as many as can be proven (`facade.flows.alerts.given`)."""
_MOST_ALERTS = 10_000
"""Alerts that are remembered to find repetitions: as many as a rack's mirror, or a source, repeats after a kill."""
_MOST_LOGS = 1_000
"""Partitions of ``alert-packets`` whose newest packets are known, also of former topics of the name."""
_PACKET = re.compile(rb"(.{1,200}/[0-9]{1,9})/([0-9]{1,18})")
_REFRESHED_AT_ONCE = 100
"""Events of a refresh that may precede an alert."""
_MOST_REFRESHES = 8
LARGEST = 65_536
"""Largest alert [bytes], as alerts are kept in memory and sent to every client; large content is an attachment."""
KEPT = 100_000
"""Alerts and actions kept in memory for clients that missed some."""


LogEntry = tuple[int, bytes]
"""Sequence number and JSON."""


class AlertLog:
    """A bounded list of entries in the order of their sequence numbers; one thread writes, any may read.

    Parameters
    ----------
    most
        Most entries.
    most_bytes
        Most bytes of all texts together.
    """

    def __init__(self, most: int, most_bytes: int = 256_000_000) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._entries: list[LogEntry] = []
        self._begin = 0
        """Index of the oldest kept entry."""
        self._lock = threading.Lock()
        self.complete_from = 0
        """All entries with higher sequence numbers are here."""

    @property
    def newest(self) -> int:
        """Return the newest sequence number; without an entry, the number from which on all will be here."""
        with self._lock:
            return self._entries[-1][0] if self._entries else self.complete_from

    def append(self, sequence: int, text: bytes) -> None:
        """Add an entry; its number must be higher than the newest."""
        with self._lock:
            assert not self._entries or sequence > self._entries[-1][0], f"entry {sequence} comes after a later one"
            self._entries.append((sequence, text))
            self._bytes += len(text)
            while len(self._entries) - self._begin > self._most or self._bytes > self._most_bytes:
                self.complete_from, oldest = self._entries[self._begin]
                self._entries[self._begin] = (self.complete_from, b"")
                self._bytes -= len(oldest)
                self._begin += 1
            is_whole = self._begin == len(self._entries) or self.complete_from < self._entries[self._begin][0]
            assert is_whole, f"all after {self.complete_from} is here, and {self._entries[self._begin][0]} as well"
            if self._begin > self._most:  # rarely, so that it costs nothing per entry
                del self._entries[: self._begin]
                self._begin = 0

    def since(self, sequence: int, most: int, most_bytes: int = 2**62) -> list[LogEntry]:
        """Return the first entries with numbers higher than a given one: at least one, if there is any."""
        with self._lock:
            first = bisect_right(self._entries, sequence, self._begin, key=itemgetter(0))
            found = self._entries[first : first + most]
        size = 0
        for index, (_, text) in enumerate(found):
            size += len(text)
            if size >= most_bytes:
                return found[: index + 1]
        return found


CHATTER, CHATTER_WITHIN = 3, MINUTE
FLOOD, FLOOD_WITHIN = 10, 10 * MINUTE
_RATE_OVER = 10
"""Seconds of the mean rate."""
_MOST_NEW = 100_000


class Statistics:
    """Counts new occurrences of alarms, and alerts, by the broker's clock."""

    def __init__(self) -> None:
        self._occurrences: dict[AlarmKey, deque[Time]] = {}
        self._newest: deque[Time] = deque(maxlen=_MOST_NEW)
        """Times of annunciations."""
        self.alerts = RateMeter(_RATE_OVER)

    def occurrence(self, key: AlarmKey, at_us: Time) -> None:
        """Count a new occurrence of an alarm."""
        self._occurrences.setdefault(key, deque(maxlen=CHATTER)).append(at_us)

    def annunciation(self, at_us: Time) -> None:
        """Count an annunciation of an alarm."""
        self._newest.append(at_us)

    def chattering(self, now_us: Time) -> list[AlarmKey]:
        """Return the alarms that occurred three times or more in the last minute."""
        since = now_us - CHATTER_WITHIN
        past = [key for key, times in self._occurrences.items() if times[-1] <= since]
        for key in past:
            del self._occurrences[key]
        return [
            key
            for key, times in self._occurrences.items()
            if len(times) == CHATTER and times[0] > now_us - CHATTER_WITHIN
        ]

    def new(self, now_us: Time) -> int:
        """Return the number of annunciations in the last ten minutes."""
        while self._newest and self._newest[0] <= now_us - FLOOD_WITHIN:
            self._newest.popleft()
        return len(self._newest)


class AlertsFlow(Flow):
    """A flow: the records on ``alerts``, and the alarms; see `facade.kernel.runtime.flow.Flow`.

    Parameters
    ----------
    device
        The device that shows it.
    rack_size
        Nodes of a rack.
    given
        The actions that count.
    """

    topic = messages.ALERTS
    durable = True
    recalls = messages.STATES
    kept = KEPT
    remembered: Sequence[str] = (LAST_ALERT,)

    def __init__(self, icd: Icd, device: str, rack_size: int, given: GivenActions) -> None:
        self.device, self.given = device, given
        self.ledger = AlarmLedger(icd.conditions, icd.locations, rack_size, alarms_by_stream(icd))
        self.statistics = Statistics()
        self.log = AlertLog(KEPT)
        self.alerts = self.actions = self.refused = 0
        """Alerts with a number, actions of operators that took effect, and refused actions."""
        self.missing = 0
        """Sequence numbers that sources left out."""
        self._sources: Bounded[str, int] = Bounded(_MOST_SOURCES)
        """The newest number of each source, in the order of their last alerts."""
        self._newest = 0
        self.base = 0
        """Offset of the sequence numbers: number = offset of the record + base + 1."""
        self.numbering = ""
        """The topic's id when the numbers began with 1; empty text: unknown."""
        self._refusals: deque[int] = deque(maxlen=_MOST_REFUSALS)
        """Numbers of refused actions, which have no effect."""
        self._acted: Bounded[str, int] = Bounded(_MOST_ACTIONS)
        """Number of the newest actions, by id. Actions before a restart are read again."""
        self._alerted: Bounded[bytes, int] = Bounded(_MOST_ALERTS)
        """Number of the newest alerts, by the digest of their bytes: each alert has a sequence number of its source."""
        self._packets: Bounded[str, int] = Bounded(_MOST_LOGS)
        """Newest packet with a counted alert, by log and partition of ``alert-packets``."""
        self._packets_kept: Bounded[str, int] = Bounded(_MOST_LOGS)
        """The same, for packets that are read again after a start."""
        self._events: deque[DeviceReading] = deque()
        self._refreshes: deque[str] = deque()
        self._refreshing: Iterator[DeviceReading] = iter(())

    @property
    def sequence(self) -> int:
        """Return the number of the newest alert or action; 0: there is none."""
        return self._newest

    def recall(self, record: Record) -> Outcome:
        """Restore the state of an alarm from before the restart; see `facade.kernel.runtime.flow.Effects`."""
        if record.value is None:
            condition, _, source = (record.key or b"").decode("utf-8", "replace").partition("@")
            self.ledger.forget((condition, source))
            return TOMBSTONE
        alarm = messages.decode_alarm(record.value)
        if not isinstance(alarm, Alarm):
            return alarm
        self.ledger.recall(alarm)
        return USED

    def place(self, now: Extent, before: Mapping[int, int], after: Mapping[int, int]) -> None:
        """Continue the numbers when offsets begin at 0 again; see `facade.kernel.runtime.flow.Flow`."""
        self.numbering = self.numbering or now.id
        end = max((end for _, end in now.ranges.values()), default=0)
        expected, comes = max(before.values(), default=0), max(after.values(), default=0)
        # The states of the alarms may be newer than the snapshot.
        given = max(self.base + expected, self._newest, *(alarm.through for alarm in self.ledger.alarms()), 0)
        if comes < expected or given > self.base + end:
            self.base = given - comes
        last = self.base + max(comes, end)
        assert given <= last, f"the next record would get number {last + 1}, and numbers up to {given} are given"
        if not self.log.newest:
            # Not from the first entry on: numbers before it may belong to marks of transactions or refused records.
            first = min((first for first, _ in now.ranges.values()), default=0)
            self.log.complete_from = self.base + max(first, comes - self.kept)

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Fold a record with its number into the ledger; see `facade.kernel.runtime.flow.Flow`."""
        message = self.decode(record)
        if not isinstance(message, Alert | Action):
            return message
        if isinstance(message, Action) and not self.given.prove(record):
            what = f"expected an action of a device server, which is on {messages.ACTIONS} too, got {message.id!r:.80}"
            return RecordRejected("action", "$", what)
        if self._is_again(record, self._packets if count else self._packets_kept):
            return Suppressed("again")
        sequence = self.base + record.offset + 1
        if isinstance(message, Action):
            is_again = _is_known(self._acted, message.id, sequence)
        else:  # a packet's alert is recognized by the packet
            is_again = messages.PACKET not in dict(record.headers) and _is_known(
                self._alerted, blake2b(record.value or b"", digest_size=16).digest(), sequence
            )
        if is_again:
            return Suppressed("again")
        outcome: Outcome = USED
        if not count:
            # Its effect is in the recalled states; a second judgement could have another result.
            if isinstance(message, Action) and sequence in self._refusals:
                return Suppressed("refused")
            self.statistics.alerts.add(record.timestamp_us, 1)
        elif isinstance(message, Alert):
            outcome = self._apply(message, sequence, record)
        elif why := self.ledger.act(message, sequence, record.timestamp_us):
            if message.action == "SHELVE":  # its writer omitted an end within the limit
                outcome = RecordRejected("action", "$.until", f"{message.action}: {why}")
            else:  # another action was faster, or the alarm has gone
                outcome = Suppressed("refused")
            _log.info("action refused id=%s: %s by %s: %s", message.id, message.action, message.operator, why)
            self.refused += 1
            self._refusals.append(sequence)
            return outcome
        else:
            self.actions += 1
        if sequence <= self.log.newest:
            return outcome  # read again
        text = _entry(message, sequence, self.log.newest, record.timestamp_us)
        assert sequence > self.base >= 0, f"number {sequence} of offset {record.offset} does not follow {self.base}"
        self._newest = max(sequence, self._newest)
        self.log.append(sequence, text)
        if count:
            self._events.append((self.device, LAST_ALERT, Reading(text.decode(), record.timestamp_us)))
        return outcome

    def has_read(self, id: str) -> bool:
        """Return whether an action has been read from the log; any thread may ask."""
        return id in self._acted

    def refresh(self, id: str) -> bool:
        """Request an event for each alarm that is not at rest, between two marks; from any thread.

        Return False, and do nothing, if too many requests are waiting.
        """
        if len(self._refreshes) >= _MOST_REFRESHES:
            return False
        self._refreshes.append(id)
        return True

    def events(self, now: Time, *, current: bool) -> Iterator[DeviceReading]:
        """Return all events since the last call, in order."""
        if current:  # otherwise a record that ends a delay may still be unread
            self.ledger.fire(now)
        for key, at_us in self.ledger.take_occurrences():
            self.statistics.occurrence(key, at_us)
        for at_us in self.ledger.take_annunciations():
            self.statistics.annunciation(at_us)
        while self._events:
            yield self._events.popleft()
        refreshed = list(islice(self._refreshing, _REFRESHED_AT_ONCE))
        if not refreshed and self._refreshes:
            self._refreshing = self._refreshed(self._refreshes.popleft(), now)
        yield from refreshed

    def records(self, now: Time) -> list[Record]:
        """Return the states of alarms to write: those changed since the last call."""
        return [messages.state_record(key, alarm) for key, alarm in self.ledger.take_touched(now)]

    def again(self) -> None:
        """Write all states again: some may be lost."""
        self.ledger.touch_all()

    def as_dict(self) -> dict[str, Any]:
        """Return the state for a snapshot, without the alarms."""
        return {
            "newest": self._newest,
            "base": self.base,
            "numbering": self.numbering,
            "alerts": self.alerts,
            "actions": self.actions,
            "refused": self.refused,
            "out_of_order": self.ledger.out_of_order,
            "skewed": self.ledger.skewed,
            "missing": self.missing,
            "refusals": list(self._refusals),
            "sources": dict(self._sources),
            "packets": dict(self._packets),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a snapshot."""
        kept = msgspec.convert(state, _Kept)
        self._sources.update(kept.sources)
        self._refusals.extend(kept.refusals)
        self._packets.update({place: offset for place, offset in kept.packets.items() if "/" in place})
        self.alerts, self.actions, self.refused, self.missing = kept.alerts, kept.actions, kept.refused, kept.missing
        self.ledger.out_of_order, self.ledger.skewed = kept.out_of_order, kept.skewed
        self._newest, self.base, self.numbering = kept.newest, kept.base, kept.numbering

    def describe(self, alarm: Alarm, *, whole: bool = True) -> dict[str, Any]:
        """Return an alarm for clients, with times in seconds.

        Parameters
        ----------
        whole
            With all actions of operators instead of the last one.
        """
        cause = self.ledger.cause(alarm)
        return {
            "condition": alarm.condition,
            "source": alarm.source,
            "state": self.ledger.shown(alarm),
            **({} if cause is None else {"suppressed_by": name_of(cause)}),
            "severity": alarm.severity,
            "text": alarm.text,
            "occurrence": alarm.occurrence,
            "raised_at": as_seconds(alarm.raised_at),
            "raised_at_utc": utc_text(alarm.raised_at) if alarm.raised_at else "",
            "changed_at": as_seconds(alarm.changed_at),
            "raised": alarm.raised,
            "sequence": alarm.through,
            **({"shelved_until": as_seconds(alarm.shelved_until)} if alarm.shelved_until else {}),
            **(
                {
                    "action": alarm.action,
                    "operator": alarm.operator,
                    "comment": alarm.comment,
                    "acted_at": as_seconds(alarm.acted_at),
                }
                if alarm.action
                else {}
            ),
            **(
                {"actions": [{**msgspec.structs.asdict(one), "time": as_seconds(one.time)} for one in alarm.actions]}
                if whole and alarm.actions
                else {}
            ),
        }

    @staticmethod
    def decode(record: Record) -> Alert | Action | Unused:
        """Return the decoded record of ``alerts``, or the reason why it is unusable."""
        if len(record.value or b"") > LARGEST:
            return RecordRejected("too-large", "$", f"expected at most {LARGEST} bytes, got {len(record.value or b'')}")
        return messages.decode_alert_or_action(record.value)

    @staticmethod
    def _is_again(record: Record, newest: Bounded[str, int]) -> bool:
        """Return whether an intake worker has already written a packet's alert, in an uncommitted transaction.

        Alerts are read without waiting for transactions, as an open one of a killed worker would hold up the rest. Each
        worker processes a partition in order, so a packet not after the newest is a repetition.
        """
        packet = _PACKET.fullmatch(dict(record.headers).get(messages.PACKET, b""))
        if packet is None or _is_redriven(record):
            return False
        place, offset = packet[1].decode("latin-1"), int(packet[2])
        before = newest.get(place, -1)
        newest[place] = max(offset, before)
        return offset <= before

    def _apply(self, alert: Alert, sequence: int, record: Record) -> Outcome:
        redriven = _is_redriven(record)
        why = self.ledger.apply(alert, sequence, record.timestamp_us, redriven=redriven)
        self.statistics.alerts.add(record.timestamp_us, 1)
        self.alerts += 1
        if not redriven:
            self._follow(alert)
        return Suppressed("overtaken") if why == OVERTAKEN else USED

    def _follow(self, alert: Alert) -> None:
        """Count the sequence numbers that a source left out before an alert."""
        newest = self._sources.get(alert.source)
        if newest is not None and newest < alert.sequence <= newest + messages.MOST_MISSING:
            self.missing += alert.sequence - newest - 1
        self._sources[alert.source] = alert.sequence

    def _refreshed(self, id: str, now: Time) -> Iterator[DeviceReading]:
        def event(**content: Any) -> DeviceReading:
            text = msgspec.json.encode({"refresh": id, **content}).decode()
            return self.device, LAST_ALERT, Reading(text, now)

        retained = [alarm for state, alarm in self.ledger.all_shown() if state != states.NORM]
        yield event(mark="START", sequence=self._newest, alarms=len(retained))
        for alarm in retained:
            yield event(alarm=self.describe(alarm))
        yield event(mark="END", sequence=self._newest, alarms=len(retained))


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    newest: int
    alerts: int
    actions: int
    refused: int
    out_of_order: int
    skewed: int
    missing: int
    refusals: list[int]
    sources: dict[str, int]
    packets: dict[str, int]
    base: int = 0
    numbering: str = ""


def _is_known(known: Bounded[Any, int], id: object, sequence: int) -> bool:
    """Return whether a message was sent twice, for lack of a confirmation, and this is the second one."""
    return known.setdefault(id, sequence) < sequence


def _is_redriven(record: Record) -> bool:
    """Return whether an alert, or its packet, was a dead letter before."""
    return any(name == FROM for name, _ in record.headers)


def _entry(message: Alert | Action, sequence: int, previous: int, at_us: Time) -> bytes:
    """Return a record with its number, and the number before it, for clients."""
    kind = b"alert" if isinstance(message, Alert) else b"action"
    head = b'{"sequence":%d,"previous":%d,"time":%d.%06d,"%s":' % (
        sequence, previous, at_us // SECOND, int(at_us % SECOND), kind,
    )  # fmt: skip
    return head + messages.encode(message) + b"}"


def name_of(key: AlarmKey) -> str:
    """Return the name of an alarm in lists."""
    return f"{key[0]}@{key[1]}"
