"""The prose linter finds what our style forbids, where it is, and nothing in code."""

import pytest

from tests.prose.style import Style, load
from tests.prose.text import sentences


@pytest.fixture(scope="module")
def style() -> Style:
    return load()


def rules(style: Style, page: str) -> list[str]:
    return [one.rule for one in style.findings(page)]


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        ("subject", "Who starts late has the newest at once.", "Late subscribers get the newest value at once."),
        ("clause", "The log is read again: what was cut is a hole.", "The log is read again. Lost records are a hole."),
        ("whoever", "It names whoever was killed.", "It names the process that was killed."),
        ("every", "Write a heartbeat each second.", "Write a heartbeat every second."),
        ("negation", "A repeated record is no dead letter.", "A repeated record is not a dead letter."),
        ("archaic", "Nothing is written but for the mark.", "Nothing is written except the mark."),
        ("mend", "First mend the cause.", "First fix the cause."),
        ("said", "A hole in the values is said.", "The attribute `gap` reports a hole in the values."),
        ("worth", "TM goes by the obsState.", "TM uses the obsState."),
        ("doubled", "The record of the the node.", "The record of the node."),
        ("long", f"It {'really ' * 40}works.", f"It {'really ' * 20}works."),
        ("glossary.yardstick", "The yardstick is a bare start.", "The baseline is a bare start."),
        ("glossary.obsState", "The ObsSTATE is READY.", "The obsState is READY, of the enumeration ObsState."),
        ("proselint.archaism", "It waits for ever.", "It waits without a limit."),
    ],
)
def test_each_rule_finds_its_example_and_passes_the_better_text(style: Style, rule: str, bad: str, good: str) -> None:
    # 'really' stands several times in a row on purpose.
    assert rule in rules(style, bad)
    assert [one for one in rules(style, good) if one != "doubled"] == []


def test_questions_and_headings_may_begin_with_any_word(style: Style) -> None:
    assert rules(style, "## What you need\n\nWhat is a topic?\n") == []


def test_code_is_no_prose(style: Style) -> None:
    page = "Run `whoever each 5 s` and [read](whoever.md).\n\n```sh\nwhoever each 5 s\n```\n\n<!-- whoever -->\n"
    assert rules(style, page) == []


def test_a_finding_names_its_line_and_quotes_the_page(style: Style) -> None:
    page = "# Title\n\nThe first line is fine.\nA `value` that\nwhoever reads it believes.\n"
    (found,) = style.findings(page)
    assert (found.line, found.text) == (4, "A `value` that whoever reads it believes.")


def test_cells_headings_and_entries_of_lists_end_a_sentence() -> None:
    page = "# A title\nOne sentence.  Two of `code`; e.g. three\n- an entry\n- another\n\n| a cell | a second cell |\n"
    assert [one.text for one in sentences(page)] == [
        "A title",
        "One sentence.",
        "Two of ······; e.g. three",
        "an entry",
        "another",
        "a cell",
        "a second cell",
    ]


def test_pages_that_still_have_findings_exist(style: Style) -> None:
    from tests.prose.__main__ import ROOT

    assert [name for name in style.still if not (ROOT / name).is_file()] == []
