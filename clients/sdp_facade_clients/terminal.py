"""The live view: a `Scene` of values from Tango events, and pure functions that draw it, without a server."""

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from facade.kernel.console import Console
from facade.kernel.printable import label_of, printable
from facade.kernel.reading import Quality
from sdp_facade_clients.alarm_choice import urgency
from sdp_facade_clients.events import EventRecord, EventRecords

NODE, MASTER, BUS, SUBARRAY = "SdpIngestNode", "SdpMaster", "SdpBus", "SdpSubarray"
ALERTS = "SdpAlerts"
CALIBRATION = "SdpCalibration"

DASH = "-"
_STYLES = {Quality.VALID: "", Quality.WARNING: "yellow", Quality.ALARM: "bold red", Quality.INVALID: "dim strike"}
_STATES = {"ON": "green", "ALARM": "bold red", "FAULT": "bold red", "STANDBY": "yellow", "DISABLE": "dim"}
_NOTHING = EventRecord()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The data of one picture."""

    tango_host: str
    devices: Mapping[str, Sequence[str]]
    records: EventRecords
    now: float
    """[Unix s]."""
    health_labels: tuple[str, ...]
    obs_states: tuple[str, ...] = ()
    silent: Mapping[str, float] = field(default_factory=dict)
    """Devices whose server does not answer, with the time of its last answer [Unix s]."""

    def record(self, device: str, attribute: str) -> EventRecord:
        """Return the record of an attribute; it is INVALID if its server does not answer, or its events fail."""
        return self.records.get(device, {}).get(attribute, _NOTHING).judged(silent=device in self.silent)

    def first(self, device_class: str, attribute: str) -> EventRecord:
        """Return the record of an attribute of the only device of a class; it has no value if the device is silent."""
        device = next(iter(self.devices.get(device_class, ())), "")
        return _NOTHING if device in self.silent else self.record(device, attribute)

    @property
    def silence(self) -> str:
        """Return a line with the devices that do not answer, and since when; empty: all answer."""
        if not self.silent:
            return ""
        since = datetime.fromtimestamp(min(self.silent.values()), UTC).strftime("%H:%M:%S")
        first = min(self.silent, key=lambda device: (self.silent[device], device))
        more = f" and {len(self.silent) - 1} more" if len(self.silent) > 1 else ""
        return f"no answer from {first}{more} since {since} UTC"

    def health(self) -> str:
        """Return healthState's label."""
        newest = self.first(MASTER, "healthState").newest
        unknown = newest is None or newest.value is None or newest.quality is Quality.INVALID
        return DASH if newest is None or unknown else label_of(self.health_labels, newest.value)


def cell(record: EventRecord, form: Callable[[Any], str], style: str = "") -> Text:
    """Show one value with its quality: INVALID is dim and struck out, or a dash."""
    newest = record.newest
    if newest is None or newest.value is None:
        return Text(DASH, style="dim")
    # A span: the style of the whole text would also strike out the blanks before it.
    return Text.assemble((form(newest.value), _STYLES[newest.quality] or style))


def state_cell(record: EventRecord) -> Text:
    """Show a State in its colour; the last one of a device without an answer is struck out."""
    newest = record.newest
    return cell(record, str, _STATES.get(str(newest.value), "magenta") if newest else "")


def enum_cell(record: EventRecord, labels: Sequence[str], styles: Mapping[str, str]) -> Text:
    """Show the label of an enumeration."""
    newest = record.newest
    label = "" if newest is None or newest.value is None else label_of(labels, newest.value)
    return cell(record, lambda _: label, styles.get(label, "yellow"))


@dataclass(frozen=True, slots=True)
class Field:
    """One shown attribute of a device."""

    title: str
    attribute: str
    form: Callable[[Any], str]


def number(value: Any) -> str:
    """Return a number without decimals."""
    return f"{value:,.0f}"


# --- The table of the nodes: as many of its columns as fit the terminal ---

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
"""Columns of the nodes that a narrow terminal leaves out, in this order."""
_LEFT: Final = 2
"""Columns of the nodes without figures."""
_NO_LIMIT: Final = 1000


class NodeTable:
    """The table of nodes; a narrow terminal leaves out the least important columns, and cuts none off."""

    def __init__(self, scene: Scene, rows: int) -> None:
        self._nodes = scene.devices.get(NODE, ())
        self._rows = [_row(scene, device) for device in self._nodes[:rows]]

    def __rich_console__(self, console: Any, options: ConsoleOptions) -> RenderResult:
        """Yield the table with as many columns as fit."""
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
    # The newest of all attributes: an unchanged one sends no events.
    style = "bold red" if device in scene.silent else ""
    age = Text(f"{scene.now - max(times):.1f}" if times else DASH, style=style if times else "dim")
    return [
        Text(device.rsplit("/", 1)[-1]),
        state_cell(scene.record(device, "State")),
        *(cell(scene.record(device, field.attribute), field.form) for field in NODE_FIELDS),
        age,
    ]


# --- The view ---


MOST_ROWS: Final = 40
_FIXED_LINES: Final = 16
"""Lines of the view that are not rows of devices."""
_SUBARRAY_LINES: Final = 3
"""Lines above and below the subarrays' rows."""
_ALERTS: Final = 3
"""Most alarms shown, the most severe ones."""

_OBS_STATES = {"SCANNING": "bold green", "READY": "green", "IDLE": "cyan", "EMPTY": "dim"} | dict.fromkeys(
    ("FAULT", "ABORTED"), "bold red"
)
_STATUSES = {"COMPLETED": "green", "FAILED": "bold red", "TIMED_OUT": "bold red", "UNDELIVERED": "bold red"}
_HEALTH = {"OK": "bold green", "DEGRADED": "bold yellow", "FAILED": "bold red", "UNKNOWN": "bold magenta"}
_ALARM_STATES = dict.fromkeys(("UNACK", "LTUNK"), "bold red") | {"RTNUN": "yellow", "ACKED": "yellow"}


BUS_FIELDS = (
    Field("records/s", "ingestHeapsRate", number),
    Field("used", "ingestHeapsUsed", number),
    Field("lag", "ingestHeapsLag", number),
    Field("late", "ingestHeapsLate", number),
    Field("workers", "workersAlive", number),
    Field("dead letters", "ingestHeapsDeadLettered", number),
    Field("connected", "connected", lambda value: "yes" if value else "NO"),
    Field("balance", "ingestHeapsBalance", number),
)
SHOWN = {
    NODE: ("State", *(field.attribute for field in NODE_FIELDS)),
    MASTER: ("State", "healthState", "healthInfo", "nodesReporting", "nodesExpected", "heapRate"),
    SUBARRAY: ("State", "obsState", "healthState", "scanID", "lastCommand", "longRunningCommandProgress"),
    ALERTS: (
        *("State", "alertSequence", "activeCount", "unacknowledgedCount", "shelvedCount", "alertRate", "flood"),
        *("activeAlerts", "unacknowledgedAlerts"),
    ),
    CALIBRATION: (
        *("State", "solutionId", "kind", "antennas", "channels", "flaggedFraction", "snr", "age", "transferTime"),
        *("assembling", "lastFailure"),
    ),
    BUS: ("State", *(field.attribute for field in BUS_FIELDS), "deadLetterReasons", "lastError"),
}
"""The attributes of the view, by device class."""


def rows_in(height: int, subarrays: int = 0, *, alerts: bool = False, calibrated: int = 0) -> int:
    """Return the number of nodes with a row on a terminal, beside all other lines."""
    others = _FIXED_LINES + (subarrays + _SUBARRAY_LINES if subarrays else 0) + (_ALERTS + 2 if alerts else 0)
    others += calibrated + 2 if calibrated else 0
    return max(4, min(height - others, MOST_ROWS))


def render(scene: Scene, rows: int = MOST_ROWS) -> RenderableType:
    """Draw the whole view."""
    views = Table.grid(expand=True)
    views.add_column(ratio=3)
    views.add_column(ratio=2)
    views.add_row(_bus(scene), _health(scene))
    subarrays = (_subarrays(scene), Text()) if scene.devices.get(SUBARRAY) else ()
    alerts = (_alerts(scene),) if scene.devices.get(ALERTS) else ()
    calibration = (_calibration(scene),) if scene.devices.get(CALIBRATION) else ()
    return Group(
        _header(scene),
        *([] if scene.silence else [Text()]),
        NodeTable(scene, rows),
        Text(),
        *subarrays,
        views,
        *alerts,
        *calibration,
    )


def summary(scene: Scene) -> str:
    """Return the view in one plain line."""
    at = datetime.fromtimestamp(scene.now, UTC).strftime("%H:%M:%S")

    def figure(device_class: str, attribute: str) -> str:
        record = scene.first(device_class, attribute)
        is_old = record.newest is not None and record.newest.quality is Quality.INVALID
        return DASH if is_old else cell(record, number).plain  # a plain line cannot mark an old value

    silence = scene.silence and f"  NO ANSWER{scene.silence.removeprefix('no answer')}"
    return (
        f"{at} UTC{silence}  SDP {cell(scene.first(MASTER, 'State'), str)} {scene.health()}"
        f"  nodes {figure(MASTER, 'nodesReporting')}/{figure(MASTER, 'nodesExpected')}"
        f"  {figure(MASTER, 'heapRate')} heaps/s  used {figure(BUS, 'ingestHeapsUsed')}"
        f"  lag {figure(BUS, 'ingestHeapsLag')}  late {figure(BUS, 'ingestHeapsLate')}"
        f"  dead letters {figure(BUS, 'ingestHeapsDeadLettered')}"
        f"  balance {figure(BUS, 'ingestHeapsBalance')}  workers {figure(BUS, 'workersAlive')}"
        f"  alarms {figure(ALERTS, 'activeCount')}"
        + "".join(
            f"  {device.rsplit('/', 1)[-1]} {enum_cell(scene.record(device, 'obsState'), scene.obs_states, {})}"
            for device in scene.devices.get(SUBARRAY, ())
        )
    )


def _header(scene: Scene) -> RenderableType:
    shown_state = state_cell(scene.first(MASTER, "State"))
    reporting, expected = scene.first(MASTER, "nodesReporting"), scene.first(MASTER, "nodesExpected")
    health = scene.health()
    left = Text.assemble(
        *(("SDP ", "bold"), shown_state, "  health ", (health, _HEALTH.get(health, "dim")), "  nodes "),
        *(cell(reporting, number, "bold"), " of ", cell(expected, number, "bold"), "  "),
        *(cell(scene.first(MASTER, "heapRate"), number, "bold"), " heaps/s  "),
    )
    line = Table.grid(expand=True)
    line.add_column(no_wrap=True, min_width=left.cell_len)
    line.add_column(justify="right", no_wrap=True)
    at = datetime.fromtimestamp(scene.now, UTC).strftime("%H:%M:%S")
    line.add_row(left, Text(f"{at} UTC  {scene.tango_host}", "dim"))
    return Group(line, Text(scene.silence, "bold red")) if scene.silence else line


def _subarrays(scene: Scene) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), expand=True, header_style="bold")
    for title in ("subarray", "state", "obsState", "health"):
        table.add_column(title, no_wrap=True)
    table.add_column("scan", justify="right", no_wrap=True)
    for title in ("last command", "status"):
        table.add_column(title, no_wrap=True)
    table.add_column("progress", justify="right", no_wrap=True)
    for device in scene.devices[SUBARRAY]:
        table.add_row(*_subarray(scene, device))
    return table


def _subarray(scene: Scene, device: str) -> list[Text]:
    last = scene.record(device, "lastCommand")
    id, name, status = (str(last.newest.value).split() if last.newest and last.newest.value else [DASH] * 3)[:3]
    progress = scene.record(device, "longRunningCommandProgress").newest
    pairs = tuple(progress.value or ()) if progress else ()
    percent = dict(zip(pairs[::2], pairs[1::2], strict=False)).get(id)
    return [
        Text(device.rsplit("/", 1)[-1]),
        state_cell(scene.record(device, "State")),
        enum_cell(scene.record(device, "obsState"), scene.obs_states, _OBS_STATES),
        enum_cell(scene.record(device, "healthState"), scene.health_labels, _HEALTH),
        cell(scene.record(device, "scanID"), lambda value: str(value or DASH)),
        cell(last, lambda _: name),
        cell(last, lambda _: status, _STATUSES.get(status, "yellow" if status != DASH else "dim")),
        Text(f"{percent} %" if percent else DASH, style="" if percent else "dim"),
    ]


def _bus(scene: Scene) -> RenderableType:
    grid = Table.grid(padding=(0, 2), expand=True)
    for _ in range(2):
        grid.add_column(no_wrap=True)
        grid.add_column(justify="right", no_wrap=True)
    cells = [
        (Text(field.title, style="dim"), cell(scene.first(BUS, field.attribute), field.form)) for field in BUS_FIELDS
    ]
    for left, right in zip(cells[::2], cells[1::2], strict=True):
        grid.add_row(*left, *right)
    reasons = scene.first(BUS, "deadLetterReasons").newest
    texts = reasons.value or () if reasons else ()
    counts = [text.removeprefix("ingest.heaps ") for text in texts if text.startswith("ingest.heaps ")]
    error = cell(scene.first(BUS, "lastError"), lambda value: value or "none")
    body = Group(
        grid,
        Text("set aside: " + (", ".join(counts) or "nothing"), no_wrap=True, overflow="ellipsis"),
        Text.assemble("last error: ", error),
    )
    return Panel(
        body, title=Text.assemble("SdpBus ", state_cell(scene.first(BUS, "State"))), border_style="dim", height=9
    )


def _alerts(scene: Scene) -> RenderableType:
    """Show the alarms that need an operator: active ones, and ones without acknowledgement."""

    def count(attribute: str) -> Text:
        return cell(scene.first(ALERTS, attribute), number, "bold")

    found: dict[tuple[str, str], dict[str, Any]] = {}
    for attribute in ("activeAlerts", "unacknowledgedAlerts"):
        newest = scene.first(ALERTS, attribute).newest
        for text in (newest.value or ()) if newest else ():
            alarm = json.loads(text)
            found[alarm["condition"], alarm["source"]] = alarm
    lines = [_alarm(alarm) for alarm in sorted(found.values(), key=urgency, reverse=True)[:_ALERTS]]
    more = f"{len(found) - _ALERTS} more: sdp-facade alerts list" if len(found) > _ALERTS else None
    title = Text.assemble(
        "SdpAlerts ",
        state_cell(scene.first(ALERTS, "State")),
        *("  ", count("activeCount"), " active, ", count("unacknowledgedCount"), " not acknowledged, "),
        *(count("shelvedCount"), " shelved, ", count("alertSequence"), " so far"),
    )
    is_known = scene.first(ALERTS, "activeAlerts").newest is not None
    body = Group(*(lines or [Text("nothing to see to" if is_known else "not known", style="dim")]))
    return Panel(body, title=title, subtitle=more, border_style="red" if found else "dim", height=_ALERTS + 2)


def _alarm(alarm: Mapping[str, Any]) -> Text:
    """Show an alarm in one line, so that the announced number is visible."""
    style = _ALARM_STATES.get(alarm["state"], "")
    name = printable(f"{alarm['condition']} of {alarm['source']}")
    head = printable(f"{alarm['state']:5} {alarm['severity']:8} ")
    text = f"  {printable(alarm['text'])}"
    return Text.assemble((head, style), (name, "bold"), text, no_wrap=True, overflow="ellipsis")


def _calibration(scene: Scene) -> RenderableType:
    """Show the solution of each subarray, and its transfers."""
    devices = scene.devices[CALIBRATION]
    body = Group(*(_solution(scene, device) for device in devices))
    return Panel(body, title="SdpCalibration", border_style="dim", height=len(devices) + 2)


def _solution(scene: Scene, device: str) -> Text:
    def shown(attribute: str, form: Callable[[Any], str], style: str = "") -> Text:
        return cell(scene.record(device, attribute), form, style)

    head = (device.rsplit("/", 1)[-1], "  ", state_cell(scene.record(device, "State")), "  ")
    newest = scene.record(device, "assembling").newest
    under_way = "".join(_progress(json.loads(text)) for text in newest.value or ()) if newest else ""
    solution = scene.record(device, "solutionId").newest
    if solution is None or not solution.value:
        return Text.assemble(*head, ("no solution yet", "dim"), under_way)
    return Text.assemble(
        *head,
        shown("solutionId", str, "bold"),
        *("  ", shown("antennas", lambda names: str(len(names))), " antennas x "),
        *(shown("channels", number), " channels, "),
        *(shown("flaggedFraction", lambda value: f"{value:.1%}"), " flagged, snr "),
        *(shown("snr", lambda value: f"{value:.0f}"), ", "),
        *(shown("age", lambda value: f"{value:.0f} s"), " old"),
        under_way,
    )


def _progress(table: Mapping[str, Any]) -> str:
    return f"  {table['product'].rsplit('/', 1)[-1]} {table['received'] / max(table['size'], 1):.0%}"


def _health(scene: Scene) -> RenderableType:
    newest, title = scene.first(MASTER, "healthInfo").newest, "health reasons"
    if newest is None or newest.value is None:
        body = Text("nothing is heard of SdpMaster", style="dim")
    elif newest.value:
        body = Text("\n".join(newest.value))
        title = f"{title} ({len(newest.value)})"  # some may not fit
    else:
        # The label and its reasons are two events: one may be here before the other.
        body = Text("no complaints" if scene.health() == "OK" else f"health is {scene.health()}")
    return Panel(body, title=title, border_style=_HEALTH.get(scene.health(), "dim"), height=9)


def draw(scene: Scene, file: Path, width: int = 100) -> None:
    """Write the view as SVG, in its terminal form."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(render(scene))
    picture = console.export_svg(title="sdp-facade watch", unique_id="watch")
    # Without fonts from other sites: the reader's own monospaced font suffices.
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))
