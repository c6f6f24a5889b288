"""Ingest nodes of a simulated site that keep their notifications on disk, and what became of each batch."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from facade.kernel.bus.kafka.bus import KafkaBatchLog
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.sdk.producer.heaps import HeapProducer
from facade.sdp.batches import BatchReader, ReadBatch
from tests.simulation.disks import DiskFolder
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.site import Site

ICD = load()
NODES = 2
_PAUSE = 1.0
"""Longest pause of a node between two batches [s]."""
_MOST_ROWS = 4
_ROOM = 40_000
"""Of a spool [bytes]."""
_AGAIN = 1.0
"""Pause after a start that was refused [s]."""


@dataclass(slots=True)
class Kept:
    """A batch of which a producer has told its caller that it keeps it, on disk or in memory."""

    node: int
    number: int
    rows: list[int]
    """Numbers of its notifications."""
    process: Process
    is_safe: bool = False
    """Whether the caller was told that it is on disk."""


class Spooling:
    """Who sends batches from a disk."""

    def __init__(self) -> None:
        self.is_sending = True
        self.kept: list[Kept] = []
        self.told_missing: set[tuple[int, int]] = set()
        """Batches that a successor has counted as missing, by node and number."""
        self.producers: dict[int, HeapProducer] = {}
        self.refused: Counter[int] = Counter()
        """Notifications for which there was no room, by node."""
        self.on_log: dict[int, list[int]] = {}
        """Numbers of notifications on the log, by node."""
        self._next: Counter[int] = Counter()
        self._reader = BatchReader(ICD.messages["heap"], ["seq", "time"])

    def add(self, site: "Site") -> None:
        """Add the processes to a site; their nodes are behind those of `Site.nodes`."""
        for number in range(NODES):
            site.bodies[f"spooler-{number}"] = partial(self._spool, site.nodes + number, site)

    def _spool(self, node: int, site: "Site", process: Process) -> None:
        """Be an ingest node with a disk."""
        producer = self._open(node, site, process)
        producer.start()
        random = site.scheduler.random
        while True:
            process.clock.sleep(random.random() * _PAUSE)
            if producer.standing.disk == "":
                self._are_safe(process)
            if self.is_sending:
                self._send(node, producer, process, random.randint(1, _MOST_ROWS))

    def _open(self, node: int, site: "Site", process: Process) -> HeapProducer:
        log = KafkaBatchLog(site.connection(process), client=process.name)
        folder = DiskFolder(site.disks[process.name], process)
        while True:
            try:
                producer = HeapProducer(node, folder, log=log, clock=process.clock, most_bytes=_ROOM)
                break
            except ConfigError as error:
                site.trace.note(process.name, f"does not start: {error}")
                process.clock.sleep(_AGAIN)
        spool = producer._spool
        waiting = {one.sequence for one in spool.waiting}
        lost = [(node, one) for one in range(spool.done + 1, spool.next) if one not in waiting]
        if spool.missing == len(lost):  # else the producer counts something else than what is gone
            self.told_missing |= set(lost)
        self.producers[node] = producer
        return producer

    def _send(self, node: int, producer: HeapProducer, process: Process, count: int) -> None:
        rows = list(range(self._next[node], self._next[node] + count))
        self._next[node] += count
        columns = {name: np.full(count, 1) for name in ("channel_start", "received", "lost", "late")}
        columns |= {name: np.full(count, 0.5) for name in ("flagged_fraction", "latency")}
        columns |= {"seq": np.array(rows), "time": np.full(count, process.clock.now_us())}
        dropped = producer.standing.dropped
        kept = Kept(node, producer._spool.next, rows, process)
        producer.add_columns(scan_id=7, channel_count=64, **columns)
        producer.flush()
        if producer.standing.dropped > dropped:
            self.refused[node] += count
            return
        self.kept.append(kept)
        if producer.standing.disk == "":
            self._are_safe(process)

    def _are_safe(self, process: Process) -> None:
        """Take note that all a producer has taken is on its disk, as it says."""
        for kept in self.kept:
            kept.is_safe |= kept.process is process

    def look(self, site: "Site") -> None:
        self.on_log = {}
        for entry in site.entries("ingest.heaps"):
            if entry.key is not None and int(entry.key) >= site.nodes:
                batch = self._reader.read(entry.value or b"", entry.headers)
                assert isinstance(batch, ReadBatch), batch
                rows = [int(one) + batch.header.bases["seq"] for one in batch.content.columns["seq"]]
                self.on_log.setdefault(int(entry.key), []).extend(rows)
        for node in range(site.nodes, site.nodes + NODES):
            site.sent[node] = len(self.on_log.get(node, ()))

    def repeated(self, site: "Site") -> Iterator[str]:
        """Say what is on the log twice."""
        self.look(site)
        for node, rows in self.on_log.items():
            if twice := [one for one, times in Counter(rows).items() if times > 1]:
                yield f"node {node}: notifications {twice} are on the log twice"

    def lost(self) -> Iterator[str]:
        """Say what was taken and is neither on the log nor counted, and what still waits."""
        for one in self.kept:
            if set(one.rows) <= set(self.on_log.get(one.node, ())):
                continue
            if one.is_safe:
                yield f"node {one.node}: batch {one.number} was on disk, and is not on the log"
            elif (one.node, one.number) not in self.told_missing:
                yield f"node {one.node}: batch {one.number} was kept, is not on the log, and nobody counts it"
        for node, producer in self.producers.items():
            standing = producer.standing
            if standing.waiting or standing.bus:
                yield f"node {node}: a producer does not go on: {standing}"
