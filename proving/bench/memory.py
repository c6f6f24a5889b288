"""How much memory one worker takes over a long backlog: the real command, watched from outside."""

import urllib.error
import urllib.request

from facade.bus.kafka.topics import delete_records
from facade.errors import InfraError
from facade.infra.ports import choose_port
from facade.infra.processes import Process
from proving import gauges
from proving.bench.columnar_load import ROWS, fill_batches
from proving.bench.load import TOPIC, fill_topic
from proving.bench.report import Outcome, Verdict, at_most, flatness
from proving.deployment import Deployment
from proving.testbed import Testbed

PEAK_BAR = 300.0
RISE_BAR = 0.05
WARM_UP = 0.1

_PART = 31_447
"""Batches at once: 100 million notifications."""
_EVERY = 0.2
_STALLED = 45.0
"""Without progress for so long [s], a worker is given up."""
_COUNTER = 'sdp_stream_consumed_records_total{stream="ingest.heaps"}'


def memory(testbed: Testbed, *, quick: bool) -> Outcome:
    """Let one worker process a backlog, and sample its resident memory until it is through."""
    records = 4_000_000 if quick else 20_000_000
    with testbed.deployment("memory") as deployment:
        filled = fill_topic(deployment, records)
        worker, port = _start(deployment)
        samples = _sample(testbed, worker, port, records)
        peak = gauges.peak_resident(worker.pid)
        worker.stop()
    how = (
        f"`sdp-facade aggregate` over {records:,} notifications, {filled.value_bytes / 1e6:,.0f} MB,"
        " one partition, as fast as it can"
    )
    return _judged("memory", how, samples, peak, records)


def memory_columnar(testbed: Testbed, *, quick: bool) -> Outcome:
    """Let one worker process columnar batches in parts, each of which is deleted when it is through."""
    batches, parts = _PART, 4 if quick else 20
    samples: list[float] = []
    with testbed.deployment("memory-columnar") as deployment:
        worker, port = _start(deployment)
        for part in range(1, parts + 1):
            fill_batches(deployment, batches, partitions=1, scan_id=part)
            samples += _sample(testbed, worker, port, part * batches * ROWS)
            delete_records(deployment.connection, TOPIC, 0, part * batches)
        peak = gauges.peak_resident(worker.pid)
        worker.stop()
    records = parts * batches * ROWS
    how = (
        f"`sdp-facade aggregate` over {records:,} notifications in batches of {ROWS:,}, one partition,"
        f" in {parts} parts, each filled when the one before is through"
    )
    return _judged("memory-columnar", how, samples, peak, records)


def _start(deployment: Deployment) -> tuple[Process, int]:
    """Start a worker and return it with the port of its metrics."""
    port = choose_port()
    return deployment.launch("aggregate", "aggregate", "--slot", "0", SDP_METRICS_PORT=str(port)), port


def _judged(name: str, how: str, samples: list[float], peak: float, records: int) -> Outcome:
    rise = flatness(samples, WARM_UP)
    found = "-" if rise is None else f"{rise:+.1%}"
    return Outcome(
        name=name,
        what="resident memory of one worker over a backlog",
        how=(how, f"{len(samples)} samples, one each {_EVERY:g} s; the first {WARM_UP:.0%} of them are warm-up"),
        verdicts=(
            at_most("peak", peak or None, PEAK_BAR, "MB"),
            Verdict(
                what="last quarter above first",
                bar=f"<= {RISE_BAR:+.0%}",
                found=found,
                reached=None if rise is None else rise <= RISE_BAR,
            ),
        ),
        figures={"resident_mb": samples, "peak_mb": peak, "rise": rise, "records": records},
    )


def _sample(testbed: Testbed, worker: Process, port: int, records: int) -> list[float]:
    samples: list[float] = []
    clock = testbed.progress.clock
    taken, moved = 0, clock.monotonic()
    said = moved
    while taken < records:
        now, before = clock.monotonic(), taken
        taken = max(_taken(port), taken)
        if taken > before:
            moved = now
            samples.append(gauges.resident(worker.pid))
        if not worker.is_alive or now - moved > _STALLED:
            raise InfraError(
                f"the worker stands still at {taken:,} of {records:,} records,"
                f" after {gauges.cpu(worker.pid):.1f} CPU s; its output ends:\n{worker.tail()}"
            )
        if samples and now - said >= 5:
            said = now
            testbed.progress.step(f"  {taken:,} of {records:,} records, {samples[-1]:.0f} MB")
        clock.sleep(_EVERY)
    return samples


def _taken(port: int) -> int:
    """Ask the worker's own metrics; 0 while it starts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return 0
    return next((round(float(line.split()[-1])) for line in text.splitlines() if line.startswith(_COUNTER)), 0)
