"""Logs and metrics in the OpenTelemetry protocol: its JSON form and its protobuf form.

The two have the same fields. A batch that is no JSON, or no protobuf, is refused whole. In JSON, null is the absence of
a field, as everywhere in proto3; a record with a field of a wrong type is set aside alone.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec

from facade.flows.logs.names import of_otlp
from facade.flows.logs.records import (
    BadRow,
    LogRecord,
    MetricRecord,
    cleaned,
    from_nano,
    metric_record,
    rejected,
    severity_of,
    source_of,
    without_nulls,
)
from facade.numbers import LARGEST
from facade.runtime.log_export import SEQUENCE

_LOCATION = {"host.name", "rack", "eb_id", "service.name", "service.namespace"}


class _Json(msgspec.Struct, rename="camel", gc=False):
    """A part of the JSON form; whatever else it has is left out."""


class _Value(_Json):
    string_value: str = ""
    int_value: int | None = None
    double_value: float | None = None
    bool_value: bool | None = None


class _Attribute(_Json):
    key: str
    value: _Value = msgspec.field(default_factory=_Value)


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
# 64-bit integers are texts in this form; not strict, so that numbers pass as well.
_logs_decoder = msgspec.json.Decoder(_Logs, strict=False)
_metrics_decoder = msgspec.json.Decoder(_Metrics, strict=False)
_LOGS = ("resourceLogs", "scopeLogs", "logRecords")
_METRICS = ("resourceMetrics", "scopeMetrics", "metrics")
_MOST_APART = 64_000_000
"""Of a batch that is taken apart, as each part repeats what it has in common with others [bytes]."""


def json_logs(value: bytes) -> Iterator[LogRecord | BadRow]:
    """Return the records of a batch in JSON."""
    return _rows(value, _logs_decoder, lambda batch: _logs(batch.resource_logs), _LOGS)


def json_metrics(value: bytes) -> Iterator[MetricRecord | BadRow]:
    """Return the values of a batch in JSON."""
    return _rows(value, _metrics_decoder, lambda batch: _metrics(batch.resource_metrics), _METRICS)


def _rows(
    value: bytes,
    decoder: "msgspec.json.Decoder[ExportRequest]",
    rows: Callable[[ExportRequest], Iterator[RowType]],
    levels: tuple[str, ...],
) -> Iterator[RowType | BadRow]:
    """Return the rows of a batch; of one that has something wrong, part by part."""
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
    """Return where each record of a batch is, and a batch of it alone; a part that has none is left as it is."""
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
    """Return each point of a metric; a record of a log has none."""
    kinds = [kind for kind in ("gauge", "sum") if isinstance(record, dict) and isinstance(record.get(kind), dict)]
    if not kinds:
        yield path, record
    for kind in kinds:
        others = {name: value for name, value in record.items() if name not in kinds}
        for where, alone in _parts(record[kind], ("dataPoints",), f"{path}.{kind}"):
            yield where, {**others, kind: alone}


def protobuf_logs(value: bytes) -> Iterator[LogRecord]:
    """Return the records of a batch in protobuf."""
    return _logs(_parse("logs", value).resource_logs)


def protobuf_metrics(value: bytes) -> Iterator[MetricRecord]:
    """Return the values of a batch in protobuf."""
    return _metrics(_parse("metrics", value).resource_metrics)


def _parse(kind: str, value: bytes) -> Any:
    make = _request(kind)
    if make is None:
        raise ValueError("expected a form without protobuf, as the package opentelemetry-proto is not installed")
    request = make()
    try:
        request.ParseFromString(value)
    except Exception as error:  # protobuf's own classes, which are not there without it
        raise ValueError(f"expected an export request in protobuf, got: {error}") from error
    return request


@cache
def _request(kind: str) -> Any:
    """Return the class of requests; None: the package is not installed."""
    try:
        if kind == "logs":
            from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest as Logs

            return Logs
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest as Metrics

        return Metrics
    except ImportError:
        return None


def _texts(attributes: Iterable[Any]) -> dict[str, str]:
    """Return the attributes that say where something comes from."""
    return {one.key: cleaned(one.value.string_value) for one in attributes if one.key in _LOCATION}


def _number(attributes: Iterable[Any]) -> int:
    """Return the number that a source gave a record; 0: none."""
    found = next((one.value.int_value or 0 for one in attributes if one.key == SEQUENCE), 0)
    return found if 0 < found <= LARGEST else 0


def _logs(resources: Iterable[Any]) -> Iterator[LogRecord]:
    for resource in resources:
        where = _texts(resource.resource.attributes)
        host, rack, of_all = where.get("host.name", ""), where.get("rack", ""), where.get("eb_id", "")
        for scope in resource.scope_logs:
            service = "/".join(where[one] for one in ("service.namespace", "service.name") if where.get(one))
            component = service if where.get("service.name") else cleaned(scope.scope.name)
            shipper = f"{host} {component}"
            for one in scope.log_records:
                own = _texts(one.attributes) if one.attributes else {}
                severity = one.severity_number or severity_of(one.severity_text)
                source = source_of(component, severity, host, rack, own.get("eb_id", of_all))
                time = from_nano(one.time_unix_nano or one.observed_time_unix_nano)
                number = _number(one.attributes) if one.attributes else 0
                yield LogRecord(source, time, one.body.string_value, number, shipper if number else "")


def _metrics(resources: Iterable[Any]) -> Iterator[MetricRecord]:
    for resource in resources:
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
    if not isinstance(point, _Point):  # protobuf has no None: of numbers, it says which one is set
        which = point.WhichOneof("value")
        value = getattr(point, which) if which else None
    return metric_record(from_nano(point.time_unix_nano), host, shown, instance, value, factor, rack)
