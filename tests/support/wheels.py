"""Wheels and source distributions, as a release builds them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import HANG


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build a distribution into an empty folder, and return its file."""
    argv = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder)]
    # The libraries of the page are there, or not: nothing is fetched.
    environment = {**os.environ, "SDP_WITHOUT_PAGE": "1"}
    done = subprocess.run(argv, cwd=source, env=environment, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = folder.iterdir()
    return file
