"""The rules that sentences are held to: `style.toml`, the glossary, and proselint's."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from proselint import checks
from proselint.config import DEFAULT, Config
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

from tests.prose.text import prose, sentences

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
RETIRED = "## Names that are not used"
"""From this heading on the glossary lists words that no page may use."""
STYLE = Path(__file__).with_name("style.toml")


class Finding(NamedTuple):
    """A place in a page that a reader has to read twice."""

    line: int
    rule: str
    message: str
    text: str


class Style:
    """Rules by name, and what proselint is to look for."""

    def __init__(self, settings: dict[str, Any], glossary: str) -> None:
        self.still: dict[str, int] = settings["still"]
        self._most_words: int = settings["most_words"]
        rules = {name: (re.compile(rule["pattern"]), rule["message"]) for name, rule in settings["rules"].items()}
        self._rules = rules | dict(_vocabulary(glossary, settings["plain_english"]))
        wanted = dict.fromkeys(settings["proselint"]["off"], False) | DEFAULT["checks"]
        wanted |= dict.fromkeys(settings["proselint"]["off"], False)
        # The first path that fits decides: the special ones come first.
        self._checks = dict(sorted(wanted.items(), key=lambda entry: -entry[0].count(".")))
        registry = CheckRegistry()
        if not registry.checks:
            registry.register_many(checks.__register__)

    def findings(self, page: str) -> list[Finding]:
        """Return what is to be written otherwise in a Markdown page, by line."""
        page = page.partition(RETIRED)[0]
        return sorted([*self._by_sentence(page), *self._by_proselint(page)])

    def _by_sentence(self, page: str) -> Iterator[Finding]:
        for sentence in sentences(page):
            line = page.count("\n", 0, sentence.start) + 1
            text = " ".join(page[sentence.start : sentence.start + len(sentence.text)].split())
            if sentence.words > self._most_words:
                yield Finding(line, "long", f"{sentence.words} words: make two sentences of it", text)
            for name, (pattern, message) in self._rules.items():
                if pattern.search(sentence.text):
                    yield Finding(line, name, message, text)

    def _by_proselint(self, page: str) -> Iterator[Finding]:
        config = Config(max_errors=1000, checks=self._checks)
        for result in LintFile("page", prose(page)).lint(config):
            found = result.check_result
            begin, end = found.span[0] - 1, found.span[1] - 1  # proselint puts a line before the text
            line = page.count("\n", 0, begin) + 1
            yield Finding(line, f"proselint.{found.check_path}", found.message, " ".join(page[begin:end].split()))


def _vocabulary(glossary: str, plain: list[str]) -> Iterator[tuple[str, tuple[re.Pattern[str], str]]]:
    """Yield a rule for each name that was given up, and for each term that is written with capitals inside."""
    terms, _, retired = glossary.partition(RETIRED)
    for old, new in re.findall(r"^\| (\w+) \| (\w[^|]*) \|$", retired, re.MULTILINE):
        if old not in {"not", *plain}:
            yield f"glossary.{old}", (re.compile(rf"\b{old}s?\b"), f"write '{new}'")
    for term in re.findall(r"^\| ([a-z]+[A-Z]\w+) \|", terms, re.MULTILINE):
        written = f"{term[0]}|{term[0].upper()}){term[1:]}"  # with a capital it is the enumeration
        yield f"glossary.{term}", (re.compile(rf"\b(?!(?:{written}\b)(?i:{term})\b"), f"write '{term}'")


def load() -> Style:
    """Return the style of this repository."""
    return Style(tomllib.loads(STYLE.read_text()), GLOSSARY.read_text())
