"""Partial aggregates: small, exact, and mergeable in any order.

The wire form is ``schemas/messages/ingest-summary.schema.json``; a test holds the two together.
"""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from facade.flows.telemetry.sequences import Run, union
from facade.numbers import Integer, Natural, Positive

MAX_RUNS = 4096
"""More runs than this are spread over several entries, so that no record grows without bound."""

NotNegative = Annotated[float, msgspec.Meta(ge=0.0)]


class FieldStatistics(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Statistics of one field; those that the plan does not ask for are None."""

    sum: Integer | float | None = None
    min: Integer | float | None = None
    max: Integer | float | None = None
    m2: NotNegative | None = None
    """Sum of the squared distances from the mean."""
    last: Integer | float | None = None
    sketch: dict[Natural, Positive] | None = None
    """Counts by bucket, see `facade.flows.telemetry.sketch`."""


class Partial(msgspec.Struct, forbid_unknown_fields=True):
    """What some records of one source, epoch and window amount to."""

    epoch: Natural
    window: Natural
    """Start of the window [Unix us]."""
    late: bool
    count: Natural
    time_min: Natural
    """Oldest data time [Unix us]."""
    time_max: Natural
    """Newest data time [Unix us]."""
    runs: list[Run]
    """Sequence numbers seen, ascending and disjoint."""
    fields: dict[str, FieldStatistics]


class Summary(msgspec.Struct, tag_field="schema", tag="ingest-summary/1", forbid_unknown_fields=True):
    """What one transaction found in the records of one source."""

    worker: str
    partition: Natural
    node: Natural
    partials: list[Partial]


def gather(into: dict[tuple[int, int, bool], Partial], partials: Iterable[Partial]) -> None:
    """Merge partials of one source by epoch and window, runs included; `partials` may be taken over."""
    for partial in partials:
        key = (partial.epoch, partial.window, partial.late)
        if key in into:
            merge(into[key], partial)
            into[key].runs = union(into[key].runs, partial.runs)
        else:
            into[key] = partial


def split(partial: Partial) -> list[Partial]:
    """Return the partial as entries of at most `MAX_RUNS` runs; all but the first carry only runs."""
    if len(partial.runs) <= MAX_RUNS:
        return [partial]
    first, *more = (partial.runs[i : i + MAX_RUNS] for i in range(0, len(partial.runs), MAX_RUNS))
    replace = msgspec.structs.replace
    return [replace(partial, runs=first), *(replace(partial, runs=runs, count=0, fields={}) for runs in more)]


def merge(into: Partial, other: Partial) -> None:
    """Add `other` to `into`, in place.

    Runs are not merged: only the ledger of a source needs them, and it keeps its own. Nor is the
    epoch: a window may span two scans, and shows the newer one.
    """
    newer = other.time_max >= into.time_max
    for name, statistics in other.fields.items():
        mine = into.fields.get(name)
        if mine is None:
            into.fields[name] = copy_statistics(statistics)
        else:
            _merge_statistics(mine, into.count, statistics, other.count, newer=newer)
    if newer:
        into.epoch = other.epoch
    into.count += other.count
    into.time_min = min(into.time_min, other.time_min)
    into.time_max = max(into.time_max, other.time_max)


def copy_partial(partial: Partial) -> Partial:
    """Return a copy without the runs, that `merge` may change."""
    return Partial(
        epoch=partial.epoch,
        window=partial.window,
        late=partial.late,
        count=partial.count,
        time_min=partial.time_min,
        time_max=partial.time_max,
        runs=[],
        fields={name: copy_statistics(statistics) for name, statistics in partial.fields.items()},
    )


def copy_statistics(statistics: FieldStatistics) -> FieldStatistics:
    """Return an independent copy."""
    return FieldStatistics(
        sum=statistics.sum,
        min=statistics.min,
        max=statistics.max,
        m2=statistics.m2,
        last=statistics.last,
        sketch=None if statistics.sketch is None else dict(statistics.sketch),
    )


def _merge_statistics(a: FieldStatistics, n_a: int, b: FieldStatistics, n_b: int, *, newer: bool) -> None:
    if b.m2 is not None and b.sum is not None:
        # Chan, Golub and LeVeque (1979), eq. 2.1: needs both means, hence before the sums change.
        if a.m2 is None or a.sum is None or n_a == 0:
            a.m2 = b.m2
        else:
            delta = b.sum / n_b - a.sum / n_a
            a.m2 += b.m2 + delta * delta * n_a * n_b / (n_a + n_b)
    if b.sum is not None:
        a.sum = b.sum if a.sum is None else a.sum + b.sum
    if b.min is not None:
        a.min = b.min if a.min is None else min(a.min, b.min)
    if b.max is not None:
        a.max = b.max if a.max is None else max(a.max, b.max)
    if b.last is not None and newer:
        a.last = b.last
    if b.sketch is not None:
        if a.sketch is None:
            a.sketch = dict(b.sketch)
        else:
            for bucket, count in b.sketch.items():
                a.sketch[bucket] = a.sketch.get(bucket, 0) + count
