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
_LARGE_CELL = 500
"""Cells with more records than this are counted one by one."""


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


@dataclass(frozen=True, slots=True)
class Sifted:
    """What some records are, before anything is made of them."""

    codes: Column
    """Number of the group of each, see `facade.flows.telemetry.groups`."""
    late: Column | None
    """Which are late; None: none is."""
    rejected: list[tuple[int, Rejected]]
    """As in `Reduced`."""


def reduce(columns: Mapping[str, Column], plan: Plan, appended: AppendTimes, groups: Groups) -> Reduced:
    """Reduce the columns of records to one partial per group, epoch and window.

    Parameters
    ----------
    columns
        The fields of valid messages of one partition, each of shape (n,): those of `plan.columns` and the group,
        integers as int64, others as float64, names as objects. In log order, at least those of one group and epoch.
    appended
        When the broker appended them, by position in the columns.
    groups
        The groups that are part of the deployment.
    """
    sifted = sift(columns, plan, appended, groups)
    return combine(columns, plan, sifted, groups, [row for row, _ in sifted.rejected])


def sift(columns: Mapping[str, Column], plan: Plan, appended: AppendTimes, groups: Groups) -> Sifted:
    """Find the group of each record, which are late, and which cannot be used; parameters as of `reduce`."""
    rule = plan.window
    time = columns[rule.time]
    codes = groups.codes(columns, len(time))
    lateness, ahead = round(rule.lateness * MICRO), round(rule.ahead * MICRO)
    if not len(time) or (appended.last - lateness <= time.min() and time.max() <= appended.first + ahead):
        return Sifted(codes, None, list(_strangers(columns, plan, codes)))
    judge = _judges(time, appended, lateness, ahead)
    rejected = list(_strangers(columns, plan, codes))
    for i in np.flatnonzero((time > judge + ahead) & (codes != UNKNOWN)).tolist():
        what = f"{int(time[i] - judge[i]) / MICRO:.3f} s ahead of the broker's clock, at most {rule.ahead} s allowed"
        rejected.append((i, Rejected("time-ahead", f"$.{rule.time}", what)))
    return Sifted(codes, time < judge - lateness, rejected)


def combine(
    columns: Mapping[str, Column], plan: Plan, sifted: Sifted, groups: Groups, unused: Sequence[int]
) -> Reduced:
    """Make partials of records that were sifted; parameters as of `reduce`, but for `unused`: which to leave out."""
    rule, time, codes, late = plan.window, columns[plan.window.time], sifted.codes, sifted.late
    kept = {name: columns[name] for name in plan.columns}
    if unused:
        keep = np.ones(len(time), dtype=np.bool_)
        keep[unused] = False
        kept = {name: column[keep] for name, column in kept.items()}
        time, codes, late = time[keep], codes[keep], None if late is None else late[keep]
    if not len(time):
        return Reduced({}, 0, 0, sifted.rejected)
    window = _windows(kept[rule.time], plan.length_us)
    keys = [window if late is None else np.where(late, 0, window)]
    if rule.epoch is not None:
        keys.append(kept[rule.epoch])
    cells = _sort(codes, keys)
    kept |= {_GROUP: codes, _WINDOW: keys[0], _LATE: np.zeros(len(time), np.bool_) if late is None else late}
    late_count = 0 if late is None else int(np.count_nonzero(late))
    partials: dict[Group, list[Partial]] = {}
    for code, partial in _partials(kept, plan, cells):
        partials.setdefault(groups.group(code), []).append(partial)
    return Reduced(partials, len(time) - late_count, late_count, sifted.rejected)


def _windows(time: Column, length_us: int) -> Column:
    """Return the number of each record's window; usually there is one, and a division takes its time."""
    first, last = int(time.min()) // length_us, int(time.max()) // length_us
    return np.broadcast_to(np.int64(first), time.shape) if first == last else time // length_us


def _judges(time: Column, appended: AppendTimes, lateness: int, ahead: int) -> Column:
    """Return the append time to judge each record by: its own wherever another could decide differently.

    Looking up the time of every record would cost as much as a tenth of the whole work on it.
    """
    judge = np.full(len(time), appended.last, dtype=np.int64)
    doubtful = (time >= appended.first - lateness) & (time < appended.last - lateness)
    doubtful |= (time > appended.first + ahead) & (time <= appended.last + ahead)
    for row in np.flatnonzero(doubtful).tolist():
        judge[row] = appended.at(row)
    return judge


def _strangers(columns: Mapping[str, Column], plan: Plan, codes: Column) -> Iterator[tuple[int, Rejected]]:
    """Yield the records of groups that the deployment does not have."""
    if not len(codes) or codes.min() > UNKNOWN:
        return
    rule, noun = plan.window, plan.noun
    for i in np.flatnonzero(codes == UNKNOWN).tolist():
        what = f"{noun} {columns[rule.group or ''][i]} is not part of this deployment"
        yield i, Rejected(f"unknown-{noun}", f"$.{rule.group}", excerpt(what))


@dataclass(frozen=True, slots=True)
class _Cells:
    """Records sorted by group, window and epoch, stably: those of cell c are ``order[starts[c]:ends[c]]``."""

    order: Column | slice
    starts: Column
    ends: Column

    @property
    def sizes(self) -> Column:
        """Return the number of records in each."""
        return self.ends - self.starts

    def spread(self, values: Column) -> Column:
        """Return for each sorted record the value of its cell."""
        return np.repeat(values, self.sizes)


def _sort(group: Column, keys: Sequence[Column]) -> _Cells:
    # Late records have window 0, which is far below any other; `unique` keeps the code small.
    code, most = group, int(group.max())
    for key in keys:
        low, high = int(key.min()), int(key.max())
        if low == high:
            continue
        if high - low < 64:
            code, most = code * (high - low + 1) + (key - low), (most + 1) * (high - low + 1)
        else:
            values, inverse = np.unique(key, return_inverse=True)
            code, most = code * len(values) + inverse, (most + 1) * len(values)
    if most < 1 << 16:
        code = code.astype(np.uint16)  # numpy sorts 16-bit keys by radix, in linear time
    order: Column | slice = slice(None)
    if np.any(code[1:] < code[:-1]):
        order = np.argsort(code, kind="stable")
        code = code[order]
    starts = np.concatenate(([0], np.flatnonzero(code[1:] != code[:-1]) + 1))
    return _Cells(order, starts, np.append(starts[1:], len(code)))


def _partials(columns: dict[str, Column], plan: Plan, cells: _Cells) -> Iterator[tuple[int, Partial]]:
    """Yield the number of the group and the partial of each cell."""
    rule, starts = plan.window, cells.starts
    columns = {name: column[cells.order] for name, column in columns.items()}
    time = columns[rule.time]
    oldest, newest = np.minimum.reduceat(time, starts), np.maximum.reduceat(time, starts)
    last = _last(time, newest, cells)
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


def _last(time: Column, newest: Column, cells: _Cells) -> Column:
    """Return the place of the newest record of each cell; the last one where several are equally new."""
    if np.array_equal(time[cells.ends - 1], newest):
        return cells.ends - 1
    at_newest = np.flatnonzero(time == cells.spread(newest))
    return at_newest[np.searchsorted(at_newest, cells.ends) - 1]


def _runs(sequence: Column, cells: _Cells) -> list[list[Run]]:
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
    runs: list[list[Run]] = [[] for _ in cells.starts]
    found = np.searchsorted(cells.starts, begins, side="right") - 1
    for c, first, last in zip(found.tolist(), sequence[begins].tolist(), sequence[ends].tolist(), strict=True):
        runs[c].append((first, last))
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
            distance = values - cells.spread(sums / cells.sizes)
            distance *= distance
            found["m2"] = np.add.reduceat(distance, starts).tolist()
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
    if len(cells.starts) * _LARGE_CELL <= len(values):
        return [
            _counts(bucket[start:end]) for start, end in zip(cells.starts.tolist(), cells.ends.tolist(), strict=True)
        ]
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
