"""The device classes: what they do beyond showing, which is little."""

from devices.alerts import SdpAlerts
from devices.base import FacadeDevice, device_class
from devices.calibration import SdpCalibration
from devices.commands import CommandedDevice
from devices.quality import SdpQuality
from facade.icd.model import Icd


class SdpIngestNode(FacadeDevice):
    """One ingest node."""


class SdpBus(FacadeDevice):
    """The message bus."""


class SdpMaster(CommandedDevice):
    """SDP as a whole."""


class SdpSubarray(CommandedDevice):
    """One subarray."""


def device_classes(icd: Icd) -> list[type[FacadeDevice]]:
    """Make all Tango classes."""
    bases = (SdpMaster, SdpSubarray, SdpBus, SdpIngestNode, SdpAlerts, SdpCalibration, SdpQuality)
    return [device_class(icd, base) for base in bases]
