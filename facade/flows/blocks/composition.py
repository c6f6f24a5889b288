"""What a device server needs for processing blocks: the flow, and what subarrays and SDP as a whole show of it."""

from collections.abc import Iterator, Mapping

from facade.flows.blocks.flow import Blocks, BlocksFlow
from facade.flows.blocks.view import BlocksView, values
from facade.instances import devices_of, number_of
from facade.printable import excerpt
from facade.reading import Value
from facade.runtime.composition import Server
from facade.runtime.health_issues import DEGRADED, ORIGIN, HealthIssue, HealthSource
from facade.severities import ALARM

SUBARRAY, MASTER = "SdpSubarray", "SdpMaster"
_CONDITION = "processingBlockFailed"


def compose(server: Server) -> None:
    """Add the processing blocks to a device server."""
    subarray = server.icd.classes[SUBARRAY]
    own = server.devices.get(SUBARRAY, ())
    # Of a server with SDP as a whole, those of all subarrays.
    every = [name for names in devices_of(subarray, server.settings).values() for name in names]
    wanted = every if server.devices.get(MASTER) else own
    devices = {number: device for device in wanted if (number := number_of(subarray, device)) is not None}
    flow = server.share(BlocksFlow, lambda: BlocksFlow(devices))
    server.flows.append(flow)
    server.views += [
        BlocksView(device, flow.subarrays[number], lambda: server.has_read(flow.topic))
        for number, device in devices.items()
        if device in own
    ]


class BlocksHealth(HealthSource):
    """Which processing blocks have failed; see `facade.runtime.health_issues.HealthSource`."""

    conditions: Mapping[str, str] = {_CONDITION: f"{ORIGIN}/subarray/"}

    def __init__(self, server: Server) -> None:
        self._server = server
        self._shown: tuple[int, Mapping[str, Value]] = (-1, {})
        """What SdpMaster shows, and up to which change of the blocks."""

    def _subarrays(self) -> dict[int, Blocks]:
        flow = self._server.find(BlocksFlow)
        return flow.subarrays if flow is not None and self._server.has_read(flow.topic) else {}

    def issues(self, now: float) -> Iterator[HealthIssue]:
        """Return the subarrays with failed blocks in the execution block that was heard of last."""
        for number, blocks in self._subarrays().items():
            if failures := blocks.failures():
                newest = failures[-1]
                more = f" and {len(failures) - 1} more" * (len(failures) > 1)
                text = f"subarray {number:02d}: processing block {newest.pb_id}{more} failed: {excerpt(newest.text)}"
                key = _CONDITION, f"{ORIGIN}/subarray/{number:02d}"
                yield HealthIssue(DEGRADED, text, key, ALARM, values={"failed": float(len(failures))})

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return what SdpMaster shows of the blocks of all subarrays."""
        known = self._subarrays()
        if not known or device_class != MASTER:
            return {}
        if (version := sum(one.version for one in known.values())) != self._shown[0]:
            self._shown = version, values(known.values())
        return self._shown[1]
