"""Logs and metrics from the topics to what SdpLogs shows, on the simulation's brokers."""

import itertools
import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from facade.flows.alerts.messages import decode_alert
from facade.flows.logs import flow as logs_flow
from facade.flows.logs import sums
from facade.flows.logs.export import NAMESPACE, Line, encode
from facade.flows.logs.flow import MOST_COMPONENTS, LogFlow, LogsView, ShipperNumbers
from facade.flows.logs.messages import LogCount, LogSummary, ShipperSequence, decode_summary
from facade.flows.logs.records import LogRecord, MetricRecord, source_of
from facade.flows.logs.sums import LATE, LogSums, MetricSums, summaries
from facade.flows.logs.worker import log_worker
from facade.kernel.bus.dead_letters import original
from facade.kernel.bus.port import OffsetRange, Record
from facade.kernel.clock import ManualClock
from facade.kernel.icd.load import load
from facade.kernel.outcome import USED
from facade.kernel.reading import Quality
from facade.kernel.runtime.accounts import OVERLAP, AccountEntry
from facade.sdp.messages import NodeMetric
from tests.support.server_in_memory import serve
from tests.support.simulated_bus import MemoryBroker, MemoryTransactionalLog

ICD = load()
NOW = 1_795_276_800.0
EB = "eb-test-20261123-00001"


class Bench:
    """A worker, a flow and a view."""

    def __init__(self) -> None:
        self.broker = MemoryBroker(ManualClock(NOW))
        self.clock = self.broker.clock
        log = MemoryTransactionalLog(self.broker, "logs", "metrics", group="logs-aggregate")
        self.worker = log_worker(log, ICD, slot="0", clock=self.clock, interval=0.2)
        self.flow = LogFlow()
        self._folded = 0
        bus = SimpleNamespace(health=SimpleNamespace(connected=True, last_error=""))
        classes = {(device := "mid-sdp/logs/0"): "SdpLogs"}
        server = SimpleNamespace(icd=ICD, bus=bus, classes=classes, version="1", has_read=lambda *_: True)
        self.view = LogsView(device, server, self.flow)

    def send(
        self, *values: str | bytes, topic: str = "logs", key: bytes | None = b"r01/n7", partition: int = 0
    ) -> None:
        for value in values:
            raw = value.encode() if isinstance(value, str) else value
            self.broker.append(Record(topic=topic, key=key, value=raw, partition=partition))

    def work(self, steps: int = 6) -> None:
        for _ in range(steps):
            self.worker.step()
            self.clock.sleep(0.1)
        for record in self.broker.read("logs.summary")[self._folded :]:
            assert self.flow.fold(record, count=True) is USED
            self._folded += 1

    def totals(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for record in self.broker.read("accounts"):
            entry = msgspec.json.decode(record.value, type=AccountEntry)
            for name in ("consumed", "used", "late", "suppressed", "dead_lettered"):
                found[name] += getattr(entry, name)
            found.update(entry.reasons)
        return +found

    def shown(self) -> dict[str, Any]:
        self.clock.sleep(1.0)
        return {name: reading.value for _, name, reading in self.view.readings(self.clock.now_us())}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def syslog(priority: int = 131, component: str = "flagger", data: str = "-") -> str:
    return f"<{priority}>1 - n7 {component} - - {data} boom"


def test_records_of_all_kinds_are_summed_up_once(bench):
    bench.send(*[syslog(data=f'[s eb_id="{EB}"]')] * 3, syslog(134), "1|2026-11-21T15:00:00Z|WARN|m|f|x.py#1||late")
    bench.send(syslog(134, "other"), key=b"r02/n8", partition=1)
    bench.send("nonsense", syslog(134), key=None, partition=2)
    batch = {"resourceLogs": [{"scopeLogs": [{"scope": {"name": "lib"}, "logRecords": [{"severityNumber": 9}] * 50}]}]}
    bench.send(json.dumps(batch), key=b"\xff\x00", partition=3)
    bench.work()
    assert bench.totals() == {"consumed": 58, "used": 56, "late": 1, "dead_lettered": 1, "format": 1}
    (letter,) = bench.broker.read("dead-letters")
    assert original(letter).value == b"nonsense"
    state = bench.flow.state
    assert {name: (one.records, one.errors) for name, one in state.components.items()} == {
        **{"flagger": (5, 3), "x.py": (1, 0), "other": (1, 0), "lib": (50, 0)},
    }
    # Where a record does not name its rack, its key does, or one before; keys that are no names say nothing.
    assert {name: one.records for name, one in state.locations.items()} == {"r01/n7": 7, "": 50}
    assert state.observations[EB].errors == 3
    shown = bench.shown()
    assert (shown["records"], shown["errors"], shown["late"]) == (57, 3, 1)
    assert dict(zip(shown["severities"], shown["severityRecords"], strict=True)) == {
        **dict.fromkeys(("UNSPECIFIED", "TRACE", "DEBUG", "FATAL"), 0),
        **{"INFO": 53, "WARN": 1, "ERROR": 3},
    }
    assert shown["recordsRate"] == 5.6, "of 10 s, without the late one"
    assert shown["worstComponents"] == ("flagger: 3 errors of 5 min, 3 of 20 s",)
    assert shown["worstLocations"] == ("r01/n7: 3 errors of 7 records",)
    assert shown["observations"] == (f"{EB}: 3 records, 3 errors",)
    assert shown["newestErrors"][0].endswith("ERROR flagger on n7: boom")
    assert shown["State"] == "ON"


def test_the_rack_of_a_host_is_that_of_the_newest_key_which_names_it(bench):
    bench.send("1|2026-12-21T15:00:00Z|WARN|m|f|x.py#1||no host", key=b"r09/")
    for key in (None, b"4711", b"r01/n7", None, b"r02/n7", None):
        bench.send(syslog(), key=key)
        bench.work()
    locations = {name: one.records for name, one in bench.flow.state.locations.items()}
    assert locations == {"r09": 1, "n7": 2, "r01/n7": 2, "r02/n7": 2}


def test_a_rate_is_not_shown_when_nobody_is_heard(bench):
    bench.send(syslog())
    bench.work()
    bench.clock.sleep(20.0)
    rates = ("recordsRate", "errorsRate", "severityRates")

    def qualities() -> set[Quality]:
        return {reading.quality for _, name, reading in bench.view.readings(bench.clock.now_us()) if name in rates}

    assert qualities() == {Quality.VALID}
    bench.clock.sleep(20.0)
    assert qualities() == {Quality.INVALID}, "0 may be true, or the worker is dead"
    assert bench.shown()["records"] == 1


def test_a_bad_part_of_a_batch_is_set_aside_alone(bench):
    good = {"values": [1.5], "time": NOW, "host": "n7", "plugin": "load", "type": "load"}
    lists = [good, {"values": "x"}, {**good, "plugin": "cpu"}, {**good, "host": ""}]
    bench.send(json.dumps(lists), topic="metrics", key=b"-")
    bench.send(b"{}", topic="metrics")
    bench.work()
    reasons = {"collectd": 1, "not-shown": 1, "no-host": 1, "format": 1}
    assert bench.totals() == {"consumed": 5, "used": 1, "dead_lettered": 2, "suppressed": 2, **reasons}
    assert original(bench.broker.read("dead-letters")[0]).value == b'[{"values": "x"}]'


def test_metrics_of_nodes_have_limits_and_grow_old(bench):
    def measured(host: str, plugin: str, kind: str, value: float, which: str = "", of: str = "") -> dict[str, Any]:
        more = {"plugin_instance": of, "type_instance": which}
        return {"values": [value], "time": NOW, "host": host, "plugin": plugin, "type": kind, **more}

    values = [measured("n7", "thermal", "temperature", 60.0, of="zone0"), measured("n8", "load", "load", 3.0)]
    values += [measured("n7", "thermal", "temperature", 90.0, of="zone1")]
    values += [measured("n7", "df", "percent_bytes", 86.0, "used", "root")]
    bench.send(json.dumps(values), topic="metrics")
    bench.work()
    bench.clock.sleep(1.0)
    readings = {name: reading for _, name, reading in bench.view.readings(bench.clock.now_us())}
    assert readings["nodes"].value == ("n7", "n8")
    assert readings["nodeTemperature"].value[0] == 90.0
    assert readings["nodeTemperature"].value[1] != readings["nodeTemperature"].value[1]
    assert readings["nodeLoad"].value[1] == 3.0
    assert (readings["temperature"].value, readings["temperature"].quality) == (90.0, Quality.ALARM)
    assert readings["temperature"].time == NOW * 1e6
    assert (readings["diskUsed"].value, readings["diskUsed"].quality) == (86.0, Quality.WARNING)
    assert readings["memoryUsed"].quality is Quality.INVALID
    assert readings["State"].value == "ALARM"
    assert "temperature of n7: 90.0" in readings["Status"].value
    bench.clock.sleep(61.0)
    readings = {name: reading for _, name, reading in bench.view.readings(bench.clock.now_us())}
    assert readings["nodes"].value == ()
    assert readings["temperature"].quality is Quality.INVALID
    assert readings["State"].value == "ON"


def counted(component: str = "a", count: int = 1, severity: int = 3, **more: Any) -> LogSummary:
    one = LogCount(component=component, severity=severity, count=count, time_min=0, time_max=0, **more)
    return summary(counts=[one])


def summary(begin: int = 0, end: int = 1, part: int = 0, log: str = "x", **more: Any) -> LogSummary:
    where = {"worker": "w", "stream": "logs", "partition": 0, "log": log}
    return LogSummary(**where, offset_from=begin, offset_to=end, part=part, **more)


def written(one: LogSummary, key: bytes = b"logs/0") -> Record:
    return Record(topic="logs.summary", key=key, value=msgspec.json.encode(one), timestamp_us=round(NOW * 1e6))


MISSING = {
    # ranges of summaries; which offsets are in no total
    "none": ([(0, 100), (100, 150), (150, 200)], []),
    "a refused part": ([(0, 100), (0, 150), (150, 200)], ["logs, partition 0: offsets 100 to 149 were not taken"]),
    "a summary that never came": ([(0, 100), (200, 300)], ["logs, partition 0: offsets 100 to 199 were not taken"]),
}


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("case", MISSING)
def test_records_that_no_summary_counts_are_named_with_their_number(case, contiguous):
    """Older workers write no summary of a transaction without usable records."""
    ranges, wanted = MISSING[case]
    flow, found = LogFlow(), []
    for one in ranges:
        flow.fold(written(msgspec.structs.replace(summary(*one), contiguous=contiguous)), count=True)
        found += flow.lost_before()
    wanted = wanted if contiguous else []
    assert [one.text.partition(": up to")[0] for one in found] == wanted
    assert [one.records for one in found] == [50 if case == "a refused part" else 100] * len(wanted)
    assert list(flow.lost_before()) == []


def test_each_part_of_a_log_has_a_summary_also_without_usable_records(bench):
    for value in (syslog(), "nonsense", syslog()):
        bench.send(value)
        bench.work()
    ranges = [decode_summary(one.value) for one in bench.broker.read("logs.summary")]
    assert [(one.offset_from, one.offset_to, one.contiguous) for one in ranges] == [
        *((0, 1, True), (1, 2, True), (2, 3, True)),
    ]
    assert list(bench.flow.lost_before()) == []


@pytest.mark.parametrize(
    ("runs", "holes"),
    [
        ([(1, 5), (6, 9)], 0),
        ([(5, 9)], 0),  # what came before is not known
        ([(1, 5), (8, 9)], 2),
        ([(1, 5), (4, 6), (7, 7)], 0),  # sent again
        ([(1, 5), (1, 3), (4, 5)], 0),  # started again
        ([(2, 5), (1, 1), (3, 3)], 1),
        ([(1, 2), (9, 9), (5, 6), (3, 3)], 3),  # by another way; 4, 7 and 8 are missing still
        ([(1, 2), (9, 9), (3, 10), (11, 11)], 0),
    ],
)
def test_numbers_of_shippers_tell_what_is_missing(runs, holes):
    numbers = ShipperNumbers()
    for run in runs:
        numbers.add("n7", [run], NOW, silent_since=NOW - 3600)
    assert numbers.holes == holes
    flow = LogFlow()
    flow.add(summary(sequences=[ShipperSequence(shipper="n7", runs=runs)]), NOW)
    assert flow.state.numbers == numbers


def speak(flow: LogFlow, at: float, seconds: float, *names: str, **more: Any) -> float:
    """Let components write each 10 s."""
    until = at + seconds
    while at < until:
        for name in names:
            flow.add(counted(name, **more), at)
        at += 10.0
    return at


def test_who_wrote_regularly_is_missed_while_others_write():
    flow = LogFlow()
    flow.add(counted("once"), NOW)
    at = speak(flow, NOW, 60, "a", "b")
    assert flow.silent() == []
    at = speak(flow, at, 50, "b")
    assert flow.silent() == ["a"]
    speak(flow, at, 1, "a", late=1)
    assert flow.silent() == ["a"], "what comes late is no sign of life"
    at = speak(flow, at, 1, "a")
    assert flow.silent() == []
    speak(flow, at, 3700, "b")
    assert flow.silent() == [], "forgotten after an hour"


def test_processes_of_the_facade_log_when_something_happens_and_their_silence_says_nothing():
    flow = LogFlow()
    at = speak(flow, NOW, 60, f"{NAMESPACE}/controller", "b")
    speak(flow, at, 50, "b")
    assert flow.silent() == []


def test_numbers_of_otlp_show_what_is_missing_of_each_process():
    bench = Bench()

    def send(service: str, *numbers: int) -> None:
        lines = [Line(number, round(NOW * 1e9), 20, "a", "text") for number in numbers]
        bench.send(encode(lines, {"service.name": service, "host.name": "n7"}))

    send("one", 1, 2, 3)
    send("two", 1, 2)
    send("one", 6, 7)
    bench.work()
    assert bench.shown()["holes"] == 2
    send("one", 1, 2)  # it was started again
    send("two", 3)
    bench.work()
    assert bench.shown()["holes"] == 2


@pytest.mark.parametrize("number", [2**53, 10**17, 10**30])
@pytest.mark.parametrize("count", [1, 300])
def test_a_number_or_name_that_no_summary_may_have_hides_no_other_record(bench, number, count):
    usual = '<134>1 2026-11-21T15:00:00.000000Z n7 flagger 1 m [meta sequenceId="{}"] boom'
    bench.send(*[usual.format(one + 1) for one in range(count)], usual.format(number))
    bench.send(encode([Line(1, 0, 40, "x", "boom")], {"service.namespace": "n" * 100, "service.name": "s" * 100}))
    bench.work()
    assert bench.shown()["records"] == count + 2
    assert bench.flow.state.numbers.shippers["n7"].newest == count


def test_errors_that_come_much_more_often_rise():
    flow = LogFlow()
    at = speak(flow, NOW, 300, "steady", severity=5, count=5)
    assert set(flow.rising(at)) == set(), "as many as before"
    flow.add(counted("quiet", 9, 5), at)
    assert set(flow.rising(at)) == set(), "too few to bother anybody"
    flow.add(counted("quiet", 1, 6), at)
    flow.add(counted("steady", 100, 5), at)
    flow.add(counted("chatty", 100, 4), at)
    assert set(flow.find(round(at * 1e6))) == {("errorsRising", "quiet"), ("errorsRising", "steady")}
    assert flow.find(round((at + 40) * 1e6)) == {}


def test_the_name_that_was_silent_longest_makes_room_for_a_new_one():
    """With one name for each pod or job, the new ones are those that matter; before, they were merged for ever."""
    flow = LogFlow()
    speak(flow, NOW, 60, "regular")
    for number in range(MOST_COMPONENTS - 1):
        flow.add(counted(f"job-{number}", 2, 5, host=f"n{number}"), NOW)
    at = speak(flow, NOW + 4000, 60, "regular", "a-new-one")
    assert {"regular", "a-new-one"} <= flow.state.components.keys()
    assert "job-0" not in flow.state.components
    for _ in range(3):
        again = LogFlow()
        again.restore(json.loads(json.dumps(flow.as_dict())))
        flow = again
    at = speak(flow, at, 60, "regular", *(f"pod-{number}" for number in range(100)))
    assert not any(f"job-{number}" in flow.state.components for number in range(101))
    assert flow.state.components["(other)"].records == 202 == flow.state.merged
    assert flow.state.components["(other)"].errors == 202
    assert sum(one.records for one in flow.state.components.values()) == sum(flow.state.severities)
    speak(flow, at, 60, "regular")
    assert len(flow.silent()) == 101, "a new one is missed as others are"
    assert len(flow.state.components) == MOST_COMPONENTS + 1


def test_a_new_location_takes_the_place_of_the_one_that_was_silent_longest(monkeypatch):
    monkeypatch.setattr(logs_flow, "MOST_LOCATIONS", 3)
    flow = LogFlow()
    for host in ("n0", "n1", "n2", "n0", "n3", "n4"):
        flow.add(counted("c", 1, 5, host=host), NOW)
    records = {name: one.records for name, one in flow.state.locations.items()}
    assert records == {"n0": 2, "(other)": 2, "n3": 1, "n4": 1}


def test_a_shipper_that_was_silent_for_long_makes_room_for_a_new_one(monkeypatch):
    monkeypatch.setattr(logs_flow, "MOST_SHIPPERS", 2)
    flow = LogFlow()
    for at, shipper, first in (
        (0, "a", 1), (0, "b", 1), (1800, "c", 1), (1801, "c", 3),  # nobody has left: c is not followed
        (1802, "b", 2), (3700, "c", 9), (3701, "c", 11), (3702, "b", 4),
    ):  # fmt: skip
        flow.add(summary(sequences=[ShipperSequence(shipper=shipper, runs=[(first, first)])]), NOW + at)
    assert (flow.state.numbers.holes, set(flow.state.numbers.shippers)) == (2, {"b", "c"})


def test_a_transaction_keeps_a_bounded_number_and_says_what_it_merged(monkeypatch):
    monkeypatch.setattr(sums, "MOST_GROUPS", 3)
    found = LogSums()
    us = round(NOW * 1e6)
    for number in range(5):
        assert not found.add(LogRecord(source_of(f"c{number}", 17), us, f"e\n{number}"), us)
    assert found.add(LogRecord(source_of("c0", 17), us - LATE - 1), us), "late"
    metrics = MetricSums()
    for number in range(5):
        metrics.add(MetricRecord(us, f"n{number}", "nodeLoad", "", 1.0), us)
    metrics.add(MetricRecord(us + 10**9, "n0", "nodeLoad", "", 2.0), us)
    metrics.add(MetricRecord(us - 1, "n0", "nodeLoad", "", 3.0), us)
    span = OffsetRange("x", 0, 6)
    parts = [msgspec.json.encode(one) for one in summaries(found, "w", "logs", 0, span, 300)]
    assert len(parts) > 1, "larger ones are cut"
    flow = LogFlow()
    for raw in parts:
        one = decode_summary(raw)
        assert not flow.take(one)
        flow.add(one, NOW)
    records = {name: one.records for name, one in flow.state.components.items()}
    assert records == {"c0": 2, "c1": 1, "c2": 1, "(other)": 2}
    assert flow.state.merged == 2
    assert flow.state.errors[-2].endswith(r"c4: e\u000a4")
    (made,) = summaries(metrics, "w", "metrics", 0, span, 100_000)
    assert made.merged == 2
    first = made.metrics[0]
    assert (first.host, first.time, first.value) == ("n0", us, 2.0), "no time is yet to come"


def test_a_summary_that_contradicts_itself_is_refused():
    backwards = summary(sequences=[ShipperSequence(shipper="s", runs=[(1, 5), (9, 7)])])
    for one in (written(summary(), b"logs/1"), written(summary(5, 4)), written(backwards)):
        assert LogFlow().fold(one, count=True).reason == "inconsistent"


def test_a_restart_goes_on_with_what_was_counted():
    flow, after, record = LogFlow(), LogFlow(), written(counted(count=7))
    flow.fold(record, count=True)
    after.restore(json.loads(json.dumps(flow.as_dict())))
    assert after.fold(record, count=False) is USED, "given again, to rebuild what needs to be"
    assert after.fold(record, count=True).reason == OVERLAP
    assert after.as_dict() == flow.as_dict()


def test_a_disk_that_fills_is_an_alarm_until_its_host_says_that_it_has_room():
    logs = serve("logs")
    offsets = itertools.count()

    def send(host: str, used: float, disk: str = "/") -> Record:
        at = next(offsets)
        one = NodeMetric(host=host, metric="nodeDiskUsed", instance=disk, value=used, time=logs.clock.now_us())
        record = written(summary(at, at + 1, metrics=[one]))
        return replace(record, timestamp_us=logs.clock.now_us())

    def told() -> list[tuple[str, str, str]]:
        found = [decode_alert(one.value) for one in logs.log.records("alerts")]
        return [(one.source, one.state, one.severity) for one in found]

    logs.run(10, [send("n7", 50.0), send("kafka-1", 70.0), send("kafka-1", 90.0, "/data"), send("kafka-2", 96.0)])
    raised = [("kafka-1", "ACTIVE", "WARNING"), ("kafka-2", "ACTIVE", "ALARM")]
    assert sorted(told()) == raised
    logs.run(120)
    assert sorted(told()) == raised, "a host that is silent may have a full disk"
    logs.run(10, [send("kafka-1", 60.0, "/data")])
    assert told()[2:] == [("kafka-1", "CLEARED", "WARNING")]
