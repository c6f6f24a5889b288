"""The device classes in the form of Pogo (``.xmi``), the editor of Tango classes.

Only for reading: the running classes are made from the ICD, not from these files. As in Pogo, the commands State and
Status are inherited ones, Init is not listed, and nothing is polled, because all events are pushed from code.
"""

import re
from collections.abc import Mapping
from xml.etree import ElementTree

from facade.icd.model import Attribute, CommandDefinition, DeviceClass, Icd, Query
from facade.icd.units import unit_of

Element = ElementTree.Element

_HEAD = '<?xml version="1.0" encoding="ASCII"?>\n'
_REVISION = "9.6"
"""Version of Pogo with this form."""
_ATTRIBUTE_TYPES = {
    "DevBoolean": "BooleanType",
    "DevLong": "IntType",
    "DevLong64": "LongType",
    "DevULong64": "ULongType",
    "DevDouble": "DoubleType",
    "DevString": "StringType",
    "DevEnum": "EnumType",
    "DevEncoded": "EncodedType",
}
_TYPES = _ATTRIBUTE_TYPES | {"DevVoid": "VoidType", "DevVarLongStringArray": "LongStringArrayType"}
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
_OWN = {"abstract": "false", "inherited": "false", "concrete": "true", "concreteHere": "true"}
_INHERITED = {"abstract": "true", "inherited": "true", "concrete": "true", "concreteHere": "false"}
_GIVEN = "[ResultCode.QUEUED], [command id]: the bus has the command; its outcome is shown by attributes."


def export(icd: Icd) -> Mapping[str, str]:
    """Return a file for each device class; see `facade.exports.files`."""
    return {f"pogo/{name}.xmi": _text(system(icd, device_class)) for name, device_class in icd.classes.items()}


def system(icd: Icd, device_class: DeviceClass) -> Element:
    """Make the document of one device class."""
    root = Element(
        "pogoDsl:PogoSystem",
        {
            "xmi:version": "2.0",
            "xmlns:xmi": "http://www.omg.org/XMI",
            "xmlns:xsi": "http://www.w3.org/2001/XMLSchema-instance",
            "xmlns:pogoDsl": "http://www.esrf.fr/tango/pogo/PogoDsl",
        },
    )
    classes = _below(root, "classes", name=device_class.name, pogoRevision=_REVISION)
    _describe(classes, device_class)
    states = states_of(device_class)
    _inherited(classes, "State", "dev_state", "StateType", "Device state")
    _inherited(classes, "Status", "dev_status", "ConstStringType", "Device status")
    for command in device_class.commands:
        _command(classes, command, states)
    for query in device_class.queries:
        _query(classes, query)
    for attribute in device_class.attributes:
        if attribute.name.startswith("_"):
            continue  # Pogo makes method names of them, which begin with a letter
        _attribute(classes, icd, attribute)
    for state in states:
        _below(_below(classes, "states", name=state, description=_STATES[state]), "status", **_OWN)
    _below(classes, "preferences", docHome="./doc_html", makefileHome="")
    return root


def states_of(device_class: DeviceClass) -> tuple[str, ...]:
    """Return the Tango states of devices of a class."""
    return tuple(state for state in _STATES if device_class.commands or state not in _COMMANDED)


def _describe(classes: Element, device_class: DeviceClass) -> None:
    description = _below(
        classes,
        "description",
        description=device_class.description,
        title=device_class.name,
        sourcePath="",
        language="PythonHL",
        filestogenerate="XMI   file",
        license="BSD-3-Clause",
        copyright="The sdp-tango-facade developers",
        hasMandatoryProperty="false",
        hasConcreteProperty="false",
        hasAbstractCommand="false",
        hasAbstractAttribute="false",
    )
    _below(description, "inheritances", classname="Device_Impl", sourcePath="")
    _below(
        description,
        "identification",
        contact="at skao.int - sdp-tango-facade",
        author="sdp-tango-facade",
        emailDomain="skao.int",
        classFamily="Communication",
        siteSpecific="",
        platform="Unix Like",
        bus="Not Applicable",
        manufacturer="none",
        reference="",
    )


def _inherited(classes: Element, name: str, method: str, type: str, result: str) -> None:
    entry = _command_head(classes, name, f"Gives the {result.lower()}.", method)
    _argument(entry, "argin", "VoidType", "none")
    _argument(entry, "argout", type, result)
    _below(entry, "status", **_INHERITED)


def _command(classes: Element, command: CommandDefinition, states: tuple[str, ...]) -> None:
    entry = _command_head(classes, command.name, command.description)
    if command.argument is None:
        _argument(entry, "argin", "VoidType", "none")
    else:
        _argument(entry, "argin", "StringType", f"JSON, ska-sdp-{command.argument}.")
    _argument(entry, "argout", _TYPES["DevVarLongStringArray"], _GIVEN)
    _below(entry, "status", **_OWN)
    for state in states:
        if state not in command.state:
            _below(entry, "excludedStates").text = state


def _query(classes: Element, query: Query) -> None:
    entry = _command_head(classes, query.name, query.description)
    _argument(entry, "argin", _TYPES[query.argument], query.argument_description or "none")
    _argument(entry, "argout", _TYPES[query.result], query.result_description)
    _below(entry, "status", **_OWN)


def _command_head(classes: Element, name: str, description: str, method: str | None = None) -> Element:
    return _below(
        classes,
        "commands",
        name=name,
        description=description,
        execMethod=method or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(),
        displayLevel="OPERATOR",
        polledPeriod="0",
        isDynamic="false",
    )


def _argument(entry: Element, tag: str, type: str, description: str) -> None:
    _below(_below(entry, tag, description=description), "type", **{"xsi:type": f"pogoDsl:{type}"})


def _attribute(classes: Element, icd: Icd, attribute: Attribute) -> None:
    entry = _below(
        classes,
        "attributes",
        name=attribute.name,
        attType="Image" if attribute.height else "Spectrum" if attribute.length else "Scalar",
        rwType=attribute.access,
        displayLevel="EXPERT" if attribute.expert else "OPERATOR",
        polledPeriod="0",
        maxX=str(attribute.length or ""),
        maxY=str(attribute.height or ""),
        allocReadMember="false",
        isDynamic="false",
    )
    _below(entry, "dataType", **{"xsi:type": f"pogoDsl:{_ATTRIBUTE_TYPES[attribute.type]}"})
    # Already sampled by the event loop: Tango must not filter a second time.
    pushed, ready = ("true", "false") if attribute.is_pushed else ("false", "true")
    _below(entry, "changeEvent", fire=pushed, libCheckCriteria="false")
    _below(entry, "archiveEvent", fire=pushed, libCheckCriteria="false")
    _below(entry, "dataReadyEvent", fire=ready, libCheckCriteria="true")
    _below(entry, "status", **_OWN)
    _properties(entry, icd, attribute)
    for label in icd.enums[attribute.enum] if attribute.enum else ():
        _below(entry, "enumLabels").text = label


def _properties(entry: Element, icd: Icd, attribute: Attribute) -> None:
    number = float if attribute.type == "DevDouble" else int

    def limit(name: str) -> str:
        value = getattr(attribute.limits, name, None)
        return "" if value is None else str(number(value))

    _below(
        entry,
        "properties",
        description=attribute.description,
        label=attribute.label,
        unit=unit_of(icd, attribute),
        standardUnit="",
        displayUnit="",
        format=attribute.format,
        maxValue="",
        minValue="",
        maxAlarm=limit("max_alarm"),
        minAlarm=limit("min_alarm"),
        maxWarning=limit("max_warning"),
        minWarning=limit("min_warning"),
        deltaTime="",
        deltaValue="",
    )


def _below(parent: Element, tag: str, **attributes: str) -> Element:
    return ElementTree.SubElement(parent, tag, attributes)


def _text(root: Element) -> str:
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="us-ascii")
    return _HEAD + content.decode("ascii").replace(" />", "/>") + "\n"
