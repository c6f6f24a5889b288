"""Parts of a self-contained page: escaped texts, tables, and plots as SVG with descriptions for screen readers.

A plot has a title and a description, and a table with the same figures beside it. Lines differ by their dashes, not
only by their colours, so that they can be distinguished on paper.
"""

import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from facade.flows.archive.night.span import MICRO, Night, utc
from facade.printable import printable

Cell = str | int | float | None
"""Numbers are right-aligned; None: unknown."""
_WIDTH, _HEIGHT = 720, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 10, 12, 42
_TICKS = 4
_PERCENT = re.compile(r"[0-9.]+ %")
_LONGEST = 1000
"""Longest text in a table [characters]."""
_LONG_WORD = 24
"""Length above which a word may be broken anywhere, so that it widens no table [characters]."""
_LABELS = 8
_STYLES = (("#0b3d91", ""), ("#8a1c1c", "7 4"))
STYLE = """
:root { color-scheme: light; }
body { color: #111; background: #fff; font: 16px/1.45 Arial, Helvetica, "Liberation Sans", sans-serif;
  max-width: 75rem; margin: 0 auto; padding: 1rem; }
h1, h2, h3 { line-height: 1.2; break-after: avoid; }
h2 { border-top: 2px solid #111; padding-top: .6rem; margin-top: 2.2rem; }
a { color: #0b3d91; }
table { border-collapse: collapse; margin: .8rem 0; font-size: .875rem; }
caption { text-align: left; font-weight: bold; padding-bottom: .3rem; }
th, td { border: 1px solid #767676; padding: .2rem .5rem; text-align: left; vertical-align: top; }
thead th { background: #eee; }
tbody th { font-weight: normal; }
.long { overflow-wrap: anywhere; }
.number { text-align: right; white-space: nowrap; }
.note { border-left: 4px solid #111; padding-left: .7rem; }
.wide { overflow-x: auto; }
.pair { display: flex; flex-wrap: wrap; gap: 0 1.5rem; align-items: flex-start; }
.pair > div:first-child { flex: 1 1 24rem; max-width: 45rem; }
figure { margin: .8rem 0; }
svg { width: 100%; height: auto; }
dt { font-weight: bold; }
dd { margin: 0 0 .4rem 1.2rem; }
@page { size: A4; margin: 14mm; }
@media print {
  body { font-size: 10pt; max-width: none; padding: 0; }
  table { font-size: 8pt; }
  th, td { padding: .1rem .3rem; }
  a { color: inherit; text-decoration: none; }
  nav { display: none; }
  .wide { overflow: visible; }
  .pair { display: block; }
  figure, tr { break-inside: avoid; }
  thead { display: table-header-group; }
}
"""


class SvgLine(NamedTuple):
    """A line of a plot, with a value for each slot of the night."""

    name: str
    values: Sequence[float | None]


def text(value: object) -> str:
    """Return a text, perhaps from the bus, as harmless HTML."""
    return escape(printable(str(value)))


def number(value: float) -> str:
    """Return a number with about three significant digits."""
    if isinstance(value, int) or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: float, digits: int = 1) -> str:
    """Return a share in percent; a share below 1 is never shown as 100 %."""
    factor = 10**digits
    shown = round(share * 100, digits)
    if shown >= 100 > share * 100:
        shown = math.floor(share * 100 * factor) / factor
    return f"{shown:.{digits}f} %"


def paragraph(words: str, *, note: bool = False) -> str:
    """Return a paragraph of text."""
    kind = ' class="note"' if note else ""
    return f"<p{kind}>{text(words)}</p>"


def listed(items: Iterable[str]) -> str:
    """Return a list of texts."""
    return f"<ul>{''.join(f'<li>{text(one)}</li>' for one in items)}</ul>"


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table whose first column names the rows."""
    head = "".join(f'<th scope="col">{text(one)}</th>' for one in headings)
    body = "\n".join(f"<tr>{''.join(_cell(one, is_first=at == 0) for at, one in enumerate(row))}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(value: Cell, *, is_first: bool) -> str:
    words = "not known" if value is None else value if isinstance(value, str) else number(value)
    words = words if len(words) <= _LONGEST else f"{words[:_LONGEST]}…"
    is_text = value is None or (isinstance(value, str) and not _PERCENT.fullmatch(value))
    is_long = max(map(len, words.split()), default=0) > _LONG_WORD
    kind = ' class="long"' if is_long else "" if is_text else ' class="number"'
    return f'<th scope="row"{kind}>{text(words)}</th>' if is_first else f"<td{kind}>{text(words)}</td>"


def plot(name: str, title: str, unit: str, lines: Sequence[SvgLine], night: Night, *, bars: bool = False) -> str:
    """Return a figure of values over the night."""
    top = max((one for line in lines for one in line.values if one is not None), default=0.0) or 1.0
    step = _step(top / _TICKS)
    top = math.ceil(top / step) * step
    parts = [*_axes(night, top, step)]
    for (colour, dashes), line in zip(_STYLES, lines, strict=False):
        draw = _bars if bars else _path
        parts += draw(line.values, top, night, colour, dashes)
    keys = [f"{'dashed' if dashes else 'solid'}: {one.name}" for (_, dashes), one in zip(_STYLES, lines, strict=False)]
    key = f" ({'; '.join(keys)})" if len(lines) > 1 else ""
    said = "; ".join(_said(line, unit, night) for line in lines)
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="{name}-title {name}-desc" '
        f'font-family="Arial, Helvetica, sans-serif" font-size="13" fill="#111"><title id="{name}-title">{text(title)}'
        f'</title><desc id="{name}-desc">{text(said)}. The table of the same name has all figures.</desc>'
        f"{''.join(parts)}</svg><figcaption>{text(title)} [{text(unit)}] over the time in UTC{text(key)}</figcaption>"
        "</figure>"
    )


def _said(line: SvgLine, unit: str, night: Night) -> str:
    known = [(value, at) for at, value in enumerate(line.values) if value is not None]
    if not known:
        return f"{line.name}: no values"
    (least, _), (most, at) = min(known), max(known)
    highest = f"highest in the slot of {utc(night.slots[at])[:16]} UTC"
    return f"{line.name}: from {number(least)} to {number(most)} {unit}, {highest}"


def _step(least: float) -> float:
    """Return the smallest sufficient value of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(one * power for one in (1, 2, 5, 10) if one * power >= least * (1 - 1e-9))


def _x(at_us: int, night: Night) -> float:
    share = (at_us - night.begin_us) / (night.end_us - night.begin_us)
    return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(value: float, top: float) -> float:
    return round(_HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM), 1)


def _axes(night: Night, top: float, step: float) -> Iterable[str]:
    for tick in range(round(top / step) + 1):
        y = _y(tick * step, top)
        yield f'<path d="M{_LEFT} {y}H{_WIDTH - _RIGHT}" stroke="{"#111" if tick == 0 else "#bbb"}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{number(tick * step)}</text>'
    base, last = _HEIGHT - _BOTTOM, len(night.slots)
    for slot in range(0, last, math.ceil(last / _LABELS)):
        x = _x(night.slots[slot], night)
        yield f'<path d="M{x} {base}v5" stroke="#111"/>'
        yield f'<text x="{x}" y="{base + 19}" text-anchor="middle">{utc(night.slots[slot])[11:16]}</text>'
    yield f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 5}" text-anchor="end">UTC</text>'


def _bars(values: Sequence[float | None], top: float, night: Night, colour: str, dashes: str) -> Iterable[str]:
    for at, value in enumerate(values):
        if value:
            left = _x(night.slots[at], night) + 1
            right = _x(night.slots[at] + round(night.slot_seconds(at) * MICRO), night) - 1
            y = _y(value, top)
            size = f'width="{right - left:.1f}" height="{_HEIGHT - _BOTTOM - y:.1f}"'
            yield f'<rect x="{left:.1f}" y="{y}" {size} fill="{colour}"/>'


def _path(values: Sequence[float | None], top: float, night: Night, colour: str, dashes: str) -> Iterable[str]:
    """Return a line with a gap for each missing value, and a dot at each value."""
    way, pen = "", "M"
    for at, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        x = _x(night.slots[at] + round(night.slot_seconds(at) * MICRO / 2), night)
        y = _y(value, top)
        way += f"{pen}{x} {y}"
        pen = "L"
        yield f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>'
    yield f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>' if way else ""
