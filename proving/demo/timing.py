"""What the recorded events say about latency and pace. No I/O."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

import msgspec
import numpy as np

from clients.events import DeviceEvent
from clients.timing import HELD_UP, LASTING, Bunch, closest

Interval = tuple[float, float]
"""From, to [Unix s]."""

_POINTS = 100
"""Notifications of one window that stand for all of them: they are spread evenly over it."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How some times are distributed [ms]."""

    p50: float
    p99: float
    longest: float
    count: int


class EventRates(msgspec.Struct, frozen=True, kw_only=True):
    """How often events of one attribute came, outside of restarts."""

    events: int
    """Of all attributes together."""
    attributes: int
    """Attributes that sent at least two events."""
    busiest: str
    """The attribute whose rate is highest, measured by what its `shortest` allows, with its device."""
    busiest_rate: float
    """[events/s]."""
    busiest_gaps: int
    """From so many gaps between two events."""
    busiest_limit: float
    """What the ICD allows it [events/s]."""
    closest: str
    """The attribute whose events came closest together, measured by its `shortest`, with its device."""
    bunch: Bunch
    """These events."""


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


def event_rates(
    events: Mapping[tuple[str, str], Sequence[DeviceEvent]],
    shortest: Mapping[tuple[str, str], float],
    restarts: Sequence[Interval],
) -> EventRates | None:
    """Give the busiest attribute and the events closest to each other; None if nothing can be said.

    Parameters
    ----------
    events
        By device and attribute, oldest first.
    shortest
        What the ICD demands, by device and attribute; others, and those with 0, are left out: State has no limit.
    restarts
        When servers were down or new: then events say nothing about the pace.
    """
    rates: dict[tuple[str, str], float] = {}
    counts: dict[tuple[str, str], int] = {}
    bunches: dict[tuple[str, str], Bunch] = {}
    for key, all_of_one in events.items():
        runs = [run for run in _usual_runs(all_of_one, restarts) if len(run) > 1]
        if not shortest.get(key) or not runs:
            continue
        counts[key] = sum(len(run) - 1 for run in runs)
        rates[key] = counts[key] / max(sum(run[-1].received - run[0].received for run in runs), 1e-9)
        even = [closest([event.received for event in part], shortest[key]) for run in runs for part in _even(run)]
        if found := [bunch for bunch in even if bunch is not None]:
            bunches[key] = max(found, key=lambda bunch: bunch.ahead)
    if not bunches:
        return None
    # Two or three events, say those at the start, are no rate; where there is nothing else they must do.
    most = [key for key, count in counts.items() if count >= LASTING] or list(rates)
    busiest = max(most, key=lambda key: rates[key] * shortest[key])
    nearest = max(bunches, key=lambda key: bunches[key].ahead)
    return EventRates(
        events=sum(map(len, events.values())),
        attributes=len(rates),
        busiest="/".join(busiest),
        busiest_rate=rates[busiest],
        busiest_gaps=counts[busiest],
        busiest_limit=1 / shortest[busiest],
        closest="/".join(nearest),
        bunch=bunches[nearest],
    )


def longest_delay(pace: EventRates, latest: Spread | None, patience: float) -> float:
    """Return for how long an event may have been held up on its way, which brings it close to the next one [s].

    That is as long as the latest window of the run, which the same client has measured. A machine on which all takes
    longer has the more.
    """
    return max(HELD_UP * patience * pace.bunch.shortest, latest.longest / 1e3 if latest else 0.0)


def _usual_runs(events: Sequence[DeviceEvent], restarts: Sequence[Interval]) -> Iterator[list[DeviceEvent]]:
    """Return the events outside of restarts; none lies between those of one run."""
    run: list[DeviceEvent] = []
    for event in events:
        if run and any(run[-1].received < begin < event.received for begin, _ in restarts):
            yield run
            run = []
        if not any(begin <= event.received <= end for begin, end in restarts):
            run.append(event)
    yield run


def _even(run: Sequence[DeviceEvent]) -> Iterator[list[DeviceEvent]]:
    """Return successive events of the same quality: a change of it is sent at once, whatever the ICD's sampling."""
    for _, events in groupby(run, key=lambda event: event.quality):
        yield list(events)


def _spread(seconds: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> Spread:
    p50, p99 = np.percentile(seconds * 1e3, [50, 99])
    return Spread(p50=float(p50), p99=float(p99), longest=float(seconds.max() * 1e3), count=len(seconds))
