"""Faults of a simulated stream, as data: probabilities, or places and times.

Settings with unpredictable outcomes of records are refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import IntEnum

from facade.kernel.errors import ConfigError

MARGIN = 1.0
"""Smallest distance of data times from the ICD's limits [s]: the outcome of nearer ones would depend on chance."""

FAR = 7200.0
"""Longer than the retention of the topic [s]."""

_HIGHEST_RATE = 1e9
_LONGEST_SHIFT = 10 * 365 * 86_400.0


class HeapOutcome(IntEnum):
    """Outcome of a well-formed record."""

    USED = 0
    LATE = 1
    AHEAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Limits of the data time against the broker's clock; see the topic's window in the ICD."""

    lateness: float = 10.0
    """Older records are late [s]."""
    ahead: float = 5.0
    """Records further in the future are refused [s]."""
    window: float = 1.0
    """Length of a window, with which columnar batches end [s]."""

    def outcome(self, shift: float, wait: float = 0.0) -> HeapOutcome:
        """Return the outcome of a record whose data time is wrong by `shift` [s], appended `wait` [s] after sending."""
        if shift - wait < -self.lateness:
            return HeapOutcome.LATE
        return HeapOutcome.AHEAD if shift - wait > self.ahead else HeapOutcome.USED


@dataclass(frozen=True, slots=True)
class Silence:
    """A time without records of one node, in stream time (heap n of a stream of rate R is at n/R)."""

    node: int
    begin: float
    end: float

    @classmethod
    def parse(cls, text: str) -> "Silence":
        """Read ``NODE:FROM:TO``, the times in seconds since the start."""
        try:
            node, begin, end = text.split(":")
            silence = cls(int(node), float(begin), float(end))
        except ValueError as error:
            raise ConfigError(f"silence: expected NODE:FROM:TO such as 2:10:25, got {text!r}") from error
        if not 0 <= silence.begin < silence.end:
            raise ConfigError(f"silence: expected 0 <= FROM < TO, got {text!r}")
        return silence


@dataclass(frozen=True, slots=True)
class Skew:
    """Error of the clock of one node [s]; positive: it is ahead."""

    node: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> "Skew":
        """Read ``NODE:SECONDS``."""
        try:
            node, seconds = text.split(":")
            return cls(int(node), float(seconds))
        except ValueError as error:
            raise ConfigError(f"skew: expected NODE:SECONDS such as 1:-30, got {text!r}") from error


@dataclass(frozen=True, slots=True)
class Loss:
    """Share of its packets that one node loses, beside the rare losses of all nodes."""

    node: int
    share: float

    @classmethod
    def parse(cls, text: str) -> "Loss":
        """Read ``NODE:SHARE``."""
        try:
            node, share = text.split(":")
            loss = cls(int(node), float(share))
        except ValueError as error:
            raise ConfigError(f"loss: expected NODE:SHARE such as 1:0.01, got {text!r}") from error
        if not 0 <= loss.share <= 1:
            raise ConfigError(f"loss: expected a share from 0 to 1, got {text!r}")
        return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of a stream; probabilities are per heap."""

    gaps: float = 0.0
    duplicates: float = 0.0
    disorder: float = 0.0
    """Probability, per pair, that two neighbours of one node swap places."""
    late: float = 0.0
    """Probability that a record's data time is `late_seconds` old."""
    late_seconds: float = FAR
    """[s]."""
    ahead: float = 0.0
    """Probability that a record's data time is `ahead_seconds` in the future."""
    ahead_seconds: float = FAR
    """[s]."""
    garbage: float = 0.0
    """Probability that a malformed record follows; the kinds take turns, see `.garbage`."""
    chance_seconds: float | None = None
    """Duration of the probabilities, in stream time [s]; None: always."""
    silences: tuple[Silence, ...] = ()
    skews: tuple[Skew, ...] = ()
    losses: tuple[Loss, ...] = ()

    def check(self, limits: TimeLimits, nodes: range) -> None:
        """Raise a ConfigError if the settings make no sense."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is float and not field.name.endswith("_seconds") and not 0 <= value <= 1:  # NaN as well
                raise ConfigError(f"{field.name}: expected a probability from 0 to 1, got {value}")
        if self.chance_seconds is not None and not self.chance_seconds >= 0:
            raise ConfigError(f"chance_seconds: expected at least 0 s, got {self.chance_seconds}")
        if self.late + self.ahead > 1:
            raise ConfigError(f"late + ahead: expected at most 1, got {self.late + self.ahead}")
        of_nodes: tuple[Silence | Skew | Loss, ...] = (*self.silences, *self.skews, *self.losses)
        for one in of_nodes:
            if one.node not in nodes:
                raise ConfigError(
                    f"silence, skew, loss: expected a node from {nodes[0]} to {nodes[-1]}, got {one.node}"
                )
        for name, shift in self.shifts():
            if not abs(shift) <= _LONGEST_SHIFT:  # refuses NaN as well
                raise ConfigError(f"{name}: expected at most ten years, got {shift} s")
            if min(abs(shift + limits.lateness), abs(shift - limits.ahead)) < MARGIN:
                raise ConfigError(
                    f"{name}: a data time {shift:+} s off is too near to a limit of the ICD"
                    f" (-{limits.lateness} s, +{limits.ahead} s) for its fate to be known"
                )

    def shifts(self) -> Iterator[tuple[str, float]]:
        """Return each possible error of a data time, with its name [s]."""
        clocks = {0.0: "late/ahead", **{skew.seconds: f"skew of node {skew.node}" for skew in self.skews}}
        for skew, name in clocks.items():
            yield name, skew
            if self.late:
                yield name, skew - self.late_seconds
            if self.ahead:
                yield name, skew + self.ahead_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All parameters of a simulated stream, without timestamps."""

    nodes: int
    rate: float
    """Heaps of all nodes together [1/s]."""
    seed: int
    scan_id: int = 1
    first_node: int = 0
    """Number of the first node, so that several simulators can share the nodes of one deployment."""
    faults: Faults = Faults()
    limits: TimeLimits = TimeLimits()

    def check(self) -> None:
        """Raise a ConfigError if the scenario makes no sense."""
        if self.nodes < 1 or self.first_node < 0 or self.first_node + self.nodes > HIGHEST_NODE:
            raise ConfigError(
                f"nodes: expected numbers from 0 to {HIGHEST_NODE - 1}, as {HIGHEST_NODE} plays the stranger;"
                f" got {self.first_node} to {self.first_node + self.nodes - 1}"
            )
        if not 0 < self.rate <= _HIGHEST_RATE:
            raise ConfigError(f"rate: expected more than 0 and at most {_HIGHEST_RATE:g} heaps/s, got {self.rate}")
        self.faults.check(self.limits, range(self.first_node, self.first_node + self.nodes))


HIGHEST_NODE = 9999
"""The highest node number of a message; garbage uses it for a node outside any deployment."""
