"""Records of an archive by topic and time."""

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from facade.archive.files import VERSION, ArchiveError, hour_in, parse_name, read_entry
from facade.archive.nexus import export
from facade.archive.reading import extent, newest_entries, read_records, require_disjoint, topics
from facade.archive.stores import FolderStore, Store, open_store
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.clock import utc_text
from tests.support.archives import HOUR, ICD, START, TOPIC, archive, archive_of, changed, record

TIMES = [0, HOUR // 2, HOUR - 1000, HOUR // 3, HOUR, 3 * HOUR]


@pytest.fixture(params=["folder", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    store = FolderStore(tmp_path) if request.param == "folder" else open_store(f"memory://{tmp_path.name}-reading")
    log = MemoryLog({TOPIC: 2, "state": 1})
    for time in TIMES:
        log.append(record(START + time, b"%d" % time, partition=time % 2))
    log.append(record(START, None, "state"))
    archive(log, store, TOPIC, "state")
    return store


@pytest.mark.parametrize(
    ("begin", "end"), [(0, 4 * HOUR), (0, 1), (1, HOUR), (HOUR // 3, HOUR // 2), (HOUR, 3 * HOUR), (4 * HOUR, 5 * HOUR)]
)
def test_each_record_of_a_time_is_read_once(store: Store, begin: int, end: int) -> None:
    found = [int(one.value or b"") for one in read_records(store, TOPIC, START + begin, START + end)]
    assert sorted(found) == sorted(time for time in TIMES if begin <= time < end)


def test_records_of_several_partitions_come_by_time(tmp_path: Path) -> None:
    chance, store, log = random.Random(16), FolderStore(tmp_path), MemoryLog({TOPIC: 3})
    times = sorted(chance.sample(range(3 * HOUR), 60))
    for time in times:
        log.append(record(START + time, b"%d" % time, partition=chance.randrange(3)))
    archive(log, store, TOPIC)
    assert [int(one.value or b"") for one in read_records(store, TOPIC, START, START + 3 * HOUR)] == times


def test_topics_are_named(store: Store) -> None:
    assert topics(store) == [TOPIC, "state"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    place = tmp_path / "my archive"
    store, log = FolderStore(place), MemoryLog({TOPIC: 1})
    log.append(record(START, random.Random(1).randbytes(10_000)))
    archive(log, store)
    (name,) = store.names()
    whole = (place / name).read_bytes()
    half = len(whole) // 2
    for damaged in (whole[:half], whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :], b""):
        (place / name).write_bytes(damaged)
        with pytest.raises(ArchiveError, match=rf"{name}.*`sdp-facade archive verify '{place}'` names each"):
            list(read_records(store, TOPIC, 0, 2 * START))
        if damaged[-4:] != b"PAR1":
            with pytest.raises(ArchiveError, match=name):
                newest_entries(store, [TOPIC])


@pytest.mark.parametrize(
    "entry", [b"", b"\xff", b'{"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"version":"\xff"}']
)
def test_a_file_with_another_entry_is_none_of_an_archive(entry: bytes) -> None:
    with pytest.raises(ArchiveError, match="without its entry"):
        read_entry(SimpleNamespace(num_rows=1, metadata={b"sdp.archive": entry}))


def damaged(folder: Path, hours: Sequence[int], *damage: int) -> FolderStore:
    """Return an archive with a file for each hour, of which some are damaged."""
    log, store = MemoryLog({TOPIC: 1}), FolderStore(folder)
    for hour in hours:
        log.append(record(START + hour * HOUR, b"%d" % hour))
    archive(log, store)
    for name in store.names():
        if (parsed := parse_name(name)) and parsed[2] in damage:
            (folder / name).write_bytes(b"damaged")
    return store


def test_files_of_other_hours_are_not_opened(tmp_path: Path) -> None:
    hours = (0, 700, 701, 702, 703, 1400, 1401)
    store = damaged(tmp_path / "a", hours, 0, 5)
    times = START + 701 * HOUR, START + 703 * HOUR
    assert [one.value for one in read_records(store, TOPIC, *times)] == [b"701", b"702"]
    require_disjoint(store, TOPIC, *times)
    for number in range(1, 5):  # the hours before and after
        with pytest.raises(ArchiveError, match=f"-0000000{number}.parquet: expected a whole file"):
            require_disjoint(damaged(tmp_path / f"{number}", hours, number), TOPIC, *times)


def test_records_behind_one_of_a_clock_that_was_ahead_are_found(tmp_path: Path) -> None:
    log, store = MemoryLog({TOPIC: 1}), FolderStore(tmp_path)
    for hours in ((0, 9, 0), (0, 10)):
        for hour in hours:
            log.append(record(START + hour * HOUR))
        archive(log, store)
    names = sorted(store.names(), key=lambda name: name[-16:])
    assert [hour_in(name)[-2:] for name in names] == ["08", "17", "08", "18"]
    assert [one.offset for one in read_records(store, TOPIC, START, START + HOUR)] == [0, 2, 3]


def test_the_newest_file_of_each_partition_says_whose_it_is(store: Store) -> None:
    found = [(one.topic, one.partition, one.deployment, one.next) for one in newest_entries(store, [TOPIC])]
    assert found == [(TOPIC, 0, "test.", len(TIMES))]


def test_a_file_that_retention_removes_meanwhile_is_not_called_damaged(tmp_path: Path) -> None:
    log, store = MemoryLog({TOPIC: 1}), FolderStore(tmp_path)
    for hour in range(2):
        log.append(record(START + hour * HOUR))
    archive(log, store)
    records = read_records(store, TOPIC, START, START + 2 * HOUR)
    next(records)
    (last,) = (name for name in store.names() if name.endswith("-00000001.parquet"))
    store.remove(last)
    with pytest.raises(ArchiveError, match="was removed while the archive was read, as old files are: try again"):
        next(records)


@pytest.mark.parametrize("at", [253_402_300_800_000_000, 2**62 // 1000 * 1000, -62_135_597_800_000_000])
def test_times_that_no_calendar_has_are_read(at: int, tmp_path: Path) -> None:
    log, store = MemoryLog({TOPIC: 1}), FolderStore(tmp_path)
    for time in (START, at, START):
        log.append(record(time))
    archive(log, store)
    assert [one.offset for one in read_records(store, TOPIC, START, START + 1)] == [0, 2]
    begin, end = extent(store) or (0, 0)
    assert (utc_text(begin), begin < end) == (utc_text(START), True)
    assert utc_text(end)


def test_a_file_of_a_newer_version_is_not_read_as_one_of_this(tmp_path: Path) -> None:
    log, store = MemoryLog({TOPIC: 1}), FolderStore(tmp_path)
    log.append(record(START))
    archive(log, store)
    (name,) = store.names()
    (tmp_path / name).write_bytes(changed((tmp_path / name).read_bytes(), version=VERSION + 1))
    with pytest.raises(ArchiveError, match=f"{name}: expected version {VERSION} or older, got {VERSION + 1}"):
        list(read_records(store, TOPIC, START, START + HOUR))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("one", "other"), [((2, 3), (1, 2)), ((3, 3), (1, 4, 2)), ((1, 1, 1, 1), (4,)), ((5,), (5,))])
def test_a_record_of_two_archives_in_one_folder_is_read_once(
    one: tuple[int, ...], other: tuple[int, ...], order: int, tmp_path: Path
) -> None:
    archive_of(tmp_path / "a", *one)
    archive_of(tmp_path / "b", *other, at_us=START + order * HOUR)
    shutil.copytree(tmp_path / "b", tmp_path / "a", dirs_exist_ok=True)
    store, begin, end = FolderStore(tmp_path / "a"), START - HOUR, START + 2 * HOUR
    most = max(sum(one), sum(other))
    assert sorted(record.offset for record in read_records(store, TOPIC, begin, end)) == [*range(most)]
    accounts = export(store, ICD, tmp_path / "night.nxs", begin, end)
    assert accounts[TOPIC].records == most
