"""The page of requirements names tests and measurements that are run; each row that is done, one on real parts."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from sdp_facade_lab.bench.cli import MEASUREMENTS
from sdp_facade_lab.fault_runs.frame import FLOWS
from tests.repository.test_figures import PUBLISHED

ROOT = Path(__file__).parents[2]
PAGE = next((ROOT / "docs").rglob("requirements.md"))
ROW = re.compile(r"^\| ([RTPB]\d+[a-z]?) \| (.*) \| (.*) \|(.*)\|$", re.MULTILINE)
ROWS = {found[1]: found for found in ROW.finditer(PAGE.read_text())}
STATUS = {"done", "partly", "missing", "out of scope"}
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
REAL = re.compile(r"`tests/(?:integration|fault|interoperability)/|`make containers")
"""Evidence on real processes: tests elsewhere run in memory."""
MEASUREMENT = re.compile(r"`bench --only ([\w-]+)`")
PROOF = re.compile(r"`prove ([\w-]+)[ \w-]*`")
AS = re.compile(r"\bas ([RTPB]\d+[a-z]?)\b")
SKIPS = {"skip", "skipif", "xfail", "importorskip"}
COUNTS = {"R": 90, "B": 10}
PAPERS = {"T1": "abcdefghijklmnop", "P1": "abcde", "P2": "abcdefghij", "P3": "abcd", "P4": "ab"}


def test_each_requirement_stands_there_once() -> None:
    wanted = [f"{kind}{number:02}" for kind, count in COUNTS.items() for number in range(1, count + 1)]
    wanted += [f"{paper}{letter}" for paper, letters in PAPERS.items() for letter in letters]
    assert sorted(found[1] for found in ROW.finditer(PAGE.read_text())) == sorted(wanted)


@pytest.mark.parametrize("row", ROWS)
def test_what_a_row_names_exists_and_is_run(row: str) -> None:
    status, shown = ROWS[row][3], ROWS[row][4]
    assert status in STATUS
    tests = TEST.findall(shown)
    assert len(tests) == shown.count("`tests/"), "tests are named by their file, as tests/kernel/test_x.py::test_y"
    for file, name in tests:
        assert (ROOT / file).is_file(), file
        text = (ROOT / file).read_text()
        assert not name or re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE), name
        assert list(skips(text, name)) == [], f"{file}::{name} may be skipped: it shows nothing"
    assert set(MEASUREMENT.findall(shown)) <= set(MEASUREMENTS)
    assert set(PROOF.findall(shown)) <= set(FLOWS)
    assert set(AS.findall(shown)) <= set(ROWS)
    assert shown.strip() or status == "missing"


@pytest.mark.parametrize("row", [row for row, found in ROWS.items() if found[3] == "done"])
def test_a_row_that_is_done_is_shown_on_real_parts(row: str) -> None:
    shown = ROWS[row][4]
    assert set(MEASUREMENT.findall(shown)) <= PUBLISHED, "a measurement whose figures are not published shows nothing"
    others = [ROWS[other] for other in AS.findall(shown)]
    real = REAL.search(shown) or MEASUREMENT.search(shown) or PROOF.search(shown)
    assert real or any(other[3] == "done" for other in others), f"{row} is done, and nothing shows it on real parts"
    assert all(other[3] != "missing" for other in others)


@pytest.mark.parametrize(
    "module",
    [
        "if path.exists():\n    pytest.skip('x', allow_module_level=True)\ndef test_a(): ...\n",
        "pytest.importorskip('x')\ndef test_a(): ...\n",
        "try:\n    import x\nexcept ImportError:\n    pytest.skip('x')\ndef test_a(): ...\n",
        "pytestmark = pytest.mark.skipif(x, reason='x')\ndef test_a(): ...\n",
        "def helper():\n    pytest.skip('x')\ndef test_a():\n    helper()\n",
        "@pytest.fixture\ndef made():\n    pytest.skip('x')\ndef test_a(made): ...\n",
    ],
)
def test_a_test_that_may_be_skipped_is_found(module: str) -> None:
    assert list(skips(module, "test_a"))
    assert not list(skips("def test_a(): ...\ndef test_b():\n    pytest.skip('x')\n", "test_a"))


def skips(text: str, name: str) -> Iterator[str]:
    """Give the ways in which a test may be skipped, by itself, its module, or anything of its module that it uses.

    Parameters
    ----------
    name
        Of the test; empty: all tests of the module.
    """
    module = _parsed(text)
    defined = {name: node for node in module.body for name in _names(node)}
    waiting = [one for one in defined if one == name or (not name and one.startswith("test_"))]
    waiting += [one for one in defined if one == "pytestmark"]
    # What runs when the module is imported; a value is looked at if the test uses it.
    kept = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign
    parts: list[ast.AST] = [node for node in module.body if not isinstance(node, kept)]
    seen: set[str] = set()
    while waiting:
        if (one := waiting.pop()) not in seen:
            seen.add(one)
            parts.append(defined[one])
            used = {node.id for node in ast.walk(defined[one]) if isinstance(node, ast.Name)}
            used |= {node.arg for node in ast.walk(defined[one]) if isinstance(node, ast.arg)}
            waiting += used & defined.keys()
    for part in parts:
        yield from (node.attr for node in ast.walk(part) if isinstance(node, ast.Attribute) and node.attr in SKIPS)


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _names(node: ast.stmt) -> list[str]:
    """Return what a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []
