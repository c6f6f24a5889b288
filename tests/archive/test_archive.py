"""The archive: which records share a file, where a worker goes on, and that each record is in one file."""

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import fsspec
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facade.archive import stores
from facade.archive.files import ArchiveError, event_times, inspect, parse_name, verify
from facade.archive.reading import read_records
from facade.archive.reports import ArchiveFigures, ArchiveReporter
from facade.archive.stores import FolderStore, open_store
from facade.archive.worker import ArchiveLimits, parse_shard
from facade.kernel.bus.memory import MemoryBus, MemoryLog
from facade.kernel.bus.offsets import Extent, PartitionReplicas, TopicShape
from facade.kernel.bus.port import PartitionColumns, Record
from facade.kernel.clock import NEVER, ManualClock, Time
from facade.kernel.errors import ConfigError
from tests.support.archives import HOUR, ICD, START, TOPIC, Writer, archive, faults, kept, record, worker
from tests.support.heaps import heap

SECOND = 1_000_000


class Case(NamedTuple):
    """Records come with times after `START` [s]; after some of them the clock goes on."""

    times: list[float]
    files: list[int]
    """Records of each file."""
    limits: ArchiveLimits = ArchiveLimits()
    each: float = 0.0
    """Between two records [s]."""


CASES = {
    "one hour": Case([0, 1, 3599], [3]),
    "the next hour": Case([0, 3599, 3600, 3601], [2, 2]),
    "an earlier record stays": Case([3599, 3600, 3599, 3601], [1, 3]),
    "an hour is left out": Case([0, 9000], [1, 1]),
    "a time far ahead makes no more than two files": Case([0, 9e6, 1, 2, 3], [1, 4]),
    "a time that no name can have": Case([0, -START / SECOND - 10, 9e15 / 1000], [2, 1]),
    "size": Case([0, 0, 0, 0, 0], [2, 2, 1], ArchiveLimits(file=130)),
    "age": Case([0, 1, 2, 3, 4], [2, 2, 1], ArchiveLimits(age=1.0), each=1.0),
    "memory": Case([0, 0, 0, 0, 0], [2, 2, 1], ArchiveLimits(memory=130)),
}


def test_records_that_come_twice_are_archived_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A client that begins again may bring some for a second time, alone or before new ones."""
    log, store, clock = MemoryLog({TOPIC: 1}), FolderStore(tmp_path), ManualClock()
    running = worker(log, store, clock=clock)
    running.step()
    taken = list[PartitionColumns]()
    assert running._reader is not None
    take = running._reader.take_columns

    def again(limit: int, timeout: float) -> list[PartitionColumns]:
        taken.extend(take(limit, timeout))
        return [
            PartitionColumns(TOPIC, 0, *([*chain(*one)] for one in zip(*(some[2:] for some in taken), strict=True)))
        ]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(running._reader, "take_columns", again)
        for at in range(3):
            log.append(record(START + at))
            running.step()
    running.finish()
    assert [one.offset for one in read_records(store, TOPIC, NEVER, Time(START + HOUR))] == [0, 1, 2]
    assert running.accounts[TOPIC].used == 3
    assert "for a second time records=2 of alerts, partition 0, offsets from 0 to 1" in caplog.text


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_which_records_share_a_file(case: Case, tmp_path: Path) -> None:
    log, store, clock = MemoryLog({TOPIC: 1}), FolderStore(tmp_path), ManualClock()
    running = worker(log, store, clock=clock, limits=case.limits)
    running.step()
    for time in case.times:
        log.append(record(START + round(time * SECOND)))
        running.step()
        clock.sleep(case.each)
    running.finish()
    counts = {parse_name(name): inspect(store.read(name)).records for name in store.names()}
    assert [counts[one] for one in sorted(counts)] == case.files  # type: ignore[type-var]
    assert faults(store) == []


class Killed(BaseException):
    """The worker is no more."""


KILLS = {
    "before the file": (0.0, False, False),
    "in the file": (0.5, False, False),
    "before the file has its name": (1.0, False, False),
    "before the other name is gone": (1.0, True, False),
    "before the next step": (1.0, True, True),
}
"""How much of the file is there, whether it has its name, whether the other name is gone."""


class KilledFolder(FolderStore):
    """Leaves what a worker leaves that is killed while it writes a file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.kills: list[str | None] = []
        """What happens to the next files; None: nothing."""

    def write(self, name: str, content: bytes) -> None:
        kill = self.kills.pop(0) if self.kills else None
        if kill is None:
            super().write(name, content)
            return
        share, is_named, is_gone = KILLS[kill]
        if is_named:
            super().write(name, content)
        if share and not is_gone:
            part = (self._root / name).with_name(f".{Path(name).name}.1234.part")
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content[: int(len(content) * share)])
        raise Killed


@settings(max_examples=50)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([None, None, *KILLS]), st.booleans()),
        min_size=1,
        max_size=25,
    )
)
def test_whatever_is_killed_each_record_is_in_one_file(
    steps: list[tuple[int, int, str | None, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = MemoryLog({TOPIC: 1, "heartbeats": 2})
    store = KilledFolder(tmp_path_factory.mktemp("archive"))
    topics, limits = (TOPIC, "heartbeats"), ArchiveLimits(age=0.0)
    writer = Writer()
    running = worker(log, store, *topics, limits=limits, writer=writer)
    number = 0
    for count, partition, kill, is_held in steps:
        for _ in range(count):
            number += 1
            topic = TOPIC if partition == 2 else "heartbeats"
            log.append(record(START + number * HOUR // 4, b"%d" % number, topic, partition % 2 * (topic != TOPIC)))
        store.kills, writer.is_held = [kill], is_held
        if not is_held:
            writer.write()
        try:
            running.step()
        except Killed:
            writer = Writer()
            running = worker(log, store, *topics, limits=limits, writer=writer)
    store.kills, writer.is_held = [], False
    writer.write()
    for _ in range(4):
        running.step()
    if number:
        assert kept(store) == [one for topic in topics for one in log.records(topic)]
        assert faults(store) == []
    else:
        assert store.names() == []


def test_a_file_whose_end_was_not_seen_counts_once(tmp_path: Path) -> None:
    """The disk fails between the name of the file and the answer: the same bytes are no other worker's."""

    class DeafFolder(FolderStore):
        deaf = True

        def write(self, name: str, content: bytes) -> None:
            super().write(name, content)
            if self.deaf:
                self.deaf = False
                raise OSError(errno.EIO, "Input/output error")

    log, store = MemoryLog({TOPIC: 1}), DeafFolder(tmp_path)
    running = worker(log, store, limits=ArchiveLimits(age=0.0))
    log.append(record())
    for _ in range(4):
        running.step()
    assert kept(store) == log.records(TOPIC)
    assert running.accounts[TOPIC].consumed == 1


def test_while_a_store_hangs_the_worker_turns_and_takes_no_more_than_its_limits(tmp_path: Path) -> None:
    answers, asked, told = threading.Event(), list[str](), list[ArchiveFigures]()

    class HangingFolder(FolderStore):
        def write(self, name: str, content: bytes) -> None:
            asked.append(name)
            answers.wait()
            super().write(name, content)

        def space(self) -> tuple[int, int] | None:
            if asked:
                answers.wait()
            return super().space()

    log, store, clock = MemoryLog({TOPIC: 1}), HangingFolder(tmp_path), ManualClock()
    with ThreadPoolExecutor(1) as thread:
        reporter = cast("ArchiveReporter", SimpleNamespace(tell=told.append))
        running = worker(log, store, clock=clock, limits=ArchiveLimits(file=130), writer=thread, reporter=reporter)
        running.step()
        for number in range(30):
            log.append(record(value=b"%d" % number))
            running.step()
        assert len(asked) <= 1, "files are written one by one"
        assert [file.next for file in running._due] == [2, 4, 6]
        assert (running.accounts[TOPIC].consumed, running.accounts[TOPIC].uncommitted) == (0, 7)
        assert running._failing == ""
        clock.sleep(60)
        running.step()
        assert running._failing == "the store has not answered for 60 s"
        clock.sleep(10)
        running.step()
        assert told[-1].failing == running._failing
        assert told[-1].space is not None, "as it was before"
        answers.set()
        while running.accounts[TOPIC].consumed < 24:
            running.step()
        assert running._failing == ""
        running.finish()
    assert kept(store) == log.records(TOPIC)
    assert faults(store) == []


def test_while_a_file_cannot_be_written_those_behind_it_wait(tmp_path: Path) -> None:
    """The newest file is the position: with a later one, the records of this one would be lost."""

    class SickFolder(FolderStore):
        is_sick = True

        def write(self, name: str, content: bytes) -> None:
            if self.is_sick and name.endswith("00000000.parquet"):
                raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
            super().write(name, content)

    log, store, writer = MemoryLog({TOPIC: 1}), SickFolder(tmp_path), Writer()
    running = worker(log, store, limits=ArchiveLimits(file=130), writer=writer)
    running.step()
    writer.is_held = True
    for number in range(6):
        log.append(record(value=b"%d" % number))
        running.step()
    writer.is_held = False
    writer.write()
    for _ in range(3):
        running.step()
        assert store.names() == []
        assert "Connection timed out" in running._failing
    writer.is_held = True
    log.append(record(value=b"6"))
    for _ in range(3):
        running.step()
    assert running.accounts[TOPIC].uncommitted == 6, "nothing is read before they are written"
    assert running._failing
    store.is_sick = writer.is_held = False
    writer.write()
    running.step()
    assert not running._failing
    running.finish()
    assert kept(store) == log.records(TOPIC)
    assert faults(store) == []


def test_only_the_name_of_a_new_folder_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(stores, "sync_folder", lambda folder: synced.append(folder.relative_to(tmp_path).as_posix()))
    ways = {hour: [f"topic=a/hour={hour}", "topic=a", "."] for hour in (1, 2)}

    def synced_by(store: FolderStore, hour: int, number: int) -> list[str]:
        synced.clear()
        store.write(f"topic=a/hour={hour}/{number}.parquet", b"")
        return synced

    store = FolderStore(tmp_path)
    assert synced_by(store, 1, 0) == ways[1]
    assert synced_by(store, 1, 1) == ways[1][:1]
    assert synced_by(store, 2, 2) == ways[2]
    assert synced_by(FolderStore(tmp_path), 2, 3) == ways[2], "a worker may be killed before the folder is durable"
    for number in (2, 3):
        store.remove(f"topic=a/hour=2/{number}.parquet")
    assert synced_by(store, 2, 4) == ways[2]


SHARDS = ((1, 2), (2, 2))


@settings(max_examples=30)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1), st.sampled_from([None, None, *KILLS])),
        max_size=25,
    )
)
def test_two_workers_share_the_partitions_of_a_topic(
    steps: list[tuple[int, int, int, str | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log, store = MemoryLog({TOPIC: 3}), KilledFolder(tmp_path_factory.mktemp("archive"))
    limits = ArchiveLimits(age=0.0)
    running = [worker(log, store, shard=shard, limits=limits) for shard in SHARDS]
    number = 0
    for count, partition, turn, kill in steps:
        for _ in range(count):
            number += 1
            log.append(record(START + number * HOUR // 4, b"%d" % number, partition=partition))
        store.kills = [kill]
        try:
            running[turn].step()
        except Killed:
            running[turn] = worker(log, store, shard=SHARDS[turn], limits=limits)
    store.kills = []
    for one in running:
        for _ in range(4):
            one.step()
    assert kept(store) == log.records(TOPIC)
    assert not number or faults(store) == []


def test_a_worker_of_a_shard_touches_no_file_of_another(tmp_path: Path) -> None:
    log, store = MemoryLog({TOPIC: 2}), FolderStore(tmp_path)
    for after in (0, 1, 2):
        for partition in (0, 1):
            log.append(record(START + after * HOUR, partition=partition))
    archive(log, store)
    part = tmp_path / f"topic={TOPIC}/hour=2027-01-15T08/.0001-00000007.parquet.1234.part"
    part.touch()
    (tmp_path / f"topic={TOPIC}/hour=2027-01-15T10/0001-00000002.parquet").write_bytes(b"damaged")
    later = ManualClock(START / 1e6 + 99 * 3600)
    running = worker(log, store, shard=(1, 2), clock=later, keep={TOPIC: 3600.0})
    for _ in range(3):
        running.step()
    running.finish()
    left = {parsed[1:] for name in store.names() if (parsed := parse_name(name))}
    assert left == {(0, 2), (1, 0), (1, 1), (1, 2)}
    assert part.exists()
    with pytest.raises(ArchiveError, match="expected"):
        worker(log, store).step()
    assert not part.exists(), "a worker of this partition removes it"


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/", "/2", "-1/2", "1/2/3", "a/b", ""])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--shard: expected the number of a shard and how many there are, as 1/2"):
        parse_shard(text)
    assert parse_shard("2/3") == (2, 3)


@pytest.mark.parametrize("place", ["folder", "memory://archive-of-two"])
def test_of_two_workers_one_stops_and_the_archive_stays_right(place: str, tmp_path: Path) -> None:
    log, store = MemoryLog({TOPIC: 1}), open_store(place if "://" in place else str(tmp_path))
    one, other = (worker(log, store, limits=ArchiveLimits(age=1e9)) for _ in range(2))
    one.step()
    other.step()
    log.append(record())
    one.step()
    log.append(record())
    for running in (one, other, other):
        running.step()
    one.finish()
    log.append(record())
    other.step()
    with pytest.raises(ArchiveError, match="another worker writes the same partition"):
        other.finish()
    archive(log, store)
    assert kept(store) == log.records(TOPIC)
    assert faults(store) == []
    if "://" in place:
        fsspec.filesystem("memory").rm("/archive-of-two", recursive=True)


@pytest.mark.parametrize("place", ["sftp://user:secret@host/archive", "local:///archive"])
def test_a_store_that_could_show_half_a_file_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match="expected a folder, or a store with conditional puts") as refused:
        open_store(place)
    assert "secret" not in str(refused.value)
    assert isinstance(open_store("file:///archive"), FolderStore)


def test_an_archive_is_of_one_deployment(tmp_path: Path) -> None:
    log, store = MemoryLog({TOPIC: 1}), FolderStore(tmp_path)
    log.append(record())
    archive(log, store)
    other = worker(log, store)
    other._deployment = "other."
    with pytest.raises(ArchiveError, match=r"deployment 'other\.', got one of 'test\.'"):
        other.step()


LEVELS = ["", "topic=alerts", "topic=alerts/hour=2027-01-15T08"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["folder", "objects"])
def test_a_folder_that_cannot_be_listed_is_no_empty_one(
    kind: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker would begin at number 0 again, `verify` would find no fault, and a restore would leave topics out."""
    root = tmp_path / "archive"
    if kind == "folder":
        (root / level).parent.mkdir(parents=True, exist_ok=True)
        (root / level).symlink_to(root / level)  # a loop: root may list what others may not
        store = FolderStore(root)
    else:
        store = open_store(f"memory://{tmp_path.name}-listing")
        store.write(f"{LEVELS[-1]}/0000-00000000.parquet", b"v")
        system = fsspec.filesystem("memory")
        listed = type(system).ls

        def busy(self: object, path: str, *arguments: object, **options: object) -> object:
            if path.endswith(level or "-listing"):
                raise OSError(errno.EBUSY, "Please reduce your request rate")
            return listed(self, path, *arguments, **options)

        monkeypatch.setattr(type(system), "ls", busy)
        # As most file systems; that of memory asks for all levels at once.
        monkeypatch.setattr(type(system), "find", fsspec.AbstractFileSystem.find)
    with pytest.raises(OSError, match=r"symbolic links|request rate"):
        store.names()
    if level:
        with pytest.raises(OSError, match=r"symbolic links|request rate"):
            store.names(TOPIC)
    else:
        with pytest.raises(OSError, match=r"symbolic links|request rate"):
            store.inner()


def test_a_folder_that_is_removed_while_files_are_listed_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker of another shard removes the folder of an hour with its last file."""
    log, store = MemoryLog({TOPIC: 1}), FolderStore(tmp_path)
    log.append(record())
    archive(log, store)
    listed = os.listdir

    def racing(path: Path) -> list[str]:
        found = listed(path)
        if path.name.startswith("topic="):
            store.remove(f"{LEVELS[-1]}/0000-00000000.parquet")
        return found

    monkeypatch.setattr(os, "listdir", racing)
    assert store.names() == []


class ChangingBus(MemoryBus):
    """Its topic is made again, or loses its first records."""

    def __init__(self, log: MemoryLog, topic: str = TOPIC) -> None:
        super().__init__(log)
        self.log, self.topic, self.id, self.first = log, topic, "one", 0

    def extents(self, topics: object) -> dict[str, Extent]:
        ranges = {number: (self.first, len(log)) for number, log in enumerate(self.log.partitions(self.topic))}
        return {self.topic: Extent(self.id, ranges)}

    def step(self, topics: object) -> dict[str, TopicShape]:
        return {
            self.topic: TopicShape(
                self.id, len(self.log.partitions(self.topic)), (PartitionReplicas(0, frozenset({0}), frozenset({0})),)
            )
        }


def test_files_stay_open_while_the_brokers_say_the_same(tmp_path: Path) -> None:
    """Each answer about the replicas closed all files: there were 150 times as many."""
    log, store = MemoryLog({TOPIC: 1}), FolderStore(tmp_path)
    running = worker(ChangingBus(log), store)
    for number in range(200):
        log.append(record(value=b"%d" % number))
        running.step()
    (file,) = running._open.values()
    assert (file.first, file.next, [*store.names(TOPIC)]) == (0, 200, [])
    assert len(file.batches) < 64, "a batch of one record takes a hundred times its bytes"
    running.finish()
    assert [one.value for one in kept(store)] == [b"%d" % number for number in range(200)]


def test_a_topic_that_is_made_again_goes_on_with_its_new_log(tmp_path: Path) -> None:
    log, store = MemoryLog({TOPIC: 1}), FolderStore(tmp_path)
    bus = ChangingBus(log)
    running = worker(bus, store)
    running.step()
    for _ in range(3):
        log.append(record(value=b"old"))
    running.step()
    log.partitions(TOPIC)[0].clear()
    log.append(record(value=b"new"))
    bus.id = "two"
    for _ in range(4):
        running.step()
    running.finish()
    assert [one.value for one in kept(store)] == [b"old"] * 3 + [b"new"]
    (report,) = verify(store)
    assert (report.faults, len(report.notes)) == ([], 1)
    assert "the topic was made again" in report.notes[0]


def test_more_partitions_are_taken_as_they_come(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log, store = MemoryLog({TOPIC: 1}), FolderStore(tmp_path)
    running = worker(ChangingBus(log), store, TOPIC, "state")
    running.step()
    assert "without topics=state: they do not exist, or may not be read" in caplog.text
    log.append(record(value=b"a"))
    running.step()
    log.partitions(TOPIC).append([])
    log.append(record(value=b"b", partition=1))
    for _ in range(4):
        running.step()
    running.finish()
    assert [(one.partition, one.value) for one in kept(store)] == [(0, b"a"), (1, b"b")]
    assert faults(store) == []


def test_records_that_kafka_has_removed_are_a_gap(tmp_path: Path) -> None:
    log, store = MemoryLog({TOPIC: 1}), FolderStore(tmp_path)
    bus = ChangingBus(log)
    log.append(record())
    archive(bus, store)
    for _ in range(4):
        log.append(record())
    bus.first = 3
    archive(bus, store)
    (fault,) = faults(store)
    assert fault.endswith("0000-00000001.parquet: offsets 1 to 2 were not taken: up to 2 records are missing")


@pytest.mark.parametrize(
    ("topic", "value", "time"),
    [
        ("ingest.heaps", msgspec.json.encode(heap(time=7)), 7),
        ("ingest.heaps", b"ARROW1", None),
        ("ingest.heaps", b'{"time":' * 3000, None),
        ("ingest.heaps", b'{"time":-1}', None),
        ("ingest.heaps", b'{"time":9223372036854775807}', None),
        ("ingest.heaps", None, None),
        ("command-acks", b'{"time":8,"other":[]}', 8),
        ("logs", b'{"time":8}', None),
    ],
)
def test_the_event_time_is_the_field_of_the_interface(topic: str, value: bytes | None, time: int | None) -> None:
    assert event_times(ICD, topic)([value, value]) == [time, time]


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    log, store = MemoryLog({TOPIC: 1}), FolderStore(tmp_path)
    odd = [
        Record(topic=TOPIC, key=None, value=None, timestamp_us=START),
        Record(topic=TOPIC, key=b"", value=b"", headers=(("a", b""), ("a", b"2")), timestamp_us=START),
        Record(topic=TOPIC, key=b"\0", value=bytes(range(256)) * 99, timestamp_us=START),
        Record(topic=TOPIC, key=b"k", value=b'"sha256":"' + b"0" * 64, timestamp_us=START),
    ]
    for one in odd:
        log.append(one)
    archive(log, store)
    assert kept(store) == log.records(TOPIC)


@pytest.mark.parametrize("topic", ["alert-state", "tables"])
def test_a_worker_that_was_killed_still_finds_the_changes_that_are_in_no_file(topic: str) -> None:
    """Two of 122 announcements of tables were in no file of a night with 33 kills."""
    shortest, longest = (float(ICD.topics[topic].config[f"{end}.compaction.lag.ms"]) / 1000 for end in ("min", "max"))
    assert 2 * ArchiveLimits().age <= shortest <= longest
