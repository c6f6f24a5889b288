"""The formats of logs and metrics of shippers, recognized by the first bytes of a record.

Each format is one entry of a table: OTLP in JSON and in protobuf, events of Logstash, lines, and collectd. A decoder
returns the records found, and a `BadRow` with the reason for each unusable part. The content of a record never raises
here.

The two forms of OTLP have the same fields. In JSON, null is the absence of a field, as everywhere in proto3.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from facade.flows.logs.export import SEQUENCE
from facade.flows.logs.lines import ska_line, syslog_message
from facade.flows.logs.names import of_collectd, of_otlp
from facade.flows.logs.records import (
    OF_SYSLOG,
    BadRow,
    LogRecord,
    MetricRecord,
    cleaned,
    from_nano,
    metric_record,
    micro,
    rejected,
    severity_of,
    source_of,
    time_of,
    without_nulls,
)
from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER
from facade.kernel.config import Settings
from facade.kernel.icd.model import Icd
from facade.kernel.numbers import LARGEST
from facade.kernel.outcome import TOMBSTONE, USED, Outcome, RecordRejected, Suppressed
from facade.kernel.runtime.accounts import MOST_ROWS

_LOCATION = {"host.name", "rack", "eb_id", "service.name", "service.namespace"}


class _Json(msgspec.Struct, rename="camel", gc=False):
    """A part of the JSON form, with the fields that are used."""


class _Value(_Json):
    string_value: str = ""
    int_value: int | None = None
    double_value: float | None = None
    bool_value: bool | None = None
    bytes_value: str | None = None
    array_value: "_Array | None" = None
    kvlist_value: "_KeyValues | None" = None


class _Attribute(_Json):
    key: str
    value: _Value = msgspec.field(default_factory=_Value)


class _Array(_Json):
    values: list[_Value] = []


class _KeyValues(_Json):
    values: list[_Attribute] = []


class _Resource(_Json):
    attributes: list[_Attribute] = []


class _Scope(_Json):
    name: str = ""


class _LogRecord(_Json):
    time_unix_nano: int = 0
    observed_time_unix_nano: int = 0
    severity_number: int = 0
    severity_text: str = ""
    body: _Value = msgspec.field(default_factory=_Value)
    attributes: list[_Attribute] = []
    event_name: str = ""


class _ScopeLogs(_Json):
    scope: _Scope = msgspec.field(default_factory=_Scope)
    log_records: list[_LogRecord] = []


class _ResourceLogs(_Json):
    resource: _Resource = msgspec.field(default_factory=_Resource)
    scope_logs: list[_ScopeLogs] = []


class _Logs(_Json):
    resource_logs: list[_ResourceLogs] = []


class _Point(_Json):
    time_unix_nano: int = 0
    as_double: float | None = None
    as_int: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    attributes: list[_Attribute] = []


class _Points(_Json):
    data_points: list[_Point] = []


class _Metric(_Json):
    name: str
    gauge: _Points = msgspec.field(default_factory=_Points)
    sum: _Points = msgspec.field(default_factory=_Points)


class _ScopeMetrics(_Json):
    metrics: list[_Metric] = []


class _ResourceMetrics(_Json):
    resource: _Resource = msgspec.field(default_factory=_Resource)
    scope_metrics: list[_ScopeMetrics] = []


class _Metrics(_Json):
    resource_metrics: list[_ResourceMetrics] = []


ExportRequest = TypeVar("ExportRequest", _Logs, _Metrics)
RowType = TypeVar("RowType", LogRecord, MetricRecord)
# 64-bit integers are texts in this form; not strict, so that numbers are accepted as well.
_logs_decoder = msgspec.json.Decoder(_Logs, strict=False)
_metrics_decoder = msgspec.json.Decoder(_Metrics, strict=False)
_LOGS = ("resourceLogs", "scopeLogs", "logRecords")
_METRICS = ("resourceMetrics", "scopeMetrics", "metrics")
_MOST_APART = 64_000_000
"""Upper bound of a batch's parts together, as each repeats the common fields [bytes]."""


def _rows(
    value: bytes,
    decoder: "msgspec.json.Decoder[ExportRequest]",
    rows: Callable[[ExportRequest], Iterator[RowType]],
    levels: tuple[str, ...],
) -> Iterator[RowType | BadRow]:
    try:
        batch = decoder.decode(value)
    except msgspec.ValidationError:
        document = without_nulls(msgspec.json.decode(value))
    else:
        yield from rows(batch)
        return
    length = 0
    for path, part in _parts(document, levels):
        alone = msgspec.json.encode(part)
        if (length := length + len(alone)) > _MOST_APART:
            raise ValueError(f"expected parts of at most {_MOST_APART} bytes together, got more")
        try:
            batch = decoder.decode(alone)
        except msgspec.ValidationError as error:
            if path == "$":
                raise
            yield BadRow(rejected("otlp-json", path, error), alone)
        else:
            yield from rows(batch)


def _parts(part: Any, levels: tuple[str, ...], path: str = "$") -> Iterator[tuple[str, Any]]:
    """Return the path of each record in a batch, and a batch of it alone; parts without records stay unchanged."""
    if not levels:
        yield from _points(part, path)
        return
    name, *rest = levels
    entries = part.get(name) if isinstance(part, dict) else None
    if not isinstance(entries, list):
        yield path, part
        return
    for at, entry in enumerate(entries):
        for where, alone in _parts(entry, tuple(rest), f"{path}.{name}[{at}]"):
            yield where, {**part, name: [alone]}


def _points(record: Any, path: str) -> Iterator[tuple[str, Any]]:
    kinds = [kind for kind in ("gauge", "sum") if isinstance(record, dict) and isinstance(record.get(kind), dict)]
    if not kinds:
        yield path, record
    for kind in kinds:
        others = {name: value for name, value in record.items() if name not in kinds}
        for where, alone in _parts(record[kind], ("dataPoints",), f"{path}.{kind}"):
            yield where, {**others, kind: alone}


def _parse(kind: str, value: bytes) -> Any:
    make = _request(kind)
    if make is None:
        raise ValueError("expected a form without protobuf, as the package opentelemetry-proto is not installed")
    request = make()
    try:
        request.ParseFromString(value)
    except Exception as error:  # protobuf's own classes, which do not exist without it
        raise ValueError(f"expected an export request in protobuf, got: {error}") from error
    return request


@cache
def _request(kind: str) -> Any:
    try:
        if kind == "logs":
            from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest as Logs

            return Logs
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest as Metrics

        return Metrics
    except ImportError:
        return None


def _texts(attributes: Iterable[Any]) -> dict[str, str]:
    return {one.key: cleaned(one.value.string_value) for one in attributes if one.key in _LOCATION}


def _number(attributes: Iterable[Any]) -> int:
    found = next((one.value.int_value or 0 for one in attributes if one.key == SEQUENCE), 0)
    return found if 0 < found <= LARGEST else 0


_KINDS = [name for name in _Value.__struct_fields__ if name != "string_value"]
_DEEPEST = 20
"""Levels of a body that are shown."""
_LEFT_OUT = "..."


def _text(one: Any) -> str:
    """Return the text of a record whose body is none: the body as JSON, or else the event's name and attributes."""
    body = _plain(one.body)
    if body not in (None, ""):
        return json.dumps(body, ensure_ascii=False)
    more = {part.key: _plain(part.value) for part in one.attributes if part.key not in (*_LOCATION, SEQUENCE)}
    name = one.event_name or more.pop("event.name", "")
    return " ".join(filter(None, (str(name), json.dumps(more, ensure_ascii=False) if more else "")))


def _plain(value: Any, depth: int = _DEEPEST) -> Any:
    """Return a value of OTLP as JSON has it, without the parts that are too deep."""
    if isinstance(value, _Value):
        kind = next((name for name in _KINDS if getattr(value, name) is not None), "string_value")
    else:
        kind = value.WhichOneof("value") or "string_value"
    found = getattr(value, kind)
    match kind:
        case "array_value":
            return [_plain(one, depth - 1) for one in found.values] if depth else _LEFT_OUT
        case "kvlist_value":
            return {one.key: _plain(one.value, depth - 1) for one in found.values} if depth else _LEFT_OUT
        case "bytes_value" if isinstance(found, bytes):
            return base64.b64encode(found).decode()
    return found


def _logs(batch: Any) -> Iterator[LogRecord]:
    for resource in batch.resource_logs:
        where = _texts(resource.resource.attributes)
        host, rack, of_all = where.get("host.name", ""), where.get("rack", ""), where.get("eb_id", "")
        for scope in resource.scope_logs:
            service = "/".join(where[one] for one in ("service.namespace", "service.name") if where.get(one))
            component = cleaned(service if where.get("service.name") else scope.scope.name)
            shipper = f"{host} {component}"
            for one in scope.log_records:
                own = _texts(one.attributes) if one.attributes else {}
                severity = one.severity_number or severity_of(one.severity_text)
                source = source_of(component, severity, host, rack, own.get("eb_id", of_all))
                time = from_nano(one.time_unix_nano or one.observed_time_unix_nano)
                number = _number(one.attributes) if one.attributes else 0
                text = one.body.string_value or _text(one)
                yield LogRecord(source, time, text, number, shipper if number else "")


def _metrics(batch: Any) -> Iterator[MetricRecord]:
    for resource in batch.resource_metrics:
        where = _texts(resource.resource.attributes)
        host, rack = where.get("host.name", ""), where.get("rack", "")
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in (*metric.gauge.data_points, *metric.sum.data_points):
                    yield _point(metric.name, point, host, rack)


def _point(name: str, point: Any, host: str, rack: str) -> MetricRecord:
    labels = {one.key: one.value.string_value for one in point.attributes}
    shown, factor, instance = of_otlp(name, labels)
    value = point.as_double if point.as_double is not None else point.as_int
    if not isinstance(point, _Point):  # protobuf has no None: it names the number that is set
        which = point.WhichOneof("value")
        value = getattr(point, which) if which else None
    return metric_record(from_nano(point.time_unix_nano), host, shown, instance, value, factor, rack)


class _Host(msgspec.Struct, gc=False):
    """The host of an event, as Logstash writes it in its newer form."""

    name: str = ""
    hostname: str = ""


class _Event(msgspec.Struct, gc=False):
    """An event of Logstash."""

    message: str
    timestamp: str = msgspec.field(default="", name="@timestamp")
    level: str = ""
    severity: str | int = ""
    host: str | _Host = ""
    rack: str = ""
    eb_id: str = ""
    program: str = ""
    logger_name: str = ""
    log: Any = None
    """Of the Elastic Common Schema, which has the level here."""


_decode_event = msgspec.json.Decoder(_Event).decode


def log_event(value: bytes) -> LogRecord:
    """Decode an event of Logstash."""
    try:
        one = _decode_event(value)
    except msgspec.ValidationError:  # possibly caused by a null
        one = _decode_event(msgspec.json.encode(without_nulls(msgspec.json.decode(value))))
    if isinstance(one.severity, int):  # the form of Logstash's syslog input
        severity = OF_SYSLOG[one.severity] if 0 <= one.severity < len(OF_SYSLOG) else 0
    else:
        if not (one.level or one.severity) and isinstance(one.log, dict) and "level" in one.log:
            raise ValueError("log.level: expected level, as Logstash writes it, got the Elastic Common Schema")
        severity = severity_of(one.level or one.severity)
    host = one.host if isinstance(one.host, str) else one.host.name or one.host.hostname
    source = source_of(one.program or one.logger_name, severity, host, one.rack, one.eb_id)
    return LogRecord(source, time_of(one.timestamp) if one.timestamp else NEVER, one.message)


LogRow = LogRecord | MetricRecord | BadRow
_FAILURES = (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError)


class Format(NamedTuple):
    """A format of records."""

    name: str
    begins: re.Pattern[bytes]
    decode: Callable[[bytes], Any]
    """Decodes a row, or the rows of a batch."""
    is_batch: bool = False
    """Whether a record of the bus may have several rows."""


class _Collectd(msgspec.Struct, gc=False):
    """One value list of collectd."""

    values: list[float | None]
    time: float
    host: str
    plugin: str
    type: str
    plugin_instance: str = ""
    type_instance: str = ""


_decode_lists = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_list = msgspec.json.Decoder(_Collectd).decode


def _collectd(value: bytes) -> Iterator[LogRow]:
    for at, raw in enumerate(_decode_lists(value)):
        try:
            one = _decode_list(raw)
            shown, instance = of_collectd(one.plugin, one.plugin_instance, one.type, one.type_instance)
            # Of several values, such as the load, the first is shown; NaN is null.
            number = one.values[0] if one.values else None
            yield metric_record(micro(one.time), cleaned(one.host), shown, instance, number)
        except _FAILURES as error:
            yield BadRow(rejected("collectd", f"$[{at}]", error), b"[%b]" % bytes(raw))


def _begins(pattern: bytes) -> "re.Pattern[bytes]":
    return re.compile(pattern, re.DOTALL)


LOGS: Final = (
    Format("syslog", _begins(rb"<\d"), syslog_message),
    Format("ska", _begins(rb"1\|"), ska_line),
    Format(
        "otlp-json",
        _begins(rb'\s*\{\s*"resourceLogs"'),
        lambda value: _rows(value, _logs_decoder, _logs, _LOGS),
        is_batch=True,
    ),
    Format("logstash", _begins(rb"\s*\{"), log_event),
    Format("otlp-protobuf", _begins(rb"\n"), lambda value: _logs(_parse("logs", value)), is_batch=True),
)
METRICS: Final = (
    Format("collectd", _begins(rb"\s*\["), _collectd, is_batch=True),
    Format(
        "otlp-json",
        _begins(rb'\s*\{\s*"resourceMetrics"'),
        lambda value: _rows(value, _metrics_decoder, _metrics, _METRICS),
        is_batch=True,
    ),
    Format("otlp-protobuf", _begins(rb"\n"), lambda value: _metrics(_parse("metrics", value)), is_batch=True),
)
FORMATS: Final = {"logs": LOGS, "metrics": METRICS}
"""By topic; the first one that matches applies."""


def decode(topic: str, value: bytes | None) -> "tuple[Format | None, list[LogRow] | RecordRejected | Suppressed]":
    """Return the format of a record and its rows in order, or the reason why the whole record is refused.

    `topic`: one of `FORMATS`.
    """
    if value is None:
        return None, TOMBSTONE
    for found in FORMATS[topic]:
        if found.begins.match(value):
            break
    else:
        known = ", ".join(one.name for one in FORMATS[topic])
        return None, rejected("format", "$", f"expected one of {known}, got a record that begins with {value[:20]!r}")
    try:
        made = found.decode(value)
        rows: list[LogRow] = list(islice(made, MOST_ROWS + 1)) if found.is_batch else [made]
    except _FAILURES as error:
        return found, rejected(found.name, "$", error)
    if len(rows) > MOST_ROWS:
        return found, rejected("too-many", "$", f"expected at most {MOST_ROWS} in a record, got more")
    return (found, rows) if rows else (found, Suppressed("no-rows"))


def trials(icd: Icd, settings: Settings) -> Mapping[str, Callable[[Record], Outcome]]:
    """Return the trial of one record of each topic; see `facade.kernel.manifest.Manifest.trials`."""
    return dict.fromkeys(FORMATS, _trial)


def _trial(record: Record) -> Outcome:
    _, rows = decode(record.topic, record.value)
    if not isinstance(rows, list):
        return rows
    bad = [row for row in rows if isinstance(row, BadRow)]
    return bad[0].why if len(bad) == len(rows) else USED
