"""Pogo's files: right in form, equal to the classes that run, and the check finds each kind of damage."""

import pytest
import tango
from tango.test_context import DeviceTestContext

from devices.classes import device_classes
from facade.exports.pogo import export
from facade.icd.load import load
from tests.support.pogo_check import XSI_TYPE, ElementTree, findings
from tests.support.waiting import HANG

ICD = load()
FILES = export(ICD)
_CMD = tango.CmdArgType
_TYPES = {
    "VoidType": _CMD.DevVoid,
    "BooleanType": _CMD.DevBoolean,
    "IntType": _CMD.DevLong,
    "LongType": _CMD.DevLong64,
    "ULongType": _CMD.DevULong64,
    "DoubleType": _CMD.DevDouble,
    "StringType": _CMD.DevString,
    "ConstStringType": _CMD.DevString,
    "EnumType": _CMD.DevEnum,
    "EncodedType": _CMD.DevEncoded,
    "StateType": _CMD.DevState,
    "LongStringArrayType": _CMD.DevVarLongStringArray,
}
_FORMATS = {"Scalar": tango.AttrDataFormat.SCALAR, "Spectrum": tango.AttrDataFormat.SPECTRUM}
_FORMATS |= {"Image": tango.AttrDataFormat.IMAGE}
_LIMITS = {"minAlarm": "min_alarm", "minWarning": "min_warning", "maxWarning": "max_warning", "maxAlarm": "max_alarm"}

_SCALAR = 'attType="Scalar" rwType="READ" displayLevel="OPERATOR" polledPeriod="0" maxX="'
_DATA = '<dataType xsi:type="pogoDsl:IntType"/>'
DAMAGES = {
    "another root": ("www.esrf.fr/tango/pogo/PogoDsl", "www.esrf.fr/tango/pogo", "expected {http"),
    "not closed": ("</classes>", "", "not XML"),
    "not ASCII": ('label="Heap rate"', 'label="Hëap rate"', "not XML in ASCII"),
    "the XMI version": ('xmi:version="2.0"', 'xmi:version="2.1"', "version: expected"),
    "the language": ('language="PythonHL"', 'language="Pyhton"', "language: expected"),
    "a boolean": ('isDynamic="false"', 'isDynamic="False"', "isDynamic: expected"),
    "a boolean of an event": ('fire="true"', 'fire="yes"', "fire: expected"),
    "a boolean of a status": ('concreteHere="true"', 'concreteHere="1"', "concreteHere: expected"),
    "rwType": ('rwType="READ_WRITE"', 'rwType="RW"', "rwType: expected"),
    "attType": ('attType="Scalar"', 'attType="SCALAR"', "attType: expected"),
    "displayLevel": ('displayLevel="OPERATOR"', 'displayLevel="USER"', "displayLevel: expected"),
    "a period": ('polledPeriod="0"', 'polledPeriod="never"', "polledPeriod: expected"),
    "a size": ('maxX="2000"', 'maxX="many"', "maxX: expected"),
    "a name": ('name="heapRate"', 'name="heap rate"', "name: expected"),
    "a Tango type": ("pogoDsl:IntType", "pogoDsl:DevLong", "type: expected"),
    "a type without its name space": ('"pogoDsl:IntType"', '"IntType"', "type: expected"),
    "an attribute's type is void": (_DATA, _DATA.replace("Int", "Void"), "type: expected"),
    "a type that is not xsi's": ("<dataType xsi:type=", "<dataType type=", "unknown attribute type"),
    "an unknown element": ("<preferences ", "<preference ", "unknown element preference"),
    "an unknown attribute": (' label="Heap rate"', ' title="" label="Heap rate"', "unknown attribute title"),
    "a missing attribute": (' standardUnit=""', "", "no attribute standardUnit"),
    "no label": ('label="Heap rate"', 'label=""', "label: expected"),
    "a format": ('format="%.1f"', 'format="one digit"', "format: expected"),
    "a limit": ('maxAlarm="2.0"', 'maxAlarm="two"', "maxAlarm: expected"),
    "limits out of order": ('maxAlarm="2.0"', 'maxAlarm="0.1"', "limits are not in order"),
    "limits of a text": ('maxAlarm=""', 'maxAlarm="1"', "limits of a"),
    "text where none belongs": ("</commands>", "</commands>text", "text between elements"),
    "text in an element": ("</argin>", "text</argin>", "text between elements"),
    "a state that Tango has not": ("<excludedStates>ON<", "<excludedStates>READY<", "expected the text"),
    "a state that the class has not": ("<excludedStates>ON<", "<excludedStates>MOVING<", "MOVING, which"),
    "an attribute twice": ('name="heapRate"', 'name="HEAPSTOTAL"', "heapstotal is there 2 times"),
    "a command twice": ('<commands name="Standby"', '<commands name="off"', "off is there 2 times"),
    "a state twice": ('<states name="OFF"', '<states name="ON"', "on is there 2 times"),
    "no State": ('<commands name="State"', '<commands name="Stat"', "no command State"),
    "State is its own": ('inherited="true"', 'inherited="false"', "State: expected an inherited"),
    "State is text": ("pogoDsl:StateType", "pogoDsl:StringType", "State: expected StateType"),
    "Init is listed": ('<commands name="Off"', '<commands name="Init"', "Init: Pogo does not"),
    "State as an attribute": ('<attributes name="heapRate"', '<attributes name="State"', "State: a command"),
    "a scalar with a size": (_SCALAR, f"{_SCALAR}3", "attType does not fit"),
    "a spectrum without a size": ('maxX="2000"', 'maxX=""', "attType does not fit"),
    "labels of a number": ("pogoDsl:EnumType", "pogoDsl:ShortType", "ShortType with 5 labels"),
    "an enumeration without labels": (_DATA, _DATA.replace("Int", "Enum"), "EnumType with 0 labels"),
    "a label twice": ("<enumLabels>DEGRADED<", "<enumLabels>OK<", "labels are there twice"),
    "pushed and polled": ('polledPeriod="0" maxX', 'polledPeriod="1000" maxX', "pushed and polled"),
}


@pytest.mark.parametrize("path", FILES)
def test_a_file_has_no_findings(path: str) -> None:
    assert findings(FILES[path]) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_check_finds_the_damage(damage: str) -> None:
    text, (what, instead, finding) = FILES["pogo/SdpMaster.xmi"], DAMAGES[damage]
    assert what in text, "the sample has changed: choose another text for the damage"
    assert finding in "\n".join(findings(text.replace(what, instead, 1)))


@pytest.mark.parametrize("parent", ["", "description", "commands", "attributes"])
def test_the_check_finds_elements_out_of_order_and_missing_ones(parent: str) -> None:
    text = FILES["pogo/SdpMaster.xmi"]
    root = ElementTree.fromstring(text)
    entry = root[0] if not parent else root[0].find(parent)
    first, last = entry[0], entry[-1]
    entry.remove(first)
    assert findings(_written(root)), f"no {first.tag}"
    entry.append(first)
    assert findings(_written(root)), f"{first.tag} after {last.tag}"


def _written(root: ElementTree.Element) -> str:
    return ElementTree.tostring(root, encoding="us-ascii").decode()


@pytest.mark.forked
@pytest.mark.parametrize("name", sorted(ICD.classes))
def test_a_file_is_as_the_device_that_runs(name: str) -> None:
    (made,) = (one for one in device_classes(ICD) if one.__name__ == name)
    entry = ElementTree.fromstring(FILES[f"pogo/{name}.xmi"]).find("classes")
    with DeviceTestContext(made, process=False, timeout=HANG) as proxy:
        attributes = {one.get("name"): one for one in entry.findall("attributes")}
        shown = {name for name in proxy.get_attribute_list() if not name.startswith("_")}
        assert {*attributes, "State", "Status"} == shown
        configs = {one.name: one for one in proxy.attribute_list_query_ex() if one.name in attributes}
        assert {one: _attribute(element) for one, element in attributes.items()} == {
            one: _running(config) for one, config in configs.items()
        }
        commands = {one.get("name"): _command(one) for one in entry.findall("commands")}
        running = {one.cmd_name: (one.in_type, one.out_type) for one in proxy.command_list_query()}
        assert running.pop("Init") == (_CMD.DevVoid, _CMD.DevVoid)  # never in Pogo's files
        assert commands == running
        assert entry.get("name") == proxy.info().dev_class


def _type(element: ElementTree.Element) -> tango.CmdArgType:
    return _TYPES[element.get(XSI_TYPE).removeprefix("pogoDsl:")]


def _command(element: ElementTree.Element) -> tuple[tango.CmdArgType, tango.CmdArgType]:
    return _type(element.find("argin/type")), _type(element.find("argout/type"))


def _attribute(element: ElementTree.Element) -> dict[str, object]:
    properties = element.find("properties")
    return {
        "type": _type(element.find("dataType")),
        "shape": (_FORMATS[element.get("attType")], int(element.get("maxX") or 1), int(element.get("maxY") or 0)),
        "access": element.get("rwType"),
        "level": element.get("displayLevel"),
        "texts": [properties.get(one) for one in ("label", "unit", "description")],
        "limits": [float(properties.get(one)) if properties.get(one) else None for one in _LIMITS],
        "labels": [one.text for one in element.findall("enumLabels")],
    }


def _running(config: tango.AttributeInfoEx) -> dict[str, object]:
    limits = [getattr(config.alarms, one) for one in _LIMITS.values()]
    return {
        "type": _CMD.values[config.data_type],
        "shape": (config.data_format, config.max_dim_x, config.max_dim_y),
        "access": str(config.writable),
        "level": str(config.disp_level),
        "texts": [config.label, config.unit, config.description],
        "limits": [None if one == "Not specified" else float(one) for one in limits],
        "labels": list(config.enum_labels),
    }
