"""Whatever bytes come as logs or metrics: nothing raises, and what is found can be written as a summary."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from facade.bus.port import Span
from facade.flows.logs.formats import decode
from facade.flows.logs.messages import LogSummary, decode_summary
from facade.flows.logs.records import BadRow
from facade.flows.logs.sums import LogSums, MetricSums
from facade.outcome import Rejected, Suppressed

NOW = 1_795_276_800_000_000
BEGINNINGS = (b"", b"<13>1 ", b"<13>1 - h a - - ", b"1|", b"\n", b"[", b"{", b'{"resourceLogs":', b'{"message":"x",')
TEXT = st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
NAMES = ("message", "host", "severity", "level", "log", "service", "rack", "eb_id", "program")
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


@given(VALUES, st.sampled_from(["logs", "metrics"]))
def test_nonsense_is_a_result(value, topic):
    _, rows = decode(topic, value)
    if isinstance(rows, Rejected | Suppressed):
        assert rows.reason
        return
    sums = LogSums() if topic == "logs" else MetricSums()
    for row in rows:
        if isinstance(row, BadRow):
            again = decode(topic, row.value)[1]
            assert [one.why.reason for one in again] == [row.why.reason], "a dead letter has what is bad, and only that"
        else:
            sums.add(row, NOW)
    for summary in sums.summaries("w", topic, 0, Span("x", 0, 1), 100_000):
        assert isinstance(decode_summary(msgspec.json.encode(summary)), LogSummary), "readers take it"
