"""Whether a summary agrees with itself, beyond what its schema can say.

The ledger trusts what it merges: a run that goes backwards or a window of next year would stay in
its totals and windows for good, so it must not get that far.
"""

from collections.abc import Iterator, Sequence

from facade.flows.telemetry.partial import Summary
from facade.flows.telemetry.plan import MICRO, FieldPlan, Plan
from facade.flows.telemetry.sequences import Run
from facade.flows.telemetry.sketch import largest_bucket
from facade.messages import FieldStatistics, Partial
from facade.numbers import LARGEST
from facade.outcome import INCONSISTENT, Rejected

_MOST = 1e150
_CLOCK_SLACK = 60.0
"""Most by which the clocks of a worker and of the broker may differ [s]."""


def inconsistency(summary: Summary, written_us: int, plan: Plan) -> Rejected | None:
    """Return why a summary cannot be used; None: nothing is wrong with it.

    Parameters
    ----------
    written_us
        When the worker wrote it [Unix us]; what workers accept is never far ahead of it.
    """
    if summary.log and summary.offset_to <= summary.offset_from:
        return Rejected(INCONSISTENT, "$.offset_to", f"expected more than {summary.offset_from}")
    latest = written_us + round((plan.window.ahead + plan.window.length + _CLOCK_SLACK) * MICRO)
    for index, partial in enumerate(summary.partials):
        for path, trouble in _troubles(partial, plan, latest):
            return Rejected(INCONSISTENT, f"$.partials[{index}]{path}", trouble)
    return None


def _troubles(partial: Partial, plan: Plan, latest: int) -> Iterator[tuple[str, str]]:
    if partial.count == 0 and partial.fields:
        yield ".fields", "expected none in an entry without records"
    if not partial.late and partial.count:
        start = partial.window
        if start % plan.length_us or not start <= partial.time_min <= partial.time_max < start + plan.length_us:
            yield ".window", f"{start} does not hold the data times {partial.time_min} to {partial.time_max}"
    if not partial.late and partial.time_max > latest:
        yield ".time_max", f"{partial.time_max} is further ahead of the writing than any worker accepts"
    if not _ascending(partial.runs):
        yield ".runs", "expected ascending runs without overlap, of whole numbers from 0 to 2^53 - 1"
    for name, found in partial.fields.items():
        if not _are_bounded(found):
            yield f".fields.{name}", f"expected numbers up to {_MOST:g}, and whole ones up to 2^53 - 1"
    for field in plan.fields:
        statistics = partial.fields.get(field.name)
        if statistics is not None and (trouble := _field_trouble(statistics, field, plan)):
            yield f".fields.{field.name}", trouble


def _ascending(runs: Sequence[Run]) -> bool:
    before = -1
    for first, last in runs:
        if not before < first <= last <= LARGEST:
            return False
        before = last
    return True


def _are_bounded(statistics: FieldStatistics) -> bool:
    """Return whether sums of such numbers, and of their squares, stay numbers that JSON and a snapshot can carry."""
    for one in (statistics.sum, statistics.min, statistics.max, statistics.last):
        # Without a generator or a call for the usual ones: half of a fold was spent here.
        if one is None or -LARGEST <= one <= LARGEST:
            continue
        if isinstance(one, int) or not abs(one) <= _MOST:
            return False
    return (statistics.m2 or 0.0) <= _MOST * _MOST


def _field_trouble(statistics: FieldStatistics, field: FieldPlan, plan: Plan) -> str | None:
    if field.integer:
        for one in (statistics.sum, statistics.min, statistics.max, statistics.last):
            if isinstance(one, float):
                return "expected whole numbers up to 2^53 - 1"
    if statistics.sketch and plan.window.quantile_error is not None:
        largest = largest_bucket(plan.window.quantile_error)
        if max(statistics.sketch) > largest:
            return f"sketch: expected bucket numbers up to {largest}"
    return None
