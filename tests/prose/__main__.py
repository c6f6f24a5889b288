"""Lint the prose of pages: `python -m tests.prose [PAGE ...]`; exit code 1 where a page has too many findings."""

import sys
from pathlib import Path

from tests.prose.style import ROOT, load

TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


def pages() -> list[Path]:
    """Return the pages of the repository: those at its top, and the documentation."""
    return [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]


def main(arguments: list[str]) -> int:
    """Print the findings of the pages that are named, or of all, and return the exit code."""
    style, failed, total = load(), False, 0
    for page in [Path(one).resolve() for one in arguments] or pages():
        name = page.relative_to(ROOT).as_posix()
        found, allowed = style.findings(page.read_text()), style.still.get(name, 0)
        total += len(found)
        if len(found) < allowed:
            print(f"{name}: {len(found)} findings, {allowed} in [still] of tests/prose/style.toml: lower the figure")
        if len(found) > allowed or arguments:
            for one in found:
                print(f"{name}:{one.line}: {one.rule}: {one.message}\n    {one.text}")
        failed = failed or len(found) != allowed
    print(f"{total} findings in {len(arguments) or len(pages())} pages")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
