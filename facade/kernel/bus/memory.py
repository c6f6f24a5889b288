"""The bus in memory: all topics of one process, without a broker, for tests.

It implements the Protocols of a device server's bus (`facade.kernel.runtime.composition.ServerBus`). A record is on its
topic when the write returns, so nothing is ever under way, and nothing fails. Nothing is removed either: a test reads
all records written.
"""

import itertools
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from zlib import crc32

from facade.kernel.bus.offsets import Extent, TopicShape
from facade.kernel.bus.port import BusHealth, PartitionColumns, Record
from facade.kernel.clock import Clock, SystemClock, to_ms
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load

__all__ = ["MemoryBus", "MemoryLog"]


class MemoryLog:
    """Topics with their records; any thread may use it.

    Parameters
    ----------
    partitions
        Number of partitions by topic; by default the topics of the interface.
    clock
        Gives each record the time at which it was appended.

    Examples
    --------
    >>> log = MemoryLog()
    >>> alerts = AlertSource("receive/0007", MemoryBus(log))
    >>> alert = alerts.raise_alert("receiveOverrun", "ALARM", "312 records/s dropped")
    >>> [record.key for record in log.records("alerts")]
    [b'receiveOverrun']
    """

    def __init__(self, partitions: Mapping[str, int] | None = None, clock: Clock | None = None) -> None:
        if partitions is None:
            partitions = {name: topic.partitions for name, topic in load().topics.items()}
        self._logs: dict[str, list[list[Record]]] = {
            name: [[] for _ in range(count)] for name, count in partitions.items()
        }
        self._clock = clock or SystemClock()
        self.changed = threading.Condition()
        """Notified with each record."""

    def append(self, record: Record) -> None:
        """Write a record to its partition, or to the partition of its key."""
        with self.changed:
            logs = self.partitions(record.topic)
            number = record.partition if record.partition >= 0 else crc32(record.key or b"") % len(logs)
            at = record.timestamp_us or self._clock.now_us()
            logs[number].append(replace(record, partition=number, offset=len(logs[number]), timestamp_us=at))
            self.changed.notify_all()

    def records(self, topic: str) -> list[Record]:
        """Return all records of a topic, partition by partition."""
        with self.changed:
            return [record for log in self.partitions(topic) for record in log]

    def partitions(self, topic: str) -> list[list[Record]]:
        """Return the records of a topic by partition; the caller holds `changed`."""
        if topic not in self._logs:
            raise BusError(f"topic {topic} does not exist; expected one of {', '.join(sorted(self._logs))}")
        return self._logs[topic]


class MemoryReader:
    """Reads some topics; see `facade.kernel.bus.port.Reader`."""

    is_misplaced = False
    refused: Collection[str] = ()

    def __init__(
        self, log: MemoryLog, topics: Mapping[str, Sequence[int] | None], start: Mapping[str, Mapping[int, int]]
    ) -> None:
        self._log = log
        with log.changed:
            self._ends = {
                (topic, number): len(log.partitions(topic)[number])
                for topic, chosen in topics.items()
                for number in (range(len(log.partitions(topic))) if chosen is None else chosen)
            }
        self._next = {(topic, number): start.get(topic, {}).get(number, 0) for topic, number in self._ends}

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records, at most `limit`, waiting at most `timeout` [s] for the first."""
        with self._log.changed:
            self._log.changed.wait_for(lambda: next(self._unread(), None), timeout)
            records = [*itertools.islice(self._unread(), limit)]
            for record in records:
                self._next[record.topic, record.partition] = record.offset + 1
        return records

    def take_columns(self, limit: int, timeout: float) -> Sequence[PartitionColumns]:
        """Return the next records as columns."""
        found = []
        records = self.take(limit, timeout)
        for (topic, number), run in itertools.groupby(records, lambda one: (one.topic, one.partition)):
            columns = ((one.offset, to_ms(one.timestamp_us), one.key, one.value, one.headers) for one in run)
            found.append(PartitionColumns(topic, number, *map(list, zip(*columns, strict=True))))
        return found

    def caught_up(self, topic: str) -> bool:
        """Return whether all records have been read that were on a topic at the start."""
        return all(self._next[place] >= end for place, end in self._ends.items() if place[0] == topic)

    def behind(self, topic: str) -> dict[int, int]:
        """Count the unread records, by partition."""
        with self._log.changed:
            logs = self._log.partitions(topic)
            return {number: len(logs[number]) - at for number, at in self.reached(topic).items()}

    def reached(self, topic: str) -> dict[int, int]:
        """Return the next offset to read, by partition."""
        return {number: at for (name, number), at in self._next.items() if name == topic}

    def close(self) -> None:
        """Do nothing."""

    def _unread(self) -> Iterator[Record]:
        for (topic, number), at in self._next.items():
            yield from self._log.partitions(topic)[number][at:]


class MemoryBus:
    """The bus of one device server: opens readers, and is its own writer, sender and watch.

    Parameters
    ----------
    log
        The topics; all buses of a test share one log.
    """

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.health = BusHealth(connected=True)

    def open_reader(
        self,
        topics: Mapping[str, Sequence[int] | None],
        start: Mapping[str, Mapping[int, int]],
        *,
        committed: bool = True,
        resets: bool = True,
    ) -> MemoryReader:
        """Read some partitions of topics (None: all) from given offsets, or else from their beginning."""
        return MemoryReader(self._log, topics, start)

    def read_all(self, topic: str, *, settled: bool = False) -> list[Record]:
        """Return everything on a topic."""
        return self._log.records(topic)

    def watch(self) -> "MemoryBus":
        """Return the watch over topics."""
        return self

    def replica_watch(self) -> "MemoryBus":
        """Return the watch over topics; nothing has replicas here."""
        return self

    def writer(self) -> "MemoryBus":
        """Return the writer."""
        return self

    def sender(self) -> "MemorySender":
        """Return the sender of commands."""
        return MemorySender(self._log)

    def open_writer(self, purpose: str) -> "MemoryBus":
        """Return the writer."""
        return self

    # The watch; see `facade.kernel.bus.offsets.TopicWatch`.

    def extents(self, topics: Iterable[str]) -> dict[str, Extent]:
        """Return first and last offsets of topics."""
        with self._log.changed:
            return {
                topic: Extent(topic, {number: (0, len(log)) for number, log in enumerate(self._log.partitions(topic))})
                for topic in topics
            }

    def step(self, topics: Iterable[str]) -> dict[str, TopicShape]:
        """Return id and size of topics."""
        return {topic: TopicShape(topic, len(self._log.partitions(topic))) for topic in topics}

    # The writer; see `facade.kernel.bus.port.QueueingWriter`.

    def send(self, record: Record) -> None:
        """Write a record."""
        self._log.append(record)

    def post(self, records: Sequence[Record]) -> "MemoryReceipt":
        """Write records."""
        for record in records:
            self._log.append(record)
        return MemoryReceipt()

    def send_durably(self, record: Record, timeout: float) -> None:
        """Write a record."""
        self._log.append(record)

    def send_all_durably(self, records: Sequence[Record], timeout: float) -> None:
        """Write records."""
        self.post(records)

    def mark(self) -> int:
        """Return a mark; nothing is under way."""
        return 0

    def settled(self, mark: int) -> bool:
        """Return whether everything before a mark is written: always."""
        return True

    def failures(self, topic: str) -> int:
        """Count the failed writes: none."""
        return 0

    def close(self, timeout: float) -> None:
        """Do nothing: nothing is queued."""


class MemoryReceipt:
    """Receipt of posted records: they are on the bus."""

    confirmed = True

    def wait(self, timeout: float) -> None:
        """Return at once."""


class MemorySender:
    """Sends single commands; see `facade.kernel.bus.port.CommandSender`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def send(self, record: Record, timeout: float) -> "MemorySending":
        """Write a record."""
        self._log.append(record)
        return MemorySending()

    def post(self, record: Record) -> None:
        """Write a record."""
        self._log.append(record)

    def perform(self) -> None:
        """Do nothing: there are no reports."""

    def end(self) -> None:
        """Do nothing: nothing is under way."""

    def close(self, timeout: float) -> None:
        """Do nothing: nothing is queued."""


class MemorySending:
    """A record that is on the bus."""

    def result(self) -> None:
        """Return at once."""
