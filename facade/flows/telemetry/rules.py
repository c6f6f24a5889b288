"""From a partial to the value of an attribute: one function for each rule of the ICD."""

import math
from collections.abc import Callable

from facade.flows.telemetry import sketch
from facade.flows.telemetry.plan import Plan
from facade.icd.model import Source
from facade.messages import FieldStatistics, Partial

Number = int | float
_EMPTY = FieldStatistics()


def evaluate(source: Source, partial: Partial, plan: Plan) -> Number | None:
    """Return the value of an attribute from the partial of its window or of the whole ledger.

    Returns
    -------
    int, float or None
        None where nothing can be said: no records, or a statistic that was not kept. The rules
        over sequence numbers are not here; they belong to the ledger of the source.
    """
    if partial.count == 0 and source.over == "window":
        return None
    return _RULES[source.rule](source, partial, plan)


def _field(source: Source, partial: Partial) -> FieldStatistics:
    return partial.fields.get(source.field or "", _EMPTY)


def _count(source: Source, partial: Partial, plan: Plan) -> Number | None:
    return partial.count


def _rate(source: Source, partial: Partial, plan: Plan) -> Number | None:
    amount = partial.count if source.field is None else _field(source, partial).sum
    return None if amount is None else amount / plan.window.length


def _sum(source: Source, partial: Partial, plan: Plan) -> Number | None:
    # The sum over no records is known: a source of which every record was late has a total of 0.
    return 0 if partial.count == 0 else _field(source, partial).sum


def _mean(source: Source, partial: Partial, plan: Plan) -> Number | None:
    total = _field(source, partial).sum
    return None if total is None or partial.count == 0 else total / partial.count


def _min(source: Source, partial: Partial, plan: Plan) -> Number | None:
    return _field(source, partial).min


def _max(source: Source, partial: Partial, plan: Plan) -> Number | None:
    return _field(source, partial).max


def _last(source: Source, partial: Partial, plan: Plan) -> Number | None:
    return _field(source, partial).last


def _std(source: Source, partial: Partial, plan: Plan) -> Number | None:
    # Of the population (divided by n, not n - 1): all heaps of the window are in it.
    m2 = _field(source, partial).m2
    return None if m2 is None or partial.count == 0 else math.sqrt(m2 / partial.count)


def _quantile(source: Source, partial: Partial, plan: Plan) -> Number | None:
    counts = _field(source, partial).sketch
    error = plan.window.quantile_error
    if counts is None or source.q is None or error is None:
        return None
    return sketch.quantile(counts, source.q, error)


def _fraction(source: Source, partial: Partial, plan: Plan) -> Number | None:
    part = _field(source, partial).sum
    whole = sum(partial.fields.get(name, _EMPTY).sum or 0 for name in source.of)
    return None if part is None or whole == 0 else part / whole


_RULES: dict[str, Callable[[Source, Partial, Plan], Number | None]] = {
    "count": _count,
    "rate": _rate,
    "sum": _sum,
    "mean": _mean,
    "min": _min,
    "max": _max,
    "last": _last,
    "std": _std,
    "quantile": _quantile,
    "fraction": _fraction,
}
