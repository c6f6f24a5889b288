"""The summary topic as a flow of a device server: per node for rack servers, over all nodes for SdpMaster."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.flows.telemetry.consistency import inconsistency
from facade.flows.telemetry.ledger import NotificationLedger
from facade.flows.telemetry.partial import Summary
from facade.flows.telemetry.plan import MICRO, Plan
from facade.flows.telemetry.views import AllNodesView, Marker, NodeView
from facade.icd.model import DeviceClass
from facade.outcome import USED, Outcome, Suppressed
from facade.racks import Racks
from facade.reading import Reading
from facade.runtime.flow import DeviceReading, Flow, LastReadings

TOPIC = "ingest.summary"
_EVERY = 0.05
"""Time between looks for closed windows [s]; a window cannot be shown later than this for lack of a look."""

_decode = BatchDecoder(Summary).decode_one
_OTHER_RACK = Suppressed("other-rack")


class _SummaryFlow(Flow):
    """What both flows share: decoding, merging, snapshots."""

    topic = TOPIC
    durable = True

    def __init__(self, ledger: NotificationLedger, plan: Plan, partitions: Sequence[int] | None) -> None:
        self.ledger = ledger
        self._plan = plan
        self.partitions = partitions
        self._looked_at = 0.0

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Merge a summary; see `facade.runtime.flow.Flow`."""
        summary = _decode(record.value)
        if not isinstance(summary, Summary):
            return summary
        if summary.node not in self.ledger.nodes:
            return _OTHER_RACK
        if rejected := inconsistency(summary, record.timestamp_us, self._plan):
            return rejected
        self.ledger.fold(summary, record.timestamp_us / MICRO, count=count)
        return USED

    def as_dict(self) -> dict[str, Any]:
        """Return the totals."""
        return self.ledger.as_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the totals; windows are rebuilt from records."""
        self.ledger.restore(state)

    def _time_to_look(self, now: float) -> bool:
        if abs(now - self._looked_at) < _EVERY:
            return False
        self._looked_at = now
        return True


class NodesFlow(_SummaryFlow):
    """The ingest nodes of one device server.

    Parameters
    ----------
    devices
        Device name by node number.
    """

    def __init__(self, device_class: DeviceClass, plan: Plan, devices: Mapping[int, str], racks: Racks) -> None:
        ledger = NotificationLedger(plan, devices, per_node=True, over_all=False)
        super().__init__(ledger, plan, racks.partitions_of(devices))
        self._devices = dict(devices)
        self._view = NodeView(device_class, plan)
        self._markers: dict[int, Marker] = {}

    def readings(self, now: float, last: LastReadings) -> Iterator[DeviceReading]:
        """Return the readings of the nodes that have something new to say."""
        if not self._time_to_look(now):
            return
        for node, device in self._devices.items():
            marker = self._view.marker(self.ledger, node, now)
            if marker == self._markers.get(node):
                continue
            self._markers[node] = marker
            shown = dict(last.get(device, {}))
            for name, reading in self._view.readings(self.ledger, node, now, shown):
                yield device, name, reading
            yield from _state(device, self.ledger, node, now, self._view.stale_after)


class AllNodesFlow(_SummaryFlow):
    """All ingest nodes together, on one device."""

    def __init__(self, device_class: DeviceClass, plan: Plan, nodes: Iterable[int], device: str) -> None:
        super().__init__(NotificationLedger(plan, nodes, per_node=False, over_all=True), plan, None)
        self._device = device
        self._view = AllNodesView(device_class, plan)
        self._marker: Marker | None = None
        self.reporting: frozenset[int] = frozenset()
        """Nodes in the window shown, when it is not stale."""
        self.heard = 0.0
        """When a worker last wrote about any node [Unix s]."""

    def readings(self, now: float, last: LastReadings) -> Iterator[DeviceReading]:
        """Return the readings over all nodes if there is something new to say."""
        if not self._time_to_look(now):
            return
        self._look(now)
        marker = self._view.marker(self.ledger, now)
        if marker == self._marker:
            return
        self._marker = marker
        shown = dict(last.get(self._device, {}))
        for name, reading in self._view.readings(self.ledger, now, shown):
            yield self._device, name, reading

    def _look(self, now: float) -> None:
        self.heard = max((totals.heard for totals in self.ledger.totals.values()), default=0.0)
        live = self.ledger.all_nodes.live(now, self._view.stale_after)
        shown = self.ledger.all_nodes.shown(now, self._view.stale_after)
        self.reporting = frozenset(shown[1] & live) if shown else frozenset()


def _state(
    device: str, ledger: NotificationLedger, node: int, now: float, stale_after: float
) -> Iterator[DeviceReading]:
    totals = ledger.totals[node]
    if now - totals.heard <= stale_after:
        state, status = "ON", f"Node {node} sends heap notifications of scan {totals.epoch}."
    else:
        since = datetime.fromtimestamp(totals.heard, UTC).isoformat(timespec="seconds") if totals.heard else "the start"
        state, status = "STANDBY", f"Node {node} is silent since {since}: no heap notification for {stale_after:g} s."
    yield device, "State", Reading(state, totals.heard or now)
    yield device, "Status", Reading(status, totals.heard or now)
