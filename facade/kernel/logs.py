"""Log lines of all processes: in a form for people, or in SKA's."""

import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

from facade.kernel.clock import Clock
from facade.kernel.config import Settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import Icd
from facade.kernel.manifest import load, manifests
from facade.kernel.names import VARIABLES
from facade.kernel.printable import printable

LEVEL_VARIABLE = f"{VARIABLES}LOG_LEVEL"
FORMAT_VARIABLE = f"{VARIABLES}LOG_FORMAT"

PLAIN, SKA = "plain", "ska"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_SKA_VERSION = "1"


class PlainFormatter(logging.Formatter):
    """Formats a record as a line for people; further lines are indented, so that none looks like a record."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or lines."""
        return printable(super().format(record), keep="\n").replace("\n", "\n    ")


class SkaFormatter(logging.Formatter):
    r"""Formats a record by SKA's software guidelines.

    ``version|timestamp|severity|threadID|funcname|filename#lineno|tags|message``, the time in UTC. A record is
    always one line: line ends within it, as in a traceback, are written as ``\n``.

    Parameters
    ----------
    tags
        ``name:value`` pairs about the process, separated by commas.
    """

    def __init__(self, tags: str = "") -> None:
        super().__init__("%(message)s")
        self._tags = tags

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = (
            _SKA_VERSION,
            time,
            record.levelname,
            record.threadName or "",
            record.funcName or "",
            f"{record.filename}#{record.lineno}",
            self._tags,
        )
        # No field may contain a separator; the message is the last one.
        head = "|".join(field.replace("|", "/") for field in fields)
        return printable(f"{head}|{super().format(record)}".replace("\r", "\\r").replace("\n", "\\n"))


def start_logging(tags: str = "", environment: Mapping[str, str] = os.environ) -> None:
    """Log at the level and in the form that the environment names.

    SKA's lines go to standard output, as in its guidelines; the others to standard error.

    Raises
    ------
    ConfigError
        The level or the form does not exist.
    """
    level = _chosen(LEVEL_VARIABLE, environment.get(LEVEL_VARIABLE, "").upper() or "INFO", LEVELS)
    form = _chosen(FORMAT_VARIABLE, environment.get(FORMAT_VARIABLE, "").lower() or PLAIN, (PLAIN, SKA))
    stream: TextIO = sys.stdout if form == SKA else sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(SkaFormatter(tags) if form == SKA else PlainFormatter())
    logging.basicConfig(level=level, handlers=[handler])


def start_log_export(icd: Icd, settings: Settings, component: str, clock: Clock) -> None:
    """Send the log of this process to a topic as well, from now on, if the settings name one.

    `component`: name under which the process appears.

    Raises
    ------
    ConfigError
        No flow exports logs, or the topic takes none.
    """
    if not settings.log_export:
        return
    exports = [one.log_export for one in manifests() if one.log_export is not None]
    if len(exports) != 1:
        raise ConfigError(f"log_export ({VARIABLES}LOG_EXPORT): expected one flow that exports logs, got {exports}")
    load(exports[0])(icd, settings, component, clock)


def _chosen(variable: str, given: str, known: tuple[str, ...]) -> str:
    if given not in known:
        raise ConfigError(f"{variable}={given}: expected one of {', '.join(known)}")
    return given
