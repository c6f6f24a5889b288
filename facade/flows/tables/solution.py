"""Calibration solutions: complex gains by antenna, channel and polarisation; also read from `.npy`.

A `.npy` says nothing but its shape. Its header is read by itself, without pickle, and must agree with the length of the
file before anything is made from it; the gains are then a view of the bytes that were given.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import numpy as np

from facade.codec.arrays import Array, ArrayError, read_npy_header, view_npy
from facade.printable import excerpt

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
    """Read gains from `.npy`. A returned text is the reason why there are none.

    The array is antenna x channel, or antenna x channel x polarisation; antennas and polarisations have no names
    except their numbers.
    """
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
