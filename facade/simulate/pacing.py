"""Schedules of the records of a stream: at a steady rate, or in bursts."""

from typing import Protocol

from facade.kernel.clock import Clock, as_duration, as_seconds

_LONGEST_SLEEP = 0.2
"""Longest single sleep, so that a stop is noticed soon [s]."""


class Schedule(Protocol):
    """Decides when records are due: `Pacer` or `Bursts`."""

    slipped: float
    """Time by which the stream was moved on [s]."""

    def take(self) -> int:
        """Wait a little, and return the number of due records; during a long wait sometimes 0."""


class Pacer:
    """The schedule of a steady stream.

    A delay is caught up in batches of at most `burst` of data and at no more than about twice the rate. After a delay
    of more than `patience`, the stream is moved on instead.

    Parameters
    ----------
    burst
        Most data in one batch [s].
    tick
        Time between batches without a delay [s].
    largest
        Most heaps of one batch.
    patience
        Longest delay that is caught up [s].
    window
        Length of the windows whose ends do not wait for the next tick, by the wall clock [s]; None: there are none.
    """

    def __init__(
        self,
        rate: float,
        clock: Clock,
        *,
        burst: float = 0.02,
        tick: float = 0.01,
        largest: int = 10_000,
        patience: float = 1.0,
        window: float | None = None,
    ) -> None:
        self._rate = rate
        self._window = None if window is None else as_duration(window)
        self._clock = clock
        self._tick = tick
        self._patience = max(patience, 2 / rate)  # a slow stream is not late while it waits for its next heap
        self._largest = min(max(1, int(rate * burst)), largest)
        self._began = clock.monotonic()
        self._next = self._began
        self._given = 0
        self.slipped = 0.0
        """Time by which the stream was moved on [s]."""

    def take(self) -> int:
        """Wait for the next batch and return its number of heaps.

        During a long wait it returns 0 at intervals, so that the caller can do other work.
        """
        early = self._next - self._clock.monotonic()
        if early > 0:
            self._clock.sleep(min(early, _LONGEST_SLEEP))
            if early > _LONGEST_SLEEP:
                return 0
        now = self._clock.monotonic()
        behind = (now - self._began) - self._given / self._rate
        if behind > self._patience:
            self._began += behind - self._patience
            self.slipped += behind - self._patience
        # The small addition compensates rounding, which would delay a heap by a tick.
        due = int((now - self._began) * self._rate + 1e-6) - self._given
        count = max(0, min(due, self._largest))
        self._given += count
        self._next = max(now + self._tick, self._began + (self._given + 1) / self._rate)
        if self._window is not None:
            self._next = min(self._next, now + as_seconds(self._window - self._clock.now_us() % self._window))
        return count


class Bursts:
    """Many records at once, and then a pause, which is left out if the burst takes longer than its period.

    Parameters
    ----------
    size
        Records of one burst.
    every
        Time between the beginnings of two bursts [s].
    chunk
        Most records that are due at once.
    """

    slipped = 0.0

    def __init__(self, size: int, every: float, clock: Clock, *, chunk: int = 500) -> None:
        self._size, self._every, self._clock, self._chunk = size, every, clock, chunk
        self._next = clock.monotonic()
        self._left = 0

    def take(self) -> int:
        """Wait for the next part of a burst and return its number of records."""
        now = self._clock.monotonic()
        if not self._left and now >= self._next:
            self._left = self._size
            self._next = max(self._next + self._every, now)
        if not self._left:
            self._clock.sleep(min(self._next - now, _LONGEST_SLEEP))
            return 0
        count = min(self._left, self._chunk)
        self._left -= count
        return count
