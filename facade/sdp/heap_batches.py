"""Heap notifications as columnar batches, as producers write them; needs pyarrow."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from facade.sdp.batches import HeaderPairs, header_of

TYPES: Final = {
    "seq": "uint32", "time": "uint32", "channel_start": "uint16", "received": "uint16", "lost": "uint16",
    "late": "uint16", "flagged_fraction": "float32", "latency": "float32",
}  # fmt: skip
"""The types of the columns; a column with larger values becomes 64 bits wide."""
_MESSAGE: Final = "heap/1"
_BASES: Final = ("seq", "time")


def heap_batch(
    columns: Mapping[str, npt.NDArray[Any]], constants: Mapping[str, int], **more: Any
) -> tuple[HeaderPairs, bytes]:
    """Return the headers and the value of a record with at least one notification.

    Parameters
    ----------
    columns
        Those of `TYPES`, each of shape (notifications,).
    constants
        The fields with the same value in all of them.
    more
        Further fields of the header; see `facade.sdp.messages.Batch`.
    """
    bases = {name: int(columns[name].min()) for name in _BASES}
    relative = {name: column - bases[name] if name in bases else column for name, column in columns.items()}
    headers = header_of(_MESSAGE, len(columns["seq"]), constants=constants, bases=bases, **more)
    return headers, _stream(relative)


def _stream(columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    arrays = []
    for name, column in columns.items():
        kind = np.dtype(TYPES[name])
        if kind.kind == "u" and not 0 <= int(column.min()) <= int(column.max()) <= int(np.iinfo(kind).max):
            kind = np.dtype(np.int64)
        arrays.append(pa.array(column.astype(kind)))
    batch = pa.record_batch(arrays, names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
