"""What SdpSubarray and SdpMaster show of reservations."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest

from facade.clock import utc_text
from facade.flows.reservations.ledger import Conflict, Ledger
from facade.flows.reservations.messages import GRANTED, REFUSED, REQUESTED, owner_of
from facade.messages import Reservation
from facade.reading import Reading, Value
from facade.runtime.flow import VIEW_PERIOD, DeviceReading

MOST_SHOWN = 64
"""Reservations, or conflicts, in one attribute."""
MOST_NAMES_SHOWN = 256
"""Names of resources in one reservation."""


class Look:
    """Says whether what is shown may have changed: by a record, or as a reservation expired; at most every 0.25 s."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._version = -1
        self._from = self._until = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether to look again at a time [Unix s]; a clock that was set back changes what has expired, too."""
        if self._from <= now < self._until and (
            self._version == self._ledger.version or now < self._from + VIEW_PERIOD
        ):
            return False
        expiry = self._ledger.next_expiry(round(now * 1e6))
        self._from, self._until = now, float("inf") if expiry is None else expiry / 1e6
        self._version = self._ledger.version
        return True


class ReservationsView:
    """A view: the reservations of one subarray; see `facade.runtime.flow.View`.

    Parameters
    ----------
    known
        Whether the topic has been read as far as it went at the start.
    """

    def __init__(self, device: str, subarray: int, ledger: Ledger, known: Callable[[], bool]) -> None:
        self._device, self._subarray, self._ledger, self._known = device, subarray, ledger, known
        self._look = Look(ledger)

    def readings(self, now: float) -> Iterator[DeviceReading]:
        """Return all of it when a reservation has changed or expired."""
        if not self._known() or not self._look.is_due(now):
            return
        for name, reading in readings(self._ledger, now, self._subarray).items():
            yield self._device, name, reading


def readings(ledger: Ledger, now: float, subarray: int | None = None) -> Mapping[str, Reading]:
    """Return what is shown of the reservations of one subarray, or of all, by attribute.

    The time is that of the data: of the newest record, or of the newest expiry. Of no reservation, it is now.
    """
    now_us = round(now * 1e6)
    conflicts = [
        one
        for one in ledger.conflicts(now_us)
        if subarray is None or any(reservation.subarray == subarray for reservation in one.reservations)
    ]
    time = ledger.changed_at(now_us, subarray) / 1e6 or now
    shown = values(list(ledger.current(now_us, subarray)), conflicts)
    return {name: Reading(value, time) for name, value in shown.items()}


def values(current: Iterable[Reservation], conflicts: Iterable[Conflict]) -> Mapping[str, Value]:
    """Return the attributes that show some reservations that have not expired, by name."""
    current, conflicts = list(current), list(conflicts)
    counts = Counter(one.state for one in current)
    shown = nsmallest(MOST_SHOWN, current, key=lambda one: (one.expires, one.id))
    expiry = min((one.expires for one in current if one.state == GRANTED), default=0)
    named = nsmallest(MOST_SHOWN, conflicts, key=lambda one: one.resource)
    return {
        "reservations": tuple(json.dumps(as_dict(one)) for one in shown),
        "reservationsRequested": counts[REQUESTED],
        "reservationsHeld": counts[GRANTED],
        "reservationsRefused": counts[REFUSED],
        "nextReservationExpiry": expiry / 1e6,
        "nextReservationExpiryUtc": utc_text(expiry) if expiry else "",
        "reservationConflicts": len(conflicts),
        "conflictingReservations": tuple(json.dumps(_conflict(one)) for one in named),
    }


def as_dict(one: Reservation) -> dict[str, object]:
    """Return what is said of a reservation, for people and programs; what is not known is left out."""
    found = {
        "id": one.id,
        "kind": one.kind,
        "names": one.names[:MOST_NAMES_SHOWN],
        "quantity": len(one.names) if one.quantity is None else one.quantity,
        "unit": one.unit,
        "exclusive": one.exclusive,
        "subarray": one.subarray,
        "owner": owner_of(one),
        "state": one.state,
        "expires": utc_text(one.expires),
        "time": utc_text(one.time),
    }
    return found | {name: value for name in ("text", "source") if (value := getattr(one, name))}


def _conflict(one: Conflict) -> dict[str, object]:
    kind, name = one.resource
    held = [{"owner": owner_of(reservation), "id": reservation.id} for reservation in one.reservations[:MOST_SHOWN]]
    return {"kind": kind, "name": name, "reservations": held}
