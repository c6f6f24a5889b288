"""Decodes batches of flat messages straight into numpy columns.

Reading eleven attributes of each decoded object costs nearly as much as decoding it. So every
number is decoded as a float, and the whole batch is packed by msgspec's own MessagePack encoder:
with floats only, each record has the same length and layout, and numpy reads it as a table in one
go. Ranges, and whether an integer is a whole number, are then checked for a column at once.
Messages with texts or booleans have no such layout; their columns are read attribute by attribute.

Integers stay exact because the schema bounds them to 2^53. They are integers in JSON Schema's
sense: 3, 3.0 and 3e0 are the same number. (`facade.codec.decode` is stricter: it wants 3.)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from facade.codec.decode import BatchDecoder, Reason
from facade.codec.json_schema import compile_message
from facade.errors import IcdError
from facade.icd.fields import why_no_column
from facade.outcome import RecordRejected, Unused

Column = npt.NDArray[Any]

_FLOAT64 = 0xCB  # MessagePack: a big-endian double follows


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """What became of a batch: every record is a row or of no use."""

    columns: dict[str, Column]
    """By field: int64 for integers, float64 for other numbers, objects for the rest, each of shape (rows,)."""
    index: Column
    """Position in the batch of each row, shape (rows,)."""
    unused: dict[int, Unused]
    """Why the others are of no use, by position in the batch and in their order."""


@dataclass(frozen=True, slots=True)
class NumberField:
    """A numeric property; of an integer, `low` and `high` are such too."""

    name: str
    integer: bool
    low: float
    high: float

    @property
    def kind(self) -> str:
        """Return the JSON type as the decoder's messages have it."""
        return "int" if self.integer else "float"


class ColumnDecoder:
    """Decodes the records of one message whose properties are numbers, texts, booleans and constants.

    Raises
    ------
    IcdError
        The schema has another property, an optional one, or an integer beyond 2^53; see `why_no_column`.
    """

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        properties = schema["properties"]
        for field, part in properties.items():
            if why := why_no_column(part, required=field in schema.get("required", ())):
                raise IcdError(f"{name}.schema.json: properties.{field}: {why}")
        self._fields = number_fields(schema)
        self._integers = {field.name for field in self._fields if field.integer}
        self._others = [
            field
            for field, part in properties.items()
            if "const" not in part and part.get("type") not in ("integer", "number")
        ]
        plain = {field.name: {"type": "number"} for field in self._fields}
        struct = compile_message(name, {**schema, "properties": {**properties, **plain}})
        self._decoder: BatchDecoder[msgspec.Struct] = BatchDecoder(struct)
        self._encoder = msgspec.msgpack.Encoder()
        self._layout = None if self._others else _layout(struct, properties, set(plain))

    def decode(self, values: Sequence[bytes | None]) -> ColumnTable:
        """Decode a batch; a bad record is a result and never an exception."""
        decoded = self._decoder.decode(values)
        columns = self._columns(decoded.items)
        unused = {index: self._as_written(why) for index, why in decoded.unused.items()}
        index = np.arange(len(values))
        if unused:
            index = np.delete(index, list(unused))
        good = np.ones(len(index), dtype=np.bool_)
        for field in self._fields:
            column = columns[field.name]
            legal = legal_form(field, column)
            if legal is not column and not np.array_equal(legal, column):
                bad = good & (legal != column)
                unused.update(breaches(field, index[bad], column[bad]))
                good &= ~bad
            columns[field.name] = legal
        if not good.all():
            columns = {name: column[good] for name, column in columns.items()}
            index = index[good]
            unused = dict(sorted(unused.items()))
        return ColumnTable(columns, index, unused)

    def _as_written(self, why: Unused) -> Unused:
        """Return a rejection in the words of the schema: all numbers are decoded as if they had a fraction."""
        if isinstance(why, RecordRejected) and why.path.removeprefix("$.") in self._integers:
            return replace(why, detail=why.detail.replace("Expected `float`", "Expected `int`"))
        return why

    def _columns(self, items: list[msgspec.Struct]) -> dict[str, Column]:
        rows = len(items)
        if not rows:
            return {name: np.empty(0) for name in (*(field.name for field in self._fields), *self._others)}
        if self._layout is None:
            numbers = {one.name: np.fromiter(map(attrgetter(one.name), items), np.float64) for one in self._fields}
            return numbers | {name: np.fromiter(map(attrgetter(name), items), np.object_) for name in self._others}
        packed = self._encoder.encode(items)
        start = len(packed) - rows * self._layout.itemsize  # behind the header of the list
        table = np.frombuffer(packed, self._layout, count=rows, offset=start)
        return {field.name: table[field.name].astype(np.float64) for field in self._fields}


def number_fields(schema: Mapping[str, Any]) -> list[NumberField]:
    """Return the properties of a message that are numbers."""
    return [
        NumberField(field, part["type"] == "integer", part.get("minimum", -np.inf), part.get("maximum", np.inf))
        for field, part in schema["properties"].items()
        if part.get("type") in ("integer", "number")
    ]


def legal_form(field: NumberField, column: Column) -> Column:
    """Return the column within its range and of its type; what differs from the original was not legal.

    The range is checked by the extremes, which is much cheaper than a look at each value.
    """
    if len(column) and not (field.low <= column.min() and column.max() <= field.high):
        column = np.clip(column, field.low, field.high)
    return column.astype(np.int64) if field.integer else column


def breaches(field: NumberField, index: Column, values: Column) -> Iterator[tuple[int, RecordRejected]]:
    """Say of each value that is not legal, with its place, why."""
    for i, value in zip(index.tolist(), values.tolist(), strict=True):
        if value < field.low:
            detail = f"Expected `{field.kind}` >= {field.low:.17g}"
        elif value > field.high:
            detail = f"Expected `{field.kind}` <= {field.high:.17g}"
        else:
            detail = "Expected `int`"
        yield i, RecordRejected(Reason.SCHEMA, f"$.{field.name}", f"{detail}, got {value:.17g}")


def _layout(struct: type[msgspec.Struct], properties: Mapping[str, Any], numbers: set[str]) -> np.dtype[Any]:
    sample = struct(**{
        field: 0.5 if field in numbers else part["const"] for field, part in properties.items()
    })  # fmt: skip
    packed = msgspec.msgpack.encode(sample)
    names, offsets = [], []
    for field in struct.__struct_fields__:
        if field in numbers:
            key = msgspec.msgpack.encode(field)
            at = packed.index(key + bytes([_FLOAT64])) + len(key) + 1
            names.append(field)
            offsets.append(at)
    return np.dtype({"names": names, "formats": [">f8"] * len(names), "offsets": offsets, "itemsize": len(packed)})
