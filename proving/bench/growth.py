"""Whether a notification costs the same processor time with more nodes, and with more partitions and workers."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from proving.bench.columnar_load import ROWS, fill_batches
from proving.bench.load import NODES, fill_topic
from proving.bench.report import Outcome, Verdict
from proving.bench.throughput import run_worker, together
from proving.bench.throughput_roles import Timing
from proving.testbed import Testbed

TOLERANCE: Final = 0.1
_NODES: Final = (NODES, 64, 1_500)
_WORKERS: Final = (1, 2, 4, 8)
_NODES_OF_WORKERS: Final = 64
"""A multiple of the partitions, so that each has as many nodes as the others."""

Costs = Mapping[int, Sequence[float]]
"""Processor time of a notification [s], one figure a run, by how many nodes or workers there were."""


def growth(testbed: Testbed, *, quick: bool) -> Outcome:
    """Compare the processor time of notifications; that of the broker is left out."""
    runs, records, batches = (2, 500_000, 6_000) if quick else (3, 2_000_000, 24_000)
    found: dict[str, Costs] = {}
    for name, counts, measure, amount in (
        ("nodes, JSON", _NODES, _json, records),
        ("nodes, columnar", _NODES, _columnar, batches),
        ("workers and partitions, columnar", _WORKERS, _together, batches),
    ):
        found[name] = {count: measure(testbed, count, amount, runs) for count in counts}
        testbed.progress.step(f"  {_line(name, found[name])}")
    return Outcome(
        name="growth",
        what="processor time of workers for a notification, as nodes or workers and partitions become more",
        how=(
            f"nodes: one worker on one partition, {records:,} notifications as JSON, {batches * ROWS:,} in columnar"
            f" batches of {ROWS:,}; {' / '.join(map(str, _NODES))} nodes that send in turn",
            f"workers: {' / '.join(map(str, _WORKERS))} on as many partitions, {_NODES_OF_WORKERS} nodes; they join"
            " first and begin together",
            f"{runs} runs of each, each in a group of its own, from the first records on; medians",
        ),
        verdicts=tuple(_verdict(name, costs) for name, costs in found.items()),
        notes=tuple(_line(name, costs) for name, costs in found.items()),
        figures={name: {str(count): each for count, each in costs.items()} for name, costs in found.items()},
    )


def _json(testbed: Testbed, nodes: int, records: int, runs: int) -> list[float]:
    with testbed.deployment(f"growth-json-{nodes}", nodes=nodes) as made:
        fill_topic(made, records, nodes=nodes)
        return [cost([run_worker(made, records)]) for _ in range(runs)]


def _columnar(testbed: Testbed, nodes: int, batches: int, runs: int) -> list[float]:
    with testbed.deployment(f"growth-columnar-{nodes}", nodes=nodes) as made:
        fill_batches(made, batches, nodes=nodes, partitions=1)
        return [cost([run_worker(made, batches, rows=ROWS)]) / ROWS for _ in range(runs)]


def _together(testbed: Testbed, workers: int, batches: int, runs: int) -> list[float]:
    with testbed.deployment(f"growth-workers-{workers}", partitions=workers, nodes=_NODES_OF_WORKERS) as made:
        fill_batches(made, batches, nodes=_NODES_OF_WORKERS, partitions=workers)
        return [cost(together(made, workers, batches, rows=ROWS)) / ROWS for _ in range(runs)]


def cost(timings: Sequence[Timing]) -> float:
    """Return the processor time that some workers took together for a record [s]."""
    spent = sum(one.marks[-1].cpu - one.marks[0].cpu for one in timings if one.marks)
    return spent / sum(one.records for one in timings if one.marks)


def _line(name: str, costs: Costs) -> str:
    return f"{name}: " + ", ".join(f"{count}: {statistics.median(each) * 1e9:.1f} ns" for count, each in costs.items())


def _verdict(name: str, costs: Costs) -> Verdict:
    medians = [statistics.median(each) for each in costs.values()]
    deviation = max(medians, key=lambda one: abs(one / medians[0] - 1)) / medians[0] - 1
    return Verdict(
        what=f"{name}: furthest from the first, {min(costs)} to {max(costs)}",
        bar=f"within {TOLERANCE:.0%}",
        found=f"{deviation:+.0%}",
        reached=abs(deviation) <= TOLERANCE,
    )
