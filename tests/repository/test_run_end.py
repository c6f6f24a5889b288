"""What a test run starts ends with it, also when the run is killed and finalises nothing."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import HANG, until

ROOT = Path(__file__).parents[2]
SERVICES = """
import time
from pathlib import Path
from facade.infra import local


def test_that_does_not_end(infra):
    pids = [str(line.pid) for line in local.status(infra.state_dir) if line.pid]
    Path("started").write_text(" ".join(pids))
    time.sleep(600.0)
"""


def pids_in(file: Path) -> list[int]:
    """Return the two numbers in a file; none before they are there."""
    found = file.read_text().split() if file.exists() else []
    return [int(pid) for pid in found] if len(found) == 2 else []


@pytest.mark.kafka
@pytest.mark.tango
def test_a_broker_and_a_database_end_with_the_run_of_pytest(tmp_path: Path) -> None:
    """Four brokers and a dozen databases ran on after a run that a signal had ended."""
    (tmp_path / "test_small.py").write_text(SERVICES)
    argv = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--basetemp", "temp", "test_small.py"]
    started, log = tmp_path / "started", tmp_path / "run.log"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("wb") as output:
        run = subprocess.Popen(
            argv, cwd=tmp_path, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        until(lambda: run.poll() is not None or pids_in(started), "the run is under way")
        assert run.poll() is None, log.read_text()
        processes = [psutil.Process(pid) for pid in pids_in(started)]
        run.kill()
        assert run.wait(HANG) != 0
    finally:
        run.kill()
        run.wait()
    until(lambda: not any(map(psutil.Process.is_running, processes)), "what it has started is gone")
