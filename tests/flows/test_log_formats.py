"""Logs and metrics as shippers write them, from bytes to records."""

import json
import tracemalloc

import msgspec
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from facade.flows.logs import formats
from facade.flows.logs.formats import decode
from facade.flows.logs.records import (
    LOG_SEVERITIES,
    BadRow,
    LogRecord,
    MetricRecord,
    body_of,
    source_of,
    time_of,
)
from facade.kernel.outcome import RecordRejected, Suppressed

TIME = "2026-11-23T10:00:00.250Z"
US = time_of(TIME)
ALL = "eb-test-20261123-00000"
EB = "eb-test-20261123-00001"


def logs(value):
    return decode("logs", value)[1]


def metrics(value):
    return decode("metrics", value)[1]


def log(time=US, severity=17, component="flagger", host="", rack="", observation="", body="", sequence=0):
    return LogRecord(source_of(component, severity, host, rack, observation), time, body, sequence)


def record(severity=17, component="flagger", **more):
    return log(US, severity, component, **more)


def read(one):
    return msgspec.structs.replace(one, body=one.body if isinstance(one.body, str) else body_of(one.body))


def resource(**attributes):
    names = {"service_name": "service.name", "host_name": "host.name"}
    return {
        "attributes": [{"key": names.get(key, key), "value": {"stringValue": text}} for key, text in attributes.items()]
    }


def otlp_logs(*records, **attributes):
    own = {"resource": resource(service_name="flagger", host_name="n7", **attributes)}
    return {"resourceLogs": [{**own, "scopeLogs": [{"scope": {"name": "lib"}, "logRecords": list(records)}]}]}


RECORD = {
    "timeUnixNano": str(US * 1000),
    "severityNumber": 17,
    "body": {"stringValue": "boom"},
    "attributes": [{"key": "eb_id", "value": {"stringValue": EB}}, {"key": "n", "value": {"intValue": "3"}}],
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (
            f'<131>1 {TIME} n7 flagger 47 ID1 [meta sequenceId="29"][sdp@32473 rack="r01" eb_id="{EB}"] \ufeffboom [x]',
            record(host="n7", rack="r01", observation=EB, body="boom [x]", sequence=29),
        ),
        (f"<134>1 {TIME} n7 flagger - - - hello", record(9, host="n7", body="hello")),
        ("<0>1 - - - - - -", log(0, 21, "")),
        (
            f'<134>1 {TIME} n7 flagger - - [a x="\\"]]"] he"llo',
            RecordRejected("syslog", "$", "expected a message of RFC 5424"),
        ),
        (f'<134>1 {TIME} n7 flagger - - [a x="\\"\\]"] he"llo', record(9, host="n7", body='he"llo')),
        # A container's line in SKA's form, in the message of the node's syslog.
        (
            f"<134>1 {TIME} n7 podman - - - 1|{TIME}|ERROR|main|f|a.py#1|tango-device:mid-sdp/x/0|boom",
            record(component="mid-sdp/x/0", host="n7", body="boom"),
        ),
        # RFC 3164, which has neither year nor zone: its time is that of the broker.
        ("<131>Nov 23 10:00:00 n7 flagger[47]: boom [x]: y", log(0, 17, "flagger", "n7", body="boom [x]: y")),
        ("<134>Nov  3 10:00:00 n7 flagger: - hello", log(0, 9, "flagger", "n7", body="- hello")),
        ("<134>Nov  3 10:00:00 n7 flagger hello you", log(0, 9, "flagger", "n7", body=" hello you")),
        ("<134>Nov 23 10:00:00 flagger[47]: a program's own", log(0, 9, "flagger", body="a program's own")),
        ("<134>Nov 23 10:00:00 fe80::1 flagger:", log(0, 9, "flagger", "fe80::1")),
        (f"<131>{TIME} n7 flagger[47]: as rsyslog forwards", record(host="n7", body="as rsyslog forwards")),
        (
            f"<134>Nov 23 10:00:00 n7 podman[1]: 1|{TIME}|ERROR|main|f|a.py#1|tango-device:mid-sdp/x/0|boom",
            record(component="mid-sdp/x/0", host="n7", body="boom"),
        ),
        (f"1|{TIME}|ERROR|main|f|flagger.py#1||boom | more\n", record(component="flagger.py", body="boom | more")),
        (
            f"1|{TIME}|WARNING|||#|tango-device:mid-sdp/x/0,host:n7,rack:r01,eb_id:{EB}|hm",
            record(13, "mid-sdp/x/0", host="n7", rack="r01", observation=EB, body="hm"),
        ),
        (
            json.dumps({"@timestamp": TIME, "@version": "1", "message": "boom", "level": "ERROR", "host": "n7"})[:-1]
            + ', "logger_name": "flagger", "tags": []}',
            record(host="n7", body="boom"),
        ),
        (
            json.dumps({"@timestamp": TIME, "message": "", "level": "err", "host": {"hostname": "n7"}})[:-1]
            + f', "program": "flagger", "rack": "r01", "eb_id": "{EB}", "severity": null}}',
            record(host="n7", rack="r01", observation=EB),
        ),
        (json.dumps({"message": "m", "severity": 3, "program": "flagger"}), log(0, 17, "flagger", body="m")),
        (json.dumps(otlp_logs(RECORD)), record(host="n7", observation=EB, body="boom")),
        (
            json.dumps(otlp_logs({"observedTimeUnixNano": US * 1000, "severityText": "Error"}, rack="r01", eb_id="x")),
            record(host="n7", rack="r01"),
        ),
        ("", RecordRejected("format", "$", "expected one of")),
        ("hello", RecordRejected("format", "$", "expected one of")),
        ("<192>1 - - - - - -", RecordRejected("syslog", "$", "expected a message of RFC 5424")),
        (
            "<13>Smarch 3 10:00:00 n7 flagger: x",
            RecordRejected("syslog", "$", "expected a message of RFC 5424 or RFC 3164"),
        ),
        (
            "<192>Nov 23 10:00:00 n7 flagger: x",
            RecordRejected("syslog", "$", "expected a message of RFC 5424 or RFC 3164"),
        ),
        ("<13>2026-13-45T10:00:00Z n7 flagger: x", RecordRejected("syslog", "$", "must be in 1..12")),
        ("<13>1 yesterday n7 a - - - x", RecordRejected("syslog", "$", "Invalid isoformat string")),
        ("<13>1 1969-12-31T00:00:00Z n7 a - - - x", RecordRejected("syslog", "$", "expected a time since 1970")),
        ("1|too|few", RecordRejected("ska", "$", "expected eight fields")),
        ('{"message": 1}', RecordRejected("logstash", "$", "Expected `str`, got `int`")),
        ('{"message"', RecordRejected("logstash", "$", "Input data was truncated")),
        ('{"resourceLogs": 1}', RecordRejected("otlp-json", "$", "Expected `array`")),
        ('{"resourceLogs": []}', Suppressed("no-rows")),
        ("\nnonsense", RecordRejected("otlp-protobuf", "$", "expected an export request in protobuf")),
    ],
)
def test_each_form_of_a_log_becomes_the_same_record(value, expected):
    found = logs(value.encode())
    if isinstance(expected, LogRecord):
        assert [read(one) for one in found] == [expected]
        assert [read(one) for one in logs(value.encode())] == [expected], "whose header is known by now"
    elif isinstance(expected, RecordRejected):
        assert (found.reason, found.path) == (expected.reason, expected.path)
        assert expected.detail in found.detail
    else:
        assert found == expected


def test_a_batch_of_otlp_has_many_records_in_both_its_forms():
    batch = otlp_logs(RECORD, {"severityNumber": 9}, eb_id=ALL)
    # Time 0: it says none, and is dated when it comes.
    expected = [record(host="n7", observation=EB, body="boom"), log(0, 9, "flagger", "n7", "", ALL)]
    request = json_format.ParseDict(batch, ExportLogsServiceRequest())
    assert logs(json.dumps(batch).encode()) == expected
    assert logs(request.SerializeToString()) == expected
    del request.resource_logs[0].resource.attributes[:]
    assert [one.source.component for one in logs(request.SerializeToString())] == ["lib", "lib"], "without a service"


BODIES = [
    ({"body": {"intValue": "-7"}}, "-7"),
    ({"body": {"intValue": "0"}}, "0"),
    ({"body": {"boolValue": False}}, "false"),
    ({"body": {"doubleValue": 2.5}}, "2.5"),
    ({"body": {"bytesValue": "/w=="}}, '"/w=="'),
    ({"body": {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "é"}]}}}, '[1, "é"]'),
    (
        {"body": {"kvlistValue": {"values": [{"key": "a", "value": {"arrayValue": {}}}, {"key": "b"}]}}},
        '{"a": [], "b": ""}',
    ),
    ({"eventName": "disk.full"}, "disk.full"),
    ({"eventName": "disk.full", "attributes": RECORD["attributes"]}, 'disk.full {"n": 3}'),
    ({"attributes": [{"key": "event.name", "value": {"stringValue": "disk.full"}}]}, "disk.full"),
    (
        {"body": {}, "attributes": [{"key": "exception.message", "value": {"stringValue": "no disk"}}]},
        '{"exception.message": "no disk"}',
    ),
    ({"attributes": [{"key": "sdp.sequence", "value": {"intValue": "3"}}]}, ""),
]


@pytest.mark.parametrize(("parts", "text"), BODIES)
def test_a_body_of_any_kind_and_an_event_without_one_have_a_text(parts, text):
    """They became errors with an empty text."""
    batch = otlp_logs({"severityNumber": 17, **parts})
    request = json_format.ParseDict(batch, ExportLogsServiceRequest())
    for value in (json.dumps(batch).encode(), request.SerializeToString()):
        (one,) = logs(value)
        assert (one.body, one.source.severity) == (text, record().source.severity)


def test_a_deep_body_is_cut():
    deep = {"intValue": "1"}
    for _ in range(30):
        deep = {"arrayValue": {"values": [deep]}}
    batch = otlp_logs({"body": deep})
    for value in (
        json.dumps(batch).encode(),
        json_format.ParseDict(batch, ExportLogsServiceRequest()).SerializeToString(),
    ):
        (one,) = logs(value)
        assert one.body == "[" * 20 + '"..."' + "]" * 20


def nulls(tree):
    """Return each document in which one field is null."""
    places = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, value in places:
        if isinstance(tree, dict):
            yield {**tree, name: None}
        for one in nulls(value):
            yield {**tree, name: one} if isinstance(tree, dict) else [*tree[:name], one, *tree[name + 1 :]]


def test_null_is_absence_everywhere_in_a_batch_of_otlp():
    """Real exporters write it for `body`, `stringValue`, `attributes`, `severityText` and `timeUnixNano`."""
    batch = otlp_logs({**RECORD, "severityText": "Error", "observedTimeUnixNano": "1"}, rack="r01")
    found = [logs(json.dumps(one).encode()) for one in nulls(batch)]
    assert len(found) > 20
    for one in found:
        assert isinstance(one, Suppressed) or [*map(type, one)] in ([LogRecord], [BadRow])
    # Only an attribute without its key is no attribute.
    assert {
        one[0].why.detail.partition(" - ")[0] for one in found if isinstance(one, list) and type(one[0]) is BadRow
    } == {"Object missing required field `key`"}
    points = {"dataPoints": [{"timeUnixNano": "1", "asDouble": None, "asInt": "7", "attributes": None}]}
    one = {"name": "system.processes.count", "gauge": points, "sum": None, "unit": None}
    value = {"resourceMetrics": [{"resource": None, "scopeMetrics": [{"scope": None, "metrics": [one]}]}]}
    assert [*map(type, metrics(json.dumps(value).encode()))] == [MetricRecord]


@pytest.mark.parametrize("at", range(3))
def test_a_record_of_otlp_with_something_wrong_is_set_aside_alone(at):
    records = [RECORD, RECORD]
    records.insert(at, {**RECORD, "body": {"stringValue": 7}})
    batch = otlp_logs(*records, rack="r01")
    rows = logs(json.dumps(batch).encode())
    assert [*map(type, rows)] == [BadRow if number == at else LogRecord for number in range(3)]
    bad = rows.pop(at)
    assert [row.source.rack for row in rows] == ["r01", "r01"]
    assert bad.why.path == f"$.resourceLogs[0].scopeLogs[0].logRecords[{at}]"
    assert json.loads(bad.value) == otlp_logs(records[at], rack="r01"), "whoever sends it again has all of it"


def test_a_point_of_otlp_with_something_wrong_is_set_aside_alone():
    points = [{"asInt": "1"}, {"asInt": str(2**70)}, {"asDouble": 2.5}, {"asInt": 10**400}]
    metric = {
        "name": "system.processes.count",
        "gauge": {"dataPoints": points},
        "sum": {"dataPoints": [{"asInt": "3"}]},
    }
    value = {"resourceMetrics": [{"resource": resource(host_name="n7"), "scopeMetrics": [{"metrics": [metric]}]}]}
    rows = metrics(json.dumps(value).encode())
    assert [*map(type, rows)] == [MetricRecord, BadRow, MetricRecord, BadRow, MetricRecord]
    assert {row.host for row in rows if isinstance(row, MetricRecord)} == {"n7"}


def test_bad_records_with_a_large_resource_are_refused_together(monkeypatch):
    """Each of them would repeat it."""
    monkeypatch.setattr(formats, "_MOST_APART", 10_000)
    bad = {"body": 1}
    assert len(logs(json.dumps(otlp_logs(*[bad] * 5, rack="r" * 1000)).encode())) == 5
    assert (
        "expected parts of at most 10000 bytes"
        in logs(json.dumps(otlp_logs(*[bad] * 50, rack="r" * 1000)).encode()).detail
    )


@pytest.mark.parametrize(
    ("begin", "time"),
    [
        ("Nov 23 10:00:00 UTC 2026", US - 250_000),
        ("Nov 23 12:00:00 +02:00 2026", US - 250_000),
        ("Nov 23 12:00:00 +0200 2026", US - 250_000),
        ("Nov 23 10:00:00 UTC", 0),
        ("Nov 23 10:00:00 CST 2026", 0),
        ("Nov 23 10:00:00 2026", 0),
        ("Nov  3 10:00:00", 0),
    ],
)
def test_an_old_message_may_have_zone_and_year(begin, time):
    """A name such as CST stands for several zones: then the time of the broker counts."""
    (found,) = logs(f"<131>{begin} n7 flagger[47]: boom".encode())
    assert read(found) == log(time, host="n7", body="boom")


@pytest.mark.parametrize("begin", ["Feb 30 10:00:00 UTC 2026", "Nov 23 25:00:00 UTC 2026", "Nov 23 10:00:00 UTC 1969"])
def test_an_old_message_of_no_day_is_refused(begin):
    assert logs(f"<131>{begin} n7 flagger[47]: boom".encode()).reason == "syslog"


def test_protobuf_without_its_package_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(formats, "_request", lambda kind: None)
    assert "opentelemetry-proto is not installed" in logs(b"\n\x00").detail
    assert "opentelemetry-proto is not installed" in metrics(b"\n\x00").detail


def collectd(plugin, kind, value, *, instance="", of="", **more):
    made = {"values": [value], "dstypes": ["gauge"], "dsnames": ["value"], "time": US / 1e6, "interval": 10.0}
    made |= {"host": "n7", "plugin": plugin, "plugin_instance": of, "type": kind, "type_instance": instance, **more}
    return {key: value for key, value in made.items() if value is not ...}


@pytest.mark.parametrize(
    ("value", "metric", "instance"),
    [
        (collectd("memory", "percent", 41.5, instance="used"), "nodeMemoryUsed", ""),
        (collectd("memory", "percent", 41.5, instance="free"), "", ""),
        (collectd("df", "percent_bytes", 41.5, instance="used", of="data"), "nodeDiskUsed", "data"),
        (collectd("sensors", "temperature", 41.5, instance="temp1", of="core"), "nodeTemperature", "core/temp1"),
        (collectd("thermal", "temperature", 41.5, of="zone0"), "nodeTemperature", "zone0"),
        (collectd("load", "load", 41.5, values=[41.5, 1, 2]), "nodeLoad", ""),
    ],
)
def test_metrics_of_collectd_are_those_of_the_attributes(value, metric, instance):
    (found,) = metrics(json.dumps([value]).encode())
    assert found.metric == metric
    if metric:
        assert found == MetricRecord(US, "n7", metric, instance, 41.5)


def test_an_event_whose_level_only_the_common_schema_has_is_refused():
    """It would count without a severity, and no alarm about errors would come."""
    refused = logs(b'{"message": "boom", "log": {"level": "error"}, "service": {"name": "rcal"}}')
    assert "log.level: expected level, as Logstash writes it" in refused.detail
    (row,) = logs(b'{"message": "boom", "level": "error", "log": {"file": {"path": "/var/log/a"}}}')
    assert isinstance(row, LogRecord)


def test_an_event_of_metricbeat_is_refused_whole():
    assert metrics(b'{"@timestamp": "2026-11-23T10:00:00Z", "system": {"load": {"1": 3}}}').reason == "format"


def test_metrics_of_otlp_in_both_forms():
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    group.resource.attributes.add(key="host.name").value.string_value = "n7"
    group.resource.attributes.add(key="rack").value.string_value = "r01"
    used = group.scope_metrics.add().metrics.add(name="system.filesystem.utilization").gauge.data_points
    for state, value in (("used", 0.5), ("free", 0.25), ("used", float("nan"))):
        point = used.add(time_unix_nano=US * 1000, as_double=value)
        point.attributes.add(key="state").value.string_value = state
        point.attributes.add(key="mountpoint").value.string_value = "/data"
    heat = group.scope_metrics[0].metrics.add(name="hw.temperature").gauge.data_points
    heat.add(time_unix_nano=US * 1000, as_int=61)
    heat.add(time_unix_nano=US * 1000)
    in_json = json_format.MessageToJson(request).replace('"NaN"', "null")
    expected = [
        MetricRecord(US, "n7", "nodeDiskUsed", "/data", 50.0, "r01"),
        MetricRecord(US, "n7", "nodeTemperature", "", 61.0, "r01"),
    ]
    for value in (request.SerializeToString(), in_json.encode()):
        found = metrics(value)
        assert len(found) == 5
        assert [one for one in found if one.metric] == expected
    (bad,) = metrics(b'{"resourceMetrics": [1]}')
    assert (bad.why.reason, bad.why.path) == ("otlp-json", "$.resourceMetrics[0]")


def test_a_record_with_too_many_is_refused(monkeypatch):
    monkeypatch.setattr("facade.flows.logs.formats.MOST_ROWS", 2)
    assert logs(json.dumps(otlp_logs(RECORD, RECORD, RECORD)).encode()).reason == "too-many"
    assert len(logs(json.dumps(otlp_logs(RECORD, RECORD)).encode())) == 2


def test_names_are_short_and_move_no_cursor():
    (found,) = logs(b"<134>1 - n7 a\x1b[2Jb" + b"c" * 40 + b" - - - text")
    assert "\x1b" not in found.source.component
    (found,) = logs(json.dumps({"message": "x", "program": "p" * 1000, "eb_id": "eb-1; drop"}).encode())
    assert (len(found.source.component), found.source.observation) == (100, "")


@pytest.mark.parametrize(
    "form",
    [
        lambda text: json.dumps({"message": "x", "program": text, "eb_id": text}).encode(),
        lambda text: json.dumps({"message": "x", "level": text}).encode(),
        lambda text: f'<134>1 - h a 1 m [meta sequenceId="1"][x y="{text}"] t'.encode(),
        lambda text: json.dumps(otlp_logs(RECORD, rack=f"r{text}")).encode(),
    ],
    ids=["name", "level", "header", "attribute"],
)
def test_long_texts_are_not_kept(form):
    """The number of names and headers that are kept is bounded; so must be their length."""
    logs(form("first"))
    tracemalloc.start()
    try:
        for number in range(20):
            assert isinstance(logs(form(f"{number}{100_000 * 'x'}"))[0], LogRecord)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_message_whose_header_is_known_differs_in_time_number_and_text_only():
    before = f'<131>1 {TIME} n9 a 1 m [meta sequenceId="7" rack="r01"] one "] two'.encode()
    after = before.replace(b".250Z", b".750Z").replace(b'"7"', b'"8"').replace(b"one", b"three")
    (first,), (second,) = logs(before), logs(after)
    assert first.source is second.source
    assert (second.time - first.time, second.sequence, read(second).body) == (500_000, 8, 'three "] two')
    assert logs(after.replace(b'sequenceId="8"', b'sequenceId="x"'))[0].sequence == 0
    assert logs(after.replace(b"2026", b"year")).reason == "syslog"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_severity_of_each_ska_line_in_syslog_is_its_own(mark):
    header = f'<134>1 {TIME} n9 a 1 m [meta sequenceId="7"] {mark}'
    found = [logs(f"{header}1|{TIME}|{level}|main|f|a.py#1||boom".encode())[0] for level in ("INFO", "ERROR")]
    assert [LOG_SEVERITIES[one.source.severity] for one in found] == ["INFO", "ERROR"]
