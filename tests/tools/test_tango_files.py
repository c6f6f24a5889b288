"""What a site loads into its Tango tools: the registration, the archive's configuration, the alarm handler's rules."""

import json
import re
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import yaml
from dsconfig.formatting import validate_json

from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Attribute
from facade.kernel.instances import registration
from facade.tools.exports import tango_db

ICD = load()
REGISTRATION = json.loads(tango_db.export(ICD)["tango-db/sdp.json"])
ATTRIBUTES = {name: {one.name: one for one in entry.attributes} for name, entry in ICD.classes.items()}


def test_dsconfig_accepts_the_registration() -> None:
    validate_json(REGISTRATION)  # ends the process if it does not
    schema = json.loads(files("dsconfig").joinpath("schema/schema2.json").read_text())
    jsonschema.validate(REGISTRATION, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**REGISTRATION, "server": {}}, schema)


@pytest.mark.parametrize("settings", [Settings(), Settings(nodes=120, rack_size=50, subarrays=16, archives=2)])
def test_every_device_is_registered_once_in_the_server_of_its_class(settings: Settings) -> None:
    content = registration(ICD, settings)
    validate_json(content)
    devices = [
        (name, device)
        for classes in content["servers"]["SdpFacade"].values()
        for name, found in classes.items()
        for device in found
    ]
    assert len({device.lower() for _, device in devices}) == len(devices)
    counts = {name: sum(one == name for one, _ in devices) for name in ICD.classes}
    assert counts.pop("SdpIngestNode") == settings.nodes
    assert {counts.pop(name) for name in ("SdpSubarray", "SdpCalibration", "SdpQuality")} == {settings.subarrays}
    assert counts.pop("SdpArchive") == settings.archives
    assert set(counts.values()) == {1}
    assert set(content["classes"]) == set(ICD.classes)


def archive() -> dict[str, Any]:
    content = yaml.safe_load(tango_db.export_archiving(ICD)["tango-db/archiving.yaml"])
    return {**content, "configuration": {one["class"]: one["attributes"] for one in content["configuration"]}}


def test_the_archive_takes_pushed_attributes_and_no_data_products() -> None:
    content = archive()
    assert content.keys() == {"db", "manager", "archiver", "configuration"}
    assert content["configuration"].keys() == ICD.classes.keys()
    for name, attributes in content["configuration"].items():
        assert attributes.pop("State") == {"code_push_event": True, "archive_strategy": "ALWAYS"}
        assert attributes.keys() <= ATTRIBUTES[name].keys()
        for attribute, settings in attributes.items():
            entry = ATTRIBUTES[name][attribute]
            assert settings == {"code_push_event": True, "archive_strategy": "ALWAYS"}
            assert entry.is_pushed
            assert not entry.height
            assert entry.length <= (64 if entry.type == "DevString" else 256)


KEYS = ("tag", "formula", "on_delay", "off_delay", "priority", "shlvd_time", "group", "message", "url")
KEYS += ("on_command", "off_command", "enabled")
PRIORITIES = ("lowest", "low", "medium", "high", "highest")
DEVICES = {
    device: name
    for classes in REGISTRATION["servers"]["SdpFacade"].values()
    for name, devices in classes.items()
    for device in devices
}
RULES = [line for line in tango_db.export_rules(ICD)["tango-db/alarms.txt"].splitlines() if not line.startswith("#")]
NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
COMPARISON = re.compile(rf"([\w.+-]+/[\w.+-]+/[\w.+-]+)/(\w+) (==|<=|>=) (UNACK|ACKED|{NUMBER})")


def parsed_rule(line: str) -> dict[str, str]:
    pairs = [pair.split("=", 1) for pair in line.split(";")]
    assert tuple(key for key, _ in pairs) == KEYS, line
    return dict(pairs)


def comparisons(formula: str) -> list[tuple[str, str, str, str]]:
    assert formula[0] + formula[-1] == "()"
    found = [COMPARISON.fullmatch(part) for part in formula[1:-1].split(" || ")]
    assert all(found), formula
    return [one.groups() for one in found]


@pytest.mark.parametrize("line", RULES, ids=lambda line: line.split(";")[0].removeprefix("tag="))
def test_a_rule_can_be_read(line: str) -> None:
    rule = parsed_rule(line)
    assert line.isascii()
    assert re.fullmatch(r"[A-Za-z]\w*", rule["tag"])
    assert rule["priority"] in PRIORITIES
    assert (rule["group"], rule["enabled"]) == (tango_db.GROUP, "1")
    assert all(re.fullmatch(r"\d+", rule[key]) for key in ("on_delay", "off_delay", "shlvd_time"))
    assert rule["message"].strip()


def told_by_condition(entry: Attribute) -> bool:
    return entry.account is not None or entry.name in tango_db._TOLD


def test_there_is_a_rule_for_each_condition_and_each_limit() -> None:
    found = {(one[0], one[1], one[2], one[3]) for line in RULES for one in comparisons(parsed_rule(line)["formula"])}
    wanted = set()
    for device, name in DEVICES.items():
        for attribute, entry in ATTRIBUTES[name].items():
            for side, sign in (("min", "<="), ("max", ">=")):
                for gravity in ("warning", "alarm"):
                    limit = None if told_by_condition(entry) else getattr(entry.limits, f"{side}_{gravity}", None)
                    wanted |= set() if limit is None else {(device, attribute, sign, f"{limit:.10g}")}
            if entry.enum == "AlarmState":
                wanted |= {(device, attribute, "==", "UNACK"), (device, attribute, "==", "ACKED")}
                latching = attribute in ICD.conditions and ICD.conditions[attribute].latching
                wanted |= {(device, attribute, ">=", "8")} if latching else set()
    assert found == wanted
    assert ICD.enums["AlarmState"].index("LTUNK") == 8
