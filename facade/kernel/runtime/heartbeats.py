"""Heartbeats: each process of the facade and each controller writes them to one topic; its last one says `stopping`.

Device servers also write their heartbeats to a second topic, to which no other role has the right to write. They learn
from it which server serves their devices, because on the first one any program could pose as a successor.

Silence is judged by the log alone, from the broker's timestamps of heartbeats. The judge writes heartbeats itself: if
even these do not come, the bus is away, and the state of every component is unknown.
"""

import re
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from facade import __version__
from facade.kernel import messages
from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, NOTHING, SECOND, Clock, Duration, Time, as_duration, as_seconds
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.icd.topic_model import slot_name
from facade.kernel.outcome import USED, Outcome
from facade.kernel.printable import listed
from facade.kernel.recent import Bounded
from facade.kernel.runtime.flow import Flow
from facade.kernel.runtime.steps import StepThread

TOPIC, SERVERS = "heartbeats", "server-heartbeats"
INTERVAL = 1.0
"""Time between two heartbeats [s]."""
_HURRY = 0.1
"""Time between two heartbeats of a standby that waits for the lease [s]."""
STANDBY = "-standby"
"""End of a standby's name, behind the name of its server."""
SILENT = as_duration(3.5)
"""Silence after which a component counts as away."""
_ALL_BACK = 10 * SECOND
"""Time after an outage within which each living process is heard again. A client waits up to 8 s for an answer to its
last request (`ANSWER_MS` in `facade.kernel.bus.kafka.timeouts`), and tries to connect each second."""
_FOLLOWED_WITHIN = 20 * SECOND
"""Silence of a device server by which a standby should have taken its place."""
_STUCK = 60.0
"""A worker whose loop has not turned for this time writes no heartbeat [s]: longer than any wait for the bus."""
_MOST_COMPLAINTS, _MOST_NAMED = 20, 8
MOST_COMPONENTS = 10_000
"""Components that are remembered, several times those of the largest deployment: names of pods are new at each start.
"""
LONGEST_TEXT = 500
"""Longest text of a complaint, and of a reason in it [characters]."""
_INCARNATION = re.compile(r"(?P<began>\d{1,10}\.\d{3})-(?:(?P<host>.+)-)?")

HeartbeatMessage = messages.Heartbeat
decode_heartbeat = BatchDecoder(HeartbeatMessage).decode_one


def heartbeat_record(heartbeat: HeartbeatMessage, topic: str = TOPIC) -> Record:
    """Return the record of a heartbeat."""
    return Record(topic=topic, key=heartbeat.component.encode(), value=msgspec.json.encode(heartbeat))


def began(incarnation: str) -> float:
    """Return the start time of an incarnation, by its host's clock [Unix s]; 0: its text has none."""
    found = _INCARNATION.match(incarnation)
    return float(found["began"]) if found else 0.0


def host_of(incarnation: str) -> str:
    """Return the host of an incarnation; empty text: its text has none, as of an older release."""
    found = _INCARNATION.match(incarnation)
    return (found["host"] or "") if found else ""


class SignOfLife:
    """Writes heartbeats; in a device server also a periodic task, see `facade.kernel.runtime.event_loop.PeriodicTask`.

    Parameters
    ----------
    component
        Name of the process, the same after a restart.
    send
        Queues a record, and never waits.
    complaints
        Returns the devices' complaints about their own health.
    """

    def __init__(
        self,
        component: str,
        role: messages.HeartbeatRole,
        send: Callable[[Record], None],
        clock: Clock,
        *,
        complaints: Callable[[], Sequence[messages.DeviceComplaint]] = tuple,
    ) -> None:
        self.incarnation = f"{as_seconds(clock.now_us()):.3f}-{socket.gethostname()}-{secrets.token_hex(4)}"
        self.hurries: Callable[[], bool] = lambda: False
        """Returns whether the next sign should come as soon as possible."""
        self.devices: Sequence[str] = ()
        """Devices whose commands this process executes."""
        self.group = ""
        """Group of controllers that share these devices; empty: none."""
        self.interval = INTERVAL
        """Time between two heartbeats [s]."""
        self.send = send
        self.sent: Callable[[HeartbeatMessage, float], None] = lambda heartbeat, monotonic: None
        """Called with each heartbeat and the monotonic time [s]."""
        self.flush: Callable[[float], None] = lambda timeout: None
        """Waits for queued records, at most some time [s]."""
        self._component, self._role, self._complaints, self._clock = component, role, complaints, clock
        self._next = float("-inf")

    def perform(self) -> None:
        """Write a heartbeat if it is due."""
        now = self._clock.monotonic()
        if now >= self._next:
            self._next = now + (min(_HURRY, self.interval) if self.hurries() else self.interval)
            self.beat()

    def beat(self) -> None:
        """Write a heartbeat."""
        self._give(stopping=False)

    def go_behind(self) -> None:
        """Write a final heartbeat and a further one: a standby gives its place to those that came later."""
        self._give(stopping=True)
        self._give(stopping=False)

    def end(self) -> None:
        """Write the final heartbeat."""
        self._give(stopping=True)
        self.flush(INTERVAL)

    def _give(self, *, stopping: bool) -> None:
        heartbeat = HeartbeatMessage(
            component=self._component,
            incarnation=self.incarnation,
            devices=list(self.devices),
            group=self.group,
            time=self._clock.now_us(),
            interval=self.interval,
            role=self._role,
            stopping=stopping,
            version=__version__,
            complaints=_limited(self._complaints()),
        )
        self.sent(heartbeat, self._clock.monotonic())
        for topic in (SERVERS, TOPIC) if self._role == "server" else (TOPIC,):
            self.send(heartbeat_record(heartbeat, topic))


class Pulse:
    """Writes heartbeats beside a worker's loop, which may wait for the bus, as long as the loop turns."""

    def __init__(self, sign: SignOfLife, clock: Clock) -> None:
        self._sign, self._clock = sign, clock
        self._round_at = clock.monotonic()
        self._thread = StepThread(self._beat, "heartbeats", each=INTERVAL / 4)
        self.start = self._thread.start

    def came_round(self) -> None:
        """Note a turn of the loop."""
        self._round_at = self._clock.monotonic()

    def end(self) -> None:
        """Stop, and write the final heartbeat."""
        self._thread.end(INTERVAL)
        self._sign.end()

    def _beat(self) -> None:
        if self._clock.monotonic() - self._round_at < _STUCK:
            self._sign.perform()


class Heard(NamedTuple):
    """The last heartbeat of a component."""

    heartbeat: HeartbeatMessage
    at: Time
    """Append time of the heartbeat, by the broker's clock."""


class Heartbeats(Flow):
    """A flow: the newest heartbeat of each component, on one of the two topics."""

    def __init__(self, topic: str = TOPIC) -> None:
        self.topic = topic
        self.newest: Bounded[str, Heard] = Bounded(MOST_COMPONENTS)
        """By component, the one that has been silent longest first; after its final heartbeat it is `stopping`."""
        self.listeners: list[Callable[[HeartbeatMessage, Time], None]] = []
        """Called with each heartbeat and the broker's timestamp."""
        self._newest = self._flowing_since = self._before = NEVER
        self._settles: Duration = SILENT
        self._back_at, self._flowed = NEVER, NOTHING
        """First heartbeat after the outage that is being waited out, and how long others have come since."""

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Process a heartbeat; see `facade.kernel.runtime.flow.Flow`."""
        heartbeat = decode_heartbeat(record.value)
        if not isinstance(heartbeat, HeartbeatMessage):
            return heartbeat
        at = record.timestamp_us
        if abs(at - self._newest) > SILENT:
            # The bus was away, or its clock was set.
            self._before = min(self.judged_at, at)
            if self._newest == NEVER or self.can_tell or at < self._newest:
                self._back_at, self._flowed = at, NOTHING
            if at < self._newest:  # no time is in the future
                for name, one in list(self.newest.items()):
                    self.newest[name] = Heard(one.heartbeat, min(one.at, at))
            self._settles = SILENT if self._newest == NEVER else _ALL_BACK
            self._flowing_since = at
        else:
            self._flowed += max(at - self._newest, NOTHING)
            if self._flowed > _ALL_BACK and self._back_at < self._flowing_since:
                # In outages that recur, a process is silent if it has not been heard since the first of them.
                self._before, self._back_at, self._flowed = self._back_at, self._flowing_since, at - self._flowing_since
        self._newest = at
        self.newest[heartbeat.component] = Heard(heartbeat, at)
        for listener in self.listeners:
            listener(heartbeat, at)
        return USED

    def silence(self, component: str) -> Duration:
        """Return the time that the bus was available without a heartbeat of a component."""
        heard = self.newest.get(component)
        return self._newest - max(self._flowing_since, NEVER if heard is None else heard.at)

    @property
    def newest_at(self) -> Time:
        """Return the append time of the newest heartbeat."""
        return self._newest

    @property
    def judged_at(self) -> Time:
        """Return the time as of which silence is judged: usually the time of the newest heartbeat.

        After an outage of the bus, the last heartbeat before it counts until each process could be heard again. Where
        outages recur before, the times between them count together.
        """
        return self._newest if self.can_tell else self._before

    @property
    def can_tell(self) -> bool:
        """Return whether heartbeats have come for long enough to judge silence."""
        return self._newest - self._flowing_since > self._settles

    def alive(self, component: str) -> bool:
        """Return whether a component is alive, as far as silence is judged."""
        heard = self.newest.get(component)
        return heard is not None and not heard.heartbeat.stopping and self.judged_at - heard.at <= SILENT

    def is_followed(self, server: str) -> bool:
        """Return whether a standby of a device server is there, or starts in its place, and is not late."""
        return self.alive(server + STANDBY) and self.silence(server) <= _FOLLOWED_WITHIN

    def heard_of(self, role: str) -> list[str]:
        """Return the known workers of a role; a slot is part of the name."""
        return [name for name in self.newest if name.startswith(slot_name(role, ""))]

    def alive_of(self, role: str) -> list[str]:
        """Return the living workers of a role."""
        return [name for name in self.heard_of(role) if self.alive(name)]


def _limited(complaints: Sequence[messages.DeviceComplaint]) -> list[messages.DeviceComplaint]:
    first, others = list(complaints[:_MOST_COMPLAINTS]), complaints[_MOST_COMPLAINTS:]
    if others:
        devices = [*dict.fromkeys(one.device for one in others)]
        text = f"and {len(others)} more complaints of devices of this server: {listed(devices, _MOST_NAMED)}"
        first.append(messages.DeviceComplaint(device=devices[0], text=text[:LONGEST_TEXT]))
    return first
