"""What the sweep finds at a point; no measuring here."""

from collections.abc import Sequence

import msgspec
import numpy as np

from proving.bench.sweep_points import Point


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer did."""

    messages: int
    """Acknowledged, as far as it asked for that."""
    began: float
    """[Unix s]."""
    ended: float
    """When the last one was acknowledged [Unix s]."""
    cpu: float
    """[s]."""
    peak_mb: float
    calls: list[float] = []
    """From each message until it is acknowledged [s]; only where a producer waits for that."""


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """From just before a message is sent to its receipt in another process, or to its acknowledgement [s]."""

    p50: float
    p99: float
    p999: float
    highest: float
    count: int


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer group did."""

    messages: int
    timed: int
    """Those behind the first batch, which come from `began` to `ended`."""
    began: float
    ended: float
    cpu: float
    peak_mb: float
    delay: Delay | None = None


class Large(msgspec.Struct, frozen=True, kw_only=True):
    """How long large messages took: until all is acknowledged, or from the first segment to the last one."""

    each: list[float]
    """[s]."""
    seconds: float
    """All of them [s]."""
    cpu: float
    peak_mb: float


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What went in one direction."""

    messages: int
    """Of all producers, or of all groups."""
    lost: int = 0
    """Sent, and not received by each group."""
    rate: float
    """[messages/s]."""
    seconds: float
    """From the first message to the last one."""
    cpu: float
    """Processor time of all clients [s]."""
    peak_mb: float
    """Largest memory of a client."""
    broker_cpu: float
    """Processor time of the broker [s], for both directions if there were both."""
    broker_mb: float
    others: float = 0.0
    """Cores that were in use by what is no part of the measurement; only where something was sent."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was found at a point."""

    point: Point
    flows: dict[str, Flow] = {}
    """By phase; ``stream-in`` and ``stream-out`` of the phase ``stream``."""
    stored: float = 0.0
    """What a message of the phase ``in`` takes on the broker's disk [bytes]."""
    behind: float = 0.0
    """In the phase ``stream``: from the last message sent to the last one received [s]."""
    delay: Delay | None = None
    large: dict[str, Large] = {}
    """``in`` and ``out``."""
    failure: str = ""


def delay_of(values: Sequence[float]) -> Delay | None:
    """Return the distribution of some delays; None: there are none."""
    if not values:
        return None
    p50, p99, p999 = np.quantile(values, [0.5, 0.99, 0.999], method="inverted_cdf").tolist()
    return Delay(p50=p50, p99=p99, p999=p999, highest=max(values), count=len(values))
