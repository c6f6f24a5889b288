"""The messages of the tables; their wire forms are the JSON Schemas ``table-segment`` and ``table``.

Times are Unix times in microseconds, as in every message of the bus. The keys on ``tables`` are the product
for its newest complete table, ``product!partition!table`` for one under way, and ``product!failed`` for the one
that failed last; neither a product nor an id has a ! in it. The partition is in the key because the topic may grow
while a table is under way: its next segments are then on another partition, as a table of their own.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from facade.kernel.bus.port import Record
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.plausible import wrong_key
from facade.kernel.config import Settings
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import USED, Outcome, RecordRejected
from facade.kernel.runtime.accounts import ACCOUNTS, AccountEntry
from facade.sdp.messages import Table, TableSegment, TableState

CALIBRATION, TABLES = "calibration", "tables"

SEGMENT = "segment"
"""Header that describes the bytes of a record."""

ASSEMBLING: TableState = "ASSEMBLING"
COMPLETE: TableState = "COMPLETE"
FAILED: TableState = "FAILED"

Identity = tuple[str, str, str, int, str]
"""Product, kind, content type, size and checksum of a table."""

_AT = f"headers.{SEGMENT}"


def identity(table: TableSegment | Table) -> Identity:
    """Return the fields that identify a table."""
    return table.product, table.kind, table.content_type, table.size, table.sha256


def fingerprint(table: TableSegment | Table) -> str:
    """Return a short digest of the identity."""
    return sha256(msgspec.json.encode(identity(table))).hexdigest()[:16]


def place(table: Table) -> dict[str, Any]:
    """Return the position of a complete table, in JSON's types."""
    if table.url is not None:
        return {"url": table.url}
    offsets = {"first_offset": table.first_offset, "last_offset": table.last_offset}
    return {"topic": CALIBRATION, "partition": table.partition, **offsets}


def reason_of(rejected: RecordRejected) -> str:
    """Return the reason of a failure, for the message about its table."""
    return f"{rejected.reason}: {rejected.detail}"[:1000]


def failure_of(table: Table) -> RecordRejected | None:
    """Return the reason of a table's failure from its message; None: it is complete."""
    if table.state == COMPLETE:
        return None
    reason, _, detail = ("" if table.reason is None else table.reason).partition(": ")
    return RecordRejected(reason or "failed", "$", detail)


decode_table = BatchDecoder(Table).decode_one
"""Decodes and checks the value of a record on ``tables``."""
encode = msgspec.json.Encoder().encode


segment_decoder = BatchDecoder(TableSegment)


def read_header(record: Record) -> TableSegment | RecordRejected:
    """Return the header of a segment, or the reason why the record is no segment. It never raises."""
    header = segment_decoder.decode_header(record.headers, SEGMENT)
    if isinstance(header, RecordRejected):
        return header
    if why := wrong_key(record.key, header.product, f"{_AT}.product"):
        return why
    if (header.count == 0) != (header.url is not None):
        what = "expected a url if count is 0 (a reference), and none with segments"
        return RecordRejected("schema", f"{_AT}.url", f"{what}, got count {header.count}")
    if header.index >= max(header.count, 1):
        return RecordRejected(
            "overlong", f"{_AT}.index", f"expected less than count {header.count}, got {header.index}"
        )
    return header


def segment_record(header: TableSegment, content: bytes) -> Record:
    """Return the record of a segment, or of a reference, which has no bytes."""
    return Record(topic=CALIBRATION, key=header.product.encode(), value=content, headers=((SEGMENT, encode(header)),))


def table_record(table: Table) -> Record:
    """Return the record with the state of a table."""
    key = {COMPLETE: table.product, FAILED: failed_key(table.product)}.get(table.state, under_way_key(table))
    return Record(topic=TABLES, key=key.encode(), value=encode(table))


def account_record(entry: AccountEntry) -> Record:
    """Return the record of an entry of the account."""
    return Record(topic=ACCOUNTS, key=f"{CALIBRATION}/{entry.partition}".encode(), value=encode(entry))


def under_way_key(table: Table) -> str:
    """Return the key of an unfinished table."""
    return f"{table.product}!{table.partition}!{table.table}"


def former_key(table: Table) -> str:
    """Return the key of an unfinished table in release 0.2.0."""
    return f"{table.product}!{table.table}"


def failed_key(product: str) -> str:
    """Return the key of the table of a product that failed last."""
    return f"{product}!failed"


def tombstone(key: str) -> Record:
    """Return the tombstone of a table."""
    return Record(topic=TABLES, key=key.encode(), value=None)


def trials(icd: Icd, settings: Settings) -> Mapping[str, Callable[[Record], Outcome]]:
    """Return the trial of a single segment; see `facade.kernel.manifest.Manifest.trials`."""

    def read(record: Record) -> Outcome:
        header = read_header(record)
        return header if isinstance(header, RecordRejected) else USED

    return {CALIBRATION: read}
