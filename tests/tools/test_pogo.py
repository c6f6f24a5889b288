"""Pogo's files are XML in ASCII, and equal to the classes that run."""

from xml.etree import ElementTree

import pytest
import tango
from tango.test_context import MultiDeviceTestContext

from devices.kernel.classes import device_classes
from facade.kernel.icd.load import load
from facade.tools.exports.pogo import export
from tests.support.waiting import HANG

ICD = load()
FILES = export(ICD)
XSI_TYPE = "{http://www.w3.org/2001/XMLSchema-instance}type"
ROOT = "{http://www.esrf.fr/tango/pogo/PogoDsl}PogoSystem"
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


@pytest.mark.needs("repository")
@pytest.mark.forked
def test_each_file_is_as_the_device_that_runs() -> None:
    made = {one.__name__: one for one in device_classes(ICD)}
    assert made.keys() == ICD.classes.keys()
    devices = [{"class": one, "devices": [{"name": f"test/pogo/{name}"}]} for name, one in made.items()]
    with MultiDeviceTestContext(devices, process=False, timeout=HANG) as context:
        for name in made:
            root = ElementTree.fromstring(FILES[f"pogo/{name}.xmi"].encode("ascii"))
            assert root.tag == ROOT
            is_as_it_runs(root.find("classes"), context.get_device(f"test/pogo/{name}"))


def is_as_it_runs(entry: ElementTree.Element, proxy: tango.DeviceProxy) -> None:
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
