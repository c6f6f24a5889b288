"""``make simulate``: runs the facade for simulated hours, under faults that are drawn from a seed."""

import argparse
import gc
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context

from tests.simulation.mutants import BUDGET, MUTANTS, hunt
from tests.simulation.run import SECONDS, Result, run
from tests.simulation.shrink import shrink


def main() -> int:
    """Run, print, and return 1 if anything did not hold."""
    parser = argparse.ArgumentParser(prog="make simulate ARGS=", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="simulated time in all (default: 1)")
    parser.add_argument("--seed", type=int, default=None, help="first seed (default: by the clock)")
    parser.add_argument("--faults", type=float, default=1.0, help="faults per simulated second (default: 1)")
    parser.add_argument("--processes", type=int, default=1, help="processes side by side (default: 1)")
    parser.add_argument("--mutants", action="store_true", help="take guards out one by one, and say when each is found")
    given = parser.parse_args()
    logging.getLogger("facade").setLevel(logging.WARNING)
    gc.set_threshold(100_000)
    if given.mutants:
        return _mutants()
    first = int(time.time()) if given.seed is None else given.seed
    count = max(1, round(given.hours * 3600 / SECONDS))
    print(f"seeds {first} to {first + count - 1}, {SECONDS:g} simulated s each, {given.faults:g} faults/s", flush=True)
    jobs = [(seed, given.faults) for seed in range(first, first + count)]
    began, simulated, cpu, faults = time.monotonic(), 0.0, 0.0, 0
    counts: Counter[str] = Counter()
    for result in _results(jobs, given.processes):
        simulated, cpu = simulated + result.simulated, cpu + result.cpu
        faults += len(result.faults)
        counts.update(result.counts)
        if result.failures:
            _explain(result, given.faults)
            return 1
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    print(
        f"all held: {simulated / 3600:.2f} simulated hours, {faults} faults, {cpu:.0f} s of processor time"
        f" ({simulated / cpu:.0f} simulated s in each), {time.monotonic() - began:.0f} s"
    )
    return 0


def _results(jobs: list[tuple[int, float]], processes: int) -> Iterator[Result]:
    if processes == 1:
        yield from map(_job, jobs)
        return
    with get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(_job, jobs)


def _job(given: tuple[int, float]) -> Result:
    return run(given[0], per_second=given[1])


def _explain(result: Result, per_second: float) -> None:
    print(f"seed {result.seed}: {len(result.faults)} faults, and did not hold:", *result.failures, sep="\n  ")
    # After the last fault that matters nothing happens that does.
    print("leaving faults out, one by one, for up to a minute ...", flush=True)
    fewest = shrink(
        result,
        lambda faults: run(
            *(result.seed, 5.0 + max(one.at for one in faults)),
            faults=faults,
            settled=30.0,
        ),
    )
    print("time line with the fewest faults that do it:", *fewest.lines, sep="\n")
    print(f"faults ({len(fewest.faults)}):", *fewest.faults, "and then:", *fewest.failures, sep="\n  ")
    print(f"the same again: make simulate ARGS='--hours 0.01 --seed {result.seed} --faults {per_second:g}'")


def _mutants() -> int:
    missed = 0
    for mutant in MUTANTS:
        result, spent = hunt(mutant)
        missed += result is None
        found = "NOT FOUND" if result is None else f"seed {result.seed}: {result.failures[0]:.160}"
        print(f"{spent:6.1f} s  {mutant.guard}\n          {found}", flush=True)
    print(f"{len(MUTANTS) - missed} of {len(MUTANTS)} found, each within {BUDGET:g} s of processor time")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
