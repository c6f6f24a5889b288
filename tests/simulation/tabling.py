"""Tables of a simulated site: producers that send them in segments, two assemblers, and what became of each."""

from collections import Counter
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.transactional_member import KafkaTransactionalMember
from facade.bus.kafka.writer import KafkaWriter
from facade.bus.port import BusHealth
from facade.errors import BusError
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.content import summarise
from facade.flows.tables.flow import TablesFlow
from facade.flows.tables.messages import CALIBRATION, COMPLETE, MARKS, TABLES, decode_table
from facade.flows.tables.producer import TableProducer
from facade.flows.tables.references import References
from facade.flows.tables.worker import TableWorker
from facade.icd.load import load
from facade.messages import Table
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.site import Site

ICD = load()
GROUP = "tables-assemble"
SLOTS = PRODUCERS = 2
_SEGMENT = 100
"""[bytes]"""
_PAUSE = 6.0
"""Longest pause of a producer between two tables [s]."""
_PATIENCE = 3.0
"""Longest wait of a producer for the bus [s]."""


class Tabling:
    """Who sends tables, who puts them together, and what became of each."""

    def __init__(self) -> None:
        self.is_sending = True
        self.digests: dict[str, str] = {}
        """Of each table that was begun, by id; ids are in the order of time."""
        self.confirmed: dict[str, str] = {}
        """The newest table that the bus has confirmed whole, by product."""
        self.given: dict[str, str] = {}
        """Product of each table that the bus has confirmed whole, by id."""
        self.announced: Counter[str] = Counter()
        """How often each table was said to be complete."""
        self.wrong: list[str] = []
        self._looked = 0
        """Offset of `tables` up to which announcements were looked at."""

    def add(self, site: "Site") -> None:
        """Add the processes to a site, and look at what is announced."""
        for number in range(PRODUCERS):
            site.bodies[f"calibrator-{number}"] = partial(self._produce, number + 1, site)
        for slot in range(SLOTS):
            site.bodies[f"assembler-{slot}"] = partial(self._assemble, str(slot), site)
        tidy = site.broker.tidy

        def look_and_tidy() -> None:
            self.look(site)  # compaction removes announcements
            tidy()

        site.broker.tidy = look_and_tidy  # type: ignore[method-assign]

    def look(self, site: "Site") -> None:
        """Take note of what was announced: of transactions that are committed."""
        (partition,) = site.broker.topics[site.settings.prefix + TABLES].partitions
        entries, self._looked = partition.read(self._looked, 1_000_000, committed=True)
        for entry in entries:
            self._announced(decode_table(entry.value))

    def _announced(self, table: Any) -> None:
        if not isinstance(table, Table) or table.state != COMPLETE:
            return
        self.announced[table.table] += 1
        if self.announced[table.table] > 1:
            self.wrong.append(f"{table.table} of {table.product} was announced {self.announced[table.table]} times")
        if table.sha256 != self.digests[table.table] or table.received != table.size:
            self.wrong.append(f"{table.table} of {table.product} was announced with other bytes than were sent")

    def _produce(self, number: int, site: "Site", process: Process) -> None:
        """Be a pipeline that sends one table after the other, each until the bus has it."""
        writer = KafkaWriter(site.connection(process), health=BusHealth(), client=process.name)
        tables, random = TableProducer(writer, process.clock, timeout=_PATIENCE, icd=ICD), site.scheduler.random
        product = f"subarray/{number:02d}/gains"
        while True:
            process.clock.sleep(random.random() * _PAUSE)
            if not self.is_sending:
                continue
            content, table = random.randbytes(random.randrange(5 * _SEGMENT)), f"table-{len(self.digests):05d}"
            self.digests[table] = sha256(content).hexdigest()
            while True:
                try:
                    tables.send(product, "gains", content, "application/octet-stream", table=table, segment=_SEGMENT)
                except BusError as error:
                    site.trace.note(process.name, f"sends {table} again: {error}")
                    continue  # what had arrived is a duplicate
                break
            self.confirmed[product] = table
            self.given[table] = product

    def _assemble(self, slot: str, site: "Site", process: Process) -> None:
        """Be an assembler; see `facade.flows.tables.cli`."""
        connection, name = site.connection(process), f"tables-{slot}"
        bus = KafkaBus(connection, client=name)
        worker = TableWorker(
            KafkaTransactionalMember(
                *(connection, CALIBRATION), group=GROUP, slot=slot, member=name, health=bus.health, marks=MARKS
            ),
            bus,
            ICD,
            slot=slot,
            group=GROUP,
            clock=process.clock,
            summarise=summarise,
            references=References([], clock=process.clock),
            pool=BufferPool(1_000_000),
        )
        site.give_signs(process, f"{GROUP}-{slot}", connection)
        while True:
            worker.step()

    def missing(self, site: "Site") -> list[str]:
        """Say what was confirmed and is not announced, and what a device does not show."""
        flows = [one for one in site.servers["calibration"].flows if isinstance(one, TablesFlow)]
        shown = {product: one.table.table for flow in flows for product, one in flow.complete.items()}
        return [
            *(f"{one} was sent, and never announced" for one in self.given if not self.announced[one]),
            *(
                f"{product}: {one} was sent, {shown.get(product)} is shown"
                for product, one in self.confirmed.items()
                if shown.get(product, "") < one
            ),
        ]
