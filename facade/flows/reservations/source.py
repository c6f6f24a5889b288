"""Writes reservations: requests of controllers, and the answers of the services that manage the resources."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from facade.flows.reservations.ledger import (
    GRANTED,
    REFUSED,
    RELEASED,
    REQUESTED,
    RESERVATIONS,
    read_reservation,
    reservation_record,
)
from facade.kernel.bus.kafka.opening import OwnBus
from facade.kernel.bus.port import Record
from facade.kernel.clock import Clock, SystemClock, as_duration
from facade.kernel.outcome import RecordRejected
from facade.sdp.messages import Reservation


class ReservationSource(OwnBus):
    """Writes reservations. One thread may use it; it stores nothing.

    Each method returns the reservation that it has written. Give the newest one to the next call; records that
    other programs have written are on the topic.

    Parameters
    ----------
    source
        Name of the controller, or of the service that manages the resources.
    send
        Writes a record durably, such as `Call.publish` in a handler; by default by an own bus, see `OwnBus`.
    clock
        Clock of the times of reservations; by default the system's.

    Raises
    ------
    ValueError
        By each method: the schema of the message forbids a value. Nothing was sent.
    BusError
        By each method: the bus has not confirmed the record. Call again.

    Examples
    --------
    >>> with ReservationSource("subarray-controller") as source:
    ...     wanted = source.reserve("subarray-01/receptors", 1, "receptors", ["SKA001"], seconds=3600.0)
    ...     renewed = source.renew(wanted, seconds=3600.0)
    ...     released = source.release(renewed)
    >>> wanted.state, released.state
    ('REQUESTED', 'RELEASED')
    """

    def __init__(self, source: str, send: Callable[[Record], None] | None = None, clock: Clock | None = None) -> None:
        self._send = self._open_durable(source) if send is None else send
        self._source, self._clock = source, clock or SystemClock()

    def reserve(
        self,
        reservation_id: str,
        subarray: int,
        kind: str,
        names: Sequence[str] = (),
        *,
        seconds: float,
        state: Any = REQUESTED,
        **more: Any,
    ) -> Reservation:
        """Request resources.

        Parameters
        ----------
        reservation_id
            Id of the reservation, such as ``subarray-01/receptors``.
        subarray
            Number of the subarray that owns it.
        kind
            Kind of the resources, such as ``receptors``.
        names
            Names of the resources.
        seconds
            Time from now until it expires [s].
        state
            REQUESTED, or GRANTED if no service manages the resources.
        **more
            Further fields of ``reservation.schema.json``, such as ``pb_id``, ``quantity`` and ``exclusive``.
        """
        now_us = self._clock.now_us()
        return self._write(
            Reservation(
                id=reservation_id,
                subarray=subarray,
                kind=kind,
                names=list(names),
                state=state,
                expires=now_us + as_duration(seconds),
                sequence=max(int(now_us), 1),
                time=now_us,
                source=self._source,
                **more,
            )
        )

    def renew(self, one: Reservation, *, seconds: float) -> Reservation:
        """Renew a reservation: it expires in `seconds` [s] from now."""
        return self._change(one, expires=self._clock.now_us() + as_duration(seconds))

    def grant(self, one: Reservation, text: str = "") -> Reservation:
        """Grant a request."""
        return self._change(one, state=GRANTED, text=text)

    def refuse(self, one: Reservation, text: str) -> Reservation:
        """Refuse a request; the text gives the reason."""
        return self._change(one, state=REFUSED, text=text)

    def release(self, one: Reservation, text: str = "") -> Reservation:
        """Give resources back before the reservation expires."""
        return self._change(one, state=RELEASED, text=text)

    def remove(self, reservation_id: str) -> None:
        """Remove a reservation that is no longer needed from the topic."""
        self._send(Record(topic=RESERVATIONS, key=reservation_id.encode(), value=None))

    def _change(self, one: Reservation, **changes: Any) -> Reservation:
        now_us = self._clock.now_us()
        sequence = max(int(now_us), one.sequence + 1)
        return self._write(replace(one, sequence=sequence, time=now_us, source=self._source, **changes))

    def _write(self, one: Reservation) -> Reservation:
        record = reservation_record(one)
        if isinstance(rejected := read_reservation(record), RecordRejected):
            raise ValueError(f"reservation {one.id!r:.210}: {rejected.path}: {rejected.detail}")
        self._send(record)
        return one
