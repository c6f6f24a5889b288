"""The history of attributes, from the files of an archive; see `facade.flows.archive.recording`.

A file is sorted by key, so only the row groups with the key are read. Files never change, so records that were read are
kept for later requests. For all values at a time only the files of the minutes before it are read, the newest first:
each attribute has a record there. Files of two archives in one folder overlap; each of their records counts once.

A plot is a line that holds a value until the next one. It is broken at a gap, at NaN and at infinity, and values that
are not VALID have a marker.
"""

import math
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain, compress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from facade.clock import MINUTE, NEVER, Duration, Time, as_duration, from_ms, to_ms, utc_text
from facade.errors import ConfigError, writing
from facade.flows.archive.files import ArchiveEntry, ArchiveError, by_partition, hour_in, no_archive, read_entry
from facade.flows.archive.reading import Taken, around, bounds, opened
from facade.flows.archive.recording import HISTORY, REPEAT
from facade.flows.archive.stores import Store
from facade.icd.model import Icd
from facade.icd.units import unit_of
from facade.instances import pattern_of
from facade.messages import History
from facade.printable import printable

SILENT_US = as_duration(1.5 * REPEAT)
"""Time without a record after which an attribute counts as not recorded [us]."""
_DISORDER_US = MINUTE
"""Largest step back of the times in a partition: the clocks of brokers differ [us]."""
_COLUMNS = ["offset", "timestamp", "key", "value"]
_READERS, _TOGETHER = 4, 16
"""Files read at the same time, and files of one call."""
_MOST_KEPT = 3000
"""Pairs of a file and an attribute with kept records: some days of one attribute."""
_MOST_SPANS = 100_000
_MOST_NAMES = 5

_decode_all = msgspec.json.Decoder(list[History]).decode
_decode_one = msgspec.json.Decoder(History).decode

Point = tuple[Time, History]
"""Time of recording, which is the time of the push [Unix us], and the value."""


@dataclass(slots=True)
class Series:
    """The history of one attribute."""

    points: list[Point] = field(default_factory=list)
    """Points. The first one may precede the requested time: it is the value at the begin, if that is known.

    A `gap` means that values may be missing before this one.
    """
    gaps: dict[Time, Time] = field(default_factory=dict)
    """By the time of a point with a gap, the time of the previous record: values may be missing in between."""
    last: Time = NEVER
    """Time of the last record: it may repeat the last point."""
    unreadable: int = 0


class _Rows(NamedTuple):
    """Records of a file."""

    offsets: list[int]
    keys: list[bytes]
    times: list[int]
    """[Unix ms]"""
    messages: list[History | None]
    """None: it is undecodable."""


_NONE = _Rows([], [], [], [])


class _OfKey(NamedTuple):
    """Records of one key in a file, in the order of the log, as columns, as a day has 86,400 of them."""

    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    """[Unix us]"""
    of_data: npt.NDArray[np.int64]
    """[Unix us]"""
    has_gap: npt.NDArray[np.bool_]
    messages: npt.NDArray[np.object_]
    """None: it is undecodable."""

    @property
    def is_readable(self) -> npt.NDArray[np.bool_]:
        """Return which of the records are decodable."""
        return np.fromiter((one is not None for one in self.messages), np.bool_, len(self.messages))

    def chosen(self, rows: npt.NDArray[Any]) -> "_OfKey":
        """Return some of the records."""
        return _OfKey(*(column[rows] for column in self))


class HistoryArchive:
    """The history of attributes in an archive.

    Each method raises `ArchiveError` if the archive has no history, or a file of it is unreadable, and names the file.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows_of = lru_cache(_MOST_KEPT)(self._read_rows)
        self._span = lru_cache(_MOST_SPANS)(self._read_span)

    def extent(self) -> tuple[Time, Time]:
        """Return the times of the first and the last record."""
        return self._extent(self._partitions())

    def read(self, name: str, begin: Time, end: Time) -> Series:
        """Return the history of an attribute in [begin, end) [Unix us]."""
        partitions = self._partitions()
        self._require(partitions, begin, end)
        found = self._find(partitions, name, begin, end)
        if not found.points:
            raise ArchiveError(self._nothing(partitions, name, begin, end))
        return found

    def find(self, name: str, begin: Time, end: Time) -> Series:
        """Return the history of an attribute in [begin, end) [Unix us]; no points if the archive has none."""
        return self._find(self._partitions(), name, begin, end)

    def _find(self, partitions: list[list[str]], name: str, begin: Time, end: Time) -> Series:
        key = name.encode()
        with ThreadPoolExecutor(_READERS) as pool:
            files = [*chain.from_iterable(self._of_time(partitions, begin - SILENT_US, end))]
            parts = [files[at : at + _TOGETHER] for at in range(0, len(files), _TOGETHER)]
            found = pool.map(lambda part: [self._rows_of(file, key) for file in part], parts)
            rows, taken = [_of_key(_NONE)], defaultdict[int, Taken](Taken)
            for entry, one in chain.from_iterable(found):
                rows.append(one.chosen(taken[entry.partition].is_new(entry.log, one.offsets)))
                taken[entry.partition].add(entry)
        every = _OfKey(*map(np.concatenate, zip(*rows, strict=True)))
        whole, unreadable = every.chosen(every.is_readable), every.times[~every.is_readable]
        order = np.lexsort((whole.offsets, whole.times))
        since, until = np.searchsorted(whole.times[order], (begin, end))
        chosen = order[max(since - 1, 0) : until]
        series = _series(whole, chosen) if len(chosen) else Series()
        series.unreadable = int(np.count_nonzero((begin <= unreadable) & (unreadable < end)))
        return series

    def at(self, time: Time) -> dict[str, Point]:
        """Return the values of all attributes at a time [Unix us], by name."""
        partitions = self._partitions()
        self._require(partitions, time, time + Duration(1))
        return self._at(partitions, time)

    def _at(self, partitions: list[list[str]], time: Time) -> dict[str, Point]:
        found: dict[bytes, tuple[int, History]] = {}
        begin, end = to_ms(time - SILENT_US), to_ms(time)
        files = chain.from_iterable(self._of_time(partitions, time - SILENT_US, time))
        for name in sorted(files, key=lambda name: self._span(name)[1], reverse=True):
            for _, key, at, one in zip(*self._newest_rows(name, begin, end, found), strict=True):
                found.update({key: (at, one)} if one is not None else self._readable(name, key, begin, end))
        named = sorted((key.decode(errors="replace"), from_ms(at), one) for key, (at, one) in found.items())
        return {name: (at, one) for name, at, one in named}

    def _readable(self, name: str, key: bytes, begin: int, end: int) -> dict[bytes, tuple[int, History]]:
        """Return the newest readable record of a key, if there is one."""
        _, rows = self._rows_of(name, key)
        is_of_time = (from_ms(begin) <= rows.times) & (rows.times <= from_ms(end))
        found = np.flatnonzero(is_of_time & rows.is_readable)
        return {key: (to_ms(Time(rows.times[found[-1]])), rows.messages[found[-1]])} if len(found) else {}

    # Files

    def _partitions(self) -> list[list[str]]:
        """Return the files of each partition in the order of its log."""
        found = [*by_partition(self._store.names(HISTORY)).values()]
        if not found:
            if not self._store.names():
                raise no_archive(self._store)
            what = f"{self._store}: expected an archive with the topic {HISTORY}, got one without it"
            raise ArchiveError(f"{what}: set SDP_HISTORY=true for the device servers, and archive the topic")
        return found

    def _extent(self, partitions: list[list[str]]) -> tuple[Time, Time]:
        hours = {name: hour_in(name) for files in partitions for name in files}
        first, last = min(hours.values()), max(hours.values())
        spans = [self._span(name) for name, hour in hours.items() if hour in (first, last)]
        return from_ms(min(begin for begin, _ in spans)), from_ms(max(end for _, end in spans))

    def _of_time(self, partitions: list[list[str]], begin: Time, end: Time) -> Iterator[list[str]]:
        """Return the files of each partition with records of a time [Unix us]."""
        begin, end = begin - _DISORDER_US, end + _DISORDER_US
        for files in partitions:
            spans = ((name, self._span(name)) for name in around(files, begin, end))
            yield [name for name, (first, last) in spans if last >= to_ms(begin) and first <= to_ms(end)]

    def _require(self, partitions: list[list[str]], begin: Time, end: Time) -> None:
        first, last = self._extent(partitions)
        if end <= first or begin > last + SILENT_US:
            asked = utc_text(begin) if end == begin + Duration(1) else f"{utc_text(begin)} to {utc_text(end)}"
            raise ArchiveError(f"expected a time from {utc_text(first)} to {utc_text(last)}, got {asked}")

    def _nothing(self, partitions: list[list[str]], name: str, begin: Time, end: Time) -> str:
        names = self._at(partitions, min(end, self._extent(partitions)[1]))
        lowered = {one.lower(): one for one in names}
        near = [one for one in lowered if one.endswith(f"/{name.lower()}")][:_MOST_NAMES]
        near = near or get_close_matches(name.lower(), lowered, _MOST_NAMES)
        what = f"{name}: expected DEVICE/ATTRIBUTE with records from {utc_text(begin)} to {utc_text(end)}, got none"
        return f"{what}; near ones: {', '.join(lowered[one] for one in near)}" if near else what

    def _read_span(self, name: str) -> tuple[int, int]:
        """Return the times of the first and the last record of a file [Unix ms]."""
        with opened(self._store, name) as file:
            times = [time for found in bounds(file, "timestamp") for time in found or ()]
        return min(times), max(times)

    def _read_rows(self, name: str, key: bytes) -> tuple[ArchiveEntry, _OfKey]:
        """Return the entry of a file, and its records of a key in the order of the log."""
        with opened(self._store, name) as file:
            entry = read_entry(file.metadata)
            groups = [
                group for group, found in enumerate(bounds(file, "key")) if found is None or found[0] <= key <= found[1]
            ]
            if not groups:
                return entry, _of_key(_NONE)
            read = file.read_row_groups(groups, _COLUMNS, use_threads=False)
            return entry, _of_key(_rows(read.filter(pc.equal(read["key"], key))))

    def _newest_rows(self, name: str, begin: int, end: int, known: Container[bytes]) -> _Rows:
        """Return the newest record in [begin, end] [Unix ms] of each key that is not known."""
        with opened(self._store, name, read_dictionary=["key"]) as file:
            read = file.read(["timestamp", "key"], use_threads=False).combine_chunks()
            times = read["timestamp"].cast(pa.int64()).to_numpy()
            (column,) = read["key"].unify_dictionaries().chunks
            rows = np.flatnonzero((begin <= times) & (times <= end) & column.is_valid().to_numpy(zero_copy_only=False))
            keys = column.dictionary.to_pylist()
            of_key = np.full(len(keys), -1)
            indices = column.indices.fill_null(0).to_numpy()  # with nulls they would be floats
            of_key[indices[rows]] = rows  # the last record of a key stays
            newest = np.sort(
                [row for row, key in zip(of_key.tolist(), keys, strict=True) if row >= 0 and key not in known]
            )
            if not len(newest):
                return _NONE
            sizes = np.array([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
            of_group = np.searchsorted(np.cumsum(sizes), newest, side="right")
            groups = np.unique(of_group)
            sizes[groups] = 0
            skipped = np.cumsum(sizes)  # rows of skipped groups
            found = file.read_row_groups(groups.tolist(), _COLUMNS, use_threads=False)
            return _rows(found.take(newest - skipped[of_group]))


def _rows(table: pa.Table) -> _Rows:
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    return _Rows(table["offset"].to_pylist(), table["key"].to_pylist(), times, _decode(table["value"].to_pylist()))


def _of_key(rows: _Rows) -> _OfKey:
    messages, count = rows.messages, len(rows.messages)
    return _OfKey(
        np.array(rows.offsets, np.int64),
        np.array(rows.times, np.int64) * 1000,
        np.fromiter((one.time if one else 0 for one in messages), np.int64, count),
        np.fromiter((one.gap if one else False for one in messages), np.bool_, count),
        np.fromiter(messages, np.object_, count),
    )


def _decode(values: list[bytes | None]) -> list[History | None]:
    try:
        found = _decode_all(b"[%b]" % b",".join(values))  # type: ignore[arg-type]  # in a third of the time of one by one
        if len(found) == len(values):
            return [*found]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):  # one of them is undecodable
        pass
    return [*map(_try, values)]


def _try(value: bytes | None) -> History | None:
    try:
        return _decode_one(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _series(rows: _OfKey, chosen: npt.NDArray[np.int64]) -> Series:
    """Return the points of some records, without repetitions."""
    times, of_data, has_gap = rows.times[chosen], rows.of_data[chosen], rows.has_gap[chosen]
    messages: list[History] = rows.messages[chosen].tolist()
    is_late = np.append(False, np.diff(times) > SILENT_US)
    for row in np.flatnonzero(is_late & ~has_gap).tolist():
        messages[row] = replace(messages[row], gap=True)
    has_gap = has_gap | is_late
    at = [*map(Time, times.tolist())]
    gaps = {at[row]: at[row - 1] for row in np.flatnonzero(has_gap).tolist() if row}
    is_point = np.full(len(times), True)
    for row in (np.flatnonzero((np.diff(of_data) == 0) & ~has_gap[1:]) + 1).tolist():
        one, before = messages[row], messages[row - 1]
        is_point[row] = (one.value, one.quality) != (before.value, before.quality)
    return Series([*compress(zip(at, messages, strict=True), is_point.tolist())], gaps, at[-1])


# Pictures

_COLOURS = {"WARNING": "tab:orange", "ALARM": "tab:red", "INVALID": "tab:gray"}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MOST_TEXTS = 20
_LINES = 16
"""Height of a plot in a terminal [lines]."""
_BESIDE = 14
"""Columns beside such a plot."""


class _Curve(NamedTuple):
    """The drawing of an attribute."""

    times: npt.NDArray[np.int64]
    """[Unix us]"""
    heights: npt.NDArray[np.float64]
    """NaN: the line is broken."""
    texts: list[str]
    """Texts at the heights 0, 1, 2 ..., if the values are texts."""
    marks: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]
    """Times and heights of the values with a quality that is not VALID."""


def unit_in(icd: Icd, name: str) -> str:
    """Return the unit of an attribute in the interface; empty: it has none, or the attribute is unknown."""
    device, _, attribute = name.lower().rpartition("/")
    units = {
        unit_of(icd, one)
        for device_class in icd.classes.values()
        if re.fullmatch(pattern_of(device_class.device), device)
        for one in device_class.attributes
        if one.name.lower() == attribute
    }
    return next(iter(units), "")


def draw(file: Path, name: str, unit: str, series: Series, begin: Time, end: Time) -> None:
    """Draw an attribute from `begin` to `end` [Unix us] to a file."""
    try:
        from matplotlib.figure import Figure  # takes a second to load
    except ImportError as error:
        raise ConfigError("pictures need matplotlib: pip install 'sdp-tango-facade[tables]'") from error
    curve = _curve(name, series, end)
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.step(_dates(curve.times), curve.heights, where="post", linewidth=1.0)
    for quality, (times, heights) in curve.marks.items():
        axes.plot(_dates(times), heights, ".", color=_COLOURS[quality], label=quality)
    if curve.texts:
        axes.set_yticks(range(len(curve.texts)), [*map(_drawable, curve.texts)], parse_math=False)
    if curve.marks:
        axes.legend()
    axes.set_title(_drawable(name), parse_math=False)
    axes.set_ylabel(_drawable(unit), parse_math=False)
    axes.set(xlabel="UTC", xlim=_dates([begin, end]))
    axes.grid(visible=True, alpha=0.3)
    try:
        with writing(file):
            figure.savefig(file)
    except ValueError as error:
        raise ConfigError(f"{file}: expected a file .svg, .png or .pdf") from error


def sketch(name: str, unit: str, series: Series, begin: Time, end: Time, width: int) -> str:
    """Return a drawing of an attribute for a terminal of some columns."""
    try:
        from plotille import Figure
    except ImportError as error:
        raise ConfigError("pictures in a terminal need plotille: pip install 'sdp-tango-facade[tables]'") from error
    curve = _curve(name, series, end)
    known = curve.heights[np.isfinite(curve.heights)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if curve.texts:
        low, high = -0.5, len(curve.texts) - 0.5
    elif low == high:
        low, high = low - 1, high + 1

    def label(val: Any, chars: int, delta: float, left: bool = False) -> str:
        if left:  # in columns, at the axis of time
            return utc_text(begin + round(val / columns * (end - begin)))[11:19].ljust(chars)
        if curve.texts:
            row = round(val + 0.5)
            return printable(curve.texts[row])[:chars].rjust(chars) if row < len(curve.texts) else ""
        return f"{val:.6g}".rjust(chars)

    figure = Figure()
    figure.width, figure.height, figure.with_colors = max(width - _BESIDE, 10), len(curve.texts) or _LINES, False
    columns = figure.width * 2
    figure.x_label = "UTC"
    figure.register_label_formatter(float, label)
    figure.set_x_limits(0, columns)
    figure.set_y_limits(low, high)
    places = np.clip((curve.times - begin) * columns // (end - begin), 0, columns)
    is_known = np.isfinite(curve.heights)
    for part in np.split(np.arange(len(places)), np.flatnonzero(np.diff(is_known)) + 1):
        if len(part) and is_known[part[0]]:
            figure.plot(*_thinned(places[part], curve.heights[part]))
    for quality, (times, heights) in curve.marks.items():
        at = np.clip((times - begin) * columns // (end - begin), 0, columns)
        if shown := {pair for pair in zip(at.tolist(), heights.tolist(), strict=True) if math.isfinite(pair[1])}:
            figure.scatter(*zip(*sorted(shown), strict=True), marker=quality[0])
    title = printable(f"{name} [{unit}]" if unit else name)
    drawn = figure.show().partition("\n")[2]  # without the name of the axis
    return "\n".join((title, drawn, *(f"{quality[0]}: {quality}" for quality in curve.marks)))


def _thinned(places: npt.NDArray[np.int64], heights: npt.NDArray[np.float64]) -> tuple[list[Any], list[Any]]:
    """Return the points of a step line that differ: at most five in each column."""
    columns, first = np.unique(places, return_index=True)
    last = heights[[*(first[1:] - 1), -1]]
    before = np.concatenate([heights[:1], last[:-1]])
    lows, highs = np.minimum.reduceat(heights, first), np.maximum.reduceat(heights, first)
    points = np.stack([before, heights[first], lows, highs, last], 1)
    return np.repeat(columns, points.shape[1]).tolist(), points.ravel().tolist()


def _curve(name: str, series: Series, end: int) -> _Curve:
    messages = [one for _, one in series.points]
    heights, texts = _heights(name, [one.value for one in messages])
    steps: list[tuple[int, float]] = []
    for (recorded, one), height in zip(series.points, heights, strict=True):
        time = one.time
        if (known := series.gaps.get(recorded)) is not None:
            steps += [(known, steps[-1][1]), (known, math.nan)]
            time = time if time > known else recorded  # a value from before the gap
        steps.append((time, height))
    if messages:
        steps.append((max(steps[-1][0], min(series.last, end)), heights[-1]))
    marks = {}
    for quality in _COLOURS:
        if chosen := [row for row, one in enumerate(messages) if one.quality == quality]:
            marks[quality] = np.array([messages[row].time for row in chosen]), np.array(heights)[chosen]
    return _Curve(np.array([time for time, _ in steps]), np.array([height for _, height in steps]), texts, marks)


def _heights(name: str, values: Sequence[Any]) -> tuple[list[float], list[str]]:
    """Return the heights of values, and the texts at 0, 1, 2 ... if they are texts."""
    numbers: list[Any] = [_NOT_FINITE.get(value, value) if isinstance(value, str) else value for value in values]
    if all(isinstance(one, int | float) for one in numbers):
        return [float(one) if math.isfinite(one) else math.nan for one in numbers], []
    texts = sorted({str(value) for value in values})
    if not all(isinstance(value, str) for value in values) or len(texts) > _MOST_TEXTS:
        raise ConfigError(f"{name}: expected numbers, or at most {_MOST_TEXTS} different texts to draw; try --csv")
    return [float(texts.index(value)) for value in values], texts


def _drawable(text: str) -> str:
    return printable(text).encode("ascii", "backslashreplace").decode()  # the font may lack other characters


def _dates(times: Iterable[int]) -> Any:
    return np.fromiter(times, np.int64).astype("datetime64[us]")
