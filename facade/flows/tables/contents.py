"""The bytes of the newest small tables, held in memory, so that a Tango call never waits for the bus.

A thread fetches announced tables, the newest first, as many of each subarray as fit. A table is held after its checksum
was verified; until then the previous one is held, under its own id.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from facade.flows.tables.buffers import BufferPool, Content
from facade.flows.tables.fetch import TableFetch
from facade.flows.tables.flow import TablesFlow
from facade.flows.tables.places import UNAVAILABLE
from facade.flows.tables.references import References
from facade.kernel.clock import Clock
from facade.kernel.errors import BusError
from facade.kernel.outcome import RecordRejected
from facade.kernel.runtime.readers import Bus
from facade.kernel.runtime.steps import run_steps
from facade.sdp.messages import Table

_log = logging.getLogger(__name__)

TABLES_HELD = 4
"""Capacity for each subarray, in largest tables; twice that while they are replaced."""
_LOOK = 0.2
"""Time between two checks of the announcements [s]."""
_BUS_AGAIN = 2.0
"""Pause after a failure of the bus or a store [s]."""
_MISTAKE_AGAIN = 10.0
"""Pause after a bug [s]."""
_TABLE_AGAIN = 600.0
"""Pause after a missing table [s]."""


@dataclass(frozen=True, slots=True)
class Held:
    """A complete table and its bytes."""

    table: Table
    content: bytes


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Reason why a table could not be fetched."""

    version: tuple[object, ...]
    reason: str
    until: float
    """Time of the next try, by the monotonic clock [s]."""


class Contents:
    """Holds the newest small tables; `run` is the body of the thread."""

    def __init__(
        self,
        flow: TablesFlow,
        prefixes: Sequence[str],
        bus: Bus,
        *,
        most: int,
        references: References,
        known: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._flow, self._prefixes, self._bus, self._clock = flow, prefixes, bus, clock
        self._most, self._references, self._known = most, references, known
        self._held: dict[str, Held] = {}
        self._troubles: dict[str, _Trouble] = {}
        self._fetching: Table | None = None
        self._fetch: TableFetch | None = None

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set."""
        run_steps(self.step, stop, "fetching tables", each=_LOOK)
        self.close()

    def step(self) -> bool:
        """Continue to read the newest wanted table that is not held; False: there is none, or no broker."""
        if self._fetching is not None:
            self._go_on(self._fetching)
            return True
        if not self._known():
            return False
        wanted = {table.product: table for table in self._wanted()}
        for known in (self._held, self._troubles):
            for product in known.keys() - wanted.keys():
                del known[product]
        table = min(filter(self._is_due, wanted.values()), key=self._turn, default=None)
        if table is None or not self._bus.health.connected:
            return False
        self._fetching = table
        return True

    def close(self) -> None:
        """Abandon the table being fetched."""
        if self._fetch is not None:
            self._fetch.close()
        self._fetching = self._fetch = None

    def find(self, prefix: str, name: str) -> Held | str:
        """Return a table by its id or its product, among the products with a prefix, or a reason; for any thread."""
        table = self._flow.find(prefix, name)
        if table is None:
            before = (held for held in list(self._held.values()) if held.table.table == name)
            mine = (held for held in before if held.table.product.startswith(prefix))
            return next(mine, None) or self._flow.unknown(prefix, name)
        elsewhere = f"fetch it with `sdp-facade tables get {table.product}`, or from where GetTable says that it is"
        if table.size > self._most:
            return f"expected a table of at most {self._most} bytes, got {table.table} of {table.size}; {elsewhere}"
        held, trouble = self._held.get(table.product), self._troubles.get(table.product)
        if held is not None and _version(held.table) == _version(table):
            return held
        if trouble is not None and trouble.version == _version(table):
            advice = elsewhere if table.url is not None else "its producer may send it again"
            return f"{table.table} of {table.product} could not be fetched: {trouble.reason}; {advice}"
        if _version(table) not in map(_version, self._wanted()):
            room = TABLES_HELD * self._most
            return f"expected one of the newest tables with {room} bytes in all, got {table.table}; {elsewhere}"
        return f"{table.table} of {table.product} is being fetched; try again"

    def _wanted(self) -> list[Table]:
        found = []
        complete = [one.table for one in list(self._flow.complete.values()) if one.table.size <= self._most]
        complete.sort(key=lambda table: table.time, reverse=True)
        for prefix in self._prefixes:
            room = TABLES_HELD * self._most
            for table in complete:
                if table.product.startswith(prefix) and table.size <= room:
                    room -= table.size
                    found.append(table)
        return found

    def _is_due(self, table: Table) -> bool:
        held, trouble = self._held.get(table.product), self._troubles.get(table.product)
        if held is not None and _version(held.table) == _version(table):
            return False
        return trouble is None or trouble.version != _version(table) or self._clock.monotonic() >= trouble.until

    def _turn(self, table: Table) -> float:
        trouble = self._troubles.get(table.product)
        return float("-inf") if trouble is None or trouble.version != _version(table) else trouble.until

    def _go_on(self, table: Table) -> None:
        found: Content | RecordRejected | None = None
        try:
            if self._fetch is None:
                pool = BufferPool(table.size, _memory_file)
                self._fetch = TableFetch(table, self._bus, self._references, pool, self._clock)
            found = self._fetch.step()
            if found is None:
                return
            if isinstance(found, RecordRejected):
                # A store that is away comes back, as the bus does.
                self._fail(
                    table,
                    f"{found.reason}: {found.detail}",
                    _BUS_AGAIN if found.reason == UNAVAILABLE else _TABLE_AGAIN,
                )
            else:
                self._held[table.product] = Held(table, found.read_bytes() if isinstance(found, Path) else bytes(found))
                self._troubles.pop(table.product, None)
        except BusError as error:
            self._fail(table, str(error), _BUS_AGAIN)
        except Exception as error:  # trouble with one table must not hold up the others
            _log.exception("fetching failed product=%s table=%s", table.product, table.table)
            self._fail(table, f"internal error: {type(error).__name__}", _MISTAKE_AGAIN)
        self.close()

    def _fail(self, table: Table, reason: str, pause: float) -> None:
        before = self._troubles.get(table.product)
        is_known = before is not None and before.version == _version(table)
        self._troubles[table.product] = _Trouble(_version(table), reason, self._clock.monotonic() + pause)
        level = logging.DEBUG if is_known else logging.WARNING
        _log.log(level, "table not fetched product=%s table=%s reason=%s", table.product, table.table, reason)


def _version(table: Table) -> tuple[object, ...]:
    place = (table.url, table.partition, table.first_offset, table.last_offset)
    return (table.table, table.sha256, table.size, table.content_type, *place)


def _memory_file() -> BinaryIO:
    return cast(BinaryIO, os.fdopen(os.memfd_create("table"), "w+b", buffering=0))
