"""Reads a complete table from its position on ``tables``: its segments, or by its reference."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from facade.flows.tables.assembly import OUR_DISK, STORAGE, Assembly, AssemblyLimits, Ended, SegmentReader
from facade.flows.tables.buffers import BufferPool, Content
from facade.flows.tables.messages import CALIBRATION, COMPLETE, TABLES, decode_table, identity
from facade.flows.tables.references import ReferenceReader, References
from facade.kernel.bus.port import Reader, Record
from facade.kernel.clock import Clock
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.outcome import RecordRejected
from facade.kernel.runtime.readers import Bus
from facade.sdp.messages import Table, TableSegment

_BATCH = 16
_WAIT = 0.2
"""Longest wait of a step [s]."""
_SILENCE = 10.0
"""Longest time without records from the bus [s]."""


class TableFetch:
    """Reads one table; call `step` until it returns a content or a rejection, and `close` at the end."""

    def __init__(
        self,
        table: Table,
        bus: Bus,
        references: References,
        pool: BufferPool,
        clock: Clock,
    ) -> None:
        self.received = 0
        self._table, self._clock = table, clock
        self._heard = clock.monotonic()
        self._reader: Reader | None = None
        self._ended: Ended | None = None
        self._is_past_end = False
        self._reference: ReferenceReader | None = None
        if table.url is not None:
            self._reference = ReferenceReader(references, table.url, table.size, table.sha256, pool)
            return
        limits = AssemblyLimits(disk=table.size, expiry=float("inf"), segments=sys.maxsize)
        self._partition, self._last = table.partition or 0, -1 if table.last_offset is None else table.last_offset
        self._assembly = Assembly(pool, limits)
        self._segments = SegmentReader(self._take, self._assembly, clock, batch=_BATCH, is_wanted=self._is_wanted)
        if None not in (table.partition, table.first_offset, table.last_offset):
            start = {self._partition: table.first_offset or 0}
            self._reader = bus.open_reader({CALIBRATION: [self._partition]}, {CALIBRATION: start})

    def step(self) -> Content | RecordRejected | None:
        """Continue, with a short wait; None: the table is not complete yet. The content is valid until `close`."""
        if self._reference is None:
            return self._step_on_bus()
        is_done = self._reference.step()
        self.received = self._reference.buffer.size
        return (self._reference.rejected or self._reference.buffer.content()) if is_done else None

    def close(self) -> None:
        """Free memory, disk and reader."""
        if self._reference is not None:
            self._reference.close()
            return
        self._assembly.drop(self._partition)
        if self._ended is not None:
            self._ended.close()
        if self._reader is not None:
            self._reader.close()

    def _step_on_bus(self) -> Content | RecordRejected | None:
        if self._reader is None:
            return RecordRejected("gone", "$", "it is not known where it is")
        self._segments.take(_WAIT)
        for _, outcome in self._segments.outcomes():
            if isinstance(outcome, Ended):
                self._ended = outcome
                if outcome.rejected is None and outcome.content is None:
                    return RecordRejected(STORAGE, "$", outcome.unseen)
                return outcome.rejected or outcome.content
        if self._is_past_end or self._reader.caught_up(CALIBRATION):
            table, where = self._table, f"partition {self._partition} up to offset {self._last}"
            what = f"its records are not on {CALIBRATION} any more, {where}"
            return RecordRejected("gone", "$", f"{what}: expected {table.size} bytes, got {self.received}")
        if self._clock.monotonic() - self._heard >= _SILENCE:
            raise BusError(f"nothing came from the bus for {_SILENCE:g} s")
        return None

    def _take(self, limit: int, timeout: float) -> Sequence[Record]:
        records = self._reader.take(limit, timeout) if self._reader is not None else ()
        if records:
            self._heard = self._clock.monotonic()
        return records

    def _is_wanted(self, record: Record, header: TableSegment | RecordRejected | None) -> bool:
        self._is_past_end = record.offset >= self._last
        if not isinstance(header, TableSegment) or header.count == 0:
            return False
        is_wanted = (header.table, identity(header)) == (self._table.table, identity(self._table))
        if is_wanted:
            self.received = min(self.received + len(record.value or b""), self._table.size)
        return is_wanted


def newest_tables(bus: Bus) -> dict[str, Table]:
    """Return the messages on ``tables`` by key, without malformed ones."""
    found: dict[str, Table] = {}
    for record in bus.read_all(TABLES):
        key = (record.key or b"").decode("utf-8", "replace")
        found.pop(key, None)
        if isinstance(table := decode_table(record.value), Table):
            found[key] = table
    return found


def find(bus: Bus, name: str) -> Table:
    """Return the complete table of an id, or the newest one of a product, or raise BusError without one."""
    known = newest_tables(bus)
    complete = [table for table in known.values() if table.state == COMPLETE]
    for table in complete:
        if name in (table.table, table.product):
            return table
    mine = [table for table in known.values() if name in (table.table, table.product)]
    others = [f"{one.table} is {one.state}" + (f" ({one.reason})" if one.reason else "") for one in mine]
    products = ", ".join(sorted(table.product for table in complete)) or "none"
    what = "; ".join(others) or f"complete ones are of the products {products}"
    raise BusError(f"table {name!r}: expected the id of a product's newest complete table, or a product, got: {what}")


def fetch(
    bus: Bus,
    table: Table,
    output: Path,
    clock: Clock,
    *,
    references: References | None = None,
    progress: Callable[[int], None] = lambda size: None,
) -> None:
    """Write the content of a complete table to a file; the file appears after its checksum was verified."""
    paths: list[Path] = []
    """Files beside the output; the last one opened becomes the output."""
    reported = 0

    def open_part() -> BinaryIO:
        path = output.with_name(f".{output.name}.{os.getpid()}-{len(paths)}.part")
        file = path.open("x+b", buffering=0)
        paths.append(path)
        return cast(BinaryIO, file)

    pool = BufferPool(-1, open_part)
    made = TableFetch(table, bus, references or References([]), pool, clock)
    try:
        while (found := made.step()) is None:
            if made.received > reported:
                reported = made.received
                progress(reported)
        if isinstance(found, RecordRejected):
            if found.reason in OUR_DISK:
                raise ConfigError(f"{output}: cannot be written: {found.detail}")
            raise BusError(f"table {table.table}: {found.reason}: {found.detail}")
        if made.received > reported:
            progress(made.received)
        if not paths:  # a table without bytes
            open_part().close()
        paths.pop().replace(output)
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror or error}") from error
    finally:
        made.close()
        for path in paths:
            path.unlink(missing_ok=True)
