"""What SDP's commands do to the reservations of a subarray: its receptors are reserved for as long as it has them.

Who wants receptors that are not there, or that another subarray has, is refused where it is known which there are.
"""

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from facade.controller import Call, Rejected
from facade.controller.simulator.observation import Subarray, resources_of
from facade.flows.reservations.ledger import GRANTED, RELEASED
from facade.flows.reservations.source import ReservationSource

KIND = "receptors"
"""Other resources may be shared by subarrays, or are only counted."""
LASTS = 86400.0
"""Longer than any observation [s]: this controller keeps nothing, so it renews with the next command only."""
_MOST, _LONGEST = 1024, 100
"""Names in one reservation, and characters of a name, by the message's schema."""


def reserve(source: ReservationSource, before: Subarray, changes: Mapping[str, Any]) -> None:
    """Write which receptors are reserved, when a command has done its work.

    It is granted: what cannot be had was refused before.

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


class Receptors:
    """Which receptors there are, and which of them subarrays are about to get; may be used from several threads.

    Parameters
    ----------
    there
        Their names; none: all that are asked for, and nobody looks who has them.
    """

    def __init__(self, there: Collection[str]) -> None:
        self._there = frozenset(there)
        self._claimed: dict[str, set[str]] = {}
        """By device of the subarray, while a command is executed that gives them to it."""
        self._lock = threading.Lock()

    @contextmanager
    def claimed(self, call: Call, changes: Mapping[str, Any], subarrays: Collection[str]) -> Iterator[None]:
        """Keep what a command gives to a subarray from all others, until it is reported.

        Raises
        ------
        Rejected
            There is no such receptor, or another subarray has it.
        """
        wanted = _names(changes.get("resources", {}))
        if not self._there or not wanted:
            yield
            return
        with self._lock:
            self._require(call, wanted, subarrays)
            self._claimed[call.device] = {*wanted}
        try:
            yield
        finally:
            del self._claimed[call.device]

    def _require(self, call: Call, wanted: Collection[str], subarrays: Collection[str]) -> None:
        if strange := [name for name in wanted if name not in self._there]:
            raise Rejected(f"$.resources.{KIND}: expected receptors that are there, got {', '.join(strange):.200}")
        for device in subarrays:
            if device == call.device:
                continue
            held = {*_names(resources_of(call.reported_of(device, "resources", "{}"))), *self._claimed.get(device, ())}
            if taken := [name for name in wanted if name in held]:
                what = f"expected receptors that no other subarray has, got {', '.join(taken):.200}"
                raise Rejected(f"$.resources.{KIND}: {what} of {device}")


def _names(resources: Mapping[str, Any]) -> list[str]:
    names = resources.get(KIND)
    found = map(str, names) if isinstance(names, list) else ()
    return [name for name in found if 0 < len(name) <= _LONGEST][:_MOST]
