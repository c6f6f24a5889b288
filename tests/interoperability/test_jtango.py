"""JTango, which Jive, Astor and ATK panels are made of: a Java client of the real devices."""

import math
from collections.abc import Iterator

import pytest

from tests.interoperability.conftest import SILENT
from tests.interoperability.events import ONLINE, await_events
from tests.interoperability.expectations import FAMILIES, Shown, expected
from tests.interoperability.foreign import JTANGO, LineClient, installed
from tests.support.deployment import ICD, MASTER, Deployment, node_device, subarray_device
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

SUBARRAY = subarray_device(2)


@pytest.fixture(scope="module")
def jive(system: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LineClient]:
    argv = ["java", "-cp", f"{installed(JTANGO / 'classes')}:{JTANGO}/libs/*", "Client"]
    found = LineClient(argv, system.tango_host, tmp_path_factory.mktemp("jtango"))
    yield found
    assert found.end() == 0


def test_jive_shows_what_the_icd_says(jive: LineClient) -> None:
    devices = jive.ask("devices", "mid-sdp/*/*")["devices"]
    assert set(devices) >= set(FAMILIES.values())
    for device in FAMILIES.values():
        wanted = {name.rpartition("/")[2] for name in expected() if name.startswith(f"{device}/")}
        assert set(jive.ask("attributes", device)["attributes"]) >= {*wanted, "State", "Status"}
    shown, unreadable = {}, {}
    for name in expected():
        device, _, attribute = name.rpartition("/")
        info = jive.ask("info", device, attribute)
        shown[name] = Shown(info["label"], info["unit"], info["type"], tuple(info["labels"]))
        found = jive.ask("read", device, attribute)
        if "failed" in found or (found["quality"] == "INVALID") == ("value" in found):
            unreadable[name] = found
    assert shown == expected()
    assert unreadable == {}


def test_limits_are_shown(jive: LineClient) -> None:
    info = jive.ask("info", node_device(0), "latencyP99")
    assert (info["unit"], info["format"], info["max_warning"], info["max_alarm"]) == ("s", "%.6f", "0.5", "2.0")


def test_values_images_and_stale_ones(jive: LineClient) -> None:
    assert jive.read(node_device(0), "scanID")["value"] == [7]
    assert jive.read(FAMILIES["SdpQuality"], "antennaNames")["value"][5] == "SKA006"
    image = jive.read(FAMILIES["SdpQuality"], "noiseBaseline")
    assert (image["columns"], image["rows"]) == (6, 6)
    assert [math.isnan(value) for value in image["value"]] == [at % 7 == 0 for at in range(36)]
    gains = jive.read(FAMILIES["SdpCalibration"], "gainPhase")
    assert (gains["columns"], gains["rows"], len(gains["value"])) == (64, 8, 512)
    stale = jive.ask("read", node_device(SILENT), "heapRate")
    assert stale["quality"] == "INVALID"
    assert "value" not in stale
    warned = lambda: jive.ask("read", MASTER, "heapRate")["quality"] == "WARNING"  # noqa: E731
    until(warned, "a node is missing from the sum")


def test_jive_acts(jive: LineClient) -> None:
    for name in ("longRunningCommandResult", "State", "adminMode"):
        jive.subscribe(SUBARRAY, name)

    def set_mode(mode: int) -> None:
        assert jive.ask("write", SUBARRAY, "adminMode", mode)["value"] == [mode]

    await_events(set_mode, lambda: [mode for value in jive.values("adminMode") for mode in value])
    refused = jive.ask("write", SUBARRAY, "adminMode", ICD.enums["AdminMode"].index("RESERVED"))
    assert "control model does not lead to RESERVED" in refused["failed"]
    set_mode(ONLINE)

    done = jive.ask("command", SUBARRAY, "On")
    assert done.get("numbers") == [2], done
    until(lambda: [*done["texts"], '[0, "COMPLETED"]'] in jive.values("longRunningCommandResult"), "the outcome")
    until(lambda: jive.values("State")[-1:] == [["ON"]], "the subarray is on")
    again = jive.ask("command", SUBARRAY, "On")
    assert again["reason"] == "API_CommandNotAllowed"
    assert "expected State OFF, got ON" in again["failed"]


def test_a_panel_is_live(jive: LineClient) -> None:
    jive.subscribe(node_device(0), "latencyMean")
    jive.subscribe(FAMILIES["SdpQuality"], "noiseAntenna")
    for name in ("latencyMean", "noiseAntenna"):
        until(lambda name=name: len(jive.values(name)) >= 4, f"{name} is live")
    assert len(jive.values("noiseAntenna")[-1]) == 6
    jive.subscribe(node_device(SILENT), "heapRate")
    until(lambda: jive.values("heapRate"), "the first event")
    (stale, *_) = [event for event in jive.events if event["event"] == "heapRate"]
    assert stale["quality"] == "INVALID"
    refused = jive.ask("subscribe", FAMILIES["SdpQuality"], "noiseBaseline")
    assert refused["reason"] == "API_AttributePollingNotStarted"
