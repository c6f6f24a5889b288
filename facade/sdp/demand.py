"""Rates of arrival and consumption of records, and the number of workers that they need."""

import math
from collections import deque
from typing import NamedTuple

from facade.kernel.clock import MINUTE, SECOND, Time
from facade.sdp.messages import StreamAccount as AccountEntry

_OVER = 10
"""Seconds over which the work of workers is averaged: several transactions, also of late ones."""
_CATCH_UP = 30.0
"""Time within which the workers must consume waiting records, beside new ones [s]."""
_FULL = 0.7
"""Upper bound of the desired load of a worker."""
_MORE, _FEWER = 0.85, 0.6
"""Load above which more workers are wanted, and load of the remaining workers below which fewer are wanted."""
_HOLD = MINUTE
"""Time for which fewer workers must have sufficed before one is taken away."""


class RateMeter:
    """Records per second, by the timestamps of their counts.

    Parameters
    ----------
    over
        Seconds of the average; one transaction is too short.
    """

    __slots__ = ("_over", "_seconds")

    def __init__(self, over: int = 2) -> None:
        self._over = over
        self._seconds: deque[tuple[int, int]] = deque(maxlen=over + 1)

    def add(self, time: Time, records: int) -> None:
        """Count records at a time."""
        assert records >= 0, f"{records} records would be taken out of a rate"
        second = time // SECOND
        if self._seconds and self._seconds[-1][0] >= second:
            at, before = self._seconds[-1]
            self._seconds[-1] = (at, before + records)
        else:
            self._seconds.append((second, records))

    def rate(self, now: Time) -> float:
        """Return the mean rate over the last full seconds [records/s]."""
        current = now // SECOND
        return sum(n for second, n in self._seconds if current - self._over <= second < current) / self._over


class Work:
    """The work on one stream, and the time its workers need for it."""

    __slots__ = ("_came", "_ends", "_spent_us", "_taken")

    def __init__(self) -> None:
        self._came, self._taken, self._spent_us = RateMeter(_OVER), RateMeter(_OVER), RateMeter(_OVER)
        self._ends: dict[int, int] = {}
        """Last known log end of each partition."""

    def note(self, entry: AccountEntry) -> None:
        """Add a worker's entry about one partition."""
        self._taken.add(entry.time, entry.offset_to - entry.offset_from)
        self._spent_us.add(entry.time, int(entry.busy))
        if entry.high_watermark >= 0:
            before = self._ends.get(entry.partition, entry.high_watermark)
            self._ends[entry.partition] = entry.high_watermark
            self._came.add(entry.time, max(entry.high_watermark - before, 0))

    def need(self, now: Time, waiting: int) -> float | None:
        """Return the number of workers that would be fully busy at a time; None: unknown.

        `waiting`: number of waiting records.
        """
        came, taken, spent = self._came.rate(now), self._taken.rate(now), self._spent_us.rate(now) / int(SECOND)
        if taken and spent:
            return spent / taken * (came + waiting / _CATCH_UP)
        return None if came or waiting else 0.0


class Wanted(NamedTuple):
    """Number of workers wanted."""

    workers: int
    fewer_since: Time | None = None
    """Time since which fewer would suffice; None: they would not."""


def decide(before: Wanted, need: float | None, most: int, now: Time) -> Wanted:
    """Return the number of workers wanted: more at once, fewer one by one, and no change for mere fluctuations.

    Parameters
    ----------
    need
        Number of fully busy workers; None: unknown, so that nothing changes.
    most
        Largest number of workers; more would have no partition.
    """
    assert need is None or need >= 0.0, f"the need of {need} workers is no number of workers"
    workers = min(before.workers, most)
    if need is None:
        return Wanted(workers)
    if need > workers * _MORE:
        return Wanted(min(max(math.ceil(need / _FULL), workers), most))
    if workers == 1 or need > (workers - 1) * _FEWER:
        return Wanted(workers)
    since = now if before.fewer_since is None else before.fewer_since
    return Wanted(workers - 1, now) if now - since >= _HOLD else Wanted(workers, since)
