"""What a controller reserves resources with, and what those who manage them answer with.

::

    source = ReservationSource(lambda record: writer.send_durably(record, 5.0), "subarray-controller", SystemClock())
    wanted = source.reserve("subarray-01/receptors", 1, "receptors", ["SKA001"], seconds=3600.0)
    source.renew(wanted, seconds=3600.0)
    source.release(wanted)

Who holds what is read from the topic::

    known = read_ledger(bus.read_all(RESERVATIONS), now_us)
    known.holders("receptors", "SKA001", now_us)
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from facade.bus.port import Record
from facade.clock import Clock
from facade.flows.reservations.messages import (
    GRANTED,
    REFUSED,
    RELEASED,
    REQUESTED,
    RESERVATIONS,
    read_reservation,
    reservation_record,
)
from facade.messages import Reservation
from facade.outcome import Rejected


class ReservationSource:
    """Writes reservations, for one thread; it keeps nothing of them.

    Each method returns the reservation as it was written. Give the newest one to the next call: what others have
    written of it in between is on the topic.

    Each raises `ValueError` if the message's schema does not allow what is written, and nothing was sent then; and
    what `send` raises if it is not known to be on the bus: call again.

    Parameters
    ----------
    send
        Puts a record on the bus, and raises when it is not known to be there.
    source
        Name of the controller, or of who manages the resources.
    """

    def __init__(self, send: Callable[[Record], None], source: str, clock: Clock) -> None:
        self._send, self._source, self._clock = send, source, clock

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
        """Request resources; see ``reservation.schema.json`` for what more can be said.

        Parameters
        ----------
        seconds
            For how long from now [s].
        state
            GRANTED where nobody manages the resources.
        """
        now_us = round(self._clock.now() * 1e6)
        return self._write(
            Reservation(
                id=reservation_id,
                subarray=subarray,
                kind=kind,
                names=list(names),
                state=state,
                expires=now_us + round(seconds * 1e6),
                sequence=max(now_us, 1),
                time=now_us,
                source=self._source,
                **more,
            )
        )

    def renew(self, one: Reservation, *, seconds: float) -> Reservation:
        """Let a reservation end later: in so many seconds from now."""
        return self._change(one, expires=round((self._clock.now() + seconds) * 1e6))

    def grant(self, one: Reservation, text: str = "") -> Reservation:
        """Grant what was requested."""
        return self._change(one, state=GRANTED, text=text)

    def refuse(self, one: Reservation, text: str) -> Reservation:
        """Refuse what was requested, and say why."""
        return self._change(one, state=REFUSED, text=text)

    def release(self, one: Reservation, text: str = "") -> Reservation:
        """Give resources back before the reservation expires."""
        return self._change(one, state=RELEASED, text=text)

    def remove(self, reservation_id: str) -> None:
        """Remove a reservation that nobody needs any more from the topic."""
        self._send(Record(topic=RESERVATIONS, key=reservation_id.encode(), value=None))

    def _change(self, one: Reservation, **changes: Any) -> Reservation:
        now_us = round(self._clock.now() * 1e6)
        sequence = max(now_us, one.sequence + 1)
        return self._write(replace(one, sequence=sequence, time=now_us, source=self._source, **changes))

    def _write(self, one: Reservation) -> Reservation:
        record = reservation_record(one)
        if isinstance(rejected := read_reservation(record), Rejected):
            raise ValueError(f"reservation {one.id!r:.210}: {rejected.path}: {rejected.detail}")
        self._send(record)
        return one
