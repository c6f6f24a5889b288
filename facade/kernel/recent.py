"""What a program remembers of the recent past: the newest entries of a mapping, and the growth of a count."""

from collections import OrderedDict, deque
from typing import TypeVar

from facade.kernel.clock import Duration, Time, as_seconds

Key = TypeVar("Key")
Entry = TypeVar("Entry")


class Bounded(OrderedDict[Key, Entry]):
    """The newest entries, the oldest one first: an entry that is set becomes the newest. Several threads may use it.

    Parameters
    ----------
    most
        Most entries; beyond it the oldest one is dropped.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Key, entry: Entry) -> None:
        """Set the newest entry."""
        self.pop(key, None)
        super().__setitem__(key, entry)
        if len(self) > self.most:
            self.popitem(last=False)


class MeanRate:
    """The mean growth of a count over the last seconds.

    Parameters
    ----------
    over
        Period of the mean.
    """

    def __init__(self, over: Duration) -> None:
        self._over = over
        self._counts: deque[tuple[Time, int]] = deque()
        """The count at each time, the oldest first."""

    def note(self, count: int, now: Time) -> float:
        """Note the count at a time, and return its rate [1/s]; 0: it was not known before."""
        if self._counts and now < self._counts[-1][0]:
            self._counts.clear()  # the clock was set back
        if len(self._counts) > 1 and now == self._counts[-1][0]:
            self._counts.pop()  # the clock of a replay stands still
        self._counts.append((now, count))
        while now - self._counts[0][0] > self._over:
            self._counts.popleft()
        since, before = self._counts[0]
        return (count - before) / as_seconds(now - since) if now > since else 0.0
