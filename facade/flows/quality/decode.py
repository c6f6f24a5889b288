"""Reads the array of a metric in each encoding; whatever the bytes are, this gives an array or a reason.

What the bytes say of themselves must agree with the header of the record and with their own number before an array is
made; it is a view of them then. Nothing is unpickled: msgpack-numpy is read here, of its maps only what plain arrays
and numbers need.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from facade.codec.arrays import Array, has_compressed_batch, pa, read_npy_header, view_npy
from facade.codec.decode import printable
from facade.outcome import Rejected

TEXT: Final = "str"
"""The type of names in headers."""
COLUMN: Final = "value"
"""The one column of a metric in Arrow."""
LONGEST_NAME: Final = 40
ARROW_TYPES: Final = {"halffloat": "float16", "float": "float32", "double": "float64", "string": TEXT}
"""Arrow's names of types where they are not numpy's."""

MOST_ELEMENTS: Final = 524_288
"""Of an array of numbers: what 4 MB of doubles are."""
MOST_NAMES: Final = 4096
_MOST_FIELDS = msgspec.Meta(max_length=8)
_WITH_BYTES = msgspec.msgpack.Decoder(Annotated[dict[bytes, msgspec.Raw], _MOST_FIELDS])
_WITH_TEXTS = msgspec.msgpack.Decoder(Annotated[dict[str, msgspec.Raw], _MOST_FIELDS])
_TYPE_CODE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|U[1-9][0-9]?)")
_HIGHEST_POINT = 0x10FFFF

Shape = tuple[int, ...]


class _Refused(Exception):
    """Takes the reason, and what was expected and got."""


def decode(encoding: str, content: bytes, shape: Sequence[int], dtype: str) -> Array | Rejected:
    """Read an array.

    Parameters
    ----------
    encoding, shape, dtype
        What the header of the record says.

    Returns
    -------
    numpy.ndarray or Rejected
        The array, with that shape, or why there is none.
    """
    limit = MOST_NAMES if dtype == TEXT else MOST_ELEMENTS
    if math.prod(shape) > limit:
        return Rejected("shape", "$", f"expected at most {limit} elements, got {math.prod(shape):.15g}")
    try:
        array = _READERS[encoding](content, tuple(shape), dtype)
        if dtype == TEXT:
            _require_printable(array)
    except _Refused as error:
        reason, detail = error.args
        return Rejected(reason, "$", printable(detail))
    return array


def _npy(content: bytes, shape: Shape, dtype: str) -> Array:
    header = read_npy_header(content)
    if isinstance(header, str):
        raise _Refused("npy", header)
    _require(header.shape, header.dtype, shape, dtype)
    array = view_npy(content, header)
    if isinstance(array, str):
        raise _Refused("npy", array)
    return array


def _msgpack_numpy(content: bytes, shape: Shape, dtype: str) -> Array:
    fields = _fields(content)
    if (kind := _text(fields, "kind", "")) != "":
        raise _Refused("dtype", f"expected {dtype}, got an array of kind {kind!r:.20}, which is not read")
    code = _text(fields, "type")
    if not _TYPE_CODE.fullmatch(code):
        raise _Refused("dtype", f"expected {dtype}, got type {code!r:.80}")
    found = np.dtype(code)
    is_array = _field(fields, "nd", bool)
    _require(
        tuple(_field(fields, "shape", Annotated[list[int], _MOST_FIELDS])) if is_array else (), found, shape, dtype
    )
    data = _field(fields, "data", memoryview)
    if (wanted := found.itemsize * math.prod(shape)) != len(data):
        raise _Refused("msgpack-numpy", f"expected {wanted} bytes for shape {shape}, got {len(data)}")
    return np.ndarray(shape, found, data)


def _fields(content: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of a map whose keys are bytes, as msgpack-numpy writes them, or texts."""
    try:
        return {key.decode("latin-1"): raw for key, raw in _WITH_BYTES.decode(content).items()}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        found: dict[str, msgspec.Raw] = _WITH_TEXTS.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        what = "expected a map with nd, type, shape and data"
        raise _Refused("msgpack-numpy", f"{what}, got {len(content)} bytes that are none: {error!s:.200}") from error
    return found


def _field(fields: dict[str, msgspec.Raw], name: str, wanted: Any) -> Any:
    if name not in fields:
        raise _Refused("msgpack-numpy", f"expected a field {name}, got {', '.join(fields) or 'none'!s:.200}")
    try:
        return msgspec.msgpack.decode(fields[name], type=wanted)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _Refused("msgpack-numpy", f"{name}: {error!s:.200}") from error


def _text(fields: dict[str, msgspec.Raw], name: str, default: str | None = None) -> str:
    """Return a field that is a text, or bytes in the place of one."""
    if default is not None and name not in fields:
        return default
    try:
        found: bytes = _field(fields, name, bytes)
    except _Refused:
        text: str = _field(fields, name, str)
        return text
    return found.decode("latin-1")


def _arrow(content: bytes, shape: Shape, dtype: str) -> Array:
    if pa is None:
        raise _Refused("arrow", "expected pyarrow to be installed: pip install 'sdp-tango-facade[tables]'")
    try:
        column = _column(content, shape, dtype)
        if column.null_count:
            raise _Refused("arrow", f"expected values everywhere, got {column.null_count} nulls")
        for _ in shape[1:]:
            column = column.flatten()
            if column.null_count:
                raise _Refused("arrow", f"expected values everywhere, got {column.null_count} nulls")
        if dtype == TEXT:
            return _names(column).reshape(shape)
        array: Array = column.to_numpy(zero_copy_only=False)
        return array.reshape(shape)
    except _Refused:
        raise
    except Exception as error:  # the bytes may be anything, and so is what the library raises
        raise _Refused(
            "arrow", f"expected an IPC stream, got {len(content)} bytes that are none: {error!s:.200}"
        ) from error


def _column(content: bytes, shape: Shape, dtype: str) -> Any:
    buffer = pa.py_buffer(content)
    if has_compressed_batch(buffer):
        raise _Refused("arrow", "expected buffers that are not compressed, got a compressed batch")
    source = pa.BufferReader(buffer)
    with pa.ipc.open_stream(source) as reader:
        _require_column(reader.schema, shape, dtype)
        table = reader.read_all()
    if source.tell() != len(content):
        raise _Refused(
            "arrow", f"expected the stream to end with the value, got {len(content) - source.tell()} bytes more"
        )
    table.validate(full=True)  # the sizes that a batch claims are not checked before
    rows = shape[0] if shape else 1
    if table.num_rows != rows:
        raise _Refused("shape", f"expected {rows} rows for {shape}, as the header says, got {table.num_rows}")
    column = table[COLUMN]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _require_column(schema: Any, shape: Shape, dtype: str) -> None:
    if schema.names != [COLUMN]:
        raise _Refused("arrow", f"expected the one column {COLUMN}, got {', '.join(schema.names)!s:.200}")
    kind = schema.field(COLUMN).type
    sizes: list[int] = []
    while pa.types.is_fixed_size_list(kind) and len(sizes) < len(shape):
        sizes.append(kind.list_size)
        kind = kind.value_type
    if tuple(sizes) != shape[1:]:
        raise _Refused("shape", f"expected lists of {shape[1:]}, as the header says, got {sizes}")
    if (found := ARROW_TYPES.get(str(kind), str(kind))) != dtype:
        raise _Refused("dtype", f"expected {dtype}, as the header says, got {found:.80}")


def _names(column: Any) -> Array:
    found = column.to_pylist()
    longest = max(map(len, found), default=1) or 1
    _require_length(longest)
    return np.array(found, f"U{longest}")


def _require(found_shape: Shape, found: np.dtype[Any], shape: Shape, dtype: str) -> None:
    """Compare what the bytes say of themselves with the header."""
    name = TEXT if found.kind == "U" else found.name
    if name != dtype:
        raise _Refused("dtype", f"expected {dtype}, as the header says, got {name:.80}")
    if found.kind == "U":
        _require_length(found.itemsize // 4)
    if found_shape != shape:
        raise _Refused("shape", f"expected {shape}, as the header says, got {found_shape!s:.80}")


def _require_length(longest: int) -> None:
    if not 1 <= longest <= LONGEST_NAME:
        raise _Refused("dtype", f"expected names of 1 to {LONGEST_NAME} characters, got {longest}")


def _require_printable(array: Array) -> None:
    points = array.astype(array.dtype.newbyteorder("=")).reshape(-1).view(np.uint32)
    # The numbers first: Python has no text for those that are no code points.
    if points.max(initial=0) > _HIGHEST_POINT or not all(map(str.isprintable, array.reshape(-1).tolist())):
        raise _Refused("text", "expected printable names, got others")


_READERS: Final[dict[str, Callable[[bytes, Shape, str], Array]]] = {
    "npy": _npy,
    "arrow": _arrow,
    "msgpack-numpy": _msgpack_numpy,
}
