"""Decoded logs and metrics, independent of their format: one record class for each."""

import math
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec

from facade.kernel.clock import NEVER, Time, as_seconds, as_time
from facade.kernel.numbers import LARGEST
from facade.kernel.outcome import RecordRejected
from facade.kernel.printable import excerpt, printable

LOG_SEVERITIES: Final = ("UNSPECIFIED", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
"""The ranges of OpenTelemetry's severity numbers, in order; each has four numbers, the first has 0 alone."""
ERROR: Final = LOG_SEVERITIES.index("ERROR")
"""The lowest range of errors."""
OF_SYSLOG: Final = (21, 19, 18, 17, 13, 10, 9, 5)
"""OpenTelemetry's severity number of each severity of syslog, from Emergency (0) to Debug (7)."""
_OF_NAME: Final = {
    **{"TRACE": 1, "FINEST": 1, "VERBOSE": 1, "DEBUG": 5, "FINE": 5, "INFO": 9, "INFORMATION": 9, "INFORMATIONAL": 9},
    **{"NOTICE": 10, "WARN": 13, "WARNING": 13, "ERROR": 17, "ERR": 17, "SEVERE": 17, "CRITICAL": 18, "CRIT": 18},
    **{"ALERT": 19, "FATAL": 21, "PANIC": 21, "EMERGENCY": 21, "EMERG": 21},
}
_LONGEST_NAME, _LONGEST_BODY = 100, 300
"""Longest kept name, and longest kept body of an error [characters]."""
_OBSERVATION = re.compile(r"eb-[a-z0-9]{1,20}-[0-9]{8}-[a-z0-9]{1,20}")
_EPOCH, _US = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


class LogSource(msgspec.Struct, frozen=True, eq=False):
    """Common fields of records that are counted together; equal sources are one object, see `source_of`."""

    component: str
    severity: int
    """Index in `LOG_SEVERITIES`."""
    host: str
    rack: str
    observation: str
    """Id of the execution block; empty: missing."""


class LogRecord(msgspec.Struct, gc=False):
    """One record of a log."""

    source: LogSource
    time: Time
    """Time of the record [Unix us]; 0: missing."""
    body: str | bytes = ""
    sequence: int = 0
    """Number given by the shipper; 0: none."""
    shipper: str = ""
    """Name of the shipper; empty: its host."""


class MetricRecord(msgspec.Struct, gc=False):
    """One value of a metric of a node."""

    time: Time
    """Time of the measurement [Unix us]; 0: missing."""
    host: str
    metric: str
    """The attribute for it; empty text: none."""
    instance: str
    """Disk or sensor of the node; empty text: there is only one."""
    value: float
    rack: str = ""


class BadRow(msgspec.Struct, gc=False):
    """An unusable part of a record with usable neighbours."""

    why: RecordRejected
    value: bytes
    """A record with this part only."""


_one = lru_cache(65_536)(LogSource)
"""Returns the same object for the same values."""


def source_of(component: str, severity: int, host: str = "", rack: str = "", observation: str = "") -> LogSource:
    """Return the source of a record; `severity`: OpenTelemetry's number, 1 to 24, or 0."""
    # Cut before they are keys of a cache, whose bound is a count: a foreign text may have megabytes.
    most = _LONGEST_NAME
    return _source_of(component[:most], severity, host[:most], rack[:most], observation[:most])


@lru_cache(65_536)
def _source_of(component: str, severity: int, host: str, rack: str, observation: str) -> LogSource:
    number = (severity + 3) // 4 if 0 <= severity <= 24 else 0
    observation = observation if _OBSERVATION.fullmatch(observation) else ""
    return _one(cleaned(component), number, cleaned(host), cleaned(rack), observation)


@lru_cache(65_536)
def located(source: LogSource, host: str, rack: str) -> LogSource:
    """Return a source with host and rack, if it has none."""
    return _one(source.component, source.severity, source.host or host, source.rack or rack, source.observation)


def severity_of(name: str) -> int:
    """Return OpenTelemetry's severity number for a logger's name of a level; 0: unknown."""
    return _OF_NAME.get(name[:_LONGEST_NAME].strip().upper(), 0)


def cleaned(name: str) -> str:
    """Return a name from the bus in a form that is safe to show."""
    return _cleaned(name[:_LONGEST_NAME])


@lru_cache(65_536)
def _cleaned(name: str) -> str:
    return printable(name)[:_LONGEST_NAME]


def body_of(text: str | bytes) -> str:
    """Return the kept part of a body, in one line."""
    if isinstance(text, bytes):
        text = text[: 4 * _LONGEST_BODY].decode("utf-8-sig", "replace")
    return printable(text[:_LONGEST_BODY])[:_LONGEST_BODY]


def time_of(text: str) -> Time:
    """Return the time of an ISO 8601 text; UTC without a zone."""
    when = datetime.fromisoformat(text)
    since = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)) - _EPOCH
    time = Time(since // _US)
    if time < NEVER:
        raise ValueError(f"expected a time since 1970, got {text:.40}")
    return time


def micro(seconds: float) -> Time:
    """Convert a time [Unix s]."""
    if not 0.0 <= seconds <= as_seconds(Time(LARGEST)):
        raise ValueError(f"expected a time since 1970, got {seconds!r:.40} s")
    return as_time(seconds)


def from_nano(nanoseconds: int) -> Time:
    """Convert a time [Unix ns]; 0: out of the range of records."""
    time = nanoseconds // 1000
    return Time(time) if 0 <= time <= LARGEST else NEVER


def metric_record(
    time: Time, host: str, metric: str, instance: str, value: float | None, factor: float = 1.0, rack: str = ""
) -> MetricRecord:
    """Return a value of a metric; a value that is not finite has no attribute."""
    number = math.nan if value is None else float(value) * factor
    if not math.isfinite(number):
        return MetricRecord(time, host, "", "", 0.0, rack)
    return MetricRecord(time, host, metric, cleaned(instance), number, rack)


def without_nulls(part: Any) -> Any:
    """Return a document without the fields that are null, which shippers write for missing ones."""
    if isinstance(part, dict):
        return {name: without_nulls(value) for name, value in part.items() if value is not None}
    return [without_nulls(value) for value in part] if isinstance(part, list) else part


def rejected(reason: str, path: str, why: object) -> RecordRejected:
    """Return a rejection with a short and printable detail."""
    return RecordRejected(reason, path, excerpt(str(why)))
