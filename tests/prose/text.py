"""The prose of a Markdown page: code, addresses and markup become blanks, so that each place keeps its offset."""

import re
from collections.abc import Iterator
from typing import NamedTuple

CODE = "\N{MIDDLE DOT}"
"""Stands for each character of inline code: no word, and no end of a sentence."""
BLANKED = (
    re.compile(r"\A---\n.*?^---$", re.DOTALL | re.MULTILINE),  # front matter
    re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE),  # blocks of code
    re.compile(r"<!--.*?-->|</?\w[^>\n]*>", re.DOTALL),  # HTML
    re.compile(r"(?<=\])\([^()\n]*\)|https?://[^\s)]+"),  # where links lead to
    re.compile(r"!(?=\[)|\]|\*\*|^#+ |^ *(?:[-*]|\d+\.) (?=\S)|^> ?", re.MULTILINE),
)
CELL = re.compile(r"(?<!\\)\|")
SENTENCE = re.compile(r"[^.!?]+(?:[.!?](?!\s+[^a-z\s]|\s*\Z)[^.!?]*)*[.!?]?")
HEADING = re.compile(r"^#.*$", re.MULTILINE)
BLOCK = re.compile(r"\n[ \t]*\n|\n(?= *(?:[-*#>]|\d+\.) )|(?<!\\)\||\n(?=\|)")


class Piece(NamedTuple):
    """A sentence, with its offset in the page."""

    start: int
    text: str

    @property
    def words(self) -> int:
        """The number of words; inline code is none."""
        return len(re.findall(r"[A-Za-z][\w'-]*", self.text))


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _without_blocks(page: str) -> str:
    for pattern in BLANKED[:2]:
        page = pattern.sub(_blank, page)
    return page


def prose(page: str) -> str:
    """Return the page with all but its prose blanked; offsets and lines stay."""
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", lambda match: CODE * len(match[0]), _without_blocks(page))
    for pattern in BLANKED[2:]:
        text = pattern.sub(_blank, text)
    return text


def sentences(page: str) -> Iterator[Piece]:
    """Yield each sentence of a page; a table cell, a heading and an entry of a list end one."""
    text, outline = prose(page), _without_blocks(page)
    ends = {match.start() for match in BLOCK.finditer(outline)} | {match.end() for match in HEADING.finditer(outline)}
    begin = 0
    for end in sorted(ends | {len(outline)}):
        for match in SENTENCE.finditer(text[begin:end]):
            found = match[0].strip(" \n|")
            if re.search(r"[A-Za-z]", found):
                yield Piece(begin + match.start() + match[0].index(found), found)
        begin = end
