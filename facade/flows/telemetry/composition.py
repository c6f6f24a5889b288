"""What a device server needs for windowed telemetry: of the groups that it shows, or of all groups together."""

from collections.abc import Iterator, Mapping

from facade.config import Settings
from facade.errors import ConfigError
from facade.flows.telemetry.flow import AllNodesFlow, NodesFlow
from facade.flows.telemetry.plan import plan
from facade.racks import Racks
from facade.reading import Value
from facade.runtime.composition import Server
from facade.runtime.flow import Fault, FaultKey
from facade.runtime.health import ORIGIN, Complaint
from facade.runtime.stream_accounts import WorkerAccounts

CLASS, OVERVIEW, BUS = "SdpIngestNode", "SdpMaster", "SdpBus"
HEAPS, SUMMARY = "ingest.heaps", "ingest.summary"
_MOST_LISTED = 20


def compose(server: Server) -> None:
    """Add the ingest nodes to a device server."""
    by_number = {node_number(device, server.settings): device for device in server.devices[CLASS]}
    racks = Racks(server.settings.rack_size, server.icd.topics[SUMMARY].partitions)
    server.flows.append(NodesFlow(server.icd.classes[CLASS], plan(server.icd, HEAPS), by_number, racks))


class TelemetryHealth:
    """Which nodes and workers are silent, and what is shown of all nodes; see `facade.runtime.health.Health`."""

    def __init__(self, server: Server) -> None:
        self._expected = frozenset(range(server.settings.nodes))
        self._accounts = server.share(WorkerAccounts)
        self._within = server.icd.classes[BUS].stale_after
        self._clock = server.clock
        self._flow: AllNodesFlow | None = None
        for device in server.devices.get(OVERVIEW, ()):
            plan_ = plan(server.icd, HEAPS)
            self._flow = AllNodesFlow(server.icd.classes[OVERVIEW], plan_, self._expected, device)
            server.flows.append(self._flow)

    @property
    def _reporting(self) -> frozenset[int]:
        return frozenset() if self._flow is None else self._flow.reporting

    def _workers(self, now: float) -> int:
        return self._accounts.workers_alive(HEAPS, now, self._within)

    def complaints(self, now: float) -> Iterator[Complaint]:
        """Return that no worker is alive, and which nodes are silent."""
        if not self._workers(now):
            text = "no aggregate worker alive: notifications are kept on the bus but not shown"
            yield Complaint("FAILED", text, of_bus=True)
        if silent := self._expected - self._reporting:
            listed = ", ".join(map(str, sorted(silent)[:_MOST_LISTED]))
            more = " ..." if len(silent) > _MOST_LISTED else ""
            yield Complaint("DEGRADED", f"{len(silent)} of {len(self._expected)} ingest nodes silent: {listed}{more}")

    def faults(self, now: float) -> dict[FaultKey, Fault]:
        """Return the same, one fault for each source."""
        found: dict[FaultKey, Fault] = {}
        if not self._workers(now):
            found["workerGone", ORIGIN] = Fault("CRITICAL", "no aggregate worker alive: expected at least one")
        if self._reporting:  # when no node speaks, none is observing
            for node in sorted(self._expected - self._reporting):
                text = f"ingest node {node} says nothing while {len(self._reporting)} others do"
                found["streamSilent", f"ingest/{node:04d}"] = Fault("ALARM", text)
        return found

    def finds(self, key: FaultKey) -> bool:
        """Return whether it is about a worker or a node."""
        condition, source = key
        return key == ("workerGone", ORIGIN) or (condition == "streamSilent" and source.startswith("ingest/"))

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return the nodes of the deployment for SdpMaster, and the workers for SdpBus."""
        if device_class == BUS:
            return {"workersAlive": self._workers(self._clock.now())}
        if device_class == OVERVIEW:
            return {
                "nodesExpected": len(self._expected),
                "nodesReporting": len(self._reporting),
                "nodesSilent": tuple(sorted(self._expected - self._reporting)),
            }
        return {}


def node_number(device: str, settings: Settings) -> int:
    """Return the number of the ingest node that a device stands for: the last part of its name."""
    last = device.rsplit("/", 1)[-1]
    if not last.isdigit():
        raise ConfigError(f"device {device}: expected a node number as the last part of the name, got {last!r}")
    if int(last) >= settings.nodes:
        raise ConfigError(
            f"device {device}: node {int(last)} is not part of this deployment, which has nodes 0 to"
            f" {settings.nodes - 1}; raise the setting `nodes` (SDP_INGEST_NODES) or delete the device"
        )
    return int(last)
