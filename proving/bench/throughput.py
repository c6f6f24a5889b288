"""How fast workers are: one beside a bare consume loop, two beside one."""

import itertools
import os
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from facade.errors import InfraError
from proving.bench.load import NODES, Filled, fill_topic
from proving.bench.report import MEGA, Outcome, Verdict, at_least, ratios
from proving.bench.throughput_roles import Timing
from proving.deployment import Deployment
from proving.testbed import Testbed

WORKER_BAR, WORKER_DREAM = 0.5, 0.6
TWO_WORKERS_BAR = 1.6

_numbers = itertools.count()
_WARM = 300_000
"""Records of each worker that are not counted when workers are compared: more than a client fetches ahead."""


def one_worker(testbed: Testbed, *, quick: bool) -> Outcome:
    """Compare one worker process with one that only consumes, on the same records."""
    records, pairs = (1_000_000, 2) if quick else (4_000_000, 3)
    timings: list[tuple[Timing, Timing]] = []
    with testbed.deployment("worker") as deployment:
        filled = fill_topic(deployment, records)
        testbed.progress.step("  a run that does not count, so that both find the page cache warm")
        run(deployment, "bare", records)
        for pair in range(pairs):
            timings.append((run_worker(deployment, records), run(deployment, "bare", records)))
            testbed.progress.step(
                f"  pair {pair + 1} of {pairs}: {_line('worker', timings[-1][0])}; {_line('bare', timings[-1][1])}"
            )
    workers, bares = [worker for worker, _ in timings], [bare for _, bare in timings]
    wall = ratios((worker.rate, bare.rate) for worker, bare in timings)
    return Outcome(
        name="worker",
        what="one worker (all reducers, validation, transactions) beside a bare consume() loop, records/s",
        how=(
            _amount(filled, 1),
            "the same consumer settings, batches of 10,000 and collector threshold in both; no producer runs",
            f"{pairs} pairs, worker and bare alternately, each run a process of its own and a group of its own",
        ),
        verdicts=(
            at_least("worker / bare", wall, WORKER_BAR),
            Verdict(
                what="the dream",
                bar=f">= {WORKER_DREAM:g}",
                found=f"{wall.median:.2f}",
                reached=wall.median >= WORKER_DREAM,
            ),
        ),
        notes=(
            f"worker {_median_line(workers)}",
            f"bare   {_median_line(bares)}",
            "CPU time per record, bare / worker: "
            + str(ratios((bare.cpu_per_million, worker.cpu_per_million) for worker, bare in timings)),
        ),
        figures={
            "worker": [_figures(timing) for timing in workers],
            "bare": [_figures(timing) for timing in bares],
            "ratio": wall,
        },
    )


def two_workers(testbed: Testbed, *, quick: bool) -> Outcome:
    """Compare two worker processes with one, on the same two partitions."""
    records, pairs = (4_000_000, 2) if quick else (10_000_000, 3)
    found: list[tuple[float, float]] = []
    ceilings: list[float] = []
    figures = []
    cores = len(os.sched_getaffinity(0))
    with testbed.deployment("two", partitions=2) as deployment:
        filled = fill_topic(deployment, records)
        for pair in range(pairs):
            two, one = (together(deployment, count, records) for count in (2, 1))
            found.append((together_rate(two, _WARM), together_rate(one, _WARM)))
            cpu = (one[0].cpu_per_million + one[0].broker_cpu_per_million) / MEGA
            ceilings.append(cores / cpu / found[-1][1])
            figures.append({"two": [_figures(timing) for timing in two], "one": _figures(one[0]), "rates": found[-1]})
            testbed.progress.step(
                f"  pair {pair + 1} of {pairs}: two {found[-1][0] / 1e6:.2f} M/s, one {found[-1][1] / 1e6:.2f} M/s"
            )
    ceiling = statistics.median(ceilings)
    notes = [
        f"two workers {statistics.median(two for two, _ in found) / 1e6:.2f} M/s,"
        f" one {statistics.median(one for _, one in found) / 1e6:.2f} M/s",
        f"one worker and its broker use {cores / ceiling:.2f} cores,"
        f" so {cores} cores allow at most {ceiling:.2f} times its speed",
    ]
    if ceiling < TWO_WORKERS_BAR:
        notes.append("this machine has too few cores to show the bar; what was found says little about scaling")
    return Outcome(
        name="two-workers",
        what="two worker processes beside one on the same two partitions, records/s",
        how=(
            _amount(filled, 2),
            "all join first and wait at a gate; counted is the time in which all of them work,"
            f" without the first {_WARM:,} records of each (what was fetched at the gate)",
            f"{pairs} pairs, two and one alternately",
        ),
        verdicts=(at_least("two workers / one", ratios(found), TWO_WORKERS_BAR),),
        notes=tuple(notes),
        figures={"runs": figures, "ceiling": ceilings},
    )


def together_rate(timings: Sequence[Timing], warm: int) -> float:
    """Return how many records per second some workers commit together while all of them work.

    Raises
    ------
    InfraError
        There is no such time, or not all of it was their own work.
    """
    times = [np.array([mark.time for mark in timing.marks]) for timing in timings]
    counts = [np.array([mark.records - timing.marks[0].records for mark in timing.marks]) for timing in timings]
    begin = max(float(np.interp(warm, count, time)) for time, count in zip(times, counts, strict=True))
    end = min(float(time[-1]) for time in times)
    # Whoever ends first leaves the group, and the others give up what was open then: later than what is counted.
    if any(begin <= time < end for timing in timings for time in timing.given_up):
        raise InfraError("a worker gave up a transaction while it was timed, so its records were counted twice")
    if end - begin < 0.5:
        raise InfraError(f"the workers worked together for {max(end - begin, 0):.2f} s only; expected at least 0.5 s")
    done = (
        float(np.interp(end, time, count) - np.interp(begin, time, count))
        for time, count in zip(times, counts, strict=True)
    )
    return sum(done) / (end - begin)


def run_worker(deployment: Deployment, records: int, **task: Any) -> Timing:
    """Time one worker over a topic's first records."""
    return run(deployment, "worker", records, slot="0", **task)


def run(deployment: Deployment, role: str, records: int, **task: Any) -> Timing:
    """Time a role over a topic's first records, in a group of its own."""
    group = f"{role}-{next(_numbers)}"
    broker_pid = deployment.broker.pid
    made = deployment.play(role, ends=True, group=group, records=records, broker_pid=broker_pid, **task)
    return deployment.result(made, Timing)


def together(deployment: Deployment, count: int, records: int, **more: Any) -> list[Timing]:
    """Time workers of one group that begin at the same moment."""
    task: dict[str, Any] = {"records": records, "broker_pid": deployment.broker.pid, "gated": True, **more}
    task |= {"group": f"together-{next(_numbers)}"}
    workers = [
        deployment.play("worker", name=f"worker-{slot}", ends=True, slot=str(slot), **task) for slot in range(count)
    ]
    deployment.progress.demand(
        lambda: all(worker.is_ready for worker in workers) or not all(worker.is_alive for worker in workers),
        60.0,
        f"{count} workers share the partitions",
    )
    for worker in workers:
        worker.release()
    return [deployment.result(worker, Timing) for worker in workers]


def _amount(filled: Filled, partitions: int) -> str:
    return (
        f"{filled.records:,} simulated notifications of {NODES} nodes on {partitions} partition(s),"
        f" {filled.value_bytes / filled.records:.0f} B each as JSON"
    )


def _figures(timing: Timing) -> dict[str, float]:
    return {
        "records": timing.records,
        "seconds": timing.seconds,
        "records_per_s": timing.rate,
        "cpu_s_per_million": timing.cpu_per_million,
        "broker_cpu_s_per_million": timing.broker_cpu_per_million,
        "peak_rss_mb": timing.peak_rss_mb,
    }


def _line(name: str, timing: Timing) -> str:
    return f"{name} {timing.rate / 1e6:.2f} M/s, {timing.cpu_per_million:.2f} CPU s/M"


def _median_line(timings: Sequence[Timing]) -> str:
    rate, cpu, broker, peak = (
        statistics.median(figures)
        for figures in zip(
            *((t.rate, t.cpu_per_million, t.broker_cpu_per_million, t.peak_rss_mb) for t in timings), strict=True
        )
    )
    cost = f"{cpu:.2f} CPU s per million (broker {broker:.2f})"
    return f"{rate / 1e6:.2f} M/s, {cost}, peak {peak:.0f} MB resident (medians)"
