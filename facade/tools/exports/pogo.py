"""The device classes in the form of Pogo (``.xmi``), the editor of Tango classes.

Only for reading: the running classes are made from the ICD, not from these files. As in Pogo, the commands State and
Status are inherited ones, Init is not listed, and nothing is polled, because all events are pushed from code.
"""

import re
from collections.abc import Mapping
from xml.sax.saxutils import escape

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from facade.kernel.icd.model import Attribute, DeviceClass, Icd
from facade.kernel.icd.units import unit_of

_TYPES = {
    "DevBoolean": "BooleanType",
    "DevLong": "IntType",
    "DevLong64": "LongType",
    "DevULong64": "ULongType",
    "DevDouble": "DoubleType",
    "DevString": "StringType",
    "DevEnum": "EnumType",
    "DevEncoded": "EncodedType",
    "DevVoid": "VoidType",
    "DevVarLongStringArray": "LongStringArrayType",
}
_STATES = {
    "ON": "Everything is as it should be.",
    "OFF": "Switched off by a command.",
    "STANDBY": "On standby by a command.",
    "FAULT": "A controller has reported a fault.",
    "ALARM": "Something needs attention; the status says what.",
    "DISABLE": "Taken out of use, by a command or by adminMode: no command is taken.",
    "UNKNOWN": "No data from the bus yet, or no longer.",
}
"""The states that the devices show, in Tango's order."""
_COMMANDED = frozenset({"OFF", "STANDBY", "FAULT", "DISABLE"})
_LIMITS = ("max_alarm", "min_alarm", "max_warning", "min_warning")


def export(icd: Icd) -> Mapping[str, str]:
    """Return a file for each device class; see `facade.tools.exports.files`."""
    environment = Environment(
        loader=PackageLoader(__name__.rpartition(".")[0], "pages"),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=_escaped,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "icd": icd,
        "types": _TYPES,
        "limits_of": _limits_of,
        "unit": lambda one: unit_of(icd, one),
        "snake_case": lambda name: re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(),
    }
    template = environment.get_template("pogo.j2")
    return {f"pogo/{name}.xmi": template.render(device=one, states=states_of(one)) for name, one in icd.classes.items()}


def states_of(device_class: DeviceClass) -> dict[str, str]:
    """Return the Tango states of devices of a class, with their meanings."""
    return {state: text for state, text in _STATES.items() if device_class.commands or state not in _COMMANDED}


def _limits_of(attribute: Attribute) -> dict[str, str]:
    number = float if attribute.type == "DevDouble" else int
    limits = ((name, getattr(attribute.limits, name, None)) for name in _LIMITS)
    return {name: "" if limit is None else str(number(limit)) for name, limit in limits}


def _escaped(value: object) -> Markup:
    if isinstance(value, Markup):
        return value
    return Markup(escape(str(value), {'"': "&quot;"}).encode("ascii", "xmlcharrefreplace").decode())  # noqa: S704
