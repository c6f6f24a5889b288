"""The alerts of a visit of LSST: an intake of 10,000 packets."""

from msgspec.json import decode

from facade.flows.alerts.messages import ALERTS, PACKETS, Alert
from facade.infra.processes import Process
from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.port import Record
from facade.kernel.clock import as_seconds
from sdp_facade_lab import gauges
from sdp_facade_lab.bench.report import BarVerdict, BenchOutcome, at_most
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.testbed import Testbed

VISIT = 10_000
BAR = 10.8
"""DMTN-028's best, with 11 groups and 10 partitions [s]."""
WORKERS = 2
_SETTLE = 5.0
"""Until the group has given out the partitions [s]."""
_NIGHT = ["simulate", "alerts", "--night", "--visits", "1"]


def visit(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    with testbed.deployment("visit") as deployment:
        workers, alerts = _play(deployment)
        peaks = [gauges.peak_resident(worker.pid) for worker in workers]
        packets = _read(deployment, PACKETS)
    first, last = min(r.timestamp_us for r in packets), max(r.timestamp_us for r in alerts)
    seconds = as_seconds(last - first)
    different = len({(a.source, a.sequence) for a in (decode(r.value or b"", type=Alert) for r in alerts)})
    return BenchOutcome(
        what="alert packets with two images each, sent at once -> their alerts on the bus",
        verdicts=(
            at_most("until all are taken (paper 002, for 11 groups of 10)", seconds, BAR, "s"),
            BarVerdict(
                "alerts on the bus, each once",
                f"{len(alerts):,}, {different:,} different",
                bar=f"{VISIT:,}",
                reached=len(alerts) == different == VISIT,
            ),
            BarVerdict("peak memory of a worker", f"{max(peaks):.0f} MB"),
        ),
    )


def _play(deployment: Deployment) -> tuple[list[Process], list[Record]]:
    """Send one visit while intake workers take it; return the workers, and all alerts."""
    workers = [deployment.launch(f"intake-{slot}", "alerts", "intake", "--slot", slot) for slot in range(WORKERS)]
    deployment.progress.wait(_SETTLE, f"{WORKERS} intake workers start")
    sender = deployment.launch("night", *_NIGHT, ends=True)
    deployment.progress.demand(lambda: not sender.is_alive, 120.0, f"{VISIT:,} packets are sent")
    alerts = _until_all(deployment)
    deployment.processes.check()
    return workers, alerts


def _until_all(deployment: Deployment) -> list[Record]:
    found: list[Record] = []

    def all_there() -> bool:
        found[:] = _read(deployment, ALERTS)
        return len(found) >= VISIT

    deployment.progress.demand(all_there, 120.0, "all alerts")
    return found


def _read(deployment: Deployment, topic: str) -> list[Record]:
    ranges = find_range(deployment.connection, topic)
    return [*read_range(deployment.connection, topic, ranges, within=120.0)]
