"""Tables of a simulated site: producers that send them in segments, two assemblers, and what became of each."""

from collections import Counter
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.content import summarise
from facade.flows.tables.contents import Contents
from facade.flows.tables.flow import TablesFlow
from facade.flows.tables.messages import CALIBRATION, COMPLETE, FAILED, TABLES, decode_table
from facade.flows.tables.producer import TableProducer
from facade.flows.tables.worker import TableWorker
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.kafka.transactional_member import KafkaTransactionalMember
from facade.kernel.bus.port import BusHealth
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load
from facade.kernel.runtime.composition import Server
from facade.sdp.messages import Table
from tests.simulation.disks import TemporaryFile
from tests.simulation.referring import Store, StoreReferences
from tests.simulation.scheduler import Process
from tests.simulation.threads import Event

if TYPE_CHECKING:
    from tests.simulation.site import Site

ICD = load()
GROUP = "tables-assemble"
SLOTS = PRODUCERS = REFERRERS = 2
_SEGMENT = 100
"""[bytes]"""
_MEMORY = 150
"""Of all tables under way; what is more goes to a file [bytes]."""
_OUR_DISK = ("no-space:", "storage:")
"""How the reason of a table begins that its owner may send again, as our disk had no room."""
_AWAY = "unavailable:"
"""The same, as the place to which a table refers was away."""
_SPOILED = ("missing:", "size:", "digest:")
"""The same, as the place has another table, or none."""
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
        self.given: dict[str, str] = {}
        """Product of each table that the bus has confirmed whole, by id."""
        self.again: dict[str, object] = {}
        """Tables for which an assembler had no room, or their place was away: they are sent again under their ids,
        until the bus has what was sent for this failure: whoever sends may be killed."""
        self.refused = self.unavailable = 0
        """How often that was so."""
        self.store = Store()
        """Where tables are that are sent as references."""
        self.failed: set[str] = set()
        """Tables that can never be announced: their place has something else."""
        self._begun: dict[str, tuple[str, bytes]] = {}
        """Product and content of each table, by id."""
        self.announced: Counter[str] = Counter()
        """How often each table was said to be complete."""
        self.newest: dict[str, str] = {}
        """The table that was announced last, by product."""
        self.wrong: list[str] = []
        self._looked = 0
        """Offset of `tables` up to which announcements were looked at."""

    def add(self, site: "Site") -> None:
        """Add the processes to a site, and look at what is announced."""
        if "tables" in site.flows:
            for number in range(PRODUCERS):
                site.bodies[f"calibrator-{number}"] = partial(self._produce, number + 1, site)
        if "references" in site.flows:
            for number in range(PRODUCERS, PRODUCERS + REFERRERS):
                site.bodies[f"calibrator-{number}"] = partial(self._produce, number + 1, site)
        if f"assembler-{SLOTS - 1}" in site.bodies:
            return
        for slot in range(SLOTS):
            site.bodies[f"assembler-{slot}"] = partial(self._assemble, str(slot), site)
        tidy = site.broker.tidy

        def look_and_tidy() -> None:
            self.look(site)  # compaction removes announcements
            tidy()

        site.broker.tidy = look_and_tidy  # type: ignore[method-assign]

    def look(self, site: "Site") -> None:
        """Take note of what was announced: of transactions that are committed."""
        (partition,) = site.partitions(TABLES)
        entries, self._looked = partition.read(self._looked, 1_000_000, committed=True)
        for entry in entries:
            self._announced(decode_table(entry.value))

    def _announced(self, table: Any) -> None:
        if isinstance(table, Table) and table.state == FAILED:
            self._has_failed(table)
        if not isinstance(table, Table) or table.state != COMPLETE:
            return
        self.again.pop(table.table, None)
        if table.url is not None and table.sha256 not in self.store.given[table.url]:
            self.wrong.append(f"{table.table} of {table.product} was announced, and nobody has got its bytes")
        self.announced[table.table] += 1
        self.newest[table.product] = table.table
        if self.announced[table.table] > 1:
            self.wrong.append(f"{table.table} of {table.product} was announced {self.announced[table.table]} times")
        if table.sha256 != self.digests[table.table] or table.received != table.size:
            self.wrong.append(f"{table.table} of {table.product} was announced with other bytes than were sent")

    def _has_failed(self, table: Table) -> None:
        """Judge a failure: what can be sent again is, and for all else there is a reason."""
        reason = table.reason or ""
        if reason.startswith((*_OUR_DISK, _AWAY)):
            self.refused += not reason.startswith(_AWAY)
            self.unavailable += reason.startswith(_AWAY)
            self.again[table.table] = object()
        elif reason.startswith(_SPOILED) and table.url in self.store.spoiled:
            self.failed.add(table.table)
        else:
            self.wrong.append(f"{table.table} of {table.product} failed, and is good: {reason}")

    def _produce(self, number: int, site: "Site", process: Process) -> None:
        """Be a pipeline that sends one table after the other, each until the bus has it."""
        writer = KafkaWriter(site.connection(process), health=BusHealth(), client=process.name)
        tables, random = TableProducer(writer, process.clock, timeout=_PATIENCE, icd=ICD), site.scheduler.random
        is_referrer = number > PRODUCERS
        product = f"subarray/{number - PRODUCERS:02d}/bandpass" if is_referrer else f"subarray/{number:02d}/gains"
        while True:
            process.clock.sleep(random.random() * _PAUSE)
            table = next((one for one in self.again if self._begun[one][0] == product), None)
            if table is None:
                if not self.is_sending:
                    continue
                table = f"table-{len(self.digests):05d}"
                self._begun[table] = product, random.randbytes(random.randrange(5 * _SEGMENT))
                self.digests[table] = sha256(self._begun[table][1]).hexdigest()
            failure = self.again.get(table)
            content, kind = self._begun[table][1], "application/octet-stream"
            url = f"file:///tables/{table}"
            if is_referrer:
                self.store.files.setdefault(url, content)
            while True:
                try:
                    if is_referrer:
                        digest = self.digests[table]
                        tables.refer(url, product, "gains", kind, size=len(content), sha256=digest, table=table)
                    else:
                        tables.send(product, "gains", content, kind, table=table, segment=_SEGMENT)
                except BusError as error:
                    site.trace.note(process.name, f"sends {table} again: {error}")
                    continue  # what had arrived is a duplicate
                break
            self.given[table] = product
            if failure is not None and self.again.get(table) is failure:
                del self.again[table]

    def _assemble(self, slot: str, site: "Site", process: Process) -> None:
        """Be an assembler; see `facade.flows.tables.cli`."""
        connection, name = site.connection(process), f"tables-{slot}"
        bus = KafkaBus(connection, client=name)
        worker = TableWorker(
            KafkaTransactionalMember(
                *(connection, CALIBRATION),
                group=GROUP,
                slot=slot,
                member=name,
                health=bus.health,
                outputs=ICD.outputs("tables-assemble"),
            ),
            bus,
            ICD,
            slot=slot,
            group=GROUP,
            clock=process.clock,
            summarise=summarise,
            references=StoreReferences(self.store, process),
            pool=BufferPool(_MEMORY, partial(TemporaryFile, site.disks[process.name], process)),
        )
        site.give_signs(process, f"{GROUP}-{slot}", connection)
        while True:
            worker.step()

    def hold(self, site: "Site", process: Process, server: Server) -> None:
        """Let a device server fetch the bytes of tables, beside its event loop."""
        contents = server.find(Contents)
        assert contents is not None
        contents._references = StoreReferences(self.store, process)
        process.spawn(lambda: contents.run(Event(site.scheduler)))  # type: ignore[arg-type]

    def held(self, site: "Site") -> list[str]:
        """Say what a device server holds in the place of a table's bytes."""
        contents = site.servers["calibration"].find(Contents)
        assert contents is not None
        return [
            f"{one.table.table} of {product} is held with other bytes than were sent"
            for product, one in contents._held.items()
            if sha256(one.content).hexdigest() != self.digests[one.table.table]
        ]

    def not_held(self, site: "Site") -> list[str]:
        """Say which of the newest tables a device server does not hold; one whose place has none excepted."""
        server = site.servers["calibration"]
        contents, flow = server.find(Contents), server.find(TablesFlow)
        assert contents is not None
        assert flow is not None
        newest = [one.table for one in flow.complete.values() if one.table.url not in self.store.spoiled]
        found = ((table, contents.find("", table.table)) for table in newest)
        return [f"{table.table} of {table.product}: {one}" for table, one in found if isinstance(one, str)]

    def missing(self, site: "Site") -> list[str]:
        """Say what was confirmed and is not announced, and what a device does not show."""
        flows = [one for one in site.servers["calibration"].flows if isinstance(one, TablesFlow)]
        shown = {product: one.table.table for flow in flows for product, one in flow.complete.items()}
        return [
            *(
                f"{one} was sent, and never announced"
                for one in self.given
                if not self.announced[one] and one not in self.failed
            ),
            *(
                f"{product}: {one} was announced last, {shown.get(product)} is shown"
                for product, one in self.newest.items()
                if shown.get(product) != one
            ),
        ]
