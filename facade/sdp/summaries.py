"""Frames as the messages on summary topics have them: the columns of a rack, and the partials of a group."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from msgspec.structs import replace

from facade.kernel.windows.frame import STATISTICS, Counts, FieldArrays, Frame, Runs
from facade.sdp.messages import FieldColumns, FieldStatistics, IngestSummary, Partial, RackSummary, TelemetrySummary

__all__ = ["COLUMNS", "as_frames", "as_partials", "columns_of", "frame_of", "frames_of", "lengths"]

COLUMNS = ("epoch", "window", "late", "count", "time_min", "time_max", "runs")
"""Columns of a rack's summary beside node and fields, in the order of a partial."""


def lengths(summary: RackSummary) -> Iterator[tuple[str, int]]:
    """Return the length of each column; all must be as long as `node`."""
    columns = [(name, getattr(summary, name)) for name in ("node", *COLUMNS)]
    for field, found in summary.fields.items():
        columns += [(f"fields.{field}.{name}", getattr(found, name)) for name in STATISTICS]
    return ((name, len(values)) for name, values in columns if values is not None)


def frame_of(summary: RackSummary) -> Frame:
    """Return the rows of a summary whose columns are of one length; groups are nodes."""
    return _frame(summary.node, {name: getattr(summary, name) for name in COLUMNS}, summary.fields)


def frames_of(
    summary: RackSummary | IngestSummary | TelemetrySummary, wanted: Mapping[str, Collection[str]] | None = None
) -> list[Frame]:
    """Return the rows of a summary from anywhere, whose groups are the nodes, or 0 for a named group.

    `wanted` has the statistics to return of each field, because each takes its time; None: all statistics.

    Raises
    ------
    ValueError
        Columns of a rack have different lengths.
    OverflowError
        A whole number has more than 64 bits.
    """
    if not isinstance(summary, RackSummary):
        return as_frames(summary.node if isinstance(summary, IngestSummary) else 0, summary.partials)
    if len({count for _, count in lengths(summary)}) > 1:
        raise ValueError("expected columns of one length")
    if wanted is None:
        return [frame_of(summary)]
    fields = {
        name: FieldColumns(**{statistic: getattr(one, statistic) for statistic in wanted.get(name, ())})
        for name, one in summary.fields.items()
    }
    return [frame_of(replace(summary, fields=fields))]


def as_frames(code: int, partials: Iterable[Partial]) -> list[Frame]:
    """Return partials of the group with a code as frames of one row."""
    return [
        _frame(
            [code],
            {name: [getattr(one, name)] for name in COLUMNS},
            {name: _single(statistics) for name, statistics in one.fields.items()},
        )
        for one in partials
    ]


def as_partials(rows: Frame) -> Iterator[tuple[int, Partial]]:
    """Return the rows of a frame as partials, each with the code of its group."""
    columns = [getattr(rows, name).tolist() for name in COLUMNS if name != "runs"]
    statistics = [_statistics(one, len(rows)) for one in rows.fields.values()]
    fields = (dict(zip(rows.fields, row, strict=True)) for row in zip(*statistics, strict=True))
    of_rows = fields if statistics else iter(dict, None)
    partials = map(Partial, *columns, rows.runs.as_lists(len(rows)), of_rows)
    return zip(rows.group.tolist(), partials, strict=True)


def _single(statistics: FieldStatistics) -> FieldColumns:
    known = ((name, getattr(statistics, name)) for name in STATISTICS)
    return FieldColumns(**{name: None if value is None else [value] for name, value in known})


def _statistics(one: FieldArrays, rows: int) -> list[FieldStatistics]:
    columns = [
        [None] * rows if (values := getattr(one, name)) is None
        else values.as_dicts(rows) if isinstance(values, Counts)
        else values.tolist()
        for name in STATISTICS
    ]  # fmt: skip
    return list(map(FieldStatistics, *columns))


def _frame(groups: Sequence[int], columns: Mapping[str, Sequence[Any]], fields: Mapping[str, FieldColumns]) -> Frame:
    sizes = [len(runs) for runs in columns["runs"]]
    flat = np.array([run for runs in columns["runs"] for run in runs], dtype=np.int64).reshape(-1, 2)
    whole = ("epoch", "window", "count", "time_min", "time_max")
    return Frame(
        group=np.array(groups, dtype=np.int64),
        late=np.array(columns["late"], dtype=np.bool_),
        runs=Runs(np.repeat(np.arange(len(sizes)), sizes), flat[:, 0], flat[:, 1]),
        fields={name: _arrays(one) for name, one in fields.items()},
        **{name: np.array(columns[name], dtype=np.int64) for name in whole},
    )


def _arrays(columns: FieldColumns) -> FieldArrays:
    found: dict[str, Any] = {}
    for name in STATISTICS:
        if (values := getattr(columns, name)) is not None:
            found[name] = _counts(values) if name == "sketch" else np.array(values)
    return FieldArrays(**found)


def _counts(sketches: Sequence[Mapping[int, int]]) -> Counts:
    row = np.repeat(np.arange(len(sketches)), [len(one) for one in sketches])
    bucket = np.fromiter(chain.from_iterable(sketches), np.int64, len(row))
    count = np.fromiter(chain.from_iterable(one.values() for one in sketches), np.int64, len(row))
    if np.any((row[1:] == row[:-1]) & (bucket[1:] < bucket[:-1])):
        order = np.lexsort((bucket, row))
        bucket, count = bucket[order], count[order]
    return Counts(row, bucket, count)


def columns_of(rows: Frame) -> dict[str, Any]:
    """Return the columns of a rack's summary, whose nodes are the groups of some rows."""
    found: dict[str, Any] = {name: getattr(rows, name).tolist() for name in COLUMNS if name != "runs"}
    fields = {name: FieldColumns(**_lists(one, len(rows))) for name, one in rows.fields.items()}
    return found | {"node": rows.group.tolist(), "runs": rows.runs.as_lists(len(rows)), "fields": fields}


def _lists(one: FieldArrays, rows: int) -> dict[str, Any]:
    arrays = ((name, getattr(one, name)) for name in one.form)
    return {name: found.as_dicts(rows) if isinstance(found, Counts) else found.tolist() for name, found in arrays}
