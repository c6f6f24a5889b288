"""What the recorded events say about latency. No I/O."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from sdp_facade_clients.events import DeviceEvent

_POINTS = 100
"""Notifications of one window that stand for all of them: they are spread evenly over it."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How some times are distributed [ms]."""

    p50: float
    p99: float
    longest: float
    count: int


def without_rereads(events: Sequence[DeviceEvent]) -> list[DeviceEvent]:
    return [
        event
        for before, event in pairwise((None, *events))
        if event is not None
        and (before is None or (event.value, event.time, event.quality) != (before.value, before.time, before.quality))
    ]


def notification_latency(events: Iterable[DeviceEvent]) -> Spread | None:
    """Give the time from a heap to the event whose value contains it; None without events.

    An event shows one window, from the full second to the newest heap in it; its heaps are spread
    evenly over that.
    """
    points = (np.arange(_POINTS) + 0.5) / _POINTS
    ages = [
        event.received - (math.floor(event.time) + points * (event.time - math.floor(event.time))) for event in events
    ]
    return _spread(np.concatenate(ages)) if ages else None


def window_latency(events: Iterable[DeviceEvent], length: float = 1.0) -> Spread | None:
    """Return the time from the end of a window to its event; None without events."""
    ages = [event.received - (math.floor(event.time / length) + 1) * length for event in events]
    return _spread(np.array(ages)) if ages else None


def _spread(seconds: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Spread:
    p50, p99 = np.percentile(seconds * 1e3, [50, 99])
    return Spread(p50=float(p50), p99=float(p99), longest=float(seconds.max() * 1e3), count=len(seconds))
