"""How fast columnar notifications are drained exactly-once, and where the time goes."""

import os
import statistics
from collections.abc import Sequence

from proving.bench.columnar_load import ROWS, fill_batches
from proving.bench.load import NODES
from proving.bench.report import Outcome, Verdict, at_least, ratios
from proving.bench.throughput import run, together, together_rate
from proving.bench.throughput_roles import Timing
from proving.testbed import Testbed

RATE_BAR, RATE_DREAM = 20e6, 47.7e6
RATIO_BAR = 0.35
_WARM = 1_500
"""Batches of each worker that are not counted when two work: more than a client fetches ahead."""


def columnar(testbed: Testbed, *, quick: bool) -> Outcome:
    """Drain a backlog with two workers, and compare one worker with a loop that only consumes."""
    batches, pairs = (8_000, 2) if quick else (24_000, 3)
    both: list[list[Timing]] = []
    workers: list[Timing] = []
    bares: list[Timing] = []
    with testbed.deployment("columnar", partitions=2) as deployment:
        filled = fill_batches(deployment, batches)
        run(deployment, "bare", batches)  # so that all runs find the page cache warm
        for pair in range(pairs):
            both.append(together(deployment, 2, batches, rows=ROWS))
            workers.append(run(deployment, "worker", batches, slot="0", rows=ROWS))
            bares.append(run(deployment, "bare", batches))
            say = f"one worker {workers[-1].rate * ROWS / 1e6:.1f} M/s, bare {bares[-1].rate * ROWS / 1e6:.1f} M/s"
            testbed.progress.step(f"  pair {pair + 1} of {pairs}: {say}")
    rates = [together_rate(timings, _WARM) * ROWS for timings in both]
    rate = statistics.median(rates)
    return Outcome(
        name="columnar",
        what="columnar notifications drained exactly-once by two workers (all reducers, validation, transactions)",
        how=(
            f"{batches * ROWS:,} notifications of {NODES} nodes on 2 partitions, {ROWS:,} in a batch,"
            f" {filled.value_bytes / filled.records / ROWS:.1f} B each; {len(os.sched_getaffinity(0))} cores, the"
            " broker on the same",
            f"{pairs} times: two workers together, one worker, one bare consume() loop, each with a group of its own",
        ),
        verdicts=(
            Verdict(
                what="two workers", bar=f">= {RATE_BAR / 1e6:g} M/s", found=_millions(rates), reached=rate >= RATE_BAR
            ),
            at_least(
                "one worker / bare", ratios((w.rate, b.rate) for w, b in zip(workers, bares, strict=True)), RATIO_BAR
            ),
            Verdict(
                what="the dream",
                bar=f">= {RATE_DREAM / 1e6:g} M/s",
                found=f"{rate / 1e6:.1f} M/s",
                reached=rate >= RATE_DREAM,
            ),
        ),
        notes=tuple(_table(workers, bares)),
        figures={"rates": rates, "workers": workers, "bares": bares},
    )


def _millions(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates) / 1e6:.1f} M/s ({min(rates) / 1e6:.1f} to {max(rates) / 1e6:.1f})"


def _table(workers: Sequence[Timing], bares: Sequence[Timing]) -> list[str]:
    """Say where the time of one worker goes, in processor time for each notification."""
    parts = {
        name: statistics.median(one.parts.get(name, 0.0) / one.records for one in workers)
        for name in ("consume", "arrow", "numpy", "transaction")
    }
    own = statistics.median(one.cpu_per_million / 1e6 for one in workers)
    rows = {
        "consume (the thread that works)": parts["consume"],
        "consume and produce (threads of the client)": own - sum(parts.values()),
        "Arrow: headers, metadata, views": parts["arrow"],
        "numpy: columns, checks, reductions, partials": parts["numpy"],
        "transaction": parts["transaction"],
        "broker": statistics.median(one.broker_cpu_per_million / 1e6 for one in workers),
    }
    bare = statistics.median(one.cpu_per_million / 1e6 for one in bares)
    peak = statistics.median(one.peak_rss_mb for one in workers)
    return [
        "processor time for a notification, one worker (medians):",
        *(f"  {name:46} {seconds / ROWS * 1e9:6.1f} ns" for name, seconds in rows.items()),
        f"  {'a bare consume() loop':46} {bare / ROWS * 1e9:6.1f} ns",
        f"peak of a worker {peak:.0f} MB resident",
    ]
