"""Seen sequence numbers, as runs without gaps.

Runs merge exactly in any order: a late record fills its gap, a second one shows as a duplicate, and a restart of the
reader changes nothing.
"""

from collections.abc import Iterable, Sequence

import msgspec

from facade.kernel.numbers import Natural

NumberRange = tuple[int, int]
"""First and last number of a run, both included."""


def union(a: Sequence[NumberRange], b: Sequence[NumberRange]) -> list[NumberRange]:
    """Join two ascending lists of disjoint runs into one, adjacent runs as one."""
    if a and b and b[0][0] == a[-1][1] + 1:  # the usual case: the next numbers in order
        return [*a[:-1], (a[-1][0], b[0][1]), *b[1:]]
    joined: list[NumberRange] = []
    for first, last in sorted((*a, *b)):
        if joined and first <= joined[-1][1] + 1:
            if last > joined[-1][1]:
                joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


def size(runs: Iterable[NumberRange]) -> int:
    """Count the numbers in the runs."""
    return sum(last - first + 1 for first, last in runs)


class SeenNumbers(msgspec.Struct):
    """The sequence numbers that one source has used within one epoch, in bounded memory.

    Gaps are counted between the lowest and the highest number seen, as a reader may start in the middle of an epoch.
    Beyond `limit` runs the lowest gaps are settled: they stay missing, and a later number below that floor counts as a
    duplicate.
    """

    runs: list[tuple[Natural, Natural]] = []
    records: Natural = 0
    """Records counted, duplicates included."""
    lowest: Natural | None = None
    floor: Natural = 0
    """Numbers below this are settled."""
    settled: Natural = 0
    """Distinct numbers seen below the floor."""
    limit: int = 1000

    def add(self, runs: Sequence[NumberRange], records: int) -> None:
        """Count `records` records whose numbers are `runs` (ascending, disjoint)."""
        self.records += records
        if self.floor:
            runs = [(max(first, self.floor), last) for first, last in runs if last >= self.floor]
        if not runs:
            return
        self.runs = union(self.runs, runs)
        if not self.floor:
            self.lowest = self.runs[0][0]
        if len(self.runs) > self.limit:
            keep = self.limit // 2
            self.settled += size(self.runs[:-keep])
            self.floor = self.runs[-keep][0]
            self.runs = self.runs[-keep:]

    @property
    def missing(self) -> int:
        """Numbers between the lowest and the highest one seen that never came."""
        if self.lowest is None:
            return 0
        return self.runs[-1][1] - self.lowest + 1 - self._distinct

    @property
    def duplicates(self) -> int:
        """Records whose number had been seen before."""
        return self.records - self._distinct

    @property
    def _distinct(self) -> int:
        return self.settled + size(self.runs)
