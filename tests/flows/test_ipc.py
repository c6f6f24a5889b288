"""Arrow streams are read as the library reads them, and whatever else the bytes are is refused."""

import random
import struct

import numpy as np
import pyarrow as pa
import pytest

from facade.sdp.arrays import ArrayError, StreamReader
from tests.support.columnar import stream

NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
GOOD = stream({name: np.arange(9).astype(name) for name in NUMBERS})


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 8, 3180])
def test_every_type_is_read_as_the_library_reads_it(rows, end):
    dice = np.random.default_rng(rows)
    columns = {
        name: pa.array(dice.integers(0, 100, rows).astype(name), mask=dice.random(rows) < 0.3) for name in NUMBERS
    }
    content = stream(columns, end=end)
    found, wanted = StreamReader().read(content), pa.ipc.open_stream(content).read_all()
    assert found.rows == wanted.num_rows
    assert list(found.columns) == wanted.column_names
    for name in NUMBERS:
        mask = found.nulls.get(name, np.zeros(rows, bool))
        values = found.columns[name].tolist()
        assert [None if gone else value for gone, value in zip(mask, values, strict=True)] == wanted[name].to_pylist()
        assert str(found.columns[name].dtype) == name


def _many() -> bytes:
    batch = pa.record_batch([pa.array([1])], names=["a"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _claiming(rows: int) -> bytes:
    """A batch of 9 rows that says that it and its columns have others."""
    return GOOD.replace(struct.pack("<q", 9), struct.pack("<q", rows))


REFUSED = {
    "nothing": b"",
    "no stream": b"\xff\xff\xff\xff",
    "JSON": b'{"schema":"heap/1"}',
    "cut": GOOD[:-100],
    "more behind it": GOOD + b"x",
    "two batches": _many(),
    "a schema alone": pa.schema([("a", pa.int8())]).serialize().to_pybytes(),
    "2^31 rows": _claiming(2**31),
    "2^62 rows": _claiming(2**62),
    "less than no rows": _claiming(-1),
    "no rows": stream({"a": pa.array([], pa.int8())}),
    "compressed": stream({"a": np.zeros(100_000)}, compression="lz4"),
    "a dictionary": stream({"a": pa.array(["x", "y"]).dictionary_encode()}),
    "a dictionary of numbers": stream({"a": pa.array([1, 2]).dictionary_encode()}),
    "lists": stream({"a": pa.array([[1], [2]])}),
    "a structure": stream({"a": pa.array([{"b": 1}])}),
    "text": stream({"a": pa.array(["x"])}),
    "booleans": stream({"a": pa.array([True])}),
    "half floats": stream({"a": np.zeros(3, np.float16)}),
    "nulls alone": stream({"a": pa.nulls(3)}),
    "times": stream({"a": pa.array([1], pa.timestamp("us"))}),
    "run ends": stream({"a": pa.RunEndEncodedArray.from_arrays([3], [1])}),
    "300 columns": stream({f"c{i}": np.zeros(1) for i in range(300)}),
    "a name twice": GOOD.replace(b"uint16", b"uint32"),
    "a schema longer than all": GOOD[:4] + b"\x00\x00\x00\x7f" + GOOD[8:],
}


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED)
def test_anything_else_is_refused(content):
    with pytest.raises(ArrayError, match="expected"):
        StreamReader().read(content)


def test_no_bytes_do_harm():
    """Each byte wrong, and some at once: views within the bytes, or a refusal."""
    dice, reader = random.Random(5), StreamReader()
    for turn in range(2 * len(GOOD)):
        damaged = bytearray(GOOD)
        for _ in range(1 + turn // len(GOOD)):
            damaged[turn if turn < len(GOOD) else dice.randrange(len(GOOD))] = dice.choice((0, 1, 4, 127, 128, 255))
        try:
            found = reader.read(bytes(damaged))
        except ArrayError:
            continue
        assert all(len(column) == found.rows <= len(GOOD) for column in found.columns.values())
