"""What the bus says about a partition when a worker takes it: the position, and the tables under way or ended.

``positions`` has the offset after the last record that was read. Each record before it is settled, unless it is a
segment of a table that ``tables`` has as under way, with its first offset. Both are written in one transaction.

Compaction leaves one complete table of each product. It names the versions before it, because a table may come again
after a newer version: one copy fails, its owner sends another one, and meanwhile a second copy is complete.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from facade.flows.tables.messages import (
    ASSEMBLING,
    CALIBRATION,
    COMPLETE,
    TABLES,
    decode_table,
    fingerprint,
    former_key,
)
from facade.kernel.bus.offsets import POSITIONS, Extent, PartitionFacts, TopicWatch, WorkerPosition, begin, newest
from facade.kernel.bus.port import Record, TransactionalMember
from facade.kernel.errors import BusError
from facade.sdp.messages import Table, TableSegment

MOST_EARLIER = 20
"""Complete versions of a product that are named with a newer one."""


class TablesBus(Protocol):
    """The operations of a bus that are used here."""

    def read_all(self, topic: str, *, settled: bool) -> list[Record]:
        """Return all records of a topic; settled: wait for the end of open transactions."""

    def watch(self) -> TopicWatch:
        """Return a watch of topics."""


class InFlight(NamedTuple):
    """The segments of a table under way."""

    first: int
    """Offset of the first one; -1: unknown."""
    segments: int


class Mark(NamedTuple):
    """The state of a partition, as one transaction leaves it on the bus."""

    log: str
    """Empty text: ``positions`` has no such position."""
    next: int
    """Offset after the last record that was read."""
    in_flight: Mapping[str, InFlight]
    """By table."""


@dataclass(slots=True)
class Recalled:
    """The state of a partition from before."""

    mark: Mark
    log: str
    """The present log; the log in the mark may have been cut."""
    note: str = ""
    """Difference between position, group and log; empty text: they agree."""
    under_way: dict[str, Table] = field(default_factory=dict)
    lost: list[Table] = field(default_factory=list)
    """Tables under way whose first records have gone from the log, or with their log."""
    renamed: list[Table] = field(default_factory=list)
    """Tables whose message under way has the key of an older release."""
    ended: dict[str, Table] = field(default_factory=dict)
    complete: dict[str, dict[str, str]] = field(default_factory=dict)
    """The newest complete versions of each product, oldest first: fingerprints by id."""

    @property
    def begin(self) -> int:
        """Offset at which reading continues: the oldest segment in flight."""
        return min([self.mark.next, *(in_flight(table).first for table in self.under_way.values())])

    def add_version(self, header: TableSegment) -> dict[str, str]:
        """Add a complete version of a product, and return the newest ones before it."""
        versions = self.complete.setdefault(header.product, {})
        while len(versions) > MOST_EARLIER:
            del versions[next(iter(versions))]
        earlier = dict(versions)
        versions[header.table] = fingerprint(header)
        return earlier


def in_flight(table: Table) -> InFlight:
    """Return the segments of a table by its message."""
    return InFlight(-1 if table.first_offset is None else table.first_offset, table.segments)


def recall(
    bus: TablesBus, member: TransactionalMember, group: str, partitions: Collection[int]
) -> tuple[dict[int, Recalled], list[str]]:
    """Return the state of partitions from before, and warnings about it.

    The group is asked before the topics are read, see `TransactionalMember`.
    """
    extent = bus.watch().extents([CALIBRATION]).get(CALIBRATION, Extent("", {}))
    if missing := sorted(set(partitions) - set(extent.ranges)):
        raise BusError(f"partitions {missing} of {CALIBRATION} are assigned; expected them to exist, they do not")
    committed = member.committed(partitions)
    positions, troubles = newest(bus.read_all(POSITIONS, settled=True), group)
    records = bus.read_all(TABLES, settled=True)
    last = {record.key: record.offset for record in records}
    said: dict[int, list[Table]] = {partition: [] for partition in partitions}
    renamed: dict[int, list[Table]] = {partition: [] for partition in partitions}
    for record in records:  # records that compaction has not removed yet are useful as well
        table = decode_table(record.value)
        if isinstance(table, Table) and table.partition in said:
            if table.state != ASSEMBLING or last[record.key] == record.offset:
                said[table.partition].append(table)
                if table.state == ASSEMBLING and record.key == former_key(table).encode():
                    renamed[table.partition].append(table)
    found = {}
    for partition in partitions:
        facts = PartitionFacts(extent.id, *extent.ranges[partition], committed[partition])
        found[partition] = _recall(group, partition, said[partition], positions.get((CALIBRATION, partition)), facts)
        found[partition].renamed = renamed[partition]
    return found, troubles + [past.note for past in found.values() if past.note]


def _recall(
    group: str, partition: int, said: list[Table], own: WorkerPosition | None, facts: PartitionFacts
) -> Recalled:
    # A table that has ended was read. So it is a position as well, if `positions` has lost the newest ones.
    log = own.log if own else next((table.log for table in reversed(said) if table.log), "")
    reached = [table.last_offset + 1 for table in said if table.last_offset is not None and table.log == log]
    at = max([own.next if own else 0, *reached])
    is_written = own is not None and own.next == at
    if own and facts.group == own.next:  # the group agrees with `positions`, which release 0.2.0 wrote less often
        facts = replace(facts, group=at)
    if own or reached:
        own = WorkerPosition(group=group, topic=CALIBRATION, partition=partition, log=log, next=at, worker="")
    beginning = begin((CALIBRATION, partition), own, facts)
    past = Recalled(Mark(log if is_written else "", beginning.offset, {}), beginning.log, beginning.note)
    for table in said:  # the last message about a table counts
        if table.state == ASSEMBLING:
            past.ended.pop(table.table, None)
            past.under_way[table.table] = table
        elif table.log == past.log:
            past.under_way.pop(table.table, None)
            past.ended[table.table] = table
            if table.state == COMPLETE:
                past.complete[table.product] = {**table.earlier, table.table: fingerprint(table)}
    past.mark = past.mark._replace(in_flight={name: in_flight(table) for name, table in past.under_way.items()})
    for table in list(past.under_way.values()):
        if table.log != past.log or in_flight(table).first < facts.first:
            past.lost.append(past.under_way.pop(table.table))
    return past
