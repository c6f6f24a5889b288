"""What the mirror raises alarms about: devices that do not answer."""

from collections import defaultdict
from collections.abc import Mapping

from facade.flows.mirror.entry import Entry
from facade.flows.mirror.messages import device_of
from facade.flows.mirror.mirror import Mirror
from facade.printable import excerpt
from facade.runtime.flow import Fault, FaultKey

DISCONNECTED = "mirrorDisconnected"
"""Condition of the ICD, which says how long a device must be away."""
_MOST_FAULTS = 32
"""An array that is switched off is no thousand alarms."""


def find_disconnected(mirror: Mirror) -> Mapping[FaultKey, Fault] | None:
    """Return the devices whose attributes are wanted and that do not answer; None: what is wanted is not known yet."""
    if not mirror.has_chosen:
        return None
    away: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in mirror.disconnected():
        away[device_of(entry.name)].append(entry)
    return {
        (DISCONNECTED, device): Fault("WARNING", _why(entries), values={"attributes": len(entries)})
        for device, entries in sorted(away.items())[:_MOST_FAULTS]
    }


def _why(entries: list[Entry]) -> str:
    newest = entries[0].newest
    return f"{len(entries)} attributes are not mirrored: {excerpt(newest.error) if newest else 'nobody answers'}"
