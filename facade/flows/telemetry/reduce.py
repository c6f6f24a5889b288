"""From columns of records to partial sums, in numpy: the hot path of a worker.

Pure: no I/O, no clock. A record is late or ahead by its append time at the broker, so the result does not depend on the
division into batches, and a sender's wrong clock moves no window. The records of one group, epoch and window are a
cell, and each cell becomes a row of a frame.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import FieldPlan, Plan
from facade.kernel import sketch
from facade.kernel.bus.port import PartitionBatch
from facade.kernel.clock import Duration, Time, as_duration, as_seconds
from facade.kernel.codec.plausible import wrong_unit
from facade.kernel.config import Settings
from facade.kernel.icd.fields import Schema
from facade.kernel.outcome import RecordRejected
from facade.kernel.printable import excerpt
from facade.kernel.windows.frame import Counts, FieldArrays, Frame, Runs, last_of_each
from facade.sdp.batches import BatchReader, Joined, ReadBatch, Refused, is_batch
from facade.sdp.columns import Column as Column

UNKNOWN = -1
"""Code of unknown groups."""


class Groups:
    """The groups of one windowed topic; in this base class, all records belong together."""

    def codes(self, columns: Mapping[str, Column], rows: int) -> Column:
        """Return the code of each record's group, or `UNKNOWN`; int64 of shape (rows,)."""
        return np.zeros(rows, dtype=np.int64)

    def group(self, code: int) -> Group:
        """Return the group of a code."""
        return ""


def groups(plan: Plan, settings: Settings) -> Groups:
    """Return the groups of a deployment."""
    rule = plan.window
    if rule.group is None:
        return Groups()
    known = plan.groups(settings)
    return _NumberedGroups(rule.group, known) if isinstance(known, range) else _NamedGroups(rule.group, plan)


class _NumberedGroups(Groups):
    """Groups with consecutive numbers, such as the nodes."""

    def __init__(self, field: str, known: range) -> None:
        self._field, self._known = field, known

    def codes(self, columns: Mapping[str, Column], rows: int) -> Column:
        column, known = columns[self._field], self._known
        if not rows or (known.start <= column.min() and column.max() < known.stop):
            return column
        return np.where((column >= known.start) & (column < known.stop), column, UNKNOWN)

    def group(self, code: int) -> Group:
        return code


class _NamedGroups(Groups):
    """Groups with names, numbered in the order of their first records, up to the ICD's limit."""

    def __init__(self, field: str, plan: Plan) -> None:
        self._field, self._most = field, plan.window.most_groups
        self._names = list(plan.choices)
        self._codes = {name: code for code, name in enumerate(self._names)}

    def codes(self, columns: Mapping[str, Column], rows: int) -> Column:
        return np.fromiter(map(self._code, columns[self._field]), np.int64, rows)

    def group(self, code: int) -> Group:
        return self._names[code]

    def _code(self, name: str) -> int:
        code = self._codes.get(name)
        if code is None:
            if len(self._names) >= self._most:
                return UNKNOWN
            code = self._codes[name] = len(self._names)
            self._names.append(name)
        return code


_DENSE_SLOTS = 1 << 20
"""Most (cell, bucket) slots for which counting in a table is faster than sorting."""
_LARGE_CELL = 500
"""Average number of records above which each cell is summed separately, at the speed of one long array."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The division of records into cells: cell c has the records [starts[c], ends[c])."""

    starts: Column
    ends: Column
    group: Column
    """Code of its group, see `facade.flows.telemetry.reduce`."""
    epoch: Column
    window: Column
    """Begin of the window [Unix us]; 0: late records."""
    late: Column

    @property
    def sizes(self) -> Column:
        """Return the number of records in each."""
        return self.ends - self.starts

    @property
    def are_large(self) -> bool:
        """Return whether each cell is worth separate calls."""
        return int(self.ends[-1]) >= _LARGE_CELL * len(self.starts)

    def spread(self, values: Column) -> Column:
        """Return the value of its cell for each record."""
        return np.repeat(values, self.sizes)

    def parts(self, values: Column) -> list[Column]:
        """Return the values of each cell."""
        return [values[a:b] for a, b in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]


def frame(columns: Mapping[str, Column], plan: Plan, cells: Cells) -> Frame:
    """Return one row for each cell; `columns`: the `plan.columns`, in the order of the cells.

    Whole numbers become int64, whatever the producer has written: unsigned ones beside others would become floats.
    """
    rule = plan.window
    time = columns[rule.time]
    oldest, newest = np.minimum.reduceat(time, cells.starts), np.maximum.reduceat(time, cells.starts)
    last = last_of_each(time, newest, cells.starts)
    nothing = np.zeros(0, dtype=np.int64)
    return Frame(
        group=cells.group,
        epoch=cells.epoch.astype(np.int64, copy=False),
        window=cells.window,
        late=cells.late,
        count=cells.sizes,
        time_min=oldest.astype(np.int64, copy=False),
        time_max=newest.astype(np.int64, copy=False),
        runs=Runs(nothing, nothing, nothing) if rule.sequence is None else _runs(columns[rule.sequence], cells),
        fields={f.first_name: _statistics(columns[f.name], f, cells, last, rule.quantile_error) for f in plan.fields},
    )


def _runs(sequence: Column, cells: Cells) -> Runs:
    sequence = sequence.astype(np.int64, copy=False)  # unsigned ones would have no negative steps
    step = np.diff(sequence)
    step[cells.starts[1:] - 1] = 2  # no sequence continues across cells
    breaks = np.flatnonzero(step != 1)
    if np.any(step[breaks] <= 0):  # disorder or duplicates: rare, so sorted only then
        sequence = sequence[np.lexsort((sequence, cells.spread(np.arange(len(cells.starts)))))]
        step = np.diff(sequence)
        step[cells.starts[1:] - 1] = 2
        breaks = np.flatnonzero(step > 1)
    begins = np.concatenate(([0], breaks + 1))
    ends = np.append(begins[1:], len(sequence)) - 1
    rows = np.searchsorted(cells.starts, begins, side="right") - 1
    return Runs(rows, sequence[begins], sequence[ends])


def _statistics(values: Column, field: FieldPlan, cells: Cells, last: Column, error: float | None) -> FieldArrays:
    wanted = field.statistics
    found: dict[str, Any] = _sums(values, wanted, cells)
    if "last" in wanted:
        found["last"] = values[last]
    if field.integer:
        found = {name: one if name == "m2" else one.astype(np.int64, copy=False) for name, one in found.items()}
    if "sketch" in wanted and error is not None:
        found["sketch"] = _sketches(values, cells, error)
    return FieldArrays(**found)


def _sums(values: Column, wanted: Collection[str], cells: Cells) -> dict[str, Column]:
    parts = cells.parts(values) if cells.are_large else None

    def of_cells(function: np.ufunc) -> Column:
        if parts is None:
            return function.reduceat(values, cells.starts)
        return np.array([function.reduce(part) for part in parts])

    found: dict[str, Column] = {}
    if "sum" in wanted:
        sums = found["sum"] = of_cells(np.add)
        if "m2" in wanted and parts is None:
            distance = values - cells.spread(sums / cells.sizes)
            distance *= distance
            found["m2"] = np.add.reduceat(distance, cells.starts)
        elif "m2" in wanted and parts is not None:
            found["m2"] = np.array([_m2(part, total / len(part)) for part, total in zip(parts, sums, strict=True)])
    if "min" in wanted:
        found["min"] = of_cells(np.minimum)
    if "max" in wanted:
        found["max"] = of_cells(np.maximum)
    return found


def _m2(values: Column, mean: float) -> float:
    distance = values - mean
    distance *= distance  # instead of `dot`, which starts threads
    return float(distance.sum())


def _sketches(values: Column, cells: Cells, error: float) -> Counts:
    bucket, number = sketch.buckets(values, error), len(cells.starts)
    width = int(bucket.max()) + 1
    if cells.are_large:
        tables = [np.bincount(part) for part in cells.parts(bucket)]
        found = [np.flatnonzero(table) for table in tables]
        rows = np.repeat(np.arange(number), [len(one) for one in found])
        return Counts(rows, np.concatenate(found), np.concatenate([t[at] for t, at in zip(tables, found, strict=True)]))
    slots = cells.spread(np.arange(number)) * width + bucket
    if number * width <= _DENSE_SLOTS:
        table = np.bincount(slots)
        filled = np.flatnonzero(table)
        counts = table[filled]
    else:
        filled, counts = np.unique(slots, return_counts=True)
    return Counts(filled // width, filled % width, counts)


_OTHER_UNIT = 100
"""Factor below the broker's time from which a time may be in another unit."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """The partial sums of some records."""

    frame: Frame | None
    """None: no record can be used."""
    used: int
    late: int
    rejected: list[tuple[int, RecordRejected]]
    """Well-formed but unusable records, by position in the columns."""


@dataclass(frozen=True, slots=True)
class AppendTimes:
    """Append times of consecutive records; single times are looked up only where they decide."""

    first: Time
    last: Time
    """Times of the first and the last record."""
    at: Callable[[int], Time]
    """Returns the time of one record by its position."""


@dataclass(frozen=True, slots=True)
class Sifted:
    """Judged records."""

    codes: Column
    """Code of the group of each, see `facade.flows.telemetry.reduce`."""
    late: Column | None
    """Mask of late records; None: none."""
    rejected: list[tuple[int, RecordRejected]]
    """As in `Reduced`."""


def reduce(columns: Mapping[str, Column], plan: Plan, appended: AppendTimes, groups: Groups) -> Reduced:
    """Reduce the columns of records to one row per group, epoch and window.

    Parameters
    ----------
    columns
        The fields of valid messages of one partition, each of shape (n,): the `plan.columns` and the group, integers as
        int64, others as float64, names as objects; in log order within a group and epoch.
    """
    sifted = sift(columns, plan, appended, groups)
    return combine(columns, plan, sifted, [row for row, _ in sifted.rejected])


def sift(columns: Mapping[str, Column], plan: Plan, appended: AppendTimes, groups: Groups) -> Sifted:
    """Judge the records; parameters as of `reduce`."""
    rule = plan.window
    time = columns[rule.time]
    lateness, ahead = as_duration(rule.lateness), plan.rule.ahead_us
    if not len(time) or (appended.last - lateness <= time.min() and time.max() <= appended.first + ahead):
        codes = groups.codes(columns, len(time))
        return Sifted(codes, None, list(_strangers(columns, plan, codes)))
    judge = _judges(time, appended, lateness, ahead)
    refused = dict[int, RecordRejected]()
    for i in np.flatnonzero(time > judge + ahead).tolist():
        by = as_seconds(Duration(time[i] - judge[i]))
        what = f"{by:.3f} s ahead of the broker's clock, at most {rule.ahead} s allowed"
        ahead_of = RecordRejected("time-ahead", f"$.{rule.time}", what)
        refused[i] = wrong_unit(Time(time[i]), Time(judge[i]), f"$.{rule.time}") or ahead_of
    late = time < judge - lateness
    small = np.flatnonzero(time < judge // _OTHER_UNIT).tolist()
    found = ((i, wrong_unit(Time(time[i]), Time(judge[i]), f"$.{rule.time}")) for i in small)
    refused.update((i, why) for i, why in found if why is not None)
    is_used = np.ones(len(time), dtype=np.bool_)
    is_used[[*refused]] = False
    used = {name: columns[name][is_used] for name in (rule.group,) if name}
    codes = np.zeros(len(time), dtype=np.int64)
    codes[is_used] = groups.codes(used, int(np.count_nonzero(is_used)))  # a refused one takes no number of a name
    rejected = [*_strangers(columns, plan, codes), *refused.items()]
    return Sifted(codes, late, rejected)


def combine(columns: Mapping[str, Column], plan: Plan, sifted: Sifted, unused: Sequence[int]) -> Reduced:
    """Sum up judged records, without the `unused` ones; parameters as of `reduce`."""
    rule, time, codes, late = plan.window, columns[plan.window.time], sifted.codes, sifted.late
    kept = {name: columns[name] for name in plan.columns}
    if unused:
        keep = np.ones(len(time), dtype=np.bool_)
        keep[unused] = False
        left_out = len(time) - np.count_nonzero(keep)
        assert left_out == len(unused), f"{len(unused)} records are refused, and {left_out} are not summed up"
        kept = {name: column[keep] for name, column in kept.items()}
        time, codes, late = time[keep], codes[keep], None if late is None else late[keep]
    if not len(time):
        return Reduced(None, 0, 0, sifted.rejected)
    oldest, newest = (Time(limit) // plan.length_us for limit in (time.min(), time.max()))
    # Usually there is one window, and a division is slow.
    window = np.broadcast_to(np.int64(oldest), time.shape) if oldest == newest else time // plan.length_us
    window = window if late is None else np.where(late, 0, window)
    epoch = kept[rule.epoch] if rule.epoch is not None else None
    order, starts = _sort(codes, [window] if epoch is None else [window, epoch])
    first = starts if order is None else order[starts]
    cells = Cells(
        starts,
        np.append(starts[1:], len(time)),
        group=codes[first],
        epoch=np.zeros(len(starts), np.int64) if epoch is None else epoch[first],
        window=window[first] * plan.length_us,
        late=np.zeros(len(starts), np.bool_) if late is None else late[first],
    )
    if order is not None:
        kept = {name: column[order] for name, column in kept.items()}
    late_count = 0 if late is None else int(np.count_nonzero(late))
    return Reduced(frame(kept, plan, cells), len(time) - late_count, late_count, sifted.rejected)


def _judges(time: Column, appended: AppendTimes, lateness: Duration, ahead: Duration) -> Column:
    # Single times only where they could change the result: the lookup of each would cost a tenth of the whole work.
    judge = np.full(len(time), appended.last, dtype=np.int64)
    doubtful = (time >= appended.first - lateness) & (time < appended.last - lateness)
    doubtful |= (time > appended.first + ahead) & (time <= appended.last + ahead)
    for row in np.flatnonzero(doubtful).tolist():
        judge[row] = appended.at(row)
    return judge


def _strangers(columns: Mapping[str, Column], plan: Plan, codes: Column) -> Iterator[tuple[int, RecordRejected]]:
    if not len(codes) or codes.min() > UNKNOWN:
        return
    rule, noun = plan.window, plan.noun
    for i in np.flatnonzero(codes == UNKNOWN).tolist():
        what = f"{noun} {columns[rule.group or ''][i]} is not part of this deployment"
        yield i, RecordRejected(f"unknown-{noun}", f"$.{rule.group}", excerpt(what))


def _sort(group: Column, keys: Sequence[Column]) -> tuple[Column | None, Column]:
    """Return the stable order by group and keys, and the starts of new values in it; None: already in order."""
    # Late records have window 0, far below any other; `unique` keeps the code small.
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
    order: Column | None = None
    if np.any(code[1:] < code[:-1]):
        order = np.argsort(code, kind="stable")
        code = code[order]
    return order, np.concatenate(([0], np.flatnonzero(code[1:] != code[:-1]) + 1))


_TOGETHER = 32768
"""Rows that are reduced at once: enough to hide the cost of a call, few enough for the processor's cache."""


class Batches:
    """Reads the columnar batches of one windowed topic."""

    def __init__(self, plan: Plan, schema: Schema, earlier: Sequence[Schema]) -> None:
        rule = plan.window
        varying = [name for name in (rule.time, rule.sequence) if name is not None]
        self.reader = BatchReader(schema, varying, earlier)
        self._order = [name for name in (rule.group, rule.epoch) if name is not None]

    def read(
        self, run: PartitionBatch, values: Sequence[bytes | None], places: Iterable[int]
    ) -> dict[int, ReadBatch | Refused]:
        """Read the columnar batches among some records, by their places in the run."""
        chosen = ((at, value) for at in places if is_batch(value := values[at]))
        return {at: self.reader.read(value or b"", run.record(at).headers) for at, value in chosen}

    def join(self, run: PartitionBatch, found: Mapping[int, ReadBatch | Refused]) -> Iterator["Together"]:
        """Yield the readable batches, several at once where they are small."""
        chosen = [(at, batch) for at, batch in found.items() if isinstance(batch, ReadBatch)]
        # Consecutive batches of one node and scan need no sort of their rows, and make few partials.
        is_sorted = all(name in batch.header.constants for _, batch in chosen for name in self._order)
        if is_sorted:
            chosen.sort(key=lambda one: [one[1].header.constants[name] for name in self._order])
        begin = rows = 0
        for number, (_, batch) in enumerate(chosen, 1):
            rows += batch.rows
            if rows >= _TOGETHER or number == len(chosen):
                yield Together(self.reader, run, chosen[begin:number], is_sorted=is_sorted)
                begin, rows = number, 0


class Together(Joined):
    """Batches of one partition that are reduced at once; if sorted, each has one group and epoch, in order."""

    def __init__(
        self, reader: BatchReader, run: PartitionBatch, chosen: Sequence[tuple[int, ReadBatch]], *, is_sorted: bool
    ) -> None:
        super().__init__(reader, [batch for _, batch in chosen])
        self._is_sorted = is_sorted
        self.index = [at for at, _ in chosen]
        """Index of each batch in the run."""
        times, starts = [run.append_time(at) for at in self.index], self.starts
        at = lambda row: times[int(np.searchsorted(starts, row, side="right")) - 1]  # noqa: E731
        self.appended = AppendTimes(min(times), max(times), at)

    def by_batch(self, rows: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield the batches of some rows, with the row numbers in the batch."""
        ends = np.searchsorted(rows, self.starts)
        for at, (low, high) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
            if low < high:
                yield at, [row - int(self.starts[at]) for row in rows[low:high]]

    def cells(self, plan: Plan, groups: Groups) -> Cells | None:
        """Return the cells if the rows are in order, and none is wrong or late; None: each row must be judged."""
        if self.rejected or not self._is_sorted:
            return None
        rule, time, starts = plan.window, self[plan.window.time], self.starts[:-1]
        oldest, newest = np.minimum.reduceat(time, starts), np.maximum.reduceat(time, starts)
        lateness, ahead = as_duration(rule.lateness), plan.rule.ahead_us
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
            return None  # a window continues after the next one
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
    time: Column, starts: Sequence[int], oldest: Column, newest: Column, length_us: Duration
) -> tuple[list[int] | None, list[int], list[int]]:
    """Cut batches at the ends of windows: begin, batch and window of each piece; None: times go back across an end."""
    begins, batches, windows = list[int](), list[int](), list[int]()
    limits = zip(oldest.tolist(), newest.tolist(), strict=True)
    for number, (low, high) in enumerate(limits):
        start, end = starts[number], starts[number + 1]
        found = [start]
        if Time(low) // length_us != Time(high) // length_us:
            window = time[start:end] // length_us
            steps = np.diff(window)
            if steps.min() < 0:
                return None, [], []
            found += (np.flatnonzero(steps) + start + 1).tolist()
        begins += found
        batches += [number] * len(found)
        windows += [Time(time[at]) // length_us for at in found]
    return begins, batches, windows
