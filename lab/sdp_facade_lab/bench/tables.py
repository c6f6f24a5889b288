"""A table of 100 MB in segments: put together and verified, beside a bare loop that consumes and hashes the same."""

import hashlib
import random
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from facade.flows.tables.assembly import AssemblyLimits
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.fetch import newest_tables
from facade.flows.tables.messages import CALIBRATION, COMPLETE
from facade.flows.tables.producer import TableProducer
from facade.flows.tables.references import References
from facade.flows.tables.worker import BATCH, TableWorker
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.transactional_member import KafkaTransactionalMember
from facade.kernel.bus.port import Record
from facade.kernel.errors import InfraError
from sdp_facade_lab import gauges
from sdp_facade_lab.bench.raw import bare_values
from sdp_facade_lab.bench.report import MEGA, BarVerdict, BenchOutcome, Ratios, at_most, ratios
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.testbed import Testbed

BAR = 1.3
"""Times the bare loop's."""
_SIZE = 100 * MEGA
_SEGMENT = 1 * MEGA
_MEMORY = 64 * MEGA
_AT_ONCE = 10
_MOST = 200
"""Most memory beyond an idle worker's while ten tables come at once [MB]."""
_SETTLE = 8.0


def tables(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    content = random.Random(1).randbytes(_SIZE)  # noqa: S311 - bytes that do not compress
    with testbed.deployment("tables") as deployment:
        beside, bare, ours = _times(deployment, content, pairs=2 if quick else 7)
    one, ten = (_peak(testbed, content, name, count) for name, count in (("tables-one", 1), ("tables-ten", _AT_ONCE)))
    return BenchOutcome(
        what="a table of 100 MB in segments of 1 MB on one partition -> announced as complete",
        verdicts=(
            BarVerdict(
                "worker / bare loop with the same digest",
                f"{beside}: {statistics.median(ours):.2f} s beside {statistics.median(bare):.2f} s",
                bar=f"<= {BAR:g}",
                reached=beside.median <= BAR,
            ),
            at_most("memory above an idle worker, one table", one, 1.2 * _SIZE / MEGA, "MB"),
            at_most(f"memory above an idle worker, {_AT_ONCE} tables at once", ten, _MOST, "MB"),
        ),
    )


def _times(deployment: Deployment, content: bytes, *, pairs: int) -> tuple[Ratios, list[float], list[float]]:
    bus = KafkaBus(deployment.connection, client="bench-tables")
    producer = TableProducer(bus.writer(), deployment.clock)
    producer.send("bench/tables", "bench", content, "application/x-bench", segment=_SEGMENT)
    place = _partition(deployment, "bench/tables")
    bare, ours = [], []
    for pair in range(pairs):
        deployment.progress.step(f"  pair {pair + 1} of {pairs}")
        bare.append(_bare(deployment, place))
        ours.append(_worker(deployment, f"{pair}", _SIZE // _SEGMENT))
    return ratios(zip(ours, bare, strict=True)), bare, ours


def _partition(deployment: Deployment, product: str) -> int:
    bus = KafkaBus(deployment.connection, client="bench-look")
    reader = bus.open_reader({CALIBRATION: None}, {})
    try:
        while True:
            for record in reader.take(1, 0.5):
                if record.key == product.encode():
                    return record.partition
    finally:
        reader.close()


def _bare(deployment: Deployment, partition: int) -> float:
    """Consume and hash, and nothing else; gives the time from the first record on [s]."""
    size, digest, begin, clock = 0, hashlib.sha256(), 0.0, deployment.clock
    for values in bare_values(deployment.connection, CALIBRATION, partition, batch=BATCH):
        begin = begin or (clock.monotonic() if values else 0.0)
        for value in values:
            digest.update(value)
            size += len(value)
        if size >= _SIZE:
            break
    return clock.monotonic() - begin


class _NothingBefore:
    """A bus without announced tables: each run takes the same table."""

    def __init__(self, bus: KafkaBus) -> None:
        self.watch = bus.watch

    def read_all(self, topic: str, *, settled: bool = False) -> list[Record]:
        return []


class _Timed(KafkaTransactionalMember):
    """A member that knows when its first record came."""

    began = 0.0

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        records = super().take(limit, timeout)
        if records:
            self.began = self.began or self._connection.clock.monotonic()
        return records


def _worker(deployment: Deployment, name: str, segments: int) -> float:
    """Assemble with a new group; gives the time from the first record on [s]."""
    connection, clock = deployment.connection, deployment.clock
    bus = KafkaBus(connection, client=f"bench-{name}")
    member = _Timed(connection, CALIBRATION, group=f"bench-{name}", slot=name, member=name, health=bus.health)
    worker = TableWorker(
        member,
        _NothingBefore(bus),
        deployment.icd,
        slot=name,
        group=f"bench-{name}",
        clock=clock,
        summarise=lambda *_: {},
        references=References([]),
        pool=BufferPool(_MEMORY),
        limits=AssemblyLimits(),
    )
    until = clock.monotonic() + 120.0
    while worker.account.used < segments:
        worker.step()
        if clock.monotonic() > until:
            raise InfraError(f"worker: expected {segments} segments used within 120 s, got {worker.account}")
    seconds = clock.monotonic() - member.began
    worker.finish()
    return seconds


def _send_at_once(producer: TableProducer, content: bytes, count: int) -> None:

    def send(number: int) -> None:
        producer.send(f"bench/{number}", "bench", content, "application/x-bench")

    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(send, number) for number in range(count)]:
            done.result()


def _peak(testbed: Testbed, content: bytes, name: str, count: int) -> float:
    with testbed.deployment(name) as deployment:
        worker = deployment.launch(name, "tables", "assemble")
        testbed.progress.wait(_SETTLE, f"a worker starts, for {count} tables")
        idle = gauges.peak_resident(worker.pid)
        bus = KafkaBus(deployment.connection, client="bench-tables")
        _send_at_once(TableProducer(bus.writer(), deployment.clock), content, count)

        def complete() -> bool:
            return sum(table.state == COMPLETE for table in newest_tables(bus).values()) == count

        testbed.progress.demand(complete, 120.0, f"{count} tables")
        peak = gauges.peak_resident(worker.pid)
        worker.stop()
    return peak - idle
