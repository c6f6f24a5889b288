"""Whether an archive is whole: each file as it was written, and each offset of a partition in one file."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from facade.bus.offsets import CountedOffsets, LogCut, Overlap
from facade.flows.archive.files import ArchiveError, Contents, inspect, parse_name, read_offsets
from facade.flows.archive.stores import Store


@dataclass(slots=True)
class PartitionReport:
    """What the files of one partition have."""

    topic: str
    partition: int
    files: int = 0
    """Those that can be used."""
    records: int = 0
    offsets: str = "none"
    """The first and the last of the ranges."""
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Worth knowing, and no fault of the archive."""


def verify(store: Store) -> Iterator[PartitionReport]:
    """Look at all files of an archive, partition by partition.

    Raises
    ------
    ArchiveError
        There are no files.
    """
    named = sorted((parse_name(name) or ("", -1, -1), name) for name in store.names())
    if not named:
        raise ArchiveError("expected an archive, with files topic=TOPIC/hour=HOUR/PARTITION-NUMBER.parquet, got none")
    for (topic, partition), files in groupby(named, lambda one: one[0][:2]):
        report = PartitionReport(topic, partition)
        if partition < 0:
            report.faults = [f"{name}: expected a name as of an archive's files" for _, name in files]
        else:
            _follow(store, report, [(place[2], name) for place, name in files])
        yield report


def _follow(store: Store, report: PartitionReport, files: list[tuple[int, str]]) -> None:
    """Look at the files of a partition in their order."""
    taken: CountedOffsets | None = None
    expected = files[0][0]
    for number, name in files:
        try:
            found = _read(store, name)
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
        report.files += 1
        report.records += found.records
        report.offsets = f"{taken.begin}-{taken.end - 1}"


def _read(store: Store, name: str) -> Contents:
    try:
        raw = store.read(name)
    except OSError as error:
        raise ArchiveError(f"cannot be read: {error.strerror or error}") from error
    found = inspect(raw)
    if found.name != name:
        raise ArchiveError(f"expected the file that its name says, got {found.name}")
    offsets = read_offsets(raw)
    bounds = [found.first - 1, *offsets, found.next]
    if len(offsets) != found.records or any(one >= other for one, other in pairwise(bounds)):
        what = f"expected {found.records} ascending offsets from {found.first} to {found.next - 1}"
        raise ArchiveError(f"{what}, got {len(offsets)}, not so")
    return found
