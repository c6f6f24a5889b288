"""Says when the next heaps are due, so that a stream keeps its rate without bursts."""

from facade.clock import Clock

_TICK = 0.01
"""Time between batches when nothing is behind [s]."""
_LONGEST_SLEEP = 0.2
"""So that a stop is noticed soon [s]."""
_LARGEST_BATCH = 10_000


class Pacer:
    """Gives out the heaps of a steady stream.

    What fell behind is caught up in batches of at most `burst` of data and at no more than about
    twice the rate. More than `patience` behind, the stream is moved on instead.

    Parameters
    ----------
    burst
        Most data in one batch [s].
    patience
        Longest delay that is caught up [s].
    """

    def __init__(self, rate: float, clock: Clock, *, burst: float = 0.02, patience: float = 1.0) -> None:
        self._rate = rate
        self._clock = clock
        self._patience = max(patience, 2 / rate)  # a slow stream is not late while it waits for its next heap
        self._largest = min(max(1, int(rate * burst)), _LARGEST_BATCH)
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
        self._next = max(now + _TICK, self._began + (self._given + 1) / self._rate)
        return count
