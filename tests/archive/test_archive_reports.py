"""Reports of an archive worker: how far it is behind, how fast it writes, its errors, and the space of its disk."""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from facade.archive.files import ArchiveError
from facade.archive.reports import BEHIND, DISK_LOW, FAILING, REPORT_EACH, REPORTS, ArchiveAlarms, ArchiveReporter
from facade.archive.stores import FolderStore
from facade.archive.worker import ArchiveLimits, ArchiveWorker
from facade.flows.alerts.messages import Alert, decode_alert
from facade.flows.alerts.source import AlertSource
from facade.kernel.bus.memory import MemoryBus, MemoryLog
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.errors import NotSent
from facade.sdp.device_state import StateMessage, decode_state
from tests.support.archives import ICD, START, TOPIC, faults, kept, record, worker

DEVICE = "mid-sdp/archive/0"
AGE = 60.0


class Disk(FolderStore):
    """A folder on a disk of 1000 bytes, which may be full."""

    free = 600
    full = False

    def write(self, name: str, content: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(name, content)

    def space(self) -> tuple[int, int]:
        return self.free, 1000


class AwayBus(MemoryBus):
    """May not confirm what is written."""

    away = False

    def send_durably(self, record: Record, timeout: float) -> None:
        if self.away:
            raise NotSent("no broker")
        super().send_durably(record, timeout)


class Bench:
    """A worker, and the bus that it reports to."""

    def __init__(self, store: Disk, keep: Mapping[str, float] | None = None) -> None:
        self.keep = keep
        self.store, self.clock = store, ManualClock(START / 1e6)
        self.log, self.bus = MemoryLog({TOPIC: 1}, self.clock), MemoryLog({REPORTS: 1, "alerts": 1}, self.clock)
        self.writer = AwayBus(self.bus)
        self.worker = self.start()

    def start(self, bus: MemoryBus | None = None, *topics: str) -> ArchiveWorker:
        alarms = ArchiveAlarms(AlertSource("archive/0", self.writer, self.clock, icd=ICD), ICD.conditions, age=AGE)
        reporter = ArchiveReporter(DEVICE, "archive-0", self.writer.send, alarms, self.clock, age=AGE)
        limits = ArchiveLimits(age=AGE)
        more: Any = {"limits": limits, "reporter": reporter, "keep": self.keep}
        return worker(bus or self.log, self.store, *topics, clock=self.clock, **more)

    def write(self, value: bytes | None = b"v") -> None:
        self.log.append(record(self.clock.now_us(), value))

    def run(self, seconds: float) -> None:
        """Let the worker run for some time."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.worker.step()
            self.clock.sleep(1.0)

    @property
    def reports(self) -> list[StateMessage]:
        found = [decode_state(one.value) for one in self.bus.records(REPORTS)]
        assert all(isinstance(one, StateMessage) for one in found)
        return found  # type: ignore[return-value]

    @property
    def states(self) -> dict[str, str]:
        return {one.attribute: one.value for one in self.reports}

    @property
    def alerts(self) -> list[tuple[str, str]]:
        """Return conditions and states of the alerts, but for those that clear what no one has raised."""
        found = [decode_alert(one.value) for one in self.bus.records("alerts")]
        assert all(isinstance(one, Alert) and one.condition in ICD.conditions for one in found)
        return [(one.condition, one.state) for one in found][3:]  # type: ignore[union-attr]

    def behind(self) -> int:
        return int(self.states["behind"])


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(Disk(tmp_path))


def test_a_worker_is_behind_by_the_age_of_the_oldest_record_in_no_file(bench: Bench) -> None:
    bench.run(11)
    assert bench.behind() == 0
    bench.write()
    bench.run(20)
    bench.write()
    bench.run(20)
    assert 30 <= bench.behind() <= 40
    bench.run(AGE)
    assert bench.behind() <= 30, "the first of the two records is in a file"
    bench.run(AGE)
    assert bench.behind() == 0
    assert bench.states["newestFile"] == max(bench.store.names())


def test_records_that_were_not_taken_count_from_when_there_were_none(bench: Bench) -> None:
    """A slow topic has a record that is new, not one as old as the last one taken."""
    bench.write()
    bench.run(1000)
    bench.store.full = True
    bench.write()
    bench.run(AGE + 5)
    bench.write()
    bench.run(400)
    assert AGE + 390 <= bench.behind() <= AGE + 405
    bench.store.full = False
    bench.run(AGE + 20)
    assert bench.behind() == 0
    assert kept(bench.store) == bench.log.records(TOPIC)


def test_a_worker_that_cannot_know_how_far_it_is_behind_does_not_say_it(bench: Bench) -> None:
    class AwayDisk(Disk):
        def names(self, topic: str = "*") -> list[str]:
            raise OSError(errno.EIO, "Input/output error")

    bench.store = AwayDisk(Path("/nowhere"))
    bench.worker = bench.start()
    bench.write()
    bench.run(30)
    assert "behind" not in bench.states
    assert int(bench.states["errors"]) > 0


def test_errors_are_counted_and_the_last_one_has_its_time(bench: Bench) -> None:
    bench.run(11)
    assert bench.states["errors"] == "0"
    assert "lastError" not in bench.states
    bench.store.full = True
    bench.write()
    bench.run(AGE + 20)
    assert int(bench.states["errors"]) >= 2
    assert bench.states["lastError"].startswith("2027-01-15 08:01:")
    assert "No space left on device" in bench.states["lastError"]
    bench.store.full = False
    bench.run(AGE)
    assert faults(bench.store) == []


def test_old_files_that_cannot_be_removed_are_an_alarm_until_they_are(tmp_path: Path) -> None:
    """Else nothing would say that the disk fills until it is nearly full."""

    class LockedDisk(Disk):
        locked = True

        def remove(self, name: str) -> None:
            if self.locked:
                raise PermissionError(errno.EPERM, "Operation not permitted")
            super().remove(name)

    disk = LockedDisk(tmp_path)
    bench = Bench(disk, keep={TOPIC: 3600.0})
    for _ in range(3):
        bench.write()
        bench.run(3600)
    assert bench.alerts == [(FAILING, "ACTIVE")], "it does not come and go"
    assert "old files: [Errno 1] Operation not permitted" in f"{bench.bus.records('alerts')[-1].value!r}"
    assert len(disk.names()) == 3, "the archive goes on"
    disk.locked = False
    bench.run(3700)
    assert bench.alerts[1:] == [(FAILING, "CLEARED")]
    assert len(disk.names()) == 1


def test_an_error_is_told_without_its_secrets_and_in_short(bench: Bench) -> None:
    class OddDisk(Disk):
        def write(self, name: str, content: bytes) -> None:
            raise OSError(f"\x1b[2Jhttps://me:hunter2@host/a?signature=hunter2 {'long' * 9999}")

    bench.store = OddDisk(Path("/nowhere"))
    bench.worker = bench.start()
    bench.write()
    bench.run(AGE + 30)
    assert (FAILING, "ACTIVE") in bench.alerts
    for text in (bench.states["lastError"], *(f"{one.value!r}" for one in bench.bus.records("alerts"))):
        assert "host/a" in text or "CLEARED" in text
        assert len(text) < 900
        assert "hunter2" not in text
        assert "\x1b" not in text


def test_what_goes_stale_is_written_each_time_and_the_rest_when_it_changes(bench: Bench) -> None:
    bench.write()
    bench.run(AGE + 11)
    before = len(bench.reports)
    bench.run(20 * REPORT_EACH)
    more = [one.attribute for one in bench.reports[before:]]
    assert {name: more.count(name) for name in more} == {"behind": 20, "writeRate": 20, "diskFree": 20}
    bench.run(600)
    more = [one.attribute for one in bench.reports[before:]]
    assert (more.count("errors"), more.count("newestFile")) == (1, 1), "a record that got lost does no harm for long"
    assert {(one.device, one.origin) for one in bench.reports} == {(DEVICE, "archive-0")}


def test_a_disk_that_fills_is_an_alarm_before_it_is_full_and_loses_nothing(bench: Bench) -> None:
    disk = bench.store
    for free in (600, 300, 110, 90, 60, 0):
        disk.free, disk.full = free, not free
        bench.write()
        bench.run(AGE + 20)
        expected = [(DISK_LOW, "ACTIVE")] * (free < 100) + [(FAILING, "ACTIVE")] * (not free)
        assert bench.alerts == expected, f"{free} of 1000 bytes are free"
    bench.write()
    bench.run(20)
    assert bench.worker.accounts[TOPIC].uncommitted == 1, "nothing more is taken meanwhile"
    disk.full, disk.free = False, 115
    bench.run(AGE + 20)
    assert bench.alerts[2:] == [(FAILING, "CLEARED")], "the alarm of the disk does not come and go"
    disk.free = 125
    bench.run(20)
    assert bench.alerts[3:] == [(DISK_LOW, "CLEARED")]
    assert kept(disk) == bench.log.records(TOPIC)
    assert faults(disk) == []


def test_records_that_wait_too_long_are_an_alarm(bench: Bench) -> None:
    bench.run(11)
    assert bench.alerts == []
    bench.store.full = True
    bench.write()
    bench.run(2 * AGE + 50)
    assert (BEHIND, "ACTIVE") not in bench.alerts
    bench.run(30)
    assert (BEHIND, "ACTIVE") in bench.alerts
    bench.store.full = False
    bench.run(30)
    assert bench.alerts[2:] == [(FAILING, "CLEARED"), (BEHIND, "CLEARED")]


def test_a_topic_that_may_not_be_read_is_an_alarm_and_hides_no_other(bench: Bench) -> None:
    refused: set[str] = set()

    class RefusingBus(MemoryBus):
        def open_reader(self, *places: Any, **options: Any) -> Any:
            reader: Any = super().open_reader(*places, **options)
            behind = reader.behind
            reader.refused, reader.behind = refused, lambda topic: {} if topic in refused else behind(topic)
            return reader

    bench.log = MemoryLog({TOPIC: 1, "commands": 1}, bench.clock)
    bench.worker = bench.start(RefusingBus(bench.log), TOPIC, "commands")
    bench.run(11)
    refused.add("commands")
    bench.write()
    bench.run(30)
    assert bench.alerts == [(FAILING, "ACTIVE")]
    assert b"no right to read commands" in (bench.bus.records("alerts")[-1].value or b"")
    assert 20 <= bench.behind() <= 30
    bench.run(AGE)
    assert kept(bench.store) == bench.log.records(TOPIC), "the others are archived"
    refused.clear()
    bench.run(11)
    assert bench.alerts[1:] == [(FAILING, "CLEARED")]


def test_an_alarm_that_the_bus_did_not_confirm_is_told_again(bench: Bench) -> None:
    bench.run(11)
    bench.writer.away, bench.store.free = True, 0
    bench.run(30)
    assert bench.alerts == []
    bench.writer.away = False
    bench.run(11)
    assert bench.alerts == [(DISK_LOW, "ACTIVE")]


def test_a_worker_that_starts_again_clears_the_alarms_of_the_one_before(bench: Bench) -> None:
    bench.run(11)
    bench.store.free = 0
    bench.run(11)
    bench.store.free = 900
    bench.worker = bench.start()
    bench.run(30)
    assert bench.alerts[0] == (DISK_LOW, "ACTIVE")
    assert (DISK_LOW, "CLEARED") in bench.alerts


def test_a_worker_that_stops_at_a_damaged_file_says_so(bench: Bench, tmp_path: Path) -> None:
    bench.write()
    bench.run(AGE + 20)
    (file,) = tmp_path.rglob("*.parquet")
    file.write_bytes(b"junk")
    bench.worker = bench.start()
    with pytest.raises(ArchiveError, match="move it away"):
        bench.run(11)
    assert (FAILING, "ACTIVE") in bench.alerts
