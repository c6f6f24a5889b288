"""The files of an archive, each with a range of offsets of one partition, and their verification.

Theory of operation
-------------------
A file is Parquet. Each row is a record of the bus: value, key and headers in bytes, partition, offset and times. Rows
are in the order of the log. Only for the topics in `BY_KEY` they are sorted by key, in small row groups: a reader of
one key decodes one group of each file, which takes a tenth of the time of all.

The footer has the entry ``sdp.archive``: the range of offsets [first, next), the log of the offsets, and the number of
the file. The files of a partition are numbered without a gap, and each range begins at the end of the previous one.
Offsets without a record inside a range belong to compacted records, or to end markers of transactions.

The entry also has a digest: SHA-256 over all bytes of the file, with zeros instead of the digest. So it covers the
footer and its statistics, by which readers skip parts of a file.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from itertools import chain, groupby
from operator import attrgetter
from shlex import quote
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from facade.archive.stores import Store
from facade.kernel.bus.offsets import CountedOffsets, LogCut, Overlap
from facade.kernel.bus.port import PartitionColumns, TopicPartition
from facade.kernel.clock import HOUR, NEVER, Duration, Time, to_ms
from facade.kernel.errors import FacadeError
from facade.kernel.icd.model import Icd

VERSION = 1
"""Version of the format. Every version has the digest, and the version in the entry."""
BY_KEY = frozenset({"history"})
_SORTED_GROUP = 2000
"""Rows of a row group of such a file."""
HOUR_US = HOUR
_LAST_HOUR = int(datetime(9999, 12, 31, 23, tzinfo=UTC).timestamp()) // 3600
_ENTRY = b"sdp.archive"
_END = b"PAR1"
_DIGEST = b'"sha256":"'
_TAIL = 65_536
"""Size of the last part of a file, which has the digest, followed by names of topics and a schema."""
_BLANK = "0" * 64
_NAME = re.compile(r"topic=([\w.-]+)/hour=\d{4}-\d\d-\d\dT\d\d/(\d+)-(\d+)\.parquet", re.ASCII)
_LATEST = 2**53
_AT_ONCE = min(os.cpu_count() or 1, 4)
"""Files verified at the same time, each in memory."""
_OVERHEAD = 64
"""Size of a record in memory, beside its bytes [bytes]."""
MOST_ROWS: Final = 1_000_000
"""Most records of a file: a worker writes half of them. A file of 1 MB may claim 30,000,000, of 1 GB in memory."""
_PAIR = (pa.string(), pa.binary())
_HEADER = pa.struct([*zip(("name", "value"), _PAIR, strict=True)])
_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.list_(_HEADER), nullable=False),
        pa.field("value", pa.binary()),
    ]
)

EventTimes = Callable[[Sequence[bytes | None]], list[int | None]]
"""Returns the data times of values [Unix us]; None: unknown."""


class ArchiveError(FacadeError):
    """A file of an archive is unusable. The message has the reason, and the remedy if there is one."""


class ArchiveEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of a file, which describes its records."""

    version: int = VERSION
    deployment: str
    """Prefix of the deployment."""
    topic: str
    partition: int
    number: int
    """Number of the file within the partition."""
    hour: Annotated[int, msgspec.Meta(ge=0, le=_LAST_HOUR)]
    """Hour of the first record since the Unix epoch; earlier records may follow in the file."""
    log: str
    """The log of the offsets, see `facade.kernel.bus.port.OffsetRange`."""
    first: int
    """First offset of the range."""
    next: int
    """Offset after the range."""
    records: int
    sha256: str = _BLANK

    @property
    def unexplained(self) -> int:
        """Return how many offsets have no record, beyond one mark of a transaction for each record."""
        return max(self.next - self.first - 2 * self.records, 0)

    @property
    def name(self) -> str:
        """Return the name of the file in its archive."""
        return f"topic={self.topic}/hour={hour_text(self.hour)}/{self.partition:04d}-{self.number:08d}.parquet"


class _Version(msgspec.Struct):
    version: int


def hours_of(times_ms: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the hours of times [Unix ms]; see `hour_of`."""
    return np.clip(np.array(times_ms, np.int64) // to_ms(NEVER + HOUR_US), 0, _LAST_HOUR)


def hour_of(at_us: Time) -> int:
    """Return the hour of a time since the Unix epoch, limited to the range of names."""
    return min(max(at_us // HOUR_US, 0), _LAST_HOUR)


def parse_name(name: str) -> tuple[str, int, int] | None:
    """Return topic, partition and number of a file; None: it is not the name of a file of an archive."""
    found = _NAME.fullmatch(name)
    try:
        is_time = datetime.fromisoformat(hour_in(name)).year >= 1970
    except ValueError:
        is_time = False
    return (found[1], int(found[2]), int(found[3])) if found and is_time else None


def by_partition(names: Iterable[str]) -> dict[TopicPartition, list[str]]:
    """Return the files among some names by partition, in the order of their numbers."""
    named = sorted((parsed, name) for name in names if (parsed := parse_name(name)))
    return {place: [name for _, name in files] for place, files in groupby(named, lambda one: one[0][:2])}


def hour_in(name: str) -> str:
    """Return the hour in the name of a file, as `hour_text` writes it: such texts sort as their times."""
    return name.partition("/hour=")[2].partition("/")[0]


def hour_text(hour: int) -> str:
    """Return an hour since the Unix epoch in the form of names."""
    return datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m-%dT%H")


def event_times(icd: Icd, topic: str) -> EventTimes:
    """Return a function for the data times in JSON messages of a topic, from the ICD's field."""
    entry = icd.topics[topic]
    schemas = [icd.messages[name] for name in (entry.message, *entry.also) if name]
    if entry.window is not None:
        field = entry.window.time
    elif any(one["properties"].get("time", {}).get("x-unit") == "us" for one in schemas):
        field = "time"
    else:
        return lambda values: [None] * len(values)
    kind = Annotated[int, msgspec.Meta(ge=0, lt=_LATEST)] | None
    message = msgspec.defstruct("Timed", [("time", kind, None)], rename={"time": field}, gc=False)
    decode: Callable[[Any], Any] = msgspec.json.Decoder(message).decode

    def find(values: Sequence[bytes | None]) -> list[int | None]:
        # No Python code runs for a message. After an error, `extend` has kept the earlier times.
        found: list[int | None] = []
        rest = map(attrgetter("time"), map(decode, values))
        while len(found) < len(values):
            try:
                found.extend(rest)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):  # columns, or not a message
                found.append(None)
        return found

    return find


def to_batch(columns: PartitionColumns, times: EventTimes) -> pa.RecordBatch:
    """Return records as rows of a file."""
    count = len(columns.offsets)
    lengths = np.fromiter(map(len, columns.headers), np.int32, count)
    pairs = [*chain.from_iterable(columns.headers)]
    names, values = (pa.array([one[part] for one in pairs], kind) for part, kind in enumerate(_PAIR))
    headers = pa.StructArray.from_arrays([names, values], fields=[*_HEADER])
    arrays = [
        pa.array(np.full(count, columns.partition, np.int32)),
        pa.array(columns.offsets, pa.int64()),
        pa.array(columns.timestamps, pa.int64()).cast(_SCHEMA.field("timestamp").type),
        pa.array(times(columns.values), pa.int64()).cast(_SCHEMA.field("event_time").type),
        pa.array(columns.keys, pa.binary()),
        pa.ListArray.from_arrays(_totals(lengths).astype(np.int32), headers),
        pa.array(columns.values, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def sizes_of(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the size of each row in memory [bytes]."""
    headers, sizes = batch.column("headers"), np.full(len(batch), _OVERHEAD, np.int64)
    for name in ("key", "value"):
        sizes += pc.binary_length(batch.column(name)).fill_null(0).to_numpy()
    pairs = sum(pc.binary_length(part).to_numpy().astype(np.int64) for part in headers.values.flatten())
    sizes += np.diff(_totals(pairs)[headers.offsets.to_numpy()])
    return sizes


def _totals(counts: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def encode(batches: Sequence[pa.RecordBatch], contents: ArchiveEntry) -> bytes:
    """Return a file with rows in the order of their offsets."""
    table = pa.Table.from_batches(batches, _SCHEMA)
    is_by_key = contents.topic in BY_KEY
    if is_by_key:
        table = table.take(pc.sort_indices(table, [("key", "ascending")]))  # is stable
    sink = pa.BufferOutputStream()
    options: dict[str, Any] = {
        "compression": "zstd",
        "write_page_checksum": True,
        "use_dictionary": ["partition", "key"],  # all values differ: a dictionary would only take time
        "column_encoding": dict.fromkeys(("offset", "timestamp", "event_time"), "DELTA_BINARY_PACKED"),
    }
    with pq.ParquetWriter(sink, _SCHEMA, **options) as writer:
        writer.write_table(table, row_group_size=_SORTED_GROUP if is_by_key else None)
        writer.add_key_value_metadata({_ENTRY: msgspec.json.encode(contents)})
    raw = memoryview(sink.getvalue()).cast("B")
    place = _digest_place(raw)
    raw[place : place + len(_BLANK)] = sha256(raw).hexdigest().encode()
    return bytes(raw)


def no_archive(store: Store) -> ArchiveError:
    """Return the error for a location without files of an archive."""
    return ArchiveError(
        f"{store}: expected files topic=TOPIC/hour=HOUR/PARTITION-NUMBER.parquet of an archive, got none"
    )


def advice(place: object) -> str:
    """Return the advice to find all faults of an archive."""
    return f"`sdp-facade archive verify {quote(str(place))}` names each missing and each damaged file"


def inspect(raw: bytes, name: str = "") -> ArchiveEntry:
    """Return the entry of a file, after its digest was verified; `name`: it must have this name."""
    if not (raw.startswith(_END) and raw.endswith(_END)):
        raise ArchiveError(f"expected a whole Parquet file, got {len(raw)} bytes without its mark at the begin or end")
    view = memoryview(raw)  # a copy of the bytes would take longer than their digest
    place = _digest_place(view)
    if place < 0:
        raise ArchiveError("expected a file of an archive, got a Parquet file without a digest")
    end = place + len(_BLANK)
    found = sha256(view[:place])
    found.update(_BLANK.encode())
    found.update(view[end:])
    if found.hexdigest().encode() != view[place:end]:
        raise ArchiveError("expected the bytes that were written, got others: the digest differs")
    try:
        entry = read_entry(pq.read_metadata(pa.BufferReader(raw)))
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"expected a file of an archive, got one that cannot be read: {error}") from error
    if name and entry.name != name:
        raise ArchiveError(f"expected the file that its name says, got {entry.name}")
    return entry


def read_entry(footer: pq.FileMetaData) -> ArchiveEntry:
    """Return the entry of a file; an `ArchiveError` if it is missing, too large, or the file is of a newer version."""
    if footer.num_rows > MOST_ROWS:
        raise ArchiveError(f"expected at most {MOST_ROWS:,} records in a file, got {footer.num_rows:,}")
    try:
        entry = (footer.metadata or {})[_ENTRY]
        version = msgspec.json.decode(entry, type=_Version).version
        if version > VERSION:
            raise ArchiveError(f"expected version {VERSION} or older, got {version}: use a newer release")
        return msgspec.json.decode(entry, type=ArchiveEntry)
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArchiveError(f"expected a file of an archive, got one without its entry: {error}") from error


def _digest_place(raw: memoryview) -> int:
    """Return the position of the digest; negative: there is none. The entry is at the end, after all records."""
    tail = bytes(raw[-_TAIL:])
    found = tail.rfind(_DIGEST)
    place = len(raw) - len(tail) + found + len(_DIGEST)
    return place if found >= 0 and place + len(_BLANK) <= len(raw) else -1


# Verification of an archive: each file as it was written, and each offset of a partition in one file.


@dataclass(slots=True)
class PartitionReport:
    """Verification of the files of one partition."""

    topic: str
    partition: int
    offsets: str = "none"
    """The first and the last of the ranges."""
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Notes that are no faults of the archive."""
    entries: list[ArchiveEntry] = field(default_factory=list)
    """Entries of the usable files, in their order."""

    @property
    def records(self) -> int:
        """Return the number of records in the usable files."""
        return sum(one.records for one in self.entries)


def verify(store: Store, topic: str = "*") -> Iterator[PartitionReport]:
    """Verify all files of an archive, or of one of its topics, partition by partition."""
    names = store.names(topic)
    if not names:
        raise no_archive(store)
    if odd := [f"{name}: expected a name as of an archive's files" for name in names if not parse_name(name)]:
        yield PartitionReport("", -1, faults=odd)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            places = by_partition(names)
            entries = {name: pool.submit(_read, store, name) for files in places.values() for name in files}
            for place, files in places.items():
                report = PartitionReport(*place)
                _follow(report, files, lambda name: entries[name].result())
                yield report
        finally:
            pool.shutdown(cancel_futures=True)


def missing(store: Store, topic: str, begin_us: Time, end_us: Time) -> Iterator[str]:
    """Return the records of a time that are not in the files of a topic, by names and footers."""
    begin, end = hour_text(hour_of(begin_us)), hour_text(hour_of(end_us - Duration(1)))
    for (_, partition), files in by_partition(store.names(topic)).items():
        hours, number = [*map(hour_in, files)], _number_in(files[0])
        since = next((at for at, hour in enumerate(hours) if hour >= begin), len(hours))
        until = next((at for at, hour in enumerate(hours) if hour > end), len(hours)) + 1  # a gap may be before it
        # Retention removes all files of an hour, or none.
        if since == 0 and number > 0 and hours[0] > begin:
            yield f"{topic}, partition {partition}: files before number {number}, of {hours[0]} UTC, were removed"
        report = PartitionReport(topic, partition)
        if chosen := files[max(since - 1, 0) : until]:
            _follow(report, chosen, partial(_read_footer, store))
        yield from (*report.faults, *report.notes)


def _read_footer(store: Store, name: str) -> ArchiveEntry:
    try:
        with store.open(name) as file:
            return read_entry(pq.read_metadata(file))
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"cannot be read: {error}") from error


def _number_in(name: str) -> int:
    parsed = parse_name(name)
    return parsed[2] if parsed else -1


def _follow(report: PartitionReport, files: Sequence[str], read: Callable[[str], ArchiveEntry]) -> None:
    """Verify files of a partition in their order."""
    taken: CountedOffsets | None = None
    expected = _number_in(files[0])
    for name in files:
        number = _number_in(name)
        try:
            found = read(name)
        except FileNotFoundError:  # by retention, which also removes all earlier ones
            report.notes.append(f"{name}: was removed meanwhile")
            taken, expected = None, number + 1
            report.entries, report.offsets = [], "none"
            continue
        except ArchiveError as error:
            report.faults.append(f"{name}: {error}")
            expected = number + 1
            continue
        if number != expected:
            what = "it is there twice" if number < expected else "a file is missing"
            report.faults.append(f"{name}: expected number {expected}, got {number}: {what}")
        expected = number + 1
        taken = taken or CountedOffsets(found.log, found.first, found.first)
        before = taken.end
        match taken.take(found.log, found.first, found.next):
            case Overlap():
                report.faults.append(f"{name}: expected offset {before} or later, got {found.first}: archives overlap")
            case LogCut() as cut:
                cause = "topic was made again" if cut.made_again else f"log was cut before offset {cut.expected}"
                report.notes.append(f"{name}: the {cause}, offsets go on at {cut.begin}")
            case None:
                pass
            case gap:
                report.faults.append(f"{name}: {gap}")
        if found.unexplained > MOST_ROWS:
            what = "a restore would write a filler for each"
            report.notes.append(f"{name}: {found.unexplained:,} of its offsets have no record: {what}")
        report.entries.append(found)
        report.offsets = f"{taken.begin}-{taken.end - 1}"


def _read(store: Store, name: str) -> ArchiveEntry:
    try:
        raw = store.read(name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ArchiveError(f"cannot be read: {error.strerror or error}") from error
    found = inspect(raw, name)
    with pq.ParquetFile(pa.BufferReader(raw)) as file:
        offsets = file.read(["offset"], use_threads=False)["offset"].to_numpy()
    if found.topic in BY_KEY:
        offsets = np.sort(offsets)
    bounds = np.concatenate(([found.first - 1], offsets, [found.next]))
    if len(offsets) != found.records or (np.diff(bounds) <= 0).any():
        what = f"expected {found.records} ascending offsets from {found.first} to {found.next - 1}"
        raise ArchiveError(f"{what}, got {len(offsets)}, not so")
    return found
