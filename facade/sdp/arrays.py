"""Reads arrays from untrusted bytes: `.npy`, Arrow's IPC streams, and Arrow batches of numbers.

Nothing is unpickled, and nothing larger than the bytes is created: numpy refuses a view beyond their end, and so does
Python's `struct`.

`StreamReader` is our own, as the Arrow library takes 50 us to open a stream, longer than the processing of a small
batch. It reads only the newer framing (a message begins with FF FF FF FF, Arrow 0.15).
"""

import io
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from facade.kernel.printable import printable

try:
    import pyarrow as pa
except ImportError:  # the extras tables, batches and archive have it
    pa = None
"""The Arrow library; None: it is not installed."""

__all__ = [
    "MARK", "Array", "ArrayError", "NpyHeader", "RecordBatch", "StreamReader", "pa", "read_arrow", "read_npy_header",
    "require_values", "view_npy", "whole_column",
]  # fmt: skip

Array = npt.NDArray[Any]

_MOST_HEADER: Final = 10_100
"""Most bytes of a header that numpy accepts, with the preamble."""
_MOST_MESSAGES: Final = 5000
"""Most messages of a stream: each costs time, also an empty one; one for each antenna is usual."""


class ArrayError(Exception):
    """The bytes are not such an array; the text has the expectation.

    Parameters
    ----------
    reason
        A word for dead letters; empty: the name of the encoding.
    """

    def __init__(self, detail: str, reason: str = "") -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """The header of a `.npy`."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    begin: int


def read_npy_header(content: bytes | memoryview) -> NpyHeader:
    """Read the header of a `.npy` of version 1.0 or 2.0.

    Raises
    ------
    ArrayError
        It is not such a header.
    """
    view = memoryview(content).cast("B")
    try:
        head = io.BytesIO(view[:_MOST_HEADER])
        version = np.lib.format.read_magic(head)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ArrayError(f"expected .npy of version 1.0 or 2.0, got {version[0]}.{version[1]}")
        shape, fortran, dtype = readers[version](head)
    except ArrayError:
        raise
    except Exception as error:  # the bytes are arbitrary, and so is numpy's error
        raise ArrayError(f"expected .npy, got {len(view)} bytes that are none: {error!s:.200}") from error
    return NpyHeader(shape, dtype, fortran, head.tell())


def view_npy(content: bytes | memoryview, header: NpyHeader) -> Array:
    """Return the array of a `.npy`, a view of its bytes.

    `header`: the content's own header; the caller has checked it.

    Raises
    ------
    ArrayError
        The content has another length.
    """
    view = memoryview(content).cast("B")
    wanted, size = header.dtype.itemsize * math.prod(header.shape), len(view) - header.begin
    if header.dtype.hasobject or wanted != size:
        raise ArrayError(f"expected {wanted:.15g} bytes for shape {header.shape!s:.80}, got {size}")
    return np.ndarray(header.shape, header.dtype, view, header.begin, order="F" if header.fortran else "C")


def read_arrow(content: bytes | memoryview, check_schema: Callable[[Any], None]) -> tuple[Any, int]:
    """Return the table of an Arrow IPC stream, and the number of bytes after the stream.

    `check_schema`: raises `ArrayError` for an unwanted schema.

    Raises
    ------
    ArrayError
        A batch is compressed.
    Exception
        Any error of the library for bytes that are not a stream.
    """
    buffer = pa.py_buffer(content)
    if _has_compressed_batch(buffer):
        raise ArrayError("expected buffers that are not compressed, got a compressed batch")
    source = pa.BufferReader(buffer)
    with pa.ipc.open_stream(source) as reader:
        check_schema(reader.schema)
        table = reader.read_all()
    table.validate(full=True)  # the sizes claimed by a batch are not checked before
    return table, len(content) - source.tell()


def whole_column(column: Any, name: str = "") -> Any:
    """Return a column as one array, without a copy if it has one batch.

    Raises
    ------
    ArrayError
        It has nulls.
    """
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    require_values(array, name)
    return array


def require_values(array: Any, name: str = "") -> None:
    """Raise an error if an Arrow array has nulls.

    Raises
    ------
    ArrayError
        It has nulls.
    """
    if array.null_count:
        raise ArrayError(f"{name and name + ': '}expected values everywhere, got {array.null_count} nulls")


def _has_compressed_batch(buffer: Any) -> bool:
    """Return whether an Arrow IPC stream has a compressed batch, whose size in memory is unknown.

    Raises any error of the library for bytes that are not a stream.
    """
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(buffer))
    for number, message in enumerate(messages):
        if number > _MOST_MESSAGES:
            raise ValueError(f"expected at most {_MOST_MESSAGES} batches, got more")
        if message.type == "record batch" and _Table.root(memoryview(message.metadata)).table(2).has(_COMPRESSION):
            return True
    return False


MARK: Final = b"\xff\xff\xff\xff"
"""Begin of a stream; no text in UTF-8 begins so."""

_END: Final = MARK + bytes(4)
_SCHEMA, _RECORD_BATCH, _COMPRESSION = 1, 3, 3
"""Kinds of messages, and the field of a record batch with the compression."""
_INT, _FLOAT = 2, 3
_FLOATS: Final[dict[int, np.dtype[Any]]] = {1: np.dtype("<f4"), 2: np.dtype("<f8")}
_MOST_COLUMNS: Final = 256
_MOST_SHAPES: Final = 256
"""Most remembered metadata."""
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
    """Masks of nulls, of shape (rows,), by name; only of columns with nulls."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Positions in the body of a batch; they are within its size."""

    rows: int
    size: int
    """Size of the body [bytes]."""
    layout: Layout
    places: tuple[tuple[str, np.dtype[Any], int, int], ...]
    """Name and type of each column, begin of its values, and begin of its validity bits; -1: there are no nulls."""


class StreamReader:
    """Reads streams; caches their metadata, which are common to all batches of one producer and size."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, _Shape] = {}

    def read(self, content: bytes) -> RecordBatch:
        """Return the one record batch of a stream.

        Raises
        ------
        ArrayError
            It is not a stream of one uncompressed batch of plain numbers.
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
    if batch.has(_COMPRESSION):
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
    """A table of FlatBuffers, with numbered fields; an absent field is 0."""

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
        return cls(data, _offset(data, 0))

    def has(self, number: int) -> bool:
        return number < len(self._slots) and self._slots[number] != 0

    def number(self, form: str, number: int) -> int:
        return int(struct.unpack_from(f"<{form}", self._data, self._place(number))[0]) if self.has(number) else 0

    def table(self, number: int) -> "_Table":
        return _Table(self._data, _offset(self._data, self._required(number)))

    def tables(self, number: int) -> Iterator["_Table"]:
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
        """Return a text field in a form that is safe to show."""
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
