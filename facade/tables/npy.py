"""Reads gains from `.npy`, which says nothing but their shape.

The header is read by itself, without pickle, and must agree with the length of the file before anything is made
from it; the gains are then a view of the bytes that were given.
"""

import io
import math
from typing import Any, Final

import numpy as np

from facade.tables.solution import MOST_ANTENNAS, MOST_CHANNELS, MOST_POLARISATIONS, Array, Solution, printable

_MOST_HEADER: Final = 10_100
"""Most bytes of a header that numpy reads, with what comes before it."""


def decode_npy(content: bytes | memoryview, kind: str) -> Solution | str:
    """Read gains from `.npy`; a text is the reason why there are none.

    The array is antenna x channel, or antenna x channel x polarisation; antennas and polarisations have no names
    but their numbers.
    """
    view = memoryview(content).cast("B")
    try:
        head = io.BytesIO(view[:_MOST_HEADER])
        version = np.lib.format.read_magic(head)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            return f"expected .npy of version 1.0 or 2.0, got {version[0]}.{version[1]}"
        shape, fortran, dtype = readers[version](head)
    except Exception as error:  # the bytes may be anything, and so is what numpy raises
        return printable(f"expected .npy, got {len(view)} bytes that are none: {error!s:.200}")
    if wrong := _wrong(shape, dtype, len(view) - head.tell()):
        return printable(wrong)
    gains: Array = np.ndarray(shape, dtype, view, head.tell(), order="F" if fortran else "C")
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


def _wrong(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> str:
    """Say what is wrong with what a header says of so many bytes; empty: nothing."""
    if dtype.kind != "c" or dtype.itemsize not in (8, 16):
        return f"expected complex64 or complex128, got {dtype!s:.80}"
    if len(shape) not in (2, 3) or not all(length > 0 for length in shape):
        return f"expected antenna x channel, or with polarisation, and something in it, got shape {shape!s:.80}"
    most = (MOST_ANTENNAS, MOST_CHANNELS, MOST_POLARISATIONS)
    if any(length > limit for length, limit in zip(shape, most, strict=False)):
        return f"expected at most the shape {most}, got {shape!s:.80}"
    if (wanted := dtype.itemsize * math.prod(shape)) != size:
        return f"expected {wanted:.15g} bytes for shape {shape!s:.80}, got {size}"
    return ""
