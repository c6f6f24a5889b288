"""An assembling worker on the simulation's brokers, and segments made by hand."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from facade.flows.tables.assembly import AssemblyLimits
from facade.flows.tables.buffers import BufferPool, Content, unnamed_file
from facade.flows.tables.messages import RecordRejected, segment_record
from facade.flows.tables.places import Root
from facade.flows.tables.references import ReferenceReader, References
from facade.flows.tables.worker import TableWorker
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.icd.load import load
from facade.kernel.runtime.accounts import OVERLAP, AccountEntry, RunningAccount
from facade.sdp.messages import TableSegment
from facade.sdp.stream_accounts import WorkerAccounts
from tests.support.simulated_bus import MemoryBroker, MemoryBus, MemoryTransactionalMember

ICD = load()


def cut(table: str, content: bytes, segment: int = 10, *, product: str = "p", **fields: Any) -> list[Record]:
    """Return the records of a table; `fields` stand in the header of each segment, right or wrong."""
    parts = [content[at : at + segment] for at in range(0, len(content), segment)] or [b""]
    said = {
        "table": table,
        "product": product,
        "kind": "gains",
        "content_type": "application/octet-stream",
        "count": len(parts),
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "sent_at": 10**15,
        **fields,
    }
    return [segment_record(TableSegment(**{"index": index, **said}), part) for index, part in enumerate(parts)]


def announced(state: str, table: str, product: str, now_us: int, *, key: str = "", **more: Any) -> Record:
    """Return the record that says what became of a table, right or wrong."""
    said = {
        **{"schema": "table/1", "table": table, "product": product, "kind": "gains", "content_type": "x/y"},
        **{"state": state, "size": 20_000_000, "received": 20_000_000, "sha256": "0" * 64},
        **{"sent_at": now_us - 1_500_000, "time": now_us, **more},
    }
    of_product = f"{product}!failed" if state == "FAILED" else product
    return Record(topic="tables", key=(key or of_product).encode(), value=json.dumps(said).encode())


TABLE = b"table" * 500
"""Content of the table that references refer to."""


def refer(url: str, table: str = "t", **fields: Any) -> Record:
    """Return a reference to `TABLE`; `fields` stand in its header, right or wrong."""
    (whole,) = cut(table, TABLE, len(TABLE), **{"sent_at": 1, "count": 0, "url": url, **fields})
    return replace(whole, value=b"")


def read(references: References, url: str, size: int, sha256: str, *, keep: bool = True) -> bytes | RecordRejected:
    """Read what a reference refers to; return its bytes, if they are kept."""
    reader = ReferenceReader(references, url, size, sha256, BufferPool(10**9), keep=keep)
    while not reader.step():
        pass
    try:
        if reader.rejected is not None or not keep:
            return reader.rejected or b""
        content = reader.buffer.content()
        return content.read_bytes() if isinstance(content, Path) else bytes(content)
    finally:
        reader.close()


class Desk:
    """The bus, the group's memory, and one worker after the other."""

    def __init__(self, tmp: Path | None = None, *, batch: int = 4, memory: int = 1000, **limits: Any) -> None:
        self.broker = MemoryBroker(ManualClock())
        self.bus = MemoryBus(self.broker)
        self.delivered: list[tuple[str, bytes]] = []
        """Kind and bytes of each table that a worker has looked into."""
        self.verdict: Callable[[bytes], dict[str, Any] | str] = lambda content: {"bytes": len(content)}
        self.roots: list[Root] = [] if tmp is None else [tmp]
        self.open_file: Callable[[], BinaryIO] = unnamed_file
        self._batch, self._memory, self._limits = batch, memory, limits
        self.worker: Any = None
        self.start()

    def __enter__(self) -> "Desk":
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.finish()

    def start(self) -> TableWorker:
        """Begin anew, as after kill -9: nothing in memory survives, and nothing more is written."""
        if self.worker is not None:
            self.worker.finish()  # frees its files, as the end of a process does
        self.member = MemoryTransactionalMember(self.broker, "calibration", group="tables-assemble")
        self.pool = BufferPool(self._memory, lambda: self.open_file())
        self.worker = TableWorker(
            self.member,
            self.bus,
            ICD,
            slot="0",
            group="tables-assemble",
            clock=self.broker.clock,
            summarise=self._summarise,
            references=References(self.roots, clock=self.broker.clock, limit=10_000),
            pool=self.pool,
            limits=AssemblyLimits(**self._limits),
            batch=self._batch,
        )
        return self.worker

    def _summarise(self, kind: str, content_type: str, content: Content) -> dict[str, Any] | str:
        whole = content.read_bytes() if isinstance(content, Path) else bytes(content)
        self.delivered.append((kind, whole))
        return self.verdict(whole)

    def send(self, *records: Record) -> None:
        for record in records:
            self.broker.append(record)

    def work(self, steps: int = 20) -> None:
        """Take so many steps, and on to the end of a reference that is being read."""
        while steps > 0 or (self._is_reading and not self.bus.away):
            steps -= 1
            self.worker.step()
            self.broker.clock.sleep(0.01)
            assert self.worker.account.balance == 0

    @property
    def _is_reading(self) -> bool:
        return self.worker._reading is not None or bool(self.worker._segments.waiting)

    def run(self, records: Sequence[Record]) -> None:
        self.send(*records)
        self.work(len(self.broker.read("calibration")) + 2)

    def said(self, state: str = "") -> list[dict[str, Any]]:
        """Return what was written on `tables`, of one state or all."""
        found = [json.loads(record.value) for record in self.broker.read("tables") if record.value is not None]
        return [one for one in found if not state or one["state"] == state]

    def newest(self) -> dict[bytes, dict[str, Any]]:
        """Return `tables` as it is once compacted."""
        found = {record.key: record.value for record in self.broker.read("tables")}
        return {key: json.loads(value) for key, value in found.items() if value is not None}

    def letters(self) -> list[dict[str, str]]:
        """Give the headers that were added to the dead letters."""
        found = []
        for letter in self.broker.read("dead-letters"):
            added = {name[3:]: raw.decode() for name, raw in letter.headers if name.startswith("dl.")}
            found.append({**added, "bytes": str(len(letter.value or b""))})
        return found

    def reasons(self) -> list[str]:
        return [letter["reason"] for letter in self.letters()]

    def totals(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for record in self.broker.read("accounts"):
            entry = msgspec.json.decode(record.value or b"", type=AccountEntry)
            assert entry.consumed == entry.used + entry.suppressed + entry.dead_lettered
            for name in ("consumed", "used", "suppressed", "dead_lettered"):
                found[name] += getattr(entry, name)
            found.update(entry.reasons)
        return +found

    def folded(self) -> RunningAccount:
        """Return the account of the stream as a device server adds it up."""
        accounts = WorkerAccounts()
        for record in self.broker.read("accounts"):
            outcome = accounts.fold(record, count=True)
            assert not isinstance(outcome, RecordRejected) or outcome.reason == OVERLAP, outcome
        return accounts.streams["calibration"].account

    def committed(self, partition: int) -> int:
        return self.broker.committed.get(("tables-assemble", "calibration", partition), 0)
