"""Summaries of a rack: the partial sums of its nodes as columns of a record.

All rows of a record have the same statistics, so its columns have no gaps; rows with others go into another record.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from facade.flows.telemetry.consistency import are_bounded
from facade.flows.telemetry.partial import MAX_RUNS
from facade.kernel.windows.frame import Frame
from facade.sdp.summaries import COLUMNS, columns_of

_ROW, _FIELD, _BUCKET, _RUN = 128, 128, 28, 36
"""Upper bounds of bytes: a row without its parts, the numbers of a field, a bucket with its count, a run."""


def tables(rack: Frame, most_bytes: int) -> Iterator[dict[str, Any]]:
    """Divide the rows of a rack, whose groups are nodes, into records of a size; return the columns of each."""
    runs = np.bincount(rack.runs.row, minlength=len(rack))
    # Readers refuse a record with an unbounded number: it must not harm other rows. Runs beyond a limit go into entries
    # of their own, right after the first, so that no record grows without bound.
    alone = runs > MAX_RUNS
    for one in rack.fields.values():
        alone |= ~are_bounded(one)
    begin = 0
    for row in np.flatnonzero(alone).tolist():
        yield from _cut(rack.rows(begin, row), most_bytes)
        yield from _wide(rack.rows(row, row + 1))
        begin = row + 1
    yield from _cut(rack.rows(begin, len(rack)), most_bytes)


def nothing() -> dict[str, Any]:
    """Return columns without rows."""
    return {"node": [], **{name: [] for name in COLUMNS}, "fields": {}}


def _cut(rows: Frame, most_bytes: int) -> Iterator[dict[str, Any]]:
    if not len(rows):
        return
    weights = np.full(len(rows), _ROW + _FIELD * len(rows.fields))
    weights += _RUN * np.bincount(rows.runs.row, minlength=len(rows))
    for one in rows.fields.values():
        if one.sketch is not None:
            weights += _BUCKET * np.bincount(one.sketch.row, minlength=len(rows))
    begin = size = 0
    for at, weight in enumerate(weights.tolist()):
        if size and size + weight > most_bytes:
            yield columns_of(rows.rows(begin, at))
            begin, size = at, 0
        size += weight
    yield columns_of(rows.rows(begin, len(rows)))


def _wide(row: Frame) -> Iterator[dict[str, Any]]:
    """Return the columns of one row, as entries of at most `MAX_RUNS` runs; all but the first have only runs."""
    found = columns_of(row)
    (runs,) = found["runs"]
    yield found | {"runs": [runs[:MAX_RUNS]]}
    for at in range(MAX_RUNS, len(runs), MAX_RUNS):
        yield found | {"runs": [runs[at : at + MAX_RUNS]], "count": [0], "fields": {}}
