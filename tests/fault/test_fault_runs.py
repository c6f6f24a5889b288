"""Records of each flow through kills of everything: the short form of `make prove`."""

import re
from pathlib import Path

import pytest

from tests.support.processes import run_command

pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.slow]

FLOWS = {
    "commands": ("every command has one outcome", 3),
    "heaps": ("each heap is in one count of its node", 5),
}
"""Words that end a run in which all is well, and the smallest number of kills."""


@pytest.mark.parametrize("flow", FLOWS)
def test_everything_is_killed_while_records_come(flow: str, tmp_path: Path) -> None:
    """No record is lost or doubled; an operator also resets the group of the workers."""
    process = run_command("prove", flow, "--quick", "--folder", str(tmp_path), folder=tmp_path)
    try:
        assert process.exit_code(500.0) == 0, process.text
    finally:
        if process.running:
            process.terminate()  # it ends all that it has started
    said, least = FLOWS[flow]
    assert said in process.text
    kills = {part.strip(): int(number) for part, number in KILLS.findall(process.text)}
    assert sum(kills.values()) >= least
    assert all(kills.values()), kills
    if flow == "heaps":
        assert re.search(r"resets of the consumer group by an operator\W+1\W", process.text)


KILLS = re.compile(r"kill -9 of the ([A-Za-z0-9 -]+?)\W+(\d+)\W*\n")
