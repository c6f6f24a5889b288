"""A visit of LSST's: ten thousand alert packets of 136 KB at once, until the last one's alert is on the bus."""

from msgspec.json import decode

from facade.bus.kafka.admin import find_range
from facade.bus.kafka.read_range import read_range
from facade.bus.port import Record
from facade.flows.alerts.messages import ALERTS, PACKETS, Alert
from facade.infra.processes import Process
from proving import gauges
from proving.bench.report import Outcome, Verdict
from proving.bench.visit_subscribers import PROCESSES, SUBSCRIBERS, Subscribed, judge, start
from proving.deployment import Deployment
from proving.testbed import Testbed

VISIT = 10_000
BAR = 10.8
"""DMTN-028's best, with 11 groups and 10 partitions [s]."""
WORKERS = 2
_SETTLE = 5.0
"""Until the group has given out the partitions [s]."""
_NIGHT = ["simulate", "alerts", "--night", "--visits", "1"]


def visit(testbed: Testbed, *, quick: bool) -> Outcome:
    """Send one visit while intake workers take it, and one more that subscribers with filters follow."""
    with testbed.deployment("visit") as deployment:
        workers, alerts = _play(deployment)
        peaks = [gauges.peak_resident(worker.pid) for worker in workers]
        packets = _read(deployment, PACKETS)
    first, last = min(r.timestamp_us for r in packets), max(r.timestamp_us for r in alerts)
    seconds, size = (last - first) / 1e6, sum(len(r.value or b"") for r in packets)
    del packets  # 1.4 GB
    followed = _followed(testbed)
    different = len({(a.source, a.sequence) for a in (decode(r.value or b"", type=Alert) for r in alerts)})
    return Outcome(
        name="visit",
        what="alert packets with two images each, sent at once -> their alerts on the bus",
        how=(
            f"{VISIT:,} packets, {size / 1e6:,.0f} MB, made and sent on this machine meanwhile;"
            f" {WORKERS} intake workers; from the broker's time of the first packet to that of the last alert",
            f"then the same again while {SUBSCRIBERS} subscribers in {PROCESSES} processes follow one detector each, by"
            " condition, source, severity and a field, through one device server",
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
            *followed,
        ),
        figures={"seconds": seconds, "peaks_mb": peaks},
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


def _followed(testbed: Testbed) -> tuple[Verdict, ...]:
    with testbed.deployment("visit-followed") as deployment:
        roles = start(deployment, VISIT)
        _play(deployment)
        found = [one for role in roles for one in deployment.result(role, list[Subscribed], 120.0)]
        return judge(found, min(record.timestamp_us for record in _read(deployment, PACKETS)) / 1e6)


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
