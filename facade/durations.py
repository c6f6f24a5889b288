"""Durations as people write them on a command line, such as ``90s``, ``10m`` or ``1h30m``."""

import re

from facade.errors import ConfigError

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_FORM = re.compile("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,9}})?){unit})?" for unit in _UNITS), re.ASCII)


def parse_duration(text: str, option: str) -> float:
    """Return a duration [s].

    Parameters
    ----------
    option
        Name of the option, such as ``--since``.

    Raises
    ------
    ConfigError
        It is not written so, or it is zero.
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
