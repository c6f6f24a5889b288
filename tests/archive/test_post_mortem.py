"""Post-mortems: what is kept around a CRITICAL alarm, for how long, and what a kill leaves."""

import random
import shutil
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from facade.archive.files import ArchiveError, parse_name
from facade.archive.history import HistoryArchive
from facade.archive.moment import MomentArchive
from facade.archive.post_mortem import AFTER, PostMortem, PostMortems, digest_of, post_mortems
from facade.archive.reading import topics
from facade.archive.reports import ArchiveFigures
from facade.archive.stores import FolderStore, open_store
from facade.archive.worker import ArchiveLimits
from facade.flows.alerts.messages import Alarm, Alert, alert_record, state_record
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.bus.port import Record
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock
from tests.archive.test_history_archive import record
from tests.archive.test_moment_archive import SUBARRAY, TOPICS, at, put, report
from tests.support.archives import ICD, START, faults, kept, worker
from tests.support.waiting import until

RACK = "sdp-facade/ingest-01"
"""Rack 1 has the nodes 50 to 99."""
NEAR, FAR, BUS = "mid-sdp/ingest/0050/heapRate", "mid-sdp/ingest/0007/heapRate", "mid-sdp/bus/0/connected"
KEPT = (*TOPICS, "state", "ingest.heaps")
SETTLED = 7200.0
Told = tuple[float, Record]


def alert(seconds: float, source: str = RACK, *, since: float | None = None, **more: Any) -> Told:
    raised = at(seconds if since is None else since)
    named = {"condition": "serverGone", "source": source, "severity": "CRITICAL", "state": "ACTIVE", "text": "x"} | more
    return seconds, alert_record(Alert(**named, raised_at=raised, sequence=1))


def standing(source: str, seconds: float) -> Record:
    alarm = Alarm(condition="logCut", source=source, severity="ALARM", state="UNACK", through=1, raised_at=at(seconds))
    return state_record(alarm.key, alarm)


def night(folder: Path, *told: Told, minutes: Iterable[int] = range(-9, 20)) -> FolderStore:
    """Archive some minutes around `START`, in a file for each minute of each topic."""
    log, store = MemoryLog(dict.fromkeys(KEPT, 1)), FolderStore(folder / "archive")
    running = worker(log, store, *KEPT, limits=ArchiveLimits(age=0.0))
    running.step()
    for minute in minutes:
        if minute == -9:
            put(log, standing("bus", -540), -540)
            put(log, state_record(("gone", "x"), None), -539)
            report(log, -538, "obsState", "SCANNING")
        if minute == -7:
            put(log, standing("bus-b", -420), -420)
        for name in (NEAR, FAR, BUS):
            log.append(record(60_000_000 * minute, minute, name))
        put(log, Record(topic="ingest.heaps", key=b"50", value=b"v"), 60 * minute)
        report(log, 60 * minute, "scanID", f"{minute}")
        for seconds, one in told:
            if 60 * minute <= seconds < 60 * minute + 60:
                put(log, one, seconds)
        for _ in KEPT:
            running.step()
    running.finish()
    return store


def keeper(folder: Path, seconds: float = SETTLED, **more: Any) -> PostMortems:
    store, place, clock = FolderStore(folder / "archive"), f"{folder / 'kept'}", ManualClock(START / 1e6 + seconds)
    return PostMortems(store, place, ICD, 50, clock, age=60.0, **more)


def made(folder: Path, seconds: float = SETTLED, **more: Any) -> list[PostMortem]:
    """Let a new process look once, and return what is there."""
    keeper(folder, seconds, **more).step()
    return post_mortems(f"{folder / 'kept'}")


def inside(folder: Path, one: PostMortem) -> FolderStore:
    return FolderStore(folder / "kept" / one.name)


def devices_in(store: FolderStore) -> set[str]:
    return {(one.key or b"").decode() for one in kept(store) if one.topic == "history"}


def content(folder: Path) -> dict[str, bytes]:
    return {f"{path.relative_to(folder)}": path.read_bytes() for path in (folder / "kept").rglob("*") if path.is_file()}


def test_five_minutes_before_and_two_behind_are_kept_of_what_is_about_the_place(tmp_path: Path) -> None:
    night(tmp_path, alert(610))
    (one,) = made(tmp_path)
    assert (one.at, one.alarm, one.title) == (at(610), digest_of("serverGone", RACK), "serverGone-sdp-facade-ingest-01")
    store = inside(tmp_path, one)
    assert faults(store) == []
    assert set(topics(store)) == {"alert-state", "alerts", "history", "state"}, "neither heaps nor empty topics"
    records = kept(store)
    assert devices_in(store) == {NEAR, BUS}
    times = [one.timestamp_us for one in records if one.topic in ("history", "alerts")]
    assert at(310) <= min(times) <= max(times) <= at(730)
    # The page shows it as any archive: with what stood before.
    shown = MomentArchive(store, HistoryArchive(store), ICD, 50, ManualClock()).at(at(620))
    assert shown["values"]["mid-sdp/ingest/0050"]["heapRate"][0] == 10
    assert [one["source"] for one in shown["alarms"]] == ["bus", "bus-b"]
    assert [one["alert"]["source"] for one in shown["alerts"]] == [RACK]
    states = {one.key: one.value for one in records if one.topic == "state"}
    assert f"{SUBARRAY}/obsState".encode() in states
    assert b"gone@x" not in {one.key for one in records}, "what stood before is without tombstones"


@pytest.mark.parametrize(
    ("source", "devices"),
    [("ingest/0007", {FAR, BUS}), ("ingest/all", {NEAR, FAR, BUS}), ("receive/../../x", {BUS})],
)
def test_the_place_follows_from_the_interface(source: str, devices: set[str], tmp_path: Path) -> None:
    night(tmp_path, alert(610, source))
    (one,) = made(tmp_path)
    store = inside(tmp_path, one)
    assert devices_in(store) == devices
    assert faults(store) == []


@pytest.mark.parametrize("has_values", [True, False])
def test_a_file_without_a_record_about_the_place_widens_no_time(has_values: bool, tmp_path: Path) -> None:
    """The page could not show such a post-mortem: it asked for the last second of all time."""
    log, store = MemoryLog({"history": 1, "alerts": 1}), FolderStore(tmp_path / "archive")
    running = worker(log, store, "history", "alerts", limits=ArchiveLimits(age=0.0))
    running.step()
    put(log, alert(610)[1], 610)
    for minute, name in ((9, NEAR if has_values else FAR), (10, FAR)):
        log.append(record(60_000_000 * minute, minute, name))
        running.step()
        running.step()
    running.finish()
    (one,) = made(tmp_path)
    history = HistoryArchive(inside(tmp_path, one))
    if has_values:
        assert history.extent() == (at(540), at(540))
    else:
        with pytest.raises(ArchiveError, match="expected records of the topic history, got files without any"):
            history.at(at(540))


def test_a_killed_process_goes_on_with_the_same_files(tmp_path: Path) -> None:
    night(tmp_path, alert(610))
    (one,) = made(tmp_path)
    before = content(tmp_path)
    for number, path in enumerate(sorted((tmp_path / "kept").rglob("*.parquet"))):
        if number % 2:
            path.rename(path.with_name(f".{path.name}.0.part"))  # it had no name yet
    assert made(tmp_path) == [one]
    assert content(tmp_path) == before
    assert made(tmp_path) == [one]
    assert content(tmp_path) == before


def test_what_comes_late_is_added_and_outlives_its_source(tmp_path: Path) -> None:
    night(tmp_path, alert(610), minutes=range(-9, 11))
    running = keeper(tmp_path, 620)
    running.step()
    (one,) = post_mortems(f"{tmp_path / 'kept'}")
    early = content(tmp_path)
    shutil.rmtree(tmp_path / "archive")
    night(tmp_path, alert(610))
    running.step()
    assert content(tmp_path) == early, "the archive is not searched all the time"
    running._clock.sleep(120 + 60 + 60)
    running.step()
    late = content(tmp_path)
    assert early.items() < late.items()
    assert max(one.timestamp_us for one in kept(inside(tmp_path, one)) if one.topic == "history") == at(720)
    shutil.rmtree(tmp_path / "archive")
    assert made(tmp_path, 30 * 86400) == [one]
    assert content(tmp_path) == late


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        # While the records of a place are being kept, another alarm there has its minutes.
        ([alert(610), alert(611, "sdp-facade/ingest-00"), alert(700, "ingest/0050")], [610, 611]),
        # An alert that its source repeats is one, so is one that clears, and milder ones are none.
        ([alert(610), alert(650, since=610), alert(700, since=610), alert(800, since=610, state="CLEARED")], [610]),
        ([alert(610, severity="ALARM"), alert(620, "a", state="CLEARED")], []),
        # Around the time at which it became CRITICAL, and once while its records are being kept.
        ([alert(10, severity="ALARM"), alert(610, since=10)], [610]),
        ([alert(610), alert(640), alert(730), alert(800), alert(611, "b")], [610, 800]),
        # Old ones are known already, or nobody knows their begin.
        ([alert(610, since=-86400)], []),
    ],
)
def test_each_occurrence_is_kept_once(told: list[Told], expected: list[float], tmp_path: Path) -> None:
    night(tmp_path, *told)
    assert [one.at for one in made(tmp_path)] == [at(seconds) for seconds in expected]
    assert [one.at for one in made(tmp_path)] == [at(seconds) for seconds in expected]


def test_the_oldest_make_room(tmp_path: Path) -> None:
    night(tmp_path, *(alert(150.0 * number, f"s{number}") for number in range(5)))
    running = keeper(tmp_path, most=3)
    for _ in range(2):
        running.step()
        assert [one.at for one in post_mortems(f"{tmp_path / 'kept'}")] == [at(300), at(450), at(600)]
    for one in post_mortems(f"{tmp_path / 'kept'}"):  # a process was killed as it wrote
        folder = next((tmp_path / "kept" / one.name).glob("topic=alerts/*"))
        (folder / ".0000-00000099.parquet.0.part").touch()
    size = sum(map(len, content(tmp_path).values()))
    running = keeper(tmp_path, most=3, most_bytes=size - 1)
    for _ in range(2):
        running.step()
        assert [one.at for one in post_mortems(f"{tmp_path / 'kept'}")] == [at(450), at(600)]
    assert len([*(tmp_path / "kept").iterdir()]) == 2, "nothing is left of the others"


def test_an_object_store_has_them_too(tmp_path: Path) -> None:
    night(tmp_path, alert(610))
    place = f"memory://{tmp_path.name}-kept"
    clock = ManualClock(START / 1e6 + SETTLED)
    make = partial(PostMortems, FolderStore(tmp_path / "archive"), place, ICD, 50, clock, age=60.0)
    make().step()
    (one,) = post_mortems(place)
    assert faults(open_store(f"{place}/{one.name}")) == []
    make(most_bytes=1).step()
    assert post_mortems(place) == [one], "the newest one stays"


def test_a_flood_of_alarms_removes_neither_its_cause_nor_another_night(tmp_path: Path) -> None:
    flood = [alert(600 + number, f"ingest/{50 * (number % 60):04}") for number in range(300)]
    night(tmp_path, alert(-400, "before"), alert(600, "cause"), *flood)
    times = [one.at for one in made(tmp_path, most=20)]
    assert times[:2] == [at(-400), at(600)]
    assert len(times) <= 1 + 3 * 5, "five for each two minutes"
    assert all(any(one <= at(600 + number) <= one + AFTER for one in times) for number in range(300))


def test_a_damaged_file_holds_up_no_other_post_mortem(tmp_path: Path) -> None:
    store = night(tmp_path, alert(0), alert(900, "b"))
    damaged = sorted(store.names("history"), key=parse_name)[6]
    (tmp_path / "archive" / damaged).write_bytes(b"PAR1")
    running = keeper(tmp_path)
    for _ in range(2):
        with pytest.raises(ArchiveError, match=damaged):
            running.step()
        _, one = post_mortems(f"{tmp_path / 'kept'}")
        assert set(topics(inside(tmp_path, one))) == {"alert-state", "alerts", "history", "state"}
    # Nor does one with alerts, of which nobody knows what they were.
    first = sorted(store.names("alerts"), key=parse_name)[0]
    (tmp_path / "archive" / first).write_bytes(b"PAR1")
    shutil.rmtree(tmp_path / "kept")
    with pytest.raises(ArchiveError):
        keeper(tmp_path).step()
    assert [one.at for one in post_mortems(f"{tmp_path / 'kept'}")] == [at(900)]


def test_a_full_disk_is_relieved_by_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night(tmp_path, alert(0), alert(300), alert(900))
    *_, newest = made(tmp_path)
    shutil.rmtree(tmp_path / "kept" / newest.name)
    size, write = sum(map(len, content(tmp_path).values())), FolderStore.write

    def fail_if_full(store: FolderStore, name: str, raw: bytes) -> None:
        if {path.name for path in (tmp_path / "kept").iterdir()} >= full:
            raise OSError("no space left")
        write(store, name, raw)

    full = {one.name for one in post_mortems(f"{tmp_path / 'kept'}")}
    monkeypatch.setattr(FolderStore, "write", fail_if_full)
    assert newest in made(tmp_path, most_bytes=size - 1)


def test_files_that_come_late_leave_no_overlap(tmp_path: Path) -> None:
    """At the first look, the newest states were older than the span; later others were taken for them as well."""
    store = night(tmp_path, alert(610))
    late = sorted(store.names("state"), key=parse_name)[9:]
    for name in late:
        (tmp_path / "archive" / name).rename(tmp_path / name.replace("/", "_"))
    (one,) = made(tmp_path, 620)
    assert "state" in topics(inside(tmp_path, one))
    for name in late:
        (tmp_path / name.replace("/", "_")).rename(tmp_path / "archive" / name)
    assert made(tmp_path) == [one]
    found = inside(tmp_path, one)
    assert faults(found) == []
    times = [one.timestamp_us for one in kept(found) if one.topic == "state"]
    assert {at(60 * minute) for minute in range(6, 13)} <= set(times)
    assert max(times) <= at(730)


def test_what_stood_before_is_read_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A month of states was in memory at once, whatever the rows."""
    log, store = MemoryLog({"state": 1, "alerts": 1}), FolderStore(tmp_path / "archive")
    running = worker(log, store, "state", "alerts", limits=ArchiveLimits(age=0.0))
    running.step()
    for number in range(40):
        for key, value in ((b"large", random.randbytes(1_000_000)), (b"%d" % number, b"v")):
            put(log, Record(topic="state", key=key, value=value), 60 * number - 3600)
        running.step()
        running.step()
    put(log, alert(0)[1], 0)
    running.step()
    running.finish()
    assert len(store.names("state")) == 40
    sizes, read = list[int](), PostMortems._read

    def weighed(self: PostMortems, name: str) -> Any:
        found = read(self, name)
        sizes.append(pa.total_allocated_bytes())
        return found

    monkeypatch.setattr(PostMortems, "_read", weighed)
    before = pa.total_allocated_bytes()
    (one,) = made(tmp_path)
    assert {record.key for record in kept(inside(tmp_path, one))} >= {b"%d" % number for number in range(40)}
    assert max(sizes) - before < 15_000_000


def test_topics_of_programs_and_large_ones_are_left_out(tmp_path: Path) -> None:
    left_out = {"positions", "snapshots", "heartbeats", "server-heartbeats", "page-acts", "dead-letters"}
    assert not left_out & {*keeper(tmp_path)._topics}
    assert left_out <= ICD.topics.keys()


def test_a_name_with_no_time_is_none(tmp_path: Path) -> None:
    (tmp_path / "20271345T081010.000000Z-89af1e05b596-9abf12f4-x").mkdir()
    assert post_mortems(f"{tmp_path}") == []


@pytest.mark.parametrize("inner", ["", "/kept", "/../archive"])
def test_a_place_within_the_archive_is_refused(inner: str, tmp_path: Path) -> None:
    """Readers of the archive's files would count their records twice."""
    archive = f"{tmp_path / 'archive'}"
    done = CliRunner().invoke(app, ["archive", "run", archive, "--post-mortems", archive + inner])
    assert "--post-mortems: expected a folder outside of the archive" in str(done.exception)


class Heard:
    """Hears the figures of a worker."""

    figures: ArchiveFigures

    def tell(self, figures: ArchiveFigures) -> None:
        self.figures = figures


def test_a_failure_beside_is_reported_until_it_ends_and_the_archive_goes_on(tmp_path: Path) -> None:
    """It was cleared in the step that noted it, so that no alarm told of it."""
    reason, calls = ["no space"], []

    def look() -> None:
        calls.append(clock.monotonic())
        if reason:
            raise OSError(*reason)

    log, store, heard, clock = MemoryLog({"alerts": 1}), FolderStore(tmp_path), Heard(), ManualClock()
    more: dict[str, Any] = {"clock": clock, "reporter": heard, "beside": look}
    running = worker(log, store, limits=ArchiveLimits(age=0.0), **more)
    put(log, alert(0)[1], 0)

    def step_until(failing: str) -> bool:
        clock.sleep(10.0)
        running.step()
        return heard.figures.failing == failing and len(kept(store)) == 1

    for _ in range(3):
        until(lambda: step_until("post-mortems: no space"), "the failure is told, and the record is in a file")
    assert not running._is_full(), "the archive waits for nothing"
    reason.clear()
    until(lambda: step_until(""), "the end is told")
    running.finish()
    assert all(later - earlier >= 10.0 for earlier, later in pairwise(calls))
