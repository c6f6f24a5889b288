"""Columnar batches of a windowed topic: which are to be reduced together, and when each was appended."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from facade.bus.port import PartitionBatch
from facade.codec.batches import BatchReader, Joined, ReadBatch, Refused, is_batch
from facade.flows.telemetry.cells import Cells, Column
from facade.flows.telemetry.groups import UNKNOWN, Groups
from facade.flows.telemetry.plan import MICRO, Plan
from facade.flows.telemetry.reduce import AppendTimes

_TOGETHER = 32768
"""Rows that are reduced at once: many enough to hide the cost of a call, few enough for the processor's cache."""


class Batches:
    """Reads the columnar batches of one windowed topic."""

    def __init__(self, plan: Plan, schema: Mapping[str, Any]) -> None:
        rule = plan.window
        varying = [name for name in (rule.time, rule.sequence) if name is not None]
        self._reader = BatchReader(schema, varying)
        self._order = [name for name in (rule.group, rule.epoch) if name is not None]

    def read(
        self, run: PartitionBatch, values: Sequence[bytes | None], places: Iterable[int]
    ) -> dict[int, ReadBatch | Refused]:
        """Read those of some records that are columnar batches, by place in the run."""
        chosen = ((at, value) for at in places if is_batch(value := values[at]))
        return {at: self._reader.read(value or b"", run.record(at).headers) for at, value in chosen}

    def join(self, run: PartitionBatch, found: Mapping[int, ReadBatch | Refused]) -> Iterator["Together"]:
        """Yield those that could be read, some together."""
        chosen = [(at, batch) for at, batch in found.items() if isinstance(batch, ReadBatch)]
        # Batches of one node and scan behind each other need no sort of their rows, and make few partials.
        is_sorted = all(name in batch.header.constants for _, batch in chosen for name in self._order)
        if is_sorted:
            chosen.sort(key=lambda one: [one[1].header.constants[name] for name in self._order])
        begin = rows = 0
        for number, (_, batch) in enumerate(chosen, 1):
            rows += batch.rows
            if rows >= _TOGETHER or number == len(chosen):
                yield Together(self._reader, run, chosen[begin:number], is_sorted=is_sorted)
                begin, rows = number, 0


class Together(Joined):
    """Batches of one partition to be reduced at once.

    Parameters
    ----------
    chosen
        Each with its place in the run.
    is_sorted
        Whether each batch is of one group and epoch, and they are sorted by these.
    """

    def __init__(
        self, reader: BatchReader, run: PartitionBatch, chosen: Sequence[tuple[int, ReadBatch]], *, is_sorted: bool
    ) -> None:
        super().__init__(reader, [batch for _, batch in chosen])
        self._is_sorted = is_sorted
        self.index = [at for at, _ in chosen]
        """Place in the run of each batch."""
        times, starts = [run.append_time(at) for at in self.index], self.starts
        at = lambda row: times[int(np.searchsorted(starts, row, side="right")) - 1]  # noqa: E731
        self.appended = AppendTimes(min(times), max(times), at)

    def by_batch(self, rows: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield the batches that have some of the rows, with the numbers that these have there."""
        ends = np.searchsorted(rows, self.starts)
        for at, (low, high) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
            if low < high:
                yield at, [row - int(self.starts[at]) for row in rows[low:high]]

    def cells(self, plan: Plan, groups: Groups) -> Cells | None:
        """Return what belongs together, where it does as it stands: nothing is wrong, late or out of order.

        Then nobody has to look at the group, the epoch and the window of each row.
        """
        if self.rejected or not self._is_sorted:
            return None
        rule, time, starts = plan.window, self[plan.window.time], self.starts[:-1]
        oldest, newest = np.minimum.reduceat(time, starts), np.maximum.reduceat(time, starts)
        lateness, ahead = round(rule.lateness * MICRO), round(rule.ahead * MICRO)
        if oldest.min() < self.appended.last - lateness or newest.max() > self.appended.first + ahead:
            return None
        codes = groups.codes({name: self._constants(name) for name in (rule.group,) if name}, len(starts))
        if codes.min() <= UNKNOWN:
            return None
        epochs = self._constants(rule.epoch) if rule.epoch else np.zeros(len(starts), np.int64)
        begins, batch, windows = _pieces(time, self.starts.tolist(), oldest, newest, plan.length_us)
        if begins is None:
            return None
        keys = np.array([codes[batch], epochs[batch], windows])
        if np.any((np.diff(keys[2]) < 0) & ~np.diff(keys[:2]).any(axis=0)):
            return None  # a window that goes on behind the next one
        new = np.concatenate(([True], np.diff(keys).any(axis=0)))
        code, epoch, window = keys[:, new]
        first = np.array(begins)[new]
        ends = np.append(first[1:], len(time))
        return Cells(
            first, ends, group=code, epoch=epoch, window=window * plan.length_us, late=np.zeros(len(first), np.bool_)
        )

    def _constants(self, name: str) -> Column:
        return np.array([batch.header.constants[name] for batch in self.batches], np.int64)


def _pieces(
    time: Column, starts: Sequence[int], oldest: Column, newest: Column, length_us: int
) -> tuple[list[int] | None, list[int], list[int]]:
    """Cut batches where a window ends: where each piece begins, its batch and window; None: times go back over one."""
    begins, batches, windows = list[int](), list[int](), list[int]()
    limits = zip(oldest.tolist(), newest.tolist(), strict=True)
    for number, (low, high) in enumerate(limits):
        start, end = starts[number], starts[number + 1]
        found = [start]
        if low // length_us != high // length_us:
            window = time[start:end] // length_us
            steps = np.diff(window)
            if steps.min() < 0:
                return None, [], []
            found += (np.flatnonzero(steps) + start + 1).tolist()
        begins += found
        batches += [number] * len(found)
        windows += [int(time[at]) // length_us for at in found]
    return begins, batches, windows
