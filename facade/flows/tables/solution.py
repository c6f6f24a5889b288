"""Calibration solutions: complex gains by antenna, channel and polarisation."""

from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import numpy.typing as npt

Array = npt.NDArray[Any]
Kind = Literal["gains", "bandpass"]
KINDS: Final = get_args(Kind)
MOST_ANTENNAS: Final = 4096
MOST_CHANNELS: Final = 1_000_000
MOST_POLARISATIONS: Final = 4


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Solution:
    """One solution; what a `.npy` file does not say is empty or None."""

    solution_id: str
    kind: str
    source_model: str
    """Which model of the sky or the source the gains were solved for."""
    valid_from: int | None
    """[Unix us]."""
    valid_until: int | None
    """[Unix us]."""
    antennas: tuple[str, ...]
    frequencies: Array = field(repr=False)
    """Of the channels [Hz], shape (channels,); (0,) if unknown."""
    polarisations: tuple[str, ...]
    gains: Array = field(repr=False)
    """Complex, shape (antennas, channels, polarisations)."""
    flags: Array = field(repr=False)
    """Whether a gain is not to be used, the same shape."""
    snr: Array | None = field(repr=False)
    """Signal-to-noise ratio, shape (antennas, channels); NaN where unknown."""


def printable(text: str) -> str:
    """Return a text without what would upset a terminal or a log."""
    return "".join(one if one.isprintable() else "?" for one in text)
