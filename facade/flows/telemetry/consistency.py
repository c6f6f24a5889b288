"""Checks that a summary is consistent, beyond its schema.

The ledger trusts summaries: a run that goes backwards, or a window of next year, would stay in its totals and windows.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from facade.flows.telemetry.partial import Summary
from facade.flows.telemetry.plan import Plan
from facade.kernel.clock import MINUTE, Time
from facade.kernel.numbers import LARGEST
from facade.kernel.outcome import INCONSISTENT, RecordRejected
from facade.kernel.sketch import largest_bucket
from facade.kernel.windows.frame import Array, FieldArrays, Frame, Runs
from facade.sdp.messages import RackSummary, Watermark
from facade.sdp.summaries import as_frames, frame_of, lengths

MOST = 1e150
_CLOCK_SLACK = MINUTE
"""Largest difference between the clocks of a worker and of the broker."""
_RUNS = "expected ascending runs without overlap, of whole numbers from 0 to 2^53 - 1"
BOUNDS = f"expected numbers up to {MOST:g}, and whole ones up to 2^53 - 1"
_WHOLE = "expected whole numbers up to 2^53 - 1"


def checked(summary: Summary | RackSummary, written_us: Time, plan: Plan) -> Sequence[Frame] | RecordRejected:
    """Return the rows of a summary with an append time, or the reason why it is unusable.

    The groups of a rack's rows are nodes, and those of other rows are 0.
    """
    if not summary.log:
        return RecordRejected(INCONSISTENT, "$.log", "expected the log of the offsets: workers must be of this version")
    least = summary.offset_from + (not isinstance(summary, RackSummary) or bool(summary.node))
    if summary.offset_to < least:
        return RecordRejected(INCONSISTENT, "$.offset_to", f"expected at least {least}")
    latest = written_us + plan.rule.ahead_us + plan.length_us + _CLOCK_SLACK
    if isinstance(summary, RackSummary):
        for path, trouble in _shape_troubles(summary, plan):
            return RecordRejected(INCONSISTENT, f"$.{path}", trouble)
        rows = frame_of(summary)
        for path, trouble in _troubles(rows, plan, latest):
            return RecordRejected(INCONSISTENT, f"$.{path}", trouble)
        return (rows,)
    found = as_frames(0, summary.partials)
    for at, one in enumerate(found):
        for path, trouble in _troubles(one, plan, latest):
            return RecordRejected(INCONSISTENT, f"$.partials[{at}].{path.removesuffix('[0]')}", trouble)
    return found


def impossible(watermark: Watermark, written_us: Time, plan: Plan) -> RecordRejected | None:
    """Return the reason why a watermark is unusable, or None: one of the future would close windows too early."""
    if watermark.partition >= watermark.partitions:
        return RecordRejected(INCONSISTENT, "$.partition", f"expected at most {watermark.partitions - 1}")
    if watermark.read_to > written_us + plan.rule.disorder_us:
        why = f"{watermark.read_to} is ahead of the writing at {written_us}, by more than the allowed disorder"
        return RecordRejected(INCONSISTENT, "$.read_to", why)
    return None


def _shape_troubles(summary: RackSummary, plan: Plan) -> Sequence[tuple[str, str]]:
    rows, first, last = len(summary.node), summary.first, summary.last
    if not plan.racks:
        return [("stream", f"expected a topic whose nodes are summarised by rack, got {plan.topic}")]
    if rows and not first <= min(summary.node) <= max(summary.node) <= last:
        return [("node", f"expected nodes from {first} to {last}")]
    found = ((name, count) for name, count in lengths(summary) if count != rows)
    return [(name, f"expected {rows} entries, as of nodes, got {count}") for name, count in found]


def _troubles(rows: Frame, plan: Plan, latest: Time) -> Iterator[tuple[str, str]]:
    has_records, in_time = rows.count > 0, ~rows.late
    if rows.fields and not has_records.all():
        yield "fields", "expected none where a row has no records"
    for row in np.flatnonzero(in_time & has_records & ~hold_times(rows, plan)).tolist():
        yield (
            f"window[{row}]",
            f"{rows.window[row]} does not hold the data times {rows.time_min[row]} to {rows.time_max[row]}",
        )
    for row in np.flatnonzero(rows.time_max > latest).tolist():
        yield f"time_max[{row}]", f"{rows.time_max[row]} is further ahead of the writing than any worker accepts"
    for at in np.flatnonzero(go_back(rows.runs)).tolist():
        yield f"runs[{rows.runs.row[at]}]", _RUNS
    yield from ((f"fields.{name}", BOUNDS) for name in unbounded(rows))
    for field in plan.fields:
        found = rows.fields.get(field.first_name)
        if found is None:
            continue
        if field.integer and any(values.dtype.kind == "f" for values in _numbers(found)):
            yield f"fields.{field.first_name}", _WHOLE
        if plan.window.quantile_error is not None and found.sketch is not None:
            largest = largest_bucket(plan.window.quantile_error)
            if found.sketch.bucket.max(initial=0) > largest:
                yield f"fields.{field.first_name}", f"sketch: expected bucket numbers up to {largest}"


def hold_times(rows: Frame, plan: Plan) -> Array:
    """Return for each row whether its window is one, and holds its data times."""
    fits = (rows.window % plan.length_us == 0) & (rows.window <= rows.time_min)
    fits &= (rows.time_min <= rows.time_max) & (rows.time_max < rows.window + plan.length_us)
    return np.array(fits)


def go_back(runs: Runs) -> Array:
    """Return for each run whether it is none, or does not follow the one before it in its row."""
    found = (runs.first > runs.last) | (runs.first < 0) | (runs.last > LARGEST)
    found[1:] |= (runs.row[1:] == runs.row[:-1]) & (runs.first[1:] <= runs.last[:-1])
    return np.array(found)


def unbounded(rows: Frame) -> Iterator[str]:
    """Return the fields of rows with numbers that are not bounded; see `are_bounded`."""
    if not _are_all_bounded(rows.fields.values()):
        yield from (name for name, one in rows.fields.items() if not are_bounded(one).all())


def _are_all_bounded(fields: Iterable[FieldArrays]) -> bool:
    """Return whether the numbers of all rows are bounded, in a few calls for all fields."""
    numbers = [values for one in fields for values in (*_numbers(one), one.m2) if values is not None]
    for kind, most in (("i", LARGEST), ("f", MOST)):
        mine = [values for values in numbers if values.dtype.kind == kind]
        if mine and not (abs(np.concatenate(mine)) <= most).all():
            return False
    return all(values.dtype.kind in "if" for values in numbers)


def are_bounded(one: FieldArrays) -> Array:
    """Return for each row whether sums of the numbers, and of their squares, fit into JSON and snapshots."""
    fits = np.ones((), dtype=np.bool_)
    for values in _numbers(one):  # whole numbers beyond 64 bits are objects
        fits = fits & (abs(values) <= (MOST if values.dtype.kind == "f" else LARGEST))
    return fits if one.m2 is None else fits & (one.m2 <= MOST * MOST)


def _numbers(one: FieldArrays) -> Iterator[Array]:
    return (values for values in (one.sum, one.min, one.max, one.last) if values is not None)
