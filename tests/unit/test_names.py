"""Names follow the glossary: no module, class or public function is called by a word that was given up."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
PACKAGES = ("facade", "devices", "clients", "lab", "sdp_facade_sdk")
STILL = {"facade/flows/telemetry/worker.py": {"Pace"}}
"""Names that are still to be changed; the list only shrinks."""
VERBS = {"share"}
"""Words that were given up as nouns: a function may do it."""


def retired() -> set[str]:
    section = GLOSSARY.read_text().partition("## Names that are not used")[2]
    return set(re.findall(r"^\| (\w+) \| \w", section, re.MULTILINE)) - {"not"}


def words(name: str) -> set[str]:
    found = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    return found | {word.removesuffix("s") for word in found} | {re.sub("ies$", "y", word) for word in found}


def names(path: Path) -> Iterator[str]:
    yield path.parent.name if path.stem == "__init__" else path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node.name


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_uses_a_word_that_was_given_up(package: str) -> None:
    given_up = retired()
    assert {"pump", "yardstick"} <= given_up
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if bad := {name for name in names(path) if words(name) & given_up} - STILL.get(file, set()) - VERBS:
            found[file] = bad
    assert not found
