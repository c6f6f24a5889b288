"""Processing blocks through kills of everything: the short form of `make block-faults`."""

import re
from pathlib import Path

import pytest

from tests.support.processes import run_command

pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.slow]


def test_everything_is_killed_while_states_come(tmp_path: Path) -> None:
    """Topic, devices and alarms say what the controllers were confirmed to have published."""
    process = run_command("block-faults", "--quick", "--folder", str(tmp_path), folder=tmp_path)
    try:
        assert process.exit_code(500.0) == 0, process.text
    finally:
        if process.running:
            process.terminate()  # it ends all that it has started
    assert "each block in the state that was confirmed last" in process.text
    kills = [int(number) for number in re.findall(r"kill -9 of the [A-Za-z0-9 ]+?\W+(\d+)\W*\n", process.text)]
    assert kills == [1] * 7
