"""Mistakes of producers beyond a schema: a time in another unit, a key that does not belong to the record.

A record with such a mistake is well-formed, and would be shown as if it were correct.
"""

from datetime import UTC, datetime
from typing import Final

from facade.outcome import RecordRejected
from facade.printable import excerpt

TIME_UNIT: Final = "time-unit"
"""Reason of a record whose time is in another unit."""
KEY: Final = "key"
"""Reason of a record whose key does not fit its content."""
_UNITS: Final = {"seconds": 1_000_000.0, "milliseconds": 1_000.0, "nanoseconds": 0.001}
"""Units that senders use instead of microseconds, with their number of microseconds."""
_YEAR_US: Final = 366 * 86_400 * 1_000_000
_OLDEST_US: Final = 30 * _YEAR_US
"""An earlier append time is not a broker's, and proves nothing."""


def wrong_unit(time_us: int, appended_us: int, path: str) -> RecordRejected | None:
    """Return the rejection of a time that cannot be in microseconds; None: it can.

    Read in another unit, the time is within a year of the broker's; read in microseconds, it is not.

    Parameters
    ----------
    time_us
        Time in a record, taken as [Unix us].
    appended_us
        Append time of the record [Unix us].
    path
        Path of the time in the record.
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
    """Return the rejection of a wrong key of a record; None: it is right.

    Records of another key go to another partition, and a compacted topic keeps the newest one of each key.
    """
    if key == expected.encode():
        return None
    got = "none" if key is None else repr(key.decode(errors="backslashreplace"))
    return RecordRejected(KEY, path, excerpt(f"expected the key {expected!r} for this content, got {got[:200]}"))
