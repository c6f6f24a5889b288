"""What a device server needs for SdpQuality: the metrics, what is shown of them, and their alerts."""

from facade.flows.quality.excesses import Excesses
from facade.flows.quality.flow import CLASS, QualityFlow
from facade.flows.quality.view import QualityView, subarray_of
from facade.runtime.composition import Server


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
