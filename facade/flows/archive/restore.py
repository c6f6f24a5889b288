"""Fills empty topics from an archive, so that device servers, workers, numbers and positions continue.

Theory of operation
-------------------
Numbers and positions are offsets, so each record must get its old offset. Kafka assigns consecutive offsets to records
and to the end markers of transactions. So gaps between two records of an archive, which were markers, and aborted or
compacted records, are reproduced:

- one offset: the records before it are written in a transaction, whose end marker takes it;
- more: fillers are written in a transaction that is aborted; its end marker takes the last offset. Readers of committed
  records never get fillers. For others a filler is a record without a value, as a tombstone.

For a log whose oldest records are gone, fillers are written before the first record and then deleted: Kafka cannot
begin a log later than 0 by itself. Records of compacted topics cannot be deleted; their fillers are aborted.

Positions belong to a log, which has the id of its topic, and a new topic has a new id. Snapshots, positions, results
and announcements have it in the fields `log` and `topic_id`. There, the old id is replaced by the new one. An id with
another meaning, as in the numbers of alerts, stays.

The files of topics end at different times. So positions may be after the end of a log whose files end earlier. Each log
is filled up to the last offset named by any record, as other records must not get counted offsets. If results have
counted more than the position of their worker, a newer position is written.

Records after the archived ones are lost, and clients may know their numbers. So the offsets that these records may have
had are skipped at the end of each log: no number of a restored topic is assigned twice.

Only records that Kafka would still have are written: records of the last log of a topic, the newest of each key of a
compacted topic, and none older than the retention.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, dropwhile, pairwise
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from facade.bus.offsets import POSITIONS, id_of, is_log_of, position_record
from facade.bus.port import Record, TopicPartition
from facade.clock import NEVER, SECOND, Clock, Time, as_duration
from facade.errors import ConfigError
from facade.flows.archive.files import ArchiveEntry, ArchiveError, by_partition, read_entry, verify
from facade.flows.archive.reading import opened, read_files, topics
from facade.flows.archive.stores import Store
from facade.icd.model import Icd
from facade.icd.topic_model import Topic
from facade.messages import WorkerPosition

FILLER: Final = b"restored"
"""Key of a filler: compacted topics refuse records without a key."""
MOST_FILLERS: Final = 5_000_000
"""Default of the most fillers at one end of a partition."""
RESERVE: Final = 1_000
"""Default of the offsets skipped at the end of each log."""
_RUN = 1000
"""Most records written at once."""
_RUN_BYTES = 8_000_000
_ABORTED = 5000
"""Most fillers of one transaction."""
_TOLD_EACH = 2.0
"""Time between two reports [s]."""
_OF_POSITIONS: Final = (POSITIONS, 0)
_ACCOUNT = "stream-account/1"
"""Message with offsets that is no result."""


class Kind(Enum):
    """Ways to write records."""

    PLAIN = "without a transaction"
    COMMITTED = "in a transaction, whose mark takes the offset behind them"
    ABORTED = "in a transaction that is aborted; its mark takes the offset behind them"


class PlacedRecords(NamedTuple):
    """Records of one partition that are written together, with their required offsets."""

    kind: Kind
    records: list[Record]


class PlacingWriter(Protocol):
    """Writes records to their partitions, with their timestamps; see `facade.bus.kafka.placing.KafkaPlacingWriter`."""

    def write(self, records: Sequence[Record]) -> None:
        """Write records; the records of a partition come in order.

        Raises
        ------
        BusError
            Some are not on the topics, or have another offset.
        """

    def commit(self, records: Sequence[Record]) -> None:
        """Write records in a transaction, and commit it."""

    def abort(self, records: Sequence[Record]) -> None:
        """Write records in a transaction, and abort it."""


RestoreReport = Callable[[int, int, int], None]
"""Called with the number of records written, of fillers, and of incomplete partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPartition:
    """The files of a partition's newest log."""

    names: tuple[str, ...]
    first: int
    """Offset of its first record, or the begin of its first file."""
    fillers: int
    """Least number of fillers."""
    next: int
    """Offset after the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """The records to restore, and the topics that they need."""

    partitions: Mapping[TopicPartition, KeptPartition]
    ids: Mapping[str, str]
    """Former id of each topic; topics without one are left out."""
    topics: Mapping[str, Topic]
    """All topics of the deployment, with their settings during the restore."""
    most_fillers: int
    reserve: int
    """Offsets skipped at the end of each log."""

    def deletes(self, place: TopicPartition) -> bool:
        """Return whether records at the beginning of a log can be deleted."""
        return self.topics[place[0]].cleanup == "delete"


def plan_restore(
    store: Store,
    icd: Icd,
    *,
    prefix: str,
    without: Collection[str] = (),
    most_fillers: int = MOST_FILLERS,
    reserve: int = 0,
) -> RestorePlan:
    """Verify an archive, byte by byte, and return the plan of its restore to a deployment with a prefix.

    Raises
    ------
    ConfigError
        The archive is of another deployment, it has a topic that the interface does not know, or a log would need more
        fillers.
    ArchiveError
        A file is damaged, or records are missing; the message names the files.
    """
    there = topics(store)
    if not there:
        raise ConfigError(f"{store}: expected files topic=TOPIC/hour=HOUR/PARTITION-NUMBER.parquet, got none")
    if odd := [name for name in without if name not in there]:
        raise ConfigError(f"--without: expected some of {', '.join(there)}, got {odd[0]!r:.100}")
    chosen = [name for name in there if name not in without]
    if unknown := [name for name in chosen if name not in icd.topics]:
        raise ConfigError(f"{store}: the interface has no topic {unknown[0]!r:.100}: leave it out with --without")
    faults = [fault for name in chosen for report in verify(store, name) for fault in report.faults]
    if faults:
        more = f"; and {len(faults) - 1} further faults" if len(faults) > 1 else ""
        raise ArchiveError(
            f"{faults[0]}{more}: expected a whole archive, see archive verify; fix it, or leave out topics with"
            " --without, whose readers then begin anew"
        )
    partitions: dict[TopicPartition, KeptPartition] = {}
    ids: dict[str, str] = {}
    counts = dict[str, int]()
    for name in chosen:
        found = _entries(store, name, prefix)
        # A partition may have files of a former topic of the name.
        newest = max((entries[-1] for entries in found.values()), key=lambda one: one.hour)
        ids[name] = id_of(newest.log)
        counts[name] = max(entry.partition for entries in found.values() for entry in entries) + 1
        for partition, entries in found.items():
            log = [one for one in entries if one.log == entries[-1].log and is_log_of(one.log, ids[name])]
            if log:
                names = tuple(entry.name for entry in log)
                jumps = sum(after.first - before.next for before, after in pairwise(log))
                fillers = log[0].first + jumps + sum(entry.unexplained for entry in log)
                partitions[name, partition] = KeptPartition(
                    names=names, first=log[0].first, fillers=fillers, next=log[-1].next
                )
    if far := [
        f"{topic}, partition {partition}: {kept.fillers:,}"
        for (topic, partition), kept in partitions.items()
        if kept.fillers > most_fillers
    ]:
        raise ConfigError(
            f"expected logs with at most {most_fillers:,} offsets without a record, got {'; '.join(far)}: a new log"
            " begins at 0, and each of them takes a filler. Allow it with --most-fillers, or leave the topics out with"
            " --without; their readers then begin anew, with the alarm logCut"
        )
    made = {
        name: replace(topic, timestamp="CreateTime", partitions=max(topic.partitions, counts.get(name, 0)))
        for name, topic in icd.topics.items()
    }
    return RestorePlan(
        partitions=partitions,
        ids={name: id for name, id in ids.items() if id},
        topics=made,
        most_fillers=most_fillers,
        reserve=reserve,
    )


def _entries(store: Store, topic: str, prefix: str) -> dict[int, list[ArchiveEntry]]:
    """Return the entries of the files of a topic by partition, in order."""
    found: dict[int, list[ArchiveEntry]] = {}
    for (_, partition), names in by_partition(store.names(topic)).items():
        for name in names:
            with opened(store, name) as file:
                entry = read_entry(file.metadata)
            if entry.deployment != prefix:
                what = f"expected the one of the archive's deployment, {entry.deployment!r}, got {prefix!r}"
                raise ConfigError(f"SDP_TOPIC_PREFIX: {what}")
            found.setdefault(partition, []).append(entry)
    return found


# Records and their offsets


def steps(
    records: Iterator[Record], place: TopicPartition, *, at: int = 0, end: int = 0, deletes: bool = False
) -> Iterator[PlacedRecords]:
    """Return the steps by which records of a partition get their offsets on a log that ends at an offset.

    Parameters
    ----------
    end
        Required end of the log. It may become one more, as an end marker needs a record before it.
    deletes
        Whether fillers at the beginning are deleted afterwards, so that they need no transaction.
    """
    run: list[Record] = []
    size = 0
    for record in chain(records, (None,)):
        gap = (max(end, at) if record is None else record.offset) - at
        if gap or record is None:
            yield from _close(run, gap, place, at, deletes=deletes)
            run, size = [], 0
        elif len(run) > 1 and (len(run) >= _RUN or size >= _RUN_BYTES):
            yield PlacedRecords(Kind.PLAIN, run[:-1])  # the last one is kept for an end marker
            run, size = run[-1:], 0
        if record is not None:
            run.append(record)
            size += len(record.value or b"")
            at = record.offset + 1


def _close(run: list[Record], gap: int, place: TopicPartition, at: int, *, deletes: bool) -> Iterator[PlacedRecords]:
    if gap == 1 and run:
        yield PlacedRecords(Kind.COMMITTED, run)
        return
    if run:
        yield PlacedRecords(Kind.PLAIN, run)
    time = run[-1].timestamp_us if run else NEVER

    def fillers(count: int) -> list[Record]:
        return [_filler(place, at + number, time) for number in range(count)]

    is_plain = deletes and not at
    while gap:
        count = min(gap, _ABORTED)
        if is_plain:
            yield PlacedRecords(Kind.PLAIN, fillers(count))
        elif gap == 1:  # an end marker would take the offset of the next record
            yield PlacedRecords(Kind.PLAIN, fillers(1))
        else:
            count -= gap - count == 1  # an end marker alone is not possible
            yield PlacedRecords(Kind.ABORTED, fillers(count - 1))
        gap, at = gap - count, at + count


def _filler(place: TopicPartition, offset: int, time: Time) -> Record:
    return Record(topic=place[0], key=FILLER, value=None, partition=place[1], offset=offset, timestamp_us=time)


# Selection of records


def records_of(store: Store, plan: RestorePlan, place: TopicPartition, now_us: Time) -> Iterator[Record]:
    """Return the records of a partition that Kafka would still have at a time."""
    topic, kept = plan.topics[place[0]], plan.partitions[place]

    def read() -> Iterator[Record]:
        return (one for one in read_files(store, place[0], kept.names) if one.offset >= kept.first)

    if topic.cleanup == "compact":
        newest = {record.key: record.offset for record in read()}
        return (record for record in read() if newest[record.key] == record.offset)
    oldest = NEVER - SECOND if topic.retention is None else now_us - as_duration(topic.retention)
    return dropwhile(lambda record: record.timestamp_us < oldest, read())


# Logs in the contents of records


class _Said(msgspec.Struct):
    """The fields about logs of any message; see the schemas of snapshots, positions, results and announcements."""

    schema: str = ""
    partition: int = -1
    log: str = ""
    topic_id: str = ""
    next: int = 0
    offset_to: int = 0
    offsets: dict[int, int] = {}


class LogNames:
    """Replaces old ids by new ones, and notes the offsets on old logs that records name.

    Parameters
    ----------
    old, new
        Ids of topics, by name.
    """

    def __init__(self, icd: Icd, old: Mapping[str, str], new: Mapping[str, str]) -> None:
        named = {name: id for name, id in old.items() if new.get(name)}
        self._topics = {id: name for name, id in named.items()}
        self._new = {id.encode(): new[name].encode() for name, id in named.items()}
        self._fields = re.compile(
            rb'("(?:log|topic_id)" ?: ?")(%b)' % (b"|".join(map(re.escape, self._new)) or b"(?!)")
        )
        self._naming = {
            name
            for name, topic in icd.topics.items()
            for message in (topic.message, *topic.also)
            if message and {"log", "topic_id"} & icd.messages[message]["properties"].keys()
        }
        self._decoder = msgspec.json.Decoder(_Said)
        self._position = msgspec.json.Decoder(WorkerPosition)
        self.ends: dict[TopicPartition, int] = {}
        """Offset after the last named one, by partition."""
        self._counted: dict[TopicPartition, int] = {}
        """The same, from results only."""
        self._positions: dict[bytes, WorkerPosition] = {}
        """The newest position of each key, with its new id."""

    def rename(self, record: Record) -> Record:
        """Return a record with the new ids."""
        if record.topic not in self._naming or not record.value:
            return record
        self._note(record.value)
        value = self._fields.sub(lambda found: found[1] + self._new[found[2]], record.value)
        if record.topic == POSITIONS and record.key:
            try:
                self._positions[record.key] = self._position.decode(value)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._positions.pop(record.key, None)
        return record if value == record.value else dataclasses.replace(record, value=value)

    def behind(self) -> list[Record]:
        """Return new positions where results have counted more."""
        found = []
        for one in self._positions.values():
            counted = self._counted.get((one.topic, one.partition), 0)
            if counted > one.next:
                found.append(position_record(replace(one, next=counted)))
        return found

    def _note(self, value: bytes) -> None:
        try:
            said = self._decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        topic = self._topics.get(id_of(said.log or said.topic_id))
        if topic is None or (said.partition < 0 and not said.offsets):
            return
        for partition, at in (said.offsets or {said.partition: max(said.next, said.offset_to)}).items():
            self.ends[topic, partition] = max(at, self.ends.get((topic, partition), 0))
        if said.schema != _ACCOUNT:
            place = topic, said.partition
            self._counted[place] = max(said.offset_to, self._counted.get(place, 0))


# The restore


@dataclass(slots=True)
class Restored:
    """Description of the written records."""

    records: int = 0
    newest: dict[str, Time] = field(default_factory=dict)
    """Time of the newest record of each topic [Unix us]."""
    fillers: int = 0
    positions: int = 0
    """Number of new positions."""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """End of each log."""
    begins: dict[TopicPartition, int] = field(default_factory=dict)
    """Begin of the logs whose fillers must be deleted."""


def restore(
    store: Store, plan: RestorePlan, names: LogNames, writer: PlacingWriter, clock: Clock, report: RestoreReport
) -> Restored:
    """Write the records of a plan to its topics, which are empty.

    Raises
    ------
    BusError
        The topics are not complete.
    ArchiveError
        A file cannot be read any more, or a log must be filled up too far.
    """
    done = Restored()
    now_us = clock.now_us()
    told = clock.monotonic()
    ways = {Kind.PLAIN: writer.write, Kind.COMMITTED: writer.commit, Kind.ABORTED: writer.abort}

    def write(work: dict[TopicPartition, Iterator[PlacedRecords]]) -> None:
        """Write steps of all partitions in parallel: a transaction has all due ones."""
        nonlocal told
        due = {place: step for place, one in work.items() if (step := next(one, None))}
        while due:
            for kind in Kind:
                chosen = [place for place, step in due.items() if step.kind is kind]
                if not chosen:
                    continue
                ways[kind]([record for place in chosen for record in due[place].records])
                for place in chosen:
                    _count(done, place, due.pop(place))
                    if (following := next(work[place], None)) is not None:
                        due[place] = following
            if clock.monotonic() - told >= _TOLD_EACH:
                told = clock.monotonic()
                report(done.records, done.fillers, len(due))

    work = {}
    for place, kept in plan.partitions.items():
        renamed = (names.rename(record) for record in records_of(store, plan, place, now_us))
        work[place] = steps(renamed, place, end=kept.next, deletes=plan.deletes(place))
    write(work)
    done.begins = {place: at for place, at in done.begins.items() if plan.deletes(place)}
    tails = {}
    for place in done.ends | names.ends:
        at = done.ends.get(place, 0)
        end = max(at, names.ends.get(place, 0))
        if place[1] < plan.topics[place[0]].partitions and end + plan.reserve > at:
            if end - at > plan.most_fillers:
                raise ArchiveError(
                    f"{place[0]}, partition {place[1]}: the archive ends at offset {at:,}, positions are at {end:,}:"
                    " allow more fillers with --most-fillers, or leave the topic out with --without"
                )
            tails[place] = steps(iter(()), place, at=at, end=max(end + plan.reserve, at + 2))
    write(tails)
    at = done.ends.get(_OF_POSITIONS, 0)
    moved = [
        dataclasses.replace(record, partition=0, offset=at + number, timestamp_us=now_us)
        for number, record in enumerate(names.behind())
    ]
    if moved:
        write({_OF_POSITIONS: iter([PlacedRecords(Kind.PLAIN, moved)])})
    done.positions = len(moved)
    return done


def _count(done: Restored, place: TopicPartition, step: PlacedRecords) -> None:
    first, last, end = step.records[0].offset, step.records[-1].offset, done.ends.get(place, 0)
    assert first == end, f"{place}: records from offset {first} on are written to a log that ends at {end}"
    assert last - first + 1 == len(step.records), f"{place}: {len(step.records)} records for offsets {first} to {last}"
    is_filled = step.records[0].key == FILLER and step.records[0].value is None
    if is_filled:
        done.fillers += len(step.records)
    else:
        done.records += len(step.records)
        times = [one.timestamp_us for one in step.records]
        done.newest[place[0]] = max(done.newest.get(place[0], NEVER), *times)
    is_first = done.ends.get(place, 0) == done.begins.get(place, 0)
    done.ends[place] = step.records[-1].offset + 1 + (step.kind is not Kind.PLAIN)
    if is_filled and is_first and step.kind is Kind.PLAIN:
        done.begins[place] = done.ends[place]
