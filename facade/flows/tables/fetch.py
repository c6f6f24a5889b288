"""Reads a complete table back from where ``tables`` says that it is, and checks its digest."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import msgspec

from facade.bus.port import Reader, Record
from facade.clock import Clock
from facade.errors import BusError, ConfigError
from facade.flows.tables.assembly import OUR_DISK, Assembly, Ended, Limits
from facade.flows.tables.claims import Claims, Sink
from facade.flows.tables.messages import CALIBRATION, COMPLETE, TABLES, HeaderReader, Refused, Table, decode_table
from facade.flows.tables.spool import Spool, write_all
from facade.icd.model import Icd

_BATCH = 16
_SILENCE = 10.0
"""For so long nothing may come [s]."""


class Bus(Protocol):
    """As much of a bus as is needed to fetch a table."""

    def open_reader(self, topics: Mapping[str, Sequence[int] | None], start: Mapping[str, Mapping[int, int]]) -> Reader:
        """Read some partitions of topics from given offsets on."""

    def read_all(self, topic: str) -> list[Record]:
        """Return everything that is on a topic."""


def newest_tables(bus: Bus) -> dict[str, Table]:
    """Return what ``tables`` says, by key; what is no such message is left out."""
    found: dict[str, Table] = {}
    for record in bus.read_all(TABLES):
        key = (record.key or b"").decode("utf-8", "replace")
        found.pop(key, None)
        if record.value is not None:
            try:
                found[key] = decode_table(record.value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
    return found


def find(bus: Bus, name: str) -> Table:
    """Return the complete table of an id, or the newest one of a product.

    Raises
    ------
    BusError
        There is none; the message says what is known of the name.
    """
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
    icd: Icd,
    clock: Clock,
    *,
    claims: Claims | None = None,
    progress: Callable[[int], None] = lambda size: None,
) -> None:
    """Write the content of a complete table to a file, which is there only once its digest was found right.

    Parameters
    ----------
    claims
        To fetch tables that came as references.
    progress
        Is told how many bytes have come.

    Raises
    ------
    BusError
        Not all of it is there any more, or it is not what was announced.
    ConfigError
        The file cannot be written.
    """
    parts = _Parts(output)
    try:
        if table.url is msgspec.UNSET:
            _assemble(bus, table, parts, icd, clock, progress)
        else:
            _copy(claims or Claims([]), table, parts, progress)
        parts.publish()
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror or error}") from error
    finally:
        parts.remove()


class _Parts:
    """Files beside the output, of which the last one opened becomes the output."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self._paths: list[Path] = []

    def open(self) -> BinaryIO:
        """Open a further one."""
        path = self.output.with_name(f".{self.output.name}.{os.getpid()}-{len(self._paths)}.part")
        file = path.open("x+b", buffering=0)
        self._paths.append(path)
        return cast(BinaryIO, file)

    def publish(self) -> None:
        """Return the newest one the output's name."""
        self._paths.pop().replace(self.output)

    def remove(self) -> None:
        """Remove what was not published."""
        for path in self._paths:
            path.unlink(missing_ok=True)


def _assemble(bus: Bus, table: Table, parts: _Parts, icd: Icd, clock: Clock, progress: Callable[[int], None]) -> None:
    """Put its segments together once more, in the order in which they are, straight into a file."""
    place = (table.partition, table.first_offset, table.last_offset)
    if msgspec.UNSET in place:
        raise BusError(f"table {table.table}: expected partition, first and last offset, got {place}")
    partition, first, last = (int(number) for number in place if number is not msgspec.UNSET)
    limits = Limits(disk=table.size + 1, expiry=float("inf"), segments=sys.maxsize)
    assembly = Assembly(Spool(-1, parts.open), limits)
    headers = HeaderReader(icd)
    got = 0
    for record in _records(bus, partition, first, last, clock):
        header = headers.read(record)
        if isinstance(header, Refused) or (header.table, header.said) != (table.table, table.said):
            continue
        got += len(record.value or b"")
        progress(min(got, table.size))
        for event in assembly.add(header, record, 0.0):
            if isinstance(event, Ended):
                event.close()
                if event.refused is None:
                    return
                if event.refused.reason in OUR_DISK:
                    raise ConfigError(f"{parts.output}: cannot be written: {event.refused.detail}")
                raise BusError(f"table {table.table}: {event.refused.reason}: {event.refused.detail}")
    assembly.drop(partition)
    raise BusError(f"table {table.table}: expected {table.size} bytes from {partition}/{first} to {last}, got {got}")


def _records(bus: Bus, partition: int, first: int, last: int, clock: Clock) -> Iterator[Record]:
    """Read a range of offsets; what is not there any more is left out."""
    reader = bus.open_reader({CALIBRATION: [partition]}, {CALIBRATION: {partition: first}})
    try:
        heard = clock.monotonic()
        while clock.monotonic() - heard < _SILENCE:
            for record in reader.take(_BATCH, 0.2):
                heard = clock.monotonic()
                if record.offset > last:
                    return
                yield record
                if record.offset == last:
                    return
            if reader.caught_up(CALIBRATION):
                return
    finally:
        reader.close()


def _copy(claims: Claims, table: Table, parts: _Parts, progress: Callable[[int], None]) -> None:
    """Copy what a reference refers to; the copy has the digest, whatever becomes of the original meanwhile."""
    with ExitStack() as files:

        def begin() -> Sink:
            copy = files.enter_context(parts.open())

            def take(part: bytes) -> None:
                write_all(copy, part)
                progress(copy.tell())

            return take

        refused = claims.copy(str(table.url), table.size, table.sha256, begin)
    if refused is not None:
        raise BusError(f"table {table.table}: {refused.reason}: {refused.detail}")
