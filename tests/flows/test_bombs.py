"""Small records that claim, or grow to, gigabytes: each is refused, within little memory."""

import subprocess
import sys

CODE = """
import resource, struct, sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from facade.flows.alerts.packets import PacketCodec
from facade.flows.quality.records import decode as decode_metric
from facade.flows.tables.solution import decode as decode_table
from facade.flows.tables.solution import decode_npy
from facade.kernel.icd.load import load
from facade.kernel.outcome import RecordRejected

def figure(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

def npy(shape, version=1, length=None, descr="<f8"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\\n"
    size = len(text) if length is None else length
    return b"\\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + text + bytes(8)

def arrow(*columns, names=("value",), compression=None):
    sink = pa.BufferOutputStream()
    batch = pa.record_batch(list(columns), names=list(names))
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())

def zigzag(number):
    number, out = number << 1, b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])

resource.setrlimit(resource.RLIMIT_AS, (3_000_000_000, resource.RLIM_INFINITY))
codec = PacketCodec(load())
head = codec.head + b"\\x02c\\x02s\\x02i\\x02a\\x02t" + zigzag(1) * 2
NPY = [npy((2**31, 2**31)), npy((2**62,)), npy((-1,)), npy((2**31,), 2, 2**32 - 1), npy("(" * 5000), npy((1,) * 9000)]
NPY += [npy((2**31, 2), descr="<c8"), npy((0, 2**62), descr="<c8"), npy((2**31,), descr="<U999999999")]
zeros = pa.array(np.zeros(2**25))
ARROW = [arrow(zeros, compression="zstd"), arrow(zeros, compression="lz4")]
ARROW += [arrow(pa.array([], pa.list_(pa.float64(), 2**31 - 1)))]
ARROW += [arrow(pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), ["x" * 1_000_000]))]
whole = arrow(pa.array([1.0, 2.0]))
ARROW += [whole.replace(struct.pack("<q", 2), struct.pack("<q", size)) for size in (2**31, 2**40, 2**62, -1)]
ARROW += [whole.replace(struct.pack("<q", 16), struct.pack("<q", size)) for size in (2**31, 2**62, -8)]
ARROW += [struct.pack("<II", 0xFFFFFFFF, 2**31 - 1) + bytes(64), whole[:8] * 1000]
MSGPACK = [b"\\xdf\\xff\\xff\\xff\\xff", b"\\xde\\xff\\xff" + b"\\xc4\\x01a\\xc0" * 65535]
MSGPACK += [b"\\xdd\\xff\\xff\\xff\\xff" * 1000, b"\\x91" * 100_000]
common = b"\\xc4\\x02nd\\xc3\\xc4\\x04type\\xc4\\x03<f8\\xc4\\x04kind\\xc4\\x00"
MOST = b"\\xcf\\x7f" + b"\\xff" * 7
for shape in (b"\\xdd\\xff\\xff\\xff\\xff", b"\\x92" + MOST * 2, b"\\x92" + b"\\xce\\x80\\0\\0\\0" * 2):
    begin = b"\\x85" + common + b"\\xc4\\x05shape" + shape + b"\\xc4\\x04data"
    MSGPACK += [begin + b"\\xc4\\x00", begin + b"\\xc6\\xff\\xff\\xff\\xff"]
AVRO = [codec.head + zigzag(2**61) + b"x", codec.head + zigzag(2**31) * 8, head + zigzag(2**61) + b"\\x02a" + bytes(8)]
AVRO += [head + b"\\0\\0" + zigzag(2**61) + bytes(9)]
AVRO += [head + b"\\0\\0" + zigzag(2_700_000) + bytes(3 * 2_700_000) + b"\\0"]
AVRO += [head + b"\\0\\0" + (zigzag(1) + bytes(3)) * 2_000_000 + b"\\0"]
AVRO += [head + zigzag(600_000) + b"".join(b"\\x0c%06d" % i + bytes(8) for i in range(600_000)) + b"\\0\\0\\0"]
refused = 0
resource.setrlimit(resource.RLIMIT_AS, (figure("VmSize:") + 400_000_000,) * 2)
Path("/proc/self/clear_refs").write_text("5")
before = figure("VmRSS:")
for shape in ([], [2], [1024, 1024], [2**20, 2**20]):
    for encoding, bombs in (("npy", NPY), ("arrow", ARROW), ("msgpack-numpy", MSGPACK)):
        for bomb in bombs:
            found = decode_metric(encoding, bomb, shape, "float64")
            assert isinstance(found, RecordRejected), (encoding, bomb[:80], shape, found)
            refused += 1
for bomb in [*ARROW]:
    found = decode_table(bomb)
    assert isinstance(found, str), bomb[:80]
for bomb in NPY:
    found = decode_npy(bomb, "gains")
    assert isinstance(found, str), bomb[:80]
for bomb in AVRO:
    found = codec.alert(bomb, "0/0")
    assert isinstance(found, RecordRejected), (bomb[:80], found)
print(refused, (figure("VmHWM:") - before) // 1_000_000)
"""


def test_each_bomb_is_refused_within_little_memory() -> None:
    """In a process of its own: what it may have at most is a limit of the kernel, and what it had is read there."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    refused, megabytes = map(int, done.stdout.split())
    assert refused > 100
    assert megabytes < 250
