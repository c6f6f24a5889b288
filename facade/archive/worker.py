"""The worker that writes records to an archive, and continues after the files of the archive.

Theory of operation
-------------------
Records of a partition are collected in memory. They are written as a file when they are large or old enough, when a
record of a later hour comes, or when all partitions together exceed the memory limit. The file covers the offsets from
the end of the previous file to the last record. Nothing is committed to Kafka: the newest file of a partition is the
position. So a killed worker loses the records in memory, and reads them from Kafka again.

A thread encodes the files and writes them one by one, in the order in which they became due, while the worker reads on.
A file leaves the queue when it is durable. The worker reads nothing while more than two files are in the queue, while
all files together exceed the memory limit, and after a failure until the queue is empty.

Several workers share the partitions of their topics as shards: a worker of the shard K of N writes the partitions whose
number has the remainder K - 1 after a division by N, and touches no file of another partition. If two workers write a
partition, one of them fails with its next file, as a name is used once.

At a start, and when a topic was created again, got partitions or lost records, the positions are compared with the
topics by `facade.kernel.bus.offsets.begin`: records that Kafka has removed leave a gap between two files, which is
logged, and which `verify` shows.

About once an hour, files beyond their retention are removed. The oldest files of a partition go in their order, up to
the first one to keep, so the rest has no gap, also if the worker is killed in between. The newest file of a partition
stays at any age: it is the worker's position. The name of a file suffices to judge it: a record of a later hour begins
another file. A name with a future time comes from a wrong clock: such a file is removed together with the next one.

A step begins with a report of the worker's state, also while a store does not answer.
"""

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa

from facade.archive.files import (
    ArchiveEntry,
    ArchiveError,
    by_partition,
    encode,
    event_times,
    hour_in,
    hour_of,
    hour_text,
    hours_of,
    inspect,
    sizes_of,
    to_batch,
)
from facade.archive.reports import REPORT_EACH, ArchiveFigures, ArchiveReporter
from facade.archive.stores import Store
from facade.kernel.bus.offsets import PartitionFacts, WorkerPosition, begin
from facade.kernel.bus.port import ColumnReader, PartitionColumns, TopicPartition
from facade.kernel.clock import NEVER, Clock, Time, as_duration, as_seconds, from_ms, utc_seconds
from facade.kernel.config import without_secrets
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.icd.model import Icd
from facade.kernel.printable import printable
from facade.kernel.runtime.accounts import RunningAccount
from facade.kernel.runtime.readers import Bus
from facade.sdp.durations import parse_duration

_log = logging.getLogger(__name__)

_TAKE = 10_000
_REMOVE_EACH = 3600.0
"""Time between two searches for old files [s]."""
_REMOVE = 20
_LONGEST = 500
"""Longest text of an error on the bus [characters]."""
_MOST_DUE = 2
"""Most files in the queue while records are read."""
_BESIDE_LEAST, _BESIDE_MOST = 10.0, 60.0
"""Shortest and longest time between two looks for post-mortems [s]."""
_SLOW = 60.0
"""Time after which a store counts as one that does not answer [s]."""


Shard = tuple[int, int]
"""A part of the partitions: its number, from 1, and how many there are."""
WHOLE: Final = (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """Limits at which files are written."""

    age: float = 300.0
    """Longest time that a record waits in memory [s]."""
    file: int = 32_000_000
    """Size of the records of a file, before compression [bytes]."""
    memory: int = 256_000_000
    """Size of all records in memory [bytes]."""
    wait: float = 0.2
    """Longest wait for records [s]."""
    retry: float = 5.0
    """Pause after a failure of the bus or the archive [s]."""


@dataclass(slots=True)
class _Place:
    """The archived position of a partition."""

    log: str
    next: int
    number: int
    """Number of its next file."""
    since_us: Time = NEVER
    """Unread records are not older; 0: unknown."""


_MOST_BATCHES = 64
"""Most batches of a file in memory: one of a single record takes some 7 kB, beside its bytes."""


@dataclass(slots=True)
class _File:
    """An unwritten file."""

    place: TopicPartition
    number: int
    log: str
    first: int
    hour: int
    began: float
    """Monotonic time of the first record [s]."""
    since_us: Time
    """Kafka's time of the first record."""
    next: int = 0
    """Offset after its last record."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0


class ArchiveWorker:
    """Writes some topics, or a shard of their partitions, to an archive; nothing else may write the same partitions.

    Parameters
    ----------
    deployment
        Prefix of the deployment, so that two deployments do not mix in an archive.
    keep
        Retention of the files of a topic [s]; other topics are kept for ever.
    reporter
        Reports the worker's state; by default nothing is reported.
    shard
        Number of the shard, from 1, and how many there are.
    writer
        Writes the files, one at a time; by default a thread.
    beside
        Called about once in `age`, from 10 s to 60 s, in a thread of its own: a failure is reported until a call
        succeeds, and holds up nothing.
    """

    def __init__(
        self,
        bus: Bus,
        store: Store,
        icd: Icd,
        topics: Sequence[str],
        *,
        deployment: str,
        clock: Clock,
        limits: ArchiveLimits | None = None,
        keep: Mapping[str, float] | None = None,
        reporter: ArchiveReporter | None = None,
        shard: Shard = WHOLE,
        writer: Executor | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        self._bus, self._store, self._topics, self._clock = bus, store, topics, clock
        self._deployment, self._limits = deployment, limits or ArchiveLimits()
        self._event_times = {topic: event_times(icd, topic) for topic in topics}
        self.accounts = {topic: RunningAccount() for topic in topics}
        """Records in files since the start, by topic."""
        self._watch = bus.watch()
        self._reader: ColumnReader | None = None
        self._shapes: dict[str, tuple[str, int]] = {}
        self._newest: dict[TopicPartition, ArchiveEntry] | None = None
        """Entry of the newest file of each partition; None: unknown."""
        self._places: dict[TopicPartition, _Place] = {}
        self._open: dict[TopicPartition, _File] = {}
        self._due = deque[_File]()
        """Closed files, in the order in which they will be written."""
        self._writer = writer or ThreadPoolExecutor(1, "archive-writer")
        self._writing: Future[tuple[ArchiveEntry, int]] | None = None
        """The first file of the queue as it is written: its entry and its size [bytes]."""
        self._writing_since = float("-inf")
        """[monotonic s]"""
        self._beside, self._beside_at = beside, float("-inf")
        self._aside = ThreadPoolExecutor(1, "archive-beside")
        self._done_beside: Future[None] | None = None
        self._space: tuple[int, int] | None = None
        self._asked_space: Future[tuple[int, int] | None] | None = None
        """Asked in the thread of files, as a mount that hangs does not answer this either."""
        self._shard = shard
        self._keep = keep or {}
        self._removed: Iterator[str] = iter(())
        self._look_at = float("-inf")
        """Time of the next search for old files [monotonic s]."""
        self._reporter, self._report_at = reporter, float("-inf")
        """The reporter, and the time of its next report [monotonic s]."""
        self._bytes = self._errors = 0
        self._last_error = self._newest_file = ""
        self._failing = self._removal_failing = self._beside_failing = ""

    def step(self) -> None:
        """Let due files be written, and read some records."""
        self._report()
        self._run_beside()
        try:
            self._remove_expired()  # first, as it may make room
            if self._write_due(self._limits.wait):
                self._read()
                self._failing = ""
        except ArchiveError as error:
            self._failing = self._note(error)
            self._report_at = float("-inf")
            self._report()
            raise
        except (BusError, OSError) as error:
            self._failing = self._note(error)
            _log.warning("archive waits retry=%g s reason=%s", self._limits.retry, error)
            self._clock.sleep(self._limits.retry)

    def finish(self) -> None:
        """Write all records in memory, and leave; a store that hangs is not waited for longer than else."""
        self._close(*self._open)
        try:
            self._write_due(_SLOW, all_of_them=True)
        except OSError as error:
            _log.warning("archive not finished files=%d reason=%s", len(self._due), error)
        if self._reader is not None:
            self._reader.close()

    def _run_beside(self) -> None:
        if self._done_beside is not None and self._done_beside.done():
            error = self._done_beside.exception()
            self._beside_failing = f"post-mortems: {self._note(error)}" if error else ""
            if error:
                _log.warning("archive goes on without its post-mortems reason=%s", error)
            self._done_beside = None
        if self._beside is not None and self._done_beside is None and self._clock.monotonic() >= self._beside_at:
            self._beside_at = self._clock.monotonic() + min(max(self._limits.age, _BESIDE_LEAST), _BESIDE_MOST)
            self._done_beside = self._aside.submit(self._beside)

    def _read(self) -> None:
        if self._reader is None:
            self._reader = self._begin()
        elif self._is_misplaced(self._reader):
            self._reader.close()
            self._reader = None
            self._close(*self._open)
        else:
            self._take(self._reader.take_columns(_TAKE, self._limits.wait))

    # Positions

    def _is_own(self, partition: int) -> bool:
        number, count = self._shard
        return partition % count == number - 1

    def _own_files(self, topic: str) -> dict[TopicPartition, list[str]]:
        """Return the files of the worker's partitions of a topic, in their order."""
        found = by_partition(self._store.names(topic))
        return {place: names for place, names in found.items() if self._is_own(place[1])}

    def _begin(self) -> ColumnReader:
        """Open the bus at the ends of the files."""
        if self._newest is None:
            self._newest = self._find_newest()
        extents = self._watch.extents(self._topics)
        self._shapes = {topic: (one.id, len(one.ranges)) for topic, one in extents.items()}
        if missing := [topic for topic in self._topics if topic not in extents]:
            _log.warning("archive without topics=%s: they do not exist, or may not be read", ", ".join(missing))
        self._places = {}
        for topic, extent in extents.items():
            for partition, (first, end) in extent.ranges.items():
                if not self._is_own(partition):
                    continue
                file = self._newest.get((topic, partition))
                facts = PartitionFacts(extent.id, first, end, -1 if file is None else file.next)
                start = begin((topic, partition), None if file is None else _position(file), facts)
                if start.note:
                    _log.warning("archive and bus differ: %s", start.note)
                number = 0 if file is None else file.number + 1
                self._places[topic, partition] = _Place(start.log, start.offset, number)
        starts: dict[str, dict[int, int]] = {}
        for (topic, partition), place in self._places.items():
            starts.setdefault(topic, {})[partition] = place.next
        return self._bus.open_reader({topic: [*at] for topic, at in starts.items()}, starts, resets=False)

    def _find_newest(self) -> dict[TopicPartition, ArchiveEntry]:
        found: dict[TopicPartition, ArchiveEntry] = {}
        for topic in self._topics:
            self._store.tidy(topic, self._is_own)
            found.update({place: self._inspect(names[-1]) for place, names in self._own_files(topic).items()})
        return found

    def _inspect(self, name: str) -> ArchiveEntry:
        try:
            found = inspect(self._store.read(name), name)
        except ArchiveError as error:
            raise ArchiveError(f"{name}: {error}; if it is damaged, move it away to write its records again") from error
        if found.deployment != self._deployment:
            what = f"expected files of the deployment {self._deployment!r}, got one of {found.deployment!r}"
            raise ArchiveError(f"{name}: {what}; give each deployment an archive of its own")
        return found

    def _is_misplaced(self, reader: ColumnReader) -> bool:
        """Return whether topics differ from those that are read: created again, cut, with more partitions, or new."""
        seen = self._watch.step(self._topics)
        return reader.is_misplaced or any(
            (shape.id, shape.partitions) != self._shapes.get(topic) for topic, shape in seen.items()
        )

    # Files

    def _take(self, found: Sequence[PartitionColumns]) -> None:
        limits, now = self._limits, self._clock.monotonic()
        for columns in found:
            self._collect(self._new(columns), now)
        self._close(*(place for place, file in self._open.items() if now - file.began >= limits.age))
        while sum(file.size for file in self._open.values()) >= limits.memory:
            self._close(max(self._open, key=lambda place: self._open[place].size))

    def _new(self, columns: PartitionColumns) -> PartitionColumns:
        """Return the records behind the position: a client that begins again may bring some for a second time."""
        at, count = self._places[columns.topic, columns.partition].next, len(columns.offsets)
        begin = bisect_left(columns.offsets, at)
        if begin:
            what = f"{columns.topic}, partition {columns.partition}, offsets from {columns.offsets[0]} to {at - 1}"
            _log.warning("archive got records for a second time records=%d of %s", begin, what)
        return columns.part(begin, count)

    def _collect(self, columns: PartitionColumns, now: float) -> None:
        """Add records to their files."""
        place, most = (columns.topic, columns.partition), self._limits.file
        at, hours, count = self._places[place], hours_of(columns.timestamps), len(columns.offsets)
        batch, begin = to_batch(columns, self._event_times[columns.topic]), 0
        sizes = np.cumsum(sizes_of(batch))
        while begin < count:
            file = self._open.get(place)
            if file is not None and (hours[begin] > file.hour or file.size >= most):
                self._close(place)
                file = None
            if file is None:
                since_us, hour = from_ms(columns.timestamps[begin]), int(hours[begin])
                file = self._open[place] = _File(place, at.number, at.log, at.next, hour, now, since_us)
                at.number += 1
            before = int(sizes[begin - 1]) if begin else 0
            end = min(int(np.searchsorted(sizes, before + most - file.size)) + 1, count)
            end = begin + int(np.argmax([*(hours[begin:end] > file.hour), True]))
            assert end > begin, f"{place}: no record fits file {file.number}, which would never end"
            file.batches.append(batch.slice(begin, end - begin))
            if len(file.batches) >= _MOST_BATCHES:
                file.batches = pa.Table.from_batches(file.batches).combine_chunks().to_batches()
            file.size += int(sizes[end - 1]) - before
            at.next, at.since_us, begin = columns.offsets[end - 1] + 1, from_ms(columns.timestamps[end - 1]), end
            file.next = at.next
        self.accounts[columns.topic].uncommitted += count

    def _close(self, *places: TopicPartition) -> None:
        self._due.extend(self._open.pop(place) for place in places)

    def _write_due(self, patience: float, *, all_of_them: bool = False) -> bool:
        """Let the files of the queue be written; return whether records may be read meanwhile.

        If not, or for all of them, each is waited for, at most `patience` [s].
        """
        while self._due:
            if self._writing is None:
                self._writing = self._writer.submit(self._write, self._due[0])
                self._writing_since = self._clock.monotonic()
            is_full = all_of_them or self._is_full()
            if not wait_for([self._writing], patience if is_full else 0.0).done:
                if self._clock.monotonic() - self._writing_since >= _SLOW:
                    raise OSError(f"the store has not answered for {_SLOW:g} s")
                return not is_full
            written, self._writing = self._writing, None
            self._note_written(*written.result())
        return True

    def _is_full(self) -> bool:
        """Return whether nothing may be read before a file is written."""
        size = sum(file.size for file in (*self._open.values(), *self._due))
        is_waiting = self._reader is None or bool(self._failing)
        return is_waiting or len(self._due) > _MOST_DUE or size >= self._limits.memory

    def _write(self, file: _File) -> tuple[ArchiveEntry, int]:
        """Write a file, in the thread of files; return its entry and its size."""
        topic, partition = file.place
        contents = ArchiveEntry(
            deployment=self._deployment,
            topic=topic,
            partition=partition,
            number=file.number,
            hour=file.hour,
            log=file.log,
            first=file.first,
            next=file.next,
            records=sum(map(len, file.batches)),
        )
        raw = encode(file.batches, contents)
        try:
            self._store.write(contents.name, raw)
        except FileExistsError as error:
            what = "expected no file of this name, as another worker writes the same partition"
            raise ArchiveError(f"{contents.name}: {what}: give each topic, or each shard, to one worker") from error
        return contents, len(raw)

    def _note_written(self, contents: ArchiveEntry, size: int) -> None:
        """Move the position behind the first file of the queue, which is durable."""
        file, count = self._due.popleft(), contents.records
        before = (self._newest or {}).get(file.place)
        if before is not None:
            is_next = contents.number == before.number + 1
            assert is_next, f"{file.place}: file {contents.number} comes after file {before.number}"
            joins = contents.log != before.log or contents.first >= before.next
            assert joins, f"{file.place}: a file begins at {contents.first}, and the one before ends at {before.next}"
        if self._newest is not None:
            self._newest[file.place] = contents
        self._bytes += size
        self._newest_file = contents.name
        account = self.accounts[contents.topic]
        account.uncommitted -= count
        left = account.uncommitted
        assert left >= 0, f"{contents.topic}: {-left} records are written that were not read"
        account.consumed += count
        account.used += count
        _log.info("archived file=%s records=%d", contents.name, count)

    # Retention

    def _remove_expired(self) -> None:
        if self._clock.monotonic() >= self._look_at:
            self._look_at = self._clock.monotonic() + _REMOVE_EACH
            self._removed = self._remove_each()
        try:
            for name in islice(self._removed, _REMOVE):
                _log.info("archive removed file=%s, older than its retention", name)
        except OSError as error:  # it has ended the search: the file still exists, so no later one may go
            self._removal_failing = f"old files: {self._note(error)}"
            _log.warning("archive goes on without removing old files reason=%s", error)

    def _remove_each(self) -> Iterator[str]:
        """Remove old files one by one, and yield their names."""
        for name in _expired(self._own_files, self._keep, self._clock.now_us()):
            self._store.remove(name)
            yield name
        self._removal_failing = ""

    # Reports

    def _report(self) -> None:
        if self._reporter is None or self._clock.monotonic() < self._report_at:
            return
        self._report_at = self._clock.monotonic() + REPORT_EACH
        self._ask_space()
        now, oldest = self._clock.now_us(), self._oldest_us()
        self._reporter.tell(
            ArchiveFigures(
                behind=None if oldest is None else max(as_seconds(now - oldest), 0.0),
                written=self._bytes,
                newest=self._newest_file,
                errors=self._errors,
                last_error=self._last_error,
                failing=self._failing or self._refusals() or self._removal_failing or self._beside_failing,
                space=self._space,
            )
        )

    def _refusals(self) -> str:
        """Return a text about the topics that the brokers do not let the worker read; empty: there are none."""
        refused = self._reader.refused if self._reader is not None else ()
        text = f"no right to read {', '.join(sorted(refused))}: this process's principal needs Describe and Read on it"
        return text[:_LONGEST] if refused else ""

    def _ask_space(self) -> None:
        if self._asked_space is None:
            self._asked_space = self._writer.submit(self._store.space)
        if wait_for([self._asked_space], self._limits.wait).done:
            self._space, self._asked_space = self._asked_space.result(), None

    def _note(self, error: BaseException) -> str:
        """Count a failure, and return its text for the bus."""
        self._errors += 1
        text = printable(without_secrets(f"{error}"))[:_LONGEST]
        self._last_error = f"{utc_seconds(self._clock.now_us())} {text}"
        return text

    def _oldest_us(self) -> Time | None:
        """Return the time of the oldest record that may be read and is in no file, perhaps now; None: unknown."""
        if self._reader is None:
            return None
        oldest = now_us = self._clock.now_us()
        waiting = {file.place: file.since_us for file in (*self._open.values(), *reversed(self._due))}
        read = {topic for topic, _ in self._places}.difference(self._reader.refused)  # an alarm names the others
        behind = {topic: self._reader.behind(topic) for topic in read}
        for (topic, partition), place in self._places.items():
            if topic not in read:
                continue
            count = behind[topic].get(partition)
            if count == 0:
                place.since_us = now_us
            since = waiting.get((topic, partition), place.since_us)
            if count is None or not since:
                return None
            oldest = min(oldest, since)
        return oldest


def _position(file: ArchiveEntry) -> WorkerPosition:
    return WorkerPosition(
        group="archive", topic=file.topic, partition=file.partition, log=file.log, next=file.next, worker="archive"
    )


def parse_shard(text: str) -> Shard:
    """Return a shard by its text, such as ``1/2``."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ConfigError(f"--shard: expected the number of a shard and how many there are, as 1/2, got {text!r:.100}")
    return int(number), int(count)


def parse_keep(rules: Collection[str], topics: Collection[str]) -> dict[str, float]:
    """Return the retention of each topic [s] by rules such as ``400d`` for all, or ``ingest.heaps=30d`` for one."""
    found: dict[str, float] = {}
    for rule in rules:
        topic, _, duration = rule.rpartition("=")
        if "=" in rule and topic not in topics:
            raise ConfigError(f"--keep: expected TOPIC=DURATION with some of {', '.join(topics)}, got {rule!r:.100}")
        if topic in found:
            raise ConfigError(f"--keep: expected one rule for {topic or 'all topics'}, got two")
        found[topic] = parse_duration(duration, "--keep")
    default = found.pop("", None)
    return (dict.fromkeys(topics, default) if default else {}) | found


def _expired(
    files_of: Callable[[str], Mapping[TopicPartition, Sequence[str]]], keep: Mapping[str, float], now_us: Time
) -> Iterator[str]:
    """Return the names of the files to remove, in order. The store is asked during the iteration."""
    latest = hour_text(hour_of(now_us) + 1)
    for topic, age in keep.items():
        hour = hour_text(hour_of(now_us - as_duration(age)))
        for files in files_of(topic).values():
            due: list[str] = []
            for name in files[:-1]:
                due.append(name)
                if hour_in(name) > latest:
                    continue
                if hour_in(name) >= hour:
                    break
                yield from due
                due.clear()
