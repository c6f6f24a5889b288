"""A hook of MkDocs: on each page of the site, the first use of a term links to its row of the glossary.

The pages stay plain Markdown, which is why no plug-in does it: those that there are want each term marked in the text,
and the glossary as a definition list.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor

GLOSSARY = "reference/glossary.md"
RETIRED = "## Names that are not used"
PLAIN = frozenset(
    "account approval bar baseline command controller epoch finding flow fold frame guard instruction late ledger note"
    " overtake paired parallel partial polling position product quality reading reported response rule scenario serial"
    " skipped stale standby summary table timing view window".split()
)
"""Terms that are plain English as well: most of their uses mean something else, or need no explanation."""
WITHOUT = ("api/", "decisions/", GLOSSARY)
"""Pages whose terms get no links: docstrings, decisions, and the glossary itself."""
TEXT = frozenset({"p", "li"})
"""Elements whose own text is looked through; headings, code, links and tables are not."""


def terms(glossary: str) -> dict[str, str]:
    """Return the anchor of each term of the glossary; several of one row share it."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", glossary.partition(RETIRED)[0], re.MULTILINE)
    return {
        name: anchor(row)
        for row in rows
        for name in re.split(r", | \(|\)", row)
        if name and name not in PLAIN | {"term", "---"}
    }


def anchor(row: str) -> str:
    """Return the id of a row by what stands in its first cell."""
    return "term-" + re.sub(r"[^a-z]+", "-", row.lower()).strip("-")


class Links(Treeprocessor):
    """Makes the links of one page; `begin` names it."""

    def __init__(self, known: dict[str, str]) -> None:
        super().__init__()
        self._known = known
        names = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
        self._pattern = re.compile(rf"(?<![\w/-])({names})(?:s|es)?(?![\w/-])", re.IGNORECASE)
        self._page = ""
        self._left: set[str] = set()

    def begin(self, page: str) -> None:
        """Take the path of the page that comes next."""
        self._page = page
        self._left = set() if page.startswith(WITHOUT) else set(self._known.values())

    def run(self, root: Element) -> None:
        """Mark the rows of the glossary, or make the links of a page."""
        if self._page == GLOSSARY:
            for row in root.iter("tr"):
                cell = row.find("td")
                if cell is not None:
                    row.set("id", anchor("".join(cell.itertext())))
        elif self._left:
            for element in [one for one in root.iter() if one.tag in TEXT]:
                self._link(element)

    def _link(self, element: Element) -> None:
        """Look through the text of an element, and what stands behind each of its children."""
        begin, element.text = element.text, None
        children = list(element)
        for child in children:
            element.remove(child)
        self._append(element, begin or "")
        for child in children:
            end, child.tail = child.tail, None
            element.append(child)
            self._append(element, end or "")

    def _append(self, element: Element, text: str) -> None:
        for link, piece in self._pieces(text):
            if link:
                made = Element("a", {"href": link, "class": "term"})
                made.text = piece
                element.append(made)
            elif len(element):
                element[-1].tail = (element[-1].tail or "") + piece
            else:
                element.text = (element.text or "") + piece

    def _pieces(self, text: str) -> Iterator[tuple[str, str]]:
        begin = 0
        for found in self._pattern.finditer(text):
            goal = self._goal(found[1])
            if goal in self._left:
                self._left.discard(goal)
                yield "", text[begin : found.start()]
                yield f"{posixpath.relpath(GLOSSARY, posixpath.dirname(self._page) or '.')}#{goal}", found[0]
                begin = found.end()
        yield "", text[begin:]

    def _goal(self, word: str) -> str:
        """Return the anchor of a word as it is written; a capital is allowed at the begin of a sentence."""
        return self._known.get(word) or self._known.get(word[0].lower() + word[1:], "")


class _Terms(Extension):
    """Puts the links behind the inline patterns, and before MkDocs resolves links and collects anchors."""

    def __init__(self, links: Links) -> None:
        super().__init__()
        self._links = links

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.treeprocessors.register(self._links, "glossary-links", 15)


_links: list[Links] = []


def on_config(config: Any) -> Any:
    """Read the glossary, and add the extension; see MkDocs' hooks."""
    _links[:] = [Links(terms(Path(config["docs_dir"], GLOSSARY).read_text(encoding="utf-8")))]
    config["markdown_extensions"].append(_Terms(_links[0]))
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Name the page that is made next."""
    _links[0].begin(page.file.src_uri)
    return markdown
