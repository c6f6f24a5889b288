"""The archive: which records share a file, where a worker goes on, and that each record is in one file."""

import errno
from pathlib import Path
from typing import NamedTuple

import fsspec
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facade.bus.memory import MemoryBus, MemoryLog
from facade.bus.offsets import Extent, PartitionReplicas, TopicShape
from facade.bus.port import Record
from facade.clock import ManualClock
from facade.errors import ConfigError
from facade.flows.archive.files import ArchiveError, event_times, inspect, parse_name, verify
from facade.flows.archive.stores import FolderStore, open_store
from facade.flows.archive.worker import ArchiveLimits
from tests.support.archives import HOUR, ICD, START, TOPIC, archive, faults, kept, record, worker
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
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([None, None, *KILLS])), min_size=1, max_size=25
    )
)
def test_whatever_is_killed_each_record_is_in_one_file(
    steps: list[tuple[int, int, str | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = MemoryLog({TOPIC: 1, "heartbeats": 2})
    store = KilledFolder(tmp_path_factory.mktemp("archive"))
    topics, limits = (TOPIC, "heartbeats"), ArchiveLimits(age=0.0)
    running = worker(log, store, *topics, limits=limits)
    number = 0
    for count, partition, kill in steps:
        for _ in range(count):
            number += 1
            topic = TOPIC if partition == 2 else "heartbeats"
            log.append(record(START + number * HOUR // 4, b"%d" % number, topic, partition % 2 * (topic != TOPIC)))
        store.kills = [kill]
        try:
            running.step()
        except Killed:
            running = worker(log, store, *topics, limits=limits)
    store.kills = []
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
    with pytest.raises(ArchiveError, match="another worker writes the same topic"):
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
