"""How long values take from their device to their record."""

from collections import deque

_OVER = 10
"""[s]"""


class Latency:
    """The longest time of the last seconds; any thread may ask."""

    def __init__(self) -> None:
        self._longest: deque[tuple[int, float]] = deque(maxlen=_OVER)
        """By second [monotonic s]."""

    def note(self, now: float, latency: float) -> None:
        """Take the time of one value [s], now [monotonic s]."""
        second = int(now)
        if self._longest and self._longest[-1][0] == second:
            latency = max(latency, self._longest.pop()[1])
        self._longest.append((second, latency))

    def longest(self, now: float) -> float:
        """Return the longest time [s]; 0: no value came."""
        since = now - _OVER
        return round(max((longest for second, longest in list(self._longest) if second >= since), default=0.0), 4)
