"""Writes a part of an archive as a NeXus file, which is HDF5.

Theory of operation
-------------------
The file is one NXentry. Times are seconds, for events microseconds, since its `start_time`. Each topic has a group::

    entry                        NXentry: start_time, end_time, entry_identifier (the execution block)
      ingest_heaps               NXcollection: each windowed topic
        notifications            NXevent_data: event_id is the node; the other fields of a notification are columns
        windows                  NXcollection, of the partials of workers
          count, latency_max ... NXlog: value and quality, over windows and nodes
          plot                   NXdata: the same datasets
      state                      NXcollection: what controllers report
        mid_sdp_subarray_01_obsState   NXlog: value, text, quality; the number of a text is its place in labels
      telescope_model            NXcollection: mirrored attributes; NXlog with value, text, quality, connection
      alerts, commands ...       NXcollection
        alert, alert_action ...  NXlog of each message: its value is the severity, status or so; a column by field
      calibration                NXcollection
        cal_7                    NXdata: columns of a table with their units; NXnote: the bytes of other tables
      account                    NXcollection: records of each topic, how many could not be decoded, what is missing

Each NXlog has a group `plot`, an NXdata with links to its datasets: viewers draw NXdata only.

A record belongs to a time by Kafka's time, which is the broker's. Windows belong to it by their begin: their partials
are read from before until after the time, as far as records may be early or late.

Topics are read one after the other, in bounded memory; see `facade.flows.archive.nexus_groups`. The segments of a table
are put together in a temporary file. The NeXus file gets its place when it is whole and durable.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from facade.clock import utc_text
from facade.codec.decode import BatchDecoder
from facade.errors import ConfigError
from facade.flows.archive.files import no_archive
from facade.flows.archive.nexus_topics import BLOCKS, COMMANDS, STATE, ExportProgress, TopicExport, TopicWriter
from facade.flows.archive.reading import extent, read_records
from facade.flows.archive.stores import Store
from facade.icd.model import Icd
from facade.messages import State

_EB = "ebID"
"""Attribute with the execution block that is active."""
_LATEST = 2**62


def find_time(store: Store, eb: str) -> tuple[int, int]:
    """Return the time of an execution block [Unix us]: from its first record until its subarray has left it.

    Raises
    ------
    ConfigError
        The archive does not have the block.
    """
    name, active, begin, end = f'"{eb}"'.encode(), set[str](), _LATEST, 0
    decoder = BatchDecoder(State)
    for topic in (COMMANDS, BLOCKS, STATE):
        for record in read_records(store, topic, 0, _LATEST):
            value = record.value or b""
            is_of_it = name in value
            state = decoder.decode_one(value) if topic == STATE and _EB.encode() in value else None
            if isinstance(state, State) and state.attribute == _EB:
                is_of_it = state.value == eb or state.device in active
                (active.add if state.value == eb else active.discard)(state.device)
            if is_of_it:
                begin, end = min(begin, record.timestamp_us), max(end, record.timestamp_us)
    if not end:
        raise ConfigError(f"--eb: expected an execution block of the archive, got {eb!r:.100}, which no record names")
    return begin, end + 1000


def export(
    store: Store,
    icd: Icd,
    path: Path,
    begin_us: int,
    end_us: int,
    *,
    eb: str = "",
    replace: bool = False,
    progress: ExportProgress = lambda topic, part: None,
) -> TopicExport:
    """Write the records of a time [Unix us] to a NeXus file.

    Raises
    ------
    ConfigError
        There is such a file already, or the archive has nothing of that time.
    ArchiveError
        A file of the archive is damaged, or there are no files.
    OSError
        The file cannot be written.
    """
    if begin_us >= end_us:
        raise ConfigError(
            f"--from, --to: expected a begin before the end, got {utc_text(begin_us)}, {utc_text(end_us)}"
        )
    if path.exists() and not replace:
        raise ConfigError(f"{path}: expected no such file; --force replaces it")
    has = extent(store)
    if has is None:
        raise no_archive(store)
    nothing = ConfigError(
        f"expected a time of which the archive has records, from {utc_text(has[0])} to {utc_text(has[1])}; "
        f"got {utc_text(begin_us)} to {utc_text(end_us)}"
    )
    if has[1] <= begin_us or end_us <= has[0]:
        raise nothing
    begin_us, end_us = max(begin_us, has[0]), min(end_us, has[1])
    with _whole(path) as (part, folder):
        with h5py.File(part, "w-") as file:
            made = TopicWriter(store, icd, file, TopicExport(begin_us, end_us), folder, progress).write(path.name, eb)
        if not any(account.records for account in made.accounts.values()):
            raise nothing
    return made


@contextmanager
def _whole(path: Path) -> Iterator[tuple[Path, Path]]:
    """Give a file that gets its place if nothing is raised, and a folder for temporary ones.

    Both are in a hidden folder beside the place. One that a killed export has left is used again.
    """
    folder = path.with_name(f".{path.name}.part")
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{path}: expected one export to this file at a time, got a second one") from error
        try:
            for left in folder.iterdir():
                left.unlink()
            part = folder / "part.nxs"
            yield part, folder
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            shutil.rmtree(folder)
    finally:
        os.close(lock)
