"""Assembles a device server from the flows of its devices in the Tango database.

Each flow adds its own part: its manifest names the function. These functions import what only their flow needs: module
imports take most of the time of a restart, and a server has the devices of one or two classes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Event
from typing import Any, Protocol, TypeVar

from facade.kernel.bus.offsets import Extent, TopicWatch
from facade.kernel.bus.port import QueueingWriter, Record
from facade.kernel.clock import Clock, Time, today
from facade.kernel.config import Settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import Attribute, Icd, instance_role
from facade.kernel.icd.topic_model import Limits
from facade.kernel.manifest import Isolation, Manifest, load, manifests
from facade.kernel.messages import DeviceComplaint
from facade.kernel.names import SHORT
from facade.kernel.runtime import readers
from facade.kernel.runtime.event_loop import EventLoop, PeriodicTask, Timing
from facade.kernel.runtime.flow import Effects, Fault, FaultKey, Flow, View
from facade.kernel.runtime.health_issues import HealthSource
from facade.kernel.runtime.heartbeats import Heartbeats, SignOfLife
from facade.kernel.runtime.metrics import Figures, MetricFamily
from facade.kernel.runtime.publisher import EventSink, Publisher

Part = TypeVar("Part")

FindFaults = Callable[[Time], Mapping[FaultKey, Fault] | None]
"""Returns the faults at a time; None while they are unknown."""


class Reporter(Protocol):
    """Reports faults to the operators, as alerts."""

    def has_reported(self, key: FaultKey, began: Time) -> bool:
        """Return whether an occurrence that began at some time, or a later one, is on the bus."""


class ServerBus(readers.Bus, Protocol):
    """Opens the bus for one device server."""

    def sender(self) -> Any:
        """Open the sender of commands, apart from all other traffic."""

    def replica_watch(self) -> TopicWatch:
        """Return a watch over the replicas of topics, with requests at long intervals."""

    def open_writer(self, purpose: str) -> QueueingWriter:
        """Open a bulk writer, apart from all other traffic."""


class Server:
    """One device server, with the parts that its flows add.

    Parameters
    ----------
    devices
        Device names by device class.
    sink
        Pushes events; a flow may put another sink before it.
    versions
        Values of version attributes, by attribute name.
    given
        Existing parts, by type; they replace those that a flow would make.
    limits
        Returns the limits of a device's attribute; by default those of the ICD.

    Raises
    ------
    ConfigError
        A device does not fit the deployment.
    """

    def __init__(
        self,
        icd: Icd,
        settings: Settings,
        devices: Mapping[str, Sequence[str]],
        sink: EventSink,
        bus: ServerBus,
        *,
        instance: str,
        clock: Clock,
        versions: Mapping[str, str],
        given: Mapping[type[Any], Any] | None = None,
        limits: Callable[[str, Attribute], Limits | None] = lambda _, attribute: attribute.limits,
    ) -> None:
        self.icd, self.settings, self.devices, self.bus, self.clock = icd, settings, devices, bus, clock
        self.sink, self.limits = sink, limits
        self.heard_at: Callable[[Time], Time] = Flow.heard_at
        """See `facade.kernel.runtime.flow.Flow.heard_at`; a flow may put another one there."""
        self.instance, self.versions = instance, versions
        self.classes = {device: name for name, names in devices.items() for device in names}
        self.flows: list[Flow] = []
        self.views: list[View] = []
        self.effects: Effects | None = None
        self.periodic_tasks: list[PeriodicTask] = []
        self.threads: list[Callable[[Event], None]] = []
        """Functions that run beside the event loop until the event is set, each in its own thread."""
        self.is_eager = False
        """Whether the event loop processes each record at once instead of waiting for more."""
        self.sign_of_life = SignOfLife(instance, "server", bus.writer().send, today(clock), complaints=self._complaints)
        self.metrics = [
            MetricFamily(
                f"{SHORT}_device_state",
                "1 for the State that a device shows.",
                ("device_class", "device", "state"),
                partial(self._shown, "State"),
            ),
            MetricFamily(
                f"{SHORT}_device_health",
                "1 for the healthState that a device shows.",
                ("device_class", "device", "health"),
                partial(self._shown, "healthState"),
            ),
        ]
        """Metrics for Prometheus beside the accounts."""
        self.complaints: list[Callable[[], Iterable[DeviceComplaint]]] = []
        """Complaints of flows about devices, for the heartbeats."""
        self._parts: dict[type[Any], Any] = dict(given or {})
        self._event_loop: EventLoop | None = None
        self._publisher: Publisher | None = None
        self._assemble()

    @property
    def version(self) -> str:
        """Return the version of this release."""
        return self.versions.get("versionId", "")

    def only_device(self, name: str) -> str:
        """Return the device of a class of which an instance has one."""
        device, *more = self.devices[name]
        if more:
            raise ConfigError(
                f"devices of {name} in instance {self.instance}: expected one, got {', '.join((device, *more))}"
            )
        return device

    def devices_with_commands(self) -> list[str]:
        """Return the devices whose class has commands."""
        return [device for device, name in self.classes.items() if self.icd.classes[name].commands]

    def has_read(self, *topics: str) -> bool:
        """Return whether all has been read that stood on some topics at the start."""
        return self._event_loop is not None and all(map(self._event_loop.has_read, topics))

    def is_at_end(self, *topics: str) -> bool:
        """Return whether some topics have no unread records; see `facade.kernel.runtime.event_loop.EventLoop`."""
        return self._event_loop is not None and all(map(self._event_loop.is_at_end, topics))

    def has_read_to(self, topic: str, now: Extent) -> bool:
        """Return whether a topic has been read to an end; see `facade.kernel.runtime.event_loop.EventLoop`."""
        return self._event_loop is not None and self._event_loop.has_read_to(topic, now)

    def state(self, device: str) -> str:
        """Return the Tango State that a device of this server shows; from any thread."""
        shown = {} if self._publisher is None else self._publisher.last.get(device, {})
        return str(shown["State"].value) if "State" in shown else "UNKNOWN"

    def _shown(self, attribute: str) -> Figures:
        """Return what each device shows for an attribute with labels as values, as figures for Prometheus."""
        shown = {} if self._publisher is None else self._publisher.shown_of(attribute)
        return {(self.classes[device], device, str(one.value)): 1.0 for device, one in shown.items()}

    def share(self, kind: type[Part], make: Callable[[], Part] | None = None) -> Part:
        """Return the shared object of a type, made at the first request; devices also find it by its type."""
        if kind not in self._parts:
            self._parts[kind] = (make or kind)()
        part: Part = self._parts[kind]
        return part

    def find(self, kind: type[Part]) -> Part | None:
        """Return the shared object of a type, if there is one."""
        return self._parts.get(kind)

    def heartbeats(self) -> Heartbeats:
        """Return the flow of heartbeats, and read it from now on."""
        if (found := self.find(Heartbeats)) is None:
            found = self.share(Heartbeats)
            self.flows.append(found)
        return found

    def report(
        self,
        find: FindFaults,
        finds: Callable[[FaultKey], bool],
        *topics: str,
        judges: Callable[[FaultKey], bool] = lambda key: True,
        others: str = "",
    ) -> Reporter:
        """Raise and clear alerts about faults, once some topics have been read.

        Parameters
        ----------
        finds
            Whether this reporter finds faults of a condition and source; other reporters of this server have their own.
        judges
            Whether the absence of a fault from what `find` returned last means that it has gone; otherwise its alert
            stays.
        others
            Source of one alarm per condition about the faults beyond the limit; empty text: there is no limit.
        """
        (reference,) = [one.reporter for one in manifests() if one.reporter is not None]
        reporter: Reporter = load(reference)(self, find, finds, topics, judges, others)
        return reporter

    def health_sources(self) -> list[HealthSource]:
        """Return the health source of each flow that has one."""
        return [load(one.health)(self) for one in manifests() if one.health is not None]

    def sender(self) -> Any:
        """Open the sender of commands; the event loop serves it, as it may be used once a day."""
        sender = self.bus.sender()
        self.periodic_tasks.append(sender)
        return sender

    def send_durably(self, record: Record) -> None:
        """Write a record; see `facade.kernel.bus.port.Writer`."""
        self.bus.writer().send_durably(record, self.settings.command_timeout)

    @property
    def event_loop(self) -> EventLoop:
        """Return the event loop of the server, assembled at the first request."""
        assert self._event_loop is not None
        return self._event_loop

    @property
    def publisher(self) -> Publisher:
        """Return the publisher of the server, assembled at the first request."""
        assert self._publisher is not None
        return self._publisher

    def _assemble(self) -> None:
        """Let the flows add their parts, and make the event loop."""
        for manifest in manifests():
            if manifest.compose is not None and (manifest.for_all or self._has_devices_of(manifest)):
                load(manifest.compose)(self)
        for flow in self.flows:
            flow.heard_at = self.heard_at
        self._publisher = Publisher(self.icd, self.classes, self.sink, self.clock)
        self._event_loop = EventLoop(
            self.bus,
            self.flows,
            self.views,
            self._publisher,
            instance=self.instance,
            clock=self.clock,
            timing=Timing(eager=self.is_eager),
            # Last, as the final heartbeat ends everything.
            periodic_tasks=[*self.periodic_tasks, self.sign_of_life],
            effects=self.effects,
            isolation=isolation(),
            left_to_others=self._left_to_others(),
        )

    def _left_to_others(self) -> set[str]:
        """Return the topics whose bad records another device server puts on the dead-letter topic."""
        # If the deployment does not run that role, each reader does.
        here = self.settings.left_out | {instance_role(self.icd.classes[name].instance) for name in self.devices}
        return {topic for one in manifests() for topic, role in one.set_aside_by.items() if role not in here}

    def _complaints(self) -> list[DeviceComplaint]:
        return [one for find in self.complaints for one in find()]

    def _has_devices_of(self, manifest: Manifest) -> bool:
        if manifest.for_commands and self.devices_with_commands():
            return True
        attributes = (one for name in self.devices for one in self.icd.classes[name].attributes)
        if manifest.for_sources and any(one.source is not None for one in attributes):
            return True
        return any(self.devices.get(name) for name in manifest.device_classes)


def isolation() -> dict[str, Isolation]:
    """Return the isolation of readers, by topic."""
    return {topic: level for one in manifests() for topic, level in one.topics.items()}
