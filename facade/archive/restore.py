"""Fills empty topics from an archive, so that device servers, workers, numbers and positions continue.

Theory of operation
-------------------
Numbers and positions are offsets, so each record must get its old offset. Kafka assigns consecutive offsets to records
and to the end markers of transactions. So gaps between two records of an archive, which were markers, and aborted or
compacted records, are reproduced:

- one offset: the records before it are written in a transaction, whose end marker takes it;
- more: fillers are written in a transaction that is aborted; its end marker takes the last offset. Readers of committed
  records never get fillers. For others a filler is a record without a value, as a tombstone.

For a log whose oldest records are gone, fillers are written before the first record and then deleted, unless the topic
is compacted: Kafka cannot begin a log later than 0 by itself.

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
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, dropwhile, pairwise
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from facade.archive.files import ArchiveEntry, ArchiveError, hour_of, verify
from facade.archive.reading import newest_in, read_columns, topics
from facade.archive.stores import Store
from facade.kernel.bus.offsets import POSITIONS, id_of, is_log_of, position_record
from facade.kernel.bus.port import Record, TopicPartition
from facade.kernel.clock import NEVER, SECOND, Clock, Time, as_duration
from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import Topic
from facade.sdp.messages import WorkerPosition

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
    """Writes records to their partitions, with their timestamps.

    See `facade.admin.placing.KafkaPlacingWriter`.
    """

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
class RestorePlan:
    """The records to restore, and the topics that they need."""

    partitions: Mapping[TopicPartition, Sequence[ArchiveEntry]]
    """The files of each partition's newest log."""
    ids: Mapping[str, str]
    """Former id of each topic; topics without one are left out."""
    topics: Mapping[str, Topic]
    """All topics of the deployment, with their settings during the restore."""
    most_fillers: int
    reserve: int
    """Offsets skipped at the end of each log."""


def plan_restore(
    store: Store,
    icd: Icd,
    *,
    prefix: str,
    now_us: Time,
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
    reports = [report for name in chosen for report in verify(store, name)]
    faults = [fault for report in reports for fault in report.faults]
    if faults:
        more = f"; and {len(faults) - 1} further faults" if len(faults) > 1 else ""
        raise ArchiveError(
            f"{faults[0]}{more}: expected a whole archive, see archive verify; fix it, or leave out topics with"
            " --without, whose readers then begin anew"
        )
    entries = [entry for report in reports for entry in report.entries]
    if other := [entry.deployment for entry in entries if entry.deployment != prefix]:
        what = f"expected the one of the archive's deployment, {other[0]!r}, got {prefix!r}"
        raise ConfigError(f"SDP_TOPIC_PREFIX: {what}")
    # A partition may have files of a former topic of the name, also of the hour in which the topic was made again.
    files = {(report.topic, report.partition): report.entries for report in reports if report.entries}
    by_age = sorted(files.items(), key=lambda one: (newest_in(store, one[1][-1].name), -one[0][1]))
    ids = {topic: id_of(entries[-1].log) for (topic, _), entries in by_age}
    partitions = {
        place: _kept([one for one in found if one.log == found[-1].log], icd.topics[place[0]], now_us)
        for place, found in files.items()
        if is_log_of(found[-1].log, ids[place[0]])
    }
    counts = {topic: partition + 1 for topic, partition in sorted(files)}
    fillers = {f"{topic}, partition {partition}": _fillers(log) for (topic, partition), log in partitions.items()}
    if far := [f"{place}: {count:,}" for place, count in fillers.items() if count > most_fillers]:
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


def _kept(log: Sequence[ArchiveEntry], topic: Topic, now_us: Time) -> Sequence[ArchiveEntry]:
    """Return the files of a log from the first one with a record that Kafka would still have, at least the last one."""
    if topic.cleanup == "compact" or topic.retention is None:
        return log
    oldest = hour_of(now_us - as_duration(topic.retention))
    return [*dropwhile(lambda entry: entry.hour < oldest, log)] or log[-1:]


def _fillers(log: Sequence[ArchiveEntry]) -> int:
    """Return the least number of fillers of a log."""
    jumps = sum(after.first - before.next for before, after in pairwise(log))
    return log[0].first + jumps + sum(entry.unexplained for entry in log)


# Records and their offsets


def steps(
    records: Iterator[Record], place: TopicPartition, *, at: int = 0, end: int = 0, most: float = math.inf
) -> Iterator[PlacedRecords]:
    """Return the steps by which records of a partition get their offsets on a log that ends at an offset.

    `end`: required end of the log. It may become one more, as an end marker needs a record before it.
    `most`: most offsets to fill.
    """
    run: list[Record] = []
    size = filled = 0
    for record in chain(records, (None,)):
        gap = (max(end, at) if record is None else record.offset) - at
        if gap or record is None:
            is_marked = gap == 1 and bool(run)
            if run:
                yield PlacedRecords(Kind.COMMITTED if is_marked else Kind.PLAIN, run)
            if not is_marked:
                filled += gap
                if filled > most:  # a plan does not look into files for compacted or old records
                    raise ArchiveError(
                        f"{place[0]}, partition {place[1]}: expected at most {most:,} offsets without a record that is"
                        f" kept, got {filled:,} before offset {at + gap:,}: delete the topics, and allow more with"
                        " --most-fillers, or leave the topic out with --without"
                    )
                yield from _fill(place, at, gap, run[-1].timestamp_us if run else NEVER)
            run, size = [], 0
        elif len(run) > 1 and (len(run) >= _RUN or size >= _RUN_BYTES):
            yield PlacedRecords(Kind.PLAIN, run[:-1])  # the last one is kept for an end marker
            run, size = run[-1:], 0
        if record is not None:
            run.append(record)
            size += len(record.value or b"")
            at = record.offset + 1


def _fill(place: TopicPartition, at: int, gap: int, time: Time) -> Iterator[PlacedRecords]:
    filler = Record(topic=place[0], key=FILLER, value=None, partition=place[1], timestamp_us=time)
    while gap:
        count = min(gap, _ABORTED)
        count -= gap - count == 1  # an end marker alone is not possible
        kind, number = (Kind.PLAIN, 1) if gap == 1 else (Kind.ABORTED, count - 1)
        yield PlacedRecords(kind, [dataclasses.replace(filler, offset=at + one) for one in range(number)])
        gap, at = gap - count, at + count


# Selection of records


def records_of(store: Store, plan: RestorePlan, place: TopicPartition, now_us: Time) -> Iterator[Record]:
    """Return the records of a partition that Kafka would still have at a time."""
    topic, log = plan.topics[place[0]], plan.partitions[place]

    def read() -> Iterator[Record]:
        found = read_columns(store, [one.name for one in log])
        return (record for columns in found for record in columns.records())

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
        self._new = {id: (name, new[name].encode()) for name, id in old.items() if new.get(name)}
        """Topic and new id, by the old one."""
        ids = "|".join(map(re.escape, self._new)).encode() or b"(?!)"
        self._fields = re.compile(rb'("(?:log|topic_id)" ?: ?")(%b)' % ids)
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
        value = self._fields.sub(lambda found: found[1] + self._new[found[2].decode()][1], record.value)
        if record.topic == POSITIONS and record.key:
            try:
                self._positions[record.key] = self._position.decode(value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._positions.pop(record.key, None)
        return record if value == record.value else dataclasses.replace(record, value=value)

    def behind(self) -> list[Record]:
        """Return new positions where results have counted more."""
        counted = ((one, self._counted.get((one.topic, one.partition), 0)) for one in self._positions.values())
        return [position_record(replace(one, next=end)) for one, end in counted if end > one.next]

    def _note(self, value: bytes) -> None:
        try:
            said = self._decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        topic, _ = self._new.get(id_of(said.log or said.topic_id), ("", b""))
        if not topic or (said.partition < 0 and not said.offsets):
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
    begins: dict[TopicPartition, int] = field(default_factory=dict)
    """Offset of the first record of a log; at the end, of the logs before which fillers must be deleted."""

    def note(self, place: TopicPartition, step: PlacedRecords) -> None:
        """Count the records of a step."""
        first, last, end = step.records[0].offset, step.records[-1].offset, self.ends.get(place, 0)
        assert first == end, f"{place}: records from offset {first} on are written to a log that ends at {end}"
        assert last - first + 1 == len(step.records), f"{place}: {len(step.records)} records for {first} to {last}"
        is_filled = step.records[0].key == FILLER and step.records[0].value is None
        self.ends[place] = step.records[-1].offset + 1 + (step.kind is not Kind.PLAIN)
        if is_filled:
            self.fillers += len(step.records)
        else:
            self.begins.setdefault(place, step.records[0].offset)
            self.records += len(step.records)
            times = [one.timestamp_us for one in step.records]
            self.newest[place[0]] = max(self.newest.get(place[0], NEVER), *times)


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
    done, now_us, told = Restored(), clock.now_us(), clock.monotonic()
    ways = {Kind.PLAIN: writer.write, Kind.COMMITTED: writer.commit, Kind.ABORTED: writer.abort}

    def write(work: Mapping[TopicPartition, Iterator[PlacedRecords]]) -> None:
        """Write steps of all partitions in parallel: a transaction has all due ones."""
        nonlocal told
        due = {place: step for place, one in work.items() if (step := next(one, None))}
        while due:
            for kind in Kind:
                if chosen := {place: step for place, step in due.items() if step.kind is kind}:
                    ways[kind]([record for step in chosen.values() for record in step.records])
                for place, step in chosen.items():
                    done.note(place, step)
                    due.pop(place)
                    if (following := next(work[place], None)) is not None:
                        due[place] = following
            if clock.monotonic() - told >= _TOLD_EACH:
                told = clock.monotonic()
                report(done.records, done.fillers, len(due))

    write(
        {
            place: steps(
                map(names.rename, records_of(store, plan, place, now_us)),
                place,
                end=log[-1].next,
                most=plan.most_fillers,
            )
            for place, log in plan.partitions.items()
        }
    )
    begins = {place: done.begins.get(place, end) for place, end in done.ends.items()}
    done.begins = {place: at for place, at in begins.items() if at and plan.topics[place[0]].cleanup == "delete"}
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
    at, moved = done.ends.get(_OF_POSITIONS, 0), names.behind()
    placed = [
        dataclasses.replace(record, partition=0, offset=at + number, timestamp_us=now_us)
        for number, record in enumerate(moved)
    ]
    write({_OF_POSITIONS: iter([PlacedRecords(Kind.PLAIN, placed)] if placed else ())})
    done.positions = len(moved)
    return done
