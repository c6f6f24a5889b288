"""A picture of the history of an attribute."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from facade.errors import ConfigError
from facade.flows.archive.history import Series
from facade.printable import printable

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise ConfigError("pictures need matplotlib: pip install 'sdp-tango-facade[tables]'") from error

_COLOURS = {"WARNING": "tab:orange", "ALARM": "tab:red", "INVALID": "tab:gray"}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MOST_TEXTS = 20


def draw(file: Path, name: str, series: Series, begin: int, end: int) -> None:
    """Draw an attribute from `begin` to `end` [Unix us].

    A value holds until the next one. The line is broken at a gap, at NaN and at infinity. Values that are not VALID
    have a mark.

    Raises
    ------
    ConfigError
        The values cannot be drawn, or the file cannot be written.
    """
    messages = [one for _, one in series.points]
    heights, texts = _heights(name, [one.value for one in messages])
    steps: list[tuple[int, float]] = []
    for (recorded, one), height in zip(series.points, heights, strict=True):
        time = one.time
        if (known := series.gaps.get(recorded)) is not None:
            steps += [(known, steps[-1][1]), (known, math.nan)]
            time = time if time > known else recorded  # a value of before the gap
        steps.append((time, height))
    if messages:
        steps.append((max(steps[-1][0], min(series.last, end)), heights[-1]))
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.step(_dates(time for time, _ in steps), np.array([height for _, height in steps]), where="post", linewidth=1.0)
    for quality, colour in _COLOURS.items():
        chosen = [row for row, one in enumerate(messages) if one.quality == quality]
        if chosen:
            marked = _dates(messages[row].time for row in chosen), np.array(heights)[chosen]
            axes.plot(*marked, ".", color=colour, label=quality)
    if texts:
        axes.set_yticks(range(len(texts)), [*map(_drawable, texts)], parse_math=False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    axes.set_title(_drawable(name), parse_math=False)
    axes.set(xlabel="UTC", xlim=_dates((begin, end)))
    axes.grid(visible=True, alpha=0.3)
    try:
        figure.savefig(file)
    except ValueError as error:
        raise ConfigError(f"{file}: expected a file .svg, .png or .pdf") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror or error}") from error


def _heights(name: str, values: Sequence[Any]) -> tuple[list[float], list[str]]:
    """Return where values are drawn, and the texts at 0, 1, 2 ... if they are texts."""
    numbers: list[Any] = [_NOT_FINITE.get(value, value) if isinstance(value, str) else value for value in values]
    if all(isinstance(one, int | float) for one in numbers):
        return [float(one) if math.isfinite(one) else math.nan for one in numbers], []
    texts = sorted({str(value) for value in values})
    if not all(isinstance(value, str) for value in values) or len(texts) > _MOST_TEXTS:
        raise ConfigError(f"{name}: expected numbers, or at most {_MOST_TEXTS} different texts to draw; try --csv")
    return [float(texts.index(value)) for value in values], texts


def _drawable(text: str) -> str:
    return printable(text).encode("ascii", "backslashreplace").decode()  # the font has no other characters for sure


def _dates(times: Iterable[int]) -> Any:
    return np.fromiter(times, np.int64).astype("datetime64[us]")
