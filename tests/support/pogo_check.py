"""A strict check of Pogo's ``.xmi`` files: stricter than Pogo's own grammar, which knows names and order only."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

Element = ElementTree.Element

XSI_TYPE = "{http://www.w3.org/2001/XMLSchema-instance}type"
XMI_VERSION = "{http://www.omg.org/XMI}version"
ROOT = "{http://www.esrf.fr/tango/pogo/PogoDsl}PogoSystem"
_ANY = ".*"
_BOOLEAN = "true|false"
_NAME = "[A-Za-z][A-Za-z0-9_]*"
_LEVEL = "OPERATOR|EXPERT"
_COUNT = "[0-9]+"
_SIZE = "([1-9][0-9]*)?"
_NUMBER = r"([-+]?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?)?"
_STATE = "ON|OFF|CLOSE|OPEN|INSERT|EXTRACT|MOVING|STANDBY|FAULT|INIT|RUNNING|ALARM|DISABLE|UNKNOWN"
_SIMPLE = "Boolean|Short|UShort|Int|UInt|Long|ULong|Float|Double|String|UChar|Encoded|Enum|State"
_ARRAY = "Char|Boolean|Short|UShort|Int|UInt|Long|ULong|Float|Double|String|LongString|DoubleString|State"
_COMMAND_TYPE = f"pogoDsl:(Void|ConstString|{_SIMPLE}|({_ARRAY})Array)Type"
_ATTRIBUTE_TYPE = f"pogoDsl:({_SIMPLE})Type"
_NUMERIC = "pogoDsl:(Short|UShort|Int|UInt|Long|ULong|Float|Double|UChar)Type"
_ONE, _MAYBE, _MANY, _SOME = (1, 1), (0, 1), (0, None), (1, None)


@dataclass(frozen=True)
class Rule:
    """What an element may have: patterns of its attributes, its children in order with how often, and its text."""

    attributes: Mapping[str, str] = field(default_factory=dict)
    children: Mapping[str, tuple["Rule", tuple[int, int | None]]] = field(default_factory=dict)
    text: str = r"\s*"
    optional: frozenset[str] = frozenset()


_status = Rule(
    dict.fromkeys(("abstract", "inherited", "concrete", "concreteHere", "hasChanged"), _BOOLEAN),
    optional=frozenset({"concreteHere", "hasChanged"}),
)
_state_text = Rule(text=_STATE)
_event = Rule({"fire": _BOOLEAN, "libCheckCriteria": _BOOLEAN})
_argument = Rule({"description": _ANY}, {"type": (Rule({XSI_TYPE: _COMMAND_TYPE}), _ONE)})
_command = Rule(
    {
        "name": _NAME,
        "description": ".+",
        "execMethod": "[a-z][a-z0-9_]*",
        "displayLevel": _LEVEL,
        "polledPeriod": _COUNT,
        "isDynamic": _BOOLEAN,
    },
    {
        "argin": (_argument, _ONE),
        "argout": (_argument, _ONE),
        "status": (_status, _ONE),
        "excludedStates": (_state_text, _MANY),
    },
)
_properties = Rule(
    dict.fromkeys(("description", "label"), ".+")
    | dict.fromkeys(("unit", "standardUnit", "displayUnit"), _ANY)
    | {"format": r"(%[0-9]*(\.[0-9]+)?[dfeEgsx])?"}
    | dict.fromkeys(("maxValue", "minValue", "maxAlarm", "minAlarm", "maxWarning", "minWarning"), _NUMBER)
    | dict.fromkeys(("deltaTime", "deltaValue"), _NUMBER)
)
_attribute = Rule(
    {
        "name": _NAME,
        "attType": "Scalar|Spectrum|Image",
        "rwType": "READ|WRITE|READ_WRITE|READ_WITH_WRITE",
        "displayLevel": _LEVEL,
        "polledPeriod": _COUNT,
        "maxX": _SIZE,
        "maxY": _SIZE,
        "allocReadMember": _BOOLEAN,
        "isDynamic": _BOOLEAN,
    },
    {
        "dataType": (Rule({XSI_TYPE: _ATTRIBUTE_TYPE}), _ONE),
        "changeEvent": (_event, _ONE),
        "archiveEvent": (_event, _ONE),
        "dataReadyEvent": (_event, _ONE),
        "status": (_status, _ONE),
        "properties": (_properties, _ONE),
        "enumLabels": (Rule(text=".+"), _MANY),
        "readExcludedStates": (_state_text, _MANY),
        "writeExcludedStates": (_state_text, _MANY),
    },
)
_description = Rule(
    dict.fromkeys(("description", "title"), ".+")
    | dict.fromkeys(("sourcePath", "copyright", "license"), _ANY)
    | {"language": "PythonHL", "filestogenerate": "XMI   file(,[A-Za-z ]+)*"}
    | dict.fromkeys(
        ("hasMandatoryProperty", "hasConcreteProperty", "hasAbstractCommand", "hasAbstractAttribute"), _BOOLEAN
    ),
    {
        "inheritances": (Rule({"classname": "Device_Impl", "sourcePath": _ANY}), _SOME),
        "identification": (
            Rule(
                {"contact": r"at [a-z.]+ - \S+", "author": ".+", "emailDomain": "[a-z.]+", "classFamily": ".+"}
                | dict.fromkeys(("siteSpecific", "platform", "bus", "manufacturer", "reference"), _ANY)
            ),
            _ONE,
        ),
    },
)
_class = Rule(
    {"name": _NAME, "pogoRevision": r"[0-9]+\.[0-9]+"},
    {
        "description": (_description, _ONE),
        "commands": (_command, _SOME),
        "attributes": (_attribute, _SOME),
        "states": (Rule({"name": _STATE, "description": ".+"}, {"status": (_status, _ONE)}), _SOME),
        "preferences": (Rule({"docHome": _ANY, "makefileHome": _ANY}), _MAYBE),
    },
)
_root = Rule({XMI_VERSION: r"2\.0"}, {"classes": (_class, _ONE)})


def findings(text: str) -> list[str]:
    """Return all that is wrong with a file."""
    try:
        text.encode("ascii")
        root = ElementTree.fromstring(text)
    except (UnicodeEncodeError, ElementTree.ParseError) as error:
        return [f"not XML in ASCII: {error}"]
    if root.tag != ROOT:
        return [f"expected {ROOT}, got {root.tag}"]
    structure = list(_against(_root, root, "PogoSystem"))
    return structure or list(_meaning(root[0]))


def _against(rule: Rule, element: Element, path: str) -> Iterator[str]:
    for name in rule.attributes.keys() - rule.optional - set(element.keys()):
        yield f"{path}: no attribute {name}"
    for name, value in element.items():
        pattern = rule.attributes.get(name)
        if pattern is None:
            yield f"{path}: unknown attribute {name}"
        elif re.fullmatch(pattern, value, re.DOTALL) is None:
            yield f"{path}: {name}: expected {pattern}, got {value!r}"
    if re.fullmatch(rule.text, element.text or "", re.DOTALL) is None:
        yield f"{path}: expected the text {rule.text}, got {element.text!r}"
    yield from _children(rule, element, path)


def _children(rule: Rule, element: Element, path: str) -> Iterator[str]:
    order = list(rule.children)
    known = [child.tag for child in element if child.tag in rule.children]
    if known != sorted(known, key=order.index):
        yield f"{path}: elements are out of order: {' '.join(dict.fromkeys(known))}"
    counts = Counter(child.tag for child in element)
    for tag in counts.keys() - rule.children.keys():
        yield f"{path}: unknown element {tag}"
    for tag, (_, (least, most)) in rule.children.items():
        if counts[tag] < least or (most is not None and counts[tag] > most):
            yield f"{path}: {counts[tag]} elements {tag}"
    for child in element:
        if child.tag in rule.children:
            yield from _against(rule.children[child.tag][0], child, f"{path}/{child.tag}[{child.get('name', '')}]")
        if (child.tail or "").strip():
            yield f"{path}: text between elements: {child.tail!r}"


def _meaning(entry: Element) -> Iterator[str]:
    """Find what fits the form and cannot be meant."""
    for kind in ("commands", "attributes", "states"):
        names = Counter(one.get("name", "").lower() for one in entry.findall(kind))  # Tango's names ignore case
        yield from (f"{kind}: {name} is there {count} times" for name, count in names.items() if count > 1)
    yield from _inherited(entry)
    states = {one.get("name") for one in entry.findall("states")}
    for command in entry.findall("commands"):
        for excluded in command.findall("excludedStates"):
            if excluded.text not in states:
                yield f"{command.get('name')}: excludes the state {excluded.text}, which the class has not"
    for attribute in entry.findall("attributes"):
        yield from (f"{attribute.get('name')}: {what}" for what in _attribute_meaning(attribute))


def _inherited(entry: Element) -> Iterator[str]:
    commands = {one.get("name"): one for one in entry.findall("commands")}
    for name, type in (("State", "StateType"), ("Status", "ConstStringType")):
        command = commands.get(name)
        if command is None:
            yield f"no command {name}"
        elif command.find("status").get("inherited") != "true":
            yield f"{name}: expected an inherited command"
        elif command.find("argout/type").get(XSI_TYPE) != f"pogoDsl:{type}":
            yield f"{name}: expected {type}"
    for name in commands:
        if name in ("Init", "init"):
            yield f"{name}: Pogo does not list it"
    for attribute in entry.findall("attributes"):
        if attribute.get("name") in ("State", "Status"):
            yield f"{attribute.get('name')}: a command in Pogo's form, not an attribute"


def _attribute_meaning(attribute: Element) -> Iterator[str]:
    shape = attribute.get("attType"), bool(attribute.get("maxX")), bool(attribute.get("maxY"))
    if shape not in (("Scalar", False, False), ("Spectrum", True, False), ("Image", True, True)):
        yield f"attType does not fit maxX and maxY: {shape}"
    type = attribute.find("dataType").get(XSI_TYPE)
    labels = [one.text for one in attribute.findall("enumLabels")]
    if (type == "pogoDsl:EnumType") != bool(labels):
        yield f"{type} with {len(labels)} labels"
    if len(set(labels)) != len(labels):
        yield "labels are there twice"
    properties = attribute.find("properties")
    limits = [properties.get(name) for name in ("minAlarm", "minWarning", "maxWarning", "maxAlarm")]
    given = [float(one) for one in limits if one]
    if given and re.fullmatch(_NUMERIC, type) is None:
        yield f"limits of a {type}"
    if given != sorted(set(given)):
        yield f"limits are not in order: {given}"
    if attribute.get("polledPeriod") != "0" and attribute.find("changeEvent").get("fire") == "true":
        yield "pushed and polled"
