"""What a reader's own record of its place is worth, compared with the topic as it is now: verdicts as data, no I/O.

Offsets mean something only together with the topic's id: a topic that is deleted and made again begins at 0 again,
under the same name. A range of offsets is up to so many records: some offsets are marks of transactions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class Extent:
    """A topic as the brokers have it."""

    id: str
    """Empty text: the brokers give no ids."""
    ranges: Mapping[int, tuple[int, int]]
    """First offset on the log, and the offset after the newest, by partition; of a log that was cut and has grown
    again, the offset where it was cut."""


class TopicShape(NamedTuple):
    """What a topic is now."""

    id: str
    """Empty text: the brokers give no ids."""
    partitions: int


class TopicWatch(Protocol):
    """Looks at topics for a reader that keeps its own place on them."""

    def extents(self, topics: Iterable[str]) -> Mapping[str, Extent]:
        """Return what is on those of some topics that exist and may be seen, by name.

        Raises
        ------
        BusError
            The broker does not answer.
        """

    def kept(self, places: Mapping[tuple[str, int], tuple[int, int]]) -> Mapping[tuple[str, int], int]:
        """Return up to which offset logs still have what was read, by topic and partition.

        Parameters
        ----------
        places
            The offset after the last record that was read and the leader epoch of that record, by topic and partition.

        Raises
        ------
        BusError
            The broker does not answer.
        """

    def step(self, topics: Iterable[str]) -> Mapping[str, TopicShape]:
        """Return what the brokers have said of some topics since the last call; asks now and then, and never waits."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a reader goes on, as it wrote that down."""

    topic_id: str
    """Empty text: it is not known, as the position is older than ids are."""
    offsets: Mapping[int, int]
    """The next offset to read, by partition; a partition that is not here was never read."""


class Verdict(Enum):
    """What is wrong with a position."""

    MADE_AGAIN = "the topic was deleted and made again"
    HOLE = "records went before they were read"
    CUT = "the log, or what it still has of the records before the position, ends before the position"
    LOST = "the log lost records that were never read"
    NO_PARTITION = "the partition does not exist"
    DOUBT = "records were counted shortly before the topic was found to be another one"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a position, and the offsets [first, after) that it is about."""

    verdict: Verdict
    partition: int = -1
    """-1: all of them."""
    first: int = 0
    after: int = 0

    @property
    def count(self) -> int:
        """Return how many records it is about at most."""
        return self.after - self.first

    def describe(self, topic: str) -> str:
        """Return it in words for operators."""
        where = f"{topic}, partition {self.partition}"
        offsets = f"offsets {self.first} to {self.after - 1}"
        match self.verdict:
            case Verdict.MADE_AGAIN:
                return (
                    f"{topic} was deleted and made again: it is read from its beginning, its offsets count from 0 again"
                )
            case Verdict.HOLE:
                return (
                    f"{where}: {offsets} were removed before they were read: up to {self.count} records are lost here"
                )
            case Verdict.CUT:
                return f"{where}: {offsets} were counted and are not on the log any more; others get these offsets"
            case Verdict.LOST:
                return (
                    f"{where}: {offsets} were on the log, and were lost before they were read: up to {self.count}"
                    " records are missing"
                )
            case Verdict.DOUBT:
                return f"{where}: {offsets} may be counted twice, as they were read while the topic was made again"
            case Verdict.NO_PARTITION:
                return f"{where}: expected it to exist, as {self.after} is noted as its next offset; it does not"


def compare(position: Position, now: Extent) -> tuple[dict[int, int], list[Finding]]:
    """Return where to go on, by partition, and what is wrong.

    The start is always a place that exists: what is wrong is told, and never makes a reader wait for, or pass over,
    records that come.

    Returns
    -------
    dict of int to int
        The offset to begin at, for each partition of the topic.
    list of Finding
        Empty: the position holds.
    """
    found, offsets = [], position.offsets
    if is_other(position.topic_id, now.id):
        found, offsets = [Finding(Verdict.MADE_AGAIN)], {}
    found += [
        Finding(Verdict.NO_PARTITION, partition, after=at)
        for partition, at in sorted(offsets.items())
        if partition not in now.ranges
    ]
    start = {}
    for partition, (first, end) in sorted(now.ranges.items()):
        at = offsets.get(partition, 0)
        still = min(at, end)  # of what was read; the log may begin behind it
        start[partition] = max(still, first)
        if still < first:
            found.append(Finding(Verdict.HOLE, partition, still, first))
        if at > end:
            found.append(Finding(Verdict.CUT, partition, end, at))
    return start, found


def is_other(one: str, other: str) -> bool:
    """Return whether two ids are those of different topics; what is not known is no difference."""
    return bool(one and other) and one != other
