"""TangoGQL, which is what a Taranta dashboard talks to: queries, mutations and subscriptions over the real devices."""

import json
import math
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from facade.infra.ports import choose_port
from tests.interoperability.conftest import SILENT
from tests.interoperability.events import ENGINEERING, ONLINE, await_events
from tests.interoperability.expectations import FAMILIES, expected
from tests.interoperability.foreign import HERE, TANGOGQL, environment, installed
from tests.support.deployment import ICD, MASTER, Deployment, node_device, subarray_device
from tests.support.processes import Running
from tests.support.waiting import HANG, until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

SUBARRAY = subarray_device(1)
QUALITY, CALIBRATION = FAMILIES["SdpQuality"], FAMILIES["SdpCalibration"]
WITH_NAN = {
    "antennaamplitude",
    "antennaphaserms",
    "gainamplitude",
    "gainphase",
    "nodefigures",
    "noisebaseline",
    "visibilityamplitude",
}
"""Arrays that hold NaN, for what is flagged or does not exist. TangoGQL's answers make null of it; in the frames of its
subscriptions it is NaN, which no browser can parse."""

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A proxy that this machine may use is none for its own addresses."""


class Dashboard:
    """Asks a TangoGQL, and follows attributes over it."""

    def __init__(self, deployment: Deployment, folder: Path) -> None:
        self._port = choose_port()
        self._folder = folder
        self._settings = environment(deployment.tango_host, folder)
        argv = [
            installed(TANGOGQL / "bin/uvicorn"),
            "tangogql.main:app",
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
        ]
        self.processes = [self._start("tangogql", argv, TANGOGQL_NO_AUTH="true")]
        until(self._answers, "TangoGQL answers")

    def ask(self, query: str, **variables: object) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/db", body, {"Content-Type": "application/json"}
        )
        with DIRECT.open(request, timeout=HANG) as answer:
            found = json.load(answer)
        assert "errors" not in found, found["errors"]
        return found["data"]

    def follow(self, *names: str) -> "Subscription":
        script = str(HERE / "tangogql_follow.py")
        argv = [installed(TANGOGQL / "bin/python"), script, str(self._port), *names]
        process = self._start(f"follow-{len(self.processes)}", argv)
        self.processes.append(process)
        until(lambda: "connection_ack" in process.text, "TangoGQL takes the subscription")
        return Subscription(process.log)

    def _answers(self) -> bool:
        assert self.processes[0].running, self.processes[0].tail()
        try:
            return bool(self.ask("{ tangoHost }")["tangoHost"])
        except OSError:
            return False

    def _start(self, name: str, argv: list[str], **more: str) -> Running:
        return Running.start(name, argv, log=self._folder / f"{name}.log", env={**self._settings, **more})


class Subscription:
    """What has come of some attributes so far, frame by frame."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = 0
        self._frames: dict[str, list[dict[str, Any]]] = {}

    def __call__(self, name: str) -> list[dict[str, Any]]:
        return self.all.get(name.lower(), [])

    @property
    def all(self) -> dict[str, list[dict[str, Any]]]:
        with self._log.open("rb") as log:
            log.seek(self._read)
            whole, end, _ = log.read().rpartition(b"\n")
        self._read += len(whole + end)
        for line in whole.splitlines():
            message = json.loads(line)
            if message["type"] == "data":
                frame = message["payload"]["data"]["attributes"]
                name = frame["fullName"].removeprefix("tango://").partition("/")[2]
                self._frames.setdefault(name, []).append(frame)
        return self._frames


@pytest.fixture(scope="module")
def dashboard(system: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    found = Dashboard(system, tmp_path_factory.mktemp("tangogql"))
    yield found
    for process in found.processes:
        process.kill()


def test_a_dashboard_shows_what_the_icd_says(dashboard: Dashboard) -> None:
    devices = dashboard.ask('{ devices(pattern: "mid-sdp/*") { name connected deviceClass } }')["devices"]
    assert {d["deviceClass"]: d["name"] for d in reversed(devices)} == FAMILIES
    assert [d["name"] for d in devices if not d["connected"]] == []
    wanted_states = {MASTER: "ON", node_device(0): "ON", node_device(SILENT): "STANDBY"}

    def states() -> dict[str, str]:
        found = dashboard.ask('{ devices(pattern: "mid-sdp/*") { name state } }')["devices"]
        return {one["name"]: one["state"] for one in found if one["name"] in wanted_states}

    until_equal(states, wanted_states, "the states")
    wanted = expected()
    fields = "name device label unit datatype dataformat enumLabels value quality timestamp description"
    query = f"query($names: [String]!) {{ attributes(fullNames: $names) {{ {fields} }} }}"
    found = dashboard.ask(query, names=list(wanted))["attributes"]
    shown = {
        f"{a['device']}/{a['name']}": (a["label"], a["unit"], a["datatype"], tuple(a["enumLabels"])) for a in found
    }
    assert shown == wanted
    for one in found:
        assert one["description"]
        assert one["timestamp"] > 0, one
        empty = one["value"] is None or one["value"] == []
        assert empty or one["quality"] != "ATTR_INVALID", one


def test_values_are_typed_and_stale_ones_are_empty(dashboard: Dashboard) -> None:
    names = [f"{QUALITY}/noiseBaseline", f"{QUALITY}/antennaNames", f"{MASTER}/adminMode", f"{MASTER}/healthInfo"]
    names += [f"{node_device(SILENT)}/latencyP99", f"{node_device(0)}/latencyP99", f"{node_device(0)}/scanID"]
    query = "query($n: [String]!) { attributes(fullNames: $n) { value quality unit maxalarm writevalue writable } }"

    def read() -> list[dict[str, Any]]:
        """Return what is shown while node 0 and the metrics come: what stood still for 3 s is stale for a moment."""
        found = dashboard.ask(query, n=names)["attributes"]
        return found if all((one["quality"] == "ATTR_INVALID") == (at == 4) for at, one in enumerate(found)) else []

    image, antennas, mode, reasons, stale, latency, scan = until(read, "all have values but the stale one")
    assert [len(row) for row in image["value"]] == [6] * 6
    assert all((value is None) == (x == y) for y, row in enumerate(image["value"]) for x, value in enumerate(row))
    assert antennas["value"] == [f"SKA{number:03d}" for number in range(1, 7)]
    assert (mode["value"], mode["writevalue"], mode["writable"]) == (0, 0, "READ_WRITE")
    assert any(f"ingest/{SILENT:04d} (node {SILENT}) sends no records" in reason for reason in reasons["value"])
    assert (stale["value"], stale["quality"]) == (None, "ATTR_INVALID")
    assert 0 < latency["value"] < 60
    assert (latency["unit"], latency["maxalarm"]) == ("s", "2.0")
    assert (scan["value"], scan["quality"]) == (7, "ATTR_VALID")


def test_a_dashboard_acts(dashboard: Dashboard) -> None:
    result, mode = (f"{SUBARRAY}/{name}" for name in ("longRunningCommandResult", "adminMode"))
    frames = dashboard.follow(result, mode)
    until(lambda: frames(result) and frames(mode), "the first values")
    write = """mutation($d: String!, $v: ScalarTypes!) {
      r: setAttributeValue(device: $d, name: "adminMode", value: $v) {
        ok message valueBefore attribute { value writevalue } } }"""

    def set_mode(value: int) -> None:
        done = dashboard.ask(write, d=SUBARRAY, v=value)["r"]
        assert (done["ok"], done["valueBefore"]) == (True, ONLINE + ENGINEERING - value), done
        assert done["attribute"] == {"value": value, "writevalue": value}

    await_events(set_mode, lambda: [frame["value"] for frame in frames(mode)])
    refused = dashboard.ask(write, d=SUBARRAY, v=ICD.enums["AdminMode"].index("RESERVED"))["r"]
    assert not refused["ok"]
    assert "control model does not lead to RESERVED" in refused["message"][0]
    assert dashboard.ask(write, d=SUBARRAY, v=ONLINE)["r"]["ok"]

    execute = """mutation($d: String!, $c: String!, $a: ScalarTypes) {
      r: executeCommand(device: $d, command: $c, argin: $a) { ok message output } }"""
    done = dashboard.ask(execute, d=SUBARRAY, c="On")["r"]
    assert done["ok"], done
    (code,), (command_id,) = done["output"]
    assert code == 2  # QUEUED
    outcome = [command_id, '[0, "COMPLETED"]']
    until(lambda: outcome in [frame["value"] for frame in frames(result)], "the outcome")
    refused = dashboard.ask(execute, d=SUBARRAY, c="AssignResources", a="{}")["r"]
    assert not refused["ok"]
    assert "expected at least one of the keys resources" in refused["message"][0]


def test_a_dashboard_follows(dashboard: Dashboard) -> None:
    events = [f"{MASTER}/State", f"{MASTER}/heapRate", f"{node_device(0)}/latencyMean", f"{QUALITY}/noiseAntenna"]
    polled = [f"{QUALITY}/noiseBaseline", f"{CALIBRATION}/gainPhase"]
    silent = f"{node_device(SILENT)}/heapRate"
    frames = dashboard.follow(*events, *polled, silent)
    until(lambda: all(map(frames, (*events, *polled, silent))), "a frame of each")
    for name in (events[2], events[3], polled[0]):
        until(lambda name=name: len({f["timestamp"] for f in frames(name)}) >= 3, f"{name} is live")
    stale = frames(silent)[-1]
    assert (stale["value"], stale["quality"], stale["error"]) == (None, "ATTR_INVALID", None)
    warned = lambda: frames(f"{MASTER}/heapRate")[-1]["quality"] == "ATTR_WARNING"  # noqa: E731
    until(warned, "a node is missing from the sum")
    until(lambda: frames(f"{MASTER}/State")[-1]["value"] == "ON", "the State of SDP")
    assert [len(row) for row in frames(f"{CALIBRATION}/gainPhase")[-1]["value"]] == [64] * 8
    metrics = dashboard.ask("{ metrics { subscribedAttrs { name eventType } } }")["metrics"]["subscribedAttrs"]
    kinds = {one["name"]: one["eventType"] for one in metrics}
    assert {name: kinds[name.lower()] for name in (*events, *polled)} == {
        **dict.fromkeys(events, "CHANGE_EVENT"),
        **dict.fromkeys(polled, "POLLING"),
    }


def test_every_attribute_can_be_followed(dashboard: Dashboard) -> None:
    names = {name.lower() for name in expected()}
    frames = dashboard.follow(*names)
    until(lambda: set(frames.all) >= names, "a frame of each attribute")
    came = [frame for found in frames.all.values() for frame in found]
    # Tango's client gives up a server whose heartbeat is a second late, and subscribes to it again.
    assert {frame["error"]["reason"] for frame in came if frame["error"]} <= {"API_EventTimeout"}
    assert {frame["attribute"] for frame in came if holds_nan(frame["value"])} <= WITH_NAN


def holds_nan(value: object) -> bool:
    if isinstance(value, list):
        return any(map(holds_nan, value))
    return isinstance(value, float) and math.isnan(value)
