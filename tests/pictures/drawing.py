"""From a description in TOML to one SVG that follows the reader's light or dark scheme.

A description has ``title``, ``height``, and lists of four kinds of elements. All lengths are units of a picture that is
720 wide.

``frame``
    ``at = [x, y, width, height]``, ``text``: a heading at its top; ``dashed``.
``box``
    ``name``, ``at``, ``text``, ``kind`` (a key of `COLOURS`). The first line is bold where there is another, or where
    ``bold`` is set.
``arrow``
    ``path``: points, each ``[x, y]`` or ``"NAME.SIDE"`` or ``"NAME.SIDE+OFFSET"`` from the middle of that side. A
    coordinate ``""`` takes that of the point before it, or of the next one. ``text`` with ``text_at`` and ``anchor``;
    ``dashed``, ``both``, ``plain`` (no head).
``note``
    ``at = [x, y]``, ``text``, ``anchor``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

WIDTH: Final = 720
"""At half the width of a page, some 400 pixels, letters of `SIZE` still have 9."""
SIZE: Final = 16
LINE: Final = 19
_ROUND: Final = 8

Colour = tuple[str, str]
COLOURS: Final[Mapping[str, tuple[Colour, Colour]]] = {
    "source": (("#e8f5e9", "#388e3c"), ("#17301d", "#66bb6a")),
    "topic": (("#fff3e0", "#ef6c00"), ("#3a2a12", "#ffa726")),
    "worker": (("#eceff1", "#607d8b"), ("#2b353b", "#90a4ae")),
    "device": (("#e8eaf6", "#3f51b5"), ("#232a4d", "#8c9eff")),
    "client": (("#ede7f6", "#7e57c2"), ("#2f2547", "#b39ddb")),
    "alarm": (("#ffebee", "#c62828"), ("#421b1f", "#ef5350")),
}
"""Fill and stroke by kind of box, in the light scheme and in the dark one."""

_SCHEMES: Final = (
    {"ground": "#ffffff", "frame": "#fafafa", "edge": "#b0bec5", "text": "#1f2937", "line": "#455a64"},
    {"ground": "#1b1f27", "frame": "#222731", "edge": "#4b5563", "text": "#e5e7eb", "line": "#b0bec5"},
)
_NARROW: Final = frozenset("ijlftrI.,:;'|!()[] -/")
_WIDE: Final = frozenset("mwMW@%…")


class Box(NamedTuple):
    """Where a box is."""

    x: float
    y: float
    width: float
    height: float

    def side(self, name: str, offset: float) -> tuple[float, float]:
        """Return the middle of a side, moved along it by an offset."""
        middle_x, middle_y = self.x + self.width / 2 + offset, self.y + self.height / 2 + offset
        return {
            "left": (self.x, middle_y),
            "right": (self.x + self.width, middle_y),
            "top": (middle_x, self.y),
            "bottom": (middle_x, self.y + self.height),
        }[name]


def width_of(text: str, *, bold: bool = False) -> float:
    """Return about how wide a line is; no narrower than Arial sets it."""
    units = sum(0.31 if one in _NARROW else 0.86 if one in _WIDE else 0.7 if one.isupper() else 0.556 for one in text)
    return units * SIZE * (1.06 if bold else 1)


def draw(description: Mapping[str, Any]) -> str:
    """Return the picture as SVG.

    Raises
    ------
    ValueError
        A text is wider than its box, or an element lies outside the picture.
    """
    height = description["height"]
    boxes = {one["name"]: _within(Box(*one["at"]), height) for one in description.get("box", ())}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="Arial, Helvetica, Liberation Sans, sans-serif" font-size="{SIZE}" role="img" '
        f"aria-label={quoteattr(description['title'])}>",
        f"<style>{_style()}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="10"/>',
    ]
    for one in description.get("frame", ()):
        parts += _frame(one, height)
    for one in description.get("arrow", ()):
        parts += _arrow(one, boxes)
    for one in description.get("box", ()):
        parts += _box(one)
    for one in description.get("note", ()):
        parts += _text(one["text"].split("\n"), *one["at"], anchor=one.get("anchor", "middle"))
    return "\n".join((*parts, "</svg>\n"))


def _style() -> str:
    """Return the rules of both schemes; the dark ones apply where the reader's system asks for them."""
    light, dark = (
        "".join(
            (
                f".ground{{fill:{scheme['ground']}}}",
                f".frame{{fill:{scheme['frame']};stroke:{scheme['edge']}}}",
                f"text{{fill:{scheme['text']}}}",
                f".line{{stroke:{scheme['line']}}}",
                f".tip{{fill:{scheme['line']}}}",
                *(f".{kind}{{fill:{both[index][0]};stroke:{both[index][1]}}}" for kind, both in COLOURS.items()),
            )
        )
        for index, scheme in enumerate(_SCHEMES)
    )
    return f".line{{fill:none;stroke-width:1.6}}{light}@media (prefers-color-scheme:dark){{{dark}}}"


def _frame(one: Mapping[str, Any], height: float) -> Iterator[str]:
    box = _within(Box(*one["at"]), height)
    dashes = ' stroke-dasharray="6 4"' if one.get("dashed") else ""
    yield _rect(box, "frame", f' rx="9"{dashes}')
    _fits(one["text"], box.width, bold=True)
    yield from _text([one["text"]], box.x + box.width / 2, box.y + 20, bold=True)


def _box(one: Mapping[str, Any]) -> Iterator[str]:
    box, lines = Box(*one["at"]), one["text"].split("\n")
    first_bold = one.get("bold", len(lines) > 1)
    for number, line in enumerate(lines):
        _fits(line, box.width - 6, bold=first_bold and number == 0)
    yield _rect(box, one["kind"], ' rx="6"')
    middle = box.x + box.width / 2
    top = box.y + box.height / 2 - (len(lines) - 1) * LINE / 2 + SIZE * 0.35
    for number, line in enumerate(lines):
        yield from _text([line], middle, top + number * LINE, bold=first_bold and number == 0)


def _arrow(one: Mapping[str, Any], boxes: Mapping[str, Box]) -> Iterator[str]:
    points = _points(one["path"], boxes)
    ends = "" if one.get("plain") else ' marker-end="url(#head)"'
    if one.get("both"):
        ends += ' marker-start="url(#head)"'
    if one.get("dashed"):
        ends += ' stroke-dasharray="5 4"'
    yield f'<path class="line" d="{_rounded(points)}"{ends}/>'
    if text := one.get("text"):
        at = one.get("text_at") or _above(points)
        yield from _text(text.split("\n"), *at, anchor=one.get("anchor", "middle"))


def _points(path: Sequence[str | Sequence[float | str]], boxes: Mapping[str, Box]) -> list[tuple[float, float]]:
    found: list[list[float | str]] = []
    for point in path:
        if isinstance(point, str):
            parsed = re.fullmatch(r"([\w-]+)\.(left|right|top|bottom)([+-][\d.]+)?", point)
            if parsed is None:
                raise ValueError(f"no point of a box: {point}")
            found.append(list(boxes[parsed[1]].side(parsed[2], float(parsed[3] or 0))))
        else:
            found.append(list(point))
    for axis in (0, 1):
        for index, point in enumerate(found):
            if point[axis] == "":
                point[axis] = (
                    found[index - 1][axis] if index and found[index - 1][axis] != "" else found[index + 1][axis]
                )
    return [(float(x), float(y)) for x, y in found]


def _rounded(points: Sequence[tuple[float, float]]) -> str:
    """Return a path with round corners."""
    parts = [f"M{_n(points[0][0])} {_n(points[0][1])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        begin, end = _towards(corner, before), _towards(corner, after)
        parts.append(f"L{_n(begin[0])} {_n(begin[1])}Q{_n(corner[0])} {_n(corner[1])} {_n(end[0])} {_n(end[1])}")
    parts.append(f"L{_n(points[-1][0])} {_n(points[-1][1])}")
    return "".join(parts)


def _towards(corner: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    length = ((other[0] - corner[0]) ** 2 + (other[1] - corner[1]) ** 2) ** 0.5 or 1
    part = min(_ROUND, length / 2) / length
    return corner[0] + (other[0] - corner[0]) * part, corner[1] + (other[1] - corner[1]) * part


def _above(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return (points[0][0] + points[-1][0]) / 2, (points[0][1] + points[-1][1]) / 2 - 7


def _rect(box: Box, kind: str, more: str) -> str:
    place = f'x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.width)}" height="{_n(box.height)}"'
    return f'<rect class="{kind}" {place}{more}/>'


def _text(lines: Sequence[str], x: float, y: float, *, anchor: str = "middle", bold: bool = False) -> Iterator[str]:
    weight = ' font-weight="bold"' if bold else ""
    for number, line in enumerate(lines):
        wide = width_of(line, bold=bold)
        begin = x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        if begin < 0 or begin + wide > WIDTH:
            raise ValueError(f"outside the picture: {line}")
        yield f'<text x="{_n(x)}" y="{_n(y + number * LINE)}" text-anchor="{anchor}"{weight}>{escape(line)}</text>'


def _fits(line: str, width: float, *, bold: bool) -> None:
    if width_of(line, bold=bold) > width:
        raise ValueError(f"wider than its box: {line} ({width_of(line, bold=bold):.0f} > {width:.0f})")


def _within(box: Box, height: float) -> Box:
    if box.x < 0 or box.y < 0 or box.x + box.width > WIDTH or box.y + box.height > height:
        raise ValueError(f"outside the picture: {box}")
    return box


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
