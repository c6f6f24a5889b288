"""What the mirror raises alarms about: devices that do not answer, and another mirror."""

from collections import defaultdict
from collections.abc import Mapping

from facade.flows.mirror.entry import Entry
from facade.flows.mirror.messages import device_of
from facade.flows.mirror.mirror import Mirror
from facade.printable import excerpt
from facade.runtime.flow import Fault, FaultKey
from facade.severities import WARNING

DISCONNECTED, CONFLICT = CONDITIONS = "mirrorDisconnected", "mirrorConflict"
"""Conditions of the ICD, which says how long a device must be away, and another mirror be there."""


def find_faults(mirror: Mirror, device: str) -> Mapping[FaultKey, Fault] | None:
    """Return all faults; None: what is wanted is not known yet.

    Parameters
    ----------
    device
        The one that shows the mirror.
    """
    away, others = find_disconnected(mirror), mirror.writers.beside(mirror.own)
    if away is None or not others:
        return away
    names = ", ".join(excerpt(one.incarnation) for one in others)
    text = f"telescope.model is also written by {len(others)} other mirrors, incarnation {names}"
    return {**away, (CONFLICT, device): Fault(WARNING, text)}


def find_disconnected(mirror: Mirror) -> Mapping[FaultKey, Fault] | None:
    """Return the devices whose attributes are wanted and that do not answer; None: what is wanted is not known yet."""
    if not mirror.has_chosen:
        return None
    away: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in mirror.disconnected():
        away[device_of(entry.name)].append(entry)
    return {
        (DISCONNECTED, device): Fault(WARNING, _why(entries), values={"attributes": len(entries)})
        for device, entries in sorted(away.items())
    }


def _why(entries: list[Entry]) -> str:
    newest = entries[0].newest
    return f"{len(entries)} attributes are not mirrored: {excerpt(newest.error) if newest else 'nobody answers'}"
