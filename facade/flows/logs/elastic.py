"""JSON as Elastic's shippers and loggers write it, by the Elastic Common Schema; and as Logstash does.

A field of the schema stands within objects (``{"log": {"level": ...}}``, Filebeat) or under its whole name
(``{"log.level": ...}``, loggers of programs). Records of both kinds are taken.
"""

import sys
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, TypeVar

import msgspec

from facade.flows.logs.names import METRICBEAT
from facade.flows.logs.records import (
    OF_SYSLOG,
    BadRow,
    LogRecord,
    MetricRecord,
    cleaned,
    metric_record,
    rejected,
    severity_of,
    source_of,
    time_of,
    without_nulls,
)

_NONE: Mapping[str, Any] = {}


class _Object(msgspec.Struct, gc=False):
    """What is known below `host`, `log`, `service`, `process` and `event`."""

    name: str = ""
    hostname: str = ""
    level: str = ""
    logger: str = ""
    dataset: str = ""


class _Event(msgspec.Struct, gc=False):
    """What events of logs and of metrics have in common."""

    timestamp: str = msgspec.field(default="", name="@timestamp")
    host: str | _Object = ""
    host_name: str = msgspec.field(default="", name="host.name")
    rack: str = ""
    eb_id: str = ""
    labels: Mapping[str, Any] = _NONE
    fields: Mapping[str, Any] = _NONE
    """Where Filebeat and Metricbeat have what a site adds to each event."""

    def where(self) -> tuple[str, str, str]:
        """Return host, rack and execution block; empty texts: it names none."""
        host = self.host if isinstance(self.host, str) else self.host.name or self.host.hostname
        return self.host_name or host, self._added("rack", self.rack), self._added("eb_id", self.eb_id)

    def _added(self, name: str, own: str) -> str:
        text = own or self.labels.get(name) or self.fields.get(name)
        return text if isinstance(text, str) else ""

    def time(self) -> int:
        """Return when it was made [Unix us]; 0: it does not say."""
        return time_of(self.timestamp) if self.timestamp else 0


class _Log(_Event, kw_only=True, gc=False):
    """An event of a log: fields of Logstash, and of the Elastic Common Schema."""

    message: str
    level: str = ""
    severity: str | int = ""
    log: _Object = msgspec.field(default_factory=_Object)
    log_level: str = msgspec.field(default="", name="log.level")
    log_logger: str = msgspec.field(default="", name="log.logger")
    logger_name: str = ""
    program: str = ""
    service: str | _Object = ""
    service_name: str = msgspec.field(default="", name="service.name")
    process: str | _Object = ""
    process_name: str = msgspec.field(default="", name="process.name")
    event: str | _Object = ""
    event_dataset: str = msgspec.field(default="", name="event.dataset")

    def component(self) -> str:
        """Return what logs: the service, else the program, else the logger, else the kind of the log."""
        service = self.service_name or _name(self.service)
        program = self.program or self.process_name or _name(self.process)
        logger = self.logger_name or self.log_logger or self.log.logger
        kind = self.event.dataset if isinstance(self.event, _Object) else self.event
        return service or program or logger or self.event_dataset or kind


class _Metrics(_Event, gc=False):
    """An event of Metricbeat."""

    system: Mapping[str, Any] = _NONE


_Kind = TypeVar("_Kind", _Log, _Metrics)
_log_decoder = msgspec.json.Decoder(_Log)
_metrics_decoder = msgspec.json.Decoder(_Metrics)


def _decoded(decoder: "msgspec.json.Decoder[_Kind]", value: bytes) -> _Kind:
    try:
        return decoder.decode(value)
    except msgspec.ValidationError:  # perhaps of a null
        return decoder.decode(msgspec.json.encode(without_nulls(msgspec.json.decode(value))))


def _name(one: str | _Object) -> str:
    return one if isinstance(one, str) else one.name


def log_event(value: bytes) -> LogRecord:
    """Decode an event of Logstash, of Filebeat, or of a logger that writes the Elastic Common Schema."""
    one = _decoded(_log_decoder, value)
    if isinstance(one.severity, int):  # as the syslog input of Logstash has it
        severity = OF_SYSLOG[one.severity] if 0 <= one.severity < len(OF_SYSLOG) else 0
    else:
        severity = severity_of(one.level or one.log_level or one.log.level or one.severity)
    return LogRecord(source_of(one.component(), severity, *one.where()), one.time(), one.message)


def metrics_event(value: bytes) -> Iterator[MetricRecord | BadRow]:
    """Return the values of an event of Metricbeat: those that attributes show, or one that none shows.

    Raises
    ------
    ValueError
        It is no such event.
    """
    one = _decoded(_metrics_decoder, value)
    if not one.timestamp:
        raise ValueError("expected an export request of OTLP, or an event of Metricbeat with @timestamp")
    host, rack, _ = one.where()
    time, is_shown = one.time(), False
    for path, (shown, factor, of) in METRICBEAT.items():
        number = _at(one.system, path)
        if number is None:
            continue
        is_shown = True
        if isinstance(number, bool) or not isinstance(number, int | float) or abs(number) > sys.float_info.max:
            where, alone = f"$.system.{'.'.join(path)}", {"@timestamp": one.timestamp, "host": {"name": host}}
            alone["system"] = reduce(lambda part, name: {name: part}, reversed(path), number)
            why = rejected("metricbeat", where, f"expected a number, got {number!r:.40}")
            yield BadRow(why, msgspec.json.encode(alone))
            continue
        instance = _at(one.system, of)
        yield metric_record(time, cleaned(host), shown, str(instance or ""), number, factor, cleaned(rack))
    if not is_shown:
        yield metric_record(time, cleaned(host), "", "", None)


def _at(found: Any, path: tuple[str, ...]) -> Any:
    """Return what stands at a path of objects; None: nothing."""
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if path else None
