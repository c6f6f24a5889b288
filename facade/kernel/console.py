"""The terminal: rich's console, with protection against control sequences in foreign text."""

from collections.abc import Container, Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import rich.console
import typer
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from facade.kernel.clock import Time, utc_seconds
from facade.kernel.printable import printable


class Console(rich.console.Console):
    """Rich's console for foreign text; only rich's own control sequences reach the terminal."""

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of a renderable: all text passes here, in tables and live views too."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, keep="\n"), style, control)


OUT: Final = Console(highlight=False, soft_wrap=True, emoji=False)
"""Standard output; lines are not folded."""
ERR: Final = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
"""Standard error; the same."""
_PIPE_WIDTH: Final = 180
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Since = Annotated[str, typer.Option(metavar="DURATION", help="How far back, such as 10m, 12h or 7d.")]
"""Option of a sub-command that lists what happened."""
SINCE: Final = "1d"
"""Default of `Since`: a night and its evening."""


def moment(time: Time) -> str:
    """Return a time in the form of all lists: in UTC, to the second."""
    return utc_seconds(time).removesuffix(" UTC")


def shortened(text: str, console: rich.console.Console) -> str:
    """Return a text, cut to the width of a console."""
    return text if len(text) <= console.width else f"{text[: console.width - 1]}\N{HORIZONTAL ELLIPSIS}"


def say(text: str) -> None:
    """Print a line to standard output, folded between words if the terminal is too narrow."""
    OUT.print(text, soft_wrap=not OUT.is_terminal)


def wide(width: int = _PIPE_WIDTH) -> Console:
    """Return a console for tables: a file or a pipe has no width, and the default of 80 columns is too narrow."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)


def table(
    headings: Iterable[str],
    rows: Iterable[Iterable[str | Text]],
    *,
    whole: Container[str] = (),
    cut: Mapping[str, int] = {},
    **options: Any,
) -> Table:
    """Return a table of texts without interpreting markup in them. All tables have this style.

    Parameters
    ----------
    whole
        Headings of the columns whose cells are not folded.
    cut
        Greatest widths of the columns whose cells are cut to a line, by their headings.
    options
        Options of rich's `Table`.
    """
    style = {"box": None, "pad_edge": False, "header_style": "bold", "title_style": "bold", "title_justify": "left"}
    made = Table(**(style | {"caption_justify": "left"} | options))
    for heading in headings:
        width = cut.get(heading)
        overflow: Literal["fold", "ellipsis"] = "fold" if width is None else "ellipsis"
        made.add_column(heading, overflow=overflow, no_wrap=heading in whole or heading in cut, max_width=width)
    for row in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made
