"""What a device server needs for SdpQuality: the metrics, what is shown of them, and their alerts."""

from collections.abc import Callable, Sequence

from facade.bus.port import BusHealth
from facade.flows.alerts.own import OwnAlerts
from facade.flows.quality.excesses import Excesses
from facade.flows.quality.flow import CLASS, QualityFlow
from facade.flows.quality.view import QualityView, subarray_of
from facade.icd.model import Icd


def quality(
    icd: Icd,
    devices: Sequence[str],
    health: BusHealth,
    has_read: Callable[..., bool],
    tell: Callable[..., OwnAlerts],
    *,
    version: str,
) -> tuple[QualityFlow, list[QualityView]]:
    """Make them.

    Parameters
    ----------
    has_read
        Whether all has been read that stood on some topics at the start.
    tell
        Lets what is found be told as alerts.
    """
    flow = QualityFlow(icd, [subarray_of(device) for device in devices])

    def known() -> bool:
        return has_read(flow.topic)

    entry = icd.classes[CLASS]
    views = [QualityView(device, entry, flow, health, known=known, version=version) for device in devices]
    excesses = Excesses(views, health)
    tell(excesses.find, excesses.is_excess, flow.topic)
    return flow, views
