"""Mistakes of producers beyond a schema: a time in another unit, a key that does not belong to the record.

A record with such a mistake is well-formed, and would be shown as if it were correct.
"""

from typing import Final

from facade.kernel.clock import DAY, NEVER, Time, utc_text
from facade.kernel.outcome import RecordRejected
from facade.kernel.printable import excerpt

TIME_UNIT: Final = "time-unit"
"""Reason of a record whose time is in another unit."""
KEY: Final = "key"
"""Reason of a record whose key does not fit its content."""
_UNITS: Final = {"seconds": 1_000_000.0, "milliseconds": 1_000.0, "nanoseconds": 0.001}
"""Units that senders use instead of microseconds, with their number of microseconds."""
_YEAR: Final = 366 * DAY
_OLDEST: Final = NEVER + 30 * _YEAR
"""An earlier append time is not a broker's, and proves nothing."""


def wrong_unit(time: Time, appended: Time, path: str) -> RecordRejected | None:
    """Return the rejection of a time that cannot be in microseconds; None: it can.

    Read in another unit, the time is within a year of the broker's; read in microseconds, it is not.

    Parameters
    ----------
    time
        Time in a record, taken as [Unix us].
    appended
        Append time of the record.
    path
        Path of the time in the record.
    """
    if abs(time - appended) < _YEAR or time <= NEVER or appended < _OLDEST:
        return None
    for unit, factor in _UNITS.items():
        meant = Time(round(int(time) * factor))
        if abs(meant - appended) < _YEAR:
            what = f"expected Unix time in microseconds, got {time}, which is {utc_text(meant)[:19]}Z in {unit}"
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
