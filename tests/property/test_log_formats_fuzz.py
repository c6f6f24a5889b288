"""Whatever bytes come as logs or metrics: nothing raises, and what is found can be written as a summary."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from facade.flows.logs.formats import decode
from facade.flows.logs.messages import LogSummary, decode_summary
from facade.flows.logs.records import BadRow, body_of
from facade.flows.logs.sums import LogSums, MetricSums, summaries
from facade.kernel.bus.port import OffsetRange
from facade.kernel.outcome import RecordRejected, Suppressed

NOW = 1_795_276_800_000_000
BEGINNINGS = (
    b"<13>Nov 23 10:00:00 ",
    b"<13>Nov  3 10:00:00 h a[",
    b"<13>2026-11-23T10:00:00 ",
    b"",
    b"<13>1 ",
    b"<13>1 - h a - - ",
    b"1|",
    b"\n",
    b"[",
    b"{",
    b'{"resourceLogs":',
    b'{"message":"x",',
)
TEXT = st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
NAMES = ("@timestamp", "message", "host", "severity", "level", "rack", "eb_id", "program", "logger_name")
RESOURCE = ("resource", "scopeLogs")
LISTS = ("values", "time", "host", "plugin", "type", "plugin_instance", "type_instance")


def fields(names):
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, JSON))


VALUES = (
    st.builds(bytes.__add__, st.sampled_from(BEGINNINGS), st.binary(max_size=60))
    | fields(NAMES).map(lambda one: json.dumps(one).encode())
    | st.lists(fields(LISTS), max_size=3).map(lambda one: json.dumps(one).encode())
    | st.lists(fields(RESOURCE), max_size=2).map(lambda one: json.dumps({"resourceLogs": one}).encode())
    | st.lists(TEXT.filter(lambda text: " " not in text), min_size=6, max_size=9).map(
        lambda parts: ("<13>1 " + " ".join(parts)).encode("utf-8", "surrogatepass")
    )
)


WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":[]"), min_size=1, max_size=20)


@given(
    priority=st.integers(0, 191),
    day=st.integers(1, 31),
    host=WORD,
    tag=WORD,
    process=st.none() | st.integers(0, 10**6),
    text=st.text(st.characters(exclude_categories=["Cs"])).filter(lambda one: not one.startswith(("1|", "\ufeff"))),
)
def test_a_message_of_the_older_syslog_is_the_same_record_as_in_the_newer_form(priority, day, host, tag, process, text):
    old = f"<{priority}>Nov {day:2d} 10:00:00 {host} {tag}{'' if process is None else f'[{process}]'}: {text}"
    new = f"<{priority}>1 - {host} {tag} {process or '-'} - - {text}"
    ((one,), (other,)) = (decode("logs", value.encode())[1] for value in (old, new))
    assert one.source is other.source
    assert (one.time, one.sequence, body_of(one.body)) == (0, 0, body_of(other.body))


@given(
    time=st.datetimes(), level=st.sampled_from(["debug", "INFO", "warn", "loud"]), host=TEXT, program=TEXT, text=TEXT
)
def test_an_event_of_logstash_is_the_same_record_in_both_of_its_forms(time, level, host, program, text):
    common = {"@timestamp": f"{time.replace(year=2026).isoformat()}Z", "message": text, "level": level}
    common["program"] = program
    (one,), (other,) = (decode("logs", json.dumps({**common, "host": of}).encode())[1] for of in (host, {"name": host}))
    assert (one.source, one.time, one.body) == (other.source, other.time, other.body)


@given(VALUES, st.sampled_from(["logs", "metrics"]))
def test_nonsense_is_a_result(value, topic):
    _, rows = decode(topic, value)
    if isinstance(rows, RecordRejected | Suppressed):
        assert rows.reason
        return
    sums = LogSums() if topic == "logs" else MetricSums()
    for row in rows:
        if isinstance(row, BadRow):
            again = decode(topic, row.value)[1]
            assert [one.why.reason for one in again] == [row.why.reason], "a dead letter has what is bad, and only that"
        else:
            sums.add(row, NOW)
    for summary in summaries(sums, "w", topic, 0, OffsetRange("x", 0, 1), 100_000):
        assert isinstance(decode_summary(msgspec.json.encode(summary)), LogSummary), "readers take it"
