"""Partial aggregates: small, exact, and mergeable in any order.

The messages are ``telemetry-summary.schema.json`` and, for heaps, ``ingest-summary.schema.json``, which has the node as
a number, under its own name, and no stream.
"""

from collections.abc import Mapping
from typing import Annotated, Any, cast

import msgspec

from facade.kernel.numbers import Natural
from facade.sdp.messages import Partial

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
    )
    return cast(type[Summary], form)


def split(partial: Partial) -> list[Partial]:
    """Return the partial as entries of at most `MAX_RUNS` runs; all but the first carry only runs."""
    if len(partial.runs) <= MAX_RUNS:
        return [partial]
    first, *more = (partial.runs[i : i + MAX_RUNS] for i in range(0, len(partial.runs), MAX_RUNS))
    replace = msgspec.structs.replace
    return [replace(partial, runs=first), *(replace(partial, runs=runs, count=0, fields={}) for runs in more)]
