"""The array that simulated pipelines work on: its dishes, its band, and the interference in it."""

from typing import Final

import numpy as np

from facade.kernel.codec.arrays import Array

BAND = (950e6, 1760e6)
"""Band 2 of SKA-Mid [Hz]."""
INTERFERENCE = ((1087e6, 1093e6), (1164e6, 1188e6), (1217e6, 1237e6), (1559e6, 1591e6), (1598e6, 1606e6))
"""Transponders of aircraft, and navigation satellites [Hz]."""
_SKA, _MEERKAT = 133, 64
"""Number of SKA and of MeerKAT dishes in SKA-Mid."""
DISHES: Final = _SKA + _MEERKAT


def antenna_names(count: int) -> tuple[str, ...]:
    """Return the names of the first dishes of SKA-Mid; further ones are invented."""
    dishes = [f"SKA{number:03d}" for number in range(1, _SKA + 1)] + [f"MKT{number:03d}" for number in range(_MEERKAT)]
    return tuple(dishes[:count]) + tuple(f"SIM{number:03d}" for number in range(len(dishes), count))


def has_interference(frequencies: Array) -> Array:
    """Return the mask of channels with interference.

    Parameters
    ----------
    frequencies
        Frequencies of the channels [Hz], shape (channels,).
    """
    found = np.zeros(len(frequencies), np.bool_)
    for low, high in INTERFERENCE:
        found |= (low <= frequencies) & (frequencies <= high)
    return found


def bandpass(channels: int) -> Array:
    """Return the amplitude over the band, shape (channels,): a ripple, with falling edges."""
    place = np.linspace(0, 1, channels)
    edges = np.clip(20 * np.minimum(place, 1 - place), 0, 1)
    shape: Array = (0.4 + 0.6 * np.sin(np.pi / 2 * edges)) * (1 + 0.06 * np.cos(2 * np.pi * 12 * place))
    return shape
