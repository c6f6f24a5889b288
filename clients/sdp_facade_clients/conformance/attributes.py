"""Checks of attributes: configuration, value with its time and quality, events, and the reports behind a value."""

import math
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any

import tango
from jsonschema import Draft202012Validator

from facade.kernel.icd.model import Attribute, Icd, Sampling
from facade.kernel.icd.units import unit_of
from sdp_facade_clients.conformance.checks import LiveCheck, Mismatch, NotShown, Subject, demand
from sdp_facade_clients.conformance.live_system import (
    CLOCKS,
    AttributeTrace,
    EventStream,
    LiveSystem,
    TangoValue,
    kinds_of,
    read_all,
    read_json,
)
from sdp_facade_clients.timing import LASTING, RATE_SLACK, closest

_STALE_SLACK = 1.0
"""Latest moment of ATTR_INVALID after the ICD's limit [s]."""
_REPORT_WITHIN, _REPORT_AGAIN = 3.0, 0.2
"""Longest time until a new report is shown, and the pause between two looks [s]."""
_LIMITS = ("min_alarm", "min_warning", "max_warning", "max_alarm")
_NUMBERS = ("DevLong", "DevLong64", "DevULong64", "DevDouble")
_PYTHON = {"DevBoolean": bool, "DevDouble": float, "DevString": str}
"""Python's type of a Tango type; int for the others."""


# --- Tango's configuration ---


def _same(
    aspect: str,
    wanted: Callable[[Icd, Attribute], object],
    found: Callable[[Any], object],
    applies: Callable[[Subject], bool] = lambda _: True,
) -> LiveCheck:
    """Return the check of one property of Tango's configuration."""

    def judge(system: LiveSystem, of: Subject) -> str:
        return demand(wanted(system.icd, of.entry), found(system.config(of)))

    return LiveCheck(aspect, judge, applies)


def _wanted_shape(_: Icd, entry: Attribute) -> str:
    form = "IMAGE" if entry.height else "SPECTRUM" if entry.length else "SCALAR"
    return _shape(form, max(entry.length, 1), entry.height)


def _shape(form: str, x: int, y: int) -> str:
    return f"{form} {x} x {y}" if y else f"{form} {x}"


def _wanted_limits(_: Icd, entry: Attribute) -> str:
    limits = {name: getattr(entry.limits, name, None) for name in _LIMITS}
    return ", ".join(f"{name} {float(limit)}" for name, limit in limits.items() if limit is not None) or "none"


def _found_limits(config: Any) -> str:
    limits = {name: getattr(config.alarms, name) for name in _LIMITS}
    return ", ".join(f"{name} {float(text)}" for name, text in limits.items() if text != "Not specified") or "none"


# --- Values ---


def judge_value(icd: Icd, entry: Attribute, seen: TangoValue) -> str:
    """Judge a value with its time and quality."""
    if seen.error:
        raise Mismatch("a value", f"an error: {seen.error}")
    if seen.quality == "INVALID":
        if seen.value is not None:
            raise Mismatch("no value with ATTR_INVALID", f"{seen.value!r:.80}")
        raise NotShown("ATTR_INVALID: there is no value to look at")
    if seen.value is None:
        if entry.length:  # Tango's clients give None for an empty array
            return f"{seen.quality}, empty"
        raise Mismatch(f"a value with ATTR_{seen.quality}", "none")
    ahead = CLOCKS + _window(icd, entry, "ahead")
    if seen.time > seen.at + ahead:
        raise Mismatch(f"a time at most {ahead:g} s in the future", f"one {seen.time - seen.at:.3f} s in the future")
    rows = seen.value if entry.height else (seen.value,)
    if entry.height and len(rows) > entry.height:
        raise Mismatch(f"at most {entry.height} rows", len(rows))
    for row in rows:
        if entry.length and len(row) > entry.length:
            raise Mismatch(f"at most {entry.length} elements", len(row))
        for one in row if entry.length else (row,):
            _judge_scalar(icd, entry, one)
    return f"{seen.quality}, {seen.at - seen.time:.1f} s old"


def _judge_scalar(icd: Icd, entry: Attribute, value: Any) -> None:
    wanted = _PYTHON.get(entry.type, int)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise Mismatch(f"values of {entry.type}", f"{value!r:.80} of Python's {type(value).__name__}")
    if entry.enum is not None and value not in range(len(icd.enums[entry.enum])):
        raise Mismatch(f"a value of {entry.enum} from 0 to {len(icd.enums[entry.enum]) - 1}", value)


def _window(icd: Icd, entry: Attribute, name: str) -> float:
    """Return a time of the windows from which an attribute is made; 0 without windows."""
    window = None if entry.source is None else icd.topics[entry.source.topic].window
    return float(getattr(window, name, 0.0))


def _trace(system: LiveSystem, of: Subject) -> AttributeTrace:
    system.config(of)
    return system.traces[of.device, of.entry.name]


def judge_freshness(allowed: float, looks: Sequence[TangoValue]) -> str:
    """Judge whether values without confirmation become ATTR_INVALID in time."""
    found = []
    for seen in looks:
        age = seen.at - seen.time
        if seen.error:
            raise Mismatch("a value", f"an error: {seen.error}")
        if seen.quality != "INVALID" and age > allowed + _STALE_SLACK + CLOCKS:
            raise Mismatch(f"ATTR_INVALID after {allowed:g} s", f"ATTR_{seen.quality} with a time {age:.1f} s ago")
        found.append("INVALID" if seen.quality == "INVALID" else f"{age:.1f} s old")
    return f"{', then '.join(found)}; of at most {allowed:g} s"


def _stale_after(of: Subject) -> float:
    return float(of.device_class.stale_after if of.entry.stale_after is None else of.entry.stale_after)


def _fresh(system: LiveSystem, of: Subject) -> str:
    trace = _trace(system, of)
    allowed = _stale_after(of) + _window(system.icd, of.entry, "lateness")
    return judge_freshness(allowed, [trace.before, trace.after])


# --- Events ---


def judge_events(trace: AttributeTrace, kind: str) -> None:
    """Judge the events of one kind: they come without errors, and the first one agrees with a read."""
    stream, before, after = trace.streams[kind], trace.before, trace.subscribed
    if stream.refused:
        raise Mismatch(f"a subscription to {kind} events", f"a refusal: {stream.refused}")
    if stream.errors:
        raise Mismatch(f"{kind} events without errors", stream.errors[0])
    if kind == "data-ready":
        return
    first = stream.first
    if first is None:
        raise Mismatch(f"a first {kind} event on subscription", "none")
    # A value that changed between the two reads may be any in the event. A waiting time grows while its time stays.
    has_changed = before.time < after.time or not _equal(before, after)
    is_between = has_changed and before.time <= first.time <= after.time
    if not (is_between or _equal(first, before) or _equal(first, after)):
        wanted, got = (f"{one.value!r:.60} {one.quality}" for one in (before, first))
        raise Mismatch(f"a first {kind} event that agrees with a read: {wanted}", got)


def judge_alarms(changes: EventStream, alarms: EventStream) -> None:
    """Judge whether each change of quality, and nothing else, is an alarm event."""
    for one, after in pairwise(alarms.pushed):
        if one.quality == after.quality:
            raise Mismatch("alarm events when the quality changes", f"two of {one.quality} in a row")
    told = {(event.quality, event.time) for event in alarms.pushed}
    # The alarm event of the last change may still be on its way.
    for one, after in pairwise(changes.pushed[:-1]):
        if one.quality != after.quality and (after.quality, after.time) not in told:
            raise Mismatch(f"an alarm event when {one.quality} becomes {after.quality}", "none")


def _equal(one: TangoValue, other: TangoValue) -> bool:
    values = (
        repr(value) if isinstance(value, float) and math.isnan(value) else None if value == () else value
        for value in (one.value, other.value)
    )
    return one.quality == other.quality and next(values) == next(values)


def _events(system: LiveSystem, of: Subject) -> str:
    trace = _trace(system, of)
    if of.entry.name.lower() in system.polled(of.device):
        raise Mismatch("events pushed by the device's code", "an attribute that Tango polls")
    for kind in trace.streams:
        judge_events(trace, kind)
    if "alarm" in trace.streams:
        judge_alarms(trace.streams["change"], trace.streams["alarm"])
    return ", ".join(trace.streams)


def judge_sampling(rule: Sampling, stream: EventStream, seconds: float) -> str:
    """Judge the distance between events of one attribute."""
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


def _sampling(of: Subject) -> Sampling:
    rule: Sampling = of.entry.sampling or of.device_class.sampling
    return rule


def _pace(system: LiveSystem, of: Subject) -> str:
    stream = _trace(system, of).streams[kinds_of(of.entry)[0]]
    return judge_sampling(_sampling(of), stream, system.options.window)


# --- Reports of controllers and operators on the topics of the ICD ---


def _on_bus(system: LiveSystem, of: Subject) -> str:
    system.config(of)
    deadline = system.clock.monotonic() + _REPORT_WITHIN
    while True:
        (seen,) = read_all(system.proxy(of.device), [of.entry], system.clock)
        try:
            return judge_reported(of.entry, _newest_reports(system, of), seen)
        except Mismatch:
            if system.clock.monotonic() > deadline:
                is_led_by_commands = any(command.reports == of.entry.name for command in of.device_class.commands)
                if is_led_by_commands and system.proxy(of.device).commandsPending:
                    raise NotShown("a command is under way, which may show a transitional state meanwhile") from None
                raise
            system.clock.sleep(_REPORT_AGAIN)


def judge_reported(entry: Attribute, reported: list[Any], seen: TangoValue) -> str:
    """Judge whether a device shows the newest report."""
    if not reported:
        raise NotShown(f"nothing of it is among the newest records on {entry.topic}")
    if seen.error:
        raise Mismatch("a value", f"an error: {seen.error}")
    value = seen.value or () if entry.length else seen.value  # Tango's clients give None for an empty array
    if value not in reported:
        raise Mismatch(f"{reported[-1]!r:.200}, as on {entry.topic}", f"{value!r:.200} {seen.quality}")
    return f"{value!r:.200}"


def _newest_reports(system: LiveSystem, of: Subject) -> list[Any]:
    """Return the newest valid value, by the order of the topic and by the times in the records."""
    validator = Draft202012Validator(system.icd.messages[system.icd.topics[of.entry.topic].message or ""])
    found = [
        message
        for _, message in system.messages(of.entry.topic)
        if (str(message.get("device")).lower(), message.get("attribute")) == (of.device, of.entry.name)
        and validator.is_valid(message)  # a device sets others aside
    ]
    orders = (found, sorted(found, key=lambda message: int(message["time"])))
    newest = (newest_valid(system.icd, of.entry, [message["value"] for message in order]) for order in orders)
    return [value for values in newest for value in values]


def newest_valid(icd: Icd, entry: Attribute, texts: Sequence[str]) -> list[Any]:
    """Return the last text that is a value of an attribute, in the form of Tango's clients; empty if none is."""
    for text in reversed(texts):
        try:
            return [_parsed(icd, entry, text)]
        except ValueError:  # a device sets it aside
            continue
    return []


def _parsed(icd: Icd, entry: Attribute, text: str) -> Any:
    if entry.enum is not None:
        return icd.enums[entry.enum].index(text)
    if not entry.length and entry.type not in ("DevLong", "DevLong64"):
        return text
    found = read_json(text)
    if entry.length and isinstance(found, list) and all(isinstance(one, str) for one in found):
        return tuple(found)
    if not entry.length and isinstance(found, int) and not isinstance(found, bool):
        return found
    raise ValueError(text)


ATTRIBUTE_CHECKS: tuple[LiveCheck, ...] = (
    LiveCheck("exists", lambda system, of: str(system.config(of).name)),
    _same("type", lambda _, a: a.type, lambda c: str(tango.CmdArgType.values[c.data_type])),
    _same("dimensions", _wanted_shape, lambda c: _shape(str(c.data_format), c.max_dim_x, c.max_dim_y)),
    _same("access", lambda _, a: a.access, lambda c: str(c.writable)),
    _same("unit", unit_of, lambda c: "" if c.unit == "No unit" else c.unit),
    _same("label", lambda _, a: a.label, lambda c: c.label),
    _same("description", lambda _, a: a.description, lambda c: c.description),
    _same("format", lambda _, a: a.format, lambda c: c.format, lambda of: bool(of.entry.format)),
    _same("level", lambda _, a: "EXPERT" if a.expert else "OPERATOR", lambda c: str(c.disp_level)),
    _same("limits", _wanted_limits, _found_limits, lambda of: of.entry.type in _NUMBERS),
    _same(
        "enum",
        lambda icd, a: ", ".join(icd.enums[a.enum or ""]),
        lambda c: ", ".join(c.enum_labels),
        lambda of: of.entry.enum is not None,
    ),
    LiveCheck("value", lambda system, of: judge_value(system.icd, of.entry, _trace(system, of).before)),
    LiveCheck("events", _events),
    LiveCheck("pace", _pace, lambda of: _sampling(of).shortest > 0),
    LiveCheck("fresh", _fresh, lambda of: _stale_after(of) > 0),
)
REPORT_CHECKS = (LiveCheck("on-bus", _on_bus, lambda of: of.entry.reported),)
