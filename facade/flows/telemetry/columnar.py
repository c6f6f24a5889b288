"""Columnar batches of a windowed topic: which are to be reduced together, and when each was appended."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from facade.bus.port import Run
from facade.codec.batches import BatchReader, Joined, ReadBatch, Refused, is_batch
from facade.flows.telemetry.plan import Plan
from facade.flows.telemetry.reduce import AppendTimes

_TOGETHER = 65_536
"""Rows that are reduced at once: many enough to hide the cost of a call, few enough for the processor's cache."""


class Batches:
    """Reads the columnar batches of one windowed topic."""

    def __init__(self, plan: Plan, schema: Mapping[str, Any]) -> None:
        rule = plan.window
        varying = [name for name in (rule.time, rule.sequence) if name is not None]
        self._reader = BatchReader(schema, varying)
        self._names = frozenset(name for name in (*plan.columns, rule.group) if name is not None)
        self._order = [name for name in (rule.group, rule.epoch) if name is not None]

    def read(self, run: Run, values: Sequence[bytes | None], places: Iterable[int]) -> dict[int, ReadBatch | Refused]:
        """Read those of some records that are columnar batches, by place in the run."""
        chosen = ((at, value) for at in places if is_batch(value := values[at]))
        return {at: self._reader.read(value or b"", run.record(at).headers) for at, value in chosen}

    def join(self, run: Run, found: Mapping[int, ReadBatch | Refused]) -> Iterator["Together"]:
        """Yield those that could be read, some together."""
        chosen: list[tuple[int, ReadBatch]] = []
        rows = 0
        for at, batch in found.items():
            if isinstance(batch, ReadBatch):
                chosen.append((at, batch))
                rows += batch.rows
            if rows >= _TOGETHER:
                yield self._together(run, chosen)
                chosen, rows = [], 0
        if chosen:
            yield self._together(run, chosen)

    def _together(self, run: Run, chosen: list[tuple[int, ReadBatch]]) -> "Together":
        # Batches of one node and scan behind each other need no sort of their rows.
        if all(name in batch.header.constants for _, batch in chosen for name in self._order):
            chosen = sorted(chosen, key=lambda one: [one[1].header.constants[name] for name in self._order])
        return Together(self._reader, run, chosen, self._names)


class Together(Joined):
    """Batches of one partition to be reduced at once.

    Parameters
    ----------
    chosen
        Each with its place in the run.
    """

    def __init__(
        self, reader: BatchReader, run: Run, chosen: Sequence[tuple[int, ReadBatch]], names: frozenset[str]
    ) -> None:
        super().__init__(reader, [batch for _, batch in chosen], names)
        self.index = [at for at, _ in chosen]
        """Place in the run of each batch."""
        times = [run.append_time(at) for at in self.index]
        self.appended = AppendTimes(min(times), max(times), lambda row: times[self.place(row)[0]])

    def by_batch(self, rows: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield the batches that have some of the rows, with the numbers that these have there."""
        ends = np.searchsorted(rows, self.starts)
        for at, (low, high) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
            if low < high:
                yield at, [row - int(self.starts[at]) for row in rows[low:high]]
