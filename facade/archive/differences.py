"""What differs between two times: the attributes whose values, qualities or presence are not the same.

How far a number has moved is a share: of the room that the earlier value left to the next limit of the interface in
the direction of the change, so that 1 has reached the limit; without such a limit, of the larger of the two values. A
number differs when it is outside the attribute's deadband. An attribute without a deadband has another number when a
floating-point value has moved by more than `TOLERANCE`, or an integer is another one. Any other text, state, enumerated
value or quality differs, as does a value that one of the times lacks; it counts as 1. Totals of the interface, which
grow between any two times, are not compared.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from facade.archive.history import Point, class_in, number_of
from facade.archive.moment import ALARMS_BACK
from facade.archive.timeline import TimelineArchive
from facade.kernel.clock import DAY, NEVER, SECOND, Time, utc_seconds
from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import Attribute, Icd, Sampling
from facade.kernel.icd.units import unit_of
from facade.kernel.reading import Quality
from facade.sdp.device_state import OBS_STATE
from facade.sdp.durations import parse_time

TOLERANCE: Final = 0.05
"""Share by which a floating-point value may move where the interface has no deadband."""
YESTERDAY, LAST_SCAN = "yesterday", "last-scan"
_WHOLLY = 1.0
"""Share of a value that is no number, and another one."""
_SCANNING, _ENDED_WELL = "SCANNING", "READY"
_NO_DEADBAND: Final = Sampling()
_PLAIN: Final = Attribute(name="", type="DevDouble", label="-", description="-")
"""Stands for an attribute that is not in the interface, such as one of an earlier release."""


class Difference(NamedTuple):
    """An attribute that differs."""

    name: str
    """DEVICE/ATTRIBUTE."""
    unit: str
    before: Point | None
    """None: the archive has no value of that time."""
    after: Point | None
    moved: float
    """Share by which it has moved; see above."""


class Comparison(NamedTuple):
    """Two times, and what differs."""

    time: Time
    against: Time
    what: str
    """What the time is that it is compared with."""
    compared: int
    """Number of attributes, without totals."""
    found: list[Difference]
    """Those that differ, the farthest first."""


def compare(timeline: TimelineArchive, icd: Icd, time: Time, against: str) -> Comparison:
    """Compare a second with an earlier or later one.

    Parameters
    ----------
    against
        A time, `YESTERDAY` (at the same time), or `LAST_SCAN`: the last second of the newest scan before `time` from
        which a subarray came back to READY.

    Raises
    ------
    ConfigError
        `against` is none of these, or the archive has no such scan.
    ArchiveError
        The archive has no history of one of the times, or cannot be read.
    """
    if against == YESTERDAY:
        other, what = max(time - DAY, NEVER), "yesterday at this time"
    elif against == LAST_SCAN:
        other, device = _last_scan(timeline, time)
        what = f"the last scan that ended well, of {device}"
    else:
        other, what = parse_time(against, "against"), "another time"
    (at, after), (then, before) = (timeline.moments.values(one) for one in (time, other))
    compared = sum(1 for _ in _compared(icd, before.keys() | after.keys()))
    return Comparison(at, then, what, compared, differences(icd, before, after))


def _last_scan(timeline: TimelineArchive, time: Time) -> tuple[Time, str]:
    found = [
        (max(Time(round(1e6 * begin)), Time(round(1e6 * end)) - SECOND), device)
        for device, steps in timeline.steps(OBS_STATE, max(time - ALARMS_BACK, NEVER), time).items()
        for (begin, state), (end, following) in pairwise(steps)
        if (state, following) == (_SCANNING, _ENDED_WELL)
    ]
    if not found:
        what = f"expected a scan that ended well in the {ALARMS_BACK // DAY} days before {utc_seconds(time)}"
        raise ConfigError(f"against: {what}, got none in the archive's reports of {OBS_STATE}")
    return max(found)


def differences(icd: Icd, before: Mapping[str, Point], after: Mapping[str, Point]) -> list[Difference]:
    """Return the attributes, by name, that differ between two times, the farthest first."""
    return sorted(_differences(icd, before, after), key=lambda one: (-abs(one.moved), one.name))


def _differences(icd: Icd, before: Mapping[str, Point], after: Mapping[str, Point]) -> Iterator[Difference]:
    for name, entry, sampling in _compared(icd, before.keys() | after.keys()):
        one, other = before.get(name), after.get(name)
        moved = _WHOLLY
        if one is not None and other is not None and one[1].quality == other[1].quality:
            is_known = one[1].quality != Quality.INVALID.value  # otherwise both are old
            moved = _moved(entry, sampling, one[1].value, other[1].value) if is_known else 0.0
        if moved:
            yield Difference(name, unit_of(icd, entry), one, other, moved)


def _compared(icd: Icd, names: Iterable[str]) -> Iterator[tuple[str, Attribute, Sampling]]:
    """Return the attributes among some names that are no totals, with their entries and sampling."""
    known: dict[str, tuple[Sampling, dict[str, Attribute]]] = {}
    for name in names:
        device, _, attribute = name.rpartition("/")
        if device not in known:
            kind = class_in(icd, device)
            entries = {} if kind is None else {one.name: one for one in kind.attributes}
            known[device] = (_NO_DEADBAND if kind is None else kind.sampling), entries
        sampling, entries = known[device]
        entry = entries.get(attribute, _PLAIN)
        if not entry.is_total:
            yield name, entry, entry.sampling or sampling


def _moved(entry: Attribute, sampling: Sampling, before: Any, after: Any) -> float:
    """Return by which share a value has moved; 0: it is the same, or within the tolerance."""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        return max((_moved(entry, sampling, *pair) for pair in pairs), key=abs, default=0.0)
    one, other = number_of(before), number_of(after)
    if isinstance(before, bool | str) or not (math.isfinite(one) and math.isfinite(other)):
        return 0.0 if before == after else _WHOLLY
    if not sampling.is_outside(other, one):
        return 0.0
    room = _room(entry, one, other)
    share = (other - one) / (max(abs(one), abs(other)) if room is None else room)
    is_exact = entry.type != "DevDouble" or bool(sampling.absolute or sampling.relative)
    return share if is_exact or abs(share) > TOLERANCE else 0.0


def _room(entry: Attribute, before: float, after: float) -> float | None:
    """Return the distance from a number to the next limit in the direction of its change; None: there is none."""
    limits = entry.limits
    if limits is None:
        return None
    bounds = (limits.max_warning, limits.max_alarm) if after > before else (limits.min_warning, limits.min_alarm)
    sign = math.copysign(1.0, after - before)
    return min((room for one in bounds if one is not None and (room := sign * (one - before)) > 0), default=None)
