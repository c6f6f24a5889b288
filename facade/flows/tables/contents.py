"""The bytes of the newest small tables, held in memory: a Tango call gets them at once, and never waits for the bus.

A thread of its own fetches what is announced, so that a table that comes slowly holds up no event. It begins with
the newest tables, and holds those of each subarray that have room. A table is held once its digest was found right;
the one before it is held until then, by its id.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from facade.bus.port import BusHealth, Reader, Record
from facade.clock import Clock
from facade.errors import BusError
from facade.flows.tables.assembly import Assembly, Ended, Limits
from facade.flows.tables.claims import Claims
from facade.flows.tables.flow import TablesFlow
from facade.flows.tables.messages import CALIBRATION, HeaderReader, Refused
from facade.flows.tables.sources import UNAVAILABLE
from facade.flows.tables.spool import Content, Spool
from facade.icd.model import Icd

_log = logging.getLogger(__name__)

TABLES_HELD = 4
"""As much as so many of the largest tables is held of each subarray, and while they are replaced, twice that."""
_BATCH = 16
_LOOK = 0.2
"""Time between two looks at what has been announced; also how long a wait for records may hold up the end [s]."""
_SILENCE = 10.0
"""For so long nothing may come [s]."""
_BUS_AGAIN = 2.0
"""Pause after the bus, or a store, has failed [s]."""
_TABLE_AGAIN = 600.0
"""Pause after a table was found not to be where it was announced: that is hardly repaired [s]."""


class Bus(Protocol):
    """As much of a bus as is needed."""

    health: BusHealth

    def open_reader(self, topics: Mapping[str, Sequence[int] | None], start: Mapping[str, Mapping[int, int]]) -> Reader:
        """Read some partitions of topics from given offsets on."""


@dataclass(frozen=True, slots=True)
class Held:
    """A complete table and its bytes."""

    table: Any
    content: bytes


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why a table could not be fetched."""

    version: tuple[Any, ...]
    reason: str
    until: float
    """When it is tried again, by the monotonic clock [s]."""


class Contents:
    """Holds the newest small tables; `run` is the body of the thread.

    Parameters
    ----------
    prefixes
        How the names of the products begin, for each subarray.
    most
        The largest table that is held [bytes].
    claims
        To fetch tables that came as references.
    known
        Whether all announcements have been read that stood on the bus at the start.
    """

    def __init__(
        self,
        flow: TablesFlow,
        prefixes: Sequence[str],
        bus: Bus,
        icd: Icd,
        *,
        most: int,
        claims: Claims,
        known: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._flow, self._prefixes, self._bus, self._clock = flow, prefixes, bus, clock
        self._most, self._claims, self._known = most, claims, known
        self._headers = HeaderReader(icd)
        self._held: dict[str, Held] = {}
        """By product."""
        self._troubles: dict[str, _Trouble] = {}
        """By product."""

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set."""
        while not stop.is_set():
            try:
                is_done = not self.step(stop.is_set)
            except Exception:  # a mistake of ours must not end the thread
                _log.exception("fetching tables failed")
                is_done = True
            if is_done:
                stop.wait(_LOOK)

    def step(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Fetch the newest table that is wanted and not held; False: there is none, or no broker."""
        if not self._known():
            return False
        wanted = {table.product: table for table in self._wanted()}
        for known in (self._held, self._troubles):
            for product in known.keys() - wanted.keys():
                del known[product]
        table = min(filter(self._is_due, wanted.values()), key=self._turn, default=None)
        if table is None or not self._bus.health.connected:
            return False
        self._fetch(table, stopped)
        return True

    def find(self, prefix: str, name: str) -> Held | str:
        """Return a table by its id or its product, or say why not; any thread may ask.

        Parameters
        ----------
        prefix
            How the names of the products begin that the caller may see.
        """
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
            # Of segments nobody else could make more; a reference may be read from elsewhere.
            advice = elsewhere if table.url is not None else "its producer may send it again"
            return f"{table.table} of {table.product} could not be fetched: {trouble.reason}; {advice}"
        if _version(table) not in map(_version, self._wanted()):
            room = TABLES_HELD * self._most
            return f"expected one of the newest tables with {room} bytes in all, got {table.table}; {elsewhere}"
        return f"{table.table} of {table.product} is being fetched; try again"

    def _wanted(self) -> list[Any]:
        """Return the tables that are to be held, the newest of each subarray first."""
        found = []
        # Looked at anew each time: whoever waited for a counter would see it raised before the table is there.
        complete = [one.table for one in list(self._flow.complete.values()) if one.table.size <= self._most]
        complete.sort(key=lambda table: table.time, reverse=True)
        for prefix in self._prefixes:
            room = TABLES_HELD * self._most
            for table in complete:
                if table.product.startswith(prefix) and table.size <= room:
                    room -= table.size
                    found.append(table)
        return found

    def _is_due(self, table: Any) -> bool:
        held, trouble = self._held.get(table.product), self._troubles.get(table.product)
        if held is not None and _version(held.table) == _version(table):
            return False
        return trouble is None or trouble.version != _version(table) or self._clock.monotonic() >= trouble.until

    def _turn(self, table: Any) -> float:
        """Return whose turn it is: what was not tried yet, the newest first; then what has waited longest."""
        trouble = self._troubles.get(table.product)
        return float("-inf") if trouble is None or trouble.version != _version(table) else trouble.until

    def _fetch(self, table: Any, stopped: Callable[[], bool]) -> None:
        pause = _TABLE_AGAIN
        try:
            content = self._refer(table) if table.url is not None else self._assemble(table, stopped)
        except BusError as error:
            content, pause = str(error), _BUS_AGAIN
        except Exception as error:  # a mistake about one table, or a host without files, must not hold up the others
            _log.exception("fetching failed product=%s table=%s", table.product, table.table)
            content, pause = f"internal error: {type(error).__name__}", _SILENCE
        if isinstance(content, str):
            before = self._troubles.get(table.product)
            is_known = before is not None and before.version == _version(table)
            self._troubles[table.product] = _Trouble(_version(table), content, self._clock.monotonic() + pause)
            level = logging.DEBUG if is_known else logging.WARNING
            _log.log(level, "table not fetched product=%s table=%s reason=%s", table.product, table.table, content)
        elif content is not None:
            self._troubles.pop(table.product, None)
            self._held[table.product] = Held(table, content)

    def _refer(self, table: Any) -> bytes | str:
        """Read what a reference refers to; a text: why it is not what was announced."""
        found = self._claims.look(table.url, table.size, table.sha256)
        if isinstance(found, Refused):
            if found.reason == UNAVAILABLE:
                raise BusError(_reason(found))  # it passes, as what is the matter with the bus does
            return _reason(found)
        return f"{table.url} is too large to be read" if found is None else bytes(found)

    def _assemble(self, table: Any, stopped: Callable[[], bool]) -> bytes | str | None:
        """Put a table together from where it stands on the bus; a text: why that failed; None: stopped before."""
        partition, last = table.partition, table.last_offset
        if None in (partition, table.first_offset, last):
            return "it is not known where it is"
        limits = Limits(disk=table.size, expiry=float("inf"), segments=sys.maxsize)
        assembly = Assembly(Spool(table.size, _memory_file), limits)
        reader = self._bus.open_reader({CALIBRATION: [partition]}, {CALIBRATION: {partition: table.first_offset}})
        try:
            heard = self._clock.monotonic()
            while not stopped():
                records = reader.take(_BATCH, _LOOK)
                for record in records:
                    if (content := self._add(assembly, table, record)) is not None:
                        return content
                if any(record.offset >= last for record in records) or reader.caught_up(CALIBRATION):
                    return f"its records are not on {CALIBRATION} any more, partition {partition} up to offset {last}"
                if records:
                    heard = self._clock.monotonic()
                elif self._clock.monotonic() - heard >= _SILENCE:
                    raise BusError(f"nothing came from the bus for {_SILENCE:g} s")
            return None
        finally:
            assembly.drop(partition)
            reader.close()

    def _add(self, assembly: Assembly, table: Any, record: Record) -> bytes | str | None:
        """Take a record; give the whole table if this was the last one, or why there is none."""
        header = self._headers.read(record)
        said = (table.product, table.kind, table.content_type, table.size, table.sha256)
        if isinstance(header, Refused) or (header.table, header.said) != (table.table, said):
            return None
        for event in assembly.add(header, record, 0.0):
            if isinstance(event, Ended):
                try:
                    if event.refused is not None or event.unseen:
                        return event.unseen or _reason(event.refused)
                    return _bytes(event.content)
                finally:
                    event.close()
        return None


def _bytes(content: Content | None) -> bytes:
    return content.read_bytes() if isinstance(content, Path) else bytes(content or b"")


def _reason(refused: Refused | None) -> str:
    return "" if refused is None else f"{refused.reason}: {refused.detail}"


def _version(table: Any) -> tuple[Any, ...]:
    """Return what tells one announcement from another."""
    place = (table.url, table.partition, table.first_offset, table.last_offset)
    return (table.table, table.sha256, table.size, table.content_type, *place)


def _memory_file() -> BinaryIO:
    """Open a file that has no name and takes no disk."""
    return cast(BinaryIO, os.fdopen(os.memfd_create("table"), "w+b", buffering=0))
