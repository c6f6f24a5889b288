"""Puts together what a device server needs for the devices that the Tango database gives it.

Whatever only some device classes need is imported where it is put together: most of what a restart takes is the
import of modules, and a server has the devices of one or two classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from facade.bus.port import Record
from facade.clock import Clock
from facade.config import Settings
from facade.errors import ConfigError
from facade.flows.commands.messages import HEARTBEATS
from facade.flows.commands.rules import OBS_STATE
from facade.flows.telemetry.plan import plan
from facade.icd.model import Icd
from facade.racks import Racks
from facade.runtime import event_loop as reading
from facade.runtime.device_state import TOPIC as STATES
from facade.runtime.device_state import DeviceStates
from facade.runtime.event_loop import EventLoop, PeriodicTask, Timing
from facade.runtime.flow import Flow, View
from facade.runtime.publisher import EventSink, Publisher

if TYPE_CHECKING:
    from facade.flows.alerts.flow import AlertsFlow
    from facade.flows.alerts.operator_api import OperatorApi
    from facade.flows.alerts.own import Find, Mine, OwnAlerts, ReportedBefore
    from facade.flows.commands.composition import CommandSender
    from facade.flows.commands.flow import Components
    from facade.flows.commands.gateway import Gateway
    from facade.flows.tables.contents import Contents
    from facade.flows.tables.flow import TablesFlow

INGEST_NODE, MASTER, BUS, SUBARRAY = "SdpIngestNode", "SdpMaster", "SdpBus", "SdpSubarray"
ALERTS, CALIBRATION, QUALITY = "SdpAlerts", "SdpCalibration", "SdpQuality"
_DERIVED = frozenset({OBS_STATE})
"""Reported attributes that are shown together with what is under way."""


class Bus(reading.Bus, Protocol):
    """Opens the bus for one device server."""

    def sender(self) -> "CommandSender":
        """Open what puts commands on the bus, apart from all other traffic."""


@dataclass(frozen=True, slots=True)
class Service:
    """What runs inside one device server."""

    event_loop: EventLoop
    publisher: Publisher
    bus: Bus
    states: DeviceStates
    gateway: "Gateway | None"
    """Present where a device has commands."""
    operator_api: "OperatorApi | None"
    """Present where the alerts are."""
    tables: "TablesFlow | None"
    """Present where tables are shown."""
    contents: "Contents | None"
    """Present with them; whoever starts the event loop gives it a thread as well."""

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
    made = _Parts(icd, settings, devices, bus, instance, clock, versions)
    publisher = Publisher(icd, made.classes, sink, clock)
    event_loop = EventLoop(
        bus,
        made.flows,
        made.views,
        publisher,
        instance=instance,
        clock=clock,
        timing=Timing(eager=SUBARRAY in devices or ALERTS in devices),
        periodic_tasks=made.periodic_tasks,
        effects=made.alerts,
    )
    made.event_loops.append(event_loop)
    return Service(event_loop, publisher, bus, made.states, made.gateway, made.operator_api, made.tables, made.contents)


class _Parts:
    """The flows and views of one device server, wired to each other."""

    def __init__(
        self,
        icd: Icd,
        settings: Settings,
        devices: Mapping[str, Sequence[str]],
        bus: Bus,
        instance: str,
        clock: Clock,
        versions: Mapping[str, str],
    ) -> None:
        self.flows: list[Flow] = []
        self.views: list[View] = []
        self.periodic_tasks: list[PeriodicTask] = []
        self.alerts: AlertsFlow | None = None
        self.operator_api: OperatorApi | None = None
        self.tables: TablesFlow | None = None
        self.contents: Contents | None = None
        self.gateway: Gateway | None = None
        self._before: ReportedBefore | None = None
        self._components: Components | None = None
        self.event_loops: list[EventLoop] = []
        """The one event loop, once it is there: whoever asks what has been read asks later."""
        self.classes = {device: name for name, names in devices.items() for device in names}
        self._icd, self._bus, self._clock = icd, bus, clock
        self._heaps = plan(icd, "ingest.heaps")
        self.states = DeviceStates(icd, self.classes, derived=_DERIVED)
        if nodes := devices.get(INGEST_NODE):
            self._add_nodes(settings, nodes)
        if commanded := [device for device, name in self.classes.items() if icd.classes[name].commands]:
            self._add_commands(commanded, instance, versions.get("versionId", ""))
        for device in devices.get(ALERTS, ()):
            self._add_alerts(device, instance, versions.get("versionId", ""))
        if calibrated := devices.get(CALIBRATION, ()):
            self._add_tables(settings, calibrated, versions.get("versionId", ""))
        if measured := devices.get(QUALITY, ()):
            self._add_quality(measured, versions.get("versionId", ""))
        if devices.get(MASTER) or devices.get(BUS):
            self._add_control(settings, devices, versions)

    def _has_read(self, *topics: str) -> bool:
        return bool(self.event_loops) and all(self.event_loops[0].has_read(topic) for topic in topics)

    def _add_nodes(self, settings: Settings, devices: Sequence[str]) -> None:
        from facade.flows.telemetry.flow import NodesFlow

        by_number = {node_number(device, settings): device for device in devices}
        racks = Racks(settings.rack_size, self._icd.topics["ingest.summary"].partitions)
        self.flows.append(NodesFlow(self._icd.classes[INGEST_NODE], self._heaps, by_number, racks))

    def _add_commands(self, devices: Sequence[str], instance: str, version: str) -> None:
        from facade.flows.commands.composition import commands

        made = commands(
            self._icd,
            {device: self._icd.classes[self.classes[device]] for device in devices},
            self.states,
            self._bus.health,
            self._bus.sender(),
            self._has_read,
            self._master_state,
            instance=instance,
            version=version,
            clock=self._clock,
        )
        self.flows += made.flows
        self.views += made.views
        self.periodic_tasks.append(made.periodic_tasks)
        self.gateway, self._components = made.gateway, made.components

    def _add_alerts(self, device: str, instance: str, version: str) -> None:
        from facade.flows.alerts.flow import AlertsFlow
        from facade.flows.alerts.messages import ALERTS as ALERTS_TOPIC
        from facade.flows.alerts.operator_api import OperatorApi
        from facade.flows.alerts.view import AlertsView

        self.alerts = flow = AlertsFlow(self._icd, device)
        self.flows.append(flow)

        def known() -> bool:
            return self._has_read(ALERTS_TOPIC)

        self.views.append(AlertsView(self._icd, flow, self._bus.health, known, version))
        self.operator_api = OperatorApi(flow, self._bus.sender(), ready=known, origin=instance, clock=self._clock)

    def _add_tables(self, settings: Settings, devices: Sequence[str], version: str) -> None:
        from facade.flows.tables.composition import calibration

        bus, clock = self._bus, self._clock
        made = calibration(self._icd, settings, devices, bus, self._has_read, self._tell, version=version, clock=clock)
        self.flows.append(made.tables)
        self.views += made.views
        self.tables, self.contents = made.tables, made.contents

    def _add_quality(self, devices: Sequence[str], version: str) -> None:
        from facade.flows.quality.composition import quality

        flow, views = quality(self._icd, devices, self._bus.health, self._has_read, self._tell, version=version)
        self.flows.append(flow)
        self.views += views

    def _tell(self, find: "Find", mine: "Mine", *topics: str) -> "OwnAlerts":
        """Let what is found be told as alerts, once some topics have been read."""
        from facade.flows.alerts.own import OwnAlerts, ReportedBefore

        if self._before is None:
            self._before = ReportedBefore()
            self.flows.append(self._before)
        topics = (*topics, self._before.topic)
        own = OwnAlerts(
            find,
            self._before,
            self._bus.writer(),
            mine=mine,
            known=lambda: self._has_read(*topics),
            clock=self._clock,
        )
        self.periodic_tasks.append(own)
        return own

    def _add_control(
        self, settings: Settings, devices: Mapping[str, Sequence[str]], versions: Mapping[str, str]
    ) -> None:
        from facade.flows.commands.flow import Components
        from facade.flows.commands.view import silences
        from facade.flows.overview.accounts import ReaderAccounts, WorkerAccounts
        from facade.flows.overview.faults import Faults, is_fault
        from facade.flows.overview.views import BusView, MasterView, Sources
        from facade.flows.telemetry.flow import AllNodesFlow

        icd = self._icd
        components = self._components or Components()
        workers, readers = WorkerAccounts(), ReaderAccounts()
        master = next(iter(devices.get(MASTER, ())), "")
        everything = AllNodesFlow(icd.classes[MASTER], self._heaps, range(settings.nodes), master)
        sources = Sources(
            health=self._bus.health,
            workers=workers,
            readers=readers,
            states=self.states,
            states_known=lambda: self._has_read(STATES),
            silences=lambda now: silences(components, now),
            uncontrolled=lambda: self._uncontrolled(master, components),
            expected=frozenset(range(settings.nodes)),
            reporting=lambda: everything.reporting,
        )
        self.flows += [workers, readers]
        self.views += [BusView(device, icd.classes[BUS], sources) for device in devices.get(BUS, ())]
        if master:
            self.flows.append(everything)
            self._master = MasterView(master, icd.classes[BUS], sources, versions)
            self.views.append(self._master)
            faults = Faults(lambda: self._master.condition, sources.streams)
            self._tell(faults.find, is_fault, STATES, workers.topic, readers.topic)

    def _uncontrolled(self, master: str, components: "Components") -> tuple[str, ...]:
        """Return the master if no controller of it is known; one that has fallen silent is, and is told of as such."""
        heard = any(master in beat.devices for beat, _ in components.newest.values())
        return () if heard or not self._has_read(HEARTBEATS) else (master,)

    def _master_state(self) -> str:
        return self._master.state


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
