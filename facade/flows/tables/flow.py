"""Complete, lost and unfinished tables, from the reports of the assembling workers on ``tables``."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from facade.flows.tables.messages import ASSEMBLING, COMPLETE, FAILED, TABLES, decode_table
from facade.flows.tables.summaries import TableSummary, typed_summary
from facade.kernel.bus.port import Record
from facade.kernel.outcome import USED, Outcome, RecordRejected, Unused
from facade.kernel.printable import excerpt
from facade.kernel.runtime.projection import OLDER, Projection
from facade.sdp.messages import Table


class Complete(msgspec.Struct, frozen=True):
    """A complete table, and its summary."""

    table: Table
    summary: TableSummary


class TablesFlow(Projection[Table]):
    """A flow: the newest complete table of each product; see `facade.kernel.runtime.flow.Flow`."""

    topic = TABLES

    def __init__(self) -> None:
        self.complete: dict[str, Complete] = {}
        """The newest complete table by product."""
        self.assembling: dict[str, Table] = {}
        """Tables under way, by record key."""
        self.failed: dict[str, Table] = {}
        """The table that failed last, by product."""
        self.changes = 0

    def _read(self, record: Record) -> Table | Unused:
        return decode_table(record.value)

    def _remove(self, key: str) -> None:
        self.changes += 1
        self.assembling.pop(key, None)
        self.complete.pop(key, None)
        self.failed.pop(key.removesuffix("!failed"), None)

    def _take(self, table: Table, record: Record) -> Outcome:
        self.changes += 1
        if table.state == ASSEMBLING:
            self.assembling[(record.key or b"").decode("utf-8", "replace")] = table
        elif table.state == FAILED:
            self.failed[table.product] = table
        else:
            try:
                summary = typed_summary(table)
            except msgspec.ValidationError as error:
                return RecordRejected("summary", "$.summary", excerpt(str(error)))
            if _is_behind(table, self.complete.get(table.product)):
                return OLDER  # from a worker that did not know that it had lost the partition
            self.complete[table.product] = Complete(table, summary)
        return USED

    def find(self, prefix: str, name: str) -> Table | None:
        """Return a complete table by its id or its product, among the products with a prefix; for any thread."""
        for table in self.of(prefix):
            if table.state == COMPLETE and name in (table.table, table.product):
                return table
        return None

    def unknown(self, prefix: str, name: str) -> str:
        """Return the text for an unknown name, with the known ones."""
        known = ", ".join(sorted({one.product for one in self.of(prefix) if one.state == COMPLETE})) or "none yet"
        return f"expected the id of a complete table of this subarray, or one of its products ({known}), got {name!r}"

    def of(self, prefix: str) -> Iterator[Table]:
        """Return all tables of the products with a prefix; for any thread."""
        complete = (one.table for one in list(self.complete.values()))
        for table in chain(complete, list(self.assembling.values()), list(self.failed.values())):
            if table.product.startswith(prefix):
                yield table


def _is_behind(table: Table, known: Complete | None) -> bool:
    """Return whether a table is older on its partition than the known one of its product."""
    if known is None or table.last_offset is None or known.table.last_offset is None:
        return False
    where, known_where = (table.log, table.partition), (known.table.log, known.table.partition)
    return where == known_where and table.last_offset < known.table.last_offset


def products_of(device: str) -> str:
    """Return the prefix of a device's products."""
    return f"subarray/{device.rsplit('/', 1)[-1]}/"


def describe(table: Table, *, summary: bool = False) -> dict[str, Any]:
    """Return the known fields of a table in JSON's types, without the tables before it."""
    known: dict[str, Any] = msgspec.to_builtins(table)
    hidden = ("earlier",) if summary else ("earlier", "summary")
    return {name: value for name, value in known.items() if name not in hidden}
