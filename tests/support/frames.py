"""Partials by hand as the frames that a ledger takes, and what a view makes of a ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from facade.flows.telemetry.ledger import WindowLedger
from facade.flows.telemetry.partial import Group, as_frames, as_partials
from facade.flows.telemetry.view import Look, TelemetryView
from facade.messages import Partial
from facade.reading import Reading
from facade.windows.frame import Frame, merge


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


def look(view: TelemetryView, ledger: WindowLedger, now: float) -> Look:
    """Look at a ledger as if for the first time."""
    view._marks = None
    found = view.changed(ledger, now)
    assert found is not None
    return found


def readings(
    view: TelemetryView, ledger: WindowLedger, now: float, last: Mapping[str, Mapping[str, Reading]] | None = None
) -> dict[str, Reading]:
    """Return the readings of the only device of a view."""
    return {name: one for _, name, one in view.readings(look(view, ledger, now), now, last or {})}


def state(view: TelemetryView, ledger: WindowLedger, now: float) -> dict[str, Reading]:
    """Return State and Status of the only device of a view."""
    return {name: one for _, name, one in view.state(look(view, ledger, now), ledger, now)}
