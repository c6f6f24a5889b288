"""The table of the nodes in the live view: as many of its columns as the terminal has room for."""

from collections.abc import Sequence
from typing import Any, Final

from rich import box
from rich.console import ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from clients.scene import DASH, NODE, Field, Scene, cell, number, state_cell

NODE_FIELDS = (
    Field("heaps/s", "heapRate", number),
    Field("loss", "packetLossFraction", lambda value: f"{value:.3%}"),
    Field("flagged", "flaggedFractionMean", lambda value: f"{value:.2%}"),
    Field("p50 ms", "latencyP50", lambda value: f"{value * 1e3:.1f}"),
    Field("p99 ms", "latencyP99", lambda value: f"{value * 1e3:.1f}"),
    Field("missing", "heapsMissing", number),
    Field("twice", "heapsDuplicated", number),
    Field("late", "heapsLate", number),
    Field("heaps", "heapsTotal", number),
)
_SPARED: Final = ("p50 ms", "twice", "age s", "flagged", "loss", "p99 ms")
"""Columns of the nodes that a narrow terminal can do without, the first one first."""
_LEFT: Final = 2
"""Columns of the nodes that hold no figures."""
_NO_LIMIT: Final = 1000


class NodeTable:
    """The nodes as a table; on a narrow terminal without the columns that are needed least, and none cut off."""

    def __init__(self, scene: Scene, rows: int) -> None:
        self._nodes = scene.devices.get(NODE, ())
        self._rows = [_row(scene, device) for device in self._nodes[:rows]]

    def __rich_console__(self, console: Any, options: ConsoleOptions) -> RenderResult:
        """Give the table with as many columns as fit."""
        for left_out in range(len(_SPARED) + 1):
            table = self._table(_SPARED[:left_out])
            if console.measure(table, options=options.update(width=_NO_LIMIT)).maximum <= options.max_width:
                break
        table.expand = True
        yield table

    def _table(self, without: Sequence[str]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        titles = ("node", "state", *(field.title for field in NODE_FIELDS), "age s")
        shown = [at for at, title in enumerate(titles) if title not in without]
        for at in shown:
            table.add_column(titles[at], justify="left" if at < _LEFT else "right", no_wrap=True)
        for row in self._rows:
            table.add_row(*(row[at] for at in shown))
        more = [f"and {hidden} more nodes"] if (hidden := len(self._nodes) - len(self._rows)) else []
        more += [f"on a wider terminal: {', '.join(reversed(without))}"] if without else []
        table.caption = "; ".join(more) or None
        return table


def _row(scene: Scene, device: str) -> list[Text]:
    records = scene.records.get(device, {})
    times = [record.newest.time for record in records.values() if record.newest is not None]
    # The newest of all attributes: one that has not changed sends no event, however alive it is.
    style = "bold red" if device in scene.silent else ""
    age = Text(f"{scene.now - max(times):.1f}" if times else DASH, style=style if times else "dim")
    return [
        Text(device.rsplit("/", 1)[-1]),
        state_cell(scene.record(device, "State")),
        *(cell(scene.record(device, field.attribute), field.form) for field in NODE_FIELDS),
        age,
    ]
