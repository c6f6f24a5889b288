"""How fast records come and are taken, and how many workers that needs."""

import math
from collections import deque
from typing import NamedTuple

from facade.messages import StreamAccount as AccountEntry

_MICRO = 1_000_000
_OVER = 10
"""Seconds over which the work of workers is judged: several transactions, also of those that are behind."""
_CATCH_UP = 30.0
"""Within so long what waits is to be taken, beside what comes [s]."""
_FULL = 0.7
"""How busy workers are meant to be at most."""
_MORE, _FEWER = 0.85, 0.6
"""How busy they are when more are wanted, and how busy those that are left would be when fewer are."""
_HOLD = 60.0
"""Fewer are wanted once they would have been enough for so long [s]."""


class RateMeter:
    """Records per second, by the time stamps of their counts.

    Parameters
    ----------
    over
        Seconds over which a rate is taken; one transaction is too short.
    """

    __slots__ = ("_over", "_seconds")

    def __init__(self, over: int = 2) -> None:
        self._over = over
        self._seconds: deque[tuple[int, int]] = deque(maxlen=over + 1)

    def add(self, time_us: int, records: int) -> None:
        """Count records at a time [Unix us]."""
        second = time_us // _MICRO
        if self._seconds and self._seconds[-1][0] >= second:
            at, before = self._seconds[-1]
            self._seconds[-1] = (at, before + records)
        else:
            self._seconds.append((second, records))

    def rate(self, now: float) -> float:
        """Return the mean rate over the last full seconds [records/s]."""
        current = int(now)
        return sum(n for second, n in self._seconds if current - self._over <= second < current) / self._over


class Work:
    """What there is to do about one stream, and for how long its workers are busy with it."""

    __slots__ = ("_came", "_ends", "_spent_us", "_taken")

    def __init__(self) -> None:
        self._came, self._taken, self._spent_us = RateMeter(_OVER), RateMeter(_OVER), RateMeter(_OVER)
        self._ends: dict[int, int] = {}
        """Where the log of each partition ended last."""

    def note(self, entry: AccountEntry) -> None:
        """Take what a worker says of one partition."""
        self._taken.add(entry.time, entry.offset_to - entry.offset_from)
        self._spent_us.add(entry.time, entry.busy)
        if entry.high_watermark >= 0:
            before = self._ends.get(entry.partition, entry.high_watermark)
            self._ends[entry.partition] = entry.high_watermark
            self._came.add(entry.time, max(entry.high_watermark - before, 0))

    def need(self, now: float, waiting: int) -> float | None:
        """Return how many workers would be busy all the time at a time [Unix s]; None: not known.

        `waiting`: the number of records that wait.
        """
        came, taken, spent = self._came.rate(now), self._taken.rate(now), self._spent_us.rate(now) / _MICRO
        if taken and spent:
            return spent / taken * (came + waiting / _CATCH_UP)
        return None if came or waiting else 0.0


class Wanted(NamedTuple):
    """How many workers are wanted."""

    workers: int
    fewer_since: float | None = None
    """Since when fewer would be enough [Unix s]; None: they would not."""


def decide(before: Wanted, need: float | None, most: int, now: float) -> Wanted:
    """Return how many workers are wanted: more at once, fewer one by one, and neither for a need that only wavers.

    Parameters
    ----------
    need
        How many would be busy all the time; None: not known, so that nothing changes.
    most
        Largest number of workers; more would have no partition.
    """
    workers = min(before.workers, most)
    if need is None:
        return Wanted(workers)
    if need > workers * _MORE:
        return Wanted(min(max(math.ceil(need / _FULL), workers), most))
    if workers == 1 or need > (workers - 1) * _FEWER:
        return Wanted(workers)
    since = now if before.fewer_since is None else before.fewer_since
    return Wanted(workers - 1, now) if now - since >= _HOLD else Wanted(workers, since)
