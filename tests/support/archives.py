"""Archives of a bus in memory, and what is in them."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from facade.archive.files import encode, inspect, parse_name, verify
from facade.archive.reports import ArchiveReporter
from facade.archive.stores import FolderStore, Store
from facade.archive.worker import WHOLE, ArchiveLimits, ArchiveWorker, Shard
from facade.kernel.bus.memory import MemoryBus, MemoryLog
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.icd.load import load

ICD = load()
TOPIC = "alerts"
HOUR = 3_600_000_000
START = 500_000 * HOUR
"""A whole hour [Unix us]."""


def record(at_us: int = START, value: bytes | None = b"v", topic: str = TOPIC, partition: int = 0) -> Record:
    return Record(
        topic=topic, key=b"k", value=value, headers=(("h", b"\xff"),), partition=partition, timestamp_us=at_us
    )


class Writer(Executor):
    """Writes a file at once, or, while it is held, when it is told to."""

    def __init__(self) -> None:
        self.is_held = False
        self._jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.append((future, partial(fn, *args, **kwargs)))
        if not self.is_held:
            self.write()
        return future

    def write(self) -> None:
        while self._jobs:
            future, job = self._jobs.pop(0)
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)


def worker(
    log: MemoryLog | MemoryBus,
    store: Store,
    *topics: str,
    clock: ManualClock | None = None,
    limits: ArchiveLimits | None = None,
    keep: Mapping[str, float] | None = None,
    reporter: ArchiveReporter | None = None,
    shard: Shard = WHOLE,
    writer: Executor | None = None,
    beside: Callable[[], None] | None = None,
) -> ArchiveWorker:
    bus = log if isinstance(log, MemoryBus) else MemoryBus(log)
    clock, deployment = clock or ManualClock(), "test."
    limits = replace(limits or ArchiveLimits(), wait=0.0)
    return ArchiveWorker(
        bus,
        store,
        ICD,
        topics or (TOPIC,),
        deployment=deployment,
        clock=clock,
        limits=limits,
        keep=keep,
        reporter=reporter,
        shard=shard,
        writer=writer or Writer(),
        beside=beside,
    )


def changed(raw: bytes, **changes: int | str) -> bytes:
    """Return a file with the same rows and another entry."""
    rows = pq.read_table(pa.BufferReader(raw)).replace_schema_metadata(None)
    return encode(rows.to_batches(), msgspec.structs.replace(inspect(raw), sha256="0" * 64, **changes))


def read_records(raw: bytes, topic: str) -> list[Record]:
    rows = pq.read_table(pa.BufferReader(raw))
    rows = rows.set_column(2, "timestamp", rows["timestamp"].cast(pa.int64()))
    return [
        Record(
            topic=topic,
            partition=row["partition"],
            offset=row["offset"],
            timestamp_us=row["timestamp"] * 1000,
            key=row["key"],
            headers=tuple((one["name"], one["value"]) for one in row["headers"]),
            value=row["value"],
        )
        for row in rows.to_pylist()
    ]


def kept(store: Store) -> list[Record]:
    """Return all records, in the order of partitions and files."""
    found = []
    for name in sorted(store.names(), key=lambda name: (parse_name(name) or ("",), name)):
        raw = store.read(name)
        found += read_records(raw, inspect(raw).topic)
    return found


def faults(store: Store) -> list[str]:
    return [fault for report in verify(store) for fault in report.faults]


def archive(log: MemoryLog | MemoryBus, store: Store, *topics: str) -> None:
    """Write what is on the topics, as a worker does that is then told to end."""
    running = worker(log, store, *topics)
    running.step()
    running.step()
    running.finish()


def archive_of(folder: Path, *files: int, value: bytes = b"v", at_us: int = START) -> FolderStore:
    """Make an archive of one partition, with so many records in each of its files, and close it."""
    log, store = MemoryLog({TOPIC: 1}), FolderStore(folder)
    running = worker(log, store, limits=ArchiveLimits(age=0.0))
    running.step()
    for count in files:
        for _ in range(count):
            log.append(record(at_us, value))
        running.step()
        running.step()
    return store
