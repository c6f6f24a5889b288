"""Arrays of metrics out of foreign bytes: read in each encoding, refused with a reason, and never unpickled."""

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import facade.flows.quality.records
from facade.flows.quality.records import decode, encode_metric
from facade.kernel.errors import ConfigError
from facade.kernel.outcome import RecordRejected
from tests.support.metrics import WRITERS, arrow, arrow_stream, dtype_of, msgpack, msgpack_numpy, npy

IMAGE = np.arange(6, dtype=np.float32).reshape(2, 3)
ENCODINGS = sorted(WRITERS)


def read(encoding: str, content: bytes, like: np.ndarray = IMAGE, **said: Any) -> Any:
    return decode(encoding, content, **{"shape": like.shape, "dtype": dtype_of(like), **said})


def why(found):
    assert isinstance(found, RecordRejected)
    assert found.path == "$"
    return f"{found.reason}: {found.detail}"


def test_msgpack_numpy_with_texts_as_keys_and_other_byte_order_is_read():
    array = IMAGE.astype(">f8")
    content = msgpack({"nd": True, "type": ">f8", "kind": "", "shape": [2, 3], "data": array.tobytes()})
    assert np.array_equal(read("msgpack-numpy", content, array), array)


class Bomb:
    """Says so when it is unpickled."""

    went_off: list[int] = []  # noqa: RUF012

    def __reduce__(self):
        return Bomb.went_off.append, (1,)


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        ("npy", npy(np.array([[Bomb()] * 3] * 2, object))),
        ("npy", pickle.dumps(Bomb())),
        ("msgpack-numpy", msgpack_numpy(IMAGE, type="|O", kind=b"O", data=pickle.dumps(Bomb()))),
        ("msgpack-numpy", msgpack_numpy(IMAGE, type="|O", data=pickle.dumps(Bomb()))),
        ("msgpack-numpy", pickle.dumps(Bomb())),
        ("arrow", pickle.dumps(Bomb())),
        ("arrow", arrow_stream({"value": pa.array([pickle.dumps(Bomb())] * 2)})),
    ],
    ids=str,
)
def test_nothing_is_unpickled(encoding, content):
    Bomb.went_off.clear()
    assert isinstance(read(encoding, content), RecordRejected)
    assert Bomb.went_off == []


@pytest.mark.parametrize(
    ("encoding", "content", "reason"),
    [
        ("npy", npy(IMAGE.T), "shape: expected (2, 3), as the header says, got (3, 2)"),
        ("npy", npy(IMAGE.astype(np.float64)), "dtype: expected float32, as the header says, got float64"),
        ("npy", npy(IMAGE)[:-1], "npy: expected 24 bytes for shape (2, 3), got 23"),
        ("npy", npy(IMAGE).replace(b"(2, 3), }  ", b"(10**12,)} "), "npy: expected .npy"),
        ("npy", npy(IMAGE).replace(b"(2, 3), }           ", b"(1000000000000,), } "), "shape: expected (2, 3)"),
        ("npy", npy(IMAGE).replace(b"(2, 3)", b"(-2,3)"), "shape: expected (2, 3)"),
        ("npy", npy(IMAGE).replace(b"\x01\x00", b"\x03\x00", 1), "npy: expected .npy of version 1.0 or 2.0, got 3.0"),
        ("arrow", arrow(IMAGE.T), "shape: expected lists of (3,), as the header says, got [2]"),
        ("arrow", arrow(IMAGE.reshape(-1)), "shape: expected lists of (3,), as the header says, got []"),
        ("arrow", arrow(IMAGE.astype(np.float64)), "dtype: expected float32, as the header says, got float64"),
        ("arrow", arrow(IMAGE, "values"), "arrow: expected the one column value, got values"),
        ("arrow", arrow(IMAGE, compression="zstd"), "arrow: expected buffers that are not compressed"),
        ("arrow", arrow(IMAGE) + b"more", "arrow: expected the stream to end with the value, got 4 bytes more"),
        ("arrow", arrow(IMAGE)[:300], "arrow: expected an IPC stream"),
        ("msgpack-numpy", msgpack_numpy(IMAGE.T), "shape: expected (2, 3), as the header says, got (3, 2)"),
        ("msgpack-numpy", msgpack_numpy(IMAGE, shape=[1] * 9), "msgpack-numpy: shape: Expected `array` of length <= 8"),
        ("msgpack-numpy", msgpack_numpy(IMAGE.astype(">i2")), "dtype: expected float32, as the header says, got int16"),
        ("msgpack-numpy", msgpack_numpy(IMAGE, type="f4,f4"), "dtype: expected float32, got type 'f4,f4'"),
        (
            "msgpack-numpy",
            msgpack_numpy(IMAGE, type="|V24", kind=b"V"),
            "dtype: expected float32, got an array of kind",
        ),
        ("msgpack-numpy", msgpack_numpy(IMAGE, data=b"x" * 23), "msgpack-numpy: expected 24 bytes for shape (2, 3)"),
        ("msgpack-numpy", msgpack_numpy(IMAGE)[:-1], "msgpack-numpy: expected a map with nd, type, shape and data"),
        ("msgpack-numpy", msgpack_numpy(IMAGE) + b"x", "msgpack-numpy: expected a map with nd, type, shape and data"),
        ("msgpack-numpy", msgpack({b"nd": True, b"type": "<f4"}), "msgpack-numpy: expected a field shape"),
        ("msgpack-numpy", msgpack({f"{n}": n for n in range(9)}), "msgpack-numpy: expected a map"),
        ("msgpack-numpy", b"\xdf\xff\xff\xff\xff", "msgpack-numpy: expected a map"),
    ],
)
def test_what_contradicts_itself_or_the_header_has_a_reason(encoding, content, reason):
    found = read(encoding, content)
    assert why(found).startswith(reason)


def test_nulls_are_no_numbers_in_arrow():
    values = pa.array([1.0, None], pa.float32())
    assert why(read("arrow", arrow_stream({"value": values}), shape=(2,))).startswith(
        "arrow: expected values everywhere"
    )
    lists = pa.array([[1.0, None], [2.0, 3.0]], pa.list_(pa.float32(), 2))
    assert why(read("arrow", arrow_stream({"value": lists}), shape=(2, 2))).startswith(
        "arrow: expected values everywhere"
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["x" * 41, "a\nb", "\u202e"], ids=["long", "newline", "backwards"])
def test_names_that_nobody_can_print_are_refused(encoding, name):
    array = np.array([name])
    assert why(read(encoding, WRITERS[encoding](array), array)).startswith(
        ("dtype: expected names of 1", "text: expected")
    )


def test_names_of_no_length_take_no_memory():
    content = npy(np.array(["a"])).replace(b"<U1", b"<U0").replace(b"(1,), }         ", b"(1000000000,), } ")
    assert why(read("npy", content[:-4], shape=(1_000_000_000,), dtype="str")).startswith("shape: expected at most")
    small = npy(np.array(["a"])).replace(b"<U1", b"<U0")
    assert why(read("npy", small[:-4], shape=(1,), dtype="str")).startswith("dtype: expected names of 1 to 40")


def test_without_arrow_the_others_are_read_and_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(facade.flows.quality.records, "pa", None)
    assert "pip install 'sdp-tango-facade[tables]'" in why(read("arrow", arrow(IMAGE)))
    assert np.array_equal(read("npy", npy(IMAGE)), IMAGE)
    with pytest.raises(ConfigError, match=r"pip install 'sdp-tango-facade\[tables\]'"):
        encode_metric(IMAGE, subarray=1, metric="noiseBaseline", time=1, encoding="arrow")
