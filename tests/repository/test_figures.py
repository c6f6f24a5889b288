"""A published figure has its command, its commit and the number of runs, and the code that made it is still there."""

import re
import subprocess
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from sdp_facade_lab.bench.cli import MEASUREMENTS, SINCE
from sdp_facade_lab.fault_runs.frame import FLOWS

ROOT = Path(__file__).parents[2]
PAGES = {page.stem: page for page in (ROOT / "docs").rglob("*.md")} | {"README": ROOT / "README.md"}
ROW = re.compile(r"^\| ([a-z-]+) \| (.*) \| `([0-9a-f]{8})`, [^|]+ \|$", re.MULTILINE)
"""A line of the table: NAME, what and found and bar, commit and runs."""
RUN = re.compile(r"^\*\*[^*]+\*\* \(commit `([0-9a-f]{8})`, [^)]+\)", re.MULTILINE)
"""Begin of a paragraph with figures of a fault run."""
BLOCK = re.compile(r"<!-- bench ([a-z-]+)(\.[\w-]+)? -->\n(.*?)<!-- /bench -->", re.DOTALL)
"""What `bench --page` has written."""
STAMP = re.compile(r"`bench --only ([a-z-]+)[^`]*`, commit `([0-9a-f]{8})(\+?)`, one run")
MEASURED = ROW.findall(PAGES["measurements"].read_text())
STAMPS = [stamp for page in PAGES.values() for stamp in STAMP.findall(page.read_text())]
PUBLISHED = {name for name, _, _ in MEASURED} | {name for name, _, _ in STAMPS}
"""Measurements with a figure."""


@pytest.mark.parametrize("name", sorted(MEASUREMENTS))
def test_the_code_of_a_measurement_is_there(name: str) -> None:
    module, _, function = MEASUREMENTS[name].partition(":")
    assert callable(getattr(import_module(module), function))


def test_each_line_of_the_page_names_command_commit_and_runs() -> None:
    text = PAGES["measurements"].read_text()
    table = re.search(r"^\| NAME .*?\n\n", text, re.DOTALL | re.MULTILINE)
    assert table
    lines = table[0].strip().splitlines()[2:]
    assert [line for line in lines if not ROW.match(line)] == []
    assert {name for name, _, _ in MEASURED} <= set(MEASUREMENTS)
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("**") and re.search(r"\d", paragraph.partition("**.")[2] or paragraph):
            assert RUN.match(paragraph), f"figures without a commit and a number of runs: {paragraph[:60]}"
            named = {*re.findall(r"`(?:make )?prove (?:ARGS='?)?([a-z]+)", paragraph)}
            assert named or "`make demo" in paragraph, f"figures without a command: {paragraph[:60]}"
            assert named <= set(FLOWS)


def test_each_block_says_how_it_was_made() -> None:
    for page in PAGES.values():
        made = BLOCK.findall(page.read_text())
        assert {name for name, _, _ in made} <= set(MEASUREMENTS)
        stamped = {name for name, table, content in made if not table and STAMP.search(content)}
        assert {name for name, table, content in made if content} <= stamped, page


COMMITS = sorted(
    {(name, commit) for name, _, commit in MEASURED}
    | {(name, commit) for name, commit, _ in STAMPS}
    | {("", commit) for commit in RUN.findall(PAGES["measurements"].read_text())}
)


@pytest.mark.parametrize(("name", "commit"), COMMITS)
def test_a_figure_is_younger_than_what_made_its_measurement_another_one(name: str, commit: str) -> None:
    if has_history():
        assert is_in(commit, "HEAD"), "the commit is not in the history"
        assert name not in SINCE or is_in(SINCE[name], commit), f"{name} has been measured otherwise since then"


def test_the_tree_was_clean_where_a_figure_was_made() -> None:
    assert [name for name, _, changed in STAMPS if changed] == []


@pytest.mark.parametrize("page", ["README", "comparison", "features"])
def test_what_other_pages_quote_has_a_figure(page: str) -> None:
    named = set(re.findall(r"--only ([a-z-]+)", PAGES[page].read_text()))
    assert named <= PUBLISHED | {"NAME"}


def test_the_front_page_has_the_figures_of_the_page_of_measurements() -> None:
    found = {name: " ".join(line for other, line, _ in MEASURED if other == name) for name, _, _ in MEASURED}
    lines = [line for line in PAGES["README"].read_text().splitlines() if line.startswith("| ") and "--only" in line]
    assert lines
    for line in lines:
        figures = " ".join(found[name] for name in re.findall(r"--only ([a-z-]+)", line))
        missing = [one for one in re.findall(r"\d[\d,.]*\d|\d", line.split(" | ")[0]) if one not in figures]
        assert missing == [], line


@cache
def has_history() -> bool:
    done = git("rev-parse", "--is-shallow-repository")
    return done.returncode == 0 and done.stdout.strip() == "false"


@cache
def is_in(commit: str, other: str) -> bool:
    return git("merge-base", "--is-ancestor", commit, other).returncode == 0


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
