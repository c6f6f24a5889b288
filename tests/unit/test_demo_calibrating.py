"""The demo's account of tables, with a device and a subscriber that are played."""

import hashlib
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from clients.events import DeviceEvent, EventRecord
from clients.scene import CALIBRATION
from facade.clock import ManualClock
from facade.reading import Quality
from proving.demo.flows import TABLES, CalibrationScenario
from proving.demo.report import DemoReport
from proving.progress import ProgressLine

DEVICE = "mid-sdp/calibration/01"


class Subscriber:
    """Gets the newest table some time after it can be read: as an event, or when Tango has connected again."""

    def __init__(self, clock: ManualClock, digest: str, *, after: float, connects: bool = False) -> None:
        self._clock, self._due, self._connects = clock, clock.now() + after, connects
        self._event = DeviceEvent(value=digest, quality=Quality.VALID, time=self._due, received=self._due)

    def records(self) -> dict[str, dict[str, EventRecord]]:
        if self._clock.now() < self._due:
            return {DEVICE: {"digest": EventRecord()}}
        events = () if self._connects else (self._event,)
        return {DEVICE: {"digest": EventRecord(newest=self._event, events=events)}}


@pytest.mark.parametrize(("after", "connects", "found"), [(0.2, False, 1), (5.0, True, 1), (float("inf"), False, 0)])
def test_the_event_of_the_newest_table_may_come_after_its_value_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: float, connects: bool, found: int
) -> None:
    clock, digests = ManualClock(1_800_000_000.0), []
    for number in range(TABLES):
        (tmp_path / f"table-{number}").write_bytes(bytes([number]))
        digests.append(hashlib.sha256(bytes([number])).hexdigest())
    value = SimpleNamespace(valid=True, value=digests[-1], time=clock.now())
    side = SimpleNamespace(devices={CALIBRATION: [DEVICE]}, read=lambda device, names: {"digest": value})
    monkeypatch.setattr(CalibrationScenario, "_read_announcements", lambda self: None)
    monkeypatch.setattr(CalibrationScenario, "_fetched", lambda self, newest: True)
    report = DemoReport(began=clock.now(), nodes=1, rate=1.0, seconds=1.0)
    demo: Any = SimpleNamespace(
        tango_side=side,
        tables_folder=tmp_path,
        progress=ProgressLine(Console(file=io.StringIO()), clock),
        report=report,
        recorder=Subscriber(clock, digests[-1], after=after, connects=connects),
    )
    CalibrationScenario(demo).account()
    lines = {line.what: line for line in report.table_account}
    assert lines["the newest, shown by an event"].found == found
    assert any("the subscriber is not connected" in failure for failure in report.failures) == (not found)
