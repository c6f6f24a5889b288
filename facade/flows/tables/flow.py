"""Which tables are complete, under way or lost, by what the assembling workers say on ``tables``."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder, printable
from facade.codec.json_schema import compile_message
from facade.icd.model import Icd
from facade.outcome import TOMBSTONE, USED, Outcome, Rejected, Suppressed
from facade.runtime.flow import Flow

TABLES = "tables"
COMPLETE, ASSEMBLING, FAILED = "COMPLETE", "ASSEMBLING", "FAILED"


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a table with gains or a bandpass; see `facade.flows.tables.content`."""

    solution_id: str
    source_model: str = ""
    valid_from: int | None = None
    """[Unix us]; None: the table does not say."""
    valid_until: int | None = None
    antennas: list[str]
    channels: int
    polarisations: list[str] = []
    flagged_fraction: float = 0.0
    snr: float | None = None
    amplitude: list[list[float | None]] = []
    """Antenna by channel; None where everything is flagged."""
    phase: list[list[float | None]] = []
    """[rad]"""
    channel_frequencies: list[float] = []
    """[Hz]"""
    antenna_amplitude: list[float | None] = []
    antenna_phase_rms: list[float | None] = []
    antenna_flagged: list[float] = []

    @property
    def is_even(self) -> bool:
        """Return whether the images are some."""
        return all(len({len(row) for row in rows}) <= 1 for rows in (self.amplitude, self.phase))


class Pointing(msgspec.Struct, frozen=True):
    """The summary of a table with pointing offsets."""

    pointing: dict[str, tuple[float, float, float]] = {}
    """Scan id, cross-elevation and elevation offset by dish."""


_SUMMARIES: dict[str, Any] = {"gains": Solution, "bandpass": Solution, "pointing": Pointing}


def _form(table: Any) -> Any:
    """Return the form that the summary of a table must have."""
    looked_into = isinstance(table.summary, dict) and "note" not in table.summary
    return _SUMMARIES.get(table.kind, Any) if looked_into else Any


class Complete(msgspec.Struct, frozen=True):
    """A complete table, and what is in it in short."""

    table: Any
    summary: Any


class TablesFlow(Flow):
    """A flow: the newest complete table of each product; see `facade.runtime.flow.Flow`.

    The topic is compacted and keyed so that reading it from its beginning gives all of it at once,
    whenever a device server starts.
    """

    topic = TABLES

    def __init__(self, icd: Icd) -> None:
        self.complete: dict[str, Complete] = {}
        """The newest complete table by product."""
        self.assembling: dict[str, Any] = {}
        """Tables under way, by record key."""
        self.failed: dict[str, Any] = {}
        """The table that failed last, by product."""
        self.changes = 0
        """How often any of them has changed."""
        self._decoder = BatchDecoder(compile_message("table", icd.messages["table"]))

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Take what became of a table; see `facade.runtime.flow.Flow`."""
        key = (record.key or b"").decode("utf-8", "replace")
        if record.value is None:
            self.changes += 1
            for known in (self.assembling, self.complete):
                known.pop(key, None)
            self.failed.pop(key.removesuffix("!failed"), None)
            return TOMBSTONE
        table: Any = self._decoder.decode_one(record.value)
        if isinstance(table, Rejected):
            return table
        self.changes += 1
        if table.state == ASSEMBLING:
            self.assembling[key] = table
        elif table.state == FAILED:
            self.failed[table.product] = table
        else:
            try:
                summary = msgspec.convert(table.summary, _form(table))
            except msgspec.ValidationError as error:
                return Rejected("summary", "$.summary", printable(str(error)))
            if isinstance(summary, Solution) and not summary.is_even:
                return Rejected("summary", "$.summary", "expected rows of one length in amplitude and phase")
            if _is_behind(table, self.complete.get(table.product)):
                return Suppressed("older")  # of a worker that did not know that it had lost the partition
            self.complete[table.product] = Complete(table, summary)
        return USED

    def find(self, prefix: str, name: str) -> Any | None:
        """Return the complete table of an id, or the newest one of a product, of some products; any thread may ask."""
        for table in self.of(prefix):
            if table.state == COMPLETE and name in (table.table, table.product):
                return table
        return None

    def unknown(self, prefix: str, name: str) -> str:
        """Say that a name is not one of a complete table, and which ones would be."""
        known = ", ".join(sorted({one.product for one in self.of(prefix) if one.state == COMPLETE})) or "none yet"
        return f"expected the id of a complete table of this subarray, or one of its products ({known}), got {name!r}"

    def of(self, prefix: str) -> Iterator[Any]:
        """Return all that is known of the products whose names begin in some way; any thread may ask."""
        complete = (one.table for one in list(self.complete.values()))
        for table in chain(complete, list(self.assembling.values()), list(self.failed.values())):
            if table.product.startswith(prefix):
                yield table


def _is_behind(table: Any, known: Complete | None) -> bool:
    """Return whether a table stands on its partition before the one that is known of its product."""
    if known is None or None in (table.last_offset, known.table.last_offset):
        return False
    return bool(table.partition == known.table.partition and table.last_offset < known.table.last_offset)


def products_of(device: str) -> str:
    """Return how the names of the products begin that the device of a subarray shows."""
    return f"subarray/{device.rsplit('/', 1)[-1]}/"


def describe(table: Any, *, summary: bool = False) -> dict[str, Any]:
    """Return what is known of a table in JSON's types, without what is not known."""
    known = {name: getattr(table, name) for name in table.__struct_fields__}
    return {
        name: value
        for name, value in known.items()
        if value is not None and value is not msgspec.UNSET and (summary or name != "summary")
    }


def location(table: Any) -> dict[str, Any]:
    """Say where a complete table is."""
    names = ("url",) if table.url is not None else ("partition", "first_offset", "last_offset")
    found = {name: getattr(table, name) for name in names}
    return found if table.url is not None else {"topic": "calibration", **found}
