"""Totals while the bus is not what it was: the short form of `make storage-faults`."""

from pathlib import Path

import pytest

from tests.support.processes import run_command

pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.slow]


def test_groups_that_are_set_otherwise_change_no_total(tmp_path: Path) -> None:
    """A group is set back, one is set forward and one is deleted while records flow: each total is exact, or its
    deviation is named before anyone asks."""
    options = ("--kills", "0", "--acts", "3", "--folder", str(tmp_path))
    process = run_command("storage-faults", *options, folder=tmp_path)
    try:
        assert process.exit_code(500.0) == 0, process.text
    finally:
        if process.running:
            process.terminate()  # it ends all that it has started
    assert "was named before anyone asked" in process.text
