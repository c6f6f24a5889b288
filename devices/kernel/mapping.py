"""From the ICD to Tango: attributes, their properties, and readings in Tango's form."""

import re
from typing import Any, NamedTuple

import tango
from tango.server import attribute

from facade.kernel.clock import Time, as_seconds
from facade.kernel.icd.model import Attribute, Icd
from facade.kernel.icd.units import unit_of
from facade.kernel.printable import escaped
from facade.kernel.reading import Quality, Reading

TangoReading = tuple[Any, float, tango.AttrQuality]
"""Value, time [Unix s] and quality, as returned by Tango's read methods."""

_TYPES = {
    "DevBoolean": tango.CmdArgType.DevBoolean,
    "DevLong": tango.CmdArgType.DevLong,
    "DevLong64": tango.CmdArgType.DevLong64,
    "DevULong64": tango.CmdArgType.DevULong64,
    "DevDouble": tango.CmdArgType.DevDouble,
    "DevString": tango.CmdArgType.DevString,
    "DevEnum": tango.CmdArgType.DevEnum,
}
_HALF_US = 5e-7
_NOT_PLAIN = re.compile(r"[^ -~]")
_EMPTY: dict[str, Any] = {"DevBoolean": False, "DevString": "", "DevDouble": 0.0}
_QUALITIES = {
    Quality.VALID: tango.AttrQuality.ATTR_VALID,
    Quality.WARNING: tango.AttrQuality.ATTR_WARNING,
    Quality.ALARM: tango.AttrQuality.ATTR_ALARM,
    Quality.INVALID: tango.AttrQuality.ATTR_INVALID,
}


def tango_attribute(icd: Icd, entry: Attribute) -> attribute:
    """Make the Tango attribute of an ICD entry; its read method is ``read_<name>``."""
    options: dict[str, Any] = {
        "name": entry.name,
        "label": entry.label,
        "doc": entry.description,
        "unit": unit_of(icd, entry),
        "fget": f"read_{entry.name}",
        "dtype": _TYPES[entry.type],
        "display_level": tango.DispLevel.EXPERT if entry.expert else tango.DispLevel.OPERATOR,
        **_limits(entry),
    }
    if entry.format:
        options["format"] = entry.format
    if entry.enum is not None:
        options["enum_labels"] = list(icd.enums[entry.enum])
    if entry.length:
        options["dtype"] = (_TYPES[entry.type],)
        options["max_dim_x"] = entry.length
    if entry.height:
        options["dtype"] = ((_TYPES[entry.type],),)
        options["max_dim_y"] = entry.height
    if entry.access == "READ_WRITE":
        options["access"] = tango.AttrWriteType.READ_WRITE
        options["fset"] = f"write_{entry.name}"
    return attribute(**options)


def is_plain(entry: Attribute) -> bool:
    """Return whether an attribute is one number or text, so that `to_tango` never fails for it."""
    return entry.enum is None and not entry.length and not entry.height


def to_tango(icd: Icd, entry: Attribute, reading: Reading) -> TangoReading:
    """Return a reading in Tango's form."""
    value: Any = reading.value
    if entry.enum is not None:
        value = icd.enums[entry.enum].index(str(value))
    elif entry.height:  # rows of numbers
        value = [list(row[: entry.length]) for row in value[: entry.height]]
    elif isinstance(value, tuple):
        value = [tango_text(one) if isinstance(one, str) else one for one in value[: entry.length]]
    elif isinstance(value, str):
        value = tango_text(value)
    return value, _tango_time(reading.time), _QUALITIES[reading.quality]


def tango_text(text: str) -> str:
    r"""Return a text in a form for Tango: it supports only Latin-1, many clients only ASCII, and NUL ends it.

    Control characters and characters beyond ASCII become ``\uXXXX``, which has the same meaning in JSON.
    """
    if text.isascii() and text.isprintable():
        return text
    return _NOT_PLAIN.sub(lambda found: escaped(found[0]), text)


def tango_lines(text: str) -> str:
    """Return a text of several lines, such as Status, in a form for Tango."""
    return "\n".join(map(tango_text, text.split("\n")))


class Encoded(NamedTuple):
    """The DevEncoded result of a query."""

    format: str
    """Media type of the content."""
    content: bytes


def to_encoded(result: Encoded) -> tuple[str, bytes]:
    """Return bytes in the form of Tango's DevEncoded."""
    return tango_text(result.format), result.content


def unknown(entry: Attribute, time: Time) -> TangoReading:
    """Return the reading of an attribute without a value: ATTR_INVALID."""
    value: Any = [[0.0]] if entry.height else [] if entry.length else _EMPTY.get(entry.type, 0)
    return value, _tango_time(time), tango.AttrQuality.ATTR_INVALID


def _tango_time(time: Time) -> float:
    # Tango cuts a float to the microsecond below, and half of the microseconds have a float that is slightly too small.
    return as_seconds(time) + _HALF_US


def _limits(entry: Attribute) -> dict[str, str]:
    if entry.limits is None:
        return {}
    found = {name: getattr(entry.limits, name) for name in ("min_alarm", "min_warning", "max_warning", "max_alarm")}
    number = float if entry.type == "DevDouble" else int  # Tango parses "1" as an integer, but not "1.0"
    return {name: str(number(value)) for name, value in found.items() if value is not None}
