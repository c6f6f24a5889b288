"""The formats in which shippers write logs and metrics, told apart by how a record begins.

Each format is one entry of a table. A decoder gives what it finds in a record: records, and for what it cannot use the
reason. Nothing that a record holds raises here.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from facade.bus.port import Record
from facade.config import Settings
from facade.flows.logs import elastic, otlp
from facade.flows.logs.lines import ska_line, syslog_message
from facade.flows.logs.names import of_collectd
from facade.flows.logs.records import (
    BadRow,
    LogRecord,
    MetricRecord,
    cleaned,
    metric_record,
    micro,
    rejected,
)
from facade.icd.model import Icd
from facade.outcome import TOMBSTONE, USED, Outcome, RecordRejected, Suppressed

MOST_ROWS = 100_000
"""Records in one record of the bus."""
LogRow = LogRecord | MetricRecord | BadRow
_FAILURES = (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError)


class Format(NamedTuple):
    """A format of records."""

    name: str
    begins: re.Pattern[bytes]
    """How a record of it begins."""
    decode: Callable[[bytes], Any]
    """Returns a row, or the rows of a batch."""
    is_batch: bool = False
    """Whether a record of the bus may have many."""


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
            # Of several values of a list, such as the load, the first is the one that is shown; NaN is null.
            number = one.values[0] if one.values else None
            yield metric_record(micro(one.time), cleaned(one.host), shown, instance, number)
        except _FAILURES as error:
            yield BadRow(rejected("collectd", f"$[{at}]", error), b"[%b]" % bytes(raw))


def _begins(pattern: bytes) -> "re.Pattern[bytes]":
    return re.compile(pattern, re.DOTALL)


LOGS: Final = (
    Format("syslog", _begins(rb"<\d"), syslog_message),
    Format("ska", _begins(rb"1\|"), ska_line),
    Format("otlp-json", _begins(rb'\s*\{\s*"resourceLogs"'), otlp.json_logs, is_batch=True),
    Format("logstash", _begins(rb"\s*\{"), elastic.log_event),
    Format("otlp-protobuf", _begins(rb"\n"), otlp.protobuf_logs, is_batch=True),
)
METRICS: Final = (
    Format("collectd", _begins(rb"\s*\["), _collectd, is_batch=True),
    Format("otlp-json", _begins(rb'\s*\{\s*"resourceMetrics"'), otlp.json_metrics, is_batch=True),
    Format("metricbeat", _begins(rb"\s*\{"), elastic.metrics_event, is_batch=True),
    Format("otlp-protobuf", _begins(rb"\n"), otlp.protobuf_metrics, is_batch=True),
)
FORMATS: Final = {"logs": LOGS, "metrics": METRICS}
"""By topic; the first whose begin fits."""


def decode(topic: str, value: bytes | None) -> "tuple[Format | None, list[LogRow] | RecordRejected | Suppressed]":
    """Return the format of a record and what it holds, in order; of one that is refused whole, why.

    Parameters
    ----------
    topic
        Of `FORMATS`.
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
    """Return the reading of one record of each topic; see `facade.manifest.Manifest.trials`."""
    return dict.fromkeys(FORMATS, _trial)


def _trial(record: Record) -> Outcome:
    """Return the fate of a record; it is rejected if each of its rows is."""
    _, rows = decode(record.topic, record.value)
    if not isinstance(rows, list):
        return rows
    bad = [row for row in rows if isinstance(row, BadRow)]
    return bad[0].why if len(bad) == len(rows) else USED
