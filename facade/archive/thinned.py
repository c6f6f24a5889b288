"""The history of an attribute as columns: thinned to bins of equal length for a plot, or whole for an analysis.

A value holds until the next one is recorded, as on the device. So the minimum, maximum and mean of a bin are those of
the values that the device showed within it, weighted by time, even if no value was recorded within the bin. If the
attribute was invalid or not recorded during the whole bin, the bin has no values, so a plot shows the gap.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from facade.archive.history import QUALITIES, SILENT_US, Columns, HistoryArchive, Series, number_of, text_of
from facade.archive.stores import open_store
from facade.kernel.clock import Time
from facade.kernel.errors import ConfigError
from facade.sdp.durations import parse_time


class Thinned(NamedTuple):
    """One row for each bin; the lists are of the same length."""

    time: list[Time]
    """Begin of the bin [Unix us]."""
    min: list[float | None]
    max: list[float | None]
    mean: list[float | None]
    last: list[Any]
    """Value shown last in the bin, which may be a text; None: none was valid."""
    quality: list[str | None]
    """The worst in the bin; None: the attribute was not recorded."""


def thin(archive: HistoryArchive, name: str, begin: Time, end: Time, bins: int) -> Thinned:
    """Return what an attribute showed in [begin, end) [Unix us], in `bins` bins."""
    # The first record after the end shows whether a value still held then.
    found = archive.find(name, begin, end + SILENT_US)
    edges = int(begin) + (np.arange(bins + 1, dtype=np.int64) * int(end - begin)) // bins
    if (columns := found.columns) is None:
        nothing: list[Any] = [None] * bins
        return Thinned(edges[:-1].tolist(), *([*nothing] for _ in range(5)))
    newest = archive.extent()[1]
    # Where the archive ends before the value would have been repeated, it held until then.
    until = newest if found.last < newest <= found.last + SILENT_US else found.last
    starts, ends = _held(found, columns, until, begin, end)
    values, numbers, quality = columns.value, _numbers(columns.value), columns.quality.astype(np.int64)
    # A piece is of one value and one bin.
    cuts = np.sort(np.concatenate([edges, starts, ends]), kind="stable")  # three sorted parts: faster than `unique`
    is_piece = np.diff(cuts) > 0
    pieces, length = cuts[:-1][is_piece], np.diff(cuts)[is_piece]
    bin_of = np.searchsorted(edges, pieces, "right") - 1
    value_of = np.searchsorted(starts, pieces, "right") - 1
    is_held = value_of >= 0
    is_held[is_held] = pieces[is_held] < ends[value_of[is_held]]
    bin_of, value_of, length = bin_of[is_held], value_of[is_held], length[is_held]
    worst = np.full(bins, -1)
    np.maximum.at(worst, bin_of, quality[value_of])
    is_valid = quality[value_of] < QUALITIES.index("INVALID")
    bin_of, value_of, length = bin_of[is_valid], value_of[is_valid], length[is_valid]
    last = np.full(bins, None, np.object_)
    last[bin_of] = values[value_of]  # the later ones replace the earlier ones
    shown, is_known = numbers[value_of], np.isfinite(numbers[value_of])
    bin_of, shown, length = bin_of[is_known], shown[is_known], length[is_known]
    low, high = np.full(bins, np.inf), np.full(bins, -np.inf)
    np.minimum.at(low, bin_of, shown)
    np.maximum.at(high, bin_of, shown)
    duration = np.bincount(bin_of, length, bins)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.clip(np.bincount(bin_of, length * shown, bins) / duration, low, high)
    return Thinned(
        edges[:-1].tolist(),
        _finite(low),
        _finite(high),
        _finite(mean),
        last.tolist(),
        [None if one < 0 else QUALITIES[one] for one in worst.tolist()],
    )


def _held(
    found: Series, columns: Columns, until: Time, begin: Time, end: Time
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return from when until when each value was shown, within [begin, end]."""
    starts = columns.at
    ends = np.append(starts[1:], int(until) + 1)
    for place in np.flatnonzero(np.isin(starts, list(found.gaps))).tolist():
        ends[place - 1] = int(found.gaps[Time(int(starts[place]))]) + 1
    return np.clip(starts, begin, end), np.clip(ends, begin, end)


def _numbers(values: npt.NDArray[np.object_]) -> npt.NDArray[np.float64]:
    """Return values as numbers; NaN: it is none."""
    if {*map(type, values.tolist())} <= {float, int}:  # a week has 600,000 of them
        return values.astype(np.float64)
    return np.fromiter(map(number_of, values.tolist()), np.float64, len(values))


def _finite(values: npt.NDArray[np.float64]) -> list[float | None]:
    return [one if known else None for one, known in zip(values.tolist(), np.isfinite(values).tolist(), strict=True)]


def history(device: str, attribute: str, begin: Any, end: Any, *, archive: str) -> pa.Table:
    """Return the history of an attribute from an archive, as a table for pandas or polars.

    Parameters
    ----------
    begin, end
        Times: texts by ISO 8601 (UTC unless they have a zone), or objects with `isoformat`, such as `datetime`.
    archive
        Folder of the archive, or its URL in an object store. It is opened once for each process, so a second look at
        the same days opens no file.

    Returns
    -------
    pyarrow.Table
        Columns `time` (of the data), `recorded` (when it was pushed), `value` (numbers; else texts, arrays as JSON),
        `quality` and `gap` (values may be missing before this one). ``.to_pandas()`` makes a data frame of pandas,
        ``polars.from_arrow`` one of polars.

    Raises
    ------
    ConfigError
        A time is none, or the begin is not before the end.
    ArchiveError
        The archive has no history of this attribute in this time, or cannot be read.
    """
    first, last = (
        parse_time(one if isinstance(one, str) else one.isoformat(), what)
        for one, what in ((begin, "begin"), (end, "end"))
    )
    if first >= last:
        raise ConfigError(f"begin: expected a time before the end, got {begin} and {end}")
    found = _opened(archive).read(f"{device}/{attribute}", first, last)
    columns = found.columns
    assert columns is not None, f"{device}/{attribute} has points"
    numbers = _numbers(columns.value)
    are_texts = any(one != "NaN" for one in columns.value[np.isnan(numbers)].tolist())
    moments = pa.timestamp("us", tz="UTC")
    return pa.table(
        {
            "time": pa.array(columns.time, moments),
            "recorded": pa.array(columns.at, moments),
            "value": pa.array([*map(text_of, columns.value.tolist())]) if are_texts else pa.array(numbers),
            "quality": pa.DictionaryArray.from_arrays(pa.array(columns.quality), [*QUALITIES]),
            "gap": pa.array(columns.gap),
        }
    )


@lru_cache(4)
def _opened(archive: str) -> HistoryArchive:
    return HistoryArchive(open_store(archive))
