"""The device of a subarray's data quality: all that it shows comes from the event loop."""

from devices.base import FacadeDevice


class SdpQuality(FacadeDevice):
    """The quality of the data of one subarray."""
