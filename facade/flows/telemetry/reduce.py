"""From columns of records to partials, in numpy: the hot path of a worker.

Pure: no I/O, no clock. What is late or ahead is judged against the time at which the broker
appended the record, so the same log always gives the same answer however it is cut into batches,
and no wrong clock of a sender can drag a window along.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from facade.flows.telemetry import sketch
from facade.flows.telemetry.groups import UNKNOWN, Groups
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import MICRO, FieldPlan, Plan
from facade.flows.telemetry.sequences import Run
from facade.messages import FieldStatistics, Partial
from facade.outcome import Rejected
from facade.printable import excerpt

Column = npt.NDArray[Any]

_GROUP, _WINDOW, _LATE = "<group>", "<window>", "<late>"
"""Names of the derived columns; no field of a message can be called so."""
_DENSE_SLOTS = 1 << 20
"""Up to this many (cell, bucket) slots counting in a table is faster than sorting."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """What some records amount to."""

    partials: dict[Group, list[Partial]]
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


def reduce(columns: Mapping[str, Column], plan: Plan, appended: AppendTimes, groups: Groups) -> Reduced:
    """Reduce the columns of records to one partial per group, epoch and window.

    Parameters
    ----------
    columns
        The fields of valid messages of one partition in log order, each of shape (n,): those of
        `plan.columns` and the group, integers as int64, others as float64, names as objects.
    appended
        When the broker appended them, by position in the columns.
    groups
        The groups that are part of the deployment.
    """
    rule = plan.window
    judge = _judges(columns[rule.time], plan, appended)
    codes = groups.codes(columns, len(judge))
    rejected = _reject(columns, plan, judge, codes)
    keep: Column | slice = slice(None)
    if rejected:
        keep = np.ones(len(columns[rule.time]), dtype=np.bool_)
        keep[[row for row, _ in rejected]] = False
    kept, judge = {name: columns[name][keep] for name in plan.columns}, judge[keep]
    time = kept[rule.time]
    if not len(time):
        return Reduced({}, 0, 0, rejected)
    late = time < judge - round(rule.lateness * MICRO)
    kept[_GROUP] = codes[keep]
    kept[_WINDOW] = np.where(late, 0, time // plan.length_us)
    kept[_LATE] = late
    cells = _sort(kept[_GROUP], [kept[name] for name in (_WINDOW, rule.epoch) if name is not None])
    late_count = int(np.count_nonzero(late))
    partials: dict[Group, list[Partial]] = {}
    for code, partial in _partials(kept, plan, cells):
        partials.setdefault(groups.group(code), []).append(partial)
    return Reduced(partials, len(time) - late_count, late_count, rejected)


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


def _reject(columns: Mapping[str, Column], plan: Plan, judge: Column, codes: Column) -> list[tuple[int, Rejected]]:
    rule, noun = plan.window, plan.noun
    time, stranger = columns[rule.time], codes == UNKNOWN
    ahead = time > judge + round(rule.ahead * MICRO)
    rejected = []
    for i in np.flatnonzero(stranger).tolist():
        what = f"{noun} {columns[rule.group or ''][i]} is not part of this deployment"
        rejected.append((i, Rejected(f"unknown-{noun}", f"$.{rule.group}", excerpt(what))))
    for i in np.flatnonzero(ahead & ~stranger).tolist():
        what = f"{int(time[i] - judge[i]) / MICRO:.3f} s ahead of the broker's clock, at most {rule.ahead} s allowed"
        rejected.append((i, Rejected("time-ahead", f"$.{rule.time}", what)))
    return rejected


@dataclass(frozen=True, slots=True)
class _Cells:
    """Records sorted by group, window and epoch, stably: those of cell c are ``order[starts[c]:ends[c]]``."""

    order: Column
    starts: Column
    ends: Column
    code: Column
    """Cell number of each sorted record."""


def _sort(group: Column, keys: Sequence[Column]) -> _Cells:
    # Late records have window 0, which is far below any other; `unique` keeps the code small.
    code = group.copy()
    for key in keys:
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
    return _Cells(order, starts, ends, np.repeat(np.arange(len(starts)), ends - starts))


def _partials(columns: dict[str, Column], plan: Plan, cells: _Cells) -> Iterator[tuple[int, Partial]]:
    """Yield the number of the group and the partial of each cell."""
    rule, starts = plan.window, cells.starts
    columns = {name: column[cells.order] for name, column in columns.items()}
    time = columns[rule.time]
    oldest, newest = np.minimum.reduceat(time, starts), np.maximum.reduceat(time, starts)
    # Position of the newest record of each cell; the last one where several are equally new.
    at_newest = np.flatnonzero(time == newest[cells.code])
    last = at_newest[np.searchsorted(at_newest, cells.ends) - 1]
    runs = _runs(columns[rule.sequence], cells) if rule.sequence is not None else [[] for _ in starts]
    statistics = {f.name: _statistics(columns[f.name], f, cells, last, plan.window.quantile_error) for f in plan.fields}
    for c, start in enumerate(starts.tolist()):
        yield (
            int(columns[_GROUP][start]),
            Partial(
                epoch=int(columns[rule.epoch][start]) if rule.epoch is not None else 0,
                window=int(columns[_WINDOW][start]) * plan.length_us,
                late=bool(columns[_LATE][start]),
                count=int(cells.ends[c]) - start,
                time_min=int(oldest[c]),
                time_max=int(newest[c]),
                runs=runs[c],
                fields={name: values[c] for name, values in statistics.items()},
            ),
        )


def _runs(sequence: Column, cells: _Cells) -> list[list[Run]]:
    """Return the ascending, disjoint runs of sequence numbers of each cell."""
    inside = cells.code[1:] == cells.code[:-1]
    step = np.diff(sequence)
    if np.any((step <= 0) & inside):  # disorder or duplicates: rare, so sorted only then
        sequence = sequence[np.lexsort((sequence, cells.code))]
        step = np.diff(sequence)
    begins = np.concatenate(([0], np.flatnonzero((step > 1) | ~inside) + 1))
    ends = np.append(begins[1:], len(sequence)) - 1
    runs: list[list[Run]] = [[] for _ in cells.starts]
    for g, first, last in zip(
        cells.code[begins].tolist(), sequence[begins].tolist(), sequence[ends].tolist(), strict=True
    ):
        runs[g].append((first, last))
    return runs


def _statistics(
    values: Column, field: FieldPlan, cells: _Cells, last: Column, error: float | None
) -> list[FieldStatistics]:
    starts = cells.starts
    result = [FieldStatistics() for _ in starts]
    found: dict[str, list[Any]] = {}
    if "sum" in field.statistics:
        sums = np.add.reduceat(values, starts)
        found["sum"] = sums.tolist()
        if "m2" in field.statistics:
            means = sums / (cells.ends - starts)
            distance = values - means[cells.code]
            found["m2"] = np.add.reduceat(distance * distance, starts).tolist()
    if "min" in field.statistics:
        found["min"] = np.minimum.reduceat(values, starts).tolist()
    if "max" in field.statistics:
        found["max"] = np.maximum.reduceat(values, starts).tolist()
    if "last" in field.statistics:
        found["last"] = values[last].tolist()
    if "sketch" in field.statistics and error is not None:
        found["sketch"] = _sketches(values, cells, error)
    for name, column in found.items():
        for entry, value in zip(result, column, strict=True):
            setattr(entry, name, value)
    return result


def _sketches(values: Column, cells: _Cells, error: float) -> list[dict[int, int]]:
    bucket = sketch.buckets(values, error)
    width = int(bucket.max()) + 1
    slots = cells.code * width + bucket
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
