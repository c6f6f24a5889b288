"""From columns of notifications to partials, in numpy: the hot path of a worker.

Pure: no I/O, no clock. What is late or ahead is judged against the time at which the broker
appended the record, so the same log always gives the same answer however it is cut into batches,
and no wrong clock on a node can drag a window along.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from facade.flows.telemetry import sketch
from facade.flows.telemetry.partial import FieldStatistics, Partial
from facade.flows.telemetry.plan import MICRO, FieldPlan, Plan
from facade.flows.telemetry.sequences import Run
from facade.outcome import Rejected

Column = npt.NDArray[Any]

_WINDOW, _LATE = "<window>", "<late>"
"""Names of the derived columns; no field of a message can be called so."""
_DENSE_CELLS = 1 << 20
"""Up to this many (group, bucket) cells counting in a table is faster than sorting."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """What some notifications amount to."""

    partials: dict[int, list[Partial]]
    """By source (node)."""
    used: int
    late: int
    rejected: list[tuple[int, Rejected]]
    """Records that are well-formed and still cannot be used, by position in the columns."""


@dataclass(frozen=True, slots=True)
class AppendTimes:
    """When the broker appended some consecutive records; asked one by one only where it decides."""

    first: int
    last: int
    """Times of the first and the last record [Unix us]."""
    at: Callable[[int], int]
    """Gives the time of one record by its position [Unix us]."""


def reduce(columns: Mapping[str, Column], plan: Plan, appended: AppendTimes, known: npt.NDArray[np.bool_]) -> Reduced:
    """Reduce the columns of notifications to one partial per source, epoch and window.

    Parameters
    ----------
    columns
        The fields of valid messages of one partition in log order, each of shape (n,): those of
        `plan.columns`, integers as int64, others as float64.
    appended
        When the broker appended them, by position in the columns.
    known
        Whether a source of that number is part of the deployment, by number.
    """
    rule = plan.window
    judge = _judges(columns[rule.time], plan, appended)
    rejected = _reject(columns, plan, judge, known)
    keep: Column | slice = slice(None)
    if rejected:
        keep = np.ones(len(columns[rule.time]), dtype=np.bool_)
        keep[[row for row, _ in rejected]] = False
    kept, judge = {name: columns[name][keep] for name in plan.columns}, judge[keep]
    time = kept[rule.time]
    if not len(time):
        return Reduced({}, 0, 0, rejected)
    late = time < judge - round(rule.lateness * MICRO)
    kept[_WINDOW] = np.where(late, 0, time // plan.length_us)
    kept[_LATE] = late
    groups = _group(kept[rule.group], kept[_WINDOW], kept[rule.epoch])
    late_count = int(np.count_nonzero(late))
    return Reduced(_partials(kept, plan, groups), len(time) - late_count, late_count, rejected)


def _judges(time: Column, plan: Plan, appended: AppendTimes) -> Column:
    """Return the append time to judge each record by: its own wherever another could decide differently.

    Looking up the time of every record would cost as much as a tenth of the whole work on it.
    """
    lateness, ahead = round(plan.window.lateness * MICRO), round(plan.window.ahead * MICRO)
    judge = np.full(len(time), appended.last, dtype=np.int64)
    doubtful = (time >= appended.first - lateness) & (time < appended.last - lateness)
    doubtful |= (time > appended.first + ahead) & (time <= appended.last + ahead)
    for row in np.flatnonzero(doubtful).tolist():
        judge[row] = appended.at(row)
    return judge


def _reject(
    columns: Mapping[str, Column], plan: Plan, judge: Column, known: npt.NDArray[np.bool_]
) -> list[tuple[int, Rejected]]:
    rule = plan.window
    source, time = columns[rule.group], columns[rule.time]
    stranger = ~known[np.minimum(source, len(known) - 1)] | (source >= len(known))
    ahead = time > judge + round(rule.ahead * MICRO)
    rejected = []
    for i in np.flatnonzero(stranger).tolist():
        what = f"node {source[i]} is not part of this deployment"
        rejected.append((i, Rejected("unknown-node", f"$.{rule.group}", what)))
    for i in np.flatnonzero(ahead & ~stranger).tolist():
        what = f"{int(time[i] - judge[i]) / MICRO:.3f} s ahead of the broker's clock, at most {rule.ahead} s allowed"
        rejected.append((i, Rejected("time-ahead", f"$.{rule.time}", what)))
    return rejected


@dataclass(frozen=True, slots=True)
class _Groups:
    """Records sorted by group, stably: those of group g are ``order[starts[g]:ends[g]]``."""

    order: Column
    starts: Column
    ends: Column
    code: Column
    """Group number of each sorted record."""


def _group(source: Column, window: Column, epoch: Column) -> _Groups:
    # Late records have window 0, which is far below any other; `unique` keeps the code small.
    code = source.copy()
    for key in (window, epoch):
        low, high = int(key.min()), int(key.max())
        if low == high:
            continue
        if high - low < 64:
            code = code * (high - low + 1) + (key - low)
        else:
            values, inverse = np.unique(key, return_inverse=True)
            code = code * len(values) + inverse
    if int(code.max()) < 1 << 16:
        code = code.astype(np.uint16)  # numpy sorts 16-bit keys by radix, in linear time
    order = np.argsort(code, kind="stable")
    code = code[order]
    starts = np.concatenate(([0], np.flatnonzero(code[1:] != code[:-1]) + 1))
    ends = np.append(starts[1:], len(code))
    return _Groups(order, starts, ends, np.repeat(np.arange(len(starts)), ends - starts))


def _partials(columns: dict[str, Column], plan: Plan, groups: _Groups) -> dict[int, list[Partial]]:
    rule, starts = plan.window, groups.starts
    columns = {name: column[groups.order] for name, column in columns.items()}
    time = columns[rule.time]
    oldest, newest = np.minimum.reduceat(time, starts), np.maximum.reduceat(time, starts)
    # Position of the newest record of each group; the last one where several are equally new.
    at_newest = np.flatnonzero(time == newest[groups.code])
    last = at_newest[np.searchsorted(at_newest, groups.ends) - 1]
    runs = _runs(columns[rule.sequence], groups)
    statistics = {f.name: _statistics(columns[f.name], f, groups, last, plan) for f in plan.fields}
    partials: dict[int, list[Partial]] = {}
    for g, start in enumerate(starts.tolist()):
        partials.setdefault(int(columns[rule.group][start]), []).append(
            Partial(
                epoch=int(columns[rule.epoch][start]),
                window=int(columns[_WINDOW][start]) * plan.length_us,
                late=bool(columns[_LATE][start]),
                count=int(groups.ends[g]) - start,
                time_min=int(oldest[g]),
                time_max=int(newest[g]),
                runs=runs[g],
                fields={name: values[g] for name, values in statistics.items()},
            )
        )
    return partials


def _runs(sequence: Column, groups: _Groups) -> list[list[Run]]:
    """Return the ascending, disjoint runs of sequence numbers of each group."""
    inside = groups.code[1:] == groups.code[:-1]
    step = np.diff(sequence)
    if np.any((step <= 0) & inside):  # disorder or duplicates: rare, so sorted only then
        sequence = sequence[np.lexsort((sequence, groups.code))]
        step = np.diff(sequence)
    begins = np.concatenate(([0], np.flatnonzero((step > 1) | ~inside) + 1))
    ends = np.append(begins[1:], len(sequence)) - 1
    runs: list[list[Run]] = [[] for _ in groups.starts]
    for g, first, last in zip(
        groups.code[begins].tolist(), sequence[begins].tolist(), sequence[ends].tolist(), strict=True
    ):
        runs[g].append((first, last))
    return runs


def _statistics(values: Column, field: FieldPlan, groups: _Groups, last: Column, plan: Plan) -> list[FieldStatistics]:
    starts = groups.starts
    result = [FieldStatistics() for _ in starts]
    found: dict[str, list[Any]] = {}
    if "sum" in field.statistics:
        sums = np.add.reduceat(values, starts)
        found["sum"] = sums.tolist()
        if "m2" in field.statistics:
            means = sums / (groups.ends - starts)
            distance = values - means[groups.code]
            found["m2"] = np.add.reduceat(distance * distance, starts).tolist()
    if "min" in field.statistics:
        found["min"] = np.minimum.reduceat(values, starts).tolist()
    if "max" in field.statistics:
        found["max"] = np.maximum.reduceat(values, starts).tolist()
    if "last" in field.statistics:
        found["last"] = values[last].tolist()
    if "sketch" in field.statistics:
        found["sketch"] = _sketches(values, groups, plan.window.quantile_error)
    for name, column in found.items():
        for entry, value in zip(result, column, strict=True):
            setattr(entry, name, value)
    return result


def _sketches(values: Column, groups: _Groups, error: float) -> list[dict[int, int]]:
    bucket = sketch.buckets(values, error)
    width = int(bucket.max()) + 1
    cells = groups.code * width + bucket
    if len(groups.starts) * width <= _DENSE_CELLS:
        table = np.bincount(cells)
        filled = np.flatnonzero(table)
        counts = table[filled]
    else:
        filled, counts = np.unique(cells, return_counts=True)
    sketches: list[dict[int, int]] = [{} for _ in groups.starts]
    for cell, count in zip(filled.tolist(), counts.tolist(), strict=True):
        g, b = divmod(cell, width)
        sketches[g][b] = count
    return sketches
