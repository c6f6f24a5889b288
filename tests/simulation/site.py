"""A deployment of the facade: its processes, each started again when it ends, on one model of the brokers."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from facade.flows.telemetry.plan import windowed
from facade.flows.telemetry.worker import telemetry_worker
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaStreamWriter, KafkaWriter
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.port import BusHealth, Fenced
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.instances import devices_of
from facade.kernel.reading import Quality, Reading
from facade.kernel.runtime.columns import ReadingColumn
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.heartbeats import INTERVAL, SignOfLife
from facade.kernel.runtime.worker_process import Worker as WorkerLoop
from tests.simulation.alerting import Alerting
from tests.simulation.broker import Broker
from tests.simulation.clients import clients
from tests.simulation.commanding import Commanding, WitnessedBus
from tests.simulation.controllers import GROUP as CONTROLLERS
from tests.simulation.controllers import Controllers, draw_controllers
from tests.simulation.disks import Disk
from tests.simulation.groups import Groups
from tests.simulation.logs import Entry, Partition
from tests.simulation.measuring import Measuring
from tests.simulation.mirroring import Mirroring
from tests.simulation.network import Network
from tests.simulation.processing import Processing
from tests.simulation.scheduler import START, HostClock, Process, Scheduler
from tests.simulation.shipping import Shipping
from tests.simulation.shown import Pace
from tests.simulation.spooling import NODES, Spooling
from tests.simulation.tabling import Tabling
from tests.simulation.threads import Event
from tests.simulation.trace import Trace
from tests.support.heaps import encoded, heap

ICD: Icd = load()
_ATTRIBUTES = {(name, one.name): one for name, entry in ICD.classes.items() for one in entry.attributes}
FLOWS = ("telemetry", "commands", "alerts", "tables", "quality", "blocks", "logs", "mirror", "spools", "references")
_SERVERS = {
    "telemetry": "ingest-00", "spools": "ingest-00", "commands": "subarray", "tables": "calibration",
    "blocks": "subarray", "references": "calibration",
}  # fmt: skip
"""Instance of the device server of a flow, where it is not called as the flow."""
GROUPS = {
    "telemetry": "aggregate", "spools": "aggregate", "commands": CONTROLLERS, "alerts": "alerts-intake",
    "tables": "tables-assemble", "references": "tables-assemble", "logs": "logs-aggregate",
}  # fmt: skip
"""Consumer groups whose offsets are set back and lost."""
RESTART = 2.0
"""Longest time until a process that ended is started again [s]."""


class Sink:
    """Takes what a device server shows, in the place of Tango; see `facade.kernel.runtime.publisher.EventSink`."""

    def __init__(self, site: "Site", process: Process) -> None:
        self._site, self._process = site, process

    def show(self, device: str, attribute: str, reading: Reading) -> bool:
        """Take what clients read from now on."""
        if self._site.is_first(self._process):
            self._site.shown(self._process, device, attribute, reading)
        return True

    def show_column(self, column: ReadingColumn) -> list[bool]:
        """Take what clients read from now on."""
        for device, reading in zip(column.devices, column.arrays().readings(), strict=True):
            if reading is not None and reading != self._site.readings.get((device, column.attribute)):
                self.show(device, column.attribute, reading)
        return [True] * len(column.devices)

    def push(self, device: str, attribute: str, reading: Reading) -> bool:
        if self._site.is_first(self._process):
            self._site.event(self._process, device, attribute, reading)
            if attribute == "lastAlert":
                self._site.alerting.event(self._site, reading)
        return True


class Site:
    """All processes of a deployment.

    Parameters
    ----------
    flows
        What runs, of `FLOWS`; the server of SdpMaster and SdpBus always does.
    controllers
        Those of the commands; None: drawn from the seed.
    """

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 4,
        rate: float = 2.0,
        flows: Collection[str] = FLOWS,
        controllers: Controllers | None = None,
    ) -> None:
        self.scheduler = Scheduler(seed)
        self.trace = Trace(self.scheduler)
        self.nodes = nodes
        """Nodes that send straight to the bus."""
        self.settings = Settings(prefix="s.", nodes=nodes + (NODES if "spools" in flows else 0))
        self.network = Network(self.scheduler, self.trace.note)
        self.network.kill = self.kill
        self.broker = Broker(self.scheduler, ICD.topics, self.settings.prefix, self.trace.note)
        self.groups = Groups(self.scheduler, self.broker, self.trace.note)
        self.rate = rate
        """Notifications of each node per second."""
        self.is_sending = True
        self.sent: Counter[int] = Counter()
        """Notifications by node that are on the bus."""
        self.readings: dict[tuple[str, str], Reading] = {}
        self.pushed: Counter[tuple[str, str]] = Counter()
        self.pace = Pace()
        self.processes: dict[str, Process] = {}
        self.servers: dict[str, Server] = {}
        self.classes: dict[str, str] = {}
        """Device class by device."""
        self.workers: dict[str, WorkerLoop] = {}
        self.commanding, self.alerting = Commanding(), Alerting()
        self.controllers = controllers or draw_controllers(seed)
        self.tabling, self.measuring = Tabling(), Measuring()
        self.processing, self.shipping, self.mirroring = Processing(), Shipping(), Mirroring()
        self.spooling = Spooling()
        self.disks: dict[str, Disk] = defaultdict(Disk)
        """Of those processes that keep something on one."""
        self.watchers: list[Callable[[str, str, Reading | None, Reading], None]] = []
        """Told of each reading: device, attribute, the one before, and this one."""
        self.asked: set[str] = set()
        """Workers that are to stop in order."""
        self.crashes: list[tuple[str, BaseException]] = []
        """Processes that ended by themselves, and were not to."""
        self.others: list[Process] = []
        """Started by mistake, beside the one of the same name."""
        self.flows = flows
        self.bodies: dict[str, Callable[[Process], None]] = {}
        """What each process does, by its name."""
        for name in ("control", *(_SERVERS.get(flow, flow) for flow in flows)):
            self.bodies[name] = partial(self._server, name)
        if "telemetry" in flows:
            self.bodies |= {f"node-{node}": partial(self._node, node) for node in range(nodes)}
        if not {"telemetry", "spools"}.isdisjoint(flows):
            self.bodies |= {f"aggregate-{slot}": partial(self._worker, str(slot)) for slot in range(2)}
        if "commands" in flows:
            self.controllers.add(self)
        parts = {"alerts": self.alerting, "tables": self.tabling, "quality": self.measuring, "blocks": self.processing}
        parts |= {"logs": self.shipping, "mirror": self.mirroring, "spools": self.spooling, "references": self.tabling}
        for flow, part in parts.items():
            if flow in flows:
                part.add(self)
        self.network.spared = {name for name in self.bodies if name.startswith("node")}
        for name in self.bodies:
            self.start(name)
        self.scheduler.at(30.0, self._tidy)

    def fall_quiet(self) -> None:
        self.is_sending = self.commanding.is_giving = self.alerting.is_raising = False
        self.tabling.is_sending = self.measuring.is_sending = False
        self.processing.is_telling = self.shipping.is_sending = self.spooling.is_sending = False
        if "mirror" in self.flows:
            self.mirroring.telescope.is_moving = False

    # Processes

    def start(self, name: str) -> None:
        if (before := self.processes.get(name)) is not None and not before.is_dead:
            return
        process = Process(self.scheduler, name, self._clock(before))
        self.processes[name] = process
        process.on_end = partial(self._ended, process)
        process.parts["kill"] = partial(self._kill_one, process)
        body = self.bodies[name]
        self.trace.note(name, "starts")
        process.spawn(lambda: body(process))

    def _clock(self, before: Process | None) -> HostClock:
        if before is not None:
            return before.clock
        random = self.scheduler.random
        return HostClock(self.scheduler, skew=random.uniform(-0.05, 0.05), drift=random.uniform(-2e-5, 2e-5))

    def kill(self, name: str, away: float = 0.0) -> None:
        """Kill a process; it is started again a little later, or when it has been away for some time [s]."""
        self.processes[name].kill()
        self.scheduler.at(0.3 + away + RESTART * self.scheduler.random.random(), self.start, name)

    def _kill_one(self, process: Process) -> None:
        """Kill a process, unless another one of its name runs by now."""
        if self.processes[process.name] is process:
            self.kill(process.name)

    def start_another(self, name: str, seconds: float) -> None:
        """Start a process once more by mistake, while the first one is alive, and end it after a while [s]."""
        process = Process(self.scheduler, name, self.processes[name].clock)
        process.on_end = partial(self._another_ended, process)
        process.parts["kill"] = process.kill
        self.others.append(process)
        process.spawn(lambda: self.bodies[name](process))
        self.scheduler.at(seconds, process.kill)

    def _another_ended(self, process: Process, error: BaseException | None) -> None:
        self.trace.note(process.name, f"ends, the other one: {error!r}")
        if error is not None and not isinstance(error, Fenced) and not process.is_dead:
            self.crashes.append((process.name, error))
        process.kill()

    def is_first(self, process: Process) -> bool:
        """Return whether a process is alive, and the one of its name whose devices clients reach."""
        return not process.is_dead and self.processes[process.name] is process

    def _ended(self, process: Process, error: BaseException | None) -> None:
        if process.is_dead:
            return
        self.trace.note(process.name, f"ends: {error!r}")
        if error is not None and not isinstance(error, Fenced):
            self.crashes.append((process.name, error))
        self.kill(process.name)

    def connection(self, process: Process) -> Connection:
        """Return how a process reaches the simulated brokers."""
        made = clients(process, self.broker, self.groups, self.network)
        return Connection(self.settings, clock=process.clock, clients=made)

    def partitions(self, topic: str) -> Sequence[Partition]:
        """Return the partitions of a topic of the ICD."""
        return self.broker.topics[self.settings.prefix + topic].partitions

    def entries(self, topic: str) -> Iterator[Entry]:
        """Return the records on a topic, partition by partition, of whatever transaction."""
        return (entry for partition in self.partitions(topic) for entry in partition.entries if not entry.is_mark)

    def _tidy(self) -> None:
        self.broker.tidy()
        self.scheduler.at(30.0, self._tidy)

    # Bodies of processes

    def _node(self, node: int, process: Process) -> None:
        """Send notifications, as an ingest node does."""
        writer = KafkaStreamWriter(self.connection(process), health=BusHealth(), client=process.name, linger=0.005)
        sequence, random = 0, self.scheduler.random
        while True:
            process.clock.sleep(random.random() * 2.0 / self.rate)
            if not self.is_sending:
                continue
            at = process.clock.now() - START
            writer.send_many("ingest.heaps", [str(node).encode()], encoded(heap(node, sequence, at)))
            sequence += 1
            self.sent[node] = sequence
            writer.poll()

    def _worker(self, slot: str, process: Process) -> None:
        connection = self.connection(process)
        log = KafkaTransactionalLog(
            connection,
            *windowed(ICD),
            group="aggregate",
            slot=slot,
            health=BusHealth(),
            outputs=ICD.outputs("aggregate"),
        )
        self.work(process, telemetry_worker(log, ICD, self.settings, slot=slot, clock=process.clock), connection)

    def work(self, process: Process, worker: WorkerLoop, connection: Connection) -> None:
        """Let a worker work until it is asked to stop."""
        if self.is_first(process):
            self.workers[process.name] = worker
        self.give_signs(process, process.name, connection)
        while process.name not in self.asked:
            worker.step()
        self.asked.remove(process.name)
        worker.finish()

    def give_signs(self, process: Process, name: str, connection: Connection) -> None:
        """Let a worker give signs of life beside its loop."""
        writer = KafkaWriter(connection, health=BusHealth(), client=f"{name}-heartbeats")
        sign = SignOfLife(name, "worker", writer.send, process.clock)
        process.spawn(lambda: _beat(sign, process))

    def _server(self, instance: str, process: Process) -> None:
        bus = WitnessedBus(self.connection(process), f"SdpFacade-{instance}", self.commanding, process)
        server = Server(
            *(ICD, self.settings, self._devices(instance), Sink(self, process), bus),
            instance=f"SdpFacade-{instance}",
            clock=process.clock,
            versions={},
            given=self.mirroring.given(instance, process),
        )
        if self.is_first(process):
            self.servers[instance] = server
        if "commands" in self.flows:
            self.commanding.operate(self, process, server)
        if "alerts" in self.flows:
            self.alerting.operate(self, process, server)
        self.mirroring.operate(process, server)
        if "references" in self.flows and instance == "calibration":
            self.tabling.hold(self, process, server)
        server.event_loop.run(Event(self.scheduler))  # type: ignore[arg-type]

    def _devices(self, instance: str) -> Mapping[str, list[str]]:
        found = {name: devices_of(entry, self.settings).get(instance, []) for name, entry in ICD.classes.items()}
        self.classes |= {device: name for name, devices in found.items() for device in devices}
        return {name: devices for name, devices in found.items() if devices}

    # What is shown

    def shown(self, process: Process, device: str, attribute: str, reading: Reading) -> None:
        key = (device, attribute)
        before = self.readings.get(key)
        self.readings[key] = reading
        for watcher in self.watchers:
            watcher(device, attribute, before, reading)

    def event(self, process: Process, device: str, attribute: str, reading: Reading) -> None:
        self.pushed[device, attribute] += 1
        if (known := _ATTRIBUTES.get((name := self.classes[device], attribute))) is not None:
            self.pace.watch(process, name, device, reading, known)

    def value(self, device: str, attribute: str) -> Any:
        """Return what an attribute shows; None: nothing, or nothing valid."""
        reading = self.readings.get((device, attribute))
        return None if reading is None or reading.quality is Quality.INVALID else reading.value


def _beat(sign: SignOfLife, process: Process) -> None:
    while True:
        sign.perform()
        process.clock.sleep(INTERVAL)
