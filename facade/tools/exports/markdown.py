"""The part of Markdown for the reference pages, the same on GitHub and in MkDocs."""

import re
import textwrap

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


def row(*cells: str) -> str:
    """Return a row of a table; the cells are ready Markdown, except for ``|``."""
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |"


def tidy(text: str) -> str:
    """Return a page of a template, with short lines, and with blank lines only between its blocks.

    The lines of a paragraph or of an entry of a list belong together. An empty entry is left out.
    """
    blocks, is_open, is_code = list[tuple[str, list[str]]](), False, False
    for line in text.splitlines():
        if is_code or (is_open and line and line.lstrip()[:1] not in ("", "-", "|", "#", "`")):
            blocks[-1][1].append(line)
            is_code &= line != "```"
            continue
        kind = line.lstrip()[:1].replace("`", line[:3])
        is_code, is_open = kind == "```", kind not in ("", "|", "#", "```")
        if kind and line.strip() != "-":
            blocks.append((kind if kind in ("-", "|", "#", "```") else "", [line]))
    pieces, before = list[str](), ""
    for kind, lines in [blocks[0], ("#", [NOTE]), *blocks[1:]]:
        pieces.append("\n" if kind == before and kind in ("-", "|") else "\n\n")
        before = kind
        if kind in ("", "-"):
            indent = " " * (len(lines[0]) - len(lines[0].lstrip()))
            joined = " ".join(line.strip() for line in lines)
            first, rest = (f"{indent}- ", f"{indent}  ") if kind else ("", "")
            pieces.append(_wrapped(joined.removeprefix("- ") if kind else joined, first, rest))
        else:
            pieces.append("\n".join(lines))
    return "".join(pieces[1:]) + "\n"


def _plain(text: str) -> str:
    # MkDocs has no backslash before <; a > is special only at the beginning of a line.
    return _SPECIAL.sub(r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;")


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
