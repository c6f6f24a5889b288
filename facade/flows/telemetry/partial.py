"""Partial aggregates: small, exact, and mergeable in any order.

The messages are ``telemetry-summary.schema.json`` and, for heaps, ``ingest-summary.schema.json``, which has the node as
a number, under its own name, and no stream.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, cast

import msgspec
import numpy as np

from facade.messages import FieldColumns, FieldStatistics, Partial, RackSummary
from facade.numbers import Natural
from facade.windows.frame import STATISTICS, Counts, FieldArrays, Frame, Runs

COLUMNS = ("epoch", "window", "late", "count", "time_min", "time_max", "runs")
"""Columns of a rack's summary beside node and fields, in the order of a partial."""
MAX_RUNS = 4096
"""Larger numbers of runs are spread over several entries, so that no record grows without bound."""

FOLLOWS = "follows"
"""Header of a group's summary: the end of the offsets of the summary before it, by the same worker. A transaction
without records of a group has no summary of it, so its offsets alone do not show a lost one."""

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


def frame_of(summary: RackSummary) -> Frame:
    """Return the rows of a summary whose columns are of one length; groups are nodes."""
    return _frame(summary.node, {name: getattr(summary, name) for name in COLUMNS}, summary.fields)


def as_frames(code: int, partials: Iterable[Partial]) -> list[Frame]:
    """Return partials of the group with a code as frames of one row."""
    return [
        _frame(
            [code],
            {name: [getattr(one, name)] for name in COLUMNS},
            {name: columns_of(statistics) for name, statistics in one.fields.items()},
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


def columns_of(statistics: FieldStatistics) -> FieldColumns:
    """Return the statistics of one row as columns."""
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
    found = [(row, bucket, one[bucket]) for row, one in enumerate(sketches) for bucket in sorted(one)]
    return Counts(*np.array(found, dtype=np.int64).reshape(-1, 3).T)


def split(partial: Partial) -> list[Partial]:
    """Return the partial as entries of at most `MAX_RUNS` runs; all but the first carry only runs."""
    if len(partial.runs) <= MAX_RUNS:
        return [partial]
    first, *more = (partial.runs[i : i + MAX_RUNS] for i in range(0, len(partial.runs), MAX_RUNS))
    replace = msgspec.structs.replace
    return [replace(partial, runs=first), *(replace(partial, runs=runs, count=0, fields={}) for runs in more)]
