"""Partial aggregates: small, exact, and mergeable in any order.

The messages are ``telemetry-summary.schema.json`` and, for heaps, ``ingest-summary.schema.json``, which has the node as
a number, under its own name, and no stream.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, cast

import msgspec

from facade.messages import FieldStatistics, Partial
from facade.numbers import Natural
from facade.sequences import union

MAX_RUNS = 4096
"""Larger numbers of runs are spread over several entries, so that no record grows without bound."""

Group = int | str
"""A number, a name, or the empty name if all records are one group."""


class Summary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The partials of one transaction and group; `summary_form` makes the struct of the message."""

    worker: Annotated[str, msgspec.Meta(max_length=200)]
    partition: Annotated[int, msgspec.Meta(ge=0, le=100_000)]
    group: Group
    partials: list[Partial]
    log: Annotated[str, msgspec.Meta(max_length=100)] = ""
    """The log of the offsets."""
    offset_from: Natural = 0
    """The offsets [offset_from, offset_to) of the transaction."""
    offset_to: Natural = 0
    part: Natural = 0
    """Number among the summaries of its transaction, partition and group."""


class StreamSummary(Summary, kw_only=True):
    """A summary on a topic with several streams."""

    stream: str
    """Topic of the records."""


def summary_form(schema: Mapping[str, Any], group: str | None) -> type[Summary]:
    """Return the struct of a summary message by its JSON Schema.

    The message has the group under the name of the windowed topic's field, as a number, or under ``group``, as text.
    """
    known = schema["properties"]
    base = StreamSummary if "stream" in known else Summary
    own = {"group": group} if group is not None and group in known else None
    wire = (
        Annotated[int, msgspec.Meta(ge=0, le=known[group]["maximum"])]
        if own
        else Annotated[str, msgspec.Meta(max_length=known["group"]["maxLength"])]
    )
    form = msgspec.defstruct(
        base.__name__,
        [("group", wire)],
        bases=(base,),
        tag_field="schema",
        tag=known["schema"]["const"],
        rename=own,
        forbid_unknown_fields=True,
    )
    return cast(type[Summary], form)


def gather(into: dict[tuple[int, int, bool], Partial], partials: Iterable[Partial]) -> None:
    """Merge partials of one group by epoch and window, runs included; `partials` may be changed later."""
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
    """Add `other` to `into`, without its runs; the epoch is the newer one."""
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
    """Return an independent copy without the runs."""
    fields = {name: copy_statistics(statistics) for name, statistics in partial.fields.items()}
    return msgspec.structs.replace(partial, runs=[], fields=fields)


def copy_statistics(statistics: FieldStatistics) -> FieldStatistics:
    """Return an independent copy."""
    sketch = None if statistics.sketch is None else dict(statistics.sketch)
    return msgspec.structs.replace(statistics, sketch=sketch)


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
