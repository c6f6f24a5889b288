"""The level at which a device server logs, as Tango has it: the admin device's SetLoggingLevel, while it runs.

Tango keeps a level per device; the Python loggers of the process have one. So the process logs as its most
talkative device is to. At the start each device has the level of the process, unless Tango's option -v says another.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

_LOOK = 0.5
"""Time between two looks at the levels [s]."""

_LEVELS = {
    0: logging.CRITICAL + 1,
    100: logging.CRITICAL + 1,
    200: logging.CRITICAL,
    300: logging.ERROR,
    400: logging.WARNING,
    500: logging.INFO,
    600: logging.DEBUG,
}
"""Level of Tango's logger to level of Python's; above CRITICAL is off."""

_log = logging.getLogger(__name__)


class TangoLogger(Protocol):
    """The logger that Tango keeps for a device."""

    def get_level(self) -> int:
        """Return the level."""

    def set_level(self, level: int) -> None:
        """Set the level."""


class LogLevels:
    """Follows the levels of some devices with the level of the process.

    Parameters
    ----------
    loggers
        Gives the loggers of the devices that are there now.
    """

    def __init__(self, loggers: Callable[[], Iterable[TangoLogger]]) -> None:
        self._loggers = loggers
        self._seen = logging.root.level

    def start(self, arguments: Sequence[str]) -> None:
        """Make both sides agree: Tango follows the process, unless the server was started with -v."""
        if any(argument.startswith("-v") for argument in arguments):
            return
        wanted = max(tango for tango, level in _LEVELS.items() if level >= self._seen)
        for logger in self._loggers():
            logger.set_level(wanted)

    def step(self) -> None:
        """Take over what Tango has been told."""
        found = min((_LEVELS[logger.get_level()] for logger in self._loggers()), default=self._seen)
        if found != self._seen:
            self._seen = found
            off = found > logging.CRITICAL
            logging.root.setLevel(min(found, logging.CRITICAL))
            said = min(max(found, logging.WARNING), logging.CRITICAL)
            _log.log(said, "log level is now %s, as Tango says", "OFF" if off else logging.getLevelName(found))
            logging.root.setLevel(found)

    def run(self, stop: threading.Event) -> None:
        """Follow until told to stop."""
        while not stop.wait(_LOOK):
            try:
                self.step()
            except Exception:  # whatever Tango raises about a device, the next look may find all well
                _log.exception("log level cannot be looked at")
