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
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from facade.kernel.bus.port import Reader, Record
from facade.kernel.clock import NEVER, Clock, SystemClock, Time, as_duration, as_seconds, utc_seconds
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from facade.kernel.messages import ReplayOrder, ReplayPosition
from facade.kernel.outcome import USED, Outcome
from facade.kernel.runtime.flow import Flow
from facade.kernel.runtime.readers import Bus

_log = logging.getLogger(__name__)

TOPIC: Final = "replay"
POSITION: Final = "position"
"""Key of the records with the position."""
PLAYING, PAUSED, ENDED = "PLAYING", "PAUSED", "ENDED"
_DELAY: Final = 0.5
"""Delay of a device server behind the replay, by today's clock [s]."""
_SILENT: Final = 10.0
"""Time without a position after which the replay counts as ended [s]."""
MOST: Final = 1000
_RETRY: Final = 1.0
"""Time between two tries to read the position [s]."""


decode = BatchDecoder[ReplayPosition | ReplayOrder](ReplayPosition, ReplayOrder).decode_one


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
            for record in self._reader.take(MOST, 0.0) if self._reader is not None else ():
                self._flow.fold(record, count=True)
        except BusError as error:  # nothing newer is known meanwhile
            _log.warning("position of the replay cannot be read: %s", error)
