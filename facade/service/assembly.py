"""Puts together what a device server needs for the devices that the Tango database gives it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from facade.bus.port import Record
from facade.clock import Clock
from facade.config import Settings
from facade.control.accounts import ReaderAccounts, WorkerAccounts
from facade.control.admin_mode import AdminModes
from facade.control.panels import BusPanel, MasterPanel, Sources
from facade.errors import ConfigError
from facade.flow import Flow, Panel
from facade.icd.model import Icd
from facade.notifications.flow import AllNodesFlow, NodesFlow
from facade.notifications.plan import Plan, plan
from facade.racks import Racks
from facade.service.publisher import EventSink, Publisher
from facade.service.pump import Bus, Pump

INGEST_NODE, MASTER, BUS = "SdpIngestNode", "SdpMaster", "SdpBus"


@dataclass(frozen=True, slots=True)
class Service:
    """What runs inside one device server."""

    pump: Pump
    publisher: Publisher
    bus: Bus
    modes: AdminModes | None
    """Present where a device has an adminMode."""

    def send_durably(self, record: Record, timeout: float) -> None:
        """Write a record; see `facade.bus.port.Writer`."""
        self.bus.writer().send_durably(record, timeout)


def assemble(
    icd: Icd,
    settings: Settings,
    devices: Mapping[str, Sequence[str]],
    sink: EventSink,
    bus: Bus,
    *,
    instance: str,
    clock: Clock,
    versions: Mapping[str, str],
) -> Service:
    """Make the service for some devices.

    Parameters
    ----------
    devices
        Device names by device class.
    versions
        Values of SdpMaster's version attributes, by attribute name.

    Raises
    ------
    ConfigError
        A device name does not say which node it is, or the node is not part of the deployment.
    """
    heaps = plan(icd, "ingest.heaps")
    racks = Racks(settings.rack_size, icd.topics["ingest.summary"].partitions)
    flows: list[Flow] = []
    panels: list[Panel] = []
    modes = None
    if nodes := devices.get(INGEST_NODE):
        by_number = {node_number(device, settings): device for device in nodes}
        flows.append(NodesFlow(icd.classes[INGEST_NODE], heaps, by_number, racks))
    if devices.get(MASTER) or devices.get(BUS):
        modes = AdminModes(devices.get(MASTER, ()), icd.enums["AdminMode"])
        flows += _control(icd, settings, devices, heaps, modes, bus, versions, panels, lambda: pump.has_read("state"))
    classes = {device: name for name, names in devices.items() for device in names}
    publisher = Publisher(icd, classes, sink, clock)
    pump = Pump(bus, flows, panels, publisher, instance=instance, clock=clock)
    return Service(pump, publisher, bus, modes)


def _control(
    icd: Icd,
    settings: Settings,
    devices: Mapping[str, Sequence[str]],
    heaps: Plan,
    modes: AdminModes,
    bus: Bus,
    versions: Mapping[str, str],
    panels: list[Panel],
    modes_known: Callable[[], bool],
) -> list[Flow]:
    """Make the flows of the control instance and add its panels."""
    workers, readers = WorkerAccounts(), ReaderAccounts()
    master = next(iter(devices.get(MASTER, ())), "")
    everything = AllNodesFlow(icd.classes[MASTER], heaps, range(settings.nodes), master)
    sources = Sources(
        health=bus.health,
        workers=workers,
        readers=readers,
        modes=modes,
        modes_known=modes_known,
        expected=frozenset(range(settings.nodes)),
        reporting=lambda: everything.reporting,
    )
    panels += [BusPanel(device, icd.classes[BUS], sources) for device in devices.get(BUS, ())]
    if not master:
        return [workers, readers]
    panels.append(MasterPanel(master, icd.classes[BUS], sources, versions))
    return [everything, workers, readers, modes]


def node_number(device: str, settings: Settings) -> int:
    """Give the number of the ingest node that a device stands for: the last part of its name."""
    last = device.rsplit("/", 1)[-1]
    if not last.isdigit():
        raise ConfigError(f"device {device}: expected a node number as the last part of the name, got {last!r}")
    if int(last) >= settings.nodes:
        raise ConfigError(
            f"device {device}: node {int(last)} is not part of this deployment, which has nodes 0 to"
            f" {settings.nodes - 1}; raise the setting `nodes` (SDP_INGEST_NODES) or delete the device"
        )
    return int(last)
