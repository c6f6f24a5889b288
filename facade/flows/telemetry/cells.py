"""Partials of records that are sorted into cells: those of one group, epoch and window."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from facade.codec.columns import Column as Column
from facade.flows.telemetry import sketch
from facade.flows.telemetry.groups import Groups
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import FieldPlan, Plan
from facade.flows.telemetry.sequences import HeapRange
from facade.messages import FieldStatistics, Partial

_DENSE_SLOTS = 1 << 20
"""Up to this many (cell, bucket) slots counting in a table is faster than sorting."""
_LARGE_CELL = 500
"""Where cells have more records than this on average, each is summed up alone, at the speed of one long array."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Which records belong together: those of cell c are [starts[c], ends[c])."""

    starts: Column
    ends: Column
    group: Column
    """Number of its group, see `facade.flows.telemetry.groups`."""
    epoch: Column
    window: Column
    """Its beginning; 0 where its records are late [Unix us]."""
    late: Column

    @property
    def sizes(self) -> Column:
        """Return the number of records in each."""
        return self.ends - self.starts

    @property
    def are_large(self) -> bool:
        """Return whether each is worth calls of its own."""
        return int(self.ends[-1]) >= _LARGE_CELL * len(self.starts)

    def spread(self, values: Column) -> Column:
        """Return for each record the value of its cell."""
        return np.repeat(values, self.sizes)

    def parts(self, values: Column) -> list[Column]:
        """Return the values of each cell."""
        return [values[a:b] for a, b in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]


def partials(columns: Mapping[str, Column], plan: Plan, cells: Cells, groups: Groups) -> dict[Group, list[Partial]]:
    """Return the partial of each cell, by group; `columns`: those of `plan.columns`, in the order of the cells."""
    rule = plan.window
    time = columns[rule.time]
    oldest, newest = np.minimum.reduceat(time, cells.starts), np.maximum.reduceat(time, cells.starts)
    last = _last(time, newest, cells)
    runs = _runs(columns[rule.sequence], cells) if rule.sequence is not None else [[] for _ in cells.starts]
    statistics = {f.name: _statistics(columns[f.name], f, cells, last, rule.quantile_error) for f in plan.fields}
    found: dict[Group, list[Partial]] = {}
    for c, count in enumerate(cells.sizes.tolist()):
        partial = Partial(
            epoch=int(cells.epoch[c]),
            window=int(cells.window[c]),
            late=bool(cells.late[c]),
            count=count,
            time_min=int(oldest[c]),
            time_max=int(newest[c]),
            runs=runs[c],
            fields={name: values[c] for name, values in statistics.items()},
        )
        found.setdefault(groups.group(int(cells.group[c])), []).append(partial)
    return found


def _last(time: Column, newest: Column, cells: Cells) -> Column:
    """Return the place of the newest record of each cell; the last one where several are equally new."""
    if np.array_equal(time[cells.ends - 1], newest):
        return cells.ends - 1
    at_newest = np.flatnonzero(time == cells.spread(newest))
    return at_newest[np.searchsorted(at_newest, cells.ends) - 1]


def _runs(sequence: Column, cells: Cells) -> list[list[HeapRange]]:
    """Return the ascending, disjoint runs of sequence numbers of each cell."""
    step = np.diff(sequence)
    step[cells.starts[1:] - 1] = 2  # between two cells nothing goes on
    breaks = np.flatnonzero(step != 1)
    if np.any(step[breaks] <= 0):  # disorder or duplicates: rare, so sorted only then
        sequence = sequence[np.lexsort((sequence, cells.spread(np.arange(len(cells.starts)))))]
        step = np.diff(sequence)
        step[cells.starts[1:] - 1] = 2
        breaks = np.flatnonzero(step > 1)
    begins = np.concatenate(([0], breaks + 1))
    ends = np.append(begins[1:], len(sequence)) - 1
    runs: list[list[HeapRange]] = [[] for _ in cells.starts]
    found = np.searchsorted(cells.starts, begins, side="right") - 1
    for c, first, last in zip(found.tolist(), sequence[begins].tolist(), sequence[ends].tolist(), strict=True):
        runs[c].append((first, last))
    return runs


def _statistics(
    values: Column, field: FieldPlan, cells: Cells, last: Column, error: float | None
) -> list[FieldStatistics]:
    wanted = field.statistics
    found = (_each if cells.are_large else _at_once)(values, wanted, cells)
    if "last" in wanted:
        found["last"] = values[last].tolist()
    if "sketch" in wanted and error is not None:
        found["sketch"] = _sketches(values, cells, error)
    result = [FieldStatistics() for _ in cells.starts]
    for name, column in found.items():
        for entry, value in zip(result, column, strict=True):
            setattr(entry, name, value)
    return result


def _at_once(values: Column, wanted: Collection[str], cells: Cells) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    if "sum" in wanted:
        sums = np.add.reduceat(values, cells.starts)
        found["sum"] = sums.tolist()
        if "m2" in wanted:
            distance = values - cells.spread(sums / cells.sizes)
            distance *= distance
            found["m2"] = np.add.reduceat(distance, cells.starts).tolist()
    if "min" in wanted:
        found["min"] = np.minimum.reduceat(values, cells.starts).tolist()
    if "max" in wanted:
        found["max"] = np.maximum.reduceat(values, cells.starts).tolist()
    return found


def _each(values: Column, wanted: Collection[str], cells: Cells) -> dict[str, list[Any]]:
    parts = cells.parts(values)
    found: dict[str, list[Any]] = {}
    if "sum" in wanted:
        found["sum"] = [part.sum().item() for part in parts]
        if "m2" in wanted:
            found["m2"] = [_m2(part, total / len(part)) for part, total in zip(parts, found["sum"], strict=True)]
    if "min" in wanted:
        found["min"] = [part.min().item() for part in parts]
    if "max" in wanted:
        found["max"] = [part.max().item() for part in parts]
    return found


def _m2(values: Column, mean: float) -> float:
    distance = values - mean
    distance *= distance  # and no `dot`, which starts threads
    return float(distance.sum())


def _sketches(values: Column, cells: Cells, error: float) -> list[dict[int, int]]:
    bucket = sketch.buckets(values, error)
    if cells.are_large:
        return [_counts(part) for part in cells.parts(bucket)]
    width = int(bucket.max()) + 1
    slots = cells.spread(np.arange(len(cells.starts))) * width + bucket
    if len(cells.starts) * width <= _DENSE_SLOTS:
        table = np.bincount(slots)
        filled = np.flatnonzero(table)
        counts = table[filled]
    else:
        filled, counts = np.unique(slots, return_counts=True)
    sketches: list[dict[int, int]] = [{} for _ in cells.starts]
    for slot, count in zip(filled.tolist(), counts.tolist(), strict=True):
        c, b = divmod(slot, width)
        sketches[c][b] = count
    return sketches


def _counts(buckets: Column) -> dict[int, int]:
    table = np.bincount(buckets)
    filled = np.flatnonzero(table)
    return dict(zip(filled.tolist(), table[filled].tolist(), strict=True))
