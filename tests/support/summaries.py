"""What workers have written about a windowed topic, whatever form their summaries have."""

from collections.abc import Iterable, Iterator

from facade.flows.telemetry.partial import Group, Summary
from facade.flows.telemetry.plan import Plan
from facade.kernel.codec.decode import BatchDecoder
from facade.sdp.messages import Partial, RackSummary, Watermark
from facade.sdp.summaries import as_partials, frame_of


def partials(values: Iterable[bytes | None], plan: Plan) -> Iterator[tuple[Group, Partial]]:
    """Yield the partials in the summaries of groups and of racks, each with its group."""
    decoder = BatchDecoder[Summary | RackSummary | Watermark](plan.form, RackSummary, Watermark)
    for value in values:
        found = decoder.decode_one(value)
        assert isinstance(found, Summary | RackSummary | Watermark), found
        if isinstance(found, Watermark):
            continue
        if isinstance(found, RackSummary):
            yield from as_partials(frame_of(found))
        else:
            yield from ((found.group, one) for one in found.partials)
