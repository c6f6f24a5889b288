"""Where the assembling worker goes on when it gets a partition, and what is known of it from before.

Two things say it: ``positions`` has the first record that is needed again, ``tables`` what was made of the records.
Both name the log that their offsets are of; what is on ``tables`` about another log says nothing about this one.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from facade.bus.port import Record
from facade.bus.positions import Extent, TopicWatch
from facade.bus.transactional_member import TransactionalMember
from facade.bus.worker_positions import (
    POSITIONS,
    Beginning,
    Ground,
    WorkerPosition,
    begin,
    is_log_of,
    newest,
    position_record,
)
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

    beginning: Beginning
    frontier: int = 0
    """Everything before this offset has been dealt with, except for the tables under way."""
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
    grounds = _grounds(bus.watch(), member, partitions)
    positions, troubles = newest(bus.read_all(POSITIONS, settled=True), group)
    own = {one: positions[CALIBRATION, one] for one in partitions if (CALIBRATION, one) in positions}
    _cut_back(bus.watch(), own, grounds)
    found = _recall_all(bus.read_all(TABLES, settled=True), own, grounds)
    return found, troubles + [past.beginning.note for past in found.values() if past.beginning.note]


def positions(
    group: str, worker: str, member: TransactionalMember, offsets: Mapping[int, int], logs: Mapping[int, str]
) -> list[Record]:
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
                leader_epoch=member.leader_epoch(one, at),
            )
        )
        for one, at in offsets.items()
    ]


def _grounds(watch: TopicWatch, member: TransactionalMember, partitions: Collection[int]) -> dict[int, Ground]:
    """Ask the brokers for the log of each partition, and for the group's place on it."""
    extent = watch.extents([CALIBRATION]).get(CALIBRATION, Extent("", {}))
    if missing := sorted(set(partitions) - set(extent.ranges)):
        raise BusError(f"partitions {missing} of {CALIBRATION} are assigned; expected them to exist, they do not")
    committed = member.committed(partitions)
    return {one: Ground(extent.id, *extent.ranges[one], committed[one]) for one in partitions}


def _cut_back(watch: TopicWatch, own: Mapping[int, WorkerPosition], grounds: dict[int, Ground]) -> None:
    """Let logs that were cut and have grown again end where they were cut: what stands behind is new."""
    places = {
        (CALIBRATION, one): (at.next, at.leader_epoch)
        for one, at in own.items()
        if is_log_of(at.log, grounds[one].topic_id)
    }
    for (_, one), kept in watch.kept(places).items():
        if kept < own[one].next:
            grounds[one] = grounds[one].cut_at(kept)


def _recall_all(
    records: Iterable[Record], own: Mapping[int, WorkerPosition], found: Mapping[int, Ground]
) -> dict[int, Recalled]:
    """Read what is on ``tables``; what compaction has not removed yet is of use as well."""
    about: dict[int, list[tuple[Table, bool]]] = {partition: [] for partition in found}
    records = list(records)
    newest = {record.key: record.offset for record in records}
    for record in records:
        table = decode_table(record.value)
        if isinstance(table, Table) and table.partition in about:  # else a tombstone, or of another partition
            about[table.partition].append((table, newest[record.key] == record.offset))
    return {one: _recall(one, about[one], own.get(one), ground) for one, ground in found.items()}


def _recall(partition: int, said: list[tuple[Table, bool]], own: WorkerPosition | None, ground: Ground) -> Recalled:
    beginning = _begin(partition, [table for table, _ in said], own, ground)
    mine = Recalled(beginning)
    for table, is_newest in said:
        if not _is_of(table, beginning.log, own, ground):
            if table.state == ASSEMBLING and is_newest:
                mine.gone.append(table)
            continue
        mine.frontier = max(mine.frontier, _after(table))
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


def _begin(partition: int, said: list[Table], own: WorkerPosition | None, ground: Ground) -> Beginning:
    """Compare the own position with the log: all that was dealt with must still be on it, or have been."""
    place = (CALIBRATION, partition)
    if own is None:
        return begin(place, None, ground)
    reached = max([own.next, *(_after(table) for table in said if table.log == own.log)])
    group = reached if ground.group == own.next else ground.group
    beginning = begin(place, replace(own, next=reached), Ground(ground.topic_id, ground.first, ground.end, group))
    if beginning.log != own.log:
        return beginning
    return Beginning(beginning.log, max(own.next, ground.first), beginning.note, beginning.skipped)


def _is_of(table: Table, log: str, own: WorkerPosition | None, ground: Ground) -> bool:
    """Return whether an entry is about a log; one that names none is of a worker that wrote no positions yet."""
    return table.log == log or (not table.log and own is None and _after(table) <= ground.end)


def _after(table: Table) -> int:
    return 0 if table.last_offset is None else table.last_offset + 1
