"""Partials by hand as the frames that a ledger takes, and what a view makes of a ledger."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from facade.flows.telemetry.ledger import WindowLedger
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.view import TelemetryView
from facade.kernel.reading import Reading
from facade.kernel.runtime.columns import ReadingColumn
from facade.kernel.runtime.flow import DeviceReading
from facade.kernel.windows.frame import Frame, merge
from facade.sdp.messages import Partial
from facade.sdp.summaries import as_frames, as_partials


def fold(ledger: WindowLedger, group: Group, partials: Sequence[Partial], heard: float, **changes) -> None:
    """Fold the partials of a group, one after the other."""
    ledger.hear(group, changes.get("partition", 0), heard)
    for rows in as_frames(0, partials):
        ledger.fold(ledger.of_group(group, rows), heard, **changes)


def rack(rows: Sequence[tuple[int, Partial]]) -> Frame:
    """Return partials of nodes that have the same statistics as one frame, in their order."""
    # Merging sorts by group, so the number of the row stands for it meanwhile.
    whole = merge([one for number, (_, partial) in enumerate(rows) for one in as_frames(number, [partial])])
    return replace(whole, group=np.array([node for node, _ in rows], dtype=np.int64))


def merged(*partials: Partial, epochs: bool = True) -> list[Partial]:
    """Return what partials of one group amount to."""
    return [one for _, one in as_partials(merge(as_frames(0, partials), epochs=epochs))]


def look(view: TelemetryView, ledger: WindowLedger, now: float) -> None:
    """Look at a ledger as if for the first time."""
    view._marks = view._said = None
    assert view.changed(ledger, now)


def readings(view: TelemetryView, ledger: WindowLedger, now: float) -> dict[str, Reading]:
    """Return the readings of the only device of a view."""
    look(view, ledger, now)
    return {name: one for _, name, one in expanded(view.columns)}


def state(view: TelemetryView, ledger: WindowLedger, now: float) -> dict[str, Reading]:
    """Return State and Status of the only device of a view."""
    look(view, ledger, now)
    return {name: one for _, name, one in view.state(ledger, now)}


def expanded(found: Iterable[DeviceReading | ReadingColumn]) -> Iterator[DeviceReading]:
    """Return what a flow has found with the readings of the columns in it."""
    for one in found:
        if not isinstance(one, ReadingColumn):
            yield one
            continue
        for device, reading in zip(one.devices, one.arrays().readings(), strict=True):
            if reading is not None:
                yield device, one.attribute, reading
