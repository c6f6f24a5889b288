"""Tables through kills of everything: the short form of `make table-faults`."""

import re
from pathlib import Path

import pytest

from tests.support.processes import run_command

pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.slow]


def test_everything_is_killed_while_tables_come(tmp_path: Path) -> None:
    """Each table is announced once and whole, or reported as never completed."""
    process = run_command("table-faults", "--quick", "--megabytes", "4", "--folder", str(tmp_path), folder=tmp_path)
    try:
        assert process.exit_code(500.0) == 0, process.text
    finally:
        if process.running:
            process.terminate()  # it ends all that it has started
    assert "announced once and whole" in process.text
    kills = [int(number) for number in re.findall(r"kill -9 of the [a-z ]+?\W+(\d+)", process.text)]
    assert sum(kills) >= 2
