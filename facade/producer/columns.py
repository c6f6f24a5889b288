"""Columns as an Arrow IPC stream of one batch; needs pyarrow."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_WIDE = {"u": "int64", "f": "float64"}


def stream(columns: Mapping[str, npt.NDArray[Any]], types: Mapping[str, str]) -> bytes:
    """Return a stream; a column whose values its type does not hold is made 64 bits wide."""
    arrays = []
    for name, column in columns.items():
        kind = np.dtype(types[name])
        if kind.kind == "u" and not 0 <= int(column.min()) <= int(column.max()) <= int(np.iinfo(kind).max):
            kind = np.dtype(np.int64)
        arrays.append(pa.array(column.astype(kind)))
    batch = pa.record_batch(arrays, names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
