"""Summaries of a rack: the partials of its nodes as columns, for work by record instead of by node.

All rows of a record have the same statistics, so its columns have no gaps; rows with others go into another record.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any

from facade.flows.telemetry.consistency import COLUMNS, STATISTICS, are_bounded
from facade.messages import FieldColumns, FieldStatistics, Partial, RackSummary

RackRow = tuple[int, Partial]
"""Node, and a partial of some of its records."""
_NONE = FieldStatistics()
_ROW, _FIELD, _BUCKET, _RUN = 128, 128, 28, 36
"""Upper bounds of bytes: a row without its parts, the numbers of a field, a bucket with its count, a run."""


def tables(rows: Sequence[RackRow], most_bytes: int) -> Iterator[dict[str, Any]]:
    """Divide rows into records of a size, and return the columns of each."""
    # In order: an entry with further runs stays right after the first.
    alike = (list(part) for _, part in groupby(rows, key=lambda row: bool(row[1].fields)))
    for part in chain.from_iterable(_cut(one, most_bytes) for one in alike):
        found = _columns(part)
        if found is not None:
            yield found
        else:  # readers refuse a gap or an unbounded number, which must not harm other rows
            yield from (one for row in part if (one := _columns([row])) is not None)


def nothing() -> dict[str, Any]:
    """Return columns without rows."""
    return {"node": [], **{name: [] for name in COLUMNS}, "fields": {}}


def rows(summary: RackSummary) -> Iterator[RackRow]:
    """Return the rows of a summary whose columns are of one length."""
    count, names = len(summary.node), list(summary.fields)
    found = zip(*(_statistics(one, count) for one in summary.fields.values()), strict=True)
    fields: Iterable[dict[str, FieldStatistics]] = (dict(zip(names, row, strict=True)) for row in found)
    columns = (getattr(summary, name) for name in COLUMNS)
    return zip(summary.node, map(Partial, *columns, fields if names else iter(dict, None)), strict=True)


def _cut(rows: Sequence[RackRow], most_bytes: int) -> Iterator[Sequence[RackRow]]:
    begin = size = 0
    for at, (_, partial) in enumerate(rows):
        buckets = sum(len(one.sketch) for one in partial.fields.values() if one.sketch is not None)
        weight = _ROW + _FIELD * len(partial.fields) + _BUCKET * buckets + _RUN * len(partial.runs)
        if size and size + weight > most_bytes:
            yield rows[begin:at]
            begin, size = at, 0
        size += weight
    if size:
        yield rows[begin:]


def _columns(rows: Sequence[RackRow]) -> dict[str, Any] | None:
    """Return the columns of some rows; None: they cannot share a record."""
    partials = [partial for _, partial in rows]
    found: dict[str, Any] = {name: [getattr(one, name) for one in partials] for name in COLUMNS}
    fields = found["fields"] = {}
    for field in partials[0].fields:
        mine = [one.fields.get(field, _NONE) for one in partials]
        lists = {name: [getattr(one, name) for one in mine] for name in STATISTICS}
        fields[field] = FieldColumns(**{name: values for name, values in lists.items() if values[0] is not None})
        if len(rows) == 1:
            continue
        if any(values.count(None) not in (0, len(rows)) for values in lists.values()) or not are_bounded(fields[field]):
            return None
    return (
        found | {"node": [node for node, _ in rows]} if {len(one.fields) for one in partials} == {len(fields)} else None
    )


def _statistics(one: FieldColumns, count: int) -> Iterator[FieldStatistics]:
    nothing = [None] * count
    return map(FieldStatistics, *(getattr(one, name) or nothing for name in STATISTICS))
