"""The Protocols of the bus; Kafka and the memory bus implement them.

Topics have the ICD's names here; the implementations add and remove the deployment's prefix.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from facade.kernel.clock import NEVER, Time, from_ms
from facade.kernel.errors import BusError


class Aborted(BusError):
    """A transaction failed, or its answer was lost; the source continues at its own position, which tells."""


class Revoked(Aborted):
    """The transaction did not happen, as the records belong to other members now.

    Nothing has failed, so a pause would not help.
    """


class Fenced(BusError):
    """Another process has taken this worker's slot; this one must stop."""


Headers = tuple[tuple[str, bytes], ...]
TRANSACTION: Final = "transaction"
"""Header of each record that a worker writes in a transaction: slot, run of the process, number in this run, and how
many records the transaction has."""
TopicPartition = tuple[str, int]
"""A partition of a topic, by its name in the ICD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record, read or to write."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int = -1
    """-1 when writing: by the key."""
    offset: int = -1
    timestamp_us: Time = NEVER
    """Creation or append time of the record, by the topic's setting."""


class PartitionColumns(NamedTuple):
    """Records of one partition in the order of the log, as columns of one length."""

    topic: str
    partition: int
    offsets: list[int]
    timestamps: list[int]
    """[Unix ms]"""
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]

    def part(self, begin: int, end: int) -> "PartitionColumns":
        """Return a slice of the records."""
        topic, partition, offsets, timestamps, keys, values, headers = self
        if begin == 0 and end >= len(offsets):
            return self
        at = slice(begin, end)
        return PartitionColumns(topic, partition, offsets[at], timestamps[at], keys[at], values[at], headers[at])

    def records(self) -> Iterator[Record]:
        """Return the records one by one."""
        for offset, time, key, value, headers in zip(*self[2:], strict=True):
            yield Record(
                topic=self.topic,
                key=key,
                value=value,
                headers=headers,
                partition=self.partition,
                offset=offset,
                timestamp_us=from_ms(time),
            )


class PartitionBatch(Protocol):
    """Records of one partition in the order of the log, not decoded yet."""

    @property
    def topic(self) -> str:
        """Return the topic."""

    @property
    def partition(self) -> int:
        """Return the partition."""

    @property
    def first_offset(self) -> int:
        """Return the offset of the first record."""

    @property
    def last_offset(self) -> int:
        """Return the offset of the last record."""

    @property
    def appended(self) -> tuple[Time, Time]:
        """Return the timestamps of the first and the last record."""

    @property
    def high_watermark(self) -> int:
        """Return the offset after the newest record of the partition, as last reported; -1: unknown."""

    def values(self) -> list[bytes | None]:
        """Return the values in order."""

    def append_time(self, index: int) -> Time:
        """Return the timestamp of one record."""

    def record(self, index: int) -> Record:
        """Return one record whole."""


@dataclass(slots=True)
class OffsetRange:
    """The offsets [begin, end) of one partition in a transaction: from the position before it to the one after it."""

    log: str
    """The log of the offsets: the topic's id ("?" if the brokers give none), and "#" with the number of the epoch after
    it was cut, see `facade.kernel.bus.offsets`."""
    begin: int
    end: int
    high_watermark: int = -1
    """Offset after the newest record, as last reported; -1: unknown."""
    note: str = ""
    """Disagreement found when the worker began here; reported once, with the first transaction."""
    partitions: int = 0
    """Number of partitions of the topic, as last reported; 0: unknown."""
    read_to: Time = NEVER
    """All records that the broker appended before this time are consumed; 0: unknown.

    It is the append time of the last consumed record. If nothing followed that record, it is the brokers' time before
    the request for the partition's end.
    """


class TransactionalLog(Protocol):
    """Consumes records; writes their results and commits their offsets in one transaction."""

    def take(self, limit: int, timeout: float) -> Sequence[PartitionBatch]:
        """Return the next records, at most `limit`, waiting at most `timeout` [s] for them.

        Raises
        ------
        Aborted
            Partitions were revoked; everything consumed since the last commit must be forgotten.
        """

    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """Return the ranges since the last commit, for each partition of this worker."""

    @property
    def broker_time(self) -> Time:
        """Return the brokers' time, as far as it is known, and never ahead of it; 0: unknown."""

    def ask_ends(self, places: Collection[TopicPartition]) -> None:
        """Request the ends of partitions, and advance `read_to` where everything is consumed.

        Without an answer nothing changes. The wait for it is short.
        """

    def commit(self, records: Iterable[Record]) -> None:
        """Write `records` and commit the offsets after all consumed records, all or nothing.

        Raises
        ------
        Aborted
            It did not happen, or may have: the source continues at its own position, which tells.
        Fenced
            This worker has been replaced.
        """

    def close(self) -> None:
        """Leave without a commit."""


class GroupMember(Protocol):
    """One member of a consumer group of one topic, which commits offsets explicitly."""

    @property
    def assignment(self) -> Mapping[int, int]:
        """Return the partitions of this member, as of the last `take`.

        Each partition comes with a number that changes at each assignment: in between the partition may have been
        another member's.
        """

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records, at most `limit`, waiting at most `timeout` [s] for the first.

        A newly assigned partition begins at the committed offset, so records may come again. A commit for another
        thread may take as long.

        Raises
        ------
        Fenced
            Another process uses this member's name.
        """

    def holds(self, partition: int, number: int) -> bool:
        """Return whether a partition has stayed assigned since it got a number; from any thread.

        Unlike `assignment`, it is up to date before the group can give the partition to another member.
        """

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit, by partition, the offset before which everything is done; may be called from any thread.

        Raises
        ------
        BusError
            The commit is not known to have happened.
        """

    def committed(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Return the group's committed offsets; -1: none.

        Raises
        ------
        BusError
            The broker does not answer.
        """

    def go_on(self, offsets: Mapping[int, int]) -> None:
        """Continue from other offsets; for callers with their own positions.

        A position that is not on the log, now or later, gives the partition another number in `assignment`.
        """

    def close(self) -> None:
        """Leave."""


class Receipt(Protocol):
    """Receipt for posted records."""

    def wait(self, timeout: float) -> None:
        """Wait until all in-sync replicas have all of the records.

        Raises
        ------
        BusError
            One of them is not known to be stored after `timeout` [s]; the message says whether it may be.
        """

    @property
    def confirmed(self) -> bool:
        """Return, without waiting, whether they are known to be stored."""


class Writer(Protocol):
    """Writes single records."""

    def send(self, record: Record) -> None:
        """Queue a record; a failure is counted and logged, not raised."""

    def post(self, records: Sequence[Record]) -> Receipt:
        """Queue records whose receipt is checked later; records of one partition arrive in the order of all posts.

        Raises
        ------
        BusError
            The queue accepts them no more.
        """

    def send_durably(self, record: Record, timeout: float) -> None:
        """Write a record and wait until all in-sync replicas have it.

        Raises
        ------
        BusError
            It is not known to be stored after `timeout` [s]; the message says whether it may be.
        """

    def send_all_durably(self, records: Sequence[Record], timeout: float) -> None:
        """Write records and wait once until all in-sync replicas have all of them.

        Raises
        ------
        BusError
            One of them is not known to be stored after `timeout` [s]; others may be.
        """

    def close(self, timeout: float) -> None:
        """Wait for queued records, at most `timeout` [s]."""


class Sending(Protocol):
    """A single record on its way to the bus."""

    def result(self) -> None:
        """Wait until all in-sync replicas have the record.

        Raises
        ------
        NotSent
            The record is surely not on the bus, and will not be.
        OutcomeUnknown
            The record may be on the bus, or still come, after the timeout.
        """


class CommandSender(Protocol):
    """Writes single records in a bounded time."""

    def send(self, record: Record, timeout: float) -> Sending:
        """Queue a record, to which the bus has `timeout` [s]; later ones are sent after it."""


class QueueingWriter(Writer, Protocol):
    """A writer that reports the results of queued records without waiting."""

    def mark(self) -> int:
        """Return a mark after everything queued so far."""

    def settled(self, mark: int) -> bool:
        """Return whether everything before a mark has a result."""

    def failures(self, topic: str) -> int:
        """Count the records for a topic whose delivery failed."""


class Reader(Protocol):
    """Reads partitions of some topics from given offsets, with the isolation that it was opened with."""

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records, at most `limit`, waiting at most `timeout` [s] for them."""

    def caught_up(self, topic: str) -> bool:
        """Return whether the end of the topic at the start, or a later end, has been reached."""

    def behind(self, topic: str) -> Mapping[int, int]:
        """Count the records after the last one read, by partition, without a request to the brokers."""

    def reached(self, topic: str) -> Mapping[int, int]:
        """Return the next offset to read, by partition.

        It may follow an end marker of a transaction, which is no record.
        """

    @property
    def is_misplaced(self) -> bool:
        """Return whether a position is not on its log, so that the partition delivers nothing more."""

    def close(self) -> None:
        """Stop reading."""


class ColumnReader(Reader, Protocol):
    """A reader that also returns columns, in a quarter of the time that single records take."""

    @property
    def refused(self) -> Collection[str]:
        """Return the topics that the brokers do not allow this reader to read."""

    def take_columns(self, limit: int, timeout: float) -> Sequence[PartitionColumns]:
        """Return the next records, at most `limit`, waiting at most `timeout` [s] for them."""


@dataclass(slots=True)
class BusHealth:
    """State of a client's connection to the bus; written by the client, read by anyone."""

    connected: bool = False
    last_error: str = ""
    last_error_at: Time = NEVER
    """Wall-clock time of `last_error`."""

    down_at: float = 0.0
    """Monotonic time at which a client last failed to reach a broker [s]."""
    last_up: dict[object, float] = field(default_factory=dict, repr=False)
    """Monotonic time at which each client was last connected [s]; without clients that are not."""


class TransactionalMember(GroupMember, Protocol):
    """A member whose effects are on the bus: effects and offsets are one transaction.

    `committed` waits for commits of any member under way. From then on the group refuses members that have lost the
    partitions: their records are before the present ends of topics.
    """

    def write(self, records: Iterable[Record], offsets: Mapping[int, int]) -> None:
        """Write records, and commit by partition the offset after the last record read: both or neither.

        Raises
        ------
        Aborted
            It did not happen, or may have; `committed` and the topics show which.
        Fenced
            Another process uses this member's name.
        """
