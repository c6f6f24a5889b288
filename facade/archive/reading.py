"""Records of an archive by topic and time.

The name of a file has the hour of its first record, and no record is of a later hour. A file of a later hour than the
one after a time has no record of it, unless the clock of a broker was ahead: then a later file has an earlier hour. For
the other files, the statistics in the footer show which ones have records of a time. Only these are decoded, and pages
are checked by their checksums.
"""

import heapq
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from facade.archive.files import (
    BY_KEY,
    HOUR_US,
    ArchiveEntry,
    ArchiveError,
    advice,
    by_partition,
    hour_in,
    hour_of,
    hour_text,
    parse_name,
    read_entry,
)
from facade.archive.stores import Store
from facade.kernel.bus.port import Headers, PartitionColumns, Record
from facade.kernel.clock import FOREVER, NEVER, Duration, Time, from_ms, to_ms
from facade.sdp.durations import parse_time

_LATEST = Time(253_402_300_799_999_999)
"""The last time of the calendar [Unix us]."""
_COLUMNS = ["partition", "offset", "timestamp", "key", "headers", "value"]
_FOREVER_MS = to_ms(FOREVER)
_KEYED = pa.schema({"at_us": pa.int64(), "offset": pa.int64(), "key": pa.binary(), "value": pa.binary()})
_BATCH = 1000
"""Rows decoded at once, per partition: a file has up to 32 MB of them."""


def topics(store: Store) -> list[str]:
    """Return the topics that have files."""
    return sorted({topic for topic, _ in by_partition(store.names())})


def extent(store: Store) -> tuple[Time, Time] | None:
    """Return the begin of the first hour with a file, and the end of the last one; None: no files."""
    hours = sorted(hour_in(name) for name in store.names() if parse_name(name))
    if not hours:
        return None
    first, last = (parse_time(one, "hour") for one in (hours[0], hours[-1]))
    return first, min(last + HOUR_US, _LATEST)


def newest_entries(store: Store, topics: Collection[str]) -> list[ArchiveEntry]:
    """Return the entry of the newest file of each partition of some topics."""
    files = by_partition(store.names())
    return [entry_of(store, names[-1]) for (topic, _), names in files.items() if topic in topics]


def entry_of(store: Store, name: str) -> ArchiveEntry:
    """Return the entry of a file."""
    with opened(store, name) as file:
        return read_entry(file.metadata)


def newest_time(store: Store) -> Time:
    """Return Kafka's time of the newest record; 0: there is none.

    The first record of a file of the newest hour is of this hour, so one of these files has the newest record. It may
    be any of them, as the clock of a broker may have gone back.
    """
    names, newest = [name for name in store.names() if parse_name(name)], NEVER
    hour = max(map(hour_in, names), default="")
    for name in (one for one in names if hour_in(one) == hour):
        newest = max(newest, newest_in(store, name))
    return newest


def newest_in(store: Store, name: str) -> Time:
    """Return Kafka's time of the newest record of a file; 0: there is none."""
    with opened(store, name) as file:
        return max((from_ms(times[1]) for times in bounds(file, "timestamp") if times), default=NEVER)


def require_disjoint(store: Store, topic: str, begin_us: Time, end_us: Time) -> None:
    """Make sure that no record of a topic is in two files, as happens if two archives share a folder.

    The files from the hour before a time to the hour after it are checked.
    """
    ends: dict[tuple[int, str], int] = {}
    for names in by_partition(store.names(topic)).values():
        for name in around(names, begin_us - HOUR_US, end_us):
            entry = entry_of(store, name)
            end = ends.get(place := (entry.partition, entry.log), entry.first)
            if entry.first < end:
                raise ArchiveError(f"{name}: expected offset {end} or later, got {entry.first}: archives overlap")
            ends[place] = entry.next


def around(names: Sequence[str], begin_us: Time, end_us: Time) -> list[str]:
    """Return the files of a partition that may have records of a time, and those of the hour after it."""
    first, last = hour_text(hour_of(begin_us)), hour_text(hour_of(end_us + HOUR_US - Duration(1)))
    found: list[str] = []
    behind = ""
    """The earliest hour of the later files."""
    for name in reversed(names):
        hour = hour_in(name)
        if hour >= first and (hour <= last or behind < hour):
            found.append(name)
        behind = min(behind or hour, hour)
    return found[::-1]


def read_records(store: Store, topic: str, begin_us: Time, end_us: Time) -> Iterator[Record]:
    """Return the records of a topic with Kafka's time in [begin, end) in bounded memory.

    Records of a partition come in the order of the log, and partitions are merged by timestamp.
    """
    partitions = (
        (record for columns in one for record in columns.records())
        for one in read_partitions(store, topic, begin_us, end_us)
    )
    return heapq.merge(*partitions, key=lambda record: record.timestamp_us)


def read_partitions(store: Store, topic: str, begin_us: Time, end_us: Time) -> list[Iterator[PartitionColumns]]:
    """Return the records of each partition of a topic, in the order of the log; see `read_records`."""
    partitions = by_partition(store.names(topic)).values()
    return [read_columns(store, around(files, begin_us, end_us), begin_us, end_us) for files in partitions]


@contextmanager
def opened(store: Store, name: str, **options: Any) -> Iterator[pq.ParquetFile]:
    """Open a file; its pages are verified as they are read. Any trouble with it, also later, is an `ArchiveError`."""
    try:
        with store.open(name) as source, pq.ParquetFile(source, page_checksum_verification=True, **options) as file:
            try:
                read_entry(file.metadata)
            except ArchiveError as error:
                raise ArchiveError(f"{name}: {error}") from error
            yield file
    except FileNotFoundError as error:
        raise ArchiveError(f"{name}: was removed while the archive was read, as old files are: try again") from error
    except (pa.ArrowException, OSError, KeyError) as error:  # a wrong checksum is an OSError
        raise ArchiveError(
            f"{name}: expected a whole file of an archive, got one that cannot be read: {error}; {advice(store)}"
        ) from error


def bounds(file: pq.ParquetFile, column: str) -> list[tuple[Any, Any] | None]:
    """Return the least and the greatest value of a column in each row group, times in ms; None: unknown.

    They are unknown for long texts.
    """
    place = file.metadata.schema.names.index(column)
    found = [file.metadata.row_group(group).column(place).statistics for group in range(file.num_row_groups)]
    return [(one.min_raw, one.max_raw) if one is not None and one.has_min_max else None for one in found]


def read_batches(
    store: Store, name: str, by: str, low: Any, high: Any, columns: Sequence[str] = _COLUMNS
) -> Iterator[tuple[ArchiveEntry, pa.RecordBatch]]:
    """Return the rows of a file whose key, or time [Unix ms], is from `low` to `high`, and the file's entry.

    Only row groups that may have some are decoded. Rows with times are in the order of the log.
    """
    with opened(store, name) as file:
        entry = read_entry(file.metadata)
        found = enumerate(bounds(file, by))
        groups = [group for group, one in found if one is None or (one[0] <= high and one[1] >= low)]
        if entry.topic in BY_KEY and by != "key":
            batches = file.read_row_groups(groups, columns, use_threads=False).sort_by("offset").to_batches(_BATCH)
        else:
            batches = file.iter_batches(_BATCH, groups, columns, use_threads=False)
        for batch in batches:
            values = batch.column(by).cast(pa.int64()) if by == "timestamp" else batch.column(by)
            yield entry, batch.filter(pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high)))


def read_keyed(
    store: Store, name: str, by: str = "timestamp", low: Any = 0, high: Any = _FOREVER_MS
) -> tuple[str, pa.Table]:
    """Return the log and partition of a file, and its records with keys; for `by`, `low` and `high` see `read_batches`.

    The columns are `offset`, `at_us` (Kafka's time [Unix us]), `key` and `value`.
    """
    log, tables = "", [_KEYED.empty_table()]
    for entry, batch in read_batches(store, name, by, low, high, ("offset", "timestamp", "key", "value")):
        log = f"{entry.log} {entry.partition}"
        columns = {one: batch[one] for one in ("offset", "key", "value")}
        tables.append(pa.table({"at_us": pc.multiply(batch["timestamp"].cast(pa.int64()), 1000), **columns}))
    found = pa.concat_tables(tables)
    return log, found.filter(pc.is_valid(found["key"]))


def read_columns(
    store: Store, names: Collection[str], begin_us: Time = NEVER, end_us: Time = _LATEST
) -> Iterator[PartitionColumns]:
    """Return the records of some files of a partition with a timestamp in [begin, end).

    A record that is in several files, as of two archives in one folder, comes once.
    """
    taken: dict[str, list[tuple[int, int]]] = {}
    """Ranges of the offsets in earlier files, by their log."""
    low, high = -(-int(begin_us) // 1000), -(-int(end_us) // 1000) - 1
    for name in names:
        entry = None
        for entry, batch in read_batches(store, name, "timestamp", low, high):
            offsets = batch.column("offset").to_numpy()
            is_new = np.full(len(offsets), True)
            for first, end in taken.get(entry.log, ()):
                is_new &= (offsets < first) | (offsets >= end)
            if is_new.any():
                yield _columns(batch if is_new.all() else batch.filter(pa.array(is_new)), entry.topic)
        if entry is not None:
            ranges = taken.setdefault(entry.log, [])
            first = ranges.pop()[0] if ranges and ranges[-1][1] == entry.first else entry.first
            ranges.append((first, entry.next))


def _columns(batch: pa.RecordBatch, topic: str) -> PartitionColumns:
    # Through numpy, as `to_pylist` makes a pyarrow object for each value.
    partition, offsets, keys, values = (
        batch.column(name).to_numpy(zero_copy_only=False).tolist() for name in ("partition", "offset", "key", "value")
    )
    headers, times = batch.column("headers"), batch.column("timestamp").cast(pa.int64()).to_numpy().tolist()
    pairs: list[Headers] = [()] * len(times)
    if len(headers.flatten()):
        pairs = [tuple((one["name"], one["value"]) for one in row) for row in headers.to_pylist()]
    return PartitionColumns(topic, partition[0], offsets, times, keys, values, pairs)
