"""The history of attributes, from the files of an archive; see `facade.archive.recording`.

A file is sorted by key, so only the row groups with the key are read. They are read by pyarrow, which verifies the
checksums of pages. Files never change, so records that were read are kept for later requests, as arrays. Files of two
archives in one folder overlap; each of their records counts once.

A plot is a line that holds a value until the next one. It is broken at a gap, at NaN and at infinity, and values that
are not VALID have a marker.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from facade.archive.files import ArchiveError, hour_in, no_archive
from facade.archive.newest import NewestRecords, ReadCache
from facade.archive.reading import read_keyed
from facade.archive.recording import HISTORY, REPEAT
from facade.archive.stores import Store
from facade.kernel.clock import NEVER, Duration, Time, as_duration, utc_text
from facade.kernel.errors import ConfigError, writing
from facade.kernel.icd.model import DeviceClass, Icd
from facade.kernel.icd.units import unit_of
from facade.kernel.instances import pattern_of
from facade.kernel.printable import printable
from facade.sdp.messages import History

SILENT_US = as_duration(1.5 * REPEAT)
"""Time without a record after which an attribute counts as not recorded [us]."""
_MOST_KEPT = 3000
"""Pairs of a file and an attribute with kept records: some days of one attribute."""
_MOST_NAMES = 5

_decode_one = msgspec.json.Decoder(History).decode

QUALITIES: Final = ("VALID", "WARNING", "ALARM", "INVALID")
"""From the best to the worst."""
_PLACES: Final = {one: place for place, one in enumerate(QUALITIES)}
_NO_TIME = Time(-1)
_NOTHING = History(device="", attribute="", value="", time=_NO_TIME)
"""Stands for a record that is no message."""

Point = tuple[Time, History]
"""Time of recording, which is the time of the push [Unix us], and the value."""


@dataclass(slots=True)
class Series:
    """The history of one attribute."""

    gaps: dict[Time, Time] = field(default_factory=dict)
    """By the time of a point with a gap, the time of the previous record: values may be missing in between."""
    last: Time = NEVER
    """Time of the last record: it may repeat the last point."""
    unreadable: int = 0
    columns: "Columns | None" = None
    """The points as arrays; None: there are none."""
    messages: Sequence[History] = ()
    """Their messages."""

    @property
    def points(self) -> list[Point]:
        """Return the points.

        The first one may precede the requested time: it is the value at the begin, if that is known. A `gap` means that
        values may be missing before this one.
        """
        if self.columns is None:
            return []
        rows = zip(self.columns.at.tolist(), self.messages, self.columns.gap.tolist(), strict=True)
        return [(at, replace(one, gap=True) if gap else one) for at, one, gap in rows]


class Columns(NamedTuple):
    """Points as arrays of shape (points,)."""

    at: npt.NDArray[np.int64]
    """Time of recording [Unix us]."""
    time: npt.NDArray[np.int64]
    """Time of the data [Unix us]."""
    quality: npt.NDArray[np.int8]
    """Place in `QUALITIES`."""
    value: npt.NDArray[np.object_]
    gap: npt.NDArray[np.bool_]


class _Read(NamedTuple):
    """Records of one attribute in a file, in any order; all arrays are of shape (records,)."""

    log: str
    """Log that counts the offsets."""
    offset: npt.NDArray[np.int64]
    at: npt.NDArray[np.int64]
    """Time of recording [Unix us]."""
    messages: npt.NDArray[np.object_]
    """None: it is undecodable."""
    time: npt.NDArray[np.int64]
    """Time of the data [Unix us]."""
    quality: npt.NDArray[np.int8]
    value: npt.NDArray[np.object_]
    gap: npt.NDArray[np.bool_]


def _series(read: Sequence[_Read], begin: Time, end: Time) -> Series:
    """Return the points of a time.

    A point is a record that differs from the record before it in value, quality or time, or that follows a gap.
    """
    logs = {one.log: number for number, one in enumerate(read)}
    log = np.repeat([logs[one.log] for one in read], [len(one.at) for one in read])
    offset, at, *others = (np.concatenate([one[column] for one in read]) for column in range(1, len(_Read._fields)))
    # Each record once, and in the order of time.
    order = np.lexsort((offset, log))
    again = np.zeros(len(order), dtype=np.bool_)
    again[1:] = (np.diff(offset[order]) == 0) & (np.diff(log[order]) == 0)
    once = order[~again]
    once = once[np.lexsort((offset[once], at[once]))]
    is_readable = others[1][once] != _NO_TIME
    unreadable = int(np.count_nonzero(~is_readable & (at[once] >= begin) & (at[once] < end)))
    once = once[is_readable]
    # The last record before the time is the value at its begin.
    once = once[max(np.searchsorted(at[once], begin) - 1, 0) : np.searchsorted(at[once], end)]
    if not len(once) or (len(once) == 1 and at[once[0]] < begin - SILENT_US):  # recording had ended before
        return Series(unreadable=unreadable)
    at, messages, time, quality, value, has_gap = (one[once] for one in (at, *others))
    has_gap[1:] |= np.diff(at) > SILENT_US
    is_point = has_gap.copy()
    is_point[0] = True
    for column in (time, quality, value):
        is_point[1:] |= np.not_equal(column[1:], column[:-1]).astype(np.bool_)
    rows = np.flatnonzero(has_gap[1:]) + 1
    gaps = dict(zip(at[rows].tolist(), at[rows - 1].tolist(), strict=True))
    columns = Columns(*(one[is_point] for one in (at, time, quality, value, has_gap)))
    return Series(gaps, Time(int(at[-1])), unreadable, columns, messages[is_point].tolist())


class HistoryArchive:
    """The history of attributes in an archive.

    Each method raises `ArchiveError` if the archive has no history, or a file of it is unreadable, and names the file.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows_of = ReadCache(self._read_rows, _MOST_KEPT)
        self._newest = NewestRecords(store, HISTORY, _decoded)

    def extent(self) -> tuple[Time, Time]:
        """Return the times of the first and the last record."""
        return self._extent(self._partitions())

    def read(self, name: str, begin: Time, end: Time) -> Series:
        """Return the history of an attribute in [begin, end) [Unix us]."""
        partitions = self._partitions()
        self._require(partitions, begin, end)
        found = self._find(name, begin, end)
        if found.columns is None:
            raise ArchiveError(self._nothing(partitions, name, begin, end))
        return found

    def find(self, name: str, begin: Time, end: Time) -> Series:
        """Return the history of an attribute in [begin, end) [Unix us]; no points if the archive has none."""
        self._partitions()
        return self._find(name, begin, end)

    def _find(self, name: str, begin: Time, end: Time) -> Series:
        key = name.encode()
        read = self._rows_of.each([(file, key) for file in self._newest.files(begin - SILENT_US, end)])
        return _series(read, begin, end) if read else Series()  # none: a gap, or the worker is behind

    def at(self, time: Time) -> dict[str, Point]:
        """Return the values of all attributes at a time [Unix us], by name."""
        partitions = self._partitions()
        self._require(partitions, time, time + Duration(1))
        return self._at(time - SILENT_US, time)

    def advance(self, known: dict[str, Point], time: Time, later: Time) -> dict[str, Point | None]:
        """Bring the values of a time to a later one, and return what changed by name; None: it is no longer known."""
        self._require(self._partitions(), later, later + Duration(1))
        newest = self._at(time + Duration(1), later)
        changed = {name: one for name, one in newest.items() if name not in known or one[1] != known[name][1]}
        known |= newest
        gone = [name for name, (at, _) in known.items() if at < later - SILENT_US]
        for name in gone:
            del known[name]
        return changed | dict.fromkeys(gone)

    def _at(self, begin: Time, time: Time) -> dict[str, Point]:
        newest = self._newest.at(begin, time)
        return {key.decode(errors="replace"): (one.at, one.content) for key, one in sorted(newest.items())}

    # Files

    def _partitions(self) -> list[list[str]]:
        """Return the files of each partition in the order of its log."""
        found = self._newest.partitions()
        if not found:
            if not self._store.names():
                raise no_archive(self._store)
            what = f"{self._store}: expected an archive with the topic {HISTORY}, got one without it"
            raise ArchiveError(f"{what}: set SDP_HISTORY=true for the device servers, and archive the topic")
        return found

    def _extent(self, partitions: list[list[str]]) -> tuple[Time, Time]:
        hours = {name: hour_in(name) for files in partitions for name in files}
        first, last = min(hours.values()), max(hours.values())
        spans = [self._newest.span(name) for name, hour in hours.items() if hour in (first, last)]
        begin, end = min(begin for begin, _ in spans), max(end for _, end in spans)
        if begin > end:
            raise ArchiveError(f"{self._store}: expected records of the topic {HISTORY}, got files without any")
        return begin, end

    def _require(self, partitions: list[list[str]], begin: Time, end: Time) -> None:
        first, last = self._extent(partitions)
        if end <= first or begin > last + SILENT_US:
            asked = utc_text(begin) if end == begin + Duration(1) else f"{utc_text(begin)} to {utc_text(end)}"
            raise ArchiveError(f"expected a time from {utc_text(first)} to {utc_text(last)}, got {asked}")

    def _nothing(self, partitions: list[list[str]], name: str, begin: Time, end: Time) -> str:
        last = min(end, self._extent(partitions)[1])
        names = self._at(last - SILENT_US, last)
        lowered = {one.lower(): one for one in names}
        near = [one for one in lowered if one.endswith(f"/{name.lower()}")][:_MOST_NAMES]
        near = near or get_close_matches(name.lower(), lowered, _MOST_NAMES)
        what = f"{name}: expected DEVICE/ATTRIBUTE with records from {utc_text(begin)} to {utc_text(end)}, got none"
        return f"{what}; near ones: {', '.join(lowered[one] for one in near)}" if near else what

    def _read_rows(self, place: tuple[str, bytes]) -> _Read:
        """Return the records of a key in a file."""
        name, key = place
        log, read = read_keyed(self._store, name, "key", key, key)
        messages = [_decoded(value) for value in read["value"].to_pylist()]
        some = [_NOTHING if one is None else one for one in messages]
        return _Read(
            log,
            read["offset"].to_numpy(),
            read["at_us"].to_numpy(),
            _objects(messages),
            np.fromiter((one.time for one in some), np.int64, len(some)),
            np.fromiter((_PLACES[one.quality] for one in some), np.int8, len(some)),
            _objects([one.value for one in some]),
            np.fromiter((one.gap for one in some), np.bool_, len(some)),
        )


_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def number_of(value: Any) -> float:
    """Return a value of a record as a number; NaN: it is none."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value, math.nan)
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # JSON has integers of any size
        return math.inf if value > 0 else -math.inf


def text_of(value: Any) -> str:
    """Return a value of a record as text: of a number or an array, its JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _objects(some: Sequence[Any]) -> npt.NDArray[np.object_]:
    return np.fromiter(some, np.object_, len(some))  # `array` would make a matrix of lists


def _decoded(value: bytes | None) -> History | None:
    try:
        return _decode_one(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


# Pictures

_COLOURS = {"WARNING": "tab:orange", "ALARM": "tab:red", "INVALID": "tab:gray"}
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
    kind = class_in(icd, device)
    attributes = () if kind is None else kind.attributes
    return next((unit_of(icd, one) for one in attributes if one.name.lower() == attribute), "")


def class_in(icd: Icd, device: str) -> DeviceClass | None:
    """Return the class of a device by its name; None: it is not in the interface."""
    fits = (one for one in icd.classes.values() if re.fullmatch(pattern_of(one.device), device.lower()))
    return next(fits, None)


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


def _curve(name: str, series: Series, end: Time) -> _Curve:
    messages = [one for _, one in series.points]
    heights, texts = _heights(name, [one.value for one in messages])
    steps: list[tuple[Time, float]] = []
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
        return [one if math.isfinite(one) else math.nan for one in map(number_of, numbers)], []
    texts = sorted({str(value) for value in values})
    if not all(isinstance(value, str) for value in values) or len(texts) > _MOST_TEXTS:
        raise ConfigError(f"{name}: expected numbers, or at most {_MOST_TEXTS} different texts to draw; try --csv")
    return [float(texts.index(value)) for value in values], texts


def _drawable(text: str) -> str:
    return printable(text).encode("ascii", "backslashreplace").decode()  # the font may lack other characters


def _dates(times: Iterable[Any]) -> Any:
    return np.fromiter(times, np.int64).astype("datetime64[us]")
