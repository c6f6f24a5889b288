"""Faults of a simulated stream, as data: probabilities, or places and times.

Settings with unpredictable outcomes of records are refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Annotated, ClassVar, Self

import msgspec
from msgspec import Meta

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
class NodeFault:
    """A fault of one node."""

    form: ClassVar[str]
    """Form of its text: the fields with colons between them."""
    node: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a fault from its text."""
        names = [field.name for field in fields(cls)]
        try:
            return msgspec.convert(dict(zip(names, text.split(":"), strict=True)), cls, strict=False)
        except (ValueError, msgspec.ValidationError) as error:
            raise ConfigError(f"{cls.__name__.lower()}: expected {cls.form}, got {text!r}") from error


@dataclass(frozen=True, slots=True)
class Silence(NodeFault):
    """A time without records of one node, in stream time (heap n of a stream of rate R is at n/R)."""

    form = "NODE:FROM:TO such as 2:10:25, with 0 <= FROM < TO"
    begin: Annotated[float, Meta(ge=0)]
    end: float

    def __post_init__(self) -> None:
        if not self.begin < self.end:
            raise ValueError("the end is not after the begin")


@dataclass(frozen=True, slots=True)
class Skew(NodeFault):
    """Error of the clock of one node [s]; positive: it is ahead."""

    form = "NODE:SECONDS such as 1:-30"
    seconds: float


@dataclass(frozen=True, slots=True)
class Loss(NodeFault):
    """Share of its packets that one node loses, beside the rare losses of all nodes."""

    form = "NODE:SHARE such as 1:0.01, with a share from 0 to 1"
    share: Annotated[float, Meta(ge=0, le=1)]


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
        of_nodes: tuple[NodeFault, ...] = (*self.silences, *self.skews, *self.losses)
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
