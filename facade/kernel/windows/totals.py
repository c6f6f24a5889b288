"""Totals of many groups since their ledger began, as arrays: counts, sums, and sequence numbers."""

from collections.abc import Mapping

import msgspec
import numpy as np

from facade.kernel.clock import Time, as_seconds, as_time
from facade.kernel.numbers import Int64, Natural, OrNone, Seconds
from facade.kernel.sequences import SeenNumbers
from facade.kernel.windows import MOST_RUNS
from facade.kernel.windows.frame import Array, Frame

__all__ = ["GroupTotals", "Totals"]


_NEVER = 2**63 - 1


class GroupTotals(msgspec.Struct):
    """Totals of one group, as they are in snapshots."""

    count: Natural = 0
    """Records that came in time for their window."""
    late: Natural = 0
    """Records that came too late for it."""
    late_us: Natural = 0
    """Data time of the newest record among the late ones that came last [Unix us]."""
    sums: dict[str, Int64 | float] = {}
    """Sums of the fields with a sum, over all records."""
    epoch: OrNone = -1
    seen: SeenNumbers = msgspec.field(default_factory=SeenNumbers)
    newest_us: Natural = 0
    """Newest data time [Unix us]."""
    heard: Seconds = 0.0
    """Time of the last summary [Unix s]."""
    partitions: list[int] = []
    """Partitions of the windowed topic with its records; none: unknown."""


class Totals:
    """Totals of some groups, by their numbers from 0; all arrays are of shape (groups,)."""

    def __init__(self, groups: int) -> None:
        self.count, self.late, self.late_us, self.newest_us = (np.zeros(groups, dtype=np.int64) for _ in range(4))
        self.epoch = np.full(groups, -1, dtype=np.int64)
        self.heard = np.zeros(groups, dtype=np.int64)
        self.sums: dict[str, Array] = {}
        self.has_sum: dict[str, Array] = {}
        """Whether a group has a sum of a field."""
        self.on: dict[int, Array] = {}
        """Whether a group has records on a partition of the windowed topic."""
        self._limit = max(16, min(1000, MOST_RUNS // groups))
        """Most runs of numbers of one group."""
        self._seen = [SeenNumbers(limit=self._limit) for _ in range(groups)]
        # What the newest run of a group adds to its numbers, so that the usual case needs no object: the next numbers.
        self._records, self._distinct = (np.zeros(groups, dtype=np.int64) for _ in range(2))
        self._lowest, self._last = (np.full(groups, -1, dtype=np.int64) for _ in range(2))

    @property
    def missing(self) -> Array:
        """Return the numbers between the lowest and the highest one seen that never came."""
        return np.where(self._lowest < 0, 0, self._last - self._lowest + 1 - self._distinct)

    @property
    def duplicates(self) -> Array:
        """Return the records whose number had been seen before."""
        return self._records - self._distinct

    def add(self, rows: Frame) -> None:
        """Count the records of some rows."""
        groups = rows.group
        if len(groups) > 1 and not np.all(groups[1:] > groups[:-1]):  # one row of each group at a time, in their order
            order = np.argsort(groups, kind="stable")
            starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
            turn = np.empty(len(groups), dtype=np.int64)
            turn[order] = np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))
            for number in range(int(turn.max()) + 1):
                self._add(rows.take(turn == number))
        else:
            self._add(rows)

    def _add(self, rows: Frame) -> None:
        at, in_time = rows.group, ~rows.late
        # A new scan restarts the sequence, if its time is newer: a single wrong scan number must not end the counting.
        for row in np.flatnonzero((rows.epoch != self.epoch[at]) & (rows.time_max > self.newest_us[at])).tolist():
            self.epoch[at[row]] = rows.epoch[row]
            self._restart(int(at[row]), SeenNumbers(limit=self._limit))
        count = np.where(in_time, rows.count, 0)
        before = self.count.sum() + self.late.sum()
        self.count[at] += count
        self.late[at] += rows.count - count
        # Of several rows of a group, numpy would add only one.
        assert self.count.sum() + self.late.sum() == before + rows.count.sum(), "records are in no total"
        for name, one in rows.fields.items():
            if one.sum is not None:
                self._add_sum(name, at, one.sum)
        self.late_us[at] = np.where(in_time, self.late_us[at], rows.time_max)
        self.newest_us[at] = np.maximum(self.newest_us[at], rows.time_max)
        self._see(rows, rows.epoch == self.epoch[at])

    def _add_sum(self, name: str, at: Array, values: Array) -> None:
        mine = self.sums.get(name)
        if mine is None:
            mine = self.sums[name] = np.zeros(len(self.count), dtype=values.dtype)
            self.has_sum[name] = np.zeros(len(self.count), dtype=np.bool_)
        elif values.dtype.kind == "f" and mine.dtype.kind == "i":
            mine = self.sums[name] = mine.astype(np.float64)
        mine[at] += values
        self.has_sum[name][at] = True

    def _see(self, rows: Frame, wanted: Array) -> None:
        at, runs = rows.group, rows.runs
        self._records[at] += np.where(wanted, rows.count, 0)
        if not len(runs.row):
            return
        number = np.bincount(runs.row, minlength=len(at))
        # The usual case: one run, which goes on where the one before it ended.
        run = np.minimum(np.searchsorted(runs.row, np.arange(len(at))), len(runs.row) - 1)
        first, last = runs.first[run], runs.last[run]
        goes_on = wanted & (number == 1) & (self._last[at] >= 0) & (first == self._last[at] + 1)
        self._distinct[at] += np.where(goes_on, last - first + 1, 0)
        self._last[at] = np.where(goes_on, last, self._last[at])
        for row in np.flatnonzero(wanted & (number > 0) & ~goes_on).tolist():
            group, (low, high) = int(at[row]), np.searchsorted(runs.row, (row, row + 1))
            seen = self.seen(group)
            assert low < high, f"group {group} has no run of numbers"
            seen.add(list(zip(runs.first[low:high].tolist(), runs.last[low:high].tolist(), strict=True)), 0)
            self._restart(group, seen)

    def seen(self, group: int) -> SeenNumbers:
        """Return the sequence numbers of a group."""
        seen = self._seen[group]
        if seen.runs:
            seen.runs[-1] = (seen.runs[-1][0], int(self._last[group]))
        seen.records = int(self._records[group])
        return seen

    def _restart(self, group: int, seen: SeenNumbers) -> None:
        self._seen[group] = seen
        self._records[group], self._distinct[group] = seen.records, seen.records - seen.duplicates
        self._lowest[group] = -1 if seen.lowest is None else seen.lowest
        self._last[group] = seen.runs[-1][1] if seen.runs else -1

    def hear(self, groups: Array, partition: int, heard: Time) -> bool:
        """Note that a summary about groups came at a time; return whether their partition is new."""
        self.heard[groups] = np.maximum(self.heard[groups], heard)
        mine = self.on.get(partition)
        if mine is None:
            mine = self.on[partition] = np.zeros(len(self.count), dtype=np.bool_)
        if mine[groups].all():
            return False
        mine[groups] = True
        return True

    def read_to(self, of_partition: Mapping[int, Time], of_all: Time) -> Array:
        """Return the watermark of each group [Unix us]: the least one of the partitions with its records.

        `of_partition` has those of partitions, and `of_all` is for groups whose partitions are not known.
        """
        found = np.full(len(self.count), _NEVER)
        for partition, time in of_partition.items():
            mine = self.on[partition]
            found[mine] = np.minimum(found[mine], time)
        return np.where(found == _NEVER, of_all, found)

    def of_groups(self) -> list[GroupTotals]:
        """Return the totals of each group."""
        columns = (self.count, self.late, self.late_us, self.epoch, self.newest_us, as_seconds(self.heard))
        sums = {name: (one.tolist(), self.has_sum[name].tolist()) for name, one in self.sums.items()}
        on = {partition: mine.tolist() for partition, mine in self.on.items()}
        return [
            GroupTotals(
                count=count,
                late=late,
                late_us=late_us,
                sums={name: values[group] for name, (values, there) in sums.items() if there[group]},
                epoch=epoch,
                seen=self.seen(group),
                newest_us=newest_us,
                heard=heard,
                partitions=[partition for partition, mine in on.items() if mine[group]],
            )
            for group, (count, late, late_us, epoch, newest_us, heard) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            )
        ]

    def restore(self, group: int, totals: GroupTotals) -> None:
        """Take over the totals of a group from a snapshot."""
        self.count[group], self.late[group], self.epoch[group] = totals.count, totals.late, totals.epoch
        self.late_us[group], self.newest_us[group] = totals.late_us, totals.newest_us
        self.heard[group] = heard = as_time(totals.heard)
        for name, value in totals.sums.items():
            self._add_sum(name, np.array([group]), np.array([value]))
        for partition in totals.partitions:
            self.hear(np.array([group]), partition, heard)
        totals.seen.limit = self._limit  # a snapshot may have the limit of another release
        self._restart(group, totals.seen)

    def forget_partitions(self) -> None:
        """Forget on which partitions groups have records."""
        self.on = {}
