"""What a device server needs for SdpQuality: the metrics, what is shown of them, and their alerts."""

from collections.abc import Iterator

from facade.flows.quality.excesses import Excesses
from facade.flows.quality.flow import CLASS, QualityFlow
from facade.flows.quality.view import QualityView, subarray_of
from facade.instances import devices_of, number_of
from facade.messages import DeviceComplaint
from facade.printable import listed
from facade.runtime.composition import Server
from facade.runtime.device_state import OBS_STATE

_MOST_NAMES = 8
"""Of metrics that have stopped."""


def compose(server: Server) -> None:
    """Add the quality metrics to a device server."""
    devices, health = server.devices[CLASS], server.bus.health
    flow = QualityFlow(server.icd, [subarray_of(device) for device in devices])
    server.flows.append(flow)

    def known() -> bool:
        return server.has_read(flow.topic)

    entry = server.icd.classes[CLASS]
    views = [QualityView(device, entry, flow, health, known=known, version=server.version) for device in devices]
    server.views += views
    excesses = Excesses(views, health)
    server.report(excesses.find, excesses.is_excess, flow.topic)
    subarrays = {
        number_of(one, device): device
        for one in server.icd.classes.values()
        if any(attribute.name == OBS_STATE for attribute in one.attributes)
        for names in devices_of(one, server.settings).values()
        for device in names
    }
    by_device = dict(zip(devices, views, strict=True))

    def stopped() -> Iterator[DeviceComplaint]:
        for device, view in by_device.items():
            if view.stopped:
                text = f"metrics have stopped: {listed(view.stopped, _MOST_NAMES)}"
                yield DeviceComplaint(device, text, subarrays.get(view.subarray, ""))

    server.complaints.append(stopped)
