"""The fault run: starts all, kills producer, worker, device server and broker, and asks what became of the tables."""

import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import tango

from devices.registration import register
from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.connection import Connection
from facade.errors import BusError
from facade.flows.tables.fetch import fetch
from facade.flows.tables.messages import CALIBRATION, COMPLETE, FAILED, TABLES, decode_table
from facade.infra import local
from facade.messages import Table
from proving.table_faults.producer import digest, product, read_journal
from proving.testbed import Running, Stage

DEVICE = "mid-sdp/calibration/01"
EXPIRY = 30.0
"""A table of which nothing comes for so long is given up [s]."""
_BETWEEN = (1.0, 4.0)
"""Shortest and longest time between two kills [s]."""
_SETTLED_WITHIN = EXPIRY + 60.0
_READY_WITHIN = 60.0
_PROGRESS = 5.0
_CLI = "facade.cli"
_SERVER = "from devices.server import main; main()"


@dataclass(slots=True)
class Account:
    """What became of the tables."""

    rows: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class TableFaultRun:
    """One run of the tables.

    Parameters
    ----------
    size
        Of a table [bytes].
    seed
        Of the tables and of the kills; what happens in between is up to the machine.
    """

    def __init__(self, stage: Stage, *, tables: int, size: int, seed: int) -> None:
        self._stage, self._tables, self._size, self._seed = stage, tables, size, seed
        self._settings = stage.settings("table-faults", nodes=1)
        self._journal = stage.folder / "tables.txt"
        self._chance = random.Random(seed)  # noqa: S311 - a schedule that can be repeated
        self._running: dict[str, Running] = {}
        self._bag: list[str] = []
        self._said: list[Table] = []
        """Everything that was ever said on the topic, which is compacted."""
        self.kills: Counter[str] = Counter()

    def run(self) -> Account:
        """Do it all.

        Raises
        ------
        BenchError
            A part did not come back.
        """
        stage = self._stage
        with stage.topics(self._settings, 1):
            register(stage.icd, self._settings, stage.tango_host)
            bus = KafkaBus(Connection(self._settings, clock=stage.clock), client="fault-run")
            self._revive()
            self._drive(bus)
            self._revive()
            stage.until(lambda: self._is_listed() is not None, "the device server", _READY_WITHIN)
            return self._account(bus)

    def _drive(self, bus: KafkaBus) -> None:
        """Kill until all tables have been sent, and wait until each of them has ended."""
        clock = self._stage.clock
        reader = bus.open_reader({TABLES: None}, {})
        said = clock.monotonic()
        next_kill = said + self._chance.uniform(*_BETWEEN)
        settled_by, awaited = float("inf"), set[int]()
        while (now := clock.monotonic()) < settled_by:
            self._listen([record.value for record in reader.take(100, 0.05)])
            begun, sent = read_journal(self._journal)
            if len(begun) < self._tables or self._running["producer"].is_alive:
                if now >= next_kill:
                    self._kill()
                    next_kill = clock.monotonic() + self._chance.uniform(*_BETWEEN)
            elif settled_by == float("inf"):
                # Of a table whose producer was killed before anything of it was sent, nobody will ever hear.
                settled_by, awaited = now + _SETTLED_WITHIN, sent | self._arrived(bus)
            elif awaited <= self._ended():
                break
            self._revive(producing=len(begun) < self._tables)
            if now - said >= _PROGRESS:
                said = now
                kills = ", ".join(f"{part} {count}" for part, count in self.kills.items())
                ended = len(self._ended())
                self._stage.say(f"  {len(begun)} tables begun, {len(sent)} sent, {ended} ended; killed: {kills}")
        reader.close()

    def _listen(self, values: list[bytes | None]) -> None:
        self._said += [table for value in values if isinstance(table := decode_table(value), Table)]

    def _ended(self) -> set[int]:
        return {_number(table) for table in self._said if table.state in (COMPLETE, FAILED)}

    def _kill(self) -> None:
        if not self._bag:
            parts = ["broker", "device server", *["assembling worker", "producer"] * 2]
            self._bag = self._chance.sample(parts, len(parts))
        part = self._bag.pop()
        self.kills[part] += 1
        if part != "broker":
            self._running[part].kill()
            return
        local.stop_service(self._stage.state_dir, local.ServiceName.KAFKA, kill=True, clock=self._stage.clock)
        local.start_service(self._stage.state_dir, local.ServiceName.KAFKA, clock=self._stage.clock)

    def _revive(self, *, producing: bool = True) -> None:
        """Start what has ended."""
        task = [str(self._journal), str(self._seed), str(self._tables), str(self._size)]
        wanted = {
            "assembling worker": [sys.executable, "-m", _CLI, "tables", "assemble"],
            "device server": [sys.executable, "-c", _SERVER, "calibration"],
        }
        if producing:
            wanted["producer"] = [sys.executable, "-m", "proving.table_faults.producer", *task]
        for part, argv in wanted.items():
            if part not in self._running or not self._running[part].is_alive:
                name = part.replace(" ", "-")
                expiry = {"SDP_TABLE_EXPIRY": str(EXPIRY)}
                self._running[part] = self._stage.start(name, argv, self._settings, **expiry)

    def _is_listed(self) -> set[str] | None:
        """Return the products of which the device has a complete table; None: it does not answer."""
        try:
            # A proxy of its own each time: one that has failed waits before it tries again.
            found = json.loads(tango.DeviceProxy(f"tango://{self._stage.tango_host}/{DEVICE}").ListTables())
        except tango.DevFailed:
            return None
        return {one["product"] for one in found if one["state"] == COMPLETE}

    def _account(self, bus: KafkaBus) -> Account:
        begun, sent = read_journal(self._journal)
        complete = Counter(_number(table) for table in self._said if table.state == COMPLETE)
        failed = {_number(table) for table in self._said if table.state == FAILED}
        whole = self._fetched(bus)
        account = Account()
        findings = {
            "announced twice": {number for number, times in complete.items() if times > 1},
            "both complete and failed": complete.keys() & failed,
            "sent whole, and not announced": sent - complete.keys(),
            "on the bus in part, and never heard of again": self._arrived(bus) - complete.keys() - failed,
            "announced, and other bytes than those sent": complete.keys() - whole,
        }
        listed = self._is_listed() or set()
        findings["complete, and not listed by the device"] = {n for n in complete if product(n) not in listed}
        account.rows |= {
            "tables begun": len(begun),
            "... of which the producer knows that all of it is on the bus": len(sent),
            "announced as complete": len(complete),
            "... fetched whole, the bytes that were sent": len(whole),
            "reported as never completed": len(failed),
            **{what: len(numbers) for what, numbers in findings.items()},
        }
        account.wrong += [f"{what}: {sorted(numbers)[:20]}" for what, numbers in findings.items() if numbers]
        return account

    def _arrived(self, bus: KafkaBus) -> set[int]:
        """Return the tables of which any segment is on the bus."""
        reader = bus.open_reader({CALIBRATION: None}, {})
        found: set[int] = set()
        while not reader.caught_up(CALIBRATION):
            found |= {int((record.key or b"")[-4:]) for record in reader.take(100, 0.5)}
        reader.close()
        return found

    def _fetched(self, bus: KafkaBus) -> set[int]:
        """Fetch every complete table, and give those that are what was sent."""
        right = set()
        for table in self._said:
            number = _number(table)
            if table.state != COMPLETE or number in right:
                continue
            copy = Path(self._stage.folder / "fetched")
            try:
                fetch(bus, table, copy, self._stage.clock)
            except BusError as error:
                self._stage.say(f"  table {number}: {error}")
                continue
            if table.sha256 == digest(self._seed, number, self._size) and copy.stat().st_size == self._size:
                right.add(number)
            copy.unlink()
        return right


def _number(table: Table) -> int:
    return int(msgspec.structs.asdict(table)["table"].removeprefix("t"))
