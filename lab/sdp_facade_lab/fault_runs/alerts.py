"""Alerts through kills: they are sent in bursts while device server and broker are killed, to a slow client.

Sent: alerts and actions of a scenario. Expected: each of them once at the client, in the order of its source, and the
states of all alarms. Observed: the journal of the client, and `GetAlarms`. The scenario works out the states by rules
of its own, so that the run can compare the device with them. Conditions that have delays, or suppress each other, are
left out: their states depend on the broker's clock, or on other alarms.
"""

import hashlib
import os
import random
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import tango

from facade.flows.alerts.follower import FollowedAlert
from facade.flows.alerts.messages import ACTIONS, ALERTS, Action, ActionKind, Alert, alert_record, encode
from facade.infra.processes import Process
from facade.kernel.bus.kafka.producer import KafkaStreamWriter
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import NEVER, Clock, Duration, Time
from facade.kernel.errors import InfraError
from facade.kernel.severities import Severity
from sdp_facade_clients.alert_subscription import AlertSubscription
from sdp_facade_lab import gauges
from sdp_facade_lab.balance import Balance, Gaps, Silence, Tally
from sdp_facade_lab.fault_runs.frame import BROKER, READY_WITHIN, SERVER, FaultRun, Size, process_name
from sdp_facade_lab.roles import RoleContext

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


class AlarmStanding(msgspec.Struct):
    """How one alarm stands."""

    state: str = "NORM"
    severity: Severity = "INFO"
    text: str = ""
    occurrence: int = 0
    raised_at: Time = NEVER


Alarms = dict[tuple[str, str], AlarmStanding]
"""By condition and source."""


class AlertSequence:
    """Gives the records of a seed one by one, and keeps the state of each alarm.

    Parameters
    ----------
    begin_us
        Time before the first record; each is a microsecond later than the one before [Unix us].
    """

    def __init__(self, seed: int, begin_us: Time) -> None:
        self.refused: set[int] = set()
        """Numbers of the actions that come too late."""
        self.alarms: Alarms = {(condition, source): AlarmStanding() for condition in LATCHING for source in SOURCES}
        self._chance = random.Random(seed)  # noqa: S311 - a scenario that can be repeated
        self._keys = [*self.alarms]
        self._now = begin_us
        self._number = 0
        """On the log; its first record is number 1."""
        self._sequences: Counter[str] = Counter()

    def records(self, count: int) -> Iterator[Alert | Action]:
        for _ in range(count):
            self._now += Duration(1)
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

    def _raise(self, key: tuple[str, str], alarm: AlarmStanding) -> Alert:
        active = alarm.state in ("UNACK", "ACKED")
        raised_at = alarm.raised_at if active and self._chance.random() < 0.5 else self._now
        severity = self._chance.choice(_SEVERITIES)
        worse = _SEVERITIES.index(severity) > _SEVERITIES.index(alarm.severity)
        if not active or worse or raised_at > alarm.raised_at:
            alarm.state, alarm.occurrence = "UNACK", self._number
        alarm.severity, alarm.raised_at = severity, raised_at
        return self._alert(key, alarm, "ACTIVE")

    def _clear(self, key: tuple[str, str], alarm: AlarmStanding) -> Alert:
        latching = LATCHING[key[0]]
        if alarm.state == "UNACK":
            alarm.state = "LTUNK" if latching else "RTNUN"
        elif alarm.state == "ACKED":
            alarm.state = "LTACK" if latching else "NORM"
        return self._alert(key, alarm, "CLEARED")

    def _alert(self, key: tuple[str, str], alarm: AlarmStanding, state: str) -> Alert:
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

    def _act(self, key: tuple[str, str], alarm: AlarmStanding, kind: ActionKind) -> Action:
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


_ENTRY = struct.Struct("<q8s")
_EACH, _SLOW = 20_000, 2_000
"""Length of a cycle of entries, and the number of entries in it that the client takes slowly."""
_TAKES = 0.001
"""How long each of those takes [s]: for longer than the queue has room at the full rate."""
_LOOK = 0.1


class FollowerReport(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the client at its end."""

    by_event: int
    by_page: int
    """Entries filled by GetAlertsSince."""
    again: int
    """Events that came though they were known already."""
    overtaken: int
    """Events that came before others that belong before them."""
    overflowed: int
    """Events for which the slow client had no room."""
    unusable: int
    renewed: int
    """How often it has subscribed."""
    silence: float
    """Longest time without an entry, but for its own slowness [s]."""
    gaps: list[Silence] = []
    """The times without one."""
    lost: list[str]
    """Entries that can no longer be delivered, in words."""


class _Client:
    """Writes each entry into a journal."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._clock = clock
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.gaps = Gaps(clock)
        self.lost: list[str] = []

    def on_entry(self, entry: FollowedAlert) -> None:
        self.gaps.hear()
        os.write(self._file, packed(entry.sequence, digest(entry.alert or entry.action)))
        if entry.sequence % _EACH < _SLOW:
            self._clock.sleep(_TAKES)
        self.gaps.wait_anew()


def follow_alerts(context: RoleContext, *, device: str, journal: str) -> FollowerReport:
    client = _Client(journal, context.clock)
    subscription = AlertSubscription(device, client.on_entry, start=0, on_lost=client.lost.append)
    while not context.called_off:
        context.clock.sleep(_LOOK)
    subscription.close()
    follower = subscription.follower
    if follower is None:
        raise InfraError("the subscription has no place to begin from")
    return FollowerReport(
        by_event=follower.by_event,
        by_page=follower.by_page,
        again=follower.again,
        overtaken=follower.overtaken,
        overflowed=subscription.overflowed,
        unusable=follower.unusable,
        renewed=subscription.renewed,
        silence=client.gaps.longest,
        gaps=client.gaps.found,
        lost=client.lost,
    )


def packed(sequence: int, content: bytes) -> bytes:
    return _ENTRY.pack(sequence, content)


def count_entries(path: Path) -> int:
    return path.stat().st_size // _ENTRY.size if path.exists() else 0


def read_entries(path: Path) -> list[tuple[int, bytes]]:
    """Return sequence number and digest of all entries, in the order in which they came."""
    content = path.read_bytes() if path.exists() else b""
    return list(_ENTRY.iter_unpack(content[: len(content) // _ENTRY.size * _ENTRY.size]))


_SHOWN = 5
"""Most findings of one kind that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAlerts:
    """Expected and observed."""

    sent: Sequence[tuple[str, bytes]]
    """Source and digest of all records, in the order of the log."""
    refused: Collection[int] = ()
    """Numbers of those that are actions which came too late."""
    received: Sequence[tuple[int, bytes]]
    """Sequence number and digest of what the client got, in its order."""
    client: FollowerReport
    wanted: Mapping[tuple[str, str], AlarmStanding]
    """All alarms as they follow from the sent records."""
    shown: Sequence[Mapping[str, Any]]
    """GetAlarms."""


def account(found: FoundAlerts) -> Balance:
    made, client = Balance(), found.client
    place = {digest: number for number, (_, digest) in enumerate(found.sent, 1) if number not in found.refused}
    got = Counter(digest for _, digest in found.received)
    lost = [number for digest, number in place.items() if digest not in got]
    foreign = [sequence for sequence, digest in found.received if digest not in place]
    doubled = [place.get(digest, 0) for digest, count in got.items() if count > 1]
    disorder = [later for (one, _), (later, _) in pairwise(found.received) if later < one]
    misnumbered = [sequence for sequence, digest in found.received if place.get(digest, sequence) != sequence]
    states = _states(found)
    made.rows += [
        ("alerts and actions sent", len(found.sent)),
        ("... actions that came too late, and must not be shown", len(found.refused)),
        ("received by the client", len(found.received)),
        ("... by event", client.by_event),
        ("... filled by GetAlertsSince", client.by_page),
        ("sent again, and taken once", client.again),
        ("events that came before what belongs before them", client.overtaken),
        ("events for which the slow client had no room", client.overflowed),
        ("subscriptions made", client.renewed),
        ("lost", len(lost)),
        ("given to the client twice", len(doubled)),
        ("out of order at the client", len(disorder)),
        ("received, and never sent", len(foreign)),
        ("alarms compared", len(found.wanted)),
        ("... in another state", len(states)),
    ]
    made.tallies["alerts"] = Tally(len(place), len(found.received), len(lost), len(doubled), client.gaps)
    made.wrong += _named("was sent and never received: number", lost)
    made.wrong += _named("was given to the client twice: number", doubled)
    made.wrong += _named("was received and never sent: number", foreign)
    made.wrong += _named("came to the client after a later one: number", disorder)
    made.wrong += _named("has another number at the client than on the log: number", misnumbered)
    made.wrong += states
    made.wrong += [f"the client was told of a loss: {text}" for text in client.lost]
    if client.unusable:
        made.wrong.append(f"{client.unusable} events could not be read")
    return made


def _states(found: FoundAlerts) -> list[str]:
    shown = {(one["condition"], one["source"]): one for one in found.shown}
    wrong = []
    for key, alarm in found.wanted.items():
        one = shown.pop(key, None)
        here = f"alarm {key[0]} of {key[1]}"
        if alarm.state == "NORM" or one is None:
            if (alarm.state == "NORM") != (one is None):
                wrong.append(f"{here}: expected {alarm.state}, got {'NORM' if one is None else one['state']}")
            continue
        wanted = (alarm.state, alarm.severity, alarm.occurrence, alarm.text)
        got = (one["state"], one["severity"], one["occurrence"], one["text"])
        if got != wanted:
            wrong.append(f"{here}: expected {wanted}, got {got}")
    return wrong + [f"alarm {condition} of {source}: nobody raised it" for condition, source in shown]


def _named(what: str, numbers: Sequence[int]) -> list[str]:
    more = [f"... and {len(numbers) - _SHOWN:,} more"] if len(numbers) > _SHOWN else []
    return [f"{what} {number}" for number in numbers[:_SHOWN]] + more


_BURST, _QUICK_BURST = 10_000, 2_000
_AHEAD = 50_000
"""The client is never further behind the newest alert than this: the device keeps the newest 100,000."""
_BURSTS = 4
"""Most bursts of which the client may lack entries when the next one is sent."""


class AlertFaultRun(FaultRun):
    """One run of the alerts."""

    unit, all_is_well = "alerts and actions", "the client has each record once and in order; each alarm has its state"
    full, short = Size(1_000_000, 10), Size(20_000, 2)
    faults = (SERVER, BROKER)

    def prepare(self) -> None:
        self._burst = min(_QUICK_BURST if self.quick else _BURST, self.count)
        self._device = self.deployment.devices("SdpAlerts")[0]
        self._journal = self.deployment.folder / "received.bin"
        self._scenario = AlertSequence(self.seed, self.clock.now_us())
        self._sent: list[tuple[str, bytes]] = []
        self._waiting: list[Alert | Action] = []
        """Alerts and actions of the burst whose actions are on their way to the topic that proves them."""
        self._received = 0
        self._interval = 0.0
        """Shortest time between two bursts [s]."""
        self._next_burst_at = 0.0
        self._patience = 0
        """The next burst comes when the client is at most so far behind."""
        self._due = sorted(
            (self.chance.uniform(0.0, 1.0) * (self.count - self._burst), part) for part in self.faults * self.kills
        )
        """At how many received entries which part is killed; the last burst is sent when all that is done."""
        self._peak = 0.0
        """Memory of the device server, over all its lives [MB]."""

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        return {SERVER: lambda: self.deployment.server("alerts", name=process_name(SERVER))}

    def begin(self) -> None:
        self.demand(self._answers, READY_WITHIN, SERVER)
        device = f"tango://{self.deployment.tango_host}/{self._device}"
        self._client = self.deployment.play(follow_alerts, device=device, journal=str(self._journal))
        self._writer = KafkaStreamWriter(self.deployment.connection, health=BusHealth(), client="sources")
        self._began = self.clock.monotonic()

    def step(self) -> bool:
        # What the client does not get counts as received, or the others could never be all.
        received = count_entries(self._journal) + len(self._scenario.refused)
        self._received = received
        is_over = self.is_stuck(received) or not self._client.is_alive
        if is_over:
            self.progress.step(f"  nothing more comes: {self.in_words()}; {self._client.tail()}")
        if is_over or received >= self.count:
            self._writer.flush(READY_WITHIN)
            self._seconds = self.clock.monotonic() - self._began
            return False
        self._peak = max(self._peak, gauges.peak_resident(self.deployment.processes[process_name(SERVER)].pid))
        self._writer.poll()
        if self._waiting and not self._writer.backlog:
            self._place()
        left = self.count - len(self._sent)
        may_send = left > self._burst or (left > 0 and not self._due)
        is_due = self.clock.monotonic() >= self._next_burst_at
        if may_send and is_due and not self._waiting and len(self._sent) - received <= self._patience:
            self._send(min(self._burst, left))
            self._next_burst_at = self.clock.monotonic() + self._interval
        return True

    def stop_sending(self) -> None:
        self.count = len(self._sent) + len(self._waiting)

    def due(self) -> str:
        return self._due.pop(0)[1] if self._due and self._received >= self._due[0][0] else ""

    def count_arrived(self) -> int:
        return self._received

    def in_words(self) -> str:
        return f"{len(self._sent):,} sent, {self._received:,} received"

    def account(self) -> Balance:
        self.demand(self._answers, READY_WITHIN, SERVER)
        shown = self.deployment.alarms(self._device)
        self._client.call_off()
        client = self.deployment.result(self._client, FollowerReport, 60.0)
        made = account(
            FoundAlerts(
                sent=self._sent,
                refused=self._scenario.refused,
                client=client,
                received=read_entries(self._journal),
                wanted=self._scenario.alarms,
                shown=shown,
            )
        )
        made.rows += [
            ("from the first one sent to the last one received", f"{self._seconds:,.0f} s"),
            ("slowest recovery: longest silence at the client", f"{client.silence:.1f} s"),
            ("peak memory of the device server", f"{self._peak:,.0f} MB"),
        ]
        return made

    def _send(self, count: int) -> None:
        self._waiting = list(self._scenario.records(count))
        self._write(ACTIONS, [one for one in self._waiting if isinstance(one, Action)])
        self._patience = self.chance.randint(0, min(_BURSTS * self._burst, _AHEAD - self._burst))

    def _place(self) -> None:
        """Send the burst itself: its actions are proven."""
        self._sent += ((one.source, digest(one)) for one in self._waiting)
        self._write(ALERTS, self._waiting)
        self._waiting = []

    def _write(self, topic: str, messages: Sequence[Alert | Action]) -> None:
        records = [alert_record(one) for one in messages]
        self._writer.send_many(topic, [one.key for one in records], [one.value for one in records])

    def _answers(self) -> bool:
        try:
            return self.deployment.answers("alerts") and (
                self.deployment.proxy(self._device).state() != tango.DevState.UNKNOWN
            )
        except tango.DevFailed:
            return False
