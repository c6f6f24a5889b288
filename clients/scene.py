"""The values from Tango events, and the display of a single value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from clients.events import EventRecord, EventRecords
from facade.reading import Quality

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
        return DASH if newest is None or unknown else self.health_labels[int(newest.value)]


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
    label = "" if newest is None or newest.value is None else labels[int(newest.value)]
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
