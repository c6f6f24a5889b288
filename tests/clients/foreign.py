"""Programs of others, each in an environment of its own (`scripts/bootstrap clients`); all they know is TANGO_HOST."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.waiting import HANG

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
TANGOGQL, DESK, JTANGO, DEBIAN, PROXIES = (
    ROOT / ".venv" / f"clients-{name}" for name in ("tangogql", "desk", "jtango", "debian", "proxies")
)


def installed(path: Path) -> str:
    if not path.exists():
        pytest.fail(
            f"expected {path.relative_to(ROOT)}, which is not there; install the clients and try again: make clients"
        )
    return str(path)


def environment(tango_host: str, home: Path) -> dict[str, str]:
    kept = ("PATH", "JAVA_HOME", "LANG", "LD_LIBRARY_PATH")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    return {**found, "TANGO_HOST": tango_host, "HOME": str(home), "PYTHONUNBUFFERED": "1"}


Output = subprocess.CompletedProcess[str]


def run(argv: Sequence[str], settings: Mapping[str, str], folder: Path, *, code: int = 0, text: str = "") -> Output:
    done = subprocess.run(
        argv, env=settings, cwd=folder, input=text, capture_output=True, text=True, timeout=HANG, check=False
    )
    print(done.stdout, done.stderr)  # shown by pytest when the test has failed
    assert done.returncode == code, f"{argv}: exit code {done.returncode}: {done.stderr[-2000:]}"
    return done
