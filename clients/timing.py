"""How close upon each other the events of one attribute came, as far as their arrival can tell. No I/O.

Two events are no measure: one that was held up on its way is close to the next one, through no fault of the
device. So more of them are looked at. An event may come as much before the time that an earlier one and the ICD's
shortest gap allow as that earlier one was held up, however many lie between them; the lead of a device that is too
fast grows with each event. Beyond some events their rate says more.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

HELD_UP: Final = 1.0
"""Gaps by which an event may be ahead of time: so long may an earlier one have been held up."""
LASTING: Final = 6
"""From so many gaps between events on, their rate says something."""
RATE_SLACK: Final = 1.1
"""Events per second may pass the reciprocal of the shortest gap by this factor, as the time taken is short."""


class Bunch(msgspec.Struct, frozen=True, kw_only=True):
    """Successive events that came closest together, measured by the shortest gap that is allowed."""

    events: int
    within: float
    """From the first of them to the last [s]."""
    shortest: float
    """The gap that is allowed [s]."""

    @property
    def ahead(self) -> float:
        """Return by how many gaps the last one came too early, counted from the first; negative: it did not."""
        return self.events - 1 - self.within / self.shortest

    def is_too_close(self, patience: float = 1.0) -> bool:
        """Return whether one event that was held up cannot be the reason.

        Parameters
        ----------
        patience
            Factor for a machine on which all takes longer.
        """
        return self.ahead > HELD_UP * patience

    def __str__(self) -> str:
        return f"{self.events} within {self.within:.2f} s"


def closest(arrivals: Sequence[float], shortest: float) -> Bunch | None:
    """Find the successive events that are most ahead of time; None if there are fewer than two.

    Parameters
    ----------
    arrivals
        When the events came, in this order [s].
    """
    bunches = [
        Bunch(events=gaps + 1, within=last - first, shortest=shortest)
        for gaps in range(1, LASTING + 1)
        for first, last in zip(arrivals, arrivals[gaps:], strict=False)
    ]
    return max(bunches, key=lambda bunch: bunch.ahead, default=None)
