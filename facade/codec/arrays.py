"""Reads arrays out of foreign bytes without believing what these say of themselves: `.npy`, and Arrow's IPC streams.

Nothing is unpickled, and nothing is made that is larger than the bytes that are there.
"""

import io
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

try:
    import pyarrow as pa
except ImportError:  # an extra: pip install 'sdp-tango-facade[tables]'
    pa = None
"""The Arrow library; None: it is not installed."""

__all__ = [
    "Array",
    "ArrayError",
    "NpyHeader",
    "pa",
    "read_arrow",
    "read_npy_header",
    "require_values",
    "view_npy",
    "whole_column",
]

Array = npt.NDArray[Any]

_MOST_HEADER: Final = 10_100
"""Most bytes of a header that numpy reads, with what comes before it."""
_MOST_MESSAGES: Final = 5000
"""Each costs some time, though it may hold nothing: one for each antenna is usual."""
_RECORD_BATCH, _COMPRESSION = "record batch", 3
"""A kind of message, and the number of a field of it."""


class ArrayError(Exception):
    """The bytes are no such array; the text names the expectation.

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
    """What the beginning of a `.npy` says of the rest."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    begin: int
    """Where the array begins."""


def read_npy_header(content: bytes | memoryview) -> NpyHeader:
    """Read the header of a `.npy` of version 1.0 or 2.0.

    Raises
    ------
    ArrayError
        It is none.
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
    except Exception as error:  # the bytes may be anything, and so is what numpy raises
        raise ArrayError(f"expected .npy, got {len(view)} bytes that are none: {error!s:.200}") from error
    return NpyHeader(shape, dtype, fortran, head.tell())


def view_npy(content: bytes | memoryview, header: NpyHeader) -> Array:
    """Return the array of a `.npy`, a view of its bytes.

    Parameters
    ----------
    header
        What the content itself says; the caller has looked whether that is something to believe.

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
    """Return the table of an Arrow IPC stream, and how many bytes follow the stream.

    Parameters
    ----------
    check_schema
        Raises `ArrayError` if the schema is not the one wanted.

    Raises
    ------
    ArrayError
        A batch is compressed.
    Exception
        Whatever the library raises about bytes that are no stream.
    """
    buffer = pa.py_buffer(content)
    if _has_compressed_batch(buffer):
        raise ArrayError("expected buffers that are not compressed, got a compressed batch")
    source = pa.BufferReader(buffer)
    with pa.ipc.open_stream(source) as reader:
        check_schema(reader.schema)
        table = reader.read_all()
    table.validate(full=True)  # the sizes that a batch claims are not checked before
    return table, len(content) - source.tell()


def whole_column(column: Any, name: str = "") -> Any:
    """Return a column as one array, without a copy if it is in one batch.

    Raises
    ------
    ArrayError
        Something is missing in it.
    """
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    require_values(array, name)
    return array


def require_values(array: Any, name: str = "") -> None:
    """See to it that an Arrow array has no nulls.

    Raises
    ------
    ArrayError
        It has some.
    """
    if array.null_count:
        raise ArrayError(f"{name and name + ': '}expected values everywhere, got {array.null_count} nulls")


def _has_compressed_batch(buffer: Any) -> bool:
    """Return whether an Arrow IPC stream holds a compressed batch, whose size in memory is not known before.

    Raises whatever the library raises about bytes that are no stream.
    """
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(buffer))
    for number, message in enumerate(messages):
        if number > _MOST_MESSAGES:
            raise ValueError(f"expected at most {_MOST_MESSAGES} batches, got more")
        if message.type == _RECORD_BATCH and _compressed(message.metadata):
            return True
    return False


def _compressed(metadata: Any) -> bool:
    """Look into the FlatBuffers of a message: whether its record batch has a body compression."""
    data = memoryview(metadata)
    batch = _follow(data, _follow(data, 0), 2)
    return bool(_slot(data, batch, _COMPRESSION))


def _slot(data: memoryview, table: int, number: int) -> int:
    """Return where in a table a field is; 0: it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    return struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0] if 4 + 2 * number < size else 0


def _follow(data: memoryview, at: int, number: int | None = None) -> int:
    """Go to the table that an offset leads to: the root, or a field of a table."""
    at += 0 if number is None else _slot(data, at, number)
    return at + int(struct.unpack_from("<I", data, at)[0])
