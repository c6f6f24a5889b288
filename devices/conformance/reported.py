"""Whether what controllers and operators have written to the topic ``state`` is what devices show."""

import json
from collections.abc import Iterable
from typing import Any

from devices.conformance.case import AttributeOf, Check
from devices.conformance.observation import Shown, read_all
from devices.conformance.system import System
from devices.conformance.verdicts import Mismatch, NotShown
from facade.icd.model import Attribute, Icd

TOPIC = "state"
_PENDING = "commandsPending"
_WITHIN = 3.0
"""A value that has just been written is shown within so long [s]."""


def _on_bus(system: System, of: AttributeOf) -> str:
    system.config(of.device, of.entry.name)
    deadline = system.clock.monotonic() + _WITHIN
    while True:
        before = _newest(system, of)
        seen = read_all(system.proxy(of.device), of.device, [of.entry], system.clock)[of.device, of.entry.name]
        after = _newest(system, of)
        try:
            return judge_reported(of.entry, [*before, *after], seen)
        except Mismatch:
            if system.clock.monotonic() > deadline:
                if system.proxy(of.device).read_attribute(_PENDING).value:
                    raise NotShown("a command is under way, which may show another state meanwhile") from None
                raise
            system.clock.sleep(0.2)


def judge_reported(entry: Attribute, written: list[Any], seen: Shown) -> str:
    """Judge what is shown by what was on the topic before it was read, and after it."""
    if not written:
        raise NotShown("nobody has reported it yet")
    if seen.error:
        raise Mismatch("a value", f"an error: {seen.error}")
    value = seen.value or () if entry.length else seen.value  # Tango gives None for no elements
    if value not in written:
        raise Mismatch(f"{written[-1]!r:.200}, as on {TOPIC}", f"{value!r:.200} {seen.quality}")
    return f"{value!r:.200}"


def _newest(system: System, of: AttributeOf) -> list[Any]:
    """Give the newest value that can be used, in the order of the topic and in that of the times in the records."""
    found = [
        message
        for _, message in system.messages(TOPIC)
        if (str(message.get("device")).lower(), message.get("attribute")) == (of.device, of.entry.name)
    ]
    by_time = sorted(found, key=lambda message: float(message["time"]))
    return [
        value
        for order in (by_time, found)
        for value in newest_usable(system.icd, of.entry, (str(message["value"]) for message in reversed(order)))
    ]


def newest_usable(icd: Icd, entry: Attribute, texts: Iterable[str]) -> list[Any]:
    """Give the first of some texts that is a value of an attribute, as Tango's clients have it."""
    for text in texts:
        try:
            return [_value(icd, entry, text)]
        except ValueError:  # a device sets it aside, as a dead letter
            continue
    return []


def _value(icd: Icd, entry: Attribute, text: str) -> Any:
    if entry.enum is not None:
        return icd.enums[entry.enum].index(text)
    if entry.length or entry.type in ("DevLong", "DevLong64"):
        found = json.loads(text)
        if entry.length and isinstance(found, list):
            return tuple(found)
        if not entry.length and isinstance(found, int):
            return found
        raise ValueError(text)
    return text


REPORTED_CHECKS: tuple[Check[AttributeOf], ...] = (
    Check(aspect="on-bus", claims=("Attribute.reported",), judge=_on_bus, applies=lambda of: of.entry.reported),
)
"""What the bus tells of an attribute that is reported on it."""
