"""The mirror through kills of everything: the short form of `make mirror-faults`."""

import os
import re
from pathlib import Path

import pytest

from proving.fault_runs.mirror import differences
from proving.mirror_account import MirrorFound
from tests.support.processes import run_command

pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.slow]


@pytest.mark.skipif("SDP_TEST_LONG" not in os.environ, reason="needs SDP_TEST_LONG: one run of seven lost values")
def test_everything_is_killed_while_values_come(tmp_path: Path) -> None:
    """Each value is on the topic, or a record says that it may be missing."""
    process = run_command("mirror-faults", "--quick", "--folder", str(tmp_path), folder=tmp_path)
    try:
        assert process.exit_code(500.0) == 0, process.text
    finally:
        if process.running:
            process.terminate()  # it ends all that it has started
    assert "each value is on the topic or said to be missing" in process.text
    kills = [int(number) for number in re.findall(r"kill -9 of the [A-Za-z0-9 ]+?\W+(\d+)\W*\n", process.text)]
    assert kills == [1] * 4


def test_what_is_wrong_is_named() -> None:
    assert differences("a/b/c/d", MirrorFound(pushed=5, mirrored=3, said=2, gaps=1)) == []
    wrong = differences("a/b/c/d", MirrorFound(pushed=5, mirrored=3, said=1, unsaid=1, foreign=2, misnumbered=3))
    assert wrong == [
        "a/b/c/d: values missing without a word: expected 0, got 1",
        "a/b/c/d: values that nobody pushed: expected 0, got 2",
        "a/b/c/d: numbers that are missing or came twice: expected 0, got 3",
    ]
    assert differences("a/b/c/d", MirrorFound()) == ["a/b/c/d: expected values, got none"]
