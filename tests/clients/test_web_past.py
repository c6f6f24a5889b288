"""Trends of the operator's page that begin before its server did."""

import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from facade.archive.history import SILENT_US, HistoryArchive, Series
from facade.archive.stores import FolderStore
from facade.kernel.clock import ManualClock
from sdp_facade_clients.web.app import make_app
from sdp_facade_clients.web.doors import Doors
from sdp_facade_clients.web.past import READ_AGAIN, ArchivedTrends
from sdp_facade_clients.web.site import Site
from tests.archive.test_history_archive import MINUTE, RATE, SECOND, archived, record
from tests.clients.test_web_feed import Scene
from tests.support.archives import ICD, START
from tests.support.waiting import HANG, until

DEVICE, _, ATTRIBUTE = RATE.rpartition("/")
BEGIN = START / 1e6


def test_a_page_of_a_server_just_started_has_the_hour_before(tmp_path: Path) -> None:
    """Of the archive comes what the server did not see itself."""
    records = [record(minute * MINUTE, float(minute)) for minute in range(61)]
    invalid = record(61 * MINUTE, 61.0, quality="INVALID")
    clock = ManualClock(BEGIN + 62 * 60)
    past = ArchivedTrends(archived(FolderStore(tmp_path), [*records, invalid]), clock)
    scene = Scene(clock)
    scene.change(7.0, attribute=ATTRIBUTE, device=DEVICE)
    scene.feed.step()
    site = Site("db:10000", ICD, lambda: {DEVICE: "SdpIngestNode"}, clock)
    app = make_app(scene.feed, site, Doors({}, clock), hosts=["localhost"], before=past.before)
    asked = {"device": DEVICE, "attribute": ATTRIBUTE}
    page = TestClient(app, base_url="http://localhost")
    times, values = page.get("/api/trend", params=asked).json()
    assert values == [*map(float, range(2, 61)), None, 7.0, 7.0]
    assert times[:2] == [BEGIN + 120, BEGIN + 180]
    assert times[-3:] == [BEGIN + 61 * 60, clock.now(), clock.now()]
    assert page.get("/api/trend", params=asked | {"device": "no/such/device"}).status_code == 400


def test_what_the_archive_lacks_is_a_gap(tmp_path: Path) -> None:
    records = [record(0, 1), record(SECOND, 2), record(10 * MINUTE, 3)]
    found = archived(FolderStore(tmp_path), records)
    past = ArchivedTrends(found, ManualClock(BEGIN + 3000))
    silent = SILENT_US / 1e6
    assert past.before(DEVICE, ATTRIBUTE, BEGIN + 3000) == (
        [BEGIN, BEGIN + 1, BEGIN + 1, BEGIN + 600, BEGIN + 600 + silent],
        [1.0, 2.0, None, 3.0, None],
    )
    assert past.before(DEVICE, ATTRIBUTE, BEGIN + 1) == ([BEGIN], [1.0])
    assert past.before(DEVICE, "lag", BEGIN + 3000) == ([], [])


class HungArchive(HistoryArchive):
    """An archive that answers when a test lets it, and then with an error."""

    def __init__(self) -> None:
        self.looks, self.free = 0, threading.Event()

    def find(self, name: str, begin: int, end: int) -> Series:
        self.looks += 1
        assert self.free.wait(HANG)
        raise OSError("gone")


def test_one_read_at_a_time_and_none_holds_up_another(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(BEGIN)
    archive = HungArchive()
    past = ArchivedTrends(archive, clock)
    reading = threading.Thread(target=past.before, args=(DEVICE, ATTRIBUTE, BEGIN))
    reading.start()
    until(lambda: archive.looks == 1, "the archive is being read")
    assert past.before(DEVICE, "lag", BEGIN) == ([], [])
    archive.free.set()
    reading.join()
    assert past.before(DEVICE, ATTRIBUTE, BEGIN) == ([], [])
    assert archive.looks == 1
    clock.sleep(READ_AGAIN)
    past.before(DEVICE, ATTRIBUTE, clock.now())
    assert archive.looks == 2
    assert caplog.text.count("gone") == 1
