"""Whether values, their times and qualities, and the events that bring them are as the ICD says."""

import math
from itertools import groupby, pairwise
from typing import Any

from clients.conformance.case import AttributeOf, Check
from clients.conformance.observation import Observation, Shown, Stream, kinds_of
from clients.conformance.options import CLOCKS, STALE_SLACK
from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch, NotShown
from clients.timing import LASTING, RATE_SLACK, closest
from facade.icd.model import Attribute, Icd, Sampling
from facade.icd.topic_model import Window

_PYTHON: dict[str, tuple[type, ...]] = {
    "DevBoolean": (bool,),
    "DevLong": (int,),
    "DevLong64": (int,),
    "DevULong64": (int,),
    "DevDouble": (float,),
    "DevString": (str,),
    "DevEnum": (int,),
}


def _value(system: System, of: AttributeOf) -> str:
    seen = _look(system, of)
    return judge_value(system.icd, of.entry, seen)


def judge_value(icd: Icd, entry: Attribute, seen: Shown) -> str:
    """Judge one value with its time and quality."""
    if seen.error:
        raise Mismatch("a value", f"an error: {seen.error}")
    if seen.quality == "INVALID":
        if seen.value is not None:
            raise Mismatch("no value with ATTR_INVALID", f"{seen.value!r:.80}")
        raise NotShown("ATTR_INVALID: there is no value to look at")
    if seen.value is None:
        if entry.length:  # Tango's clients give None for an array of no elements
            return f"{seen.quality}, empty"
        raise Mismatch(f"a value with ATTR_{seen.quality}", "none")
    ahead = CLOCKS + getattr(window_of(icd, entry), "ahead", 0.0)
    if seen.time > seen.at + ahead:
        raise Mismatch(f"a time at most {ahead:g} s in the future", f"one {seen.time - seen.at:.3f} s in the future")
    if entry.height:
        _judge_size(len(seen.value), entry.height, "rows")
    for row in seen.value if entry.height else (seen.value,):
        if entry.length:
            _judge_size(len(row), entry.length, "elements")
        for one in row if entry.length else (row,):
            _judge_scalar(icd, entry, one)
    return f"{seen.quality}, {seen.at - seen.time:.1f} s old"


def window_of(icd: Icd, entry: Attribute) -> Window | None:
    """Return the rules of the windows that an attribute's value is made of."""
    return None if entry.source is None else icd.topics[entry.source.topic].window


def _judge_size(found: int, most: int, what: str) -> None:
    if found > most:
        raise Mismatch(f"at most {most} {what}", found)


def _judge_scalar(icd: Icd, entry: Attribute, value: Any) -> None:
    fits = isinstance(value, _PYTHON[entry.type]) and (not isinstance(value, bool) or entry.type == "DevBoolean")
    if not fits:
        raise Mismatch(f"values of {entry.type}", f"{value!r:.80} of Python's {type(value).__name__}")
    if entry.enum is not None and value not in range(len(icd.enums[entry.enum])):
        raise Mismatch(f"a value of {entry.enum} from 0 to {len(icd.enums[entry.enum]) - 1}", value)


def _look(system: System, of: AttributeOf) -> Shown:
    system.config(of.device, of.entry.name)
    return system.observation.before[of.device, of.entry.name]


def _events(system: System, of: AttributeOf) -> str:
    system.config(of.device, of.entry.name)
    if of.entry.name.lower() in system.polled(of.device):
        raise Mismatch("events pushed by the device's code", "an attribute that Tango polls")
    kinds = kinds_of(of.entry)
    for kind in kinds:
        judge_events(system.observation, of, kind)
    if "alarm" in kinds:
        streams = system.observation.streams
        judge_alarms(streams[of.device, of.entry.name, "change"], streams[of.device, of.entry.name, "alarm"])
    return ", ".join(kinds)


def judge_events(observation: Observation, of: AttributeOf, kind: str) -> None:
    """Judge whether there are events of one kind, and whether the first one says what a read says."""
    stream = observation.streams[of.device, of.entry.name, kind]
    if stream.refused:
        raise Mismatch(f"a subscription to {kind} events", f"a refusal: {stream.refused}")
    if stream.errors:
        raise Mismatch(f"{kind} events without errors", stream.errors[0])
    if kind == "data-ready":
        return
    if stream.first is None:
        raise Mismatch(f"a first {kind} event on subscription", "none")
    key = of.device, of.entry.name
    before, after = observation.before[key], observation.subscribed[key]
    first = stream.first
    # Three moments. What changed from one read to the other may be anything between in the event: for how long a
    # record has waited grows while its time stays.
    has_changed = before.time < after.time or not _same(before, after)
    is_between = has_changed and before.time <= first.time <= after.time
    if is_between or _same(first, before) or _same(first, after):
        return
    raise Mismatch(f"a first {kind} event that agrees with a read: {_brief(before)}", _brief(first))


def judge_alarms(changes: Stream, alarms: Stream) -> None:
    """Judge whether each change of quality, and nothing else, is an alarm event."""
    for one, next_one in pairwise(alarms.pushed):
        if one.quality == next_one.quality:
            raise Mismatch("alarm events when the quality changes", f"two of {one.quality} in a row")
    told = {(event.quality, event.time) for event in alarms.pushed}
    # The last one may be on its way still.
    for one, next_one in pairwise(changes.pushed[:-1]):
        if one.quality != next_one.quality and (next_one.quality, next_one.time) not in told:
            raise Mismatch(f"an alarm event when {one.quality} becomes {next_one.quality}", "none")


def _same(one: Shown, other: Shown) -> bool:
    return (one.quality, _comparable(one.value)) == (other.quality, _comparable(other.value))


def _comparable(value: Any) -> Any:
    if value == ():
        return None
    return repr(value) if isinstance(value, float) and math.isnan(value) else value


def _brief(seen: Shown) -> str:
    return f"{seen.value!r:.60} {seen.quality}"


def _timing(system: System, of: AttributeOf) -> str:
    system.config(of.device, of.entry.name)
    kind = "change" if of.entry.is_pushed else "data-ready"
    stream = system.observation.streams[of.device, of.entry.name, kind]
    return judge_timing(of.entry.sampling or of.device_class.sampling, stream, system.observation.seconds)


def judge_timing(rule: Sampling, stream: Stream, seconds: float) -> str:
    """Judge how close events of one attribute came upon each other."""
    pairs = list(pairwise(stream.pushed))
    if not pairs:
        raise NotShown(f"fewer than two events in {seconds:g} s")
    rate, allowed = len(pairs) / max(pairs[-1][1].at - pairs[0][0].at, 1e-9), 1 / rule.shortest
    # A change of quality is sent at once, whatever the ICD says about the pace.
    even = [[event.at for event in part] for _, part in groupby(stream.pushed, key=lambda event: event.quality)]
    if sum(len(times) - 1 for times in even) >= LASTING and rate > allowed * RATE_SLACK:
        raise Mismatch(f"at most {allowed:g} events/s (and {RATE_SLACK - 1:.0%})", f"{rate:.2f}/s")
    for bunch in (closest(times, rule.shortest) for times in even):
        if bunch is not None and bunch.is_too_close():
            raise Mismatch(f"events at least {rule.shortest:g} s apart (one may be held up on its way)", bunch)
        if bunch is not None and len(pairs) == 1 and bunch.within < rule.shortest:
            raise NotShown(f"two events {bunch.within:.3f} s apart, and no third one: the first may have been held up")
    return f"{rate:.2f}/s of <= {allowed:g}/s"


def _fresh(system: System, of: AttributeOf) -> str:
    system.config(of.device, of.entry.name)
    entry, observation = of.entry, system.observation
    silence = _stale_after(of) + getattr(window_of(system.icd, entry), "lateness", 0.0)
    key = of.device, entry.name
    return judge_freshness(silence, [observation.before[key], observation.after[key]])


def judge_freshness(allowed: float, looks: list[Shown]) -> str:
    """Judge whether values that have not been confirmed for too long are ATTR_INVALID."""
    found = []
    for seen in looks:
        age = seen.at - seen.time
        if seen.error:
            raise Mismatch("a value", f"an error: {seen.error}")
        if seen.quality != "INVALID" and age > allowed + STALE_SLACK + CLOCKS:
            raise Mismatch(f"ATTR_INVALID after {allowed:g} s", f"ATTR_{seen.quality} with a time {age:.1f} s ago")
        found.append("INVALID" if seen.quality == "INVALID" else f"{age:.1f} s old")
    return f"{', then '.join(found)}; of at most {allowed:g} s"


def _stale_after(of: AttributeOf) -> float:
    return of.device_class.stale_after if of.entry.stale_after is None else of.entry.stale_after


def _has_timing(of: AttributeOf) -> bool:
    return (of.entry.sampling or of.device_class.sampling).shortest > 0


VALUE_CHECKS: tuple[Check[AttributeOf], ...] = (
    Check(aspect="value", judge=_value, claims=("Attribute.type", "Attribute.enum", "Window.ahead")),
    Check(aspect="events", judge=_events),
    Check(
        aspect="pace",
        judge=_timing,
        claims=("Attribute.sampling", "DeviceClass.sampling", "Sampling.shortest"),
        applies=_has_timing,
    ),
    Check(
        aspect="fresh",
        judge=_fresh,
        claims=("Attribute.stale_after", "DeviceClass.stale_after", "Window.lateness"),
        applies=lambda of: _stale_after(of) > 0,
    ),
)
"""What reads and events tell of an attribute."""
