"""Reads one Arrow record batch of plain numbers out of foreign bytes, as views of these bytes.

Written by hand, as the Arrow library takes 50 us to open a stream, longer than all that is done with the numbers of a
small batch. Nothing is allocated by a size that the bytes claim: numpy refuses a view beyond their end, and Python's
`struct` a number there. Only the format's newer framing is read (a message begins with FF FF FF FF, Arrow 0.15).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from facade.codec.arrays import Array, ArrayError
from facade.printable import printable

MARK: Final = b"\xff\xff\xff\xff"
"""How a stream begins; no text in UTF-8 does."""

_END: Final = MARK + bytes(4)
_SCHEMA, _RECORD_BATCH = 1, 3
"""Kinds of messages."""
_INT, _FLOAT = 2, 3
"""Kinds of types."""
_FLOATS: Final[dict[int, np.dtype[Any]]] = {1: np.dtype("<f4"), 2: np.dtype("<f8")}
"""By precision."""
_MOST_COLUMNS: Final = 256
_MOST_SHAPES: Final = 256
"""So many different metadata are remembered."""
_TEXT = 200

Layout = tuple[tuple[str, np.dtype[Any]], ...]
"""Name and type of each column."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """The columns of a batch."""

    rows: int
    layout: Layout
    columns: dict[str, Array]
    """By name, each of shape (rows,): views of the bytes."""
    nulls: dict[str, Array]
    """Where nothing is there, of shape (rows,), by name; only of columns that lack something."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where everything is in the body of a batch; it is within its size."""

    rows: int
    size: int
    """Of the body [bytes]."""
    layout: Layout
    places: tuple[tuple[str, np.dtype[Any], int, int], ...]
    """Name and type of each column, where its values begin, and the bits that say what is there; -1: all is."""


class StreamReader:
    """Reads streams; remembers what their metadata have said, which all batches of one producer and size share."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, _Shape] = {}

    def read(self, content: bytes) -> RecordBatch:
        """Return the one record batch of a stream.

        Raises
        ------
        ArrayError
            It is no stream of one batch of plain numbers, not compressed.
        """
        try:
            return self._read(content)
        except (struct.error, ValueError, OverflowError, RecursionError) as error:
            what = f"expected an Arrow stream with one batch of numbers, got {len(content)} bytes that are none"
            raise ArrayError(f"{what}: {error!s:.200}") from error

    def _read(self, content: bytes) -> RecordBatch:
        begin = _end_of_metadata(content, 0)
        body = _end_of_metadata(content, begin)
        shape = self._shapes.get(metadata := content[:body])
        if shape is None:
            shape = _shape(memoryview(metadata)[begin + 8 :], _layout(metadata[:begin]))
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            self._shapes[metadata] = shape
        end = body + shape.size
        if end > len(content) or content[end:] not in (b"", _END):
            raise ValueError(f"expected the stream to end with its batch, after {end} bytes")
        rows, columns, nulls = shape.rows, {}, {}
        for name, dtype, at, bits in shape.places:
            columns[name] = np.frombuffer(content, dtype, rows, body + at)
            if bits >= 0:
                there = np.frombuffer(content, np.uint8, (rows + 7) // 8, body + bits)
                nulls[name] = np.unpackbits(there, count=rows, bitorder="little") == 0
        return RecordBatch(rows, shape.layout, columns, nulls)


def _shape(metadata: memoryview, layout: Layout) -> _Shape:
    message = _Table.root(metadata)
    if (kind := message.number("B", 1)) != _RECORD_BATCH:
        raise ValueError(f"expected a record batch behind the schema, got a message of kind {kind}")
    end, batch = message.number("q", 3), message.table(2)
    if batch.has(3):
        raise ValueError("expected buffers that are not compressed, got a compressed batch")
    rows, nodes, buffers = batch.number("q", 0), batch.numbers(1), batch.numbers(2)
    if len(nodes) != 2 * len(layout) or len(buffers) != 4 * len(layout):
        counts = f"{len(nodes) // 2} nodes and {len(buffers) // 2} buffers"
        raise ValueError(f"expected a node and two buffers for each of {len(layout)} columns, got {counts}")
    if rows < 1 or end < 0:
        raise ValueError(f"expected at least one row, got {rows} in {end} bytes")
    places = []
    for number, (name, dtype) in enumerate(layout):
        length, missing = nodes[2 * number : 2 * number + 2]
        bits, bits_size, at, size = buffers[4 * number : 4 * number + 4]
        if length != rows or at < 0 or size < rows * dtype.itemsize or at + size > end:
            raise ValueError(f"column {name}: expected {rows} rows of {dtype} within {end} bytes of the batch")
        if missing and (bits < 0 or 8 * bits_size < rows or bits + bits_size > end):
            raise ValueError(f"column {name}: expected {rows} bits that tell what is missing")
        places.append((name, dtype, at, bits if missing else -1))
    return _Shape(rows, end, layout, tuple(places))


def _layout(head: bytes) -> Layout:
    message = _Table.root(memoryview(head)[8:])
    if (kind := message.number("B", 1)) != _SCHEMA:
        raise ValueError(f"expected a schema first, got a message of kind {kind}")
    schema = message.table(2)
    if schema.number("h", 0):
        raise ValueError("expected little-endian numbers, got big-endian ones")
    layout = tuple((field.text(0), _dtype(field)) for field in schema.tables(1))
    if len({name for name, _ in layout}) < len(layout):
        raise ValueError(f"expected columns with different names, got {', '.join(name for name, _ in layout)}")
    return layout


def _dtype(field: "_Table") -> np.dtype[Any]:
    kind, name = field.number("B", 2), field.text(0)
    if field.has(4):
        raise ValueError(f"column {name}: expected numbers, got a dictionary")
    if kind == _INT:
        width, signed = field.table(3).number("i", 0), field.table(3).number("B", 1)
        if width in (8, 16, 32, 64):
            return np.dtype(f"<{'i' if signed else 'u'}{width // 8}")
    elif kind == _FLOAT and (precision := field.table(3).number("h", 0)) in _FLOATS:
        return _FLOATS[precision]
    raise ValueError(f"column {name}: expected integers of 8 to 64 bits, float or double, got type {kind} of Arrow")


def _end_of_metadata(content: bytes, begin: int) -> int:
    mark, size = struct.unpack_from("<4si", content, begin)
    if mark != MARK or not 0 < size <= len(content) - begin - 8:
        raise ValueError(f"expected a message at byte {begin}")
    return begin + 8 + int(size)


class _Table:
    """A table of FlatBuffers, whose fields have numbers; an absent field is 0."""

    __slots__ = ("_at", "_data", "_slots")

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        slots = at - struct.unpack_from("<i", data, at)[0]
        if slots < 0:  # Python would count from the end
            raise ValueError("a table that begins before the message")
        size = struct.unpack_from("<H", data, slots)[0] // 2
        self._slots: tuple[int, ...] = struct.unpack_from(f"<{min(max(size, 2), 32)}H", data, slots)[2:]

    @classmethod
    def root(cls, data: memoryview) -> "_Table":
        """Return the table that a message consists of."""
        return cls(data, _offset(data, 0))

    def has(self, number: int) -> bool:
        """Return whether a field is there."""
        return number < len(self._slots) and self._slots[number] != 0

    def number(self, form: str, number: int) -> int:
        """Return a field that is a number."""
        return int(struct.unpack_from(f"<{form}", self._data, self._place(number))[0]) if self.has(number) else 0

    def table(self, number: int) -> "_Table":
        """Return a field that is a table."""
        return _Table(self._data, _offset(self._data, self._required(number)))

    def tables(self, number: int) -> Iterator["_Table"]:
        """Yield the tables of a field that is a vector of them."""
        begin, count = self._vector(number)
        if count > _MOST_COLUMNS:
            raise ValueError(f"expected at most {_MOST_COLUMNS} columns, got {count}")
        for at in range(begin, begin + 4 * count, 4):
            yield _Table(self._data, _offset(self._data, at))

    def numbers(self, number: int) -> tuple[int, ...]:
        """Return a field that is a vector of pairs of long integers, flat."""
        begin, count = self._vector(number)
        if count > 2 * _MOST_COLUMNS:
            raise ValueError(f"expected at most {2 * _MOST_COLUMNS} buffers, got {count}")
        return struct.unpack_from(f"<{2 * count}q", self._data, begin)

    def text(self, number: int) -> str:
        """Return a field that is a text, fit to be shown."""
        begin, size = self._vector(number)
        return printable(bytes(self._data[begin : begin + min(size, _TEXT)]).decode(errors="replace"))

    def _vector(self, number: int) -> tuple[int, int]:
        begin = _offset(self._data, self._required(number))
        return begin + 4, int(struct.unpack_from("<I", self._data, begin)[0])

    def _required(self, number: int) -> int:
        if not self.has(number):
            raise ValueError(f"a table without field {number}")
        return self._place(number)

    def _place(self, number: int) -> int:
        return self._at + self._slots[number]


def _offset(data: memoryview, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])
