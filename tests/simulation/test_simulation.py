"""The facade in one process, under faults: what holds, and that what is broken is found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.run import run

_ROOT = Path(__file__).parents[2]
_AGAIN = "from tests.simulation.run import run; print(run(3, 10.0).digest)"


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_sent_is_what_is_shown_under_faults(seed: int) -> None:
    result = run(seed, 60.0)
    assert result.failures == [], "\n".join(result.lines)


def test_a_seed_gives_the_same_run_again_in_another_process() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    other = subprocess.run([sys.executable, "-c", _AGAIN], cwd=_ROOT, env=environment, capture_output=True, text=True)
    assert other.stdout.strip() == run(3, 10.0).digest, other.stderr
    assert run(4, 10.0).digest != other.stdout.strip()
