"""The history of attributes: a record for each archive event, whoever listens, and no wait for the bus."""

import json
import math
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
import tango

from devices.in_memory import MemoryContext
from facade.archive.recording import HISTORY, REPEAT, HistoryRecorder, RecordingSink
from facade.kernel.bus.memory import MemoryBus, MemoryLog
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings, load_settings
from facade.kernel.icd.load import load
from facade.kernel.reading import Quality, Reading, Value
from facade.kernel.runtime.columns import ReadingColumn
from facade.kernel.runtime.composition import Server
from facade.sdp.bounded_writer import MOST_UNDER_WAY
from tests.support.waiting import HANG, until

ICD = load()
DEVICE = "mid-sdp/ingest/0001"


class Writer(MemoryBus):
    """A bus that confirms records, or fails with them, when a test says so."""

    def __init__(self) -> None:
        super().__init__(MemoryLog({HISTORY: 1}))
        self.is_stuck, self.failed = False, 0

    def settled(self, mark: int) -> bool:
        return not self.is_stuck

    def failures(self, topic: str) -> int:
        return self.failed

    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(one.value or b"") for one in self.read_all(HISTORY)]


class Bench:
    """A recorder whose records a test sees."""

    def __init__(self) -> None:
        self.writer, self.clock = Writer(), ManualClock()
        self.recorder = HistoryRecorder(self.writer, self.clock)

    def put(self, *values: Value, attribute: str = "heapRate") -> None:
        for value in values:
            self.recorder.put(DEVICE, attribute, Reading(value, self.clock.now_us()))

    def records(self) -> list[tuple[Any, bool]]:
        return [(one["value"], one.get("gap", False)) for one in self.writer.messages()]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1.5, 1.5),
        (2**53, 2**53),
        (True, True),
        ("ON", "ON"),
        ((1, 2), [1, 2]),
        (((0.5, math.nan),), [[0.5, "NaN"]]),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
    ],
)
@pytest.mark.parametrize("quality", Quality)
def test_a_value_is_written_with_its_time_and_quality(value: Value, written: object, quality: Quality) -> None:
    bench = Bench()
    bench.recorder.put(DEVICE, "heapRate", Reading(value, 1_795_282_430_250_000, quality))
    (record,) = bench.writer.read_all(HISTORY)
    assert record.key == b"mid-sdp/ingest/0001/heapRate"
    (message,) = bench.writer.messages()
    jsonschema.validate(message, ICD.messages["history"])
    assert (message["device"], message["attribute"], message["time"]) == (DEVICE, "heapRate", 1_795_282_430_250_000)
    assert (message["value"], message.get("quality", "VALID")) == (written, quality.value)


def test_the_first_record_of_a_life_says_that_values_may_be_missing() -> None:
    bench = Bench()
    bench.put(1.0, 2.0)
    assert bench.records() == [(1.0, True), (2.0, False)]


def test_a_value_is_repeated_with_its_own_time() -> None:
    bench = Bench()
    bench.put(1.0)
    for _ in range(25):
        bench.clock.sleep(REPEAT / 10)
        bench.recorder.perform()
    assert bench.records() == [(1.0, True), (1.0, False), (1.0, False)]
    assert len({one["time"] for one in bench.writer.messages()}) == 1


def test_what_finds_no_room_is_dropped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.put(1.0)
    bench.writer.is_stuck = True
    for count in range(MOST_UNDER_WAY):
        bench.put(count, attribute=f"other{count}")
        bench.recorder.perform()
    bench.put(2.0)
    bench.recorder.perform()
    assert (bench.recorder.records, bench.recorder.dropped) == (MOST_UNDER_WAY, 2)
    assert "history dropped records=1," in caplog.text
    bench.writer.is_stuck = False
    bench.recorder.perform()
    bench.put(3.0, 4.0)
    assert bench.records()[-2:] == [(3.0, True), (4.0, False)]


def test_a_dropped_value_is_repeated_later() -> None:
    bench = Bench()
    bench.writer.is_stuck = True
    bench.put(*range(MOST_UNDER_WAY + 1))
    bench.recorder.perform()
    bench.writer.is_stuck = False
    bench.clock.sleep(REPEAT)
    bench.recorder.perform()
    assert bench.records()[-1] == (MOST_UNDER_WAY, True)


def test_after_a_failure_each_attribute_says_that_values_may_be_missing() -> None:
    bench = Bench()
    bench.put(1.0)
    bench.put(1.0, attribute="lag")
    bench.writer.failed = 1
    bench.recorder.perform()
    bench.put(2.0)
    bench.put(2.0, attribute="lag")
    assert bench.records()[2:] == [(2.0, True), (2.0, True)]
    assert bench.recorder.dropped == 1


class Sink:
    """Has no follower, and may fail to push."""

    def __init__(self) -> None:
        self.pushed: list[Any] = []
        self.is_able = True

    def show(self, device: str, attribute: str, reading: Reading) -> bool:
        return False

    def show_column(self, column: ReadingColumn) -> list[bool]:
        return [False] * len(column.devices)

    def push(self, device: str, attribute: str, reading: Reading) -> bool:
        self.pushed.append(reading.value)
        return self.is_able


def test_what_is_pushed_is_written_once() -> None:
    bench, sink = Bench(), Sink()
    recording = RecordingSink(sink, bench.recorder, {(DEVICE, "image")})
    reading = Reading(1.0, 1_000_000)
    assert (recording.show(DEVICE, "heapRate", reading), recording.show(DEVICE, "image", reading)) == (True, False)
    sink.is_able = False
    assert not recording.push(DEVICE, "heapRate", reading)
    sink.is_able = True
    assert recording.push(DEVICE, "heapRate", reading)
    assert recording.push(DEVICE, "image", reading)
    assert len(sink.pushed) == 3
    assert bench.records() == [(1.0, True)]


def served(history: bool) -> Sequence[Record]:
    """Return the history of a device server that ran for a moment without a client."""
    log, clock = MemoryLog({name: topic.partitions for name, topic in ICD.topics.items()}), ManualClock()
    devices = {"SdpMaster": ["mid-sdp/control/0"], "SdpBus": ["mid-sdp/bus/0"]}
    settings = Settings(nodes=1, history=history)
    bus = MemoryBus(log)
    service = Server(ICD, settings, devices, Sink(), bus, instance="control", clock=clock, versions={"versionId": "1"})
    metrics = {one.name for one in service.metrics}
    assert (metrics >= {"sdp_history_records", "sdp_history_dropped_records"}) == history
    reader = service.event_loop._open()
    for _ in range(20):
        service.event_loop.cycle(reader)
        clock.sleep(0.5)
    return log.records(HISTORY)


def test_a_deployment_without_a_history_writes_none() -> None:
    assert not served(history=False)


def test_each_attribute_is_written_though_nobody_listens() -> None:
    keys = {(one.key or b"").decode() for one in served(history=True)}
    assert {"mid-sdp/control/0/State", "mid-sdp/control/0/Status", "mid-sdp/bus/0/connected"} <= keys


def test_the_environment_switches_it_on() -> None:
    assert not load_settings({}).history
    assert load_settings({"SDP_HISTORY": "true"}).history


@pytest.mark.forked
def test_the_history_has_what_a_client_reads() -> None:
    log = MemoryLog()
    with MemoryContext(log, ["SdpMaster", "SdpBus"], settings=Settings(history=True), timeout=HANG) as context:
        proxy = context.get_device("mid-sdp/control/0")
        until(lambda: proxy.State() != tango.DevState.UNKNOWN, "the device shows a state")

        def newest() -> dict[str, Any]:
            return {(one.key or b"").decode(): json.loads(one.value or b"")["value"] for one in log.records(HISTORY)}

        until(lambda: newest().get("mid-sdp/control/0/State") == str(proxy.State()), "the state is in the history")
        until(lambda: newest().get("mid-sdp/control/0/Status") == proxy.Status(), "the text is in the history")


def test_the_history_has_a_writer_of_its_own() -> None:
    """Snapshots of alerts wait for what is on the writer of the server; see `EffectsDelivery`."""
    opened: list[str] = []

    class Bus(MemoryBus):
        def open_writer(self, purpose: str) -> MemoryBus:
            opened.append(purpose)
            return MemoryBus(MemoryLog())

    devices = {"SdpBus": ["mid-sdp/bus/0"]}
    versions = {"versionId": "1"}
    settings, clock, bus = Settings(history=True), ManualClock(), Bus(MemoryLog())
    service = Server(ICD, settings, devices, Sink(), bus, instance="control", clock=clock, versions=versions)
    assert opened == ["history"]
    assert isinstance(service.sink, RecordingSink)


def test_a_value_that_json_cannot_carry_holds_up_no_other_one() -> None:
    bench = Bench()
    bench.put(1.0, 2.0)
    bench.put("\ud800")
    bench.put(3.0)
    assert bench.records() == [(1.0, True), (2.0, False), (3.0, True)]
    assert bench.recorder.dropped == 1
