"""The frozen public surface: what it holds, how a change is told, and that examples and pages stay inside it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import surface

ROOT = Path(__file__).parents[2]
FROZEN = surface.FROZEN.read_text()


def test_the_surface_is_the_frozen_one() -> None:
    lines = surface.changes(FROZEN, surface.surface())
    assert not lines, "\n".join([*lines, f"if this is meant: {surface.RENEW}"])


@pytest.mark.parametrize(
    "line",
    [
        "class sdp_facade_sdk.NotSent(BusError)",
        "    classmethod parse(cls, text: str) -> Self",
        "    property command: str",
        "    value: bytes | None",
        "facade.kernel.manifest.load(reference: ImportPath) -> Any",
    ],
)
def test_a_class_a_method_a_field_and_a_function_have_a_line(line: str) -> None:
    assert line in FROZEN.splitlines()


def test_a_changed_parameter_is_told_with_both_signatures() -> None:
    before = FROZEN.replace("load(reference: ImportPath)", "load(reference: str)")
    told = [line for line in surface.changes(before, FROZEN) if line.startswith(("-f", "+f"))]
    assert told == [
        "-facade.kernel.manifest.load(reference: str) -> Any",
        "+facade.kernel.manifest.load(reference: ImportPath) -> Any",
    ]


def sources() -> Iterator[tuple[str, str]]:
    for file in (ROOT / "examples").rglob("*.py"):
        yield file.relative_to(ROOT).as_posix(), file.read_text()
    for file in (ROOT / "docs" / "how-to").glob("*.md"):
        code = re.findall(r"^```python[^\n]*\n(.*?)^```", file.read_text(), re.S | re.M)
        yield file.name, "\n".join(line for block in code for line in block.splitlines() if line.startswith("from "))


def test_examples_and_pages_import_of_the_kernel_only_what_is_frozen() -> None:
    strangers = {
        f"{name}: {node.module}"
        for name, text in sources()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("facade.kernel", "devices.kernel"))
        and node.module not in surface.MODULES
    }
    assert not strangers, "import from a module of tests/surface.py, or add this one to its MODULES"
