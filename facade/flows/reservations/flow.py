"""What device servers make of the topic: one ledger of all reservations."""

from facade.bus.port import Record
from facade.clock import Clock
from facade.flows.reservations.ledger import Ledger
from facade.flows.reservations.messages import RESERVATIONS
from facade.outcome import Outcome
from facade.runtime.flow import Flow


class ReservationsFlow(Flow):
    """A flow: the newest state of each reservation, of all subarrays; see `facade.runtime.flow.Flow`.

    A conflict may be with a subarray that another device server shows, so each keeps them all.
    """

    topic = RESERVATIONS

    def __init__(self, clock: Clock) -> None:
        self.ledger = Ledger()
        self._clock = clock

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Take the state of a reservation; see `facade.runtime.flow.Flow`."""
        return self.ledger.fold(record, round(self._clock.now() * 1e6))
