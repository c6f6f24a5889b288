"""Mistakes of producers that a schema cannot see: a time in another unit, a key that is not the record's.

A record with such a mistake is well-formed, and would be shown as if its sender had meant it.
"""

from datetime import UTC, datetime
from typing import Final

from facade.outcome import RecordRejected
from facade.printable import excerpt

TIME_UNIT: Final = "time-unit"
"""Reason of a record whose time is in another unit."""
KEY: Final = "key"
"""Reason of a record whose key is not the one that its content asks for."""
_UNITS: Final = {"seconds": 1_000_000.0, "milliseconds": 1_000.0, "nanoseconds": 0.001}
"""Units that senders use in the place of microseconds, and how many microseconds each has."""
_YEAR_US: Final = 366 * 86_400 * 1_000_000
_OLDEST_US: Final = 30 * _YEAR_US
"""An append time before it is no broker's: nothing can be told by it."""


def wrong_unit(time_us: int, appended_us: int, path: str) -> RecordRejected | None:
    """Return why a time cannot be in microseconds; None: it can.

    Read in another unit, the time is within a year of the broker's; read in microseconds, it is not.

    Parameters
    ----------
    time_us
        Unix time that a record has, as if in [us].
    appended_us
        When the broker took the record [Unix us].
    path
        Place of the time in the record.
    """
    if abs(time_us - appended_us) < _YEAR_US or time_us <= 0 or appended_us < _OLDEST_US:
        return None
    for unit, factor in _UNITS.items():
        if abs(time_us * factor - appended_us) < _YEAR_US:
            meant = datetime.fromtimestamp(time_us * factor / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            what = f"expected Unix time in microseconds, got {time_us}, which is {meant} in {unit}"
            return RecordRejected(TIME_UNIT, path, what)
    return None


def wrong_key(key: bytes | None, expected: str, path: str) -> RecordRejected | None:
    """Return why the key of a record is not the record's; None: it is.

    Records of another key go to another partition, and a compacted topic keeps the newest one of each key.
    """
    if key == expected.encode():
        return None
    got = "none" if key is None else repr(key.decode(errors="backslashreplace"))
    return RecordRejected(KEY, path, excerpt(f"expected the key {expected!r} for this content, got {got[:200]}"))
