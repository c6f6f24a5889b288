"""Reads arrays out of foreign bytes without believing what these say of themselves: `.npy`, and Arrow's IPC streams.

Nothing is unpickled, and nothing is made that is larger than the bytes that are there.
"""

import io
import math
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

try:
    import pyarrow as pa
except ImportError:  # an extra: pip install 'sdp-tango-facade[tables]'
    pa = None
"""The Arrow library; None: it is not installed."""

__all__ = ["Array", "NpyHeader", "has_compressed_batch", "pa", "read_npy_header", "view_npy"]

Array = npt.NDArray[Any]

_MOST_HEADER: Final = 10_100
"""Most bytes of a header that numpy reads, with what comes before it."""
_MOST_MESSAGES: Final = 5000
"""Each costs some time, though it may hold nothing: one for each antenna is usual."""
_RECORD_BATCH, _COMPRESSION = "record batch", 3
"""A kind of message, and the number of a field of it."""


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What the beginning of a `.npy` says of the rest."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    begin: int
    """Where the array begins."""


def read_npy_header(content: bytes | memoryview) -> NpyHeader | str:
    """Read the header of a `.npy` of version 1.0 or 2.0; a text is the reason why it is none."""
    view = memoryview(content).cast("B")
    try:
        head = io.BytesIO(view[:_MOST_HEADER])
        version = np.lib.format.read_magic(head)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            return f"expected .npy of version 1.0 or 2.0, got {version[0]}.{version[1]}"
        shape, fortran, dtype = readers[version](head)
    except Exception as error:  # the bytes may be anything, and so is what numpy raises
        return f"expected .npy, got {len(view)} bytes that are none: {error!s:.200}"
    return NpyHeader(shape, dtype, fortran, head.tell())


def view_npy(content: bytes | memoryview, header: NpyHeader) -> Array | str:
    """Return the array of a `.npy`, a view of its bytes; a text is the reason why there is none.

    Parameters
    ----------
    header
        What the content itself says; the caller has looked whether that is something to believe.
    """
    view = memoryview(content).cast("B")
    wanted, size = header.dtype.itemsize * math.prod(header.shape), len(view) - header.begin
    if header.dtype.hasobject or wanted != size:
        return f"expected {wanted:.15g} bytes for shape {header.shape!s:.80}, got {size}"
    return np.ndarray(header.shape, header.dtype, view, header.begin, order="F" if header.fortran else "C")


def has_compressed_batch(buffer: Any) -> bool:
    """Return whether an Arrow IPC stream holds a compressed batch: what it grows to is only known when it is there.

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
    """Go to the table that an offset leads to: the root, or what is in a field of a table."""
    at += 0 if number is None else _slot(data, at, number)
    return at + int(struct.unpack_from("<I", data, at)[0])
