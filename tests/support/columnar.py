"""Columnar batches for tests, written by the Arrow library."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from facade.flows.telemetry.summed import sums_of
from facade.kernel.bus.port import Record
from facade.kernel.icd.load import load
from facade.sdp.batches import FRAME, header_of

CONSTANTS = ("node", "scan_id", "channel_count")
TYPES = {
    "seq": "uint32", "time": "uint32", "channel_start": "uint16", "received": "uint16", "lost": "uint16",
    "late": "uint16", "flagged_fraction": "float64", "latency": "float64",
}  # fmt: skip
WIDE = dict.fromkeys(("node", "scan_id", "channel_count"), "int64")


def stream(columns: Mapping[str, Any], *, end: bool = True, compression: str | None = None) -> bytes:
    """Return an Arrow IPC stream of one batch, without the mark of its end where `end` is false."""
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue()) if end else bytes(sink.getvalue())[:-8]


def columnar(
    documents: Sequence[Mapping[str, Any]],
    *,
    constants: Collection[str] = CONSTANTS,
    types: Mapping[str, str] | None = None,
    bases: Collection[str] = ("seq", "time"),
    **header: Any,
) -> Record:
    """Return messages as one record; None stands for a null. The constants are those of the first.

    `header` is put in the place of what the header would say; `constants_of` and `bases_of` are added.
    """
    first = documents[0]
    lowest = {name: min(one[name] for one in documents) for name in bases}
    columns = {}
    for name in first:
        if name != "schema" and name not in constants:
            values = [one[name] for one in documents]
            kind = {**WIDE, **TYPES, **(types or {})}[name]
            array = np.array([0 if value is None else value for value in values], np.float64 if "f" in kind else object)
            array = (array - lowest.get(name, 0)).astype(kind)
            columns[name] = pa.array(array, mask=np.array([value is None for value in values]))
    said = {
        "message": first["schema"],
        "rows": len(documents),
        "constants": {name: first.get(name, 1) for name in constants} | header.pop("constants_of", {}),
        "bases": lowest | header.pop("bases_of", {}),
    }
    headers = header_of(**{**said, **header})
    key = str(first["node"]).encode()
    return Record(topic="ingest.heaps", key=key, value=stream(columns), headers=headers)


SUMS = sums_of(load(), "ingest.heaps")


def summed(batch: Record, lie: Callable[[dict[str, Any]], None] = lambda _: None) -> Record:
    """Return a batch with its frame, about which its producer may lie."""
    headers = dict(SUMS.with_frame(batch.headers, batch.value or b""))
    if FRAME in headers:
        frame = json.loads(headers[FRAME])
        lie(frame)
        headers[FRAME] = json.dumps(frame).encode()
    return replace(batch, headers=tuple(headers.items()))
