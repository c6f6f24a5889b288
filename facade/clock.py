"""The only module that reads the clock, so that every other one can be tested without waiting."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float:
        """Return the wall-clock time as Unix time [s]."""

    def monotonic(self) -> float:
        """Return a time that never jumps, for intervals [s]."""

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""


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
