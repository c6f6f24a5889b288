"""Frames: partial sums of many groups and windows as columns, exact and mergeable in any order.

A row of a frame stands for some records of one group, epoch and window. `merge` joins the rows of one cell (group,
epoch, window, and whether late) of several frames: one sort, and one `reduceat` for each statistic. No object is made
for a row.

Whole numbers stay int64 and are exact; other numbers are float64. A statistic that a frame lacks is None. Frames with
different statistics come from workers of two releases: only their common statistics are merged, so that a sum is of all
records or not known.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from facade.kernel.sequences import NumberRange, union

__all__ = [
    "STATISTICS",
    "Array",
    "Counts",
    "FieldArrays",
    "Frame",
    "Runs",
    "distinct",
    "last_of_each",
    "merge",
    "merge_alike",
]

Array = npt.NDArray[Any]

_DENSE_SLOTS = 1 << 18
"""Most slots (cell, bucket) of sketches that are merged in a table, which is much faster than sorting."""
_EXACT = 2**53
"""Up to this sum, the table of numpy is exact: it has floats."""

STATISTICS = ("sum", "min", "max", "m2", "last", "sketch")


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of sequence numbers, without gaps: those of a row ascend and are disjoint; all of shape (runs,)."""

    row: Array
    """Row of each, ascending."""
    first: Array
    last: Array
    """Last number, included."""

    def of_rows(self, begin: int, end: int) -> "Runs":
        """Return the runs of the rows [begin, end), which are rows 0, 1, ... from then on."""
        low, high = np.searchsorted(self.row, (begin, end))
        return Runs(self.row[low:high] - begin, self.first[low:high], self.last[low:high])

    def at(self, place: Array) -> "Runs":
        """Return the runs of the rows with a new place; those without one have -1."""
        row = place[self.row]
        kept = row >= 0
        return Runs(row[kept], self.first[kept], self.last[kept])

    def as_lists(self, rows: int) -> list[list[NumberRange]]:
        """Return the runs of each row."""
        found: list[list[NumberRange]] = [[] for _ in range(rows)]
        for row, first, last in zip(self.row.tolist(), self.first.tolist(), self.last.tolist(), strict=True):
            found[row].append((first, last))
        return found


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of the buckets of sketches, see `facade.kernel.sketch`.

    Ascending by row and bucket, all of shape (counts,).
    """

    row: Array
    bucket: Array
    count: Array

    def of_rows(self, begin: int, end: int) -> "Counts":
        """Return the counts of the rows [begin, end), which are rows 0, 1, ... from then on."""
        low, high = np.searchsorted(self.row, (begin, end))
        return Counts(self.row[low:high] - begin, self.bucket[low:high], self.count[low:high])

    def at(self, place: Array) -> "Counts":
        """Return the counts of the rows with a new place; those without one have -1."""
        row = place[self.row]
        kept = row >= 0
        return Counts(row[kept], self.bucket[kept], self.count[kept])

    def as_dicts(self, rows: int) -> list[dict[int, int]]:
        """Return the counts of each row by bucket."""
        found: list[dict[int, int]] = [{} for _ in range(rows)]
        for row, bucket, count in zip(self.row.tolist(), self.bucket.tolist(), self.count.tolist(), strict=True):
            found[row][bucket] = count
        return found


@dataclass(frozen=True, slots=True)
class FieldArrays:
    """Statistics of one field, each of shape (rows,); None: not kept."""

    sum: Array | None = None
    min: Array | None = None
    max: Array | None = None
    m2: Array | None = None
    """Sum of the squared distances from the mean of the row."""
    last: Array | None = None
    """Value of the newest record."""
    sketch: Counts | None = None

    @property
    def form(self) -> tuple[str, ...]:
        """Return the names of the statistics that are kept."""
        return tuple(name for name in STATISTICS if getattr(self, name) is not None)


@dataclass(frozen=True, slots=True)
class Frame:
    """Partial sums; the columns are of shape (rows,)."""

    group: Array
    """Code of the group."""
    epoch: Array
    window: Array
    """Begin of the window [Unix us]; 0: late records."""
    late: Array
    count: Array
    """Number of records; 0: the row has only further runs of the row before it."""
    time_min: Array
    time_max: Array
    """Oldest and newest data time [Unix us]."""
    runs: Runs
    fields: Mapping[str, FieldArrays]

    def __len__(self) -> int:
        return len(self.group)

    def take(self, rows: Array) -> "Frame":
        """Return some rows by a mask, or by their ascending numbers."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        place = np.full(len(self), -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        return Frame(
            **{name: getattr(self, name)[chosen] for name in _COLUMNS},
            runs=self.runs.at(place),
            fields={name: _taken(one, chosen, place) for name, one in self.fields.items()},
        )

    def without_runs(self) -> "Frame":
        """Return the rows without their sequence numbers."""
        return replace(self, runs=self.runs.of_rows(0, 0))

    def rows(self, begin: int, end: int) -> "Frame":
        """Return the rows [begin, end)."""
        cut = {name: getattr(self, name)[begin:end] for name in _COLUMNS}
        parts = {name: _cut(one, begin, end) for name, one in self.fields.items()}
        return Frame(**cut, runs=self.runs.of_rows(begin, end), fields=parts)


_COLUMNS = tuple(one.name for one in fields(Frame) if one.name not in ("runs", "fields"))


def _taken(one: FieldArrays, chosen: Array, place: Array) -> FieldArrays:
    taken = {name: getattr(one, name)[chosen] for name in one.form if name != "sketch"}
    return FieldArrays(**taken, sketch=one.sketch and one.sketch.at(place))


def _cut(one: FieldArrays, begin: int, end: int) -> FieldArrays:
    cut = {name: getattr(one, name)[begin:end] for name in one.form if name != "sketch"}
    return FieldArrays(**cut, sketch=one.sketch and one.sketch.of_rows(begin, end))


def merge(frames: Sequence[Frame], *, epochs: bool = True) -> Frame:
    """Return the rows of some frames, at least one, with one row for each cell, in the order of the cells.

    `epochs`: False: rows of one group and window are merged, and have the epoch of the newest one.
    """
    columns = {name: _joined([getattr(one, name) for one in frames]) for name in _COLUMNS}
    names = ("late", "window", "epoch", "group") if epochs else ("window", "group")
    order = np.lexsort([columns[name] for name in names])  # stable: rows of a cell stay in the order of the frames
    columns = {name: column[order] for name, column in columns.items()}
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = False
    for name in names:
        new[1:] |= columns[name][1:] != columns[name][:-1]
    starts = np.flatnonzero(new)
    at = _At([len(one) for one in frames], order, starts)
    time_max = np.maximum.reduceat(columns["time_max"], starts)
    last = last_of_each(columns["time_max"], time_max, starts)
    count = np.add.reduceat(columns["count"], starts)
    assert count.sum() == columns["count"].sum(), "merging must keep the number of records"
    return Frame(
        group=columns["group"][starts],
        epoch=columns["epoch"][last],
        window=columns["window"][starts],
        late=columns["late"][starts],
        count=count,
        time_min=np.minimum.reduceat(columns["time_min"], starts),
        time_max=time_max,
        runs=_runs([one.runs for one in frames], at),
        fields={
            name: _field([one.fields[name] for one in frames], at, columns["count"], last)
            for name in frames[0].fields
            if all(name in one.fields for one in frames)
        },
    )


def merge_alike(frames: Sequence[Frame], *, epochs: bool = True) -> list[Frame]:
    """Return the merged rows as `merge` does, where frames may have different statistics.

    Each row has the statistics that all rows of its own cell have, and each frame has rows with the same ones.
    """
    by_form = defaultdict[object, list[Frame]](list)
    for one in frames:
        by_form[tuple((name, found.form) for name, found in one.fields.items())].append(one)
    alike = [merge(found, epochs=epochs) for found in by_form.values()]
    if len(alike) < 2:
        return alike
    whole = merge(alike, epochs=epochs)
    number = Counter(cell for one in alike for cell in _cells(one, epochs=epochs))
    found = [one.take(np.array([number[cell] == 1 for cell in _cells(one, epochs=epochs)])) for one in alike]
    found.append(whole.take(np.array([number[cell] > 1 for cell in _cells(whole, epochs=epochs)])))
    kept, given = (sum(int(one.count.sum()) for one in some) for some in (found, alike))
    assert kept == given, f"of {given} records, frames of different statistics have {kept}"
    return found


def _cells(rows: Frame, *, epochs: bool) -> Iterator[tuple[int, ...]]:
    names = ("late", "window", "epoch", "group") if epochs else ("window", "group")
    return zip(*(getattr(rows, name).tolist() for name in names), strict=True)


class _At:
    """Where the rows of some frames come to lie: sorted, and in cells."""

    def __init__(self, sizes: Sequence[int], order: Array, starts: Array) -> None:
        self.order, self.starts = order, starts
        self.offsets = np.cumsum([0, *sizes[:-1]]).tolist()
        cells = np.zeros(len(order), dtype=np.int64)
        cells[starts[1:]] = 1
        self.cell = np.empty_like(cells)
        """Cell of each row, in the order of the frames."""
        self.cell[order] = np.cumsum(cells)

    def cells(self, rows: Sequence[Array]) -> Array:
        """Return the cells of entries that name their rows, by frame."""
        return self.cell[_joined([one + offset for one, offset in zip(rows, self.offsets, strict=True)])]


def distinct(values: Array) -> list[int]:
    """Return the different values, ascending; usually there is one."""
    one = values[:1]
    found: list[int] = (one if (values == one).all() else np.unique(values)).tolist()
    return found


def last_of_each(time: Array, newest: Array, starts: Array) -> Array:
    """Return the index of the newest entry of each cell; of equally new ones the last.

    Parameters
    ----------
    time
        Times of the entries, in the order of the cells, of shape (entries,).
    newest, starts
        The newest time of each cell, and its first entry, of shape (cells,).
    """
    ends = np.append(starts[1:], len(time))
    if np.array_equal(time[ends - 1], newest):
        return ends - 1
    at_newest = np.flatnonzero(time == np.repeat(newest, ends - starts))
    found: Array = at_newest[np.searchsorted(at_newest, ends) - 1]
    assert np.all((starts <= found) & (found < ends)), "the newest entry of a cell must be one of its entries"
    return found


def _field(parts: Sequence[FieldArrays], at: _At, count: Array, last: Array) -> FieldArrays:
    def joined(name: str) -> Array:
        return _joined([getattr(one, name) for one in parts])[at.order]

    form, found = set(STATISTICS).intersection(*(one.form for one in parts)), dict[str, Any]()
    if "sum" in form:
        sums = joined("sum")
        found["sum"] = np.add.reduceat(sums, at.starts)
        if "m2" in form:
            # Chan, Golub and LeVeque (1979), eq. 2.1, for any number of parts: the squared distances of the means of
            # the parts from the mean of the whole, weighted by their counts.
            sizes = np.diff(np.append(at.starts, len(count)))
            mean = np.repeat(found["sum"] / np.add.reduceat(count, at.starts), sizes)
            distance = sums / count - mean
            found["m2"] = np.add.reduceat(joined("m2") + distance * distance * count, at.starts)
    if "min" in form:
        found["min"] = np.minimum.reduceat(joined("min"), at.starts)
    if "max" in form:
        found["max"] = np.maximum.reduceat(joined("max"), at.starts)
    if "last" in form:
        found["last"] = joined("last")[last]
    if "sketch" in form:
        found["sketch"] = _counts([one.sketch for one in parts if one.sketch is not None], at)
    return FieldArrays(**found)


def _counts(parts: Sequence[Counts], at: _At) -> Counts:
    cells, buckets = at.cells([one.row for one in parts]), _joined([one.bucket for one in parts])
    if not len(cells):
        return parts[0]
    counts = _joined([one.count for one in parts])
    low, width = int(buckets.min()), int(np.ptp(buckets)) + 1
    if len(at.starts) * width <= max(_DENSE_SLOTS, len(counts)) and counts.max() <= _EXACT // len(counts):
        table = np.bincount(cells * width + (buckets - low), weights=counts).astype(np.int64)
        filled = np.flatnonzero(table)
        return Counts(filled // width, filled % width + low, table[filled])
    order = np.lexsort((buckets, cells))
    cells, buckets = cells[order], buckets[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (cells[1:] != cells[:-1]) | (buckets[1:] != buckets[:-1])
    starts = np.flatnonzero(new)
    return Counts(cells[starts], buckets[starts], np.add.reduceat(counts[order], starts))


def _runs(parts: Sequence[Runs], at: _At) -> Runs:
    cells = at.cells([one.row for one in parts])
    if not len(cells):
        return parts[0]
    first, last = _joined([one.first for one in parts]), _joined([one.last for one in parts])
    order = np.lexsort((first, cells))
    cells, first, last = cells[order], first[order], last[order]
    same = cells[1:] == cells[:-1]
    if np.any(same & (first[1:] <= last[:-1])):  # numbers that came again: rare, so joined one by one
        return _joined_runs(cells, first, last)
    begins = np.ones(len(cells), dtype=np.bool_)
    begins[1:] = ~same | (first[1:] != last[:-1] + 1)
    starts = np.flatnonzero(begins)
    return Runs(cells[starts], first[starts], last[np.append(starts[1:], len(cells)) - 1])


def _joined_runs(cells: Array, first: Array, last: Array) -> Runs:
    by_cell = defaultdict[int, list[NumberRange]](list)
    for cell, low, high in zip(cells.tolist(), first.tolist(), last.tolist(), strict=True):
        by_cell[cell].append((low, high))
    found = [(cell, *one) for cell, runs in by_cell.items() for one in union(runs, ())]
    return Runs(*np.array(found, dtype=np.int64).T)


def _joined(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
