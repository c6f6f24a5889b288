"""The hostile set of records on each topic of a real broker: all readers read it, and none ends its process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Deploy
from tests.support.waiting import HANG

pytestmark = pytest.mark.kafka

NO_TANGO = "127.0.0.1:1"


def test_no_hostile_record_ends_a_reader(deploy: Deploy, tmp_path: Path) -> None:
    """In a process of its own, which a crash of the client library would end."""
    deployment = deploy(prepare=False, tango_host=NO_TANGO)
    deployment.create_topics()
    words = [sys.executable, "-m", "tests.support.hostile_walk", deployment.bootstrap, deployment.prefix, str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=5 * HANG, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-6000:]}"
    assert "dead letters" in done.stdout
