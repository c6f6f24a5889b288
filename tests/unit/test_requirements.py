"""The page of requirements names tests and measurements that are run, and one for each row that is done."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from proving.bench.cli import MEASUREMENTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence" / "requirements.md"
ROW = re.compile(r"^\| ([RTP]\d+[a-z]?) \| (.*) \| (.*) \|(.*)\|$", re.MULTILINE)
ROWS = {found[1]: found for found in ROW.finditer(PAGE.read_text())}
STATUS = {"done", "partly", "missing", "out of scope"}
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
MEASUREMENT = re.compile(r"`bench --only ([\w-]+)`")
AS = re.compile(r"\bas ([RT]\d+[a-z]?)\b")
SKIPS = {"skip", "skipif", "xfail", "importorskip"}
PAPERS = ["P1a", "P1b", "P1c", "P2a", "P2b", "P2c", "P2d", "P2e", "P3a", "P3b", "P3c", "P4a", "P4b"]


def test_each_requirement_stands_there_once() -> None:
    wanted = [f"R{number:02}" for number in range(1, 83)] + [f"T1{letter}" for letter in "abcdefghijklmnop"]
    assert sorted(found[1] for found in ROW.finditer(PAGE.read_text())) == sorted(wanted + PAPERS)


@pytest.mark.parametrize("row", ROWS)
def test_what_a_row_names_exists_and_is_run(row: str) -> None:
    status, shown = ROWS[row][3], ROWS[row][4]
    assert status in STATUS
    for file, name in TEST.findall(shown):
        assert (ROOT / file).is_file(), file
        text = (ROOT / file).read_text()
        assert not name or re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE), name
        assert list(skips(text, name)) == [], f"{file}::{name} may be skipped: it shows nothing"
    assert set(MEASUREMENT.findall(shown)) <= set(MEASUREMENTS)
    assert set(AS.findall(shown)) <= set(ROWS)
    if status == "done":
        named = TEST.search(shown) or MEASUREMENT.search(shown) or AS.search(shown)
        assert named, f"{row} is done, and no test or measurement shows it"
    if status in ("partly", "out of scope"):
        assert shown.strip()


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
    parts: list[ast.AST] = [node for node in module.body if isinstance(node, ast.Expr)]
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
