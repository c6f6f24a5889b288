"""Each defect that was found in use has a test, or a reason why it has none."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEFECTS = tomllib.loads((ROOT / "tests" / "defects.toml").read_text())


def test_all_defects_are_in_the_table() -> None:
    """Those of a letter were found together."""
    assert [one for one in DEFECTS if one[0] == "D"] == [f"D{number}" for number in range(1, 30)]
    assert all(re.fullmatch(r"[DEFG]\d+", one) for one in DEFECTS)


@pytest.mark.parametrize("defect", DEFECTS)
def test_what_a_defect_names_exists(defect: str) -> None:
    found = DEFECTS[defect]
    assert found.keys() <= {"what", "tests", "left_out"}
    assert found["what"]
    assert found.get("tests") or found.get("left_out")
    for test in found.get("tests", ()):
        file, _, name = test.partition("::")
        assert not name or re.search(rf"^(?:async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test
        assert (ROOT / file).is_file(), test
