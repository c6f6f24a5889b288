"""The intervals between the events of one attribute, as far as arrival times show them. No I/O.

Two events are no measure: a delayed one is close to the next one, through no fault of the device. So more of them are
compared. An event may precede the time given by an earlier one and the ICD's shortest gap by the delay of that earlier
one, however many are between them; the lead of a device that is too fast grows with each event. Beyond some events
their rate is a better measure.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

HELD_UP: Final = 1.0
"""Lead of an event that is explained by a delay of an earlier one [gaps]."""
LASTING: Final = 6
"""Number of gaps from which the rate of events is judged."""
RATE_SLACK: Final = 1.1
"""Tolerance factor of the rate over the reciprocal of the shortest gap, as the measured time is short."""


class Bunch(msgspec.Struct, frozen=True, kw_only=True):
    """The successive events with the smallest distances, relative to the shortest allowed gap."""

    events: int
    within: float
    """Time from the first of them to the last [s]."""
    shortest: float
    """The shortest allowed gap [s]."""

    @property
    def ahead(self) -> float:
        """Return the lead of the last event over the first one [gaps]; negative: it is not early."""
        return self.events - 1 - self.within / self.shortest

    def is_too_close(self, patience: float = 1.0) -> bool:
        """Return whether a delay of one event cannot be the reason."""
        return self.ahead > HELD_UP * patience

    def __str__(self) -> str:
        return f"{self.events} within {self.within:.2f} s"


def closest(arrivals: Sequence[float], shortest: float) -> Bunch | None:
    """Find the successive events with the largest lead; None if there are fewer than two."""
    bunches = [
        Bunch(events=gaps + 1, within=last - first, shortest=shortest)
        for gaps in range(1, LASTING + 1)
        for first, last in zip(arrivals, arrivals[gaps:], strict=False)
    ]
    return max(bunches, key=lambda bunch: bunch.ahead, default=None)
