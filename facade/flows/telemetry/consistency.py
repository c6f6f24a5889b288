"""Checks that a summary is consistent, beyond its schema.

The ledger trusts summaries: a run that goes backwards, or a window of next year, would stay in its totals and windows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from facade.flows.telemetry.partial import Summary
from facade.flows.telemetry.plan import MICRO, Plan
from facade.messages import FieldColumns, FieldStatistics, RackSummary, Watermark
from facade.numbers import LARGEST
from facade.outcome import INCONSISTENT, RecordRejected
from facade.sequences import HeapRange
from facade.sketch import largest_bucket

COLUMNS = ("epoch", "window", "late", "count", "time_min", "time_max", "runs")
"""Columns of a rack's summary beside node and fields, in the order of a partial."""
STATISTICS = ("sum", "min", "max", "m2", "last", "sketch")
_MOST = 1e150
_CLOCK_SLACK = 60.0
"""Largest difference between the clocks of a worker and of the broker [s]."""
_RUNS = "expected ascending runs without overlap, of whole numbers from 0 to 2^53 - 1"
_BOUNDS = f"expected numbers up to {_MOST:g}, and whole ones up to 2^53 - 1"
_WHOLE = "expected whole numbers up to 2^53 - 1"


def inconsistency(summary: Summary | RackSummary, written_us: int, plan: Plan) -> RecordRejected | None:
    """Return the reason why a summary with an append time [Unix us] is unusable, or None."""
    if not summary.log:
        return RecordRejected(INCONSISTENT, "$.log", "expected the log of the offsets: workers must be of this version")
    least = summary.offset_from + (not isinstance(summary, RackSummary) or bool(summary.node))
    if summary.offset_to < least:
        return RecordRejected(INCONSISTENT, "$.offset_to", f"expected at least {least}")
    latest = written_us + round((plan.window.ahead + plan.window.length + _CLOCK_SLACK) * MICRO)
    if isinstance(summary, RackSummary):
        columns = {name: getattr(summary, name) for name in COLUMNS}
        for path, trouble in _shape_troubles(summary, plan) or _troubles(columns, summary.fields, plan, latest):
            return RecordRejected(INCONSISTENT, f"$.{path}", trouble)
        return None
    for at, partial in enumerate(summary.partials):
        columns = {name: [getattr(partial, name)] for name in COLUMNS}
        fields = {name: _of_one(found) for name, found in partial.fields.items()}
        for path, trouble in _troubles(columns, fields, plan, latest):
            return RecordRejected(INCONSISTENT, f"$.partials[{at}].{path.removesuffix('[0]')}", trouble)
    return None


def impossible(watermark: Watermark, written_us: int, plan: Plan) -> RecordRejected | None:
    """Return the reason why a watermark is unusable, or None: one of the future would close windows too early."""
    if watermark.partition >= watermark.partitions:
        return RecordRejected(INCONSISTENT, "$.partition", f"expected at most {watermark.partitions - 1}")
    if watermark.read_to > written_us + plan.disorder_us:
        why = f"{watermark.read_to} is ahead of the writing at {written_us}, by more than the allowed disorder"
        return RecordRejected(INCONSISTENT, "$.read_to", why)
    return None


def _shape_troubles(summary: RackSummary, plan: Plan) -> Sequence[tuple[str, str]]:
    rows, first, last = len(summary.node), summary.first, summary.last
    if not plan.racks:
        return [("stream", f"expected a topic whose nodes are summarised by rack, got {plan.topic}")]
    if rows and not first <= min(summary.node) <= max(summary.node) <= last:
        return [("node", f"expected nodes from {first} to {last}")]
    columns = [(name, getattr(summary, name)) for name in COLUMNS]
    for field, found in summary.fields.items():
        columns += [(f"fields.{field}.{name}", getattr(found, name)) for name in STATISTICS]
    lengths = ((name, len(values)) for name, values in columns if values is not None)
    return [(name, f"expected {rows} entries, as of nodes, got {count}") for name, count in lengths if count != rows]


def _of_one(statistics: FieldStatistics) -> FieldColumns:
    known = ((name, getattr(statistics, name)) for name in STATISTICS)
    return FieldColumns(**{name: None if value is None else [value] for name, value in known})


def _troubles(
    columns: Mapping[str, Sequence[Any]], fields: Mapping[str, FieldColumns], plan: Plan, latest: int
) -> Iterator[tuple[str, str]]:
    if fields and not all(columns["count"]):
        yield "fields", "expected none where a row has no records"
    rows = zip(*(columns[name] for name in ("late", "window", "count", "time_min", "time_max")), strict=True)
    for row, (late, window, count, oldest, newest) in enumerate(rows):
        for name, trouble in _misplaced(plan, window, 0 if late else count, oldest, newest, latest):
            yield f"{name}[{row}]", trouble
    for row, runs in enumerate(columns["runs"]):
        if not _ascending(runs):
            yield f"runs[{row}]", _RUNS
    for name, found in fields.items():
        if not are_bounded(found):
            yield f"fields.{name}", _BOUNDS
    for field in plan.fields:
        found_columns = fields.get(field.first_name)
        if found_columns is None:
            continue
        if field.integer and any(float in set(map(type, values)) for values in _numbers(found_columns)):
            yield f"fields.{field.first_name}", _WHOLE
        if buckets := _bucket_trouble(found_columns.sketch or (), plan):
            yield f"fields.{field.first_name}", buckets


def _misplaced(plan: Plan, window: int, count: int, oldest: int, newest: int, latest: int) -> Sequence[tuple[str, str]]:
    if count and (window % plan.length_us or not window <= oldest <= newest < window + plan.length_us):
        return [("window", f"{window} does not hold the data times {oldest} to {newest}")]
    if newest > latest:
        return [("time_max", f"{newest} is further ahead of the writing than any worker accepts")]
    return ()


def _ascending(runs: Sequence[HeapRange]) -> bool:
    before = -1
    for first, last in runs:
        if not before < first <= last <= LARGEST:
            return False
        before = last
    return True


def are_bounded(columns: FieldColumns) -> bool:
    """Return whether sums of the numbers, and of their squares, fit into JSON and snapshots."""
    for values in _numbers(columns):
        if not (-LARGEST <= min(values) and max(values) <= LARGEST) and not all(map(_is_bounded, values)):
            return False
    return all(one <= _MOST * _MOST for one in columns.m2 or ())


def _numbers(columns: FieldColumns) -> Iterator[Sequence[int | float]]:
    return (values for values in (columns.sum, columns.min, columns.max, columns.last) if values)


def _is_bounded(one: int | float) -> bool:
    return -LARGEST <= one <= LARGEST or (not isinstance(one, int) and abs(one) <= _MOST)


def _bucket_trouble(sketches: Iterable[Mapping[int, int]], plan: Plan) -> str | None:
    if plan.window.quantile_error is None:
        return None
    largest = largest_bucket(plan.window.quantile_error)
    if any(max(sketch, default=0) > largest for sketch in sketches):
        return f"sketch: expected bucket numbers up to {largest}"
    return None
