"""Metrics written by hand, as somebody else would: the bytes of the public formats, and the header of the record."""

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from facade.kernel.bus.port import Record
from tests.support.heaps import BASE_US


def msgpack(value: Any) -> bytes:
    """Write a value as MessagePack does: bytes as bin, texts as str."""
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, bytes):
        return b"\xc6" + len(value).to_bytes(4, "big") + value
    if isinstance(value, str):
        return b"\xdb" + len(value.encode()).to_bytes(4, "big") + value.encode()
    if isinstance(value, int):
        return b"\xd3" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, list):
        return b"\xdd" + len(value).to_bytes(4, "big") + b"".join(map(msgpack, value))
    items = [part for pair in value.items() for part in pair]
    return b"\xdf" + len(value).to_bytes(4, "big") + b"".join(map(msgpack, items))


def msgpack_numpy(array: np.ndarray, **changes: Any) -> bytes:
    """Write an array with the keys that msgpack-numpy gives it; `changes` stand in the map, right or wrong."""
    fields = {"nd": True, "type": array.dtype.str, "kind": b"", "shape": list(array.shape), "data": array.tobytes()}
    return msgpack({key.encode(): value for key, value in (fields | changes).items()})


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=array.dtype.hasobject)
    return out.getvalue()


def arrow(array: np.ndarray, name: str = "value", **options: Any) -> bytes:
    flat = array.reshape(-1).astype(array.dtype.newbyteorder("="))
    column = pa.array(flat.tolist() if array.dtype.kind == "U" else flat)
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return arrow_stream({name: column}, **options)


def arrow_stream(columns: dict[str, pa.Array], **options: Any) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


WRITERS: dict[str, Callable[[np.ndarray], bytes]] = {"npy": npy, "arrow": arrow, "msgpack-numpy": msgpack_numpy}


def dtype_of(array: np.ndarray) -> str:
    """Return the type as it stands in the header."""
    return "str" if array.dtype.kind == "U" else array.dtype.name


def metric(name: str, value: Any, *, encoding: str = "npy", content: bytes | None = None, **changes: Any) -> Record:
    """Return the record of a metric; `changes` stand in its header, right or wrong."""
    array = np.asarray(value)
    header = {
        "schema": "metric/1",
        "subarray": 1,
        "metric": name,
        "time": BASE_US,
        "encoding": encoding,
        "shape": list(array.shape),
        "dtype": dtype_of(array),
        "unit": "",
        **changes,
    }
    if content is None:
        content = WRITERS[encoding](array)
    key = f"subarray/{header['subarray']:02d}/{name}".encode()
    return Record(topic="quality", key=key, value=content, headers=(("metric", json.dumps(header).encode()),))
