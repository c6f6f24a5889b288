"""A hostile set of records walks over all readers, each of which may fail a test; see `tests.support.hostile`."""

import faulthandler
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from facade.admin.redrive import Redrive, Selection, plan
from facade.archive.compare import compare
from facade.archive.files import verify
from facade.archive.history import HistoryArchive
from facade.archive.nexus import export
from facade.archive.night.page import render
from facade.archive.night.report import read_night
from facade.archive.night.span import Night
from facade.archive.reading import extent
from facade.archive.replay import plan_replay, play
from facade.archive.restore import LogNames, plan_restore, restore
from facade.archive.stores import FolderStore
from facade.archive.worker import ArchiveLimits, ArchiveWorker
from facade.flows.commands.past import CommandFamily, Past
from facade.flows.commands.tracker import Tracker
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import UNREADABLE, Connection
from facade.kernel.bus.kafka.transactional_member import KafkaTransactionalMember
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.port import BusHealth, PartitionColumns, Record
from facade.kernel.clock import SystemClock
from facade.kernel.config import Settings
from facade.kernel.runtime.accounts import RunningAccount
from facade.sdk.controller.inbox import CommandHistory, CommandReader
from facade.sdk.controller.outbox import ReportedStates
from facade.sdp.device_state import DeviceStates
from facade.tools.audit import sources
from facade.tools.dead_letters import Listing, described, document, line, trials_of
from tests.support.archives import kept
from tests.support.foreign_headers import are_foreign, produce
from tests.support.hostile import FORMS, hostile
from tests.support.waiting import until
from tests.support.whole import ICD, SETTINGS, Site, in_tango

MINUTE = 60_000_000
STREAMS = (
    *("ingest.heaps", "ingest.buffers", "flagging", "storage", "alert-packets", "calibration", "quality", "logs"),
    "metrics",
)
"""Topics on which nobody else writes, and that have an account."""


class Walk:
    """A facade in one process on brokers with hostile records on each topic, and an archive of all of them.

    It is the writer of a restore and of a replay.
    """

    def __init__(self, site: Site, folder: Path, *forms: str) -> None:
        self.site, self.store, self.folder = site, FolderStore(folder / "archive"), folder
        self.failed, self.foreign, self.restored = 0, 0, list[Record]()
        site.cycle()
        for record in [one for form in forms for one in hostile(ICD, self.now_us, form)]:
            self.foreign += are_foreign(record.headers)
            site.send(record)
        self.settle()

    @property
    def now_us(self) -> int:
        return self.site.clock.now_us()

    def settle(self) -> None:
        """Let everything work until each record of a stream is in its account."""
        counts = {name: self.count(name) for name in STREAMS}

        def are_counted() -> bool:
            self.site.cycle(1)
            streams = self.site.streams()
            return all(name in streams and streams[name].account.consumed == count for name, count in counts.items())

        until(are_counted, "each record of a stream is in its account", every=0.0)
        self.site.cycle()

    def count(self, topic: str) -> int:
        return sum(1 for _ in self.site.read(topic))

    def write(self, records: Sequence[Record]) -> None:
        self.restored += [one for one in records if one.key != b"restored"]

    commit, abort = write, write

    def copy(self, columns: PartitionColumns) -> None:
        assert len(columns.headers) == len(columns.offsets)

    def poll(self, timeout: float = 0.0) -> None:
        pass

    def flush(self, timeout: float) -> bool:
        return True


def workers_and_device_servers(walk: Walk) -> None:
    site = walk.site
    for shown in site.left:
        in_tango(site, *shown)
    streams = site.streams()
    for name in STREAMS:
        account = streams[name].account
        assert account.consumed == walk.count(name), name
        assert account.consumed == account.used + account.late + account.suppressed + account.dead_lettered, name
    letters = [dict(one.headers) for one in site.read("dead-letters")]
    assert not [one for one in letters if one.get("dl.reason") == b"internal"]


def archive(walk: Walk) -> None:
    bus, limits = walk.site.bus(), ArchiveLimits(wait=0.01, age=0.0)
    worker = ArchiveWorker(
        bus, walk.store, ICD, [*ICD.topics], deployment="test.", clock=walk.site.clock, limits=limits
    )
    counts = {topic: walk.count(topic) for topic in ICD.topics}

    def is_complete() -> bool:
        worker.step()
        return all(worker.accounts[topic].consumed >= count for topic, count in counts.items())

    until(is_complete, "the archive has all records", every=0.0)
    worker.finish()
    assert not [fault for report in verify(walk.store) for fault in report.faults]
    found = {(one.topic, one.partition, one.offset): one for one in kept(walk.store)}
    assert sum(one.headers == UNREADABLE for one in found.values()) >= walk.foreign
    for topic in ICD.topics:
        for one in walk.site.read(topic):
            assert found[topic, one.partition, one.offset] == one


def restored(walk: Walk) -> None:
    made = plan_restore(walk.store, ICD, prefix="test.", now_us=walk.site.clock.now_us())
    names = LogNames(ICD, made.ids, {name: f"new-{name}" for name in made.ids})
    done = restore(walk.store, made, names, walk, walk.site.clock, lambda *_: None)
    assert done.records == len(walk.restored) > 0


def replayed(walk: Walk) -> None:
    made = plan_replay(walk.store, ICD, *(extent(walk.store) or (0, 0)), prefix="replay.")
    assert play(walk.store, made, walk, walk.site.clock, report=lambda *_: None)


def report_and_exports(walk: Walk) -> None:
    begin, end = walk.now_us - MINUTE, walk.now_us + MINUTE
    render(read_night(walk.store, ICD, Night(begin, end), 50), "archive", walk.now_us)
    export(walk.store, ICD, walk.folder / "night.nxs", begin, end)
    compare(walk.store, walk.store, ICD)


def history(walk: Walk) -> None:
    attributes = HistoryArchive(walk.store)
    attributes.at(attributes.extent()[1])
    past, family = Past(0), CommandFamily("1795282400.000000-00000001_Scan")
    for topic, take in (("commands-held", "held"), ("commands", "command"), ("command-acks", "ack")):
        for record in walk.site.read(topic):
            getattr(past, f"add_{take}")(record)
            getattr(family, f"add_{take}")(record)
    for record in walk.site.read("command-refusals"):
        past.add_refusal(record)
    family.gather()
    past.commands()
    for topic, entry_of in sources().items():
        for record in walk.site.read(topic):
            entry_of(record)


def dead_letters(walk: Walk) -> None:
    letters = [*walk.site.read("dead-letters")]
    listing = Listing(Selection(), 1000)
    for one in letters:
        listing.add(one)
        json.dumps(document(one))
    json.dumps([described(one) for one in listing.newest])
    assert all(text.isprintable() for one in listing.newest for text in line(one, listing.redriven))
    made = plan(letters, ICD, Selection(), trials_of(ICD, SETTINGS, walk.site.clock), again=True)
    back = list[Record]()
    writer = type("Writer", (), {"write": staticmethod(back.extend)})()
    running = Redrive(iter(letters), made.chosen, writer, walk.site.clock, most=100)
    while running.step():
        pass
    for one in back:
        if one.topic != "accounts":
            walk.site.send(one)
    walk.settle()
    workers_and_device_servers(walk)


def controllers(walk: Walk) -> None:
    states, tracker, bus = (
        DeviceStates(ICD, {"mid-sdp/subarray/01": "SdpSubarray"}),
        Tracker([]),
        walk.site.bus(),
    )
    past = CommandHistory(bus.open_reader, tracker, states, ReportedStates(), component="test")
    while not past.catch_up(0.1):
        pass
    reader = CommandReader(["mid-sdp/subarray/01"], RunningAccount())
    for record in walk.site.read("commands"):
        reader.read(record)


READERS: list[Callable[[Walk], None]] = [
    workers_and_device_servers, archive, restored, replayed, report_and_exports, history, dead_letters, controllers
]  # fmt: skip
"""The archive comes before those who read it."""


class RealSite(Site):
    """A site on a real broker."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._settings = Settings(bootstrap=bootstrap, prefix=prefix)
        super().__init__()

    def open(self) -> None:
        self.clock = SystemClock()
        self._connection = Connection(self._settings)
        # A broker that decompresses records for its topics makes other names of names that are not UTF-8.
        self._producer = self._connection.producer(BusHealth(), {"message.max.bytes": 100_000_000})

    def log(self, group: str, *topics: str) -> KafkaTransactionalLog:
        return KafkaTransactionalLog(self._connection, *topics, group=group, slot="0", health=BusHealth())

    def member(self, group: str, topic: str) -> KafkaTransactionalMember:
        health = BusHealth()
        return KafkaTransactionalMember(
            self._connection, topic, group=group, slot="0", member="tables-0", health=health, outputs=("tables",)
        )

    def bus(self) -> KafkaBus:
        return KafkaBus(self._connection, client="hostile")

    def connection(self) -> Connection:
        return self._connection

    def send(self, record: Record) -> None:
        produce(self._producer, self._connection.topic(record.topic), record)
        assert not self._producer.flush(60.0)


def main(bootstrap: str, prefix: str, folder: str) -> None:
    """Walk over all readers on a real broker, in a process that a crash may end."""
    faulthandler.enable()
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage() + (record.exc_text or ""))  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    walk = Walk(RealSite(bootstrap, prefix), Path(folder), *FORMS)
    for reader in READERS:
        print(reader.__name__, flush=True)
        reader(walk)
    assert not errors, errors
    print(
        f"{walk.foreign} records with names that are not UTF-8; {walk.count('dead-letters')} dead letters", flush=True
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
