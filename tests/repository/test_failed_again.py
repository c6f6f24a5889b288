"""`scripts/test`: which failed tests run once more, and what the run then says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test"
PYTEST = """#!/bin/sh
echo "$@" >>calls
test $(wc -l <calls) -gt 1 && exit $AGAIN
exit $FIRST
"""
PROCESS = "tests/integration/test_a.py::test_a"


@pytest.mark.parametrize(
    ("failed", "arguments", "codes", "code", "again"),
    [
        ([], [], (0, 0), 0, None),
        ([PROCESS], [], (1, 0), 0, PROCESS),
        ([PROCESS], [], (1, 1), 1, PROCESS),
        ([f"{PROCESS}[x y]@secured"], [], (1, 0), 0, f"{PROCESS}[x y]"),
        ([f"{PROCESS}[a@b]"], [], (1, 0), 0, f"{PROCESS}[a@b]"),
        ([PROCESS], ["-x"], (1, 0), 1, None),  # a run of some tests
        ([PROCESS], [], (2, 0), 2, None),  # it was interrupted
        ([PROCESS, "tests/kernel/test_a.py::test_a"], [], (1, 0), 1, None),
        ([f"{PROCESS}{number}" for number in range(6)], [], (1, 0), 1, None),
    ],
)
def test_few_failed_tests_with_real_processes_run_once_more(
    tmp_path: Path, failed: list[str], arguments: list[str], codes: tuple[int, int], code: int, again: str | None
) -> None:
    (tmp_path / "pytest").write_text(PYTEST)
    (tmp_path / "pytest").chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    cache = tmp_path / ".pytest_cache/v/cache/lastfailed"
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps(dict.fromkeys(failed, True)))
    first, second = map(str, codes)
    environment = {**os.environ, "BIN": str(tmp_path), "PROCESSES": "2", "FIRST": first, "AGAIN": second}
    done = subprocess.run(
        ["bash", SCRIPT, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    _, *more = (tmp_path / "calls").read_text().splitlines()
    assert more == ([] if again is None else [f"--numprocesses 1 --dist loadgroup {again}"])
    assert ("UNSTEADY" in done.stdout) == (again is not None and not code)
