"""Calibration solutions: complex gains by antenna, channel and polarisation, as Arrow IPC streams and `.npy`.

In Arrow a solution has one row per antenna: name, gains, flags and signal-to-noise ratios, in lists of fixed size, so
that the schema states the shape. A gain is a pair ``real_imaginary``. Flags are true where a gain must not be used. The
other fields are JSON in the schema's metadata, under `HEADER`. Rows may be spread over batches, without compression.

A `.npy` file states only its shape. Gains are read without a copy, after shape and length have been checked.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
import numpy as np

from facade.kernel.errors import ConfigError
from facade.kernel.numbers import Natural
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

SolutionKind = Literal["gains", "bandpass"]
KINDS: Final = get_args(SolutionKind)
MOST_ANTENNAS: Final = 4096
MOST_CHANNELS: Final = 1_000_000
MOST_POLARISATIONS: Final = 4


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Solution:
    """A calibration solution. Fields that a `.npy` file does not give are empty or None."""

    solution_id: str
    """Id of the solution."""
    kind: str
    """``gains`` or ``bandpass``."""
    source_model: str
    """Model of the sky or of the source for which the gains were solved."""
    valid_from: int | None
    """Begin of the validity [Unix us]."""
    valid_until: int | None
    """End of the validity [Unix us]."""
    antennas: tuple[str, ...]
    """Names, in the order of the gains."""
    frequencies: Array = field(repr=False)
    """Frequencies of the channels [Hz], shape (channels,); (0,) if unknown."""
    polarisations: tuple[str, ...]
    """Names such as ``XX``, in the order of the gains."""
    gains: Array = field(repr=False)
    """Complex gains, shape (antennas, channels, polarisations)."""
    flags: Array = field(repr=False)
    """True where a gain must not be used; the shape of the gains."""
    snr: Array | None = field(repr=False)
    """Signal-to-noise ratio, shape (antennas, channels); NaN where unknown."""


def decode_npy(content: bytes | memoryview, kind: str) -> Solution | str:
    """Decode gains from `.npy`: antenna x channel, or with polarisation; a text is the reason of a refusal."""
    try:
        header = read_npy_header(content)
        _check(header.shape, header.dtype)
        gains = view_npy(content, header)
    except ArrayError as error:
        return excerpt(str(error))
    gains = gains if gains.ndim == 3 else gains[:, :, np.newaxis]
    return Solution(
        solution_id="",
        kind=kind,
        source_model="",
        valid_from=None,
        valid_until=None,
        antennas=tuple(map(str, range(gains.shape[0]))),
        frequencies=np.empty(0),
        polarisations=tuple(map(str, range(gains.shape[2]))),
        gains=gains,
        flags=np.broadcast_to(np.False_, gains.shape),
        snr=None,
    )


def _check(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if dtype.kind != "c" or dtype.itemsize not in (8, 16):
        raise ArrayError(f"expected complex64 or complex128, got {dtype!s:.80}")
    if len(shape) not in (2, 3) or not all(length > 0 for length in shape):
        raise ArrayError(
            f"expected antenna x channel, or with polarisation, and something in it, got shape {shape!s:.80}"
        )
    most = (MOST_ANTENNAS, MOST_CHANNELS, MOST_POLARISATIONS)
    if any(length > limit for length, limit in zip(shape, most, strict=False)):
        raise ArrayError(f"expected at most the shape {most}, got {shape!s:.80}")


HEADER: Final = b"calibration-solution/1"
"""Key in the schema's metadata."""
PAIR: Final = "real_imaginary"
"""Name of the innermost field of the gains: first the real part, then the imaginary one."""
_SAID: Final = ("solution_id", "kind", "source_model", "valid_from", "valid_until")
_LISTS: Final = {
    "gain": ("channel", "polarisation", PAIR),
    "flag": ("channel", "polarisation"),
    "snr": ("channel",),
}
"""Axis of the lists of each column."""
LONGEST_NAME: Final = 40
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
Text = Annotated[str, msgspec.Meta(max_length=200)]
Frequency = Annotated[float, msgspec.Meta(gt=0, le=1e15)]


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a whole solution; the lengths of the lists must be those of the columns."""

    solution_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    kind: SolutionKind
    source_model: Text
    valid_from: Natural
    valid_until: Natural
    antennas: Annotated[int, msgspec.Meta(ge=1, le=MOST_ANTENNAS)]
    """Number of rows."""
    frequencies: Annotated[list[Frequency], msgspec.Meta(min_length=1, max_length=MOST_CHANNELS)]
    polarisations: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=MOST_POLARISATIONS)]


def require_arrow() -> None:
    """Raise a ConfigError without the library for Arrow tables."""
    if pa is None:
        raise ConfigError("Arrow tables need pyarrow: pip install 'sdp-tango-facade[tables]'")


def encode(solution: Solution) -> bytes:
    """Return a solution as an Arrow IPC stream; complex64 becomes float, complex128 becomes double.

    Raises
    ------
    ConfigError
        The Arrow library is not installed.
    ValueError
        The parts of the solution do not fit together.

    Examples
    --------
    >>> import numpy as np
    >>> shape = (2, 16, 2)  # antennas, channels, polarisations
    >>> solution = Solution(
    ...     solution_id="cal-7", kind="gains", source_model="J1939-6342", valid_from=1795276800000000,
    ...     valid_until=1795277400000000, antennas=("SKA001", "SKA036"), frequencies=np.linspace(0.95e9, 1.05e9, 16),
    ...     polarisations=("XX", "YY"), gains=np.ones(shape, np.complex64), flags=np.zeros(shape, bool),
    ...     snr=np.full((2, 16), 50.0, np.float32))
    >>> decode_solution(encode_solution(solution)).antennas
    ('SKA001', 'SKA036')
    """
    require_arrow()
    said = {name: getattr(solution, name) for name in _SAID}
    try:
        lists = {"frequencies": solution.frequencies.tolist(), "polarisations": list(solution.polarisations)}
        header = msgspec.convert({**said, **lists, "antennas": len(solution.antennas)}, Header)
        _check_header(header)
        _check_names(solution.antennas)
        columns = _columns(solution)
    except (ArrayError, msgspec.ValidationError) as error:
        raise ValueError(f"solution {solution.solution_id}: {error}") from error
    fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    schema = pa.schema(fields, metadata={HEADER: msgspec.json.encode(header)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(list(columns.values()), schema=schema))
    return bytes(sink.getvalue())


def decode(content: bytes | memoryview) -> Solution | str:
    """Decode a solution from an Arrow IPC stream; a text is the reason of a refusal.

    Whatever the bytes are, it raises nothing but a `ConfigError` without the library.
    """
    found = decode_rows(content)
    if isinstance(found, str):
        return found
    whole = {name: getattr(found, name).whole() for name in ("gains", "flags", "snr")}
    return replace(found, **whole)


def decode_rows(content: bytes | memoryview) -> Solution | str:
    """Decode a solution as `decode` does, but with `Rows` in place of arrays: no copy of a large table is made."""
    require_arrow()
    try:
        return _solution(read_arrow(content, _check_schema)[0])
    except ArrayError as error:
        return excerpt(str(error))
    except Exception as error:  # any error of the library, caused by the bytes
        return excerpt(f"expected an Arrow IPC stream, got {len(content)} bytes that are none: {error!s:.200}")


def _columns(solution: Solution) -> dict[str, Any]:
    gains = np.ascontiguousarray(solution.gains)
    shape = (len(solution.antennas), len(solution.frequencies), len(solution.polarisations))
    if gains.shape != shape or gains.dtype not in (np.complex64, np.complex128):
        raise ArrayError(f"gains: expected complex of shape {shape}, got {gains.dtype} of {gains.shape}")
    if solution.flags.shape != shape or solution.flags.dtype != np.bool_:
        raise ArrayError(f"flags: expected bool of shape {shape}, got {solution.flags.dtype} {solution.flags.shape}")
    if solution.snr is None or solution.snr.shape != shape[:2]:
        raise ArrayError(f"snr: expected shape {shape[:2]}, got {None if solution.snr is None else solution.snr.shape}")
    parts = gains.view(np.float32 if gains.dtype == np.complex64 else np.float64)
    _, channels, polarisations = shape
    return {
        "antenna": pa.array(list(solution.antennas), pa.string()),
        "gain": _nest(parts, "gain", (channels, polarisations, 2)),
        "flag": _nest(solution.flags, "flag", (channels, polarisations)),
        "snr": _nest(solution.snr.astype(np.float32), "snr", (channels,)),
    }


def _nest(values: Array, column: str, sizes: tuple[int, ...]) -> Any:
    array = pa.array(values.reshape(-1))
    for name, size in reversed(list(zip(_LISTS[column], sizes, strict=True))):
        kind = pa.list_(pa.field(name, array.type, nullable=False), size)
        array = pa.FixedSizeListArray.from_arrays(array, type=kind)
    return array


def _check_schema(schema: Any) -> None:
    if (names := schema.names) != (wanted := ["antenna", *_LISTS]):
        raise ArrayError(f"expected the columns {', '.join(wanted)}, got {', '.join(names)!s:.200}")
    if HEADER not in (schema.metadata or {}):
        raise ArrayError(f"expected {HEADER.decode()} in the metadata of the schema, got none")
    if schema.field("antenna").type != pa.string():
        raise ArrayError(f"antenna: expected string, got {schema.field('antenna').type!s:.80}")
    for column, leaves in (("gain", ("float", "double")), ("flag", ("bool",)), ("snr", ("float", "double"))):
        kinds = list(_nested(schema.field(column).type))
        names = tuple(kind.value_field.name for kind in kinds[:-1])
        if names != _LISTS[column] or str(kinds[-1]) not in leaves:
            expected = f"{' of '.join(_LISTS[column])} of {' or '.join(leaves)}"
            raise ArrayError(f"{column}: expected lists over {expected}, got {' of '.join(names)} of {kinds[-1]!s:.80}")


def _nested(kind: Any) -> Iterator[Any]:
    yield kind
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
        yield kind


def _solution(table: Any) -> Solution:
    try:
        header = msgspec.json.decode(table.schema.metadata[HEADER], type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArrayError(f"metadata {HEADER.decode()}: {error}") from error
    _check_header(header)
    if table.num_rows != header.antennas:
        raise ArrayError(f"antennas: expected {header.antennas} rows, as the metadata says, got {table.num_rows}")
    antennas = whole_column(table["antenna"], "antenna").to_pylist()
    _check_names(antennas)
    channels, polarisations = len(header.frequencies), len(header.polarisations)
    return Solution(
        solution_id=header.solution_id,
        kind=header.kind,
        source_model=header.source_model,
        valid_from=header.valid_from,
        valid_until=header.valid_until,
        antennas=tuple(antennas),
        frequencies=np.array(header.frequencies, np.float64),
        polarisations=tuple(header.polarisations),
        gains=Rows(table["gain"], "gain", (channels, polarisations, 2)),  # type: ignore[arg-type]
        flags=Rows(table["flag"], "flag", (channels, polarisations)),  # type: ignore[arg-type]
        snr=Rows(table["snr"], "snr", (channels,)),  # type: ignore[arg-type]
    )


def _check_header(header: Header) -> None:
    if header.valid_until < header.valid_from:
        raise ArrayError(f"valid_until: expected {header.valid_from} or later, got {header.valid_until}")
    if len(set(header.polarisations)) < len(header.polarisations):
        raise ArrayError(f"polarisations: expected different names, got {header.polarisations!s:.200}")


def _check_names(antennas: Sequence[str]) -> None:
    if len(set(antennas)) < len(antennas):
        raise ArrayError("antennas: expected different names, got some twice")
    for name in antennas:
        if not 1 <= len(name) <= LONGEST_NAME:
            raise ArrayError(f"antennas: expected names of 1 to {LONGEST_NAME} characters, got {name!r:.80}")


class Rows:
    """A column, whose rows become arrays when they are asked for: flags are bits in Arrow, and rows are in batches.

    Parameters
    ----------
    sizes
        Expected sizes of the nested lists, the outer one first.
    """

    def __init__(self, column: Any, name: str, sizes: tuple[int, ...]) -> None:
        require_values(column, name)
        self._batches = [_flat(batch, name, sizes) for batch in column.chunks]
        self._begins = np.cumsum([0, *map(len, column.chunks)])
        self._row = sizes[:-1] if (is_pair := _LISTS[name][-1] == PAIR) else sizes
        self._is_pair, self._length = is_pair, math.prod(sizes)
        self.shape = (len(column), *self._row)
        self.size = math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row: int) -> Array:
        batch = int(np.searchsorted(self._begins, row, side="right")) - 1
        begin = (row - int(self._begins[batch])) * self._length
        return self._array(self._batches[batch].slice(begin, self._length)).reshape(self._row)

    def whole(self) -> Array:
        """Return all rows as one array, without a copy if they are in one batch and no bits."""
        found = [self._array(batch) for batch in self._batches]
        return (found[0] if len(found) == 1 else np.concatenate(found)).reshape(self.shape)

    def _array(self, values: Any) -> Array:
        found = np.asarray(values.to_numpy(zero_copy_only=False))
        return found.view(np.complex64 if found.dtype == np.float32 else np.complex128) if self._is_pair else found


def _flat(array: Any, name: str, sizes: tuple[int, ...]) -> Any:
    """Return the innermost values of nested lists, as an Arrow array."""
    for over, size in zip(_LISTS[name], sizes, strict=True):
        if array.type.list_size != size:
            raise ArrayError(f"{name}: expected lists of {size} over {over}, got {array.type.list_size}")
        array = array.flatten()
        require_values(array, name)
    return array
