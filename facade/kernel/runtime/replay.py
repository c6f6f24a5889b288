"""A deployment that shows the replay of an archive: its time is the position of the replay.

Theory of operation
-------------------
The replay writes its position to the topic `replay` several times a second: all older records are on the topics. Each
process of the deployment follows it with a `ReplayClock`.

* **Workers** use the position as the brokers' time: all earlier records of a partition are read, once the worker has
  reached its end. So watermarks and windows have the times of the night.
* **Device servers** use the position as their time, with a delay (`_DELAY`) in which the workers process the records.
  Between two positions the time runs evenly.
* **Records of the facade itself** have today's time, and count as written when they are read
  (`facade.kernel.runtime.flow.Flow.heard`).

Other code knows nothing of a replay: it has a clock, a sink and a view more.

Heartbeats, time-outs and intervals between processes use today's time.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final

import msgspec
from msgspec.structs import replace

from facade.kernel.bus.port import Reader, Record
from facade.kernel.clock import NEVER, Clock, SystemClock, Time, as_duration, as_seconds, utc_seconds, utc_text
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import Topic
from facade.kernel.outcome import USED, Outcome
from facade.kernel.reading import Reading
from facade.kernel.runtime.columns import ReadingColumn
from facade.kernel.runtime.flow import DeviceReading, Flow
from facade.kernel.runtime.publisher import EventSink
from facade.kernel.runtime.readers import Bus
from facade.sdp.messages import ReplayOrder, ReplayOrderAction, ReplayPosition

_log = logging.getLogger(__name__)

TOPIC: Final = "replay"
POSITION: Final = "position"
"""Key of the records with the position."""
PLAYING, PAUSED, ENDED = "PLAYING", "PAUSED", "ENDED"
_DELAY: Final = 0.5
"""Delay of a device server behind the replay, by today's clock [s]."""
_EACH: Final = 1.0
"""Least time between two texts of Status, unless the replay pauses or resumes [s]."""
_SILENT: Final = 10.0
"""Time without a position after which the replay counts as ended [s]."""
_MOST: Final = 1000
_RETRY: Final = 1.0
"""Time between two tries to read the position [s]."""
_PATIENCE: Final = 120.0
"""Longest wait of a position for the brokers [s]."""
_STATUS: Final = "Status"

_DERIVED: Final = frozenset({"accounts", "dead-letters", "heartbeats", TOPIC})
"""SDP's side also writes these topics, but their records concern the processes and offsets of the original."""
_RETENTION: Final = "retention.ms"

decode = BatchDecoder[ReplayPosition | ReplayOrder](ReplayPosition, ReplayOrder).decode_one


def inputs(icd: Icd) -> list[str]:
    """Return the topics that can be replayed: topics of SDP's side, or of people."""
    ours = {name for name, role in icd.roles.items() if role.side == "facade"}
    found = [name for name, topic in icd.topics.items() if topic.of_people or {*topic.writers} - ours]
    return [name for name in found if name not in _DERIVED]


def replay_topics(icd: Icd) -> dict[str, Topic]:
    """Return the topics of the interface as a replay creates them, by name."""
    played = {*inputs(icd)}
    return {
        name: replace(
            topic,
            retention=None,
            config={**topic.config, _RETENTION: "-1"},
            timestamp="CreateTime" if name in played else topic.timestamp,
        )
        for name, topic in icd.topics.items()
    }


class ReplayClock:
    """The time of a replay; intervals are those of today's clock.

    Parameters
    ----------
    today
        Today's clock.
    """

    def __init__(self, today: Clock) -> None:
        self.today = today
        self.position: ReplayPosition | None = None
        """The newest; None: unknown."""
        self._seen: Sequence[tuple[float, Time]] = ()
        """Arrival of positions [monotonic s], and their times; the oldest first."""
        self._began = self._taken_at = 0.0

    def take(self, position: ReplayPosition) -> None:
        """Advance to a position."""
        now, time = self.today.monotonic(), position.time
        if self.position is None:
            self._began = now
        # Records from before the start of this process are past.
        if now - self._began < _DELAY:
            self._seen = ((now - _DELAY, time),)
        else:
            past = sum(at <= now - _DELAY for at, _ in self._seen)
            self._seen = (*self._seen[max(past - 1, 0) :], (now, time))
        self.position, self._taken_at = position, now

    def now_us(self) -> Time:
        """Return the time of the replay; 0 before it is known."""
        seen, at = self._seen, self.today.monotonic() - _DELAY
        before: tuple[float, Time] | None = None
        for since, time in seen:
            if since > at:
                if before is None:
                    return time
                return before[1] + as_duration(as_seconds(time - before[1]) * (at - before[0]) / (since - before[0]))
            before = since, time
        return before[1] if before is not None else NEVER

    def now(self) -> float:
        """Return the same [Unix s]."""
        return as_seconds(self.now_us())

    def monotonic(self) -> float:
        """Return a time that never jumps [s]."""
        return self.today.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""
        self.today.sleep(seconds)

    @property
    def reached_us(self) -> Time:
        """Return the time before which all records are on the topics; 0: unknown."""
        return NEVER if self.position is None else self.position.time

    def describe(self) -> str:
        """Return the sentence about the replay in Status."""
        position = self.position
        if position is None:
            return "REPLAY, which has not begun"
        speed = f"at {position.speed:g}x" if position.speed else "at full speed"
        state = "" if position.state == PLAYING else f", {position.state.lower()}"
        if position.state != ENDED and self.today.monotonic() - self._taken_at > _SILENT:
            state += ", without a sign of life"
        return f"REPLAY {utc_seconds(self.now_us())} {speed}{state}"


def clock_of(settings: Settings) -> Clock:
    """Return the clock of a process, which follows the replay if the deployment shows one."""
    return ReplayClock(SystemClock()) if settings.replay else SystemClock()


def broker_time(clock: Clock) -> Callable[[], Time] | None:
    """Return a function for the brokers' time in a replay; None: there is none, and the brokers tell it."""
    return (lambda: clock.reached_us) if isinstance(clock, ReplayClock) else None


def why_refused(clock: Clock) -> str:
    """Return the reason why commands are refused; an empty text: this deployment shows no replay."""
    if not isinstance(clock, ReplayClock):
        return ""
    return f"this deployment shows a replay ({clock.describe()}): commands are shown there and never executed"


def why_not(order: ReplayOrder, position: ReplayPosition | None) -> str:
    """Return the reason why a replay cannot carry out an order; an empty text: it can."""
    if position is None or position.state == ENDED:
        return f"the replay {'has not begun' if position is None else 'has ended'}"
    if order.action == "SEEK" and not position.time <= order.to < position.end:
        return (
            f"expected a time from {utc_text(position.time)}, which the replay has reached, to its end at"
            f" {utc_text(position.end)}; got {utc_text(order.to)}. A replay does not go back: start another one, with a"
            " new SDP_TOPIC_PREFIX"
        )
    return ""


def make_order(
    action: ReplayOrderAction, origin: str, *, now: Time, seconds: float = 1.0, to: Time = NEVER
) -> ReplayOrder:
    """Make an order; `now`: today's time."""
    id = f"{action.lower()}-{secrets.token_hex(8)}"
    return ReplayOrder(id=id, action=action, seconds=seconds, to=to, time=now, origin=origin)


def replay_record(message: ReplayPosition | ReplayOrder) -> Record:
    """Return the record of a position or an order."""
    return Record(topic=TOPIC, key=message.id.encode(), value=msgspec.json.encode(message))


def newest_position(bus: Bus) -> ReplayPosition | None:
    """Return the newest position that a replay has written; None: there is none.

    Raises
    ------
    BusError
        The brokers do not answer, or the topic does not exist.
    """
    found = (decode(record.value) for record in reversed(bus.read_all(TOPIC)))
    return next((one for one in found if isinstance(one, ReplayPosition)), None)


class ReplayTopic:
    """The topic on which a replay writes its position and reads orders.

    Parameters
    ----------
    bus
        Opens reader and writer.
    """

    def __init__(self, bus: Bus) -> None:
        self._writer = bus.writer()
        self._reader = bus.open_reader({TOPIC: None}, {})

    def tell(self, position: ReplayPosition) -> None:
        """Write a position.

        Raises
        ------
        BusError
            The brokers do not confirm it.
        """
        self._writer.send_durably(replay_record(position), _PATIENCE)

    def orders(self) -> Sequence[ReplayOrder]:
        """Return the orders since the last call."""
        found = (decode(record.value) for record in self._reader.take(_MOST, 0.0))
        return [one for one in found if isinstance(one, ReplayOrder)]


class ReplayFlow(Flow):
    """A flow: the positions of the replay."""

    topic = TOPIC

    def __init__(self, clock: ReplayClock) -> None:
        self._clock = clock

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Process a position; see `facade.kernel.runtime.flow.Flow`."""
        message = decode(record.value)
        if isinstance(message, ReplayPosition):
            self._clock.take(message)
        elif not isinstance(message, ReplayOrder):
            return message
        return USED


class ReplayFollower:
    """Follows the replay in a worker; without a replay it does nothing.

    Parameters
    ----------
    bus
        Opens the bus.
    """

    def __init__(self, bus: Callable[[], Bus], clock: Clock) -> None:
        self._bus, self._clock = cache(bus), clock
        self._flow = ReplayFlow(clock) if isinstance(clock, ReplayClock) else None
        self._reader: Reader | None = None
        self._open_at = clock.monotonic()

    def step(self) -> None:
        """Process new positions."""
        if self._flow is None:
            return
        now = self._clock.monotonic()
        try:
            if self._reader is None and now >= self._open_at:
                self._open_at = now + _RETRY
                self._reader = self._bus().open_reader({TOPIC: None}, {})
            for record in self._reader.take(_MOST, 0.0) if self._reader is not None else ():
                self._flow.fold(record, count=True)
        except BusError as error:  # nothing newer is known meanwhile
            _log.warning("position of the replay cannot be read: %s", error)


class ReplayStatus:
    """Puts the state of the replay before the Status of each device: a sink, and the view that updates the text.

    Parameters
    ----------
    sink
        Shows and pushes.
    devices
        Names of the devices.
    """

    def __init__(self, sink: EventSink, devices: Sequence[str], clock: ReplayClock) -> None:
        self._sink, self._clock = sink, clock
        self._own = {device: Reading("No data from the bus yet.", NEVER) for device in devices}
        """The devices' own texts."""
        self._text, self._state, self._told_at = "", "", float("-inf")

    def show(self, device: str, attribute: str, reading: Reading) -> bool:
        """Show a reading; see `facade.kernel.runtime.publisher.EventSink`."""
        if attribute == _STATUS:
            self._own[device] = reading
            reading = self._marked(reading)
        return self._sink.show(device, attribute, reading)

    def show_column(self, column: ReadingColumn) -> Sequence[bool]:
        """Show a column; see `facade.kernel.runtime.publisher.EventSink`."""
        return self._sink.show_column(column)

    def push(self, device: str, attribute: str, reading: Reading) -> bool:
        """Send a reading; see `facade.kernel.runtime.publisher.EventSink`."""
        return self._sink.push(device, attribute, self._marked(reading) if attribute == _STATUS else reading)

    def readings(self, now: Time) -> Iterator[DeviceReading]:
        """Update the text of all devices if it has changed; see `facade.kernel.runtime.flow.View`."""
        text, monotonic = self._clock.describe(), self._clock.monotonic()
        state = "" if self._clock.position is None else self._clock.position.state
        if text != self._text and (state != self._state or monotonic - self._told_at >= _EACH):
            self._text, self._state, self._told_at = text, state, monotonic
            for device, reading in self._own.items():
                if self._sink.show(device, _STATUS, self._marked(reading)):
                    self._sink.push(device, _STATUS, self._marked(reading))
        return iter(())

    def _marked(self, reading: Reading) -> Reading:
        return Reading(f"{self._text or self._clock.describe()}\n{reading.value}", reading.time, reading.quality)
