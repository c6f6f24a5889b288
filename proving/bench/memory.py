"""How much memory one worker takes over a long backlog: the real command, watched from outside."""

import urllib.error
import urllib.request

from facade.errors import InfraError
from facade.infra.ports import choose_port
from facade.infra.processes import Process
from proving import gauges
from proving.bench.load import fill_topic
from proving.bench.report import Outcome, Verdict, at_most, flatness
from proving.testbed import Testbed

PEAK_BAR = 300.0
RISE_BAR = 0.05
WARM_UP = 0.1

_EVERY = 0.2
_STALLED = 45.0
"""Without progress for so long [s], a worker is given up."""
_COUNTER = 'sdp_stream_consumed_records_total{stream="ingest.heaps"}'


def memory(testbed: Testbed, *, quick: bool) -> Outcome:
    """Let one worker process a backlog, and sample its resident memory until it is through."""
    records = 4_000_000 if quick else 20_000_000
    with testbed.deployment("memory") as deployment:
        filled = fill_topic(deployment, records)
        port = choose_port()
        worker = deployment.launch("aggregate", "aggregate", "--slot", "0", SDP_METRICS_PORT=str(port))
        samples = _sample(testbed, worker, port, records)
        peak = gauges.peak_resident(worker.pid)
        worker.stop()
    rise = flatness(samples, WARM_UP)
    found = "-" if rise is None else f"{rise:+.1%}"
    return Outcome(
        name="memory",
        what="resident memory of one worker over a backlog",
        how=(
            f"`sdp-facade aggregate` over {records:,} notifications, {filled.value_bytes / 1e6:,.0f} MB,"
            " one partition, as fast as it can",
            f"{len(samples)} samples, one each {_EVERY:g} s; the first {WARM_UP:.0%} of them are warm-up",
        ),
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
