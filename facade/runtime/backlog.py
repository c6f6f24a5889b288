"""For how long records wait that a reader has not taken: told from where the log ended when."""

_EVERY = 1.0
"""Least time between two ends that are remembered [s]."""
_MOST = 3600
"""Ends that are remembered; beyond it every second one is forgotten."""


class Backlog:
    """What waits on one partition, or on several as one.

    Where the log ended at times is remembered as long as the reader is not there yet. The first record that waits came
    after the last time at which the log ended before it.
    """

    __slots__ = ("_ends", "records")

    def __init__(self) -> None:
        self._ends: list[tuple[float, int]] = []
        """Time [Unix s] and end, the oldest first; the reader has passed the first one, unless it never was so far."""
        self.records = 0
        """How many wait."""

    def note(self, at: float, position: int, end: int) -> None:
        """Take how far a reader is on a log, and where that ends, at a time [Unix s]."""
        self.records = max(end - position, 0)
        if self._ends and end < self._ends[-1][1]:
            self._ends.clear()  # another log
        if not self.records:
            self._ends = [(at, end)]
            return
        while len(self._ends) > 1 and self._ends[1][1] <= position:
            del self._ends[0]
        if not self._ends or (end > self._ends[-1][1] and at - self._ends[-1][0] >= _EVERY):
            self._ends.append((at, end))
        if len(self._ends) > _MOST:
            del self._ends[1::2]

    def seconds(self, now: float) -> float:
        """Return for how long the first record that waits has done so at most, at a time [Unix s]; 0: none waits."""
        return max(now - self._ends[0][0], 0.0) if self.records else 0.0
