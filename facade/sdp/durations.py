"""Durations and times in the form of a command line, such as ``1h30m`` and ``2027-01-14T18:00``."""

import re
from datetime import UTC, datetime, timedelta

from facade.kernel.clock import Time
from facade.kernel.errors import ConfigError

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_FORM = re.compile("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,9}})?){unit})?" for unit in _UNITS), re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration(text: str, option: str) -> float:
    """Return a duration [s].

    Parameters
    ----------
    option
        Name of the option, such as ``--since``.

    Raises
    ------
    ConfigError
        It has another form, or it is zero.
    """
    found = _FORM.fullmatch(text)
    seconds = (
        sum(float(number or 0) * unit for number, unit in zip(found.groups(), _UNITS.values(), strict=True))
        if found
        else 0.0
    )
    if not seconds:
        raise ConfigError(f"{option}: expected a duration such as 90s, 10m, 1h30m or 2d, got {text!r:.100}")
    return seconds


def parse_time(text: str, option: str) -> Time:
    """Return a time; without a zone it is UTC.

    Parameters
    ----------
    option
        Name of the option, such as ``--from``.

    Raises
    ------
    ConfigError
        It is not a date or time by ISO 8601, or before 1970.
    """
    try:
        found = datetime.fromisoformat(text)
        since = (found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH
    except (ValueError, OverflowError):
        since = timedelta(-1)
    if since < timedelta(0):
        raise ConfigError(f"{option}: expected a time such as 2027-01-14T18:00 (UTC), got {text!r:.100}")
    return Time(since // timedelta(microseconds=1))
