"""The part of Markdown for the reference pages, the same on GitHub and in MkDocs."""

import re
import textwrap
from collections.abc import Iterable, Sequence

_WIDTH = 118
_SPECIAL = re.compile(r"([\\`*\[\]])")
_MARKER = re.compile(r"^(\s*)(?:()([-+#](?=\s|$)|>|=+$)|(\d+)([.)](?=\s|$)))")
_MARKED = r"\1\2\4\\\3\5"
NOTE = "<!-- Derived from the ICD by `sdp-facade icd export`: change the files under schemas/, not this page. -->"


def escaped(text: str) -> str:
    """Return plain text, escaped for a page; pieces between backticks become code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner
        return _plain(text)
    return "".join(code(part) if at % 2 else _plain(part) for at, part in enumerate(parts))


def code(text: str) -> str:
    """Return text as code; text with a backtick is enclosed in two."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def anchor(heading: str) -> str:
    """Return the anchor of a heading, which may be code, on GitHub and in MkDocs."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def link(text: str, page: str, heading: str = "") -> str:
    """Return a link to a page of the same folder, or to a heading of it."""
    return f"[{text}]({page}{'#' + anchor(heading) if heading else ''})"


def paragraph(text: str) -> str:
    """Return ready Markdown as a paragraph of short lines."""
    return _wrapped(text, "", "")


def items(texts: Iterable[str], depth: int = 0) -> str:
    """Return ready Markdown as a list; MkDocs needs four blanks for each depth."""
    indent = "    " * depth
    return "\n".join(_wrapped(text, f"{indent}- ", f"{indent}  ") for text in texts)


def code_block(language: str, text: str) -> str:
    """Return text as a block of code."""
    return f"```{language}\n{text}\n```"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells are ready Markdown, except for ``|``."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def page(title: str, *blocks: str) -> str:
    """Return a whole page."""
    return "\n\n".join([f"# {title}", NOTE, *(block for block in blocks if block)]) + "\n"


def _plain(text: str) -> str:
    # MkDocs has no backslash before <; a > is special only at the beginning of a line.
    return _SPECIAL.sub(r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;")


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


def _wrapped(text: str, first: str, rest: str) -> str:
    lines = textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    # A line that happens to begin with a dash or a number would become an entry of a list.
    return "\n".join([*lines[:1], *(_MARKER.sub(_MARKED, line) for line in lines[1:])])
