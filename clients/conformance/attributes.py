"""Whether attributes are there as the ICD says: name, type, shape, and all that Tango tells a client about them."""

from collections.abc import Callable
from typing import Any

import tango

from clients.conformance.case import AttributeOf, Check, demand
from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch
from facade.icd.model import Attribute, Icd
from facade.icd.units import unit_of

_NONE = "Not specified"
_LIMITS = ("min_alarm", "min_warning", "max_warning", "max_alarm")
_NUMBERS = ("DevLong", "DevLong64", "DevULong64", "DevDouble")


def _exists(system: System, of: AttributeOf) -> str:
    return str(system.config(of.device, of.entry.name).name)


def _same(
    aspect: str,
    fields: str,
    wanted: Callable[[Icd, Attribute], object],
    found: Callable[[Any], object],
    applies: Callable[[AttributeOf], bool] = lambda _: True,
) -> Check[AttributeOf]:
    """Return the check that Tango's configuration of an attribute has what follows from fields of the ICD."""

    def judge(system: System, of: AttributeOf) -> str:
        return demand(wanted(system.icd, of.entry), found(system.config(of.device, of.entry.name)))

    return Check(aspect=aspect, claims=tuple(fields.split()), judge=judge, applies=applies)


def _wanted_shape(_: Icd, entry: Attribute) -> str:
    form = "IMAGE" if entry.height else "SPECTRUM" if entry.length else "SCALAR"
    return _shape(form, max(entry.length, 1), entry.height)


def _shape(form: str, x: int, y: int) -> str:
    return f"{form} {x} x {y}" if y else f"{form} {x}"


def _limits(system: System, of: AttributeOf) -> str:
    config = system.config(of.device, of.entry.name)
    wanted = {name: getattr(of.entry.limits, name, None) for name in _LIMITS}
    found = {name: _limit(getattr(config.alarms, name)) for name in _LIMITS}
    for name in _LIMITS:
        if wanted[name] != found[name]:
            raise Mismatch(f"{name} {_in_words(wanted[name])}", _in_words(found[name]))
    return ", ".join(f"{name} {value:g}" for name, value in found.items() if isinstance(value, float)) or "none"


def _limit(text: str) -> float | str | None:
    """Return a limit as a number; what is none stays as it is, and is no limit of the ICD."""
    if text == _NONE:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _in_words(limit: float | str | None) -> str:
    return "none" if limit is None else f"{limit:g}" if isinstance(limit, float | int) else repr(limit)


ATTRIBUTE_CHECKS: tuple[Check[AttributeOf], ...] = (
    Check(aspect="exists", claims=("Attribute.name", "Attribute.each", "DeviceClass.attributes"), judge=_exists),
    _same("type", "Attribute.type", lambda _, a: a.type, lambda c: str(tango.CmdArgType.values[c.data_type])),
    _same(
        "dimensions",
        "Attribute.length Attribute.height",
        _wanted_shape,
        lambda c: _shape(str(c.data_format), c.max_dim_x, c.max_dim_y),
    ),
    _same("access", "Attribute.access", lambda _, a: a.access, lambda c: str(c.writable)),
    _same("unit", "Attribute.unit", unit_of, lambda c: "" if c.unit == "No unit" else c.unit),
    _same("label", "Attribute.label", lambda _, a: a.label, lambda c: c.label),
    _same("description", "Attribute.description", lambda _, a: a.description, lambda c: c.description),
    _same("format", "Attribute.format", lambda _, a: a.format, lambda c: c.format, lambda of: bool(of.entry.format)),
    _same(
        "level",
        "Attribute.expert",
        lambda _, a: "EXPERT" if a.expert else "OPERATOR",
        lambda c: str(c.disp_level),
    ),
    Check(
        aspect="limits",
        claims=("Attribute.limits", *(f"Limits.{name}" for name in _LIMITS)),
        judge=_limits,
        applies=lambda of: of.entry.type in _NUMBERS,
    ),
    _same(
        "enum",
        "Attribute.enum Icd.enums",
        lambda icd, a: ", ".join(icd.enums[a.enum or ""]),
        lambda c: ", ".join(c.enum_labels),
        lambda of: of.entry.enum is not None,
    ),
)
"""What Tango tells of an attribute without reading it."""
