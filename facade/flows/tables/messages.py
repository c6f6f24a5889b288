"""The messages of the tables; their wire forms are the JSON Schemas ``table-segment`` and ``table``.

Times are Unix times in microseconds, as in every message of the bus. The keys on ``tables`` are the product
for its newest complete table, ``product!table`` for one under way, and ``product!failed`` for the one that
failed last; a product has no ! in its name.
"""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.codec.json_schema import compile_message
from facade.icd.model import Icd
from facade.outcome import Rejected

CALIBRATION, TABLES = "calibration", "tables"
"""Topics, by their names in the ICD."""

SEGMENT = "segment"
"""Header that says what the bytes of a record are."""

Said = tuple[str, str, str, int, str]
"""Product, kind, content type, size and digest of a table."""

State = Literal["ASSEMBLING", "COMPLETE", "FAILED"]
ASSEMBLING: State = "ASSEMBLING"
COMPLETE: State = "COMPLETE"
FAILED: State = "FAILED"


class SegmentHeader(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="schema", tag="table-segment/1", kw_only=True
):
    """What a record on ``calibration`` is; the wire form is ``table-segment.schema.json``."""

    table: str
    product: str
    kind: str
    content_type: str
    index: int
    count: int
    """Segments of the table; 0: the record is a reference."""
    size: int
    """Of the whole table [bytes]."""
    sha256: str
    """Of the whole table."""
    sent_at: int
    start: int | msgspec.UnsetType = msgspec.UNSET
    """Where in the table the segment begins [bytes]."""
    url: str | msgspec.UnsetType = msgspec.UNSET
    """Of a reference: where the table is."""

    @property
    def said(self) -> Said:
        """Return what is said of the whole table."""
        return self.product, self.kind, self.content_type, self.size, self.sha256

    @property
    def whole(self) -> tuple[Said, int]:
        """Return what all segments of one table have in common."""
        return self.said, self.count


class Table(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="schema", tag="table/1", kw_only=True):
    """What became of a table; the wire form is ``table.schema.json``."""

    table: str
    product: str
    kind: str
    content_type: str
    state: State
    size: int
    received: int
    """[bytes]"""
    sha256: str
    sent_at: int
    time: int
    partition: int | msgspec.UnsetType = msgspec.UNSET
    first_offset: int | msgspec.UnsetType = msgspec.UNSET
    last_offset: int | msgspec.UnsetType = msgspec.UNSET
    """The record that completed it. While it is under way: the newest record of the partition that was dealt with."""
    url: str | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET
    summary: Any = msgspec.UNSET

    @property
    def said(self) -> Said:
        """Return what its segments said of it."""
        return self.product, self.kind, self.content_type, self.size, self.sha256


@dataclass(frozen=True, slots=True)
class Refused(Rejected):
    """Why a record, or a table, cannot be used."""

    letter: bool = True
    """Whether it is set aside; not again for each record of a table that has been given up."""


class HeaderReader:
    """Reads the headers of segments; whatever a record is, this does not raise."""

    def __init__(self, icd: Icd) -> None:
        self._check = BatchDecoder(compile_message("table-segment", icd.messages["table-segment"])).decode_one
        self._decode = msgspec.json.Decoder(SegmentHeader).decode

    def read(self, record: Record) -> SegmentHeader | Refused:
        """Return the header, or why the record is no segment."""
        raw = next((raw for name, raw in record.headers if name == SEGMENT), None)
        if raw is None:
            return Refused("no-header", "headers", f"expected a header {SEGMENT!r} that says what it is, got none")
        if isinstance(rejected := self._check(raw), Rejected):
            return Refused(rejected.reason, f"headers.{SEGMENT}{rejected.path[1:]}", rejected.detail)
        header = self._decode(raw)
        at = f"headers.{SEGMENT}"
        if record.key != header.product.encode():
            key = (record.key or b"").decode(errors="replace")
            return Refused("key", f"{at}.product", f"expected the record's key {printable(key)}, got {header.product}")
        if (header.count == 0) != (header.url is not msgspec.UNSET):
            what = "expected a url if count is 0 (a reference), and none with segments"
            return Refused("schema", f"{at}.url", f"{what}, got count {header.count}")
        if header.index >= max(header.count, 1):
            return Refused("overlong", f"{at}.index", f"expected less than count {header.count}, got {header.index}")
        return header


def printable(text: str) -> str:
    """Bound what a hostile record can make us write into headers and logs."""
    return "".join(one if one.isprintable() else "?" for one in text[:200])


decode_table = msgspec.json.Decoder(Table).decode
encode = msgspec.json.Encoder().encode


def segment_record(header: SegmentHeader, content: bytes) -> Record:
    """Return the record of a segment, or of a reference, which has no bytes."""
    return Record(topic=CALIBRATION, key=header.product.encode(), value=content, headers=((SEGMENT, encode(header)),))


def table_record(table: Table) -> Record:
    """Return the record that says what became of a table so far."""
    key = {COMPLETE: table.product, FAILED: f"{table.product}!failed"}.get(table.state, under_way_key(table))
    return Record(topic=TABLES, key=key.encode(), value=encode(table))


def under_way_key(table: Table | SegmentHeader) -> str:
    """Return the key under which a table stands while it is under way."""
    return f"{table.product}!{table.table}"


def tombstone(key: str) -> Record:
    """Return the record that removes a table that was under way."""
    return Record(topic=TABLES, key=key.encode(), value=None)
