"""Tables through kills: producer, worker, device server and broker are killed while they are sent.

Sent: tables of random bytes, by a producer that keeps a journal. Expected: each table that is whole on the bus is
announced once, and each other one is reported. Observed: the topic `tables`, the bytes fetched, and `ListTables`.
"""

import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tango

from facade.flows.tables.fetch import fetch
from facade.flows.tables.messages import CALIBRATION, COMPLETE, FAILED, TABLES, decode_table
from facade.flows.tables.producer import TableProducer
from facade.infra.processes import Process
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.errors import BusError
from facade.sdp.messages import Table
from sdp_facade_lab.balance import Balance, Gaps, Tally
from sdp_facade_lab.fault_runs.frame import ALWAYS, BROKER, READY_WITHIN, RESET, SERVER, FaultRun, Size, process_name
from sdp_facade_lab.roles import RoleContext, RoleProcess

KIND, CONTENT_TYPE = "sky-model", "application/x-table-fault"
_SEGMENT = 100_000
_PAUSE = 0.5


def content(seed: int, number: int, size: int) -> bytes:
    return random.Random(seed * 1_000_003 + number).randbytes(size)  # noqa: S311 - the same bytes each time


def digest(seed: int, number: int, size: int) -> str:
    return hashlib.sha256(content(seed, number, size)).hexdigest()


def product(number: int) -> str:
    """Return what a table is a version of: each one something else, so that none hides another."""
    return f"subarray/01/fault-{number:04d}"


def read_journal(file: Path) -> tuple[set[int], set[int]]:
    """Return the tables that were begun, and those of which every segment is surely on the bus."""
    words = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    begun, sent = ({int(word[1]) for word in words if word[0] == kind} for kind in ("begun", "sent"))
    return begun, sent


def produce_tables(context: RoleContext, *, journal: str, seed: int, tables: int, size: int, each: float) -> None:
    """Send; what an earlier life had begun is left as it is."""
    file, clock = Path(journal), context.clock
    producer = TableProducer(KafkaBus(Connection(context.settings, clock=clock), client="producer").writer(), clock)
    with file.open("a") as lines:

        def note(what: str, number: int) -> None:
            lines.write(f"{what} {number}\n")
            lines.flush()
            os.fsync(lines.fileno())

        for number in range(max(read_journal(file)[0], default=-1) + 1, tables):
            if context.called_off:
                return
            note("begun", number)
            made = content(seed, number, size)
            while True:
                try:
                    producer.send(product(number), KIND, made, CONTENT_TYPE, table=f"t{number}", segment=_SEGMENT)
                except BusError:  # what had arrived is known as a duplicate
                    clock.sleep(_PAUSE)
                else:
                    break
            note("sent", number)
            clock.sleep(each)


WORKER, PRODUCER = "assembling worker", "producer"
EXPIRY = 30.0
"""Time without a segment after which a table is given up [s]."""
_SIZE, _QUICK_SIZE = 10_000_000, 4_000_000
"""Of a table [bytes]."""
_SETTLED_WITHIN = EXPIRY + READY_WITHIN


class TableFaultRun(FaultRun):
    """One run of the tables."""

    unit, all_is_well = "tables", "each table was announced once and whole, or reported as never completed"
    full, short = Size(50, ALWAYS), Size(8, ALWAYS)
    faults = (BROKER, SERVER, WORKER, PRODUCER, WORKER, PRODUCER, RESET)
    group, members = "tables-assemble", (WORKER,)
    between = (1.0, 4.0)

    def prepare(self) -> None:
        self._size = _QUICK_SIZE if self.quick else _SIZE
        self._each = 1.0
        """Pause from one table to the next, so that faults have time to happen [s]."""
        self._device = self.deployment.devices("SdpCalibration")[0]
        self._journal = self.deployment.folder / "tables.txt"
        self._bus = KafkaBus(self.deployment.connection, client="fault-run")
        self._said: list[Table] = []
        """Everything that was ever said on the topic, which is compacted."""
        self._begun, self._sent = set[int](), set[int]()
        self._awaited: set[int] | None = None
        """Tables whose end is waited for when all have been sent."""
        self._settled_by = float("inf")
        self._gaps = Gaps(self.clock)
        """Times without a table that is announced."""

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        deployment = self.deployment
        task: dict[str, Any] = {"journal": str(self._journal), "seed": self.seed, "tables": self.count}
        task |= {"size": self._size, "each": self._each}
        assemble: dict[str, Any] = {"login": "tables-assemble", "SDP_TABLE_EXPIRY": f"{EXPIRY}"}
        parts: dict[str, Callable[[], Process]] = {
            WORKER: lambda: deployment.launch(process_name(WORKER), "tables", "assemble", "--slot", "0", **assemble),
            SERVER: lambda: deployment.server("calibration", name=process_name(SERVER)),
        }
        if len(self._begun) < self.count:
            parts[PRODUCER] = lambda: deployment.play(
                produce_tables, name=PRODUCER, ends=True, login="calibration-pipeline", **task
            )
        return parts

    def begin(self) -> None:
        self._reader = self.open_reader(TABLES)

    def step(self) -> bool:
        records = self._reader.take(100, 0.05)
        said = [table for record in records if isinstance(table := decode_table(record.value), Table)]
        if any(table.state == COMPLETE for table in said):
            self._gaps.hear()
        self._said += said
        self._begun, self._sent = read_journal(self._journal)
        if len(self._begun) < self.count or self.deployment.processes[PRODUCER].is_alive:
            return True
        if self._awaited is None:
            # A table without any segment on the bus is never reported: its producer was killed before it sent one.
            self._awaited = self._sent | self._arrived()
            self._settled_by = self.clock.monotonic() + _SETTLED_WITHIN
            self.left = 0
        goes_on = not self._awaited <= self._ended() and self.clock.monotonic() < self._settled_by
        if not goes_on:
            self._reader.close()
        return goes_on

    def stop_sending(self) -> None:
        self.count = 0
        role = self.deployment.processes[PRODUCER]
        assert isinstance(role, RoleProcess)
        role.call_off()

    def count_arrived(self) -> int:
        return len(self._ended())

    def in_words(self) -> str:
        return f"{len(self._begun)} tables begun, {len(self._sent)} sent, {self.count_arrived()} ended"

    def account(self) -> Balance:
        complete = Counter(_number(table) for table in self._said if table.state == COMPLETE)
        failed = {_number(table) for table in self._said if table.state == FAILED}
        whole = self._fetched()
        listed: set[str] = set()

        def is_listed() -> bool:
            nonlocal listed
            listed = self._listed() or listed
            return listed.issuperset(map(product, complete))

        self.progress.wait_until(is_listed, READY_WITHIN, "the device lists the tables")
        findings = {
            "announced twice": {number for number, times in complete.items() if times > 1},
            "both complete and failed": complete.keys() & failed,
            "sent whole, and not announced": self._sent - complete.keys(),
            "on the bus in part, and never heard of again": self._arrived() - complete.keys() - failed,
            "announced, and other bytes than those sent": complete.keys() - whole,
            "complete, and not listed by the device": {number for number in complete if product(number) not in listed},
        }
        rows = {
            "tables begun": len(self._begun),
            "... of which the producer knows that all of it is on the bus": len(self._sent),
            "announced as complete": len(complete),
            "... fetched whole, the bytes that were sent": len(whole),
            "reported as never completed": len(failed),
            **{what: len(numbers) for what, numbers in findings.items()},
        }
        wrong = [f"{what}: {sorted(numbers)[:20]}" for what, numbers in findings.items() if numbers]
        lost = len(self._sent - complete.keys() | complete.keys() - whole)
        tally = Tally(len(self._sent), len(complete), lost, len(findings["announced twice"]), self._gaps.found)
        return Balance([*rows.items()], wrong, {"tables": tally})

    def _ended(self) -> set[int]:
        return {_number(table) for table in self._said if table.state in (COMPLETE, FAILED)}

    def _listed(self) -> set[str] | None:
        """Return the products of which the device has a complete table; None: it does not answer."""
        try:
            found = json.loads(self.deployment.proxy(self._device).command_inout("ListTables"))
        except tango.DevFailed:
            return None
        return {one["product"] for one in found if one["state"] == COMPLETE}

    def _arrived(self) -> set[int]:
        reader = self._bus.open_reader({CALIBRATION: None}, {})
        found: set[int] = set()
        while not reader.caught_up(CALIBRATION):
            found |= {int((record.key or b"")[-4:]) for record in reader.take(100, 0.5)}
        reader.close()
        return found

    def _fetched(self) -> set[int]:
        right, copy = set(), self.deployment.folder / "fetched"
        for table in self._said:
            number = _number(table)
            if table.state != COMPLETE or number in right:
                continue
            try:
                fetch(self._bus, table, copy, self.clock)
            except BusError as error:
                self.progress.step(f"  table {number}: {error}")
                continue
            if table.sha256 == digest(self.seed, number, self._size) and copy.stat().st_size == self._size:
                right.add(number)
            copy.unlink()
        return right


def _number(table: Table) -> int:
    return int(table.table.removeprefix("t"))
