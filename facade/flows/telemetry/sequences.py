"""Which sequence numbers were seen, as runs without holes.

Unlike a pair of counters, runs merge exactly in any order: a record that comes late fills its
hole, one that comes twice shows as a duplicate, and a restart of the reader changes nothing.
"""

from collections.abc import Iterable, Sequence

import msgspec

HeapRange = tuple[int, int]
"""First and last number of a run, both included."""


def union(a: Sequence[HeapRange], b: Sequence[HeapRange]) -> list[HeapRange]:
    """Join two ascending lists of disjoint runs into one, in which adjacent runs have grown together."""
    if a and b and b[0][0] == a[-1][1] + 1:  # the usual case: the next numbers in order
        return [*a[:-1], (a[-1][0], b[0][1]), *b[1:]]
    joined: list[HeapRange] = []
    for first, last in sorted((*a, *b)):
        if joined and first <= joined[-1][1] + 1:
            if last > joined[-1][1]:
                joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


def size(runs: Iterable[HeapRange]) -> int:
    """Count the numbers in the runs."""
    return sum(last - first + 1 for first, last in runs)


class SeenNumbers(msgspec.Struct):
    """The sequence numbers that one source has used within one epoch, in bounded memory.

    Holes are counted between the lowest and the highest number seen, so that a reader that starts
    in the middle of an epoch does not report what it never could have seen. When more than `limit`
    runs are needed the lowest holes are settled: they stay counted as missing, and a number that
    arrives below that floor afterwards counts as a duplicate.
    """

    runs: list[HeapRange] = []
    records: int = 0
    """Records counted, duplicates included."""
    lowest: int | None = None
    floor: int = 0
    """Numbers below this are settled."""
    settled: int = 0
    """Distinct numbers seen below the floor."""
    limit: int = 1000

    def add(self, runs: Sequence[HeapRange], records: int) -> None:
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
            self._settle()

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

    def _settle(self) -> None:
        keep = self.limit // 2
        self.settled += size(self.runs[:-keep])
        self.floor = self.runs[-keep][0]
        self.runs = self.runs[-keep:]
