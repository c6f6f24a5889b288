"""The array that simulated pipelines work on: its receptors, its band, and the interference in it."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from facade.sdp.arrays import Array


class SimulatedArray(NamedTuple):
    """The receptors of a telescope, with their band and its interference."""

    receptors: Sequence[str]
    """Names of its dishes, or of its stations of antennas."""
    band: tuple[float, float]
    """Lowest and highest frequency [Hz]."""
    interference: Sequence[tuple[float, float]]
    """Ranges of frequency with interference [Hz]."""
    turns: bool
    """Whether its receptors turn to a source, so that there are pointing offsets: an aperture array has none."""

    def names(self, count: int) -> tuple[str, ...]:
        """Return the names of the first receptors; further ones are invented."""
        return (*self.receptors[:count], *(f"SIM{number:03d}" for number in range(len(self.receptors), count)))

    def has_interference(self, frequencies: Array) -> Array:
        """Return the mask of channels with interference.

        Parameters
        ----------
        frequencies
            Frequencies of the channels [Hz], shape (channels,).
        """
        found = np.zeros(len(frequencies), np.bool_)
        for low, high in self.interference:
            found |= (low <= frequencies) & (frequencies <= high)
        return found


MID: Final = SimulatedArray(
    receptors=[*(f"SKA{number:03d}" for number in range(1, 134)), *(f"MKT{number:03d}" for number in range(64))],
    band=(950e6, 1760e6),  # band 2
    # Transponders of aircraft, and navigation satellites.
    interference=[(1087e6, 1093e6), (1164e6, 1188e6), (1217e6, 1237e6), (1559e6, 1591e6), (1598e6, 1606e6)],
    turns=True,
)
LOW: Final = SimulatedArray(
    # 224 stations of the core, and three arms of 16 clusters with 6 stations each.
    receptors=[
        *(f"C{number}" for number in range(1, 225)),
        *(f"{arm}{cluster}-{number}" for arm in "ENS" for cluster in range(1, 17) for number in range(1, 7)),
    ],
    band=(50e6, 350e6),
    interference=[(87.5e6, 108e6), (137e6, 138e6), (240e6, 270e6)],  # radio, and satellites
    turns=False,
)


def array_of(telescope: str) -> SimulatedArray:
    """Return the simulated array of a telescope: of SKA-Mid, unless it is ``low``."""
    return LOW if telescope == "low" else MID


def bandpass(channels: int) -> Array:
    """Return the amplitude over the band, shape (channels,): a ripple, with falling edges."""
    place = np.linspace(0, 1, channels)
    edges = np.clip(20 * np.minimum(place, 1 - place), 0, 1)
    shape: Array = (0.4 + 0.6 * np.sin(np.pi / 2 * edges)) * (1 + 0.06 * np.cos(2 * np.pi * 12 * place))
    return shape
