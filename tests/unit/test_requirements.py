"""The page of requirements names tests and measurements that exist, and something for each row that is done."""

import re
from pathlib import Path

import pytest

from proving.bench.cli import MEASUREMENTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "requirements.md"
ROW = re.compile(r"^\| ([RT]\d+[a-z]?) \| (.*) \| (.*) \|(.*)\|$", re.MULTILINE)
ROWS = {found[1]: found for found in ROW.finditer(PAGE.read_text())}
STATUS = {"done", "partly", "missing", "out of scope"}
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
MEASUREMENT = re.compile(r"`bench --only ([\w-]+)`")


def test_each_requirement_stands_there_once() -> None:
    wanted = [f"R{number:02}" for number in range(1, 77)] + [f"T1{letter}" for letter in "abcdefghij"]
    assert sorted(found[1] for found in ROW.finditer(PAGE.read_text())) == wanted


@pytest.mark.parametrize("row", ROWS)
def test_what_a_row_names_exists(row: str) -> None:
    status, shown = ROWS[row][3], ROWS[row][4]
    assert status in STATUS
    for file, name in TEST.findall(shown):
        assert (ROOT / file).is_file(), file
        assert not name or re.search(rf"^(?:async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), name
    assert set(MEASUREMENT.findall(shown)) <= set(MEASUREMENTS)
    if status == "done":
        assert TEST.search(shown) or MEASUREMENT.search(shown) or "](" in shown, f"{row} is done, and nothing shows it"
    if status in ("partly", "out of scope"):
        assert shown.strip()
