"""Post-mortems: what is kept around a CRITICAL alarm, for how long, and what a kill leaves."""

import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from facade.archive.history import HistoryArchive
from facade.archive.moment import MomentArchive
from facade.archive.post_mortem import PostMortem, PostMortems, digest_of, post_mortems
from facade.archive.reading import topics
from facade.archive.stores import FolderStore, open_store
from facade.archive.worker import ArchiveLimits
from facade.flows.alerts.messages import Alarm, Alert, alert_record, state_record
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from tests.support.archives import ICD, START, faults, kept, worker
from tests.support.waiting import until
from tests.unit.test_history_archive import record
from tests.unit.test_moment_archive import SUBARRAY, TOPICS, at, put
from tests.unit.test_timeline import report

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
        # An alert that its source repeats is one, so is one that clears, and milder ones are none.
        ([alert(610), alert(650, since=610), alert(700, since=610), alert(800, since=610, state="CLEARED")], [610]),
        ([alert(610, severity="ALARM"), alert(620, "a", state="CLEARED")], []),
        # Around the time at which it became CRITICAL, and once while its records are being kept.
        ([alert(10, severity="ALARM"), alert(610, since=10)], [610]),
        ([alert(610), alert(640), alert(730), alert(800), alert(610, "b")], [610, 610, 800]),
        # Old ones are known already, or nobody knows their begin.
        ([alert(610, since=-86400)], []),
    ],
)
def test_each_occurrence_is_kept_once(told: list[Told], expected: list[float], tmp_path: Path) -> None:
    night(tmp_path, *told)
    assert [one.at for one in made(tmp_path)] == [at(seconds) for seconds in expected]
    assert [one.at for one in made(tmp_path)] == [at(seconds) for seconds in expected]


def test_the_oldest_make_room(tmp_path: Path) -> None:
    night(tmp_path, *(alert(100.0 * number, f"s{number}") for number in range(5)))
    running = keeper(tmp_path, most=3)
    for _ in range(2):
        running.step()
        assert [one.at for one in post_mortems(f"{tmp_path / 'kept'}")] == [at(200), at(300), at(400)]
    size = sum(map(len, content(tmp_path).values()))
    running = keeper(tmp_path, most=3, most_bytes=size - 1)
    for _ in range(2):
        running.step()
        assert [one.at for one in post_mortems(f"{tmp_path / 'kept'}")] == [at(300), at(400)]
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
    assert post_mortems(place) == []


def test_a_failure_beside_is_reported_and_the_archive_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise OSError("no space")

    log, store = MemoryLog({"alerts": 1}), FolderStore(tmp_path)
    running = worker(log, store, limits=ArchiveLimits(age=0.0), beside=fail)
    put(log, alert(0)[1], 0)

    def told_and_written() -> bool:
        running.step()
        return "no space" in caplog.text and len(kept(store)) == 1

    until(told_and_written, "the failure is told, and the record is in a file")
    running.finish()
