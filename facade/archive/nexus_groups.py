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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from facade.kernel.printable import printable
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

LogColumn = tuple[Any, Mapping[str, Any], Callable[[Any], Any]]
"""Type and attributes of a column, and its cell for a message."""


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


@dataclass(slots=True)
class Log:
    """An NXlog: a value and further columns as functions of time.

    A text value is stored as the number of its label, which any viewer can draw; -1: another text than the first 256.
    A value of another shape than its log's is NaN.
    """

    group: Any
    origin_us: Time
    """The time that is 0 in the file [Unix us]."""
    title: str
    time: str
    """Field of a message with its time."""
    value: Callable[[Any], Any]
    columns: Mapping[str, LogColumn]
    shape: tuple[int, ...] | None = None
    """Shape of a number or an array of numbers; None: the value is a text."""
    unit: str = ""
    labels: list[str] = field(default_factory=list)

    def append(self, items: Sequence[Any]) -> None:
        """Append messages."""
        times = np.array([getattr(one, self.time) for one in items], np.int64)
        append(self.group, "time", as_seconds(times - self.origin_us), units="s", start=iso(self.origin_us))
        if self.shape is None:
            values = self._numbers([self.value(one) for one in items])
        else:
            nothing = np.full(self.shape, np.nan)
            found = (self.value(one) for one in items)
            values = np.array([one if shape_of(one) == self.shape else nothing for one in found], np.float64)
        append(self.group, "value", values, units=self.unit)
        for name, (of, about, cell) in self.columns.items():
            cells = [*map(cell, items)]
            append(self.group, name, cells if of == TEXT else np.array(cells, of), **about)

    def _numbers(self, texts: Sequence[str]) -> Array:
        self.labels = [*dict.fromkeys((*self.labels, *texts))][: max(_MOST_LABELS, len(self.labels))]
        numbers = {label: number for number, label in enumerate(self.labels)}
        return np.array([numbers.get(one, -1) for one in texts], np.int64)

    def finish(self) -> None:
        """Write the labels, and what viewers need."""
        if self.shape is None:
            self.group["labels"] = np.array([*map(text, self.labels)], TEXT)
        self.group["description"] = text(self.title)
        parent, _, name = self.group.name.rpartition("/")
        plots = self.group.file.require_group(f"{parent}/plots")  # readers of an NXlog take no group within it
        plots.attrs["NX_class"] = "NXcollection"
        plot(plots, name, {"value": self.group["value"]}, {"time": self.group["time"]}, self.title)


def append_events(
    group: Any, origin_us: Time, pulses: Sequence[Mapping[str, Array]], units: Mapping[str, str], window: Window
) -> None:
    """Append pulses, columns of one or more consecutive notifications each, to an NXevent_data.

    `units`: of the columns. Indices have 64 bits.
    """
    columns = {name: np.concatenate([one[name] for one in pulses]) for name in units}
    times, sizes = columns.pop(window.time), [len(one[window.time]) for one in pulses]
    zeros = np.array([one[window.time].min() for one in pulses], np.int64)
    ids = columns.pop(window.group or "", np.zeros_like(times))
    first = append(group, "event_id", ids.astype(np.int64))
    append(group, "event_time_offset", (times - np.repeat(zeros, sizes)).astype(np.int64), units="us")
    append(group, "event_index", first + np.cumsum([0, *sizes[:-1]], dtype=np.int64))
    append(group, "event_time_zero", zeros - origin_us, units="us", offset=iso(origin_us))
    for name, values in columns.items():
        is_real = values.dtype.kind == "f"
        about = {"units": units[name]} if units[name] or is_real else {}
        append(group, name, values.astype("f8" if is_real else "i8"), **about)


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
        The stream's windows.
    parts
        Properties of its messages.
    """

    def __init__(self, folder: Path, begin_us: Time, end_us: Time, window: Window, parts: Mapping[str, Schema]) -> None:
        rule = Rule(*map(as_duration, (window.length, window.disorder, window.ahead)))
        self._sums, self._origin, self._rule = Sums(folder), begin_us, rule
        first, end = (-(-int(time) // int(rule.length_us)) for time in (begin_us, end_us))
        self._first, self.rows = NEVER + first * rule.length_us, max(end - first, 0)
        self._noun, group = window.group or "group", parts.get(window.group or "", {})
        self._is_numbered = kind(group) == "integer"
        self._most = int(group.get("maximum", window.most_groups or 999)) + 1
        self._units = {first_name(name, part): str(part.get("x-unit", "")) for name, part in parts.items()}
        self._averaged = {first_name(name, part) for name, part in parts.items() if kind(part) == "number"}
        self._width = 0
        self._names: dict[str, int] = {}

    def add(self, found: Summed) -> RecordRejected | None:
        """Add the sums of a record; return the reason if some cannot be added."""
        for rows in found.frames:
            number = (rows.window - self._first) // self._rule.length_us
            there = (number >= 0) & (number < self.rows) & ~rows.late & (rows.count > 0)
            if not there.any():
                continue
            rows = rows.take(there)
            group = rows.group if found.group is None else np.full(len(rows), self._code(found.group))
            if not 0 <= int(group.min()) <= int(group.max()) < self._most:
                return RecordRejected(INCONSISTENT, "$", f"expected groups from 0 to {self._most - 1}")
            self._width = max(self._width, int(group.max()) + 1)
            fields = {
                name: replace(one, m2=None, sketch=None) for name, one in rows.fields.items() if name in self._units
            }
            self._sums.add(replace(rows, group=group, fields=fields).without_runs(), number[there] // _PAGE)
        return None

    def _code(self, group: str) -> int:
        """Return the number of a group by its name; -1: it has none."""
        if self._is_numbered:
            return int(group) if group.isdecimal() else -1
        if len(self._names) < self._most:
            self._names.setdefault(group, len(self._names))
        return self._names.get(group, -1)

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
        for name, log in product(("time", "quality", self._noun), logs.values()):
            if name not in log:
                link(log, name, shared[name])
        if self._names:
            append(parent, f"{self._noun}_names", [*self._names])
        drawn = {name: logs[name]["value"] for name in ("count", *sorted(logs.keys() - {"count", _NEWEST}))}
        plot(parent, "plot", drawn, {name: shared[name] for name in ("time", self._noun)}, title)

    def _columns(self, frame: Frame) -> Iterator[tuple[str, Array, Mapping[str, str]]]:
        """Return the statistics of merged rows, with the names of their logs and their attributes."""
        yield "count", frame.count, {}
        yield _NEWEST, frame.time_max, {"units": "us", "start": iso(NEVER)}
        for (of, one), name in product(frame.fields.items(), _KEPT):
            if (values := getattr(one, name)) is not None:
                is_mean = name == "sum" and of in self._averaged
                unit = {"units": udunits(self._units[of])}
                yield f"{of}_{'mean' if is_mean else name}", values / (frame.count if is_mean else 1.0), unit

    def _grid(self, group: Any, name: str, kind: Any, fill: float) -> Any:
        chunks = min(_PAGE, self.rows), min(_PAGE, self._width)
        return group.create_dataset(name, (self.rows, self._width), kind, chunks=chunks, fillvalue=fill, **_PACKED)
