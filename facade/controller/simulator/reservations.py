"""What SDP's commands do to the reservations of a subarray: its receptors are reserved for as long as it has them."""

from collections.abc import Mapping
from typing import Any

from facade.controller.simulator.observation import Subarray
from facade.flows.reservations.messages import GRANTED, RELEASED
from facade.flows.reservations.source import ReservationSource

KIND = "receptors"
"""Other resources may be shared by subarrays, or are only counted."""
LASTS = 86400.0
"""Longer than any observation [s]: this controller keeps nothing, so it renews with the next command only."""
_MOST, _LONGEST = 1024, 100
"""Names in one reservation, and characters of a name, by the message's schema."""


def reserve(source: ReservationSource, before: Subarray, changes: Mapping[str, Any]) -> None:
    """Write which receptors are reserved, when a command has done its work.

    There is nobody in the simulation who manages resources, so what is requested is granted.

    Parameters
    ----------
    changes
        What the command changes of the subarray.
    """
    if "resources" not in changes:
        return
    reservation_id = f"subarray-{before.number:02d}/{KIND}"
    held, wanted = (_names(resources) for resources in (before.resources, changes["resources"]))
    if wanted or held:
        state = GRANTED if wanted else RELEASED
        source.reserve(reservation_id, before.number, KIND, wanted or held, seconds=LASTS, state=state)


def _names(resources: Mapping[str, Any]) -> list[str]:
    names = resources.get(KIND)
    found = map(str, names) if isinstance(names, list) else ()
    return [name for name in found if 0 < len(name) <= _LONGEST][:_MOST]
