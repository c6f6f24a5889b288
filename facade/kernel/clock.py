"""The only module that reads the clock, so that all others can be tested without waiting; and the types of time.

A time of day or of data is a `Time`, and what lies between two times is a `Duration`: integers of microseconds at run
time, but for mypy neither numbers nor each other (``facade/kernel/microseconds.pyi``), so that it refuses the sum of
two times and the sum of a time and of seconds. Seconds as floats are what people and Tango get, what schemas and
settings have, and what waits, time-outs and the monotonic clock are in. The functions here convert them.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, overload

from facade.kernel.microseconds import Duration as Duration
from facade.kernel.microseconds import Time as Time

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NEVER: Final = Time(0)
"""The time of what has not happened, or whose time is not known."""
FOREVER: Final = Time(2**63 - 1)
NOTHING: Final = Duration(0)
SECOND: Final = Duration(1_000_000)
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


class Clock(Protocol):
    """Source of the time."""

    def now(self) -> float:
        """Return the wall-clock time as Unix time [s], for programs beside the facade."""

    def now_us(self) -> Time:
        """Return the wall-clock time."""

    def monotonic(self) -> float:
        """Return a time that never jumps, for intervals [s]."""

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""


@overload
def as_seconds(of: Time | Duration) -> float: ...
@overload
def as_seconds(of: "npt.NDArray[Any]") -> "npt.NDArray[np.float64]": ...
def as_seconds(of: Any) -> Any:
    """Return a time as Unix time [s], or a duration [s]; of an array, an array of float64."""
    return of / 1e6


def as_duration(seconds: float) -> Duration:
    """Return a length of time, given in [s].

    Raises
    ------
    ValueError
        It is not finite.
    """
    try:
        return Duration(round(seconds * 1e6))
    except (OverflowError, ValueError):
        raise ValueError(f"expected a finite number of seconds, got {seconds}") from None


def as_time(seconds: float) -> Time:
    """Return a time, given as Unix time [s]."""
    return Time(round(seconds * 1e6))


def from_ms(milliseconds: Any) -> Time:
    """Return a time, given as Kafka does: as Unix time [ms]."""
    time: Time = milliseconds * 1000  # without a call, as it is done for each record
    return time


def to_ms(time: Time) -> int:
    """Return a time as Kafka wants it: as Unix time [ms]."""
    return int(time) // 1000


def utc_text(time: Time) -> str:
    """Return a time for programs and options: date and time in UTC, by ISO 8601."""
    return (_EPOCH + timedelta(microseconds=int(time))).isoformat(timespec="milliseconds")


def utc_seconds(time: Time) -> str:
    """Return a time for people, such as 2026-11-28 14:14:10 UTC."""
    return f"{_EPOCH + timedelta(seconds=time // SECOND):%Y-%m-%d %H:%M:%S} UTC"


def wait_until(clock: Clock, condition: Callable[[], bool], within: float, each: float = 0.05) -> bool:
    """Wait for a condition, checked at intervals [s]; return whether it came true in time [s]."""
    deadline = clock.monotonic() + within
    while not condition():
        if clock.monotonic() > deadline:
            return False
        clock.sleep(each)
    return True


def today(clock: Clock) -> Clock:
    """Return the clock of the present, also where another clock shows the time of a replay."""
    present: Clock = getattr(clock, "today", clock)
    return present


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        """Return the wall-clock time as Unix time [s]."""
        return time.time()

    def now_us(self) -> Time:
        """Return the wall-clock time."""
        return Time(time.time_ns() // 1000)

    def monotonic(self) -> float:
        """Return a time that never jumps, for intervals [s]."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""
        time.sleep(seconds)


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        """Return the set time [s]."""
        return self._now

    def now_us(self) -> Time:
        """Return the set time."""
        return as_time(self.now())

    def monotonic(self) -> float:
        """Return the set time [s]; it never runs backwards because `sleep` only adds."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Move the time forward [s] at once."""
        self._now += seconds
