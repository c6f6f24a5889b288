"""Summaries of a rack: the partials of its nodes as columns, so that much is done once for a record and not for a node.

The wire form is ``rack-summary.schema.json``. All rows of a record have the same statistics, so its columns have no
holes: what has others, such as an entry that carries only further runs, goes into a record of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Any

from facade.flows.telemetry.consistency import COLUMNS, STATISTICS, are_bounded
from facade.messages import FieldColumns, FieldStatistics, Partial, RackSummary

RackRow = tuple[int, Partial]
"""Node, and what was found in some of its records."""
_NONE = FieldStatistics()
_ROW, _FIELD, _BUCKET, _RUN = 128, 128, 28, 36
"""Most bytes of a row without the others, of a field's numbers, of a bucket with its count, and of a run."""


def tables(rows: Sequence[RackRow], most_bytes: int) -> Iterator[dict[str, Any]]:
    """Divide rows over records, and return for each the fields of `RackSummary` that have an entry for each row.

    Parameters
    ----------
    most_bytes
        So large may a record be, but for what it has once; a single row may be larger.
    """
    # In their order: an entry that carries only further runs stays right behind the one that it belongs to.
    alike = (list(part) for _, part in groupby(rows, key=lambda row: bool(row[1].fields)))
    for part in chain.from_iterable(_cut(one, most_bytes) for one in alike):
        found = _columns(part)
        if found is not None:
            yield found
        else:  # no reader takes what has a hole or a number beyond all bounds: it must not harm its neighbours
            yield from (one for row in part if (one := _columns([row])) is not None)


def nothing() -> dict[str, Any]:
    """Return the fields of `RackSummary` that have an entry for each row, without a row."""
    return {"node": [], **{name: [] for name in COLUMNS}, "fields": {}}


def rows(summary: RackSummary) -> Iterator[RackRow]:
    """Return the rows of a summary whose columns are of one length."""
    count, names = len(summary.node), list(summary.fields)
    found = zip(*(_statistics(one, count) for one in summary.fields.values()), strict=True)
    fields: Iterable[dict[str, FieldStatistics]] = (dict(zip(names, row, strict=True)) for row in found)
    columns = (getattr(summary, name) for name in COLUMNS)
    return zip(summary.node, map(Partial, *columns, fields if names else iter(dict, None)), strict=True)


def together(partials: Sequence[Partial]) -> Partial:
    """Return what the partials of several nodes amount to, as `merge` does, where all have the same statistics."""
    newest = max(reversed(partials), key=lambda one: one.time_max)
    counts = [one.count for one in partials]
    return Partial(
        epoch=newest.epoch,
        window=newest.window,
        late=newest.late,
        count=sum(counts),
        time_min=min(one.time_min for one in partials),
        time_max=newest.time_max,
        runs=[],
        fields={
            name: _together([one.fields[name] for one in partials], counts, newest.fields[name].last)
            for name in newest.fields
        },
    )


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
    """Return the columns of some rows; None: several cannot be in one record."""
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


def _together(
    statistics: Sequence[FieldStatistics], counts: Sequence[int], last: int | float | None
) -> FieldStatistics:
    first, whole = statistics[0], FieldStatistics(last=last)
    if first.sum is not None:
        sums = [one.sum or 0 for one in statistics]
        whole.sum = sum(sums)
        if first.m2 is not None:
            mean = whole.sum / sum(counts)
            apart = ((total / count - mean, count) for total, count in zip(sums, counts, strict=True))
            whole.m2 = sum(one.m2 or 0.0 for one in statistics) + sum(by * by * count for by, count in apart)
    if first.min is not None:
        whole.min = min(one.min for one in statistics if one.min is not None)
    if first.max is not None:
        whole.max = max(one.max for one in statistics if one.max is not None)
    if first.sketch is not None:
        whole.sketch = {}
        for one in statistics:
            for bucket, count in (one.sketch or {}).items():
                whole.sketch[bucket] = whole.sketch.get(bucket, 0) + count
    return whole
