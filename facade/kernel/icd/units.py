"""Units: the known ones, and the unit of an attribute from its field and its rule."""

from facade.kernel.errors import IcdError
from facade.kernel.icd.fields import message_of, properties
from facade.kernel.icd.model import Attribute, Icd, Source

_PHYSICAL = ("s", "us", "Hz", "rad", "Jy", "B")
_COUNTED = (
    "packets",
    "visibilities",
    "products",
    "records",
    "heaps",
    "nodes",
    "workers",
    "brokers",
    "partitions",
    "components",
    "commands",
    "acks",
    "alerts",
    "alarms",
    "actions",
    "attributes",
    "blocks",
    "reservations",
    "conflicts",
    "values",
)
_BASE_UNITS = (*_PHYSICAL, *_COUNTED)

UNITS: frozenset[str] = frozenset(("", "%", "1/s", "degC", *_BASE_UNITS, *(f"{unit}/s" for unit in _BASE_UNITS)))
"""Units that a field (``x-unit``) or an attribute may have in any interface; ``""`` is a plain number."""


def udunits(unit: str) -> str:
    """Return a unit as UDUNITS writes it, with one name for all counted things."""
    base, *per = unit.split("/")
    return "/".join(["byte" if base == "B" else "count" if base in _COUNTED else base, *per])


def known_units(icd: Icd) -> frozenset[str]:
    """Return every unit that a field or an attribute of an interface may have."""
    return UNITS.union(icd.units)


def unit_of(icd: Icd, attribute: Attribute) -> str:
    """Return the unit of an attribute's value.

    Raises
    ------
    IcdError
        A unit is stated although it follows from a field.
    """
    source = attribute.source
    if source is not None and source.field is not None:
        if attribute.unit is not None:
            raise IcdError(
                f"attributes[{attribute.name}].unit: expected none, because it follows from the field "
                f"{source.field!r}, got {attribute.unit!r}"
            )
        return _of_field(icd, source, source.field)
    if attribute.unit is not None:
        return attribute.unit
    if source is not None:
        return "records/s" if source.rule == "rate" else "records"
    if attribute.account is not None:
        return {"rate": "records/s", "lag_time": "s"}.get(attribute.account.figure, "records")
    return ""


def _of_field(icd: Icd, source: Source, field: str) -> str:
    if source.rule == "fraction":
        return ""
    schema = message_of(icd, source.topic) or {}
    unit = str(properties(schema).get(field, {}).get("x-unit", ""))
    return f"{unit or '1'}/s" if source.rule == "rate" else unit
