"""Each invariant has one owner among the tests, and one witness on real parts; both are there."""

import re
import tomllib
from pathlib import Path

import pytest

from sdp_facade_lab.fault_runs.frame import FLOWS

ROOT = Path(__file__).parents[2]
ON_PROCESSES = ("tests/fault/", "tests/integration/")
OWNERS = tomllib.loads((ROOT / "tests" / "owners.toml").read_text())


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    text = (ROOT / file).read_text()
    return not name or bool(re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE))


@pytest.mark.parametrize("name", OWNERS)
def test_the_owner_and_the_witness_of_an_invariant_exist(name: str) -> None:
    found = OWNERS[name]
    assert found.keys() == {"invariant", "owner", "witness"}
    assert not found["owner"].startswith(ON_PROCESSES)
    assert exists(found["owner"])
    run = found["witness"].removeprefix("prove ")
    assert run in FLOWS or (run.startswith(ON_PROCESSES) and exists(run))


def test_an_invariant_has_one_owner() -> None:
    owners = [one["owner"] for one in OWNERS.values()]
    assert len(set(owners)) == len(owners)
