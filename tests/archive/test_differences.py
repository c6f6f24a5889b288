"""What differs between two times: tolerances of the interface, the order, and the times that are compared."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from facade.archive.differences import Difference, differences
from facade.archive.history import Point
from facade.archive.stores import FolderStore
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.cli.app import app
from facade.kernel.clock import NEVER
from facade.sdp.device_state import StateMessage, state_record
from facade.sdp.messages import History
from tests.archive.test_history_archive import MINUTE, RATE, record
from tests.archive.test_moment_archive import SUBARRAY, at, put
from tests.support.archives import ICD, archive

NODE = "mid-sdp/ingest/0001"
LOSS, LATENCY = f"{NODE}/packetLossFraction", f"{NODE}/latencyP99"
"""Attributes with the limits 1e-3 and 1e-2, and 0.5 s and 2 s."""


def point(name: str, value: Any, quality: Any = "VALID") -> Point:
    device, _, attribute = name.rpartition("/")
    return NEVER, History(device=device, attribute=attribute, value=value, quality=quality, time=NEVER)


def moved(name: str, before: Any, after: Any) -> float:
    """Return the share by which a value has moved; 0: it does not differ."""
    found = differences(ICD, {name: point(name, before)}, {name: point(name, after)})
    return found[0].moved if found else 0.0


@pytest.mark.parametrize(
    ("name", "before", "after", "expected"),
    [
        # To the next limit in the direction of the change: the warning, and behind it the alarm.
        (LATENCY, 0.3, 0.4, 0.5),
        (LATENCY, 0.3, 0.5, 1.0),
        (LATENCY, 1.0, 1.5, 0.5),
        (LATENCY, 0.3, 0.305, 0.0),
        (LOSS, 0.0, 0.005, 5.0),
        # Behind all limits, or away from them: of the larger value.
        (LATENCY, 4.0, 2.0, -0.5),
        (LATENCY, 0.3, 0.15, -0.5),
        (RATE, 100.0, 96.0, 0.0),
        (RATE, 100.0, 50.0, -0.5),
        (RATE, 0.0, 0.0, 0.0),
        (RATE, 1.0, 10**400, 1.0),
        # Integers are exact, and totals are not compared.
        (f"{NODE}/worstHeapLoss", 100, 99, -0.01),
        (f"{NODE}/heapsTotal", 1, 1000, 0.0),
        ("mid-sdp/bus/0/ingestHeapsConsumed", 1, 1000, 0.0),
        ("mid-sdp/alerts/0/alertsTotal", 1, 1000, 0.0),
        ("mid-sdp/logs/0/severityRecords", [1, 1], [9, 1], 0.0),
        # Not so what grows only while something is wrong.
        ("mid-sdp/alerts/0/alertsMissing", 1, 2, 0.5),
        # What is no number differs or not; numbers that JSON lacks are texts.
        (f"{SUBARRAY}/obsState", "IDLE", "READY", 1.0),
        (f"{SUBARRAY}/obsState", "IDLE", "IDLE", 0.0),
        (RATE, "NaN", "NaN", 0.0),
        (RATE, "NaN", 1.0, 1.0),
        (f"{NODE}/connected", True, False, 1.0),
        ("no/such/device/x", [1.0, 100.0], [1.0, 50.0], -0.5),
        ("no/such/device/x", [1.0], [1.0, 2.0], 1.0),
        ("no/such/device/x", None, 1.0, 1.0),
    ],
)
def test_a_value_differs_by_the_rules_of_the_interface(name: str, before: Any, after: Any, expected: float) -> None:
    assert moved(name, before, after) == pytest.approx(expected)


def test_a_deadband_of_the_interface_is_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = ICD.classes["SdpIngestNode"]
    sampling = replace(kind.sampling, absolute=1.0, relative=0.1)
    monkeypatch.setitem(ICD.classes, "SdpIngestNode", replace(kind, sampling=sampling))
    assert moved(RATE, 100.0, 110.0) == 0.0
    assert moved(RATE, 100.0, 111.0) > 0.0
    assert moved(RATE, 1.0, 2.0) == 0.0


def test_qualities_and_missing_values_differ_and_the_farthest_is_first() -> None:
    state, lag = f"{SUBARRAY}/obsState", f"{NODE}/lag"
    before = {LOSS: point(LOSS, 0.0), LATENCY: point(LATENCY, 0.3), state: point(state, "IDLE"), RATE: point(RATE, 1.0)}
    after = {LOSS: point(LOSS, 0.005), LATENCY: point(LATENCY, 0.35), lag: point(lag, 1, "INVALID")}
    after[RATE] = point(RATE, 1.0, "INVALID")
    found = differences(ICD, before, after)
    assert [(one.name, round(one.moved, 2)) for one in found] == [
        (LOSS, 5.0), (RATE, 1.0), (lag, 1.0), (state, 1.0), (LATENCY, 0.25)
    ]  # fmt: skip
    assert found[3] == Difference(state, "", before[state], None, 1.0)
    assert found[4].unit == "s"
    # Two values that are both old say nothing.
    old = {RATE: point(RATE, 1.0, "INVALID")}
    assert differences(ICD, old, {RATE: point(RATE, 9.0, "INVALID")}) == []


def scans(folder: Path) -> None:
    """Archive a day and ten minutes: a rate that grows, a scan from 120 s to 300 s, and one that failed at 480 s."""
    log = MemoryLog({"history": 1, "state": 1})
    log.append(record(-24 * 60 * MINUTE + 10 * MINUTE, 5.0))
    for minute in range(11):
        log.append(record(minute * MINUTE, float(minute)))
        log.append(record(minute * MINUTE, minute, f"{NODE}/heapsTotal"))
        log.append(record(minute * MINUTE, "SCANNING" if 2 <= minute < 5 else "READY", f"{SUBARRAY}/obsState"))
    for seconds, value in ((0, "READY"), (120, "SCANNING"), (300, "READY"), (420, "SCANNING"), (480, "FAULT")):
        message = StateMessage(device=SUBARRAY, attribute="obsState", value=value, time=at(seconds), origin="c")
        put(log, state_record(message), seconds)
    archive(log, FolderStore(folder), "history", "state")


def printed(folder: Path, *arguments: str) -> str:
    done = CliRunner().invoke(app, ["history", str(folder), *arguments])
    return str(done.exception or done.output)


def test_the_command_compares_with_a_time_yesterday_and_the_last_scan_that_ended_well(tmp_path: Path) -> None:
    scans(tmp_path)
    now = "2027-01-15T08:10:00Z"
    text = printed(tmp_path, "--at", now, "--against", "last-scan")
    first, *_ = text.splitlines()
    assert first == f"2 of 2 attributes differ from the last scan that ended well, of {SUBARRAY}, the farthest first"
    assert f"+1.00  {SUBARRAY}/obsState" in text
    assert "SCANNING -> READY" in text
    assert "2027-01-15 08:04:59 UTC -> 2027-01-15 08:10:00 UTC" in text
    text = printed(tmp_path, "--at", now, "--against", "yesterday", "--csv")
    assert text.splitlines()[1:] == [
        f"{SUBARRAY}/obsState,not recorded,READY,+1.00,",
        f"{RATE},5.0,10.0,+0.50,records/s",
    ]
    text = printed(tmp_path, "--at", now, "--against", "2027-01-15T08:09:00Z")
    assert [line.split()[:2] for line in text.splitlines()[2:]] == [["+0.10", RATE]]


def test_a_comparison_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    scans(tmp_path)
    for arguments, said in (
        (("--against", "yesterday"), "--at with at most --against"),
        (("--at", "2027-01-15T08:04:00Z", "--against", "last-scan"), "expected a scan that ended well in the 30 days"),
        (("--at", "2027-01-15T08:10:00Z", "--against", "2027-01-16"), "expected a time from"),
        (("--at", "2027-01-15T08:10:00Z", "--against", "tomorrow"), "against: expected a time such as"),
    ):
        assert said in printed(tmp_path, *arguments), arguments
