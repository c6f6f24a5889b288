"""Texts of the page, and the geometry of its plots; ``page.html`` draws them."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from facade.archive.night.span import Night, utc
from facade.kernel.clock import Time, as_duration

_WIDTH, _HEIGHT = 720, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 10, 12, 42
_TICKS = 4
_NUMBER = re.compile(r"[0-9][0-9.,e-]*( %)?")
_LONGEST = 1000
"""Longest text in a table [characters]."""
_LONG_WORD = 24
"""Length above which a word may be broken anywhere, so that it widens no table [characters]."""
_LABELS = 8


def number(value: float) -> str:
    """Return a number with about three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def percent(share: float, digits: int) -> str:
    """Return a share in percent; a share below 1 is never shown as 100 %."""
    shown = round(share * 100, digits)
    if shown >= 100 > share * 100:
        shown = math.floor(share * 100 * 10**digits) / 10**digits
    return f"{shown:.{digits}f} %"


def length(seconds: float) -> str:
    """Return a time in hours, minutes and seconds."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    parts = (f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min"), (rest, "s")) if count)
    return " ".join(parts) or "0 s"


def cell(value: str | float | None) -> tuple[str, str]:
    """Return the text of a cell, and its class: numbers are right-aligned; None: it is not known."""
    words = "not known" if value is None else value if isinstance(value, str) else number(value)
    if max(map(len, words.split()), default=0) > _LONG_WORD:
        return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}…", "long"
    return words, "number" if _NUMBER.fullmatch(words) else ""


class Plot:
    """A plot of lines with a value for each slot of a night; None: there is none."""

    def __init__(self, night: Night, lines: Mapping[str, Sequence[float | None]], unit: str) -> None:
        self._night, self._unit = night, unit
        top = max((one for line in lines.values() for one in line if one is not None), default=0.0) or 1.0
        power = 10.0 ** math.floor(math.log10(top / _TICKS))
        self._step = next(one * power for one in (1, 2, 5, 10) if one * power >= top / _TICKS * (1 - 1e-9))
        self._top = math.ceil(top / self._step) * self._step
        self.text = "; ".join(self._said(name, values) for name, values in lines.items())

    def _said(self, name: str, values: Sequence[float | None]) -> str:
        known = [(value, at) for at, value in enumerate(values) if value is not None]
        if not known:
            return f"{name}: no values"
        (least, _), (most, at) = min(known), max(known)
        highest = f"highest in the slot of {utc(self._night.slots[at])[:16]} UTC"
        return f"{name}: from {number(least)} to {number(most)} {self._unit}, {highest}"

    def _x(self, at_us: Time) -> float:
        share = (at_us - self._night.begin_us) / (self._night.end_us - self._night.begin_us)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def _y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - value / self._top * (_HEIGHT - _TOP - _BOTTOM), 1)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Return height and text of each tick."""
        for tick in range(round(self._top / self._step) + 1):
            yield self._y(tick * self._step), number(tick * self._step)

    def labels(self) -> Iterator[tuple[float, str]]:
        """Return place and text of some slots."""
        for at_us in self._night.slots[:: math.ceil(len(self._night.slots) / _LABELS)]:
            yield self._x(at_us), utc(at_us)[11:16]

    def bars(self, values: Sequence[float]) -> Iterator[tuple[float, float, float, float]]:
        """Return left edge, top, width and height of each bar."""
        for at, value in enumerate(values):
            if value:
                left, right = self._x(self._edge(at, 0)) + 1, self._x(self._edge(at, 1)) - 1
                yield left, self._y(value), round(right - left, 1), round(_HEIGHT - _BOTTOM - self._y(value), 1)

    def points(self, values: Sequence[float | None]) -> Iterator[tuple[float, float, str]]:
        """Return each point, and how the line comes there: ``M`` after a gap."""
        for at, value in enumerate(values):
            if value is not None:
                yield self._x(self._edge(at, 0.5)), self._y(value), "L" if at and values[at - 1] is not None else "M"

    def _edge(self, slot: int, part: float) -> Time:
        return self._night.slots[slot] + as_duration(self._night.slot_seconds(slot) * part)
