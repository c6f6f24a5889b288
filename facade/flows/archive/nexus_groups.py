"""Groups of a NeXus file that grow during reading, in memory that does not depend on the number of records.

Theory of operation
-------------------
A dataset is chunked, compressed and resizable. Rows wait in memory until there are enough, and are then appended to the
file (`append`). No dataset stays open, so the library's caches do not grow with the number of datasets.

`WindowGrid` is a grid of windows and groups, such as seconds and ingest nodes. Partial sums are merged as device
servers merge them (`facade.windows.frame`). They come in the order of Kafka's time, so after some time none can come
for a window any more: the window is settled, and goes to the file with its neighbours, as a page.

A dataset of several groups is stored once, with hard links to it. NeXus then requires the attribute `target`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import h5py
import numpy as np

from facade.clock import NEVER, Duration, Time, as_seconds
from facade.codec.arrays import Array
from facade.icd.units import udunits
from facade.printable import printable
from facade.windows.frame import FieldArrays, Frame, distinct, merge_alike
from facade.windows.newest import Rule

QUALITIES: Final = ("VALID", "INVALID", "ALARM", "CHANGING", "WARNING")
"""Tango's qualities; the numbers in the file are Tango's."""
PLOTS: Final = "plots"
TEXT: Final = h5py.string_dtype()
_ODD = re.compile(r"[^A-Za-z0-9_]", re.ASCII)
_CHUNK = 65_536
"""Size of a chunk [bytes]."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PACKED: Final = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
"""Filters that every HDF5 library has."""
_MOST_LABELS = 256
MOST_EVENTS: Final = 250_000
_MOST_PULSES = 1000


def iso(time_us: Time) -> str:
    """Return a time in NeXus's form."""
    return (_EPOCH + timedelta(microseconds=int(time_us))).isoformat(timespec="microseconds")


def text(found: str) -> str:
    """Return a text from the bus in a form for the file: HDF5 ends texts at a NUL."""
    return printable(found, keep="\n\t")


def legal(name: str) -> str:
    """Return a name with the characters that NeXus allows."""
    return _ODD.sub("_", name) or "_"


def child(parent: Any, name: str, nexus_class: str) -> Any:
    """Create a group with an unused name."""
    number, free = 2, legal(name)
    while free in parent:
        number, free = number + 1, f"{legal(name)}_{number}"
    group = parent.create_group(free)
    group.attrs["NX_class"] = nexus_class
    return group


def append(group: Any, name: str, values: Array, **attributes: Any) -> int:
    """Append rows to a dataset, which is created if needed; return the number of earlier rows."""
    dataset = group.get(name)
    if dataset is None:
        row = values.shape[1:]
        size = max(int(np.prod(row)) * values.dtype.itemsize, 1)
        dataset = group.create_dataset(
            name,
            (0, *row),
            values.dtype,
            maxshape=(None, *row),
            chunks=(max(_CHUNK // size, 1), *row),
            **({} if values.dtype == TEXT else _PACKED),
        )
        if "units" in attributes:
            attributes["units"] = udunits(attributes["units"])
        dataset.attrs.update(attributes)
    begin = int(dataset.shape[0])
    dataset.resize(begin + len(values), 0)
    dataset[begin:] = values
    return begin


def link(group: Any, name: str, dataset: Any) -> None:
    """Link a dataset into another group."""
    dataset.attrs.setdefault("target", dataset.name)
    group[name] = dataset


def draw(data: Any, signals: Sequence[str], axes: Sequence[str]) -> None:
    """Define the plot of an NXdata: signals of one shape, and an axis for each dimension, created if needed.

    It becomes the default plot of all enclosing groups without one.
    """
    for place, (name, size) in enumerate(zip(axes, data[signals[0]].shape, strict=True)):
        if name not in data:
            append(data, name, np.arange(size))
        data.attrs[f"{name}_indices"] = place
    data.attrs.update({"signal": signals[0], "axes": [*axes]})
    if len(signals) > 1:
        data.attrs["auxiliary_signals"] = [*signals[1:]]
    while (inner := data.name.rpartition("/")[2]) and "default" not in data.parent.attrs:
        data = data.parent
        data.attrs["default"] = inner


def plot(group: Any, name: str, signals: Mapping[str, Any], axes: Mapping[str, Any], title: str) -> None:
    """Create a plot in a group from datasets in other groups; see `draw`."""
    data = child(group, name, "NXdata")
    for name, dataset in (*signals.items(), *axes.items()):
        link(data, name, dataset)
    data["title"] = text(title)
    draw(
        data, [*signals], [*axes, *(f"index_{place}" for place in range(len(axes), next(iter(signals.values())).ndim))]
    )


class Log:
    """An NXlog: a value and further columns as functions of time.

    A text value is stored as the number of its label, which any viewer can draw; -1: another text than the first 256.

    Parameters
    ----------
    origin_us
        The time that is 0 in the file [Unix us].
    shape
        Shape of a number or an array of numbers; None: the value is a text.
    labels
        The first labels.
    columns
        Type and attributes of each further column.
    """

    def __init__(
        self,
        group: Any,
        origin_us: Time,
        title: str,
        columns: Mapping[str, tuple[Any, Mapping[str, Any]]],
        *,
        shape: tuple[int, ...] | None = None,
        unit: str = "",
        labels: Iterable[str] = (),
    ) -> None:
        self._group, self._origin, self._columns, self.shape, self._unit = group, origin_us, columns, shape, unit
        self._title = title
        self._labels = {label: number for number, label in enumerate(labels)}
        self._rows: list[tuple[Any, ...]] = []
        group["description"] = text(title)

    def add(self, time_us: Time, value: Any, *columns: Any) -> None:
        """Add a row; the columns are in their order."""
        if self.shape is None and isinstance(value, str):
            if len(self._labels) < _MOST_LABELS:
                self._labels.setdefault(value, len(self._labels))
            value = self._labels.get(value, -1)
        self._rows.append((time_us, value, *columns))

    def flush(self) -> None:
        """Write the rows."""
        if not self._rows:
            return
        times, values, *columns = zip(*self._rows, strict=True)
        self._rows.clear()
        seconds = as_seconds(np.array(times, np.int64) - self._origin)
        append(self._group, "time", seconds, units="s", start=iso(self._origin))
        if self.shape is None:
            append(self._group, "value", np.array(values, np.int64), units="")
        else:
            append(self._group, "value", np.array(values, np.float64).reshape(-1, *self.shape), units=self._unit)
        for (name, (kind, attributes)), column in zip(self._columns.items(), columns, strict=True):
            found = [text(one) for one in column] if kind == TEXT else column
            append(self._group, name, np.array(found, kind), **attributes)

    def finish(self) -> None:
        """Write the rest, and the attributes for viewers."""
        self.flush()
        if self.shape is None:
            self._group["labels"] = np.array([text(label) for label in self._labels], TEXT)
        parent, _, name = self._group.name.rpartition("/")
        plots = self._group.file.require_group(f"{parent}/{PLOTS}")  # readers of an NXlog take no group within it
        plots.attrs["NX_class"] = "NXcollection"
        plot(plots, name, {"value": self._group["value"]}, {"time": self._group["time"]}, self._title)


class EventGroup:
    """An NXevent_data: notifications as events, with nodes as ids.

    A pulse is a number of consecutive notifications. Indices have 64 bits.
    """

    def __init__(self, group: Any, origin_us: Time, units: Mapping[str, str]) -> None:
        self._group, self._origin, self._units = group, origin_us, units
        self._pulses: list[tuple[Array, Array, Mapping[str, Array]]] = []

    def add(self, ids: Array, times: Array, columns: Mapping[str, Array]) -> None:
        """Add the events of a pulse, at least one; `times`: [Unix us]."""
        self._pulses.append((ids, times, columns))
        if sum(len(ids) for ids, _, _ in self._pulses) >= MOST_EVENTS or len(self._pulses) >= _MOST_PULSES:
            self.flush()

    def flush(self) -> None:
        """Write the pulses."""
        if not self._pulses:
            return
        group, sizes = self._group, [len(ids) for ids, _, _ in self._pulses]
        zeros = np.array([int(times.min()) for _, times, _ in self._pulses], np.int64)
        first = append(group, "event_id", np.concatenate([ids for ids, _, _ in self._pulses]).astype(np.int64))
        offsets = np.concatenate([times for _, times, _ in self._pulses]) - np.repeat(zeros, sizes)
        append(group, "event_time_offset", offsets.astype(np.int64), units="us")
        append(group, "event_index", first + np.cumsum([0, *sizes[:-1]], dtype=np.int64))
        append(group, "event_time_zero", zeros - self._origin, units="us", offset=iso(self._origin))
        for name, unit in self._units.items():
            values = np.concatenate([columns[name] for _, _, columns in self._pulses])
            values = values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
            append(group, name, values, **({"units": unit} if unit or values.dtype.kind == "f" else {}))
        self._pulses.clear()


_PAGE = 64
"""Windows that are written together."""
_NEWEST: Final = "newest"
"""Log of the newest data time, which decides on the last value."""
_KEPT: Final = ("sum", "min", "max", "last")
"""Statistics of a field; deviations and sketches are left out."""
_MOST_FRAMES = 64
"""Frames that are kept before they are merged."""


class WindowGrid:
    """The windows of a stream: an NXlog for each statistic, over windows and groups.

    Parameters
    ----------
    begin_us, end_us
        Bounds of the begin of the windows [Unix us].
    units
        Unit of each field; others are left out.
    averaged
        Fields shown as means instead of sums.
    noun
        Noun for a group.
    most
        The most groups.
    """

    def __init__(
        self,
        parent: Any,
        begin_us: Time,
        end_us: Time,
        length_us: Duration,
        *,
        units: Mapping[str, str],
        averaged: set[str],
        noun: str,
        most: int,
    ) -> None:
        self._parent, self._origin, self._length = parent, begin_us, length_us
        first = -(-int(begin_us) // int(length_us))
        self._first = NEVER + first * length_us
        self.rows = max(-(-int(end_us) // int(length_us)) - first, 0)
        self._units, self._averaged, self._noun, self._most = units, averaged, noun, most
        self._frames: list[Frame] = []
        self._settled = self._first
        """Windows that begin before it are settled [Unix us]."""
        self._pages: set[int] = set()
        """Pages in the file."""
        self._width = 0
        self._names: dict[str, int] = {}

    def add(self, rows: Frame, group: str | None = None) -> None:
        """Add rows whose groups are numbers, or of a group with a name.

        Raises
        ------
        ValueError
            There are too many groups, or the window is settled.
        """
        number = (rows.window - self._first) // self._length
        there = (number >= 0) & (number < self.rows) & ~rows.late & (rows.count > 0)
        if not there.any():
            return
        rows, number = rows.take(there).without_runs(), number[there]
        if Time(int(rows.window.min())) < self._settled:
            raise ValueError("expected sums that come earlier: their window is written")
        groups = rows.group if group is None else np.full(len(rows), self._place(group))
        if not 0 <= int(groups.min()) <= int(groups.max()) < self._most:
            raise ValueError(f"expected groups from 0 to {self._most - 1}")
        self._width = max(self._width, int(groups.max()) + 1)
        kept = {name: _kept(one) for name, one in rows.fields.items() if name in self._units}
        self._frames.append(replace(rows, group=groups, epoch=np.zeros_like(groups), fields=kept))
        if len(self._frames) >= _MOST_FRAMES:
            self._frames = merge_alike(self._frames, epochs=False)

    def _place(self, group: str) -> int:
        if group not in self._names and len(self._names) >= self._most:
            raise ValueError(f"expected at most {self._most} groups")
        return self._names.setdefault(group, len(self._names))

    def settle(self, time_us: Time) -> None:
        """Write the pages whose windows begin before a time."""
        size = _PAGE * self._length
        until = self._first + (time_us - self._first) // size * size
        if until <= self._settled or not self._frames:
            return
        self._settled, merged = until, merge_alike(self._frames, epochs=False)
        self._frames = [left for one in merged if len(left := one.take(one.window >= until))]
        done = [one.take(one.window < until) for one in merged]
        for page in {page for one in done for page in distinct((one.window - self._first) // size)}:
            of_page = ((one.window - self._first) // size == page for one in done)
            self._write(page, [one.take(rows) for one, rows in zip(done, of_page, strict=True)])

    def _write(self, number: int, frames: Iterable[Frame]) -> None:
        self._pages.add(number)
        rows, arrays = self._slice(number), dict[str, Array]()
        for found in frames:
            at = (found.window - self._first) // self._length - rows.start, found.group
            columns = {"count": found.count, _NEWEST: found.time_max}
            for field, one in found.fields.items():
                columns |= {f"{field}_{name}": getattr(one, name) for name in one.form}
                if field in self._averaged and (total := columns.pop(f"{field}_sum", None)) is not None:
                    columns[f"{field}_mean"] = total / found.count
            for name, values in columns.items():
                if name not in arrays:
                    arrays[name] = np.full((rows.stop - rows.start, self._width), *_fill(name))
                arrays[name][at] = values
        for name, array in arrays.items():
            self._dataset(name, array.dtype)[rows, : self._width] = array

    def _slice(self, number: int) -> slice:
        return slice(number * _PAGE, min((number + 1) * _PAGE, self.rows))

    def _dataset(self, name: str, kind: Any) -> Any:
        """Return the values of a statistic, with a column for each group."""
        if name not in self._parent:
            group = child(self._parent, name, "NXlog")
            made = group.create_dataset(
                "value",
                (self.rows, self._width),
                kind,
                maxshape=(self.rows, None),
                chunks=(min(_PAGE, self.rows), 64),
                fillvalue=_fill(name)[0],
                **_PACKED,
            )
            if name == _NEWEST:
                made.attrs.update({"units": "us", "start": iso(NEVER)})
            elif name != "count":
                made.attrs["units"] = udunits(self._units.get(name.rpartition("_")[0], ""))
        dataset: Any = self._parent[name]["value"]
        if dataset.shape[1] < self._width:
            dataset.resize(self._width, 1)
        return dataset

    def finish(self, title: str, read_to_us: Time, rule: Rule) -> None:
        """Write the rest, the axes and the qualities.

        A window is VALID if the partitions were read up to its closing, CHANGING if not, and
        INVALID without any record.
        """
        self.settle(self._first + (self.rows + _PAGE) * self._length)
        logs = [self._parent[name] for name in self._parent]
        if not logs:
            return
        begins = self._first + np.arange(self.rows, dtype=np.int64) * self._length
        times = as_seconds(begins - self._origin)
        append(logs[0], "time", times, units="s", start=iso(self._origin))
        quality = self._dataset_of_quality(logs[0])
        for number in sorted(self._pages):
            rows = self._slice(number)
            closed = (rule.closed_at(begins[rows]) <= read_to_us)[:, np.newaxis]
            counts = self._dataset("count", np.dtype(np.int64))[rows]
            quality[rows] = np.where(counts == 0, 1, np.where(closed, 0, 3))
        names = [text(name) for name in self._names]
        append(logs[0], self._noun, np.arange(self._width))
        for log in logs:
            self._dataset(log.name.rpartition("/")[2], log["value"].dtype)
            for name in ("time", "quality", self._noun):
                if name not in log:
                    link(log, name, logs[0][name])
        if names:
            append(self._parent, f"{self._noun}_names", np.array(names, TEXT))
        values = {log.name.rpartition("/")[2]: log["value"] for log in logs}
        del values[_NEWEST]
        values = {"count": values.pop("count"), **values}  # the first one is drawn by default
        plot(self._parent, "plot", values, {name: logs[0][name] for name in ("time", self._noun)}, title)

    def _dataset_of_quality(self, log: Any) -> Any:
        shape = (self.rows, self._width)
        chunks = min(_PAGE, self.rows), min(64, self._width)
        quality = log.create_dataset("quality", shape, np.uint8, chunks=chunks, fillvalue=1, **_PACKED)
        quality.attrs["labels"] = QUALITIES
        return quality


def _fill(name: str) -> tuple[float, Any]:
    return (0, np.int64) if name in ("count", _NEWEST) else (np.nan, np.float64)


def _kept(one: FieldArrays) -> FieldArrays:
    return FieldArrays(**{name: getattr(one, name).astype(np.float64) for name in one.form if name in _KEPT})
