"""Makes an array as small as the attribute that shows it.

The rule: an axis of n elements that is longer than the attribute's m is cut into m blocks of neighbours, as equal as
they can be: block b begins at element b * n // m. Each block is shown as the mean of what is finite in it, over both
axes of an image; NaN where nothing is. What is infinite is shown as NaN, also where nothing is cut. Of names, the
first one of each block is shown.
"""

from typing import Any

import numpy as np

from facade.codec.arrays import Array
from facade.icd.model import Attribute
from facade.reading import Value


def axes(attribute: Attribute) -> tuple[int, ...]:
    """Return the most elements of each axis that an attribute can show."""
    return (attribute.height, attribute.length) if attribute.height else (attribute.length,) if attribute.length else ()


def fit(array: Array, most: tuple[int, ...]) -> tuple[Value, bool]:
    """Return what an attribute shows of an array.

    Parameters
    ----------
    array
        With as many axes as the attribute.
    most
        From `axes`.

    Returns
    -------
    value, known
        The value, and whether there is anything in it but NaN.
    """
    if array.dtype.kind == "U":
        for axis, limit in enumerate(most):
            array = array.take(_begins(array.shape[axis], limit), axis)
        return _plain(array), True
    means = _means(array.astype(np.float64), most)
    return _plain(means), bool(np.isfinite(means).any())


def _means(values: Array, most: tuple[int, ...]) -> Array:
    finite = np.isfinite(values)
    if all(length <= limit for length, limit in zip(values.shape, most, strict=True)):
        return np.where(finite, values, np.nan)
    with np.errstate(all="ignore"):  # what is not finite becomes NaN
        scale = 2.0 ** values.size.bit_length()  # no sum of what is finite becomes infinite
        sums, counts = np.where(finite, values / scale, 0.0), finite.astype(np.float64)
        for axis, limit in enumerate(most):
            if values.shape[axis] <= limit:
                continue
            begins = _begins(values.shape[axis], limit)
            sums, counts = np.add.reduceat(sums, begins, axis), np.add.reduceat(counts, begins, axis)
        means = sums / counts * scale
    return np.where(np.isfinite(means), means, np.nan)


def _begins(length: int, limit: int) -> Array:
    blocks = min(length, limit)
    return np.arange(blocks) * length // blocks


def _plain(array: Array) -> Value:
    values: Any = array.tolist()
    return tuple(map(tuple, values)) if array.ndim == 2 else tuple(values) if array.ndim else values
