"""What a device server needs for reservations: the flow, what devices show of it, and which alarms there are."""

import json
from collections.abc import Iterator, Mapping

from facade.flows.reservations.flow import ReservationsFlow
from facade.flows.reservations.ledger import Conflict, Ledger
from facade.flows.reservations.messages import GRANTED, owner_of
from facade.flows.reservations.view import Look, ReservationsView, readings
from facade.instances import devices_of, number_of
from facade.printable import excerpt, listed
from facade.reading import Value
from facade.runtime.composition import Server
from facade.runtime.device_state import TOPIC as STATES
from facade.runtime.device_state import StateMessage
from facade.runtime.health_issues import DEGRADED, ORIGIN, HealthIssue, HealthSource
from facade.severities import ALARM

SUBARRAY, MASTER = "SdpSubarray", "SdpMaster"
_RESOURCES = "resources"
"""What a controller reports of the resources that a subarray has."""
_CONFLICT, _EXPIRED = "reservationConflict", "reservationExpired"
_MOST_NAMED = 5


def compose(server: Server) -> None:
    """Add the reservations to a device server."""
    flow = server.share(ReservationsFlow, lambda: ReservationsFlow(server.clock))
    server.flows.append(flow)
    subarray = server.icd.classes[SUBARRAY]
    for device in server.devices.get(SUBARRAY, ()):
        if (number := number_of(subarray, device)) is not None:
            server.views.append(ReservationsView(device, number, flow.ledger, lambda: server.has_read(flow.topic)))


class Held:
    """Which resources the controllers report of each subarray, by kind."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        self.of_subarray: dict[int, dict[str, set[str]]] = {}
        """Names by number and kind."""

    def take(self, message: StateMessage) -> None:
        """Take what is reported of a device; see `facade.runtime.device_state.DeviceStates.listeners`."""
        number = self._numbers.get(message.device)
        if number is None or message.attribute != _RESOURCES:
            return
        try:
            found = json.loads(message.value)
        except (ValueError, RecursionError):
            found = None
        kinds = found.items() if isinstance(found, dict) else ()
        self.of_subarray[number] = {kind: set(map(str, names)) for kind, names in kinds if isinstance(names, list)}


class ReservationsHealth(HealthSource):
    """Which reservations conflict, and which have expired in use; see `facade.runtime.health_issues.HealthSource`."""

    conditions: Mapping[str, str] = {_CONFLICT: f"{ORIGIN}/reservations", _EXPIRED: f"{ORIGIN}/subarray/"}

    def __init__(self, server: Server) -> None:
        self._server = server
        subarray = server.icd.classes[SUBARRAY]
        names = [name for found in devices_of(subarray, server.settings).values() for name in found]
        self._held = Held({name: number for name in names if (number := number_of(subarray, name)) is not None})
        server.states.listeners.append(self._held.take)
        self._look: Look | None = None
        self._shown: Mapping[str, Value] = {}

    def _ledger(self) -> Ledger | None:
        flow = self._server.find(ReservationsFlow)
        return flow.ledger if flow is not None and self._server.has_read(flow.topic, STATES) else None

    def issues(self, now: float) -> Iterator[HealthIssue]:
        """Return the conflicts, and the subarrays that have resources whose reservation has expired."""
        if (ledger := self._ledger()) is None:
            return
        now_us = round(now * 1e6)
        if conflicts := ledger.conflicts(now_us):
            more = f"; and {len(conflicts) - 1} more resources" * (len(conflicts) > 1)
            key = _CONFLICT, f"{ORIGIN}/reservations"
            counted = {"conflicts": float(len(conflicts))}
            yield HealthIssue(DEGRADED, _in_words(min(conflicts)) + more, key, ALARM, values=counted)
        for number in sorted(self._held.of_subarray):
            if names := self._expired(ledger, number, now_us):
                text = f"subarray {number:02d} has {listed(names, _MOST_NAMED)}, whose reservation has expired"
                yield HealthIssue(DEGRADED, excerpt(text), (_EXPIRED, f"{ORIGIN}/subarray/{number:02d}"))
        if left_out := ledger.left_out(now_us):
            yield HealthIssue(DEGRADED, f"{left_out} reservations are not shown: there are too many")

    def _expired(self, ledger: Ledger, number: int, now_us: int) -> list[str]:
        """Return the resources that a subarray has, and that only expired reservations of it name."""
        held = self._held.of_subarray[number]
        expired: set[tuple[str, str]] = set()
        current: set[tuple[str, str]] = set()
        for one in ledger.all(number):
            if one.state == GRANTED and one.pb_id is None and one.kind in held:
                names = {(one.kind, name) for name in one.names if name in held[one.kind]}
                (current if one.expires > now_us else expired).update(names)
        return [f"{kind} {name}" for kind, name in sorted(expired - current)]

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return what SdpMaster shows of the reservations of all subarrays."""
        ledger = self._ledger()
        if ledger is None or device_class != MASTER:
            return {}
        self._look = self._look or Look(ledger)
        now = self._server.clock.now()
        if self._look.is_due(now):
            self._shown = {name: reading.value for name, reading in readings(ledger, now).items()}
        return self._shown


def _in_words(one: Conflict) -> str:
    kind, name = one.resource
    owners = [*dict.fromkeys(map(owner_of, one.reservations))]
    more = f" and {len(owners) - _MOST_NAMED} more" * (len(owners) > _MOST_NAMED)
    return excerpt(f"{kind} {name} is reserved by {' and '.join(owners[:_MOST_NAMED])}{more} at the same time")
