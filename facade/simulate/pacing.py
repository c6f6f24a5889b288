"""Says when the next records of a stream are due: at a steady rate, or in bursts."""

from typing import Protocol

from facade.clock import Clock

_LONGEST_SLEEP = 0.2
"""So that a stop is noticed soon [s]."""


class Schedule(Protocol):
    """Says when records are due: `Pacer` or `Bursts`."""

    slipped: float
    """By how much the stream was moved on [s]."""

    def take(self) -> int:
        """Wait a little, and say how many are due; 0 now and then while waiting long."""


class Pacer:
    """Gives out the heaps of a steady stream.

    What fell behind is caught up in batches of at most `burst` of data and at no more than about
    twice the rate. More than `patience` behind, the stream is moved on instead.

    Parameters
    ----------
    burst
        Most data in one batch [s].
    tick
        Time between batches when nothing is behind [s].
    largest
        Most heaps of one batch.
    patience
        Longest delay that is caught up [s].
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
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._tick = tick
        self._patience = max(patience, 2 / rate)  # a slow stream is not late while it waits for its next heap
        self._largest = min(max(1, int(rate * burst)), largest)
        self._began = clock.monotonic()
        self._next = self._began
        self._given = 0
        self.slipped = 0.0
        """By how much the stream was moved on [s]."""

    def take(self) -> int:
        """Wait for the next batch and say how many heaps it has.

        Gives 0 now and then while waiting long, so that the caller can look after other things.
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
        # The tiny part more makes up for rounding, which would delay a heap by a tick.
        due = int((now - self._began) * self._rate + 1e-6) - self._given
        count = max(0, min(due, self._largest))
        self._given += count
        self._next = max(now + self._tick, self._began + (self._given + 1) / self._rate)
        return count


class Bursts:
    """Many records at once, and then silence; a burst that takes longer than that is followed by the next at once.

    Parameters
    ----------
    size
        Records of one burst.
    every
        Time between the beginnings of two bursts [s].
    chunk
        Most that are due at once.
    """

    slipped = 0.0

    def __init__(self, size: int, every: float, clock: Clock, *, chunk: int = 500) -> None:
        self._size, self._every, self._clock, self._chunk = size, every, clock, chunk
        self._next = clock.monotonic()
        self._left = 0

    def take(self) -> int:
        """Wait for the next part of a burst and say how many records it has."""
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
