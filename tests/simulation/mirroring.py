"""The mirror of a simulated site: what devices of the telescope push, and what must stand on the bus of it."""

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from facade.flows.mirror.messages import (
    CONNECTED,
    MODEL,
    SILENT,
    MirrorRule,
    TelescopeAttribute,
    decode_attribute,
    is_next,
    rule_record,
    writer_of,
)
from facade.flows.mirror.source import DeviceSource
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.port import BusHealth
from facade.kernel.errors import BusError
from facade.kernel.runtime.composition import Server
from sdp_facade_lab.mirror_account import account_of
from tests.simulation.scheduler import Process
from tests.simulation.telescope import DEVICES, SimulatedSource, Telescope
from tests.simulation.threads import Event

if TYPE_CHECKING:
    from tests.simulation.site import Site

INSTANCE = "mirror"
_PATTERN = "sim-dish/dish/*/*"
_CHANGES = f"{DEVICES[0]}/azimuth"
"""An attribute that is now and then not mirrored."""


class Mirroring:
    """The devices of the telescope, who chooses what is mirrored, and all that was written of it."""

    telescope: Telescope

    def __init__(self) -> None:
        self.records: dict[str, list[tuple[float, TelescopeAttribute]]] = defaultdict(list)
        """Of each attribute, with the brokers' time [Unix s]."""
        self._next: dict[int, int] = {}

    @property
    def written(self) -> int:
        return sum(map(len, self.records.values()))

    def add(self, site: "Site") -> None:
        """Add the telescope and the process that chooses to a site."""
        self.telescope = Telescope(site.scheduler)
        site.bodies["node-chooser"] = lambda process: self._choose(site, process)
        tidy = site.broker.tidy

        def look_and_tidy() -> None:
            self.look(site)  # what is compacted is seen by nobody any more
            tidy()

        site.broker.tidy = look_and_tidy  # type: ignore[method-assign]

    def given(self, instance: str, process: Process) -> dict[type, object]:
        """Return what a device server is given in the place of Tango."""
        return {DeviceSource: SimulatedSource(self.telescope, process)} if instance == INSTANCE else {}

    def operate(self, process: Process, server: Server) -> None:
        """Run the mirror beside the event loop of its device server."""
        for run in server.threads if process.name == INSTANCE else ():
            process.spawn(lambda run=run: run(Event(process.scheduler)))  # type: ignore[misc]

    def _choose(self, site: "Site", process: Process) -> None:
        """Have all mirrored, but now and then for one attribute."""
        writer = KafkaWriter(site.connection(process), health=BusHealth(), client=process.name)
        random, names = site.scheduler.random, [f"{one}/*" for one in DEVICES]
        while True:
            is_whole = not self.telescope.is_moving or random.random() < 0.8
            patterns = [_PATTERN] if is_whole else [*names[1:], f"{DEVICES[0]}/elevation"]
            rule = MirrorRule(rule="all", patterns=patterns, time=process.clock.now_us(), origin="simulation")
            try:
                writer.send_durably(rule_record(rule), 3.0)
            except BusError as error:
                site.trace.note(process.name, f"the rule is written again: {error}")
            else:
                process.clock.sleep(random.random() * 20.0)

    def look(self, site: "Site") -> None:
        """Take what was written since the last look."""
        for partition in site.partitions(MODEL):
            begin = self._next.get(partition.number, 0)
            for entry in partition.entries:
                if entry.offset >= begin:
                    message = decode_attribute(entry.value)
                    assert isinstance(message, TelescopeAttribute), message
                    self.records[message.name].append((entry.time_us / 1e6, message))
            self._next[partition.number] = partition.end

    def differences(self, site: "Site") -> Iterator[str]:
        """Say where the newest record is not the newest value, or a value is missing without a word."""
        self.look(site)
        telescope = self.telescope
        for name, (value, _) in telescope.values.items():
            records = self._as_read(name)
            newest = records[-1] if records else None
            if newest is None or newest.connection != CONNECTED or newest.value != value:
                yield f"{name}: the device has {value}, the newest record {newest}"
            if name in telescope.pushed:
                found = account_of(telescope.pushed[name], records)
                for what in ("unsaid", "foreign"):
                    if count := getattr(found, what):
                        yield f"{name}: {count} values are {what}"
                if found.misnumbered and not any(one.name == INSTANCE for one in site.others):
                    yield f"{name}: {found.misnumbered} records are misnumbered"

    def _as_read(self, name: str) -> list[TelescopeAttribute]:
        """Return the records of an attribute as a reader must take them, who believes the latest mirror."""
        found: list[TelescopeAttribute] = []
        heard = 0.0
        for at, message in self.records[name]:
            if found and writer_of(message) < writer_of(found[-1]) and at - heard <= SILENT / 1e6:
                continue
            is_other = bool(found) and writer_of(message) != writer_of(found[-1])
            breaks = is_other and not is_next(found[-1], message)
            found.append(replace(message, gap=True) if breaks else message)
            heard = at
        return found
