"""The facade in one process, under faults: what holds, and that what is broken is found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.faults import Fault
from tests.simulation.mutants import MUTANTS, hunt
from tests.simulation.run import Result, run
from tests.simulation.shrink import shrink
from tests.simulation.site import FLOWS

_ROOT = Path(__file__).parents[2]
_AGAIN = "from tests.simulation.run import run; print(run(3, 8.0).digest)"


@pytest.mark.parametrize("seed", [1, 2])
def test_what_must_hold_holds_under_faults(seed: int) -> None:
    result = run(seed, 40.0, flows=FLOWS)
    assert result.failures == [], "\n".join(result.lines)
    assert all(result.counts.values()), result.counts


def test_a_seed_gives_the_same_run_again_in_another_process() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    other = subprocess.run([sys.executable, "-c", _AGAIN], cwd=_ROOT, env=environment, capture_output=True, text=True)
    assert other.stdout.strip() == run(3, 8.0).digest, other.stderr
    assert run(4, 8.0).digest != other.stdout.strip()


@pytest.mark.parametrize("mutant", MUTANTS[:2], ids=["D1", "0019"])
def test_a_guard_that_is_taken_out_is_found(mutant) -> None:
    result, _ = hunt(mutant)
    assert result is not None


def test_a_failure_is_shrunk_to_the_faults_that_matter() -> None:
    faults = [Fault(float(at), "kill -9", f"aggregate-{at % 2}") for at in range(8)]

    def again(some: list[Fault]) -> Result:
        return Result(1, some, ["it fails"] if faults[5] in some and faults[2] in some else [])

    assert shrink(again(faults), again).faults == [faults[2], faults[5]]
