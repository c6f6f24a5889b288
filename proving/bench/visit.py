"""A visit of LSST's: ten thousand alert packets of 136 KB at once, until the last one's alert is on the bus."""

import sys

from msgspec.json import decode

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.reader import KafkaReader
from facade.bus.port import BusHealth, Record
from facade.config import Settings
from facade.flows.alerts.messages import ALERTS, PACKETS, Alert
from proving.bench import gauges
from proving.bench.report import Outcome, Verdict
from proving.testbed import BenchError, Stage

VISIT = 10_000
BAR = 10.8
"""DMTN-028's best, with 11 groups and 10 partitions [s]."""
WORKERS = 2
_SETTLE = 5.0
"""Until the group has given out the partitions [s]."""
_PROGRAM = [sys.executable, "-m", "facade.cli"]
_NIGHT = ["simulate", "alerts", "--night", "--visits", "1"]


def visit(stage: Stage, *, quick: bool) -> Outcome:
    """Send one visit while intake workers take it."""
    settings = stage.settings("visit")
    with stage.topics(settings, 1):
        workers = [
            stage.start(f"intake-{slot}", [*_PROGRAM, "alerts", "intake", "--slot", str(slot)], settings)
            for slot in range(WORKERS)
        ]
        stage.watch(_SETTLE, f"{WORKERS} intake workers start")
        sender = stage.start("night", [*_PROGRAM, *_NIGHT], settings)
        stage.until(lambda: not sender.is_alive, f"{VISIT:,} packets are sent", 120.0)
        alerts = _until_all(stage, settings)
        peaks = [gauges.peak_resident(worker.pid) for worker in workers]
        for worker in workers:
            if not worker.is_alive:
                raise BenchError(f"{worker.name} ended; its output ends:\n{worker.log_end()}")
        packets = _read(stage, settings, PACKETS)
    first, last = min(r.timestamp_us for r in packets), max(r.timestamp_us for r in alerts)
    seconds, size = (last - first) / 1e6, sum(len(r.value or b"") for r in packets)
    different = len({(a.source, a.sequence) for a in (decode(r.value or b"", type=Alert) for r in alerts)})
    return Outcome(
        name="visit",
        what="alert packets with two images each, sent at once -> their alerts on the bus",
        how=(
            f"{VISIT:,} packets, {size / 1e6:,.0f} MB, made and sent on this machine meanwhile;"
            f" {WORKERS} intake workers; from the broker's time of the first packet to that of the last alert",
        ),
        verdicts=(
            Verdict(what="until all are taken", bar=f"< {BAR:g} s", found=f"{seconds:.1f} s", reached=seconds < BAR),
            Verdict(
                what="alerts on the bus, each once",
                bar=f"{VISIT:,}",
                found=f"{len(alerts):,}, {different:,} different",
                reached=len(alerts) == different == VISIT,
            ),
            Verdict(what="peak memory of a worker", bar="", found=f"{max(peaks):.0f} MB"),
        ),
        figures={"seconds": seconds, "peaks_mb": peaks},
    )


def _until_all(stage: Stage, settings: Settings) -> list[Record]:
    found: list[Record] = []

    def all_there() -> bool:
        found[:] = _read(stage, settings, ALERTS)
        return len(found) >= VISIT

    stage.until(all_there, "all alerts", 120.0)
    return found


def _read(stage: Stage, settings: Settings, topic: str) -> list[Record]:
    reader = KafkaReader(Connection(settings, clock=stage.clock), {topic: None}, start={}, health=BusHealth())
    try:
        return reader.read_to_end(120.0)
    finally:
        reader.close()
