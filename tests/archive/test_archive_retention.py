"""Retention of an archive: which files are removed, and that what is left is whole."""

import errno
import logging
from pathlib import Path

import fsspec
import pytest

from facade.archive.stores import FolderStore, Store, open_store
from facade.archive.worker import ArchiveLimits, parse_keep
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.clock import ManualClock
from facade.kernel.errors import ConfigError
from tests.support.archives import HOUR, START, TOPIC, faults, kept, record, worker

DAY = 86400.0


def written(store: Store, *hours: float) -> MemoryLog:
    """Write a file for each record, which comes so many hours after `START`."""
    log = MemoryLog({TOPIC: 1})
    running = worker(log, store, limits=ArchiveLimits(age=0.0))
    running.step()
    for after in hours:
        log.append(record(START + round(after * HOUR)))
        running.step()
        running.step()
    return log


def left(log: MemoryLog, store: Store, after: float, keep: float) -> list[int]:
    """Return the offsets that a worker leaves which looks at some time [h] after `START`; `keep` in hours."""
    running = worker(log, store, clock=ManualClock(START / 1e6 + after * 3600), keep={TOPIC: keep * 3600})
    for _ in range(4):
        running.step()
    running.finish()
    return [one.offset for one in kept(store)]


@pytest.mark.parametrize(
    ("hours", "after", "expected"),
    [
        ([0, 1, 2, 3], 3.5, [0, 1, 2, 3]),
        ([0, 1, 2, 3], 4.0, [1, 2, 3]),
        ([0, 1, 2, 3], 5.5, [2, 3]),
        ([0, 1, 2, 3], 99, [3]),
        ([0], 99, [0]),
        # Of a partition, no file is removed from between two others.
        ([5, 0, 0, 0], 7, [0, 1, 2, 3]),
        ([0, 5, 0, 0], 7, [1, 2, 3]),
        # A wrong clock keeps nothing for ever, and gives nothing up early.
        ([0, 90_000, 1, 2], 4.5, [1, 2, 3]),
        ([0, 90_000, 1, 2], 5.0, [3]),
        ([90_000, 90_000, 90_000], 9, [0, 1, 2]),
    ],
)
def test_old_files_are_removed_in_their_order_and_the_newest_one_stays(
    hours: list[float], after: float, expected: list[int], tmp_path: Path
) -> None:
    store = FolderStore(tmp_path)
    log = written(store, *hours)
    assert left(log, store, after, 3) == expected
    assert faults(store) == [], "a partition that begins later is no fault"
    folders = {path.parent for path in tmp_path.rglob("*.parquet")}
    assert set(tmp_path.glob("topic=*/*")) == folders, "empty folders are removed, too"


def test_a_file_stays_while_one_of_its_records_is_young(tmp_path: Path) -> None:
    store, log = FolderStore(tmp_path), MemoryLog({TOPIC: 1})
    running = worker(log, store)
    running.step()
    for after in (0, 0.9, 3, 1, 9):
        log.append(record(START + round(after * HOUR)))
    running.step()
    running.finish()
    assert left(log, store, 3.8, 3) == [0, 1, 2, 3, 4]
    assert left(log, store, 4.5, 3) == [2, 3, 4]
    assert left(log, store, 6.9, 3) == [2, 3, 4]
    assert left(log, store, 7.1, 3) == [4]


def test_a_worker_that_is_killed_between_two_files_leaves_no_gap(tmp_path: Path) -> None:
    class KilledFolder(FolderStore):
        def remove(self, name: str) -> None:
            super().remove(name)
            raise KeyboardInterrupt

    store = KilledFolder(tmp_path)
    log = written(store, 0, 0, 0, 0)
    for count in (3, 2, 1):
        with pytest.raises(KeyboardInterrupt):
            left(log, store, 99, 3)
        assert (len(kept(store)), faults(store)) == (count, [])
    assert left(log, store, 99, 3) == [3]


def test_a_file_that_cannot_be_removed_keeps_those_behind_it(tmp_path: Path) -> None:
    class StickyFolder(FolderStore):
        sticks = True

        def remove(self, name: str) -> None:
            if self.sticks and name.endswith("0001.parquet"):
                raise PermissionError("Operation not permitted")
            super().remove(name)

    store = StickyFolder(tmp_path)
    log = written(store, 0, 0, 0, 0)
    assert left(log, store, 99, 3) == [1, 2, 3]
    assert faults(store) == []
    store.sticks = False
    assert left(log, store, 99, 3) == [3]
    store.remove("topic=alerts/hour=2027-01-15T08/0000-00000001.parquet")


def test_old_files_make_room_on_a_full_disk(tmp_path: Path) -> None:
    class SmallFolder(FolderStore):
        def write(self, name: str, content: bytes) -> None:
            if len(self.names()) >= 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(name, content)

    store, clock = SmallFolder(tmp_path), ManualClock(START / 1e6)
    log = written(store, 0, 0, 0)
    running = worker(log, store, clock=clock, limits=ArchiveLimits(age=0.0), keep={TOPIC: 3 * 3600})
    running.step()
    log.append(record(START + HOUR))
    running.step()
    clock.sleep(2 * 3600)
    running.step()
    assert len(store.names()) == 3
    clock.sleep(3 * 3600)
    running.step()
    assert [one.offset for one in kept(store)] == [2, 3]
    assert faults(store) == []


def test_a_worker_goes_on_behind_the_newest_file_and_looks_again_after_an_hour(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, clock = FolderStore(tmp_path), ManualClock(START / 1e6)
    log = written(store, 0, 0)
    running = worker(log, store, clock=clock, limits=ArchiveLimits(age=0.0), keep={TOPIC: 2 * 3600})
    running.step()
    log.append(record(START))
    for _ in range(3):
        running.step()
    clock.sleep(3599)
    running.step()
    assert [one.offset for one in kept(store)] == [0, 1, 2]
    clock.sleep(3 * 3600)
    with caplog.at_level(logging.INFO):
        running.step()
    assert [one.offset for one in kept(store)] == [2]
    assert "archive removed file=topic=alerts/hour=2027-01-15T08/0000-00000000.parquet" in caplog.text
    assert faults(store) == []


def test_files_of_an_object_store_are_removed() -> None:
    store = open_store("memory://retention")
    log = written(store, 0, 1, 2)
    assert left(log, store, 99, 3) == [2]
    store.remove("topic=alerts/hour=2027-01-15T08/0000-00000000.parquet")
    assert faults(store) == []
    fsspec.filesystem("memory").rm("/retention", recursive=True)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], {}),
        (["400d"], {"alerts": 400 * DAY, "state": 400 * DAY}),
        (["alerts=30d"], {"alerts": 30 * DAY}),
        (["alerts=30d", "400d"], {"alerts": 30 * DAY, "state": 400 * DAY}),
    ],
)
def test_a_rule_is_for_one_topic_or_for_all_others(rules: list[str], expected: dict[str, float]) -> None:
    assert parse_keep(rules, ["alerts", "state"]) == expected


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (["30"], "--keep: expected a duration such as 90s, 10m, 1h30m or 2d, got '30'"),
        (["quality=30d"], "--keep: expected TOPIC=DURATION with some of alerts, state, got 'quality=30d'"),
        (["=30d"], "--keep: expected TOPIC=DURATION"),
        (["alerts=30d", "alerts=40d"], "--keep: expected one rule for alerts, got two"),
        (["30d", "40d"], "--keep: expected one rule for all topics, got two"),
    ],
)
def test_a_rule_that_is_none_is_refused(rules: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_keep(rules, ["alerts", "state"])
