"""The pages about the inside name files that exist, and the list of packages every package."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
PACKAGES = ROOT / "docs" / "reference" / "packages.md"
WAYS = {"notification", "command", "alert", "table"}


def section(title: str) -> str:
    """Return the text under a heading, up to the next one of the same level."""
    level = title.partition(" ")[0]
    found = PAGE.read_text().partition(f"\n{title}\n")[2]
    assert found, f"there is no heading {title!r}"
    return re.split(rf"^{level} ", found, flags=re.MULTILINE)[0]


def packages() -> list[str]:
    """Return all packages; a simulator belongs to its flow."""
    found = [
        path.parent
        for top in ("facade", "devices", "clients", "lab", "sdp_facade_sdk")
        for path in (ROOT / top).rglob("__init__.py")
    ]
    return sorted(path.relative_to(ROOT).as_posix() for path in found if path.name != "simulator")


def test_each_package_has_one_line_and_nothing_else_has() -> None:
    named = re.findall(r"^\| `([^`]+)` \| \S", PACKAGES.read_text(), re.MULTILINE)
    assert sorted(named) == packages()


def test_the_ways_through_the_code_name_files_in_their_order() -> None:
    text = section("## Follow the data through the code")
    ways = {
        title.lower(): body
        for title, body in re.findall(r"^### \w+ (\w+)\b[^\n]*\n(.*?)(?=^### |\Z)", text, re.S | re.M)
    }
    assert set(ways) == WAYS
    for way, body in ways.items():
        steps = re.findall(r"^(\d+)\. `([^`]+)`: \S", body, re.MULTILINE)
        assert [int(number) for number, _ in steps] == [*range(1, len(steps) + 1)], way
        assert 5 < len(steps) <= 10, way
        missing = [file for _, file in steps if not (ROOT / file).is_file()]
        assert not missing, f"{way}: {missing}"


def test_every_file_that_the_pages_name_exists() -> None:
    pages = PAGE.read_text() + PACKAGES.read_text()
    named = re.findall(r"`((?:facade|devices|clients|lab|sdp_facade_sdk|schemas)/[\w./]+\.\w+)`", pages)
    assert not [file for file in named if not (ROOT / file).exists()]
