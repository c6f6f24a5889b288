"""One device server on a bus in memory, driven cycle by cycle."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from facade.kernel.bus.memory import MemoryBus, MemoryLog, MemoryReader
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.instances import devices_of
from facade.kernel.reading import Reading
from facade.kernel.runtime.columns import ReadingColumn
from facade.kernel.runtime.composition import Server

ICD = load()


class DeafSink:
    """Has no follower: all readings are only shown."""

    def show(self, device: str, attribute: str, reading: Reading) -> bool:
        return False

    def show_column(self, column: ReadingColumn) -> list[bool]:
        return [False] * len(column.devices)

    def push(self, device: str, attribute: str, reading: Reading) -> bool:
        return True


class Served(NamedTuple):
    """A device server, with what moves it."""

    server: Server
    log: MemoryLog
    clock: ManualClock
    reader: MemoryReader

    def run(self, seconds: float, records: Iterable[Record] = ()) -> None:
        """Give it some records, and let it work for a time."""
        for record in records:
            self.log.append(record)
        for _ in range(round(seconds * 2)):
            self.server.event_loop.cycle(self.reader)
            self.clock.sleep(0.5)

    def metric(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the figures of one of its metrics."""
        (found,) = [one for one in self.server.metrics if one.name == name]
        return dict(found.figures())


def serve(instance: str, **settings: Any) -> Served:
    """Make one instance with the devices that it has in a deployment."""
    clock = ManualClock()
    log = MemoryLog({name: topic.partitions for name, topic in ICD.topics.items()}, clock)
    known = Settings(nodes=1, **settings)
    devices = {one.name: devices_of(one, known).get(instance, []) for one in ICD.classes.values()}
    mine = {name: list(found) for name, found in devices.items() if found}
    bus, versions = MemoryBus(log), {"versionId": "1"}
    server = Server(ICD, known, mine, DeafSink(), bus, instance=instance, clock=clock, versions=versions)
    loop = server.event_loop
    loop._timing = replace(loop._timing, wait=0.0, idle=0.0)  # a bus in memory waits by the real clock
    return Served(server, log, clock, loop._open())
