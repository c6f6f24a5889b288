"""A table of 100 MB in segments: put together and verified, beside a bare loop that consumes and hashes the same."""

import hashlib
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.group import KafkaGroupMember
from facade.bus.kafka.raw import bare_values
from facade.bus.port import Record
from facade.clock import Clock
from facade.config import Settings
from facade.flows.tables.assembly import AssemblyLimits
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.fetch import newest_tables
from facade.flows.tables.messages import CALIBRATION, COMPLETE
from facade.flows.tables.producer import TableProducer
from facade.flows.tables.references import References
from facade.flows.tables.worker import TableWorker, WorkerTiming
from proving.bench import gauges
from proving.bench.report import MEGA, Outcome, Ratios, Verdict
from proving.testbed import BenchError, Stage

BAR = 1.3
"""Times the bare loop's."""
_SIZE = 100 * MEGA
_SEGMENT = 1 * MEGA
_MEMO = {
    1_000: (83.39, 80.03),
    10_000: (9.32, 9.26),
    100_000: (0.91, 1.71),
    1 * MEGA: (0.73, 1.40),
    10 * MEGA: (1.13, 1.06),
}
"""The memo's table 3: mean time of producer and of consumer for 100 MB on one partition [s], by segment [bytes]."""
_MEMORY = 64 * MEGA
_AT_ONCE = 10
_MOST = 200
"""Memory above that of an idle worker while ten tables come at once [MB]."""
_SETTLE = 8.0
_PROGRAM = [sys.executable, "-m", "facade.cli"]


def tables(stage: Stage, *, quick: bool) -> Outcome:
    """Measure time and memory of large tables."""
    content = random.Random(1).randbytes(_SIZE)  # noqa: S311 - bytes that do not compress
    settings = stage.settings("tables")
    with stage.topics(settings, 1):
        ratios, notes, bare, ours = _times(stage, settings, content, pairs=2 if quick else 7)
        if not quick:
            notes += [_other(stage, content, segment) for segment in _MEMO if segment != _SEGMENT]
    one, ten = (_peak(stage, content, name, count) for name, count in (("tables-one", 1), ("tables-ten", _AT_ONCE)))
    return Outcome(
        name="tables",
        what="a table of 100 MB in segments of 1 MB on one partition -> announced as complete",
        how=(
            "worker and bare loop in turn, in one process, from the first record until the digest is known; the worker"
            " until its announcement is durable and its offset committed",
        ),
        verdicts=(
            Verdict(
                what="worker / bare loop with the same digest",
                bar=f"<= {BAR:g}",
                found=f"{ratios}: {statistics.median(ours):.2f} s beside {statistics.median(bare):.2f} s",
                reached=ratios.median <= BAR,
            ),
            Verdict(
                what="memory above an idle worker, one table",
                bar="<= 1.2 x the table",
                found=f"{one:.0f} MB",
                reached=one <= 1.2 * _SIZE / MEGA,
            ),
            Verdict(
                what=f"memory above an idle worker, {_AT_ONCE} tables at once",
                bar=f"<= {_MOST} MB",
                found=f"{ten:.0f} MB",
                reached=ten <= _MOST,
            ),
        ),
        notes=tuple(notes),
        figures={"bare": bare, "worker": ours, "memory_mb": [one, ten]},
    )


def _times(
    stage: Stage, settings: Settings, content: bytes, *, pairs: int
) -> tuple[Ratios, list[str], list[float], list[float]]:
    sent = _send(stage, settings, content, "bench/tables", _SEGMENT)
    place = _partition(stage, settings, "bench/tables")
    bare, ours = [], []
    for pair in range(pairs):
        stage.say(f"  pair {pair + 1} of {pairs}")
        bare.append(_bare(settings, place, stage.clock))
        ours.append(_worker(stage, settings, f"{pair}", _SIZE // _SEGMENT))
    quotients = sorted(a / b for a, b in zip(ours, bare, strict=True))
    ratios = Ratios(median=statistics.median(quotients), lowest=quotients[0], highest=quotients[-1], pairs=pairs)
    note = _beside_memo(_SEGMENT, sent, statistics.median(bare), statistics.median(ours))
    return ratios, [note], bare, ours


def _other(stage: Stage, content: bytes, segment: int) -> str:
    other = stage.settings(f"tables-{segment}")
    with stage.topics(other, 1):
        sent = _send(stage, other, content, "bench/tables", segment)
        bare = _bare(other, _partition(stage, other, "bench/tables"), stage.clock)
        ours = _worker(stage, other, "0", _SIZE // segment)
    return _beside_memo(segment, sent, bare, ours)


def _beside_memo(segment: int, sent: float, bare: float, ours: float) -> str:
    producer, consumer = _MEMO[segment]
    return (
        f"segments of {segment:,} B: sent in {sent:.2f} s, worker {ours:.2f} s, bare loop {bare:.2f} s;"
        f" the memo's table 3: {producer:.2f} s, {consumer:.2f} s"
    )


def _send(stage: Stage, settings: Settings, content: bytes, product: str, segment: int) -> float:
    bus = KafkaBus(Connection(settings, clock=stage.clock), client="bench-tables")
    begin = stage.clock.monotonic()
    TableProducer(bus.writer(), stage.clock).send(product, "bench", content, "application/x-bench", segment=segment)
    return stage.clock.monotonic() - begin


def _partition(stage: Stage, settings: Settings, product: str) -> int:
    """Find out where a product is."""
    bus = KafkaBus(Connection(settings, clock=stage.clock), client="bench-look")
    reader = bus.open_reader({CALIBRATION: None}, {})
    try:
        while True:
            for record in reader.take(1, 0.5):
                if record.key == product.encode():
                    return record.partition
    finally:
        reader.close()


def _bare(settings: Settings, partition: int, clock: Clock) -> float:
    """Consume and hash, and nothing else; gives the time from the first record on [s]."""
    size, digest, begin = 0, hashlib.sha256(), 0.0
    for values in bare_values(Connection(settings), CALIBRATION, partition, batch=WorkerTiming().batch):
        begin = begin or (clock.monotonic() if values else 0.0)
        for value in values:
            digest.update(value)
            size += len(value)
        if size >= _SIZE:
            break
    return clock.monotonic() - begin


class _NothingBefore:
    """A bus on which no table was ever announced, so that each run takes the same one anew."""

    def __init__(self, bus: KafkaBus) -> None:
        self.writer = bus.writer

    def read_all(self, topic: str) -> list[Record]:
        """Return nothing."""
        return []


class _Timed:
    """A member that knows when its first record came."""

    def __init__(self, member: KafkaGroupMember, clock: Clock) -> None:
        self._member, self._clock = member, clock
        self.commit, self.holds, self.close = member.commit, member.holds, member.close
        self.began = 0.0

    @property
    def assignment(self) -> Mapping[int, int]:
        """Return the member's."""
        return self._member.assignment

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Take, and look at the clock."""
        records = self._member.take(limit, timeout)
        if records:
            self.began = self.began or self._clock.monotonic()
        return records


def _worker(stage: Stage, settings: Settings, name: str, segments: int) -> float:
    """Assemble with a new group; gives the time from the first record on [s]."""
    connection, clock = Connection(settings, clock=stage.clock), stage.clock
    bus = KafkaBus(connection, client=f"bench-{name}")
    member = _Timed(
        KafkaGroupMember(connection, CALIBRATION, group=f"bench-{name}", member=name, health=bus.health), clock
    )
    worker = TableWorker(
        member,
        _NothingBefore(bus),
        stage.icd,
        slot=name,
        clock=clock,
        summarise=_nothing,
        references=References([]),
        pool=BufferPool(_MEMORY),
        limits=AssemblyLimits(),
    )
    until = clock.monotonic() + 120.0
    while worker.account.used < segments:
        worker.step()
        if clock.monotonic() > until:
            raise BenchError(f"worker: expected {segments} segments used within 120 s, got {worker.account}")
    seconds = clock.monotonic() - member.began
    worker.finish()
    return seconds


def _nothing(kind: str, content_type: str, content: object) -> dict[str, Any]:
    return {"note": "not looked into"}


def _send_at_once(producer: TableProducer, content: bytes, count: int) -> None:
    """Send some tables so that their segments interleave."""

    def send(number: int) -> None:
        producer.send(f"bench/{number}", "bench", content, "application/x-bench")

    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(send, number) for number in range(count)]:
            done.result()


def _peak(stage: Stage, content: bytes, name: str, count: int) -> float:
    """Return the most memory that a worker has taken beyond that of an idle one [MB]."""
    settings = stage.settings(name)
    with stage.topics(settings, 1):
        worker = stage.start(name, [*_PROGRAM, "tables", "assemble"], settings)
        stage.watch(_SETTLE, f"a worker starts, for {count} tables")
        idle = gauges.peak_resident(worker.pid)
        bus = KafkaBus(Connection(settings, clock=stage.clock), client="bench-tables")
        _send_at_once(TableProducer(bus.writer(), stage.clock), content, count)

        def complete() -> bool:
            return sum(table.state == COMPLETE for table in newest_tables(bus).values()) == count

        stage.until(complete, f"{count} tables", 120.0)
        peak = gauges.peak_resident(worker.pid)
        worker.stop()
    return peak - idle
