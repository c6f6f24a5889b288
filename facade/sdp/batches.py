"""Columnar batches: many messages as the columns of one record; see decision 0022.

A record is read alone, as a bad one must not harm its neighbours. Then batches are joined, so that their numbers are
processed at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from facade.kernel.codec.decode import BatchDecoder, Reason
from facade.kernel.icd.fields import Schema, Translation, translation
from facade.kernel.messages import Batch
from facade.kernel.outcome import RecordRejected
from facade.kernel.printable import excerpt
from facade.sdp.arrays import MARK, ArrayError, RecordBatch, StreamReader
from facade.sdp.columns import Column, NumberField, breaches, number_fields

_LIMITS: Final = {
    np.dtype(f"<{kind}{size}"): (int(limits.min), int(limits.max))
    for kind in "iu"
    for size in (1, 2, 4, 8)
    for limits in [np.iinfo(f"{kind}{size}")]
}
HeaderPairs = tuple[tuple[str, bytes], ...]

HEADER: Final = "batch"
FRAME: Final = "frame"
"""Header with the partial sums of a batch; see `facade.flows.telemetry.summed`."""
CONTENT_TYPE: Final = "content-type"
ARROW: Final = "application/vnd.apache.arrow.stream"
_FAR = 2**60
"""No legal value is so large, even after an addition."""
_encode = msgspec.json.Encoder().encode


def without(headers: HeaderPairs) -> HeaderPairs:
    """Return the headers of one row of a batch, which is JSON."""
    return tuple(header for header in headers if header[0] not in (CONTENT_TYPE, HEADER, FRAME))


def is_batch(value: bytes | None) -> bool:
    """Return whether a record holds a columnar batch, and not JSON."""
    return value is not None and value.startswith(MARK)


@dataclass(frozen=True, slots=True)
class Refused:
    """An unreadable batch."""

    why: RecordRejected
    rows: int
    """Number of rows that it claims; 1: unknown."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A batch that is correct as a whole; its rows are not checked yet."""

    header: Batch
    content: RecordBatch
    frame: bytes = b""
    """The header `FRAME`, not decoded; empty: there is none, or it is of an earlier version of the message."""

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.content.rows


class BatchReader:
    """Reads the columnar batches of one message, all of whose fields are numbers.

    Parameters
    ----------
    varying
        Fields that must be columns: so each row takes some bytes, which limits the rows of a batch. All versions have
        them.
    earlier
        Schemas of earlier versions. Their batches become batches of the current one.
    """

    def __init__(self, schema: Schema, varying: Sequence[str], earlier: Sequence[Schema] = ()) -> None:
        self._version: str = schema["properties"]["schema"]["const"]
        self._order = list(schema["properties"])
        self.fields = number_fields(schema)
        self.named = {field.name: field for field in self.fields}
        self._varying = varying
        self._earlier = {
            one["properties"]["schema"]["const"]: (BatchReader(one, varying), translation(schema, one))
            for one in earlier
        }
        self._headers = BatchDecoder(Batch)
        self._streams = StreamReader()

    def read(self, value: bytes, headers: HeaderPairs) -> ReadBatch | Refused:
        """Read the value of a record; a bad one is a result, not an exception."""
        header = self._headers.decode_header(headers, HEADER)
        if not isinstance(header, Batch):
            return Refused(header, 1)
        try:
            content = self._streams.read(value)
        except ArrayError as error:
            return Refused(RecordRejected("arrow", "$", excerpt(str(error))), header.rows)
        reader, change = self._earlier.get(header.message, (self, None))
        if why := reader.contradiction(header, content):
            return Refused(why, header.rows)
        if change is not None:
            return _translated(header, content, change)
        return ReadBatch(header, content, next((raw for name, raw in headers if name == FRAME), b""))

    def contradiction(self, header: Batch, content: RecordBatch) -> RecordRejected | None:
        """Return the contradiction between header and content; None: there is none."""
        at = f"headers.{HEADER}"
        if header.message != self._version:
            versions = " or ".join(map(repr, (self._version, *self._earlier)))
            what = f"expected {versions}, got {header.message!r}"
            return RecordRejected(Reason.VERSION, f"{at}.message", excerpt(what))
        if header.rows != content.rows:
            return RecordRejected("rows", f"{at}.rows", f"expected {content.rows}, as the batch has, got {header.rows}")
        known, constants = self.named, header.constants
        for name, dtype in content.layout:
            if (field := known.get(name)) is None:  # of a later release
                continue
            if name in constants:
                what = f"expected a field that is no constant, got column {name}"
                return RecordRejected("columns", f"$.{name}", excerpt(what))
            if field.integer and dtype.kind == "f":
                return RecordRejected("columns", f"$.{name}", f"expected a column of integers, got {dtype}")
        if missing := [one for one in known if one not in constants and one not in content.columns]:
            what = f"expected each field to be a column or a constant; missing: {', '.join(missing)}"
            return RecordRejected("columns", "$", excerpt(what))
        for name in self._varying:
            if name in constants:
                return RecordRejected(
                    "columns", f"{at}.constants.{name}", f"expected {name} to be a column, got a constant"
                )
        for name in header.bases.keys() & known.keys():
            if name not in content.columns or not known[name].integer:
                return RecordRejected("columns", f"{at}.bases.{name}", "expected the name of a column of integers")
        for name, value in constants.items():
            if (field := known.get(name)) is None:
                continue
            if not field.low <= value <= field.high or (field.integer and value != int(value)):
                _, why = next(breaches(field, np.zeros(1, np.int64), np.array([value])))
                return RecordRejected(why.reason, f"{at}.constants.{name}", why.detail)
        return None

    def row(self, batch: ReadBatch, number: int) -> bytes:
        """Return one row of a batch as the JSON of its message; a missing value is null."""
        found: dict[str, Any] = dict(batch.header.constants)
        for name, column in batch.content.columns.items():
            is_null = name in batch.content.nulls and batch.content.nulls[name][number]
            found[name] = None if is_null else column[number].item() + batch.header.bases.get(name, 0)
        found["schema"] = self._version  # a later release may have a column of this name
        return _encode({name: found[name] for name in self._order})


def _translated(header: Batch, content: RecordBatch, change: Translation) -> ReadBatch:
    """Return a batch of an earlier version as one of the current version: a new field is a constant."""

    def renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {change.names[name]: value for name, value in fields.items() if name in change.names}

    constants = renamed(header.constants) | change.defaults
    columns, nulls = renamed(content.columns), renamed(content.nulls)
    layout = tuple((change.names[name], dtype) for name, dtype in content.layout if name in change.names)
    return ReadBatch(
        replace(header, constants=constants, bases=renamed(header.bases)),
        RecordBatch(content.rows, layout, columns, nulls),
    )


class Joined(dict[str, Column]):
    """Concatenated batches, as columns by field, each made at its first use.

    Integers have any size, others are float64. It has no reference cycle: it is large, and must be freed at once.
    """

    def __init__(self, reader: BatchReader, batches: Sequence[ReadBatch]) -> None:
        super().__init__()
        self.reader, self.batches = reader, batches
        self.starts = np.cumsum([0, *(batch.rows for batch in batches)])
        """Begin of each batch, and end of the last one."""
        self.rejected: dict[int, RecordRejected] = {}
        """Rows that violate the schema, in no order."""
        self._within = {field.name: all(_is_within(field, batch) for batch in batches) for field in reader.fields}
        for field in reader.fields:
            if not self._within[field.name]:
                column = self[field.name]
                self.rejected |= dict(breaches_of(field, column))
        for start, batch in zip(self.starts, batches, strict=False):
            for name in batch.content.nulls.keys() & reader.named.keys():
                for row in np.flatnonzero(batch.content.nulls[name]).tolist():
                    self.rejected[int(start) + row] = RecordRejected(
                        Reason.SCHEMA, f"$.{name}", "expected a value, got none"
                    )

    @property
    def rows(self) -> int:
        """Return the rows of all batches."""
        return int(self.starts[-1])

    def __missing__(self, name: str) -> Column:
        self[name] = column = self._join(name)
        return column

    def _join(self, name: str) -> Column:
        field = self.reader.named[name]
        batches, kind = self.batches, np.int64 if field.integer else np.float64
        constants = [batch.header.constants.get(name) for batch in batches]
        if None not in constants:
            return np.repeat(np.array(constants, kind), [batch.rows for batch in batches])
        parts = [_exact(field, batch) for batch in batches]
        if field.integer and self._within[name] and not any(name in batch.header.bases for batch in batches):
            kinds = {getattr(part, "dtype", None) for part in parts}
            if len(kinds) == 1:  # a copy without a conversion
                return np.concatenate(parts)
        column = np.empty(self.rows, kind)
        for start, batch, values in zip(self.starts.tolist(), batches, parts, strict=False):
            part = column[start : start + batch.rows]
            part[:] = values
            if base := batch.header.bases.get(name):
                part += base
        return column


def breaches_of(field: NumberField, column: Column) -> Iterator[tuple[int, RecordRejected]]:
    """Yield the index and the rejection of each value of a column that its field does not allow."""
    if len(column) and field.low <= column.min() and column.max() <= field.high:
        return iter(())
    bad = np.flatnonzero(~((column >= field.low) & (column <= field.high)))
    return breaches(field, bad, column[bad])


def _exact(field: NumberField, batch: ReadBatch) -> Any:
    """Return the values of a batch, without values that could overflow: those stay illegal."""
    value = batch.header.constants.get(field.name)
    if value is not None:
        return value
    column = batch.content.columns[field.name]
    if field.integer and column.itemsize == 8 and not -_FAR <= int(column.min()) <= int(column.max()) <= _FAR:
        return np.clip(column, -_FAR if column.dtype.kind == "i" else 0, _FAR)
    return column


def _is_within(field: NumberField, batch: ReadBatch) -> bool:
    """Return whether the type of a column has only values that the field allows."""
    column = batch.content.columns.get(field.name)
    if column is None:
        return True  # a constant, which has been checked
    if (limits := _LIMITS.get(column.dtype)) is None:
        return False
    base = batch.header.bases.get(field.name, 0)
    return field.low <= limits[0] + base and limits[1] + base <= field.high


def header_of(
    message: str, rows: int, *, constants: Mapping[str, int | float], bases: Mapping[str, int], **more: Any
) -> HeaderPairs:
    """Return the headers of a columnar batch; `more`: as in `facade.kernel.messages.Batch`."""
    header = Batch(message=message, rows=rows, constants=dict(constants), bases=dict(bases), **more)
    return ((CONTENT_TYPE, ARROW.encode()), (HEADER, _encode(header)))
