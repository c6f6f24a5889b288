"""The dashboards of docker/taranta name only devices, attributes and commands that the ICD has."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from facade.kernel.config import Settings
from facade.kernel.icd.model import DeviceClass
from facade.kernel.instances import registration
from facade.kernel.names import SERVER
from tests.support.docker import DOCKER, ICD

pytestmark = pytest.mark.needs("repository")

FILES = sorted((DOCKER / "taranta").glob("*.wj"))
STANDARD = {"state", "status"}


def classes() -> dict[str, DeviceClass]:
    servers = registration(ICD, Settings())["servers"][SERVER]
    return {
        device: ICD.classes[name] for one in servers.values() for name, devices in one.items() for device in devices
    }


def attributes(device_class: DeviceClass) -> dict[str, str]:
    return {one.name.lower(): one.type for one in device_class.attributes} | dict.fromkeys(STANDARD, "DevState")


def commands(device_class: DeviceClass) -> dict[str, bool]:
    return {one.name: bool(one.argument) for one in (*device_class.commands, *device_class.queries)}


def within(value: Any, key: str) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get(key), str) and "device" in value:
            yield value
        for one in value.values():
            yield from within(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from within(one, key)


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    file: Path = request.param
    return json.loads(file.read_text())


def test_every_attribute_is_one_of_the_device(dashboard: dict[str, Any]) -> None:
    there, found = classes(), list(within(dashboard["widget"], "attribute"))
    assert found
    for one in found:
        assert one["attribute"] in attributes(there[one["device"]]), one
        assert one["label"], one


def test_every_command_is_one_of_the_device_and_is_confirmed(dashboard: dict[str, Any]) -> None:
    there = classes()
    for widget in dashboard["widget"]:
        for one in within(widget, "command"):
            takes = commands(there[one["device"]])[one["command"]]
            assert one["acceptedType"] == ("DevString" if takes else "DevVoid"), one
            assert widget["inputs"]["requireConfirmation"], one
