"""Quantiles from counts in logarithmic buckets, mergeable by addition.

The scheme is DDSketch's (Masson, Rim and Lee, PVLDB 12(12), 2019): with g = (1 + e) / (1 - e),
bucket i holds the values in (FLOOR g^(i-1), FLOOR g^i], and its estimate, FLOOR 2 g^i / (g + 1),
is within the relative error e of every value in it. Bucket 0 holds everything up to FLOOR and
is estimated as 0, so the bound there is absolute: FLOOR.
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

FLOOR = 1e-9
"""Smallest value that differs from 0 [unit of the field]."""


def buckets(values: npt.NDArray[np.float64], error: float) -> npt.NDArray[np.int64]:
    """Return the bucket number of each value, for a bound of the relative error, 0 < error < 1.

    Values are non-negative numbers of shape (n,), and bucket numbers int64 of shape (n,).
    """
    scaled = np.log(np.maximum(values, FLOOR) * (1.0 / FLOOR))
    scaled *= 1.0 / _log_gamma(error)
    return np.ceil(scaled).astype(np.int64)


def filled(least: float, most: float, error: float) -> int:
    """Return the largest number of buckets that values between two fill; a `most` of 0: values have no bound."""
    low, high = buckets(np.array([least, most]), error)
    return (int(high) if most else largest_bucket(error)) - int(low) + 1


def quantiles(
    row: npt.NDArray[np.int64],
    bucket: npt.NDArray[np.int64],
    count: npt.NDArray[np.int64],
    *,
    rows: int,
    q: float,
    error: float,
) -> npt.NDArray[np.float64]:
    """Estimate the value of rank floor(q (n - 1)) (from 0) of each row within the relative `error`; NaN: no values.

    Parameters
    ----------
    row, bucket, count
        Counts of the buckets, ascending by row and bucket, of shape (counts,).

    Returns
    -------
    array of float
        The estimates, of shape (rows,).
    """
    seen = np.cumsum(count)
    ends = np.searchsorted(row, np.arange(rows), side="right")
    before = np.concatenate(([0], seen))[np.searchsorted(row, np.arange(rows))]
    total = np.concatenate(([0], seen))[ends] - before
    rank = np.floor(q * (total - 1)).astype(np.int64)
    at = np.searchsorted(seen, before + rank, side="right")
    found = bucket[np.minimum(at, len(bucket) - 1)] if len(bucket) else np.zeros(rows, dtype=np.int64)
    estimates = np.where(found > 0, FLOOR * (1.0 - error) * np.exp(found * _log_gamma(error)), 0.0)
    return np.where(total > 0, estimates, np.nan)


@lru_cache
def largest_bucket(error: float) -> int:
    """Return the bucket number of 1e200."""
    return math.ceil(math.log(1e200 / FLOOR) / _log_gamma(error))


def _log_gamma(error: float) -> float:
    return math.log((1.0 + error) / (1.0 - error))
