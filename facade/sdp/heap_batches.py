"""Heap notifications as columnar batches, as producers write them; needs pyarrow."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_LARGEST: Final = 2**53 - 1
"""Largest base of a column, as of `schemas/messages/batch.schema.json`."""


_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""End of a stream of Arrow's."""


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
    (found,) = heap_batches(columns, [0], [constants], **more)
    return found


def heap_batches(
    columns: Mapping[str, npt.NDArray[Any]], begins: Sequence[int], constants: Iterable[Mapping[str, int]], **more: Any
) -> Iterator[tuple[HeaderPairs, bytes]]:
    """Return the headers and the values of several records, whose columns are made together.

    Parameters
    ----------
    columns
        Those of `TYPES`, each of shape (notifications,), of one record after the other.
    begins
        First notification of each record, ascending from 0.
    constants, more
        As of `heap_batch`, of each record and of all.
    """
    whole = len(columns["seq"])
    sizes = np.diff([*begins, whole])
    # Within the limits of the header, so that one impossible value does not make its whole record unreadable.
    bases = {name: np.clip(np.minimum.reduceat(columns[name], begins), 0, _LARGEST) for name in _BASES}
    relative = {
        name: column - np.repeat(bases[name], sizes) if name in bases else column for name, column in columns.items()
    }
    batch = _record_batch(relative)
    schema = batch.schema.serialize().to_pybytes()
    rows = zip(begins, sizes.tolist(), *(one.tolist() for one in bases.values()), constants, strict=True)
    for begin, size, *least, mine in rows:
        headers = header_of(_MESSAGE, size, constants=mine, bases=dict(zip(_BASES, least, strict=True)), **more)
        yield headers, b"".join((schema, batch.slice(begin, size).serialize(), _END))


def _record_batch(columns: Mapping[str, npt.NDArray[Any]]) -> pa.RecordBatch:
    arrays = []
    for name, column in columns.items():
        kind = np.dtype(TYPES[name])
        is_sure = kind.kind != "u" or np.can_cast(column.dtype, kind)
        if not is_sure and not 0 <= int(column.min()) <= int(column.max()) <= int(np.iinfo(kind).max):
            kind = np.dtype(np.int64)
        arrays.append(pa.array(column.astype(kind, copy=False)))
    return pa.record_batch(arrays, names=list(columns))
