"""The archive: records to files, beside a bare loop that writes their bytes; replay and check of the files."""

import gc
import os
import statistics
from collections.abc import Iterable
from hashlib import sha256
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from facade.archive.files import HOUR_US, ArchiveEntry, encode, event_times, to_batch, verify
from facade.archive.history import HistoryArchive
from facade.archive.nexus import export
from facade.archive.night.page import render
from facade.archive.night.report import read_night
from facade.archive.night.span import Night
from facade.archive.reading import extent, read_partitions
from facade.archive.replay import PATIENCE, plan_replay, play
from facade.archive.stores import FolderStore
from facade.archive.thinned import history
from facade.archive.worker import ArchiveWorker
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaStreamWriter
from facade.kernel.bus.port import BusHealth, PartitionColumns
from facade.kernel.clock import NEVER, SECOND, Clock, to_ms, utc_text
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.sdp.messages import FieldColumns, RackSummary
from sdp_facade_lab import gauges
from sdp_facade_lab.bench.load import NODES, RATE, ROWS, TOPIC, fill_batches, fill_topic
from sdp_facade_lab.bench.raw import bare_values
from sdp_facade_lab.bench.report import MEGA, BarVerdict, BenchOutcome, Ratios, at_least, at_most, ratios
from sdp_facade_lab.bench.throughput_roles import Meter, RoleTiming
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.roles import RoleContext
from sdp_facade_lab.testbed import Testbed

_FILE = 32_000_000
"""Bytes between two waits for the disk, as the worker has them."""
_TAKE = 10_000
_SOME = 500
"""Runs of records, of 1000 each, that are replayed from memory."""
_GC_THRESHOLD = 100_000
_PAPER = (600, 28)
"""Least rate of paper 003 [MB/s], and its cores."""
BEGIN = NEVER + 490_000 * HOUR_US
"""In the past, so that no question about it also goes to the devices."""
_EVERY_MS = 300_000
_DAY, _NIGHT = 86_400, 28_800
"""[s]"""
_DEVICES, _ATTRIBUTES = 20, 50
_RACKS, _RACK = 2, 50
_numbers = count()


# Processes that are timed


def worker(context: RoleContext, *, folder: str, records: int, broker_pid: int) -> RoleTiming:
    gc.set_threshold(_GC_THRESHOLD)
    meter, bus = (
        Meter(context.clock, broker_pid),
        KafkaBus(Connection(context.settings, clock=context.clock), client="a"),
    )
    store, prefix = FolderStore(Path(folder)), context.settings.prefix
    work = ArchiveWorker(bus, store, load(), [TOPIC], deployment=prefix, clock=context.clock)
    account = work.accounts[TOPIC]
    work.step()  # opens the reader
    meter.mark(0)
    while account.consumed + account.uncommitted < records:
        work.step()
    work.finish()
    meter.mark(account.consumed)
    return meter.timing()


def bare(context: RoleContext, *, folder: str, records: int, broker_pid: int) -> RoleTiming:
    """Consume and write the bytes of the values, durable as those of the worker."""
    gc.set_threshold(_GC_THRESHOLD)
    meter, taken, size = Meter(context.clock, broker_pid), 0, 0
    with Path(folder).open("wb") as file:
        for values in bare_values(Connection(context.settings, clock=context.clock), TOPIC, 0, batch=_TAKE):
            if not meter.marks:
                meter.mark(0)  # the consumer is open
            taken += len(values)
            size += file.write(b"".join(values))
            if size >= _FILE or taken >= records:
                file.flush()
                os.fsync(file.fileno())
                size = 0
            if taken >= records:
                break
    meter.mark(taken)
    return meter.timing()


class ReadTiming(msgspec.Struct, frozen=True, kw_only=True):
    """How long an archive was read."""

    seconds: float
    cpu: float
    """[s]"""
    peak_mb: float


def read(context: RoleContext, *, folder: str, what: str) -> ReadTiming:
    """Make a file of a whole archive: ``nexus`` or ``report``."""
    store, icd, clock = FolderStore(Path(folder)), load(), context.clock
    begin, end = extent(store) or (NEVER, NEVER)
    file, cpu, began = context.result.with_suffix(f".{what}"), gauges.own_cpu(), clock.monotonic()
    if what == "nexus":
        export(store, icd, file, begin, end, replace=True)
    else:
        found = read_night(store, icd, Night(BEGIN, BEGIN + _NIGHT * SECOND), _RACK)
        file.write_text(render(found, folder, end))
    seconds = clock.monotonic() - began
    file.unlink()
    return ReadTiming(seconds=seconds, cpu=gauges.own_cpu() - cpu, peak_mb=gauges.peak_resident())


# The measurement


def archive(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    pairs, folder = (2, testbed.folder / "archive") if quick else (3, testbed.folder / "archive")
    folder.mkdir(parents=True, exist_ok=True)
    verdicts = [
        *_json(testbed, folder, pairs, 500_000 if quick else 2_000_000),
        *_columnar(testbed, folder, pairs, 2_000 if quick else 4_000),
        *_report(testbed, folder / "night", _NIGHT // 4 if quick else _NIGHT),
        *_history(folder / "history", testbed.progress.clock, _DAY // 8 if quick else _DAY),
        _frame(folder / "week", testbed.progress.clock, _DAY if quick else 7 * _DAY),
    ]
    load_1, *_ = os.getloadavg()
    return BenchOutcome(
        what="records to files beside a bare loop that writes their bytes to the disk, and what is read from the files",
        verdicts=tuple(verdicts),
        notes=(f"load average {load_1:.1f} at the end",),
    )


def _pairs(made: Deployment, folder: Path, pairs: int, records: int) -> list[tuple[RoleTiming, RoleTiming]]:
    """Time the worker and the bare loop on the same records; the first archive stays."""
    task: dict[str, Any] = {"records": records, "broker_pid": made.broker.pid}
    found = []
    for pair in range(pairs):
        place = folder if pair == 0 else folder.with_name(f"{folder.name}-{next(_numbers)}")
        made.progress.step(f"  pair {pair + 1} of {pairs}")
        ours = made.result(made.play(worker, ends=True, folder=str(place), **task), RoleTiming, 900.0)
        raw = made.play(bare, ends=True, folder=str(made.folder / "bytes"), **task)
        found.append((ours, made.result(raw, RoleTiming, 900.0)))
    return found


def _json(testbed: Testbed, folder: Path, pairs: int, records: int) -> Iterable[BarVerdict]:
    with testbed.deployment("archive-json") as made:
        fill_topic(made, records)
        found = _pairs(made, folder / "json", pairs, records)
    rate, raw = (statistics.median(one[part].rate for one in found) for part in (0, 1))
    beside = ratios((ours.rate, beside.rate) for ours, beside in found)
    yield _beside("JSON heaps: worker / bare loop", beside, f"{rate / 1e3:,.0f} k/s beside {raw / 1e3:,.0f} k/s")
    yield _replay(testbed, folder / "json", records / RATE, "JSON heaps")


def _columnar(testbed: Testbed, folder: Path, pairs: int, batches: int) -> Iterable[BarVerdict]:
    with testbed.deployment("archive-columnar") as made:
        broker = gauges.cpu(made.broker.pid)
        filled = fill_batches(made, batches, partitions=1)
        broker = gauges.cpu(made.broker.pid) - broker
        found = _pairs(made, folder / "columnar", pairs, batches)
        nexus = made.result(
            made.play(read, ends=True, folder=str(folder / "columnar"), what="nexus"), ReadTiming, 1800.0
        )
    size = filled.value_bytes / MEGA
    each = size / batches
    rate, raw = (statistics.median(one[part].rate for one in found) * each for part in (0, 1))
    beside = ratios((ours.rate, beside.rate) for ours, beside in found)
    bar = rate >= 400 or beside.median >= 0.5
    text = f"{rate:,.0f} MB/s beside {raw:,.0f} MB/s: {beside}"
    yield BarVerdict("columnar batches: worker", text, bar=">= 400 MB/s or 0.5 x bare", reached=bar)
    (timing, _), *_ = found
    last, first = timing.marks[-1], timing.marks[0]
    cpu = filled.cpu + broker + (last.cpu - first.cpu) + (last.broker_cpu - first.broker_cpu) + nexus.cpu
    seconds = filled.seconds + timing.seconds + nexus.seconds
    paper, cores = _PAPER
    yield BarVerdict(
        "generator, Kafka, archive, NeXus, one after the other",
        f"{size / cpu:.0f} MB/s for each core, {size / seconds:.0f} MB/s; NeXus {size / nexus.seconds:.0f} MB/s"
        f" (paper 003: from {paper} MB/s on a machine of {cores} cores; how many worked is not known)",
    )
    yield _replay(testbed, folder / "columnar", batches * ROWS / RATE, "columnar batches")
    yield _verify(folder / "columnar", testbed.progress.clock)


def _replay(testbed: Testbed, folder: Path, seconds: float, what: str) -> BarVerdict:
    """Replay an archive of four nodes, `seconds` long."""
    store, clock = FolderStore(folder), testbed.progress.clock
    begin, end = extent(store) or (NEVER, NEVER)
    with testbed.deployment("archive-replay") as made:
        plan = plan_replay(store, made.icd, begin, end, prefix=made.settings.prefix)
        connection = Connection(made.settings, clock=clock)
        writer, began = KafkaStreamWriter(connection, health=BusHealth(), client="bench-replay"), clock.monotonic()
        played = play(store, plan, writer, clock, report=lambda *_: None)
        found = seconds / (clock.monotonic() - began)
        some = [*islice(chain.from_iterable(read_partitions(store, TOPIC, begin, end)), _SOME)]
        began = clock.monotonic()
        for columns in some:
            writer.copy(columns)
        writer.flush(PATIENCE)
        share = sum(len(columns.values) for columns in some) / played
        bare = seconds * share / (clock.monotonic() - began)
    text = f"{found:.1f} x; the client alone, from memory: {bare:.1f} x"
    return BarVerdict(f"replay at max, {NODES} nodes, {what}", text, bar=">= 10 x", reached=found >= 10)


def _verify(folder: Path, clock: Clock) -> BarVerdict:
    store, size = FolderStore(folder), 0.0
    began = clock.monotonic()
    for name in store.names():
        content = store.read(name)
        size += len(content) / 1e9
        sha256(content)
    raw = size / (clock.monotonic() - began)
    began = clock.monotonic()
    if any(one.faults for one in verify(store)):
        raise ValueError(f"{folder}: expected an archive without faults")
    found = size / (clock.monotonic() - began)
    text = f"{found:.2f} GB/s beside {raw:.2f} GB/s of a loop that reads and hashes"
    return BarVerdict("verify, from the page cache", text, bar=">= 1 GB/s", reached=found >= 1)


def _beside(what: str, found: Ratios, text: str) -> BarVerdict:
    made = at_least(what, found, 0.5)
    return msgspec.structs.replace(made, found=f"{made.found}: {text}")


# A night and a day that are made


def put(folder: Path, icd: Icd, topic: str, records: Iterable[tuple[int, bytes, bytes]]) -> None:
    """Write records, as times [Unix ms], keys and values, to an archive: a file for five minutes."""
    store, times, offset = FolderStore(folder), event_times(icd, topic), 0
    for number, (_, some) in enumerate(groupby(records, lambda one: one[0] // _EVERY_MS)):
        at, keys, values = map(list, zip(*some, strict=True))
        size = len(at)
        columns = PartitionColumns(topic, 0, [*range(offset, offset + size)], at, keys, values, [()] * size)
        entry = ArchiveEntry(
            deployment="bench.", topic=topic, partition=0, number=number, hour=at[0] // 3_600_000, log="x",
            first=offset, next=offset + size, records=size,
        )  # fmt: skip
        store.write(entry.name, encode([to_batch(columns, times)], entry))
        offset += size


def _summaries(seconds: int) -> Iterable[tuple[int, bytes, bytes]]:
    dice, each = np.random.default_rng(1), round(RATE / NODES)
    buckets = dice.integers(400, 700, (64, 40)).tolist()
    sketches = [dict.fromkeys(sorted(row), each // 40) for row in buckets]  # a worker writes them in order
    for second in range(seconds):
        window = BEGIN + second * SECOND
        for rack in range(_RACKS):
            nodes = [*range(rack * _RACK, (rack + 1) * _RACK)]
            numbers = FieldColumns(sum=[each * 512] * _RACK, min=[512] * _RACK, max=[512] * _RACK, last=[512] * _RACK)
            latency = FieldColumns(sketch=[*islice(sketches, second % 14, second % 14 + _RACK)])
            summary = RackSummary(
                worker="0", stream=TOPIC, partition=rack, first=nodes[0], last=nodes[-1], log="x",
                offset_from=second * each, offset_to=(second + 1) * each, part=0, contiguous=True, node=nodes,
                epoch=[1] * _RACK, window=[window] * _RACK, late=[False] * _RACK, count=[each] * _RACK,
                time_min=[window] * _RACK, time_max=[window] * _RACK,
                runs=[[(second * each, (second + 1) * each - 1)]] * _RACK,
                fields={"received": numbers, "lost": numbers, "late": numbers, "latency": latency},
            )  # fmt: skip
            yield to_ms(window + SECOND), b"rack-%d" % rack, msgspec.json.encode(summary)


def _report(testbed: Testbed, folder: Path, seconds: int) -> Iterable[BarVerdict]:
    testbed.progress.step(f"  an archive of {seconds / 3600:g} h of {_RACKS * _RACK} nodes")
    put(folder, load(), "ingest.summary", _summaries(seconds))
    with testbed.deployment("archive-report") as made:
        role = made.play(read, ends=True, folder=str(folder), what="report")
        found = made.result(role, ReadTiming, 900.0)
    what = f"report of {seconds / 3600:g} h, {_RACKS * _RACK} nodes"
    yield at_most(f"{what}: time", found.seconds, 60, "s")
    yield at_most(f"{what}: memory", found.peak_mb, 500, "MB")


def _day(seconds: int) -> Iterable[tuple[int, bytes, bytes]]:
    """Return records of many attributes each minute, and of one each second."""
    text = '{"schema":"history/1","device":"%s","attribute":"%s","value":%.3f,"time":%d}'
    names = [(f"mid-sdp/ingest/{at // _ATTRIBUTES:04d}", f"value{at % _ATTRIBUTES}") for at in range(1000)]
    for second in range(seconds):
        at = BEGIN + second * SECOND
        few = names[second % 60 :: 60]
        for device, attribute in (*few, ("mid-sdp/ingest/0000", "each")):
            value = text % (device, attribute, second % 100 + 0.5, at)
            yield to_ms(at), f"{device}/{attribute}".encode(), value.encode()


def _history(folder: Path, clock: Clock, seconds: int) -> Iterable[BarVerdict]:
    put(folder, load(), "history", _day(seconds))
    found, times = HistoryArchive(FolderStore(folder)), list[float]()
    end = BEGIN + seconds * SECOND
    for look in (
        lambda: found.read("mid-sdp/ingest/0000/each", BEGIN, end),
        lambda: found.read("mid-sdp/ingest/0000/each", BEGIN, end),
        lambda: found.read("mid-sdp/ingest/0001/value1", BEGIN, end),
        lambda: found.read("mid-sdp/ingest/0001/value1", BEGIN, end),
        lambda: HistoryArchive(FolderStore(folder)).at(BEGIN + seconds // 2 * SECOND),
    ):
        began = clock.monotonic()
        look()
        times.append((clock.monotonic() - began) * 1e3)
    each, again, minutely, minutely_again, whole = times
    hours = f"history of {seconds / 3600:g} h of one attribute"
    yield at_most(f"{hours}, a value a minute, after the first look", minutely_again, 100, "ms")
    yield at_most(f"{hours}, a value a second, after the first look", again, 100, "ms")
    firsts = f"{minutely:.0f} ms with a value a minute, {each:.0f} ms with a value a second"
    yield BarVerdict(f"{hours}, the first look", firsts)
    yield at_most(f"all {_DEVICES * _ATTRIBUTES + 1:,} attributes at a time", whole / 1e3, 2, "s")


def _frame(folder: Path, clock: Clock, seconds: int) -> BarVerdict:
    """Time a table for a data frame, of one attribute with a value a second."""
    text = '{"schema":"history/1","device":"mid-sdp/ingest/0000","attribute":"each","value":%d,"time":%d}'
    times = ((second, BEGIN + second * SECOND) for second in range(seconds))
    records = ((to_ms(at), b"mid-sdp/ingest/0000/each", (text % (second, at)).encode()) for second, at in times)
    put(folder, load(), "history", records)
    begin, end = utc_text(BEGIN), utc_text(BEGIN + seconds * SECOND)
    for _ in range(2):
        began = clock.monotonic()
        found = history("mid-sdp/ingest/0000", "each", begin, end, archive=str(folder))
    if len(found) != seconds:
        raise ValueError(f"expected {seconds} rows, got {len(found)}")
    what = f"table of {seconds / _DAY:g} d of one attribute, a value a second, after the first look"
    return at_most(what, clock.monotonic() - began, 1, "s")
