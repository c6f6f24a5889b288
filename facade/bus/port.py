"""What the rest of the package needs of a log: small Protocols that Kafka and the memory bus both meet.

Names of topics are those of the ICD here; the deployment's prefix is put on and taken off inside
the implementations, once, at the edge.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from facade.errors import BusError


class Aborted(BusError):
    """A transaction did not happen; the source has gone back, and gives the same records again."""


class Revoked(Aborted):
    """It did not happen as the records are others' to take; nothing has failed that it would help to wait for."""


class Fenced(BusError):
    """Another process has taken this worker's slot; this one must stop."""


Headers = tuple[tuple[str, bytes], ...]
TopicPartition = tuple[str, int]
"""A partition of a topic, as the ICD names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record, read or to be written."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int = -1
    """-1 when writing: chosen by the key."""
    offset: int = -1
    timestamp_us: int = 0
    """When the record was created or appended, as the topic's setting says [Unix us]."""


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
        """Return some of the records, by their place."""
        topic, partition, offsets, timestamps, keys, values, headers = self
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
                timestamp_us=time * 1000,
            )


class PartitionBatch(Protocol):
    """Records of one partition in the order of the log, not looked into yet."""

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
    def appended(self) -> tuple[int, int]:
        """Return the timestamps of the first and the last record [Unix us]."""

    @property
    def high_watermark(self) -> int:
        """Return the offset after the newest record of the partition, as last heard; -1: not known."""

    def values(self) -> list[bytes | None]:
        """Return the values in order."""

    def append_time(self, index: int) -> int:
        """Return the timestamp of one record [Unix us]."""

    def record(self, index: int) -> Record:
        """Return one record whole."""


@dataclass(slots=True)
class OffsetRange:
    """The offsets [begin, end) of one partition in a transaction: from the position before it to the one after it."""

    log: str
    """The log of the offsets: the topic's id ("?" where the brokers give none), and "#" with the number of the epoch
    after it was cut, see `facade.bus.offsets`."""
    begin: int
    end: int
    high_watermark: int = -1
    """Offset after the newest record, as last heard; -1: not known."""
    note: str = ""
    """What did not agree when the worker began here; told once, with the first transaction."""
    partitions: int = 0
    """How many the topic has, as last heard; 0: not known."""
    read_to: int = 0
    """All records that the broker appended before this time are taken [Unix us]; 0: not known.

    It is the append time of the last record taken, or the brokers' time before the partition was asked for its end, if
    nothing lay behind the last record taken.
    """


class TransactionalLog(Protocol):
    """Takes records and, in one transaction, writes what became of them and commits their offsets."""

    def take(self, limit: int, timeout: float) -> Sequence[PartitionBatch]:
        """Return the next records, at most `limit`, waiting at most `timeout` [s] for them.

        Raises
        ------
        Aborted
            Partitions were taken away; everything taken since the last commit must be forgotten.
        """

    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """Return the ranges since the last commit, of each partition that this worker has."""

    @property
    def broker_time(self) -> int:
        """Return the brokers' time [Unix us], as far as it is known: never ahead of it; 0: not known yet."""

    def ask_ends(self, places: Collection[TopicPartition]) -> None:
        """Ask where partitions end, by topic and partition, and move `read_to` on where everything is taken.

        Without an answer nothing moves. The wait for it is short.
        """

    def commit(self, records: Iterable[Record]) -> None:
        """Write `records` and commit the place after everything taken, all or nothing.

        Raises
        ------
        Aborted
            Nothing happened; the records will be taken again.
        Fenced
            This worker has been replaced.
        """

    def close(self) -> None:
        """Leave without a commit."""


class GroupMember(Protocol):
    """One member of a consumer group of one topic, which commits offsets itself."""

    @property
    def assignment(self) -> Mapping[int, int]:
        """Return the partitions that this member answers for, as of the last `take`.

        The number with each is another one every time that the partition comes back: in between it may
        have been another member's.
        """

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records, at most `limit`, waiting at most `timeout` [s] for the first.

        A partition that is newly assigned begins where the group has committed, so records may come
        again that this member has taken before. A commit that another thread asks for may have to wait as long.

        Raises
        ------
        Fenced
            Another process has taken this member's name.
        """

    def holds(self, partition: int, number: int) -> bool:
        """Return whether a partition was never taken away since it was given with that number; from any thread.

        It is known here before the group can give the partition to anyone else, unlike in `assignment`.
        """

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Say durably, by partition, before which offset everything is done; may be called from any thread.

        Raises
        ------
        BusError
            It is not known to be committed.
        """

    def committed(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Return what the group has committed; -1: nothing.

        Raises
        ------
        BusError
            The broker does not answer.
        """

    def go_on(self, offsets: Mapping[int, int]) -> None:
        """Give partitions from other offsets on; for callers that keep their own positions.

        A position that is not on the log, then or later, gives the partition another number in `assignment`.
        """

    def close(self) -> None:
        """Leave."""


class Receipt(Protocol):
    """What the bus says of records that were posted."""

    def wait(self, timeout: float) -> None:
        """Wait until all in-sync replicas have all of the records.

        Raises
        ------
        BusError
            One of them is not known to be there after `timeout` [s]; the message says whether it may be.
        """

    @property
    def confirmed(self) -> bool:
        """Tell, without waiting, whether they are known to be there."""


class Writer(Protocol):
    """Writes single records."""

    def send(self, record: Record) -> None:
        """Queue a record; a failure is counted and logged, not raised."""

    def post(self, records: Sequence[Record]) -> Receipt:
        """Queue records whose receipt will be asked for; those of one partition arrive in the order of all posts.

        Raises
        ------
        BusError
            The queue takes them no more.
        """

    def send_durably(self, record: Record, timeout: float) -> None:
        """Write a record and wait until all in-sync replicas have it.

        Raises
        ------
        BusError
            It is not known to be there after `timeout` [s]; the message says whether it may be.
        """

    def send_all_durably(self, records: Sequence[Record], timeout: float) -> None:
        """Write records and wait once until all in-sync replicas have all of them.

        Raises
        ------
        BusError
            One of them is not known to be there after `timeout` [s]; others may be.
        """

    def close(self, timeout: float) -> None:
        """Wait for queued records, at most `timeout` [s]."""


class QueueingWriter(Writer, Protocol):
    """A writer that tells the fate of queued records without waiting."""

    def mark(self) -> int:
        """Return a mark that stands behind everything queued so far."""

    def settled(self, mark: int) -> bool:
        """Return whether the fate of everything before a mark is known."""

    def failures(self, topic: str) -> int:
        """Count the records for a topic whose delivery failed."""


class Reader(Protocol):
    """Reads partitions of some topics from given places on, with the isolation that it was opened with."""

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records, at most `limit`, waiting at most `timeout` [s] for them."""

    def caught_up(self, topic: str) -> bool:
        """Return whether everything has been taken that stood on the topic at the start, or was."""

    def behind(self, topic: str) -> Mapping[int, int]:
        """Count the records behind the last one taken, by partition, without a question to the brokers."""

    def reached(self, topic: str) -> Mapping[int, int]:
        """Return the next offset to take, by partition: also behind marks of transactions, which are no records."""

    @property
    def is_misplaced(self) -> bool:
        """Return whether a place is not on its log, so that nothing more of the partition is given."""

    def close(self) -> None:
        """Stop reading."""


class ColumnReader(Reader, Protocol):
    """A reader that also gives columns, for a quarter of the time that single records take."""

    def take_columns(self, limit: int, timeout: float) -> Sequence[PartitionColumns]:
        """Return the next records, at most `limit`, waiting at most `timeout` [s] for them."""


@dataclass(slots=True)
class BusHealth:
    """What a client of the bus knows about its connection; written by it, read by anyone."""

    connected: bool = False
    last_error: str = ""
    last_error_at: float = 0.0
    """Wall-clock time of `last_error` [Unix s]."""

    down_at: float = 0.0
    """Monotonic time at which a client last failed to reach a broker [s]."""
    last_up: dict[object, float] = field(default_factory=dict, repr=False)
    """Monotonic time at which each client was last connected [s]; of clients that are not, nothing."""


class TransactionalMember(GroupMember, Protocol):
    """A member whose effects are on the bus: they and its places are one transaction.

    `committed` waits for commits under way, of any member. From then on the group refuses members that have lost the
    partitions: their records stand before the present ends of topics.
    """

    def write(self, records: Iterable[Record], offsets: Mapping[int, int]) -> None:
        """Write records, and say by partition before which offset everything is done: both or neither.

        Raises
        ------
        Aborted
            It did not happen, or may have; `committed` and the topics say which of the two.
        Fenced
            Another process has taken this member's name.
        """
