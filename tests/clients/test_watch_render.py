"""What the live view shows of recorded events; no server, no terminal."""

import io
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from facade.kernel.icd.load import load
from facade.kernel.reading import Quality
from sdp_facade_clients.events import DeviceEvent, EventRecord
from sdp_facade_clients.terminal import (
    ALERTS,
    BUS,
    CALIBRATION,
    MASTER,
    NODE,
    SHOWN,
    SUBARRAY,
    Scene,
    render,
    rows_in,
    summary,
)

ROOT = Path(__file__).parents[2]
NOW = 1_800_000_000.0
ICD = load()
_OVERRUN = (
    '{"condition":"receiveOverrun","source":"receive/1","state":"UNACK","severity":"ALARM",'
    '"occurrence":1,"text":"drops"}'
)
_LOW = (
    '{"condition":"storageLow","source":"buffer/0","state":"LTUNK","severity":"WARNING","occurrence":2,"text":"31 TB"}'
)
VALUES: Mapping[str, Mapping[str, Any]] = {
    NODE: {
        "State": "ON",
        "heapRate": 31_800.0,
        "packetLossFraction": 0.00123,
        "flaggedFractionMean": 0.0456,
        "latencyP50": 0.0021,
        "latencyP99": 0.0987,
        "heapsMissing": 17,
        "heapsDuplicated": 5,
        "heapsLate": 4_500,
        "heapsTotal": 1_234_567,
    },
    MASTER: {
        "State": "ON",
        "healthState": 1,
        "healthInfo": ("1 of 4 ingest nodes silent: 2",),
        "nodesReporting": 3,
        "nodesExpected": 4,
        "heapRate": 95_400.0,
    },
    BUS: {
        "State": "ON",
        "ingestHeapsRate": 95_321.0,
        "ingestHeapsUsed": 7_654_321,
        "ingestHeapsLag": 642,
        "ingestHeapsLate": 29,
        "workersAlive": 2,
        "ingestHeapsDeadLettered": 961,
        "connected": True,
        "ingestHeapsBalance": 0,
        "deadLetterReasons": ("ingest.heaps schema 310", "ingest.summary other 1"),
        "lastError": "2027-01-15T08:00:00+00:00 ingest.heaps: schema: $.seq: too small",
    },
    ALERTS: {
        "State": "ALARM",
        "alertSequence": 1_042,
        "activeCount": 2,
        "unacknowledgedCount": 5,
        "shelvedCount": 4,
        "alertRate": 0.5,
        "flood": False,
        "activeAlerts": (_OVERRUN,),
        "unacknowledgedAlerts": (
            _OVERRUN,
            _LOW,
        ),
    },
    CALIBRATION: {
        "State": "ON",
        "solutionId": "gains-7",
        "kind": "gains",
        "antennas": ("SKA001", "SKA002"),
        "channels": 4_096,
        "flaggedFraction": 0.021,
        "snr": 31.4,
        "age": 12.0,
        "transferTime": 0.8,
        "assembling": ('{"table":"t8","product":"subarray/01/gains","received":7000000,"size":20000000}',),
        "lastFailure": "",
    },
    SUBARRAY: {
        "State": "ON",
        "obsState": 3,
        "healthState": 0,
        "scanID": 7,
        "lastCommand": "1800000000.1_42_Configure Configure IN_PROGRESS",
        "longRunningCommandProgress": ("1800000000.1_42_Configure", "75"),
    },
}


def record(value: Any, quality: Quality = Quality.VALID, age: float = 0.4) -> EventRecord:
    event = DeviceEvent(value=value, quality=quality, time=NOW - age - 0.3, received=NOW - age)
    return EventRecord(newest=event)


def scene(
    nodes: int = 4,
    quality: Quality = Quality.VALID,
    subarrays: int = 2,
    *,
    alerts: bool = False,
    calibrated: int = 0,
    **changed: Any,
) -> Scene:
    devices = {
        NODE: [f"mid-sdp/ingest/{number:04d}" for number in range(nodes)],
        MASTER: ["mid-sdp/control/0"],
        BUS: ["mid-sdp/bus/0"],
        **({ALERTS: ["mid-sdp/alerts/0"]} if alerts else {}),
        CALIBRATION: [f"mid-sdp/calibration/{number:02d}" for number in range(1, calibrated + 1)],
        SUBARRAY: [f"mid-sdp/subarray/{number:02d}" for number in range(1, subarrays + 1)],
    }
    records = {
        device: {
            name: record(changed.get(name, value), quality if name in changed or not changed else Quality.VALID)
            for name, value in VALUES[device_class].items()
        }
        for device_class, names in devices.items()
        for device in names
    }
    return Scene(
        tango_host="tango.example:10000",
        devices=devices,
        records=records,
        now=NOW,
        health_labels=ICD.enums["HealthState"],
        obs_states=ICD.enums["ObsState"],
    )


def shown(view: Scene, *, colour: bool = False, rows: int = 40, height: int = 30, width: int = 100) -> str:
    console = Console(
        width=width,
        height=height,
        file=io.StringIO(),
        force_terminal=colour,
        color_system="truecolor" if colour else None,
    )
    with console.capture() as capture:
        console.print(render(view, rows))
    return capture.get()


@pytest.mark.parametrize(
    ("health", "reasons", "text"),
    [
        (0, (), "no complaints"),
        (1, (), "health is DEGRADED"),
        (1, ("a", "b"), "health reasons (2)"),
    ],
)
def test_nothing_is_to_complain_of_only_while_health_is_ok(health, reasons, text):
    found = shown(scene(healthState=health, healthInfo=reasons))
    assert text in found
    assert ("no complaints" in found) is (health == 0)


def test_the_attributes_that_it_needs_are_in_the_icd() -> None:
    for name, attributes in SHOWN.items():
        known = {attribute.name for attribute in ICD.classes[name].attributes} | {"State"}
        assert set(attributes) <= known
        assert set(attributes) == set(VALUES[name])


def test_all_values_are_shown_within_a_small_terminal() -> None:
    text = shown(scene())
    lines = text.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    for value in ("31,800", "0.123%", "4.56%", "2.1", "98.7", "17", "5", "4,500", "1,234,567", "0.7"):
        assert value in text
    for value in ("DEGRADED", "3 of 4", "95,400 heaps/s", "tango.example:10000", "1 of 4 ingest nodes silent: 2"):
        assert value in text
    for value in ("95,321", "7,654,321", "642", "961", "schema 310", "$.seq: too small"):
        assert value in text
    assert [line.split()[0] for line in lines if line.startswith("00")] == ["0000", "0001", "0002", "0003"]
    assert "…" not in text


def _silenced(*classes: str) -> Scene:
    view = scene(alerts=True)
    return replace(view, silent={device: NOW - 83.0 for name in classes for device in view.devices[name]})


def test_values_of_a_device_that_does_not_answer_do_not_look_new() -> None:
    text = shown(_silenced(NODE), colour=True)
    assert "no answer from mid-sdp/ingest/0000 and 3 more since 07:58:37 UTC" in text
    for line in (line for line in text.splitlines() if "000" in line and "31,800" in line):
        assert "\x1b[2;9mON" in line
        assert "\x1b[2;9m31,800" in line
    assert len(shown(_silenced(NODE)).splitlines()) == len(shown(scene(alerts=True)).splitlines())


def test_totals_of_a_device_that_does_not_answer_are_a_dash() -> None:
    for text in (shown(_silenced(MASTER, BUS, ALERTS)), summary(_silenced(MASTER, BUS, ALERTS))):
        for figure in ("95,400", "3 of 4", "3/4", "642", "DEGRADED", "nothing to see to"):
            assert figure not in text
        assert re.search("no answer from mid-sdp/alerts/0 and 2 more since", text, re.IGNORECASE)


@pytest.mark.parametrize(
    ("quality", "codes"),
    [(Quality.WARNING, "\x1b[33m"), (Quality.ALARM, "\x1b[1;31m"), (Quality.INVALID, "\x1b[2;9m"), (Quality.VALID, "")],
)
def test_quality_is_seen(quality: Quality, codes: str) -> None:
    text = shown(scene(quality=quality, heapRate=777.0), colour=True)
    found = [line for line in text.splitlines() if "0002" in line]
    assert len(found) == 1
    assert (f" {codes}777\x1b[0m " if codes else " 777 ") in found[0]


def test_nothing_heard_at_all_is_no_error() -> None:
    view = scene()
    silent = Scene(
        tango_host=view.tango_host, devices=view.devices, records={}, now=NOW, health_labels=view.health_labels
    )
    assert "nothing is heard of SdpMaster" in shown(silent)
    assert "0003   -" in shown(silent)
    assert "nodes -/-" in summary(silent)
    nobody = Scene(tango_host="", devices={}, records={}, now=NOW, health_labels=view.health_labels)
    assert "SDP" in shown(nobody)


def test_a_subarray_has_a_row_with_its_last_command() -> None:
    lines = [line.split() for line in shown(scene()).splitlines()]
    assert ["02", "ON", "CONFIGURING", "OK", "7", "Configure", "IN_PROGRESS", "75", "%"] in lines
    idle = scene(lastCommand="", longRunningCommandProgress=(), scanID=0, obsState=0)
    assert ["01", "ON", "EMPTY", "OK", "-", "-", "-", "-"] in [line.split() for line in shown(idle).splitlines()]
    # The progress of a command that is not the last one says nothing of the last one.
    other = scene(longRunningCommandProgress=("another", "75"))
    assert ["01", "ON", "CONFIGURING", "OK", "7", "Configure", "IN_PROGRESS", "-"] in [
        line.split() for line in shown(other).splitlines()
    ]


def test_a_label_that_only_a_newer_server_has_is_shown_as_its_number() -> None:
    newer = scene(healthState=47, obsState=48)
    assert "health 47 " in shown(newer)
    assert ["02", "ON", "48", "47"] in [line.split()[:4] for line in shown(newer).splitlines()]
    assert ("SDP ON 47 " in summary(newer), "02 48" in summary(newer)) == (True, True)


def test_alarms_that_need_an_operator_are_shown_once() -> None:
    text = shown(scene(alerts=True), height=40)
    assert "2 active, 5 not acknowledged, 4 shelved, 1,042 so far" in text
    assert text.count("receiveOverrun of receive/1") == 1
    assert "LTUNK WARNING  storageLow of buffer/0  31 TB" in text
    assert "nothing to see to" in shown(scene(alerts=True, activeAlerts=(), unacknowledgedAlerts=()), height=40)
    many = tuple(VALUES[ALERTS]["activeAlerts"][0].replace("receive/1", f"receive/{n}") for n in range(9))
    assert "7 more: sdp-facade alerts list" in shown(scene(alerts=True, activeAlerts=many), height=40)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_figure_of_a_node_is_cut_off_on_a_narrow_terminal(width: int) -> None:
    text = shown(scene(alerts=True, heapsTotal=123_456_789), width=width, height=40)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith("000")]
    assert [row.split()[0] for row in rows] == ["0000", "0001", "0002", "0003"]
    assert not [line for line in lines if line.startswith(("node", "000")) and "…" in line]
    assert all("123,456,789" in row and "31,800" in row for row in rows)
    assert ("on a wider terminal: " in text) is (width < 120)
    assert lines[0].startswith("SDP ON  health DEGRADED  nodes 3 of 4")


def test_the_alarms_that_wait_for_somebody_come_first_and_each_has_its_line() -> None:
    long = _OVERRUN.replace("drops", "drops " * 40)
    waiting = tuple(long.replace("receive/1", f"receive/{n}") for n in range(3))
    seen = tuple(long.replace("UNACK", "ACKED").replace("receive/1", f"seen/{n}") for n in range(3))
    text = shown(scene(alerts=True, activeAlerts=(*seen, *waiting), unacknowledgedAlerts=waiting), width=80, height=40)
    assert [text.count(f"UNACK ALARM    receiveOverrun of receive/{n}  drops") for n in range(3)] == [1, 1, 1]
    assert "3 more: sdp-facade alerts list" in text


@pytest.mark.needs("repository")
def test_the_picture_of_the_pages_agrees_with_itself() -> None:
    """D18: the rates of its nodes make that of the system, and its complaints are those of its panels."""
    rows: dict[float, dict[float, str]] = {}
    picture = (ROOT / "docs" / "images" / "watch.svg").read_text()
    for x, y, text in re.findall(r'<text class="[^"]+" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', picture):
        rows.setdefault(float(y), {})[float(x)] = text.replace("&#160;", " ")
    lines = [" ".join(" ".join(text for _, text in sorted(row.items())).split()) for row in rows.values()]
    nodes = [line.split() for line in lines if re.match(r"00\d\d ", line)]
    total = next(int(found[1].replace(",", "")) for line in lines if (found := re.search(r"([\d,]+) heaps/s", line)))
    rates = [int(row[2].replace(",", "")) for row in nodes]
    assert rates
    assert abs(sum(rates) - total) <= 1 + len(rates) / 2, "each is rounded"
    text = "\n".join(lines)
    assert ("no complaints" in text) == ("health OK" in text) == ("ALARM" not in text)


def test_solutions_are_shown_with_what_is_under_way() -> None:
    view = scene(calibrated=2)
    line = next(line for line in shown(view).splitlines() if "gains-7" in line)
    for text in ("01", "ON", "2 antennas x 4,096 channels", "2.1% flagged", "snr 31", "12 s old", "gains 35%"):
        assert text in line
    assert len(shown(view, rows=rows_in(40, 2, calibrated=2)).splitlines()) <= 40
