"""What the ICD says that clients have to show of an attribute."""

from typing import NamedTuple

from facade.kernel.icd.model import Attribute
from facade.kernel.icd.units import unit_of
from tests.support.deployment import ICD

FAMILIES = {
    "SdpAlerts": "mid-sdp/alerts/0",
    "SdpBus": "mid-sdp/bus/0",
    "SdpCalibration": "mid-sdp/calibration/01",
    "SdpIngestNode": "mid-sdp/ingest/0000",
    "SdpMaster": "mid-sdp/control/0",
    "SdpLogs": "mid-sdp/logs/0",
    "SdpMirror": "mid-sdp/mirror/01",
    "SdpQuality": "mid-sdp/quality/01",
    "SdpSubarray": "mid-sdp/subarray/01",
}
"""A device of each class."""


class Shown(NamedTuple):
    """An attribute, as a client is to show it."""

    label: str
    unit: str
    type: str
    labels: tuple[str, ...]


def expected() -> dict[str, Shown]:
    return {
        f"{device}/{entry.name}": shown(entry)
        for name, device in FAMILIES.items()
        for entry in ICD.classes[name].attributes
        if not entry.each
    }


def shown(entry: Attribute) -> Shown:
    labels = ICD.enums[entry.enum] if entry.enum is not None else ()
    return Shown(entry.label, unit_of(ICD, entry), entry.type, tuple(labels))
