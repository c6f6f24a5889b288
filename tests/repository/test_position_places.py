"""Each place in the code that moves a position or leaves out an offset has a row that says which figure tells it."""

import ast
import re
from pathlib import Path

import pytest

from facade.kernel.icd.load import load

pytestmark = pytest.mark.needs("repository")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "positions.md"
OFFSETS = "facade.kernel.bus.offsets"
CALLED = {
    "assign", "incremental_assign", "send_offsets_to_transaction", "go_on", "reach", "open_reader", "position_record",
    "lost_with",
}  # fmt: skip
"""Methods and functions that move a position, whoever calls them."""
IMPORTED = {"begin", "compare"}
"""Functions of `facade.kernel.bus.offsets` that choose one."""
SET = {"next", "end", "position", "committed", "gaps_to"}
"""Fields that are positions in modules that import `facade.kernel.bus.offsets`, and in this one."""
FIGURES = {"Consumed", "Skipped", "Overlap", "Corrected", "Lag", "DeadLettered", *load().conditions}


class Places(ast.NodeVisitor):
    """Collects the functions of a module that move a position."""

    def __init__(self, tree: ast.Module, module: str) -> None:
        imports = [one for one in ast.walk(tree) if isinstance(one, ast.ImportFrom) and one.module == OFFSETS]
        self.of_offsets = bool(imports) or module == OFFSETS
        names = {name.name for one in imports for name in one.names}
        self.called = CALLED | ((names | {"compare"} if module == OFFSETS else names) & IMPORTED)
        self.found: set[str] = set()
        self._within: list[str] = []
        self.visit(tree)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()

    visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        is_commit = name == "commit" and any(one.arg == "offsets" for one in node.keywords)
        if is_commit or (name in self.called and not (name in IMPORTED and isinstance(node.func, ast.Attribute))):
            self.found.add(".".join(self._within))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Store) and self.of_offsets and node.attr in SET:
            self.found.add(".".join(self._within))
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Attribute) and node.value.attr in SET:
            self.found.add(".".join(self._within))
        self.generic_visit(node)


def places(root: Path) -> set[str]:
    """Return file and function of each place."""
    found = set()
    for file in sorted((root / "facade").rglob("*.py")):
        name = file.relative_to(root).with_suffix("")
        made = Places(ast.parse(file.read_text()), ".".join(name.parts))
        found |= {f"{'/'.join(name.parts[1:])}: {one}" for one in made.found}
    return found


def rows() -> dict[str, str]:
    """Return the last column of each row by place."""
    cells = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {place: row[-1].strip() for row in cells for place in re.findall(r"`([\w/]+: [\w.]+)`", row[0])}


def test_each_place_that_moves_a_position_has_a_row() -> None:
    assert places(ROOT) == rows().keys()


def test_each_row_names_a_figure_or_says_that_nothing_is_left_out() -> None:
    for place, told in rows().items():
        named = set(re.findall(r"`(\w+)`", told))
        assert named & FIGURES or told.startswith("nothing is left out"), place
        assert named <= FIGURES, place


def test_a_new_place_is_found(tmp_path: Path) -> None:
    (tmp_path / "facade").mkdir()
    (tmp_path / "facade" / "new.py").write_text("def skip(reader, at):\n    reader.go_on({0: at + 1})\n")
    assert places(tmp_path) == {"new: skip"}
