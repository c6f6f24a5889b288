"""The only module that reads the clock, so that all others can be tested without waiting."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Source of the time."""

    def now(self) -> float:
        """Return the wall-clock time as Unix time [s]."""

    def monotonic(self) -> float:
        """Return a time that never jumps, for intervals [s]."""

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""


def utc_text(time_us: int) -> str:
    """Return a time [Unix us] for programs and options: date and time in UTC, by ISO 8601."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="milliseconds")


def utc_seconds(time: float) -> str:
    """Return a time [Unix s] for people, such as 2026-11-28 14:14:10 UTC."""
    return f"{_EPOCH + timedelta(seconds=int(time)):%Y-%m-%d %H:%M:%S} UTC"


def wait_until(clock: Clock, condition: Callable[[], bool], within: float, each: float = 0.05) -> bool:
    """Wait for a condition, checked at intervals [s]; return whether it came true in time [s]."""
    deadline = clock.monotonic() + within
    while not condition():
        if clock.monotonic() > deadline:
            return False
        clock.sleep(each)
    return True


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        """Return the wall-clock time as Unix time [s]."""
        return time.time()

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

    def monotonic(self) -> float:
        """Return the set time [s]; it never runs backwards because `sleep` only adds."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Move the time forward [s] at once."""
        self._now += seconds
