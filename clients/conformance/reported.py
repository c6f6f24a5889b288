"""Whether what controllers and operators have written to the topic ``state`` is what devices show."""

from collections.abc import Sequence
from typing import Any

from jsonschema import Draft202012Validator

from clients.conformance.case import AttributeOf, Check
from clients.conformance.observation import Shown, read_all
from clients.conformance.system import System, read_json
from clients.conformance.verdicts import Mismatch, NotShown
from facade.icd.model import Attribute, Icd

TOPIC = "state"
_PENDING = "commandsPending"
_WITHIN = 3.0
"""A value that has just been written is shown within so long [s]."""
_AGAIN = 0.2
"""Pause before it is looked at again [s]."""


def _on_bus(system: System, of: AttributeOf) -> str:
    system.config(of.device, of.entry.name)
    deadline = system.clock.monotonic() + _WITHIN
    while True:
        seen = read_all(system.proxy(of.device), of.device, [of.entry], system.clock)[of.device, of.entry.name]
        try:
            return judge_reported(of.entry, _newest(system, of), seen)
        except Mismatch:
            if system.clock.monotonic() > deadline:
                if _is_led_by_commands(of) and system.proxy(of.device).read_attribute(_PENDING).value:
                    raise NotShown("a command is under way, which may show a transitional state meanwhile") from None
                raise
            system.clock.sleep(_AGAIN)


def _is_led_by_commands(of: AttributeOf) -> bool:
    return any(command.reports == of.entry.name for command in of.device_class.commands)


def judge_reported(entry: Attribute, written: list[Any], seen: Shown) -> str:
    """Judge what is shown by what is the newest on the topic."""
    if not written:
        raise NotShown(f"nothing of it is among the newest records on {TOPIC}")
    if seen.error:
        raise Mismatch("a value", f"an error: {seen.error}")
    value = seen.value or () if entry.length else seen.value  # Tango gives None for no elements
    if value not in written:
        raise Mismatch(f"{written[-1]!r:.200}, as on {TOPIC}", f"{value!r:.200} {seen.quality}")
    return f"{value!r:.200}"


def _newest(system: System, of: AttributeOf) -> list[Any]:
    """Return the newest value that can be used, in the order of the topic and in that of the times in the records."""
    validator = Draft202012Validator(system.icd.messages[TOPIC])
    found = [
        message
        for _, message in system.messages(TOPIC)
        if (str(message.get("device")).lower(), message.get("attribute")) == (of.device, of.entry.name)
        and validator.is_valid(message)  # a device sets aside what is not
    ]
    orders = (found, sorted(found, key=lambda message: int(message["time"])))
    newest = (newest_usable(system.icd, of.entry, [message["value"] for message in order]) for order in orders)
    return [value for values in newest for value in values]


def newest_usable(icd: Icd, entry: Attribute, texts: Sequence[str]) -> list[Any]:
    """Return the last of some texts that is a value of an attribute, as Tango's clients have it; nothing if none is."""
    for text in reversed(texts):
        try:
            return [_value(icd, entry, text)]
        except ValueError:  # a device sets it aside, as a dead letter
            continue
    return []


def _value(icd: Icd, entry: Attribute, text: str) -> Any:
    if entry.enum is not None:
        return icd.enums[entry.enum].index(text)
    if entry.length or entry.type in ("DevLong", "DevLong64"):
        found = read_json(text)
        if entry.length and isinstance(found, list) and all(isinstance(one, str) for one in found):
            return tuple(found)
        if not entry.length and isinstance(found, int) and not isinstance(found, bool):
            return found
        raise ValueError(text)
    return text


REPORTED_CHECKS: tuple[Check[AttributeOf], ...] = (
    Check(aspect="on-bus", claims=("Attribute.reported",), judge=_on_bus, applies=lambda of: of.entry.reported),
)
"""What the bus tells of an attribute that is reported on it."""
