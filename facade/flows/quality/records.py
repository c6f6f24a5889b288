"""The records on ``quality``: an array in one of three encodings, and a header that describes it.

The key of a record is ``subarray/NN/metric``. Reading returns an array or a reason, whatever the bytes are. Shape and
type in the bytes must agree with the header of the record and with their length before an array is made, as a view of
them. Nothing is unpickled: msgpack-numpy is parsed here, with the keys of plain arrays and numbers only.
"""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, cast

import msgspec
import numpy as np

from facade.kernel.bus.port import Record
from facade.kernel.clock import Time
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.plausible import wrong_key, wrong_unit
from facade.kernel.errors import ConfigError
from facade.kernel.outcome import RecordRejected
from facade.kernel.printable import excerpt
from facade.sdp.arrays import (
    Array,
    ArrayError,
    pa,
    read_arrow,
    read_npy_header,
    require_values,
    view_npy,
    whole_column,
)
from facade.sdp.messages import Metric, MetricDtype, MetricEncoding

QUALITY = "quality"
METRIC = "metric"
"""Header that describes the bytes of a record."""
_decoder = BatchDecoder(Metric)
TEXT: Final = "str"
"""The data type of names in headers."""
COLUMN: Final = "value"
"""The only column of a metric in Arrow."""
LONGEST_NAME: Final = 40
ARROW_TYPES: Final = {"halffloat": "float16", "float": "float32", "double": "float64", "string": TEXT}
"""Arrow's names of types that differ from numpy's."""
MOST_ELEMENTS: Final = 524_288
"""Largest number of elements: 4 MB of doubles."""
MOST_NAMES: Final = 4096
_MOST_FIELDS = msgspec.Meta(max_length=8)
_WITH_BYTES = msgspec.msgpack.Decoder(Annotated[dict[bytes, msgspec.Raw], _MOST_FIELDS])
_WITH_TEXTS = msgspec.msgpack.Decoder(Annotated[dict[str, msgspec.Raw], _MOST_FIELDS])
_TYPE_CODE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|U[1-9][0-9]?)")
_HIGHEST_POINT = 0x10FFFF
Shape = tuple[int, ...]
_encode = msgspec.msgpack.Encoder().encode


def key_of(header: Metric) -> str:
    """Return the key of the record of a metric."""
    return f"subarray/{header.subarray:02d}/{header.metric}"


def read_header(record: Record) -> Metric | RecordRejected:
    """Return the header of a record, or the reason why it is unusable. It raises no exception."""
    header = _decoder.decode_header(record.headers, METRIC)
    if not isinstance(header, Metric):
        return header
    at = f"headers.{METRIC}"
    return (
        wrong_key(record.key, key_of(header), at)
        or wrong_unit(header.time, record.timestamp_us, f"{at}.time")
        or header
    )


def metric_record(header: Metric, content: bytes) -> Record:
    """Return the record of a metric."""
    headers = ((METRIC, msgspec.json.encode(header)),)
    return Record(topic=QUALITY, key=key_of(header).encode(), value=content, headers=headers)


def decode(encoding: str, content: bytes, shape: Sequence[int], dtype: str) -> Array | RecordRejected:
    """Return the array of a record by the fields of its header, or the reason of its rejection."""
    limit = MOST_NAMES if dtype == TEXT else MOST_ELEMENTS
    if math.prod(shape) > limit:
        return RecordRejected("shape", "$", f"expected at most {limit} elements, got {math.prod(shape):.15g}")
    try:
        array = _READERS[encoding](content, tuple(shape), dtype)
        if dtype == TEXT:
            _require_printable(array)
    except ArrayError as error:
        return RecordRejected(error.reason or encoding, "$", excerpt(str(error)))
    return array


def _read_npy(content: bytes, shape: Shape, dtype: str) -> Array:
    header = read_npy_header(content)
    _require(header.shape, header.dtype, shape, dtype)
    return view_npy(content, header)


def _read_msgpack_numpy(content: bytes, shape: Shape, dtype: str) -> Array:
    fields = _fields(content)
    if (kind := _text(fields, "kind", "")) != "":
        raise ArrayError(f"expected {dtype}, got an array of kind {kind!r:.20}, which is not read", "dtype")
    code = _text(fields, "type")
    if not _TYPE_CODE.fullmatch(code):
        raise ArrayError(f"expected {dtype}, got type {code!r:.80}", "dtype")
    found = np.dtype(code)
    is_array = _field(fields, "nd", bool)
    _require(
        tuple(_field(fields, "shape", Annotated[list[int], _MOST_FIELDS])) if is_array else (), found, shape, dtype
    )
    data = _field(fields, "data", memoryview)
    if (wanted := found.itemsize * math.prod(shape)) != len(data):
        raise ArrayError(f"expected {wanted} bytes for shape {shape}, got {len(data)}")
    return np.ndarray(shape, found, data)


def _fields(content: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of a map whose keys are texts, or bytes, as msgpack-numpy writes them."""
    try:
        return {key.decode("latin-1"): raw for key, raw in _WITH_BYTES.decode(content).items()}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        found: dict[str, msgspec.Raw] = _WITH_TEXTS.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        what = "expected a map with nd, type, shape and data"
        raise ArrayError(f"{what}, got {len(content)} bytes that are none: {error!s:.200}") from error
    return found


def _field(fields: dict[str, msgspec.Raw], name: str, wanted: Any) -> Any:
    if name not in fields:
        raise ArrayError(f"expected a field {name}, got {', '.join(fields) or 'none'!s:.200}")
    try:
        return msgspec.msgpack.decode(fields[name], type=wanted)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ArrayError(f"{name}: {error!s:.200}") from error


def _text(fields: dict[str, msgspec.Raw], name: str, default: str | None = None) -> str:
    """Return a field that is a text, or bytes instead of one."""
    if default is not None and name not in fields:
        return default
    try:
        found: bytes = _field(fields, name, bytes)
    except ArrayError:
        text: str = _field(fields, name, str)
        return text
    return found.decode("latin-1")


def _read_arrow(content: bytes, shape: Shape, dtype: str) -> Array:
    if pa is None:
        raise ArrayError("expected pyarrow to be installed: pip install 'sdp-tango-facade[tables]'")
    try:
        column = _column(content, shape, dtype)
        for _ in shape[1:]:
            column = column.flatten()
            require_values(column)
        if dtype == TEXT:
            return _names(column).reshape(shape)
        array: Array = column.to_numpy(zero_copy_only=False)
        return array.reshape(shape)
    except ArrayError:
        raise
    except Exception as error:  # the bytes are arbitrary, and so is the library's error
        raise ArrayError(f"expected an IPC stream, got {len(content)} bytes that are none: {error!s:.200}") from error


def _column(content: bytes, shape: Shape, dtype: str) -> Any:
    table, left = read_arrow(content, lambda schema: _require_column(schema, shape, dtype))
    if left:
        raise ArrayError(f"expected the stream to end with the value, got {left} bytes more")
    rows = shape[0] if shape else 1
    if table.num_rows != rows:
        raise ArrayError(f"expected {rows} rows for {shape}, as the header says, got {table.num_rows}", "shape")
    return whole_column(table[COLUMN])


def _require_column(schema: Any, shape: Shape, dtype: str) -> None:
    if schema.names != [COLUMN]:
        raise ArrayError(f"expected the one column {COLUMN}, got {', '.join(schema.names)!s:.200}")
    kind = schema.field(COLUMN).type
    sizes: list[int] = []
    while pa.types.is_fixed_size_list(kind) and len(sizes) < len(shape):
        sizes.append(kind.list_size)
        kind = kind.value_type
    if tuple(sizes) != shape[1:]:
        raise ArrayError(f"expected lists of {shape[1:]}, as the header says, got {sizes}", "shape")
    if (found := ARROW_TYPES.get(str(kind), str(kind))) != dtype:
        raise ArrayError(f"expected {dtype}, as the header says, got {found:.80}", "dtype")


def _names(column: Any) -> Array:
    found = column.to_pylist()
    longest = max(map(len, found), default=1) or 1
    _require_length(longest)
    return np.array(found, f"U{longest}")


def _require(found_shape: Shape, found: np.dtype[Any], shape: Shape, dtype: str) -> None:
    """Compare shape and type in the bytes with the header."""
    name = TEXT if found.kind == "U" else found.name
    if name != dtype:
        raise ArrayError(f"expected {dtype}, as the header says, got {name:.80}", "dtype")
    if found.kind == "U":
        _require_length(found.itemsize // 4)
    if found_shape != shape:
        raise ArrayError(f"expected {shape}, as the header says, got {found_shape!s:.80}", "shape")


def _require_length(longest: int) -> None:
    if not 1 <= longest <= LONGEST_NAME:
        raise ArrayError(f"expected names of 1 to {LONGEST_NAME} characters, got {longest}", "dtype")


def _require_printable(array: Array) -> None:
    points = array.astype(array.dtype.newbyteorder("=")).reshape(-1).view(np.uint32)
    # The numbers first: Python cannot represent invalid code points.
    if points.max(initial=0) > _HIGHEST_POINT or not all(map(str.isprintable, array.reshape(-1).tolist())):
        raise ArrayError("expected printable names, got others", "text")


_READERS: Final[dict[str, Callable[[bytes, Shape, str], Array]]] = {
    "npy": _read_npy,
    "arrow": _read_arrow,
    "msgpack-numpy": _read_msgpack_numpy,
}


def encode_metric(
    array: Array,
    *,
    subarray: int,
    metric: str,
    time: int,
    unit: str = "",
    encoding: MetricEncoding = "npy",
    **more: Any,
) -> Record:
    """Return the record of a metric.

    Parameters
    ----------
    array
        A number, a spectrum or an image of real numbers, or names.
    metric
        Name of the attribute of SdpQuality for it.
    time
        Time of the data [Unix us].
    **more
        scan_id, source and sequence, as in the message `metric`.

    Raises
    ------
    ConfigError
        Arrow is requested, and its library is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> writer = open_bus("quality-pipeline").writer()
    >>> spectrum = np.ones(1024, np.float32)
    >>> record = encode_metric(spectrum, subarray=1, metric="bandpassAmplitude", time=1795276800000000, unit="Jy")
    >>> writer.send_durably(record, 5.0)
    """
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    header = Metric(
        subarray=subarray,
        metric=metric,
        time=Time(time),
        encoding=encoding,
        shape=list(array.shape),
        dtype=cast(MetricDtype, TEXT if array.dtype.kind == "U" else array.dtype.name),
        unit=unit,
        **more,
    )
    return metric_record(header, ENCODERS[encoding](array))


def _write_npy(array: Array) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def _write_msgpack_numpy(array: Array) -> bytes:
    return _encode(
        {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": array.shape, b"data": array.tobytes()}
    )


def _write_arrow(array: Array) -> bytes:
    if pa is None:
        raise ConfigError("Arrow needs pyarrow: pip install 'sdp-tango-facade[tables]'")
    flat = array.reshape(-1).astype(array.dtype.newbyteorder("="))
    column = pa.array(flat.tolist(), pa.string()) if array.dtype.kind == "U" else pa.array(flat)
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    batch = pa.record_batch([column], names=[COLUMN])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


ENCODERS: Mapping[MetricEncoding, Callable[[Array], bytes]] = {
    "npy": _write_npy,
    "arrow": _write_arrow,
    "msgpack-numpy": _write_msgpack_numpy,
}
