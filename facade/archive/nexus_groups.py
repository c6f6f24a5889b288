"""Groups of a NeXus file that grow during reading, in memory that does not depend on the number of records.

Theory of operation
-------------------
A dataset is chunked, compressed and resizable, and gets rows in large parts (`append`). No dataset stays open, so the
library's caches do not grow with the number of datasets.

`WindowGrid` is a grid of windows and groups, such as seconds and ingest nodes. Its partial sums are merged as device
servers merge them, some windows at a time (`facade.archive.sums`).

A dataset of several groups is stored once, with hard links to it. NeXus then requires the attribute `target`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from facade.archive.sums import Summed, Sums
from facade.kernel.clock import NEVER, Time, as_duration, as_seconds
from facade.kernel.icd.fields import Schema, first_name, kind
from facade.kernel.icd.topic_model import Window
from facade.kernel.icd.units import udunits
from facade.kernel.outcome import INCONSISTENT, RecordRejected
from facade.kernel.printable import excerpt, printable
from facade.kernel.windows.frame import Frame
from facade.kernel.windows.newest import Rule
from facade.sdp.arrays import Array

QUALITIES: Final = ("VALID", "INVALID", "ALARM", "CHANGING", "WARNING")
"""Tango's qualities; the numbers in the file are Tango's."""
TEXT: Final = h5py.string_dtype()
_ODD = re.compile(r"[^A-Za-z0-9_]", re.ASCII)
_CHUNK = 65_536
"""Size of a chunk [bytes]."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PACKED: Final = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
"""Filters that every HDF5 library has."""
_MOST_LABELS = 256


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


def append(group: Any, name: str, values: Any, **attributes: Any) -> int:
    """Append rows, arrays or a list of texts, to a dataset, which is created if needed; return where they begin."""
    values = values if isinstance(values, np.ndarray) else np.array([*map(text, values)], TEXT)
    if name not in group:
        row = values.shape[1:]
        size = max(int(np.prod(row)) * values.dtype.itemsize, 1)
        packed = {} if values.dtype == TEXT else _PACKED
        chunks, most = (max(_CHUNK // size, 1), *row), (None, *row)
        created = group.create_dataset(name, (0, *row), values.dtype, maxshape=most, chunks=chunks, **packed)
        if "units" in attributes:
            attributes["units"] = udunits(attributes["units"])
        created.attrs.update(attributes)
    dataset = group[name]
    begin = int(dataset.shape[0])
    dataset.resize(begin + len(values), 0)
    dataset[begin:] = values
    return begin


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


def link(group: Any, name: str, dataset: Any) -> None:
    """Link a dataset into another group."""
    dataset.attrs.setdefault("target", dataset.name)
    group[name] = dataset


def plot(group: Any, name: str, signals: Mapping[str, Any], axes: Mapping[str, Any], title: str) -> None:
    """Create a plot in a group from datasets in other groups; see `draw`."""
    data = child(group, name, "NXdata")
    for name, dataset in (*signals.items(), *axes.items()):
        link(data, name, dataset)
    data["title"] = text(title)
    more = range(len(axes), next(iter(signals.values())).ndim)
    draw(data, [*signals], [*axes, *(f"index_{place}" for place in more)])


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a number or of an array of numbers; None: it is something else."""
    try:
        shape = np.array(value, np.float64).shape
    except (ValueError, TypeError, OverflowError):
        return None
    return shape if value is not None and 0 not in shape else None


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
        self._group, self._origin, self._title, self._columns = group, origin_us, title, columns
        self.shape, self._unit = shape, unit
        self._labels = {label: number for number, label in enumerate(labels)}
        self._rows: list[tuple[Any, ...]] = []
        group["description"] = text(title)

    def add(self, time_us: Time, value: Any, said: str, columns: Sequence[Any]) -> None:
        """Add a row: a value, its text, and the columns in their order; a value of another shape is NaN."""
        if self.shape is None:
            if len(self._labels) < _MOST_LABELS:
                self._labels.setdefault(said, len(self._labels))
            value = self._labels.get(said, -1)
        elif shape_of(value) != self.shape:
            value = np.full(self.shape, np.nan)
        self._rows.append((time_us, value, *columns))

    def flush(self) -> None:
        """Write the rows."""
        if not self._rows:
            return
        times, values, *columns = zip(*self._rows, strict=True)
        self._rows.clear()
        seconds = as_seconds(np.array(times, np.int64) - self._origin)
        append(self._group, "time", seconds, units="s", start=iso(self._origin))
        kind, shape = (np.int64, ()) if self.shape is None else (np.float64, self.shape)
        append(self._group, "value", np.array(values, kind).reshape(-1, *shape), units=self._unit)
        for (name, (kind, attributes)), column in zip(self._columns.items(), columns, strict=True):
            append(self._group, name, column if kind == TEXT else np.array(column, kind), **attributes)

    def finish(self) -> None:
        """Write the rest, and the attributes for viewers."""
        self.flush()
        if self.shape is None:
            self._group["labels"] = np.array([*map(text, self._labels)], TEXT)
        parent, _, name = self._group.name.rpartition("/")
        plots = self._group.file.require_group(f"{parent}/plots")  # readers of an NXlog take no group within it
        plots.attrs["NX_class"] = "NXcollection"
        plot(plots, name, {"value": self._group["value"]}, {"time": self._group["time"]}, self._title)


def append_events(
    group: Any, origin_us: Time, pulses: Sequence[tuple[Array, Array, Mapping[str, Array]]], units: Mapping[str, str]
) -> None:
    """Append pulses to an NXevent_data: ids, times [Unix us] and columns of one or more events each.

    A pulse is a number of consecutive notifications. Indices have 64 bits. `units`: of the columns to write.
    """
    ids, times, columns = zip(*pulses, strict=True)
    sizes, zeros = [*map(len, ids)], np.array([one.min() for one in times], np.int64)
    first = append(group, "event_id", np.concatenate(ids).astype(np.int64))
    offsets = np.concatenate(times) - np.repeat(zeros, sizes)
    append(group, "event_time_offset", offsets.astype(np.int64), units="us")
    append(group, "event_index", first + np.cumsum([0, *sizes[:-1]], dtype=np.int64))
    append(group, "event_time_zero", zeros - origin_us, units="us", offset=iso(origin_us))
    for name, unit in units.items():
        values = np.concatenate([one[name] for one in columns])
        is_real = values.dtype.kind == "f"
        append(group, name, values.astype("f8" if is_real else "i8"), **({"units": unit} if unit or is_real else {}))


_PAGE = 64
"""Windows that are written together, and the groups of a chunk."""
_NEWEST: Final = "newest"
"""Log of the newest data time, which decides on the last value."""
_KEPT: Final = ("sum", "min", "max", "last")
"""Statistics of a field; deviations and sketches are left out."""


class WindowGrid:
    """The windows of a stream: an NXlog for each statistic, over windows and groups.

    Parameters
    ----------
    folder
        For temporary files.
    begin_us, end_us
        Bounds of the begin of the windows [Unix us].
    window
        The stream's windows, and the properties of its messages.
    """

    def __init__(
        self, folder: Path, begin_us: Time, end_us: Time, window: Window, properties: Mapping[str, Schema]
    ) -> None:
        rule = Rule(*map(as_duration, (window.length, window.disorder, window.ahead)))
        self._sums, self._origin, self._rule = Sums(folder), begin_us, rule
        first, end = (-(-int(time) // int(rule.length_us)) for time in (begin_us, end_us))
        self._first, self.rows = NEVER + first * rule.length_us, max(end - first, 0)
        self._noun, group = window.group or "group", properties.get(window.group or "", {})
        self._is_numbered = kind(group) == "integer"
        self._most = int(group.get("maximum", window.most_groups or 999)) + 1
        self._units = {first_name(name, part): str(part.get("x-unit", "")) for name, part in properties.items()}
        self._averaged = {first_name(name, part) for name, part in properties.items() if kind(part) == "number"}
        self._width = 0
        self._names: dict[str, int] = {}

    def add(self, found: Summed) -> RecordRejected | None:
        """Add the sums of a record; return the reason if some cannot be added."""
        try:
            for rows in found.frames:
                self._add(rows, found.group)
        except ValueError as error:
            return RecordRejected(INCONSISTENT, "$", excerpt(str(error)))
        return None

    def _add(self, rows: Frame, group: str | None) -> None:
        number = (rows.window - self._first) // self._rule.length_us
        there = (number >= 0) & (number < self.rows) & ~rows.late & (rows.count > 0)
        rows, number = rows.take(there), number[there]
        if not len(rows):
            return
        if group is not None:
            code = int(group) if self._is_numbered else self._names.get(group, len(self._names))
            rows = replace(rows, group=np.full(len(rows), code))
        if not 0 <= int(rows.group.min()) <= int(rows.group.max()) < self._most:
            raise ValueError(f"expected groups from 0 to {self._most - 1}")
        if group is not None and not self._is_numbered:
            self._names.setdefault(group, code)
        self._width = max(self._width, int(rows.group.max()) + 1)
        fields = {name: replace(one, m2=None, sketch=None) for name, one in rows.fields.items() if name in self._units}
        self._sums.add(replace(rows, fields=fields).without_runs(), number // _PAGE)

    def write(self, parent: Any, title: str, read_to_us: Time) -> None:
        """Write all.

        A window is VALID if the partitions were read up to its closing, CHANGING if not, and INVALID without any
        record.
        """
        if not self._sums.parts:
            return
        begins = self._first + np.arange(self.rows, dtype=np.int64) * self._rule.length_us
        logs = dict[str, Any]()
        quality = self._grid(parent, "quality", np.uint8, 1)
        quality.attrs["labels"] = QUALITIES
        for page in sorted(self._sums.parts):
            rows = slice(page * _PAGE, min((page + 1) * _PAGE, self.rows))
            arrays = dict[str, Array]()
            for frame in self._sums.records(page):
                at = (frame.window - begins[rows.start]) // self._rule.length_us, frame.group
                for name, values, about in self._columns(frame):
                    nothing = np.nan if values.dtype.kind == "f" else 0
                    if name not in logs:
                        logs[name] = child(parent, name, "NXlog")
                        self._grid(logs[name], "value", values.dtype, nothing).attrs.update(about)
                    shape = rows.stop - rows.start, self._width
                    arrays.setdefault(name, np.full(shape, nothing, values.dtype))[at] = values
            for name, array in arrays.items():
                logs[name]["value"][rows] = array
            is_closed = (self._rule.closed_at(begins[rows]) <= read_to_us)[:, np.newaxis]
            quality[rows] = np.where(arrays["count"] == 0, 1, np.where(is_closed, 0, 3))
        shared = logs[min(logs)]
        parent.move("quality", f"{shared.name}/quality")
        append(shared, "time", as_seconds(begins - self._origin), units="s", start=iso(self._origin))
        append(shared, self._noun, np.arange(self._width))
        for log, name in product(logs.values(), ("time", "quality", self._noun)):
            if name not in log:
                link(log, name, shared[name])
        if self._names:
            append(parent, f"{self._noun}_names", [*self._names])
        del logs[_NEWEST]
        drawn = {name: logs[name]["value"] for name in dict.fromkeys(("count", *sorted(logs)))}  # the default first
        plot(parent, "plot", drawn, {name: shared[name] for name in ("time", self._noun)}, title)

    def _columns(self, frame: Frame) -> Iterator[tuple[str, Array, Mapping[str, str]]]:
        """Return the statistics of merged rows, with the names of their logs and their attributes."""
        yield "count", frame.count, {}
        yield _NEWEST, frame.time_max, {"units": "us", "start": iso(NEVER)}
        for (field, one), name in product(frame.fields.items(), _KEPT):
            if (values := getattr(one, name)) is not None:
                is_mean = name == "sum" and field in self._averaged
                unit = {"units": udunits(self._units[field])}
                yield f"{field}_{'mean' if is_mean else name}", values / (frame.count if is_mean else 1.0), unit

    def _grid(self, group: Any, name: str, kind: Any, fill: float) -> Any:
        chunks = min(_PAGE, self.rows), min(_PAGE, self._width)
        return group.create_dataset(name, (self.rows, self._width), kind, chunks=chunks, fillvalue=fill, **_PACKED)
