"""What logs and metrics are once they are decoded, whatever their format: one record of each kind."""

import math
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from facade.numbers import LARGEST
from facade.outcome import RecordRejected
from facade.printable import excerpt, printable

LOG_SEVERITIES: Final = ("UNSPECIFIED", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
"""The ranges of OpenTelemetry's severity numbers, in their order; each has four numbers, the first has 0 alone."""
ERROR: Final = LOG_SEVERITIES.index("ERROR")
"""From this range on a record is an error."""
OF_SYSLOG: Final = (21, 19, 18, 17, 13, 10, 9, 5)
"""OpenTelemetry's severity number of each severity of syslog, from Emergency (0) to Debug (7)."""
_OF_NAME: Final = {
    **{"TRACE": 1, "FINEST": 1, "VERBOSE": 1, "DEBUG": 5, "FINE": 5, "INFO": 9, "INFORMATION": 9, "INFORMATIONAL": 9},
    **{"NOTICE": 10, "WARN": 13, "WARNING": 13, "ERROR": 17, "ERR": 17, "SEVERE": 17, "CRITICAL": 18, "CRIT": 18},
    **{"ALERT": 19, "FATAL": 21, "PANIC": 21, "EMERGENCY": 21, "EMERG": 21},
}
_LONGEST_NAME, _LONGEST_BODY = 100, 300
"""Characters that are kept of a name, and of the body of an error."""
_OBSERVATION = re.compile(r"eb-[a-z0-9]{1,20}-[0-9]{8}-[a-z0-9]{1,20}")
_MICRO = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LogSource(msgspec.Struct, frozen=True, eq=False):
    """What records have in common that are counted together; there is one of each, see `source_of`."""

    component: str
    severity: int
    """Index in `LOG_SEVERITIES`."""
    host: str
    rack: str
    observation: str
    """Id of the execution block; empty: it names none."""


class LogRecord(msgspec.Struct, gc=False):
    """One record of a log."""

    source: LogSource
    time: int
    """When it was made [Unix us]; 0: it does not say."""
    body: str | bytes = ""
    sequence: int = 0
    """Number that the shipper gave it; 0: none."""
    shipper: str = ""
    """Who numbers; empty: its host."""


class MetricRecord(msgspec.Struct, gc=False):
    """One value of a metric of a node."""

    time: int
    """When it was measured [Unix us]; 0: it does not say."""
    host: str
    metric: str
    """The attribute that shows it; empty text: none does."""
    instance: str
    """Which of the disks or sensors of the node; empty text: there is one."""
    value: float
    rack: str = ""


class BadRow(msgspec.Struct, gc=False):
    """A part of a record that cannot be used, while its neighbours are."""

    why: RecordRejected
    value: bytes
    """A record that has only this part."""


_one = lru_cache(65_536)(LogSource)
"""Returns the one source of some values."""


@lru_cache(65_536)
def source_of(component: str, severity: int, host: str = "", rack: str = "", observation: str = "") -> LogSource:
    """Return the source of a record; `severity`: OpenTelemetry's number, 1 to 24, or 0."""
    number = (severity + 3) // 4 if 0 <= severity <= 24 else 0
    return _one(cleaned(component), number, cleaned(host), cleaned(rack), observation_of(observation))


@lru_cache(65_536)
def located(source: LogSource, host: str, rack: str) -> LogSource:
    """Return a source with the place that it did not name."""
    return _one(source.component, source.severity, source.host or host, source.rack or rack, source.observation)


@lru_cache(1024)
def severity_of(name: str) -> int:
    """Return OpenTelemetry's severity number of a name or number that loggers give; 0: not known."""
    return _OF_NAME.get(name.strip().upper(), 0)


@lru_cache(65_536)
def cleaned(name: str) -> str:
    """Return a name from the bus as it may be shown."""
    return printable(name[:_LONGEST_NAME])[:_LONGEST_NAME]


@lru_cache(4096)
def observation_of(text: str) -> str:
    """Return the id of an execution block; empty text: it is none."""
    return text if _OBSERVATION.fullmatch(text) else ""


def body_of(text: str | bytes) -> str:
    """Return as much of a body as is kept, in one line."""
    if isinstance(text, bytes):
        text = text[: 4 * _LONGEST_BODY].decode("utf-8-sig", "replace")
    return printable(text[:_LONGEST_BODY])[:_LONGEST_BODY]


def time_of(text: str) -> int:
    """Return the time of an ISO 8601 text [Unix us]; without a zone it is UTC.

    Raises
    ------
    ValueError
        It is none, or before 1970.
    """
    when = datetime.fromisoformat(text)
    since = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)) - _EPOCH
    time = (since.days * 86_400 + since.seconds) * _MICRO + since.microseconds
    if time < 0:
        raise ValueError(f"expected a time since 1970, got {text:.40}")
    return time


def micro(seconds: float) -> int:
    """Convert a time [Unix s] to [Unix us].

    Raises
    ------
    ValueError
        No record can have it.
    """
    if not 0.0 <= seconds * _MICRO <= LARGEST:
        raise ValueError(f"expected a time since 1970, got {seconds!r:.40} s")
    return round(seconds * _MICRO)


def from_nano(nanoseconds: int) -> int:
    """Convert a time [Unix ns] to [Unix us]; 0: no record can have it."""
    time = nanoseconds // 1000
    return time if 0 <= time <= LARGEST else 0


def metric_record(
    time: int, host: str, metric: str, instance: str, value: float | None, factor: float = 1.0, rack: str = ""
) -> MetricRecord:
    """Return a value of a metric; no attribute shows a value that is not finite."""
    number = math.nan if value is None else float(value) * factor
    if not math.isfinite(number):
        return MetricRecord(time, host, "", "", 0.0, rack)
    return MetricRecord(time, host, metric, cleaned(instance), number, rack)


def without_nulls(part: Any) -> Any:
    """Return a document without the fields that are null, which shippers write for absent ones."""
    if isinstance(part, dict):
        return {name: without_nulls(value) for name, value in part.items() if value is not None}
    return [without_nulls(value) for value in part] if isinstance(part, list) else part


def rejected(reason: str, path: str, why: object) -> RecordRejected:
    """Return a rejection with a short and printable detail."""
    return RecordRejected(reason, path, excerpt(str(why)))
