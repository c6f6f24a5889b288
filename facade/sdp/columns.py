"""Decodes batches of flat messages straight into numpy columns.

Reading eleven attributes of each decoded object costs nearly as much as decoding it. So every number is decoded as a
float, and the whole batch is packed by msgspec's own MessagePack encoder: with floats only, each record has the same
length and layout, and numpy reads it as a table at once. Ranges, and whether an integer is a whole number, are then
checked for a column at once. Messages with texts or booleans have no such layout; their columns are read attribute by
attribute.

Integers stay exact because the schema bounds them to 2^53. They are integers in JSON Schema's
sense: 3, 3.0 and 3e0 are the same number. (`facade.kernel.codec.decode` is stricter: it wants 3.)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from facade.kernel.codec.decode import BatchDecoder, Reason
from facade.kernel.codec.json_schema import compile_tagged
from facade.kernel.errors import IcdError
from facade.kernel.icd.fields import Schema, translation, why_no_column
from facade.kernel.outcome import RecordRejected, Unused

Column = npt.NDArray[Any]

_FLOAT64 = 0xCB  # MessagePack: a big-endian double follows


@dataclass(frozen=True, slots=True)
class ColumnTable:
    """A decoded batch: every record is a row or unused."""

    columns: dict[str, Column]
    """By field: int64 for integers, float64 for other numbers, objects for the rest, each of shape (rows,)."""
    index: Column
    """Position in the batch of each row, shape (rows,)."""
    unused: dict[int, Unused]
    """Reasons for the unused records, by position in the batch and in order."""


@dataclass(frozen=True, slots=True)
class NumberField:
    """A numeric property; for an integer, `low` and `high` are integers too."""

    name: str
    integer: bool
    low: float
    high: float

    @property
    def kind(self) -> str:
        """Return the JSON type, as in the decoder's messages."""
        return "int" if self.integer else "float"


class ColumnDecoder:
    """Decodes the records of one message whose properties are numbers, texts, booleans and constants.

    Parameters
    ----------
    earlier
        Schemas of earlier versions. Their records become rows of the current one; see
        `facade.kernel.icd.fields.translation`.

    Raises
    ------
    IcdError
        A schema has another property, an optional one, or an integer beyond 2^53; see `why_no_column`.
    """

    def __init__(self, name: str, schema: Schema, earlier: Sequence[Schema] = ()) -> None:
        self._forms = [_Form(name, one, schema) for one in (schema, *earlier)]
        self._decoder: BatchDecoder[msgspec.Struct] = BatchDecoder(*(form.struct for form in self._forms))

    def decode(self, values: Sequence[bytes | None]) -> ColumnTable:
        """Decode a batch; a bad record is a result, not an exception."""
        decoded = self._decoder.decode(values)
        index = np.arange(len(values))
        if decoded.unused:
            index = np.delete(index, list(decoded.unused))
        if len(self._forms) == 1:
            found = self._forms[0].table(decoded.items, index)
        else:
            found = self._of_all_forms(decoded.items, index)
        unused = {at: self._as_written(why) for at, why in decoded.unused.items()} | found.unused
        return ColumnTable(found.columns, found.index, dict(sorted(unused.items())))

    def _of_all_forms(self, items: list[msgspec.Struct], index: Column) -> ColumnTable:
        """Return the rows of all versions in the order of their records."""
        structs = np.fromiter(map(type, items), np.object_, len(items))
        tables = []
        for form in self._forms:
            places = np.flatnonzero(structs == form.struct)
            tables.append(form.table([items[at] for at in places.tolist()], index[places]))
        all_index = np.concatenate([table.index for table in tables])
        order = np.argsort(all_index)
        columns = {
            name: np.concatenate([table.columns[name] for table in tables if len(table.index)] or [column])[order]
            for name, column in tables[0].columns.items()
        }
        return ColumnTable(columns, all_index[order], {at: why for table in tables for at, why in table.unused.items()})

    def _as_written(self, why: Unused) -> Unused:
        """Return a rejection in the schema's terms: all numbers are decoded as floats."""
        if isinstance(why, RecordRejected) and why.path.removeprefix("$.") in self._forms[0].integers:
            return replace(why, detail=why.detail.replace("Expected `float`", "Expected `int`"))
        return why


class _Form:
    """One version of a message."""

    def __init__(self, name: str, schema: Schema, current: Schema) -> None:
        properties = schema["properties"]
        for field, part in properties.items():
            if why := why_no_column(part, required=field in schema.get("required", ())):
                raise IcdError(f"{name}.schema.json: properties.{field}: {why}")
        self._fields = number_fields(schema)
        self.integers = {field.name for field in self._fields if field.integer}
        self._others = [
            field
            for field, part in properties.items()
            if "const" not in part and part.get("type") not in ("integer", "number")
        ]
        self._translation = None if schema is current else translation(current, schema)
        self._types = {one.name: np.int64 if one.integer else np.float64 for one in number_fields(current)}
        plain = {field.name: {"type": "number"} for field in self._fields}
        self.struct = compile_tagged(name, {**schema, "properties": {**properties, **plain}})
        self._encoder = msgspec.msgpack.Encoder()
        self._layout = None if self._others else _layout(self.struct, properties, set(plain))

    def table(self, items: list[msgspec.Struct], index: Column) -> ColumnTable:
        """Return decoded records as rows of the current version; `index`: positions of the records."""
        columns, unused = self._columns(items), dict[int, Unused]()
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
        if self._translation is not None:
            columns = {new: columns[old] for old, new in self._translation.names.items() if old in columns}
            for name, value in self._translation.defaults.items():
                columns[name] = np.full(len(index), value, self._types.get(name, np.object_))
        return ColumnTable(columns, index, unused)

    def _columns(self, items: list[msgspec.Struct]) -> dict[str, Column]:
        rows = len(items)
        if not rows:
            return {name: np.empty(0) for name in (*(field.name for field in self._fields), *self._others)}
        if self._layout is None:
            numbers = {one.name: np.fromiter(map(attrgetter(one.name), items), np.float64) for one in self._fields}
            return numbers | {name: np.fromiter(map(attrgetter(name), items), np.object_) for name in self._others}
        packed = self._encoder.encode(items)
        start = len(packed) - rows * self._layout.itemsize  # after the header of the list
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
    """Return the column within its range and of its type; changed values were illegal.

    The range is checked by the extremes, which takes much less time than a check of each value.
    """
    if len(column) and not (field.low <= column.min() and column.max() <= field.high):
        column = np.clip(column, field.low, field.high)
    return column.astype(np.int64) if field.integer else column


def breaches(field: NumberField, index: Column, values: Column) -> Iterator[tuple[int, RecordRejected]]:
    """Yield the position and the rejection of each illegal value."""
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
        field: 0.5 if field in numbers else properties[field]["const"] for field in struct.__struct_fields__
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
