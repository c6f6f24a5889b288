"""The whole facade in one process: a device server with all devices, and all workers, on the simulation's brokers."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from devices.kernel.base import FacadeDevice
from devices.kernel.mapping import to_tango
from facade.flows.alerts.packets import intake_worker
from facade.flows.logs.worker import TOPICS as LOGS
from facade.flows.logs.worker import log_worker
from facade.flows.tables.assembly import AssemblyLimits
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.content import summarise
from facade.flows.tables.references import References
from facade.flows.tables.worker import TableWorker
from facade.flows.telemetry.plan import windowed
from facade.flows.telemetry.worker import telemetry_worker
from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.kafka.transactional_member import KafkaTransactionalMember
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.port import Record
from facade.kernel.clock import Clock, ManualClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.instances import devices_of
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.snapshots import newest
from facade.sdp.stream_accounts import ReaderAccounts, StreamTotals, WorkerAccounts
from tests.support.commanding import Sink
from tests.support.heaps import BASE_US
from tests.support.simulated_bus import MemoryBroker, MemoryBus, MemoryTransactionalLog, MemoryTransactionalMember

ICD = load()
SETTINGS = Settings()


class Site:
    """A device server with all devices, and workers, on the simulation's brokers, or on others."""

    def __init__(self) -> None:
        self.open()
        log, packets = self.log("aggregate", *windowed(ICD)), self.log("alert-packets-intake", "alert-packets")
        self.workers = [
            telemetry_worker(log, ICD, SETTINGS, slot="0", clock=self.clock),
            intake_worker(packets, ICD, slot="0", clock=self.clock),
            log_worker(self.log("logs-aggregate", *LOGS), ICD, slot="0", clock=self.clock),
            TableWorker(
                self.member("tables-assemble", "calibration"),
                self.bus(),
                ICD,
                slot="0",
                clock=self.clock,
                group="tables-assemble",
                summarise=summarise,
                references=References([], clock=self.clock),
                pool=BufferPool(1_000_000),
                limits=AssemblyLimits(),
            ),
        ]
        devices = {
            name: [device for found in devices_of(entry, SETTINGS).values() for device in found]
            for name, entry in ICD.classes.items()
        }
        self.sink = Sink()
        self.server = Server(
            *(ICD, SETTINGS, devices, self.sink, self.bus()),
            instance="SdpFacade-all",
            clock=self.clock,
            versions={},
        )
        self.reader = self.server.event_loop._open()
        self.left: set[tuple[str, str, Any]] = set()
        """What was shown or pushed: device, attribute and reading."""

    def open(self) -> None:
        """Open the brokers."""
        self.clock: Clock = ManualClock(BASE_US / 1e6)
        self.broker = MemoryBroker(self.clock)

    def log(self, group: str, *topics: str) -> KafkaTransactionalLog:
        return MemoryTransactionalLog(self.broker, *topics, group=group)

    def member(self, group: str, topic: str) -> KafkaTransactionalMember:
        return MemoryTransactionalMember(self.broker, topic, group=group)

    def bus(self) -> KafkaBus:
        return MemoryBus(self.broker)

    def connection(self) -> Connection:
        return self.broker.connection()

    def send(self, record: Record) -> None:
        """Put a record on the bus; -1 is the partition of its key."""
        self.broker.append(record)

    def read(self, topic: str) -> Iterator[Record]:
        """Return the records of a topic."""
        connection = self.connection()
        return read_range(connection, topic, find_range(connection, topic))

    def streams(self) -> dict[str, StreamTotals]:
        both = [one for one in self.server.flows if isinstance(one, ReaderAccounts | WorkerAccounts)]
        return {name: totals for one in both for name, totals in one.streams.items()}

    def taken(self, topic: str) -> int:
        """Return how many records of a topic the newest snapshot covers."""
        found = newest(self.broker.read("snapshots"), "SdpFacade-all")[0]
        offsets = found[topic].offsets
        return sum(record.offset < offsets.get(record.partition, 0) for record in self.broker.read(topic))

    def shows(self, device: str, attribute: str) -> Any:
        return self.sink.shown[device, attribute].value

    def cycle(self, times: int = 2) -> None:
        """Let everything work, and keep what leaves."""
        for _ in range(times):
            for worker in self.workers:
                worker.step()
            self.server.event_loop.cycle(self.reader)
            self.clock.sleep(0.3)
            shown = [(*key, reading) for key, reading in self.sink.shown.items()]
            self.left.update(shown + self.sink.pushed)
            self.sink.pushed.clear()


def in_tango(site: Site, device: str, name: str, reading: Any) -> Any:
    """Return what Tango is given of a reading."""
    if name in ("State", "Status"):
        said: list[str] = []
        FacadeDevice.show(SimpleNamespace(set_status=said.append, _is_followed=lambda name: True), "Status", reading)
        return said[0]
    (entry,) = (one for one in ICD.classes[site.server.classes[device]].attributes if one.name == name)
    return to_tango(ICD, entry, reading)[0]
