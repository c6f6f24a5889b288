"""A client in C++ with Tango's own library, as TM software may be: reads, commands and follows the real devices."""

import math
from collections.abc import Iterator

import pytest

from tests.interoperability.conftest import SILENT, switch_off
from tests.interoperability.expectations import FAMILIES
from tests.interoperability.foreign import CPP, LineClient, installed
from tests.support.deployment import Deployment, node_device, subarray_device
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

SUBARRAY = subarray_device(1)
LEFT_OUT = CPP / "left-out"


@pytest.fixture(scope="module")
def client(system: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LineClient]:
    if LEFT_OUT.exists():
        pytest.skip(LEFT_OUT.read_text())
    switch_off([system.proxy(SUBARRAY)])  # other tests may have left it on
    found = LineClient([installed(CPP / "client")], system.tango_host, tmp_path_factory.mktemp("cpp"))
    yield found
    assert found.end() == 0


def test_values_of_each_type_are_read(client: LineClient) -> None:
    assert client.read(node_device(0), "scanID")["value"] == [7]
    assert client.read(node_device(0), "heapRate")["value"][0] > 0
    assert client.read(FAMILIES["SdpQuality"], "antennaNames")["value"][5] == "SKA006"
    image = client.read(FAMILIES["SdpQuality"], "noiseBaseline")
    assert (image["columns"], image["rows"]) == (6, 6)
    assert [math.isnan(value) for value in image["value"]] == [at % 7 == 0 for at in range(36)]
    assert client.read(SUBARRAY, "State")["value"] == ["OFF"]
    assert client.ask("read", node_device(SILENT), "heapRate")["quality"] == "INVALID"


def test_a_command_has_its_outcome_as_an_event(client: LineClient) -> None:
    for name in ("longRunningCommandResult", "State"):
        client.subscribe(SUBARRAY, name)
    done = client.ask("command", SUBARRAY, "On")
    assert done.get("numbers") == [2], done
    until(lambda: [*done["texts"], '[0, "COMPLETED"]'] in client.values("longRunningCommandResult"), "the outcome")
    until(lambda: client.values("State")[-1:] == [["ON"]], "the subarray is on")
    again = client.ask("command", SUBARRAY, "On")
    assert again["reason"] == "API_CommandNotAllowed"
    assert "expected State OFF, got ON" in again["failed"]
    refused = client.ask("command", SUBARRAY, "AssignResources", "{}")
    assert "expected at least one of the keys" in refused["failed"]
    off = client.ask("command", SUBARRAY, "Off")
    until(lambda: [*off["texts"], '[0, "COMPLETED"]'] in client.values("longRunningCommandResult"), "it is off again")


def test_windows_are_followed(client: LineClient) -> None:
    client.subscribe(node_device(0), "latencyMean")
    until(lambda: len(client.values("latencyMean")) >= 4, "the attribute is live")
