"""The result of a run: figures, lost and doubled records, silences, and differences from the records sent."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rich.table import Table

from facade.kernel.clock import Clock

_LONG: Final = 1.0
"""A silence from this length on is kept [s]."""


class Silence(NamedTuple):
    """A time without a record."""

    began: float
    """[Unix s]."""
    seconds: float


class Gaps:
    """The times in which a stream was silent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard = 0.0
        self.found: list[Silence] = []
        """Those of a second or more, and each that was the longest until then."""

    @property
    def longest(self) -> float:
        return longest(self.found)

    def hear(self) -> None:
        if self._heard:
            gap = Silence(self._heard, self._clock.now() - self._heard)
            if gap.seconds >= _LONG or gap.seconds > self.longest:
                self.found.append(gap)
        self.wait_anew()

    def wait_anew(self) -> None:
        """Begin the next silence now: the time before does not count."""
        self._heard = self._clock.now()


def longest(gaps: Iterable[Silence]) -> float:
    return max((gap.seconds for gap in gaps), default=0.0)


class Tally(NamedTuple):
    """Records of one flow, in figures that all flows have."""

    sent: int
    found: int
    lost: int
    doubled: int
    gaps: Sequence[Silence]


@dataclass(slots=True)
class Balance:
    """Figures of a run, and every difference between expected and observed."""

    rows: list[tuple[str, int | str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    """By flow."""
    tables: list[Table] = field(default_factory=list)
    """Further ones that are printed."""
