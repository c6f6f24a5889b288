"""Where the assembling worker goes on when it gets a partition, and what is known of it from before.

Two things say it: ``positions`` has the first record that is needed again, ``tables`` what was made of the records.
Both name the log that their offsets are of; what is on ``tables`` about another log says nothing about this one.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from facade.bus.offsets import (
    POSITIONS,
    Beginning,
    CountedOffsets,
    Extent,
    PartitionFacts,
    TopicWatch,
    WorkerPosition,
    begin,
    newest,
    position_record,
)
from facade.bus.port import Record, TransactionalMember
from facade.errors import BusError
from facade.flows.tables.messages import ASSEMBLING, CALIBRATION, TABLES, decode_table
from facade.messages import Table


class TablesBus(Protocol):
    """Where the past is read."""

    def read_all(self, topic: str, *, settled: bool = False) -> list[Record]:
        """Return everything that is on a topic; settled: what open transactions hold back is waited for."""

    def watch(self) -> TopicWatch:
        """Return what looks at topics."""


@dataclass(slots=True)
class Recalled:
    """What is known of one partition."""

    counted: CountedOffsets
    """It begins where reading goes on; everything before its end is dealt with, except for the tables under way."""
    note: str = ""
    """A difference between position, group and log; empty text: they agree."""
    under_way: dict[str, Table] = field(default_factory=dict)
    ended: dict[str, Table] = field(default_factory=dict)
    leftover: list[Table] = field(default_factory=list)
    """Tables that stand there as under way and have ended."""
    gone: list[Table] = field(default_factory=list)
    """Tables under way whose log is no more."""


def find(
    bus: TablesBus, member: TransactionalMember, group: str, partitions: Collection[int]
) -> tuple[dict[int, Recalled], list[str]]:
    """Return what is known of partitions, and what is to be said about that.

    The group is asked before the topics are read, see `TransactionalMember`.

    Raises
    ------
    BusError
        The brokers do not answer, or a partition is not there.
    """
    facts = _facts(bus.watch(), member, partitions)
    positions, troubles = newest(bus.read_all(POSITIONS, settled=True), group)
    own = {one: positions[CALIBRATION, one] for one in partitions if (CALIBRATION, one) in positions}
    found = _recall_all(bus.read_all(TABLES, settled=True), own, facts)
    return found, troubles + [past.note for past in found.values() if past.note]


def positions(group: str, worker: str, offsets: Mapping[int, int], logs: Mapping[int, str]) -> list[Record]:
    """Return the records of the worker's own positions.

    Parameters
    ----------
    offsets
        The first record that is needed again, by partition.
    """
    return [
        position_record(
            WorkerPosition(
                group=group,
                topic=CALIBRATION,
                partition=one,
                log=logs[one],
                next=at,
                worker=worker,
            )
        )
        for one, at in offsets.items()
    ]


def _facts(watch: TopicWatch, member: TransactionalMember, partitions: Collection[int]) -> dict[int, PartitionFacts]:
    """Ask the brokers for the log of each partition, and for the group's place on it."""
    extent = watch.extents([CALIBRATION]).get(CALIBRATION, Extent("", {}))
    if missing := sorted(set(partitions) - set(extent.ranges)):
        raise BusError(f"partitions {missing} of {CALIBRATION} are assigned; expected them to exist, they do not")
    committed = member.committed(partitions)
    return {one: PartitionFacts(extent.id, *extent.ranges[one], committed[one]) for one in partitions}


def _recall_all(
    records: Iterable[Record], own: Mapping[int, WorkerPosition], found: Mapping[int, PartitionFacts]
) -> dict[int, Recalled]:
    """Read what is on ``tables``; what compaction has not removed yet is of use as well."""
    about: dict[int, list[tuple[Table, bool]]] = {partition: [] for partition in found}
    records = list(records)
    newest = {record.key: record.offset for record in records}
    for record in records:
        table = decode_table(record.value)
        if isinstance(table, Table) and table.partition in about:  # else a tombstone, or of another partition
            about[table.partition].append((table, newest[record.key] == record.offset))
    return {one: _recall(one, about[one], own.get(one), facts) for one, facts in found.items()}


def _recall(
    partition: int, said: list[tuple[Table, bool]], own: WorkerPosition | None, facts: PartitionFacts
) -> Recalled:
    beginning = _begin(partition, [table for table, _ in said], own, facts)
    mine = Recalled(CountedOffsets(beginning.log, beginning.offset, beginning.offset), beginning.note)
    for table, is_newest in said:
        if not _is_of(table, beginning.log, own, facts):
            if table.state == ASSEMBLING and is_newest:
                mine.gone.append(table)
            continue
        mine.counted.end = max(mine.counted.end, _after(table))
        if table.state != ASSEMBLING:
            mine.ended[table.table] = table
        elif is_newest:
            mine.under_way[table.table] = table
    for name in mine.under_way.keys() & mine.ended.keys():
        if mine.under_way[name].first_offset == mine.ended[name].first_offset:
            mine.leftover.append(mine.under_way.pop(name))
        else:
            del mine.ended[name]
    return mine


def _begin(partition: int, said: list[Table], own: WorkerPosition | None, facts: PartitionFacts) -> Beginning:
    """Compare the own position with the log: all that was dealt with must still be on it, or have been."""
    place = (CALIBRATION, partition)
    if own is None:
        return begin(place, None, facts)
    reached = max([own.next, *(_after(table) for table in said if table.log == own.log)])
    group = reached if facts.group == own.next else facts.group
    beginning = begin(place, replace(own, next=reached), PartitionFacts(facts.topic_id, facts.first, facts.end, group))
    if beginning.log != own.log:
        return beginning
    return Beginning(beginning.log, max(own.next, facts.first), beginning.note)


def _is_of(table: Table, log: str, own: WorkerPosition | None, facts: PartitionFacts) -> bool:
    """Return whether an entry is about a log; one that names none is of a worker that wrote no positions yet."""
    return table.log == log or (not table.log and own is None and _after(table) <= facts.end)


def _after(table: Table) -> int:
    return 0 if table.last_offset is None else table.last_offset + 1
