"""Numbers that shippers give their records, and which of them are missing, in bounded memory."""

from collections.abc import Sequence
from typing import Final

import msgspec

MOST_SHIPPERS: Final = 2000
"""Another one takes the place of the one that was silent longest, if that was so for long."""
MOST_MISSING: Final = 10
"""Runs of missing numbers of a shipper that may still come."""
_RESTART: Final = 1
"""A shipper that starts gives this number (RFC 5424), also after its largest one."""

NumberRange = tuple[int, int]


class Shipper(msgspec.Struct):
    """What is known of one shipper."""

    newest: int
    missing: list[NumberRange] = []
    """Runs of numbers that did not come yet, ascending; the newest ones."""
    heard: float = 0.0
    """Brokers' time of its newest records [Unix s]."""

    def fill(self, first: int, last: int) -> int:
        """Take a run of numbers from those that are missing; return how many were."""
        left: list[NumberRange] = []
        for low, high in self.missing:
            left += [run for run in ((low, min(high, first - 1)), (max(low, last + 1), high)) if run[0] <= run[1]]
        filled = _size(self.missing) - _size(left)
        self.missing = left
        return filled


class ShipperNumbers(msgspec.Struct):
    """Counts holes in the numbers of all shippers."""

    shippers: dict[str, Shipper] = {}
    """By name."""
    holes: int = 0

    def add(self, name: str, runs: Sequence[NumberRange], at: float, *, silent_since: float) -> None:
        """Take runs of numbers in the order in which they came, at a time [Unix s].

        Parameters
        ----------
        silent_since
            A shipper that was heard last before this time may be forgotten for another one [Unix s].
        """
        if name not in self.shippers and len(self.shippers) >= MOST_SHIPPERS:
            silent_longest = next(iter(self.shippers))
            if self.shippers[silent_longest].heard >= silent_since:
                return
            del self.shippers[silent_longest]
        for first, last in runs:
            found = self.shippers.get(name)
            if found is None or first == _RESTART:
                self.shippers[name] = Shipper(last)
            elif first > found.newest:
                if first > found.newest + 1:
                    self.holes += first - found.newest - 1
                    found.missing = [*found.missing, (found.newest + 1, first - 1)][-MOST_MISSING:]
                found.newest = last
            else:
                # Some came on another way, or again, as the shipper was not sure that they had arrived.
                self.holes -= found.fill(first, last)
                found.newest = max(found.newest, last)
        if (found := self.shippers.pop(name, None)) is not None:
            found.heard = at
            self.shippers[name] = found  # at the end: the one at the beginning was silent longest


def _size(runs: Sequence[NumberRange]) -> int:
    return sum(high - low + 1 for low, high in runs)
