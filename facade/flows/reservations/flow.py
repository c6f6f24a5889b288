"""Reservations on devices: by subarray and for SDP as a whole, with their conflicts and alarms."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest

from facade.flows.reservations.ledger import (
    GRANTED,
    REFUSED,
    REQUESTED,
    RESERVATIONS,
    Conflict,
    ReservationLedger,
    as_dict,
    owner_of,
)
from facade.kernel.clock import FOREVER, NEVER, Duration, Time, as_seconds, utc_text
from facade.kernel.instances import devices_of, number_of
from facade.kernel.printable import excerpt, listed
from facade.kernel.reading import Reading, Value
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import VIEW_PERIOD, DeviceView, Gate
from facade.kernel.runtime.health_issues import DEGRADED, ORIGIN, HealthIssue, HealthSource
from facade.sdp.device_state import TOPIC as STATES
from facade.sdp.device_state import StateMessage, states_of

MOST_SHOWN = 64
SUBARRAY, MASTER = "SdpSubarray", "SdpMaster"
_RESOURCES = "resources"
"""Reported attribute with the resources of a subarray."""
_CONFLICT, _EXPIRED = "reservationConflict", "reservationExpired"
_MOST_NAMED = 5


def _until_expiry(ledger: ReservationLedger, now: Time) -> Duration:
    """Return the time until the next expiry, or a very long one if there is none."""
    return (ledger.next_expiry(now) or FOREVER) - now


class ReservationsView(DeviceView):
    """A view: the reservations of one subarray, after a change or an expiry; see `facade.kernel.runtime.flow.View`."""

    def __init__(self, device: str, subarray: int, ledger: ReservationLedger, known: Callable[[], bool]) -> None:
        super().__init__(device, Gate(gap=VIEW_PERIOD))
        self._subarray, self._ledger, self._known = subarray, ledger, known

    def _version(self) -> object:
        return self._ledger.version, self._known()

    def _readings(self, now: Time) -> Iterable[tuple[str, Reading]]:
        self._gate.period = _until_expiry(self._ledger, now)
        return readings(self._ledger, now, self._subarray).items() if self._known() else ()


def readings(ledger: ReservationLedger, now: Time, subarray: int | None = None) -> Mapping[str, Reading]:
    """Return the attributes about the reservations of one subarray, or of all.

    Their time is the time of the newest record or expiry; without a reservation it is now.
    """
    conflicts = [
        one
        for one in ledger.conflicts(now)
        if subarray is None or any(reservation.subarray == subarray for reservation in one.reservations)
    ]
    time = ledger.changed_at(now, subarray) or now
    current = list(ledger.current(now, subarray))
    counts = Counter(one.state for one in current)
    shown = nsmallest(MOST_SHOWN, current, key=lambda one: (one.expires, one.id))
    expiry = min((one.expires for one in current if one.state == GRANTED), default=NEVER)
    named = nsmallest(MOST_SHOWN, conflicts, key=lambda one: one.resource)
    values: dict[str, Value] = {
        "reservations": tuple(json.dumps(as_dict(one)) for one in shown),
        "reservationsRequested": counts[REQUESTED],
        "reservationsHeld": counts[GRANTED],
        "reservationsRefused": counts[REFUSED],
        "nextReservationExpiry": as_seconds(expiry),
        "nextReservationExpiryUtc": utc_text(expiry) if expiry else "",
        "reservationConflicts": len(conflicts),
        "conflictingReservations": tuple(json.dumps(_conflict(one)) for one in named),
    }
    return {name: Reading(value, time) for name, value in values.items()}


def _conflict(one: Conflict) -> dict[str, object]:
    kind, name = one.resource
    held = [{"owner": owner_of(reservation), "id": reservation.id} for reservation in one.reservations[:MOST_SHOWN]]
    return {"kind": kind, "name": name, "reservations": held}


def compose(server: Server) -> None:
    """Add the reservations to a device server."""
    ledger = server.share(ReservationLedger, lambda: ReservationLedger(server.clock.now_us))
    server.flows.append(ledger)
    subarray = server.icd.classes[SUBARRAY]
    for device in server.devices.get(SUBARRAY, ()):
        if (number := number_of(subarray, device)) is not None:
            server.views.append(ReservationsView(device, number, ledger, lambda: server.has_read(RESERVATIONS)))


class ReservationsHealth(HealthSource):
    """Health issues about conflicts and about expiries in use.

    See `facade.kernel.runtime.health_issues.HealthSource`.
    """

    conditions: Mapping[str, str] = {_CONFLICT: f"{ORIGIN}/reservations", _EXPIRED: f"{ORIGIN}/subarray/"}

    def __init__(self, server: Server) -> None:
        self._server = server
        subarray = server.icd.classes[SUBARRAY]
        names = [name for found in devices_of(subarray, server.settings).values() for name in found]
        self._numbers = {name: number for name in names if (number := number_of(subarray, name)) is not None}
        self._held: dict[int, dict[str, set[str]]] = {}
        """Reported resources of each subarray: names by kind."""
        states_of(server).listeners.append(self._take)
        self._gate = Gate(gap=VIEW_PERIOD)
        self._shown: Mapping[str, Value] = {}

    def _take(self, message: StateMessage) -> None:
        number = self._numbers.get(message.device)
        if number is None or message.attribute != _RESOURCES:
            return
        try:
            found = json.loads(message.value)
        except (ValueError, RecursionError):
            found = None
        kinds = found.items() if isinstance(found, dict) else ()
        self._held[number] = {kind: set(map(str, names)) for kind, names in kinds if isinstance(names, list)}

    def _ledger(self) -> ReservationLedger | None:
        return self._server.find(ReservationLedger) if self._server.has_read(RESERVATIONS, STATES) else None

    def issues(self, now: Time) -> Iterator[HealthIssue]:
        """Return the conflicts, and the subarrays whose resources have an expired reservation."""
        if (ledger := self._ledger()) is None:
            return
        if conflicts := ledger.conflicts(now):
            more = f"; and {len(conflicts) - 1} more resources" * (len(conflicts) > 1)
            key = _CONFLICT, f"{ORIGIN}/reservations"
            counted = {"conflicts": float(len(conflicts))}
            yield HealthIssue(DEGRADED, _in_words(min(conflicts)) + more, key, values=counted)
        for number in sorted(self._held):
            if names := self._expired(ledger, number, now):
                text = f"subarray {number:02d} has {listed(names, _MOST_NAMED)}, whose reservation has expired"
                yield HealthIssue(DEGRADED, excerpt(text), (_EXPIRED, f"{ORIGIN}/subarray/{number:02d}"))
        if left_out := ledger.left_out(now):
            yield HealthIssue(
                DEGRADED,
                f"{left_out} reservations are not shown: there are too many",
                response="See the others: sdp-facade reservations list. Ask owners to release what they do not use.",
            )

    def _expired(self, ledger: ReservationLedger, number: int, now: Time) -> list[str]:
        """Return the resources of a subarray that only its expired reservations name."""
        held = self._held[number]
        expired: set[tuple[str, str]] = set()
        current: set[tuple[str, str]] = set()
        for one in ledger.all(number):
            if one.state == GRANTED and one.pb_id is None and one.kind in held:
                names = {(one.kind, name) for name in one.names if name in held[one.kind]}
                (current if one.expires > now else expired).update(names)
        return [f"{kind} {name}" for kind, name in sorted(expired - current)]

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return the attributes of SdpMaster about the reservations of all subarrays."""
        ledger = self._ledger()
        if ledger is None or device_class != MASTER:
            return {}
        now = self._server.clock.now_us()
        if self._gate.passes(now, ledger.version):
            self._gate.period = _until_expiry(ledger, now)
            self._shown = {name: reading.value for name, reading in readings(ledger, now).items()}
        return self._shown


def _in_words(one: Conflict) -> str:
    kind, name = one.resource
    owners = [*dict.fromkeys(map(owner_of, one.reservations))]
    more = f" and {len(owners) - _MOST_NAMED} more" * (len(owners) > _MOST_NAMED)
    return excerpt(f"{kind} {name} is reserved by {' and '.join(owners[:_MOST_NAMED])}{more} at the same time")
