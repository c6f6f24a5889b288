"""The terminal: rich's console, behind which no text from elsewhere can do more than be read."""

from collections.abc import Iterable

import rich.console
from rich.segment import Segment

from facade.printable import printable


class Console(rich.console.Console):
    """Rich's console for text from elsewhere; only rich's own control sequences reach the terminal."""

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of what is to be shown: the one way that all text takes, be it in a table or live."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, keep="\n"), style, control)
