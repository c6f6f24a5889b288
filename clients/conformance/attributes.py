"""Whether attributes are there as the ICD says: name, type, shape, and all that Tango tells a client about them."""

from typing import Any

import tango

from clients.conformance.case import AttributeOf, Check, demand
from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch
from facade.icd.units import unit_of

_NONE = "Not specified"
_LIMITS = ("min_alarm", "min_warning", "max_warning", "max_alarm")
_NUMBERS = ("DevLong", "DevLong64", "DevULong64", "DevDouble")


def _exists(system: System, of: AttributeOf) -> str:
    return str(system.config(of.device, of.entry.name).name)


def _type(system: System, of: AttributeOf) -> str:
    found = system.config(of.device, of.entry.name).data_type
    return demand(of.entry.type, str(tango.CmdArgType.values[found]))


def _dimensions(system: System, of: AttributeOf) -> str:
    config, entry = system.config(of.device, of.entry.name), of.entry
    form = "IMAGE" if entry.height else "SPECTRUM" if entry.length else "SCALAR"
    return demand(_shape(form, max(entry.length, 1), entry.height), _shape_of(config))


def _shape(form: str, x: int, y: int) -> str:
    return f"{form} {x} x {y}" if y else f"{form} {x}"


def _shape_of(config: Any) -> str:
    return _shape(str(config.data_format), config.max_dim_x, config.max_dim_y)


def _access(system: System, of: AttributeOf) -> str:
    return demand(of.entry.access, str(system.config(of.device, of.entry.name).writable))


def _unit(system: System, of: AttributeOf) -> str:
    found = str(system.config(of.device, of.entry.name).unit)
    return demand(unit_of(system.icd, of.entry), "" if found == "No unit" else found)


def _label(system: System, of: AttributeOf) -> str:
    return demand(of.entry.label, str(system.config(of.device, of.entry.name).label))


def _description(system: System, of: AttributeOf) -> str:
    demand(of.entry.description, str(system.config(of.device, of.entry.name).description))
    return "as in the ICD"


def _format(system: System, of: AttributeOf) -> str:
    return demand(of.entry.format, str(system.config(of.device, of.entry.name).format))


def _level(system: System, of: AttributeOf) -> str:
    found = system.config(of.device, of.entry.name).disp_level
    return demand("EXPERT" if of.entry.expert else "OPERATOR", str(found))


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


def _enum(system: System, of: AttributeOf) -> str:
    found = list(system.config(of.device, of.entry.name).enum_labels)
    demand(list(system.icd.enums[of.entry.enum or ""]), found)
    return ", ".join(found)


ATTRIBUTE_CHECKS: tuple[Check[AttributeOf], ...] = (
    Check(aspect="exists", claims=("Attribute.name", "Attribute.each", "DeviceClass.attributes"), judge=_exists),
    Check(aspect="type", claims=("Attribute.type",), judge=_type),
    Check(aspect="dimensions", claims=("Attribute.length", "Attribute.height"), judge=_dimensions),
    Check(aspect="access", claims=("Attribute.access",), judge=_access),
    Check(aspect="unit", claims=("Attribute.unit",), judge=_unit),
    Check(aspect="label", claims=("Attribute.label",), judge=_label),
    Check(aspect="description", claims=("Attribute.description",), judge=_description),
    Check(aspect="format", claims=("Attribute.format",), judge=_format, applies=lambda of: bool(of.entry.format)),
    Check(aspect="level", claims=("Attribute.expert",), judge=_level),
    Check(
        aspect="limits",
        claims=("Attribute.limits", "Limits.min_alarm", "Limits.min_warning", "Limits.max_warning", "Limits.max_alarm"),
        judge=_limits,
        applies=lambda of: of.entry.type in _NUMBERS,
    ),
    Check(
        aspect="enum",
        claims=("Attribute.enum", "Icd.enums"),
        judge=_enum,
        applies=lambda of: of.entry.enum is not None,
    ),
)
"""What Tango tells of an attribute without reading it."""
