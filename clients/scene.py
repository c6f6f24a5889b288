"""What came by Tango events, and how one value of it is shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from clients.events import Record, Records
from facade.reading import Quality

NODE, MASTER, BUS, SUBARRAY = "SdpIngestNode", "SdpMaster", "SdpBus", "SdpSubarray"
ALERTS = "SdpAlerts"
CALIBRATION = "SdpCalibration"

DASH = "-"
_STYLES = {Quality.VALID: "", Quality.WARNING: "yellow", Quality.ALARM: "bold red", Quality.INVALID: "dim strike"}
_STATES = {"ON": "green", "ALARM": "bold red", "FAULT": "bold red", "STANDBY": "yellow", "DISABLE": "dim"}
_NOTHING = Record()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """All that one picture is made of."""

    tango_host: str
    devices: Mapping[str, Sequence[str]]
    """Device names by class."""
    records: Records
    now: float
    """[Unix s]."""
    health_labels: tuple[str, ...]
    """Labels of healthState."""
    obs_states: tuple[str, ...] = ()
    """Labels of obsState."""

    def record(self, device: str, attribute: str) -> Record:
        """Return what came of an attribute, be it nothing."""
        return self.records.get(device, {}).get(attribute, _NOTHING)

    def first(self, device_class: str, attribute: str) -> Record:
        """Return what came of an attribute of the only device of a class."""
        return self.record(next(iter(self.devices.get(device_class, ())), ""), attribute)

    def health(self) -> str:
        """Return healthState's label."""
        newest = self.first(MASTER, "healthState").newest
        return DASH if newest is None or newest.value is None else self.health_labels[int(newest.value)]


def cell(record: Record, form: Callable[[Any], str], style: str = "") -> Text:
    """Show one value so that its quality is seen: INVALID is dim and struck out, or a dash."""
    newest = record.newest
    if newest is None or newest.value is None:
        return Text(DASH, style="dim")
    # A span: the style of the whole text would also strike out the blanks before it.
    return Text.assemble((form(newest.value), _STYLES[newest.quality] or style))


def state_cell(record: Record) -> Text:
    """Show a State in its colour."""
    newest = record.newest
    return cell(record, str, _STATES.get(str(newest.value), "magenta") if newest else "")


def enum_cell(record: Record, labels: Sequence[str], styles: Mapping[str, str]) -> Text:
    """Show the label of an enumeration."""
    newest = record.newest
    label = "" if newest is None or newest.value is None else labels[int(newest.value)]
    return cell(record, lambda _: label, styles.get(label, "yellow"))


@dataclass(frozen=True, slots=True)
class Field:
    """One attribute of a device as it is shown."""

    title: str
    attribute: str
    form: Callable[[Any], str]


def number(value: Any) -> str:
    """Return a number without decimals."""
    return f"{value:,.0f}"
