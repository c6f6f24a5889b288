"""A window is whole, or it is not VALID: worker and device server on the simulation's brokers, with the time of a test.

After each step of the worker each value that is shown is compared with the log. Nothing here depends on speed.
"""

import json
from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from facade.flows.telemetry.composition import TelemetryFlow
from facade.flows.telemetry.ledger import WindowLedger
from facade.flows.telemetry.plan import plan
from facade.flows.telemetry.view import TelemetryView
from facade.flows.telemetry.worker import BatchLimits, telemetry_worker
from facade.kernel.bus.port import Record
from facade.kernel.clock import SECOND, ManualClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.outcome import RecordRejected
from facade.kernel.reading import Quality
from facade.sdp.messages import Watermark
from facade.sdp.racks import Racks
from tests.support.frames import expanded
from tests.support.heaps import BASE_US, encoded, heap
from tests.support.simulated_bus import MemoryBroker, MemoryTransactionalLog
from tests.support.topics_in_memory import Upstream

ICD = load()
RACKS = Racks(Settings().rack_size, 1)
PLAN = plan(ICD, "ingest.heaps")
NODES = range(4)
SUMMARIES = range(ICD.topics["ingest.summary"].partitions)


class Rig:
    """A worker of heaps, and a device server of some nodes and of all together."""

    def __init__(self, fault=lambda: None) -> None:
        self.clock = ManualClock(BASE_US / 1e6)
        self.broker = MemoryBroker(self.clock)
        self._fault = fault
        self.start_worker()
        ledger = WindowLedger(PLAN, NODES, per_group=True, over_all=True, summaries=SUMMARIES)
        views = [("SdpMaster", {"None": None}), ("SdpIngestNode", {str(node): node for node in NODES})]
        shown = [TelemetryView(ICD.classes[name], PLAN, devices) for name, devices in views]
        self.flow = TelemetryFlow("ingest.summary", {PLAN.topic: PLAN}, {PLAN.topic: ledger}, shown, None, RACKS)
        self.ledger = ledger
        self.shown = {}
        """Readings of heapRate by device."""
        self.valid = set()
        """Devices and windows that were VALID once."""
        self._read = Counter()
        self.sequences = Counter()
        self.sent = Counter()
        """Records by device and window."""

    def start_worker(self) -> None:
        self.log = MemoryTransactionalLog(self.broker, PLAN.topic, group="aggregate", fault=self._fault)
        self.worker = telemetry_worker(
            self.log, ICD, Settings(nodes=4), slot="0", clock=self.clock, limits=BatchLimits(retry=0.01)
        )

    def send(self, node: int, *, ahead: float = 0.0, partition: int | None = None) -> None:
        at = self.clock.now() - BASE_US / 1e6 + ahead
        (value,) = encoded(heap(node, self.sequences[node], at))
        self.sequences[node] += 1
        window = round(at * 1e6) // 1_000_000
        self.sent.update([(str(node), window), ("None", window)])
        where = node % 2 if partition is None else partition
        self.broker.append(Record(topic=PLAN.topic, key=str(node).encode(), value=value, partition=where))

    def work(self) -> None:
        """Let the worker do a step, and the device server take what came."""
        self.worker.step()
        self.look()

    def look(self) -> None:
        for to in SUMMARIES:
            for record in self.broker.read_from("ingest.summary", to, self._read[to]):
                assert not isinstance(outcome := self.flow.fold(record, count=True), RecordRejected), outcome
                self._read[to] = record.offset + 1
        for device, name, reading in expanded(self.flow.readings(self.clock.now_us())):
            if name == "heapRate":
                self.shown[device] = reading
        self.judge()

    def judge(self) -> None:
        """Compare what is shown as VALID with what was sent."""
        for device, reading in self.shown.items():
            if reading.quality is Quality.VALID:
                window = reading.time // 1_000_000 - BASE_US // 1_000_000
                assert reading.value == self.sent[device, window], f"{device} of {window}"
                self.valid.add((device, window))

    def run(self, seconds: float, send=lambda: None, step: float = 0.08) -> None:
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            send()
            self.work()
            self.clock.sleep(step)

    def watermarks(self) -> list[tuple[int, float]]:
        """Return partitions and watermarks in their order, on one partition of the summary topic."""
        found = []
        for record in self.broker.read_from("ingest.summary", 0, 0):
            if record.key.startswith(b"watermark/"):
                one = msgspec.json.decode(record.value, type=Watermark)
                found.append((one.partition, (one.read_to - BASE_US) / 1e6))
        return found


@pytest.fixture
def rig() -> Rig:
    return Rig()


def all_nodes(rig, ahead=0.0):
    def send():
        for node in NODES:
            rig.send(node, ahead=ahead if node == 3 else 0.0)

    return send


def test_each_window_is_shown_once_the_partitions_are_read(rig):
    """And soon: within the allowed disorder and a step, by nobody's clock but the brokers'."""
    seen = {}

    def look():
        all_nodes(rig)()
        for device, reading in rig.shown.items():
            seen.setdefault((device, reading.time // 1_000_000 - BASE_US // 1_000_000), rig.clock.now() - BASE_US / 1e6)

    rig.run(8.0, look)
    late = {key: at - key[1] - 1.0 for key, at in seen.items()}
    assert {(str(device), window) for device in (None, *NODES) for window in range(1, 6)} <= rig.valid
    assert all(after < 0.3 for after in late.values()), late
    counts = Counter(partition for partition, _ in rig.watermarks())
    assert all(6 <= counts[partition] <= 9 for partition in (0, 1)), f"one for each window: {counts}"


def test_windows_are_shown_at_the_watermark_that_closes_them_however_soon_it_follows_another(rig):
    """Two workers write theirs some 20 ms apart, and the next cycle may be a quarter of a second later."""
    rig.run(3.05, all_nodes(rig))
    good = next(one for one in rig.broker.read_from("ingest.summary", 0, 0) if one.key.startswith(b"watermark/"))
    rig.clock.sleep(0.1)
    for partition, shown in ((0, [2, 1, 2, 1]), (1, [2, 2, 2, 2])):
        change = {"partition": partition, "read_to": BASE_US + 3_100_000}
        rig.clock.sleep(0.02)
        for to in SUMMARIES:
            rig.flow.fold(
                replace(
                    good,
                    key=PLAN.watermark_key(partition).encode(),
                    value=json.dumps(json.loads(good.value) | change).encode(),
                    timestamp_us=rig.clock.now_us(),
                    partition=to,
                ),
                count=True,
            )
        rig.look()
        assert [(rig.shown[str(node)].time - BASE_US) // SECOND for node in NODES] == shown


def test_of_windows_that_close_together_the_newest_is_shown(rig):
    """Rule 7: the worker pauses for more than two windows; nobody gets the older ones one after the other."""
    seen, send = [], all_nodes(rig)

    def look():
        send()
        window = (rig.shown["0"].time - BASE_US) // SECOND if "0" in rig.shown else -1
        seen.extend([window] if window not in seen else [])

    rig.run(3.3, look)
    for _ in range(30):
        send()
        rig.clock.sleep(0.08)
    rig.run(0.3, look)
    assert seen == [-1, 0, 1, 2, 4]
    rig.run(0.5)
    assert rig.ledger.totals.count.sum() + rig.ledger.totals.late.sum() == rig.sequences.total()


def test_partitions_without_records_close_windows_in_time(rig):
    """Node 0 alone sends, then nobody does: who asks learns that nothing came."""
    rig.run(4.0, lambda: rig.send(0))
    assert {("0", window) for window in (1, 2)} <= rig.valid
    before = len(rig.watermarks())
    rig.run(1.0)
    assert ("0", 3) in rig.valid, "the last window, of which part was sent"
    rig.run(4.0)
    assert {partition for partition, _ in rig.watermarks()[before:]} == {0, 1}
    assert rig.ledger.read_to() / 1e6 > rig.clock.now() - 1.5
    assert rig.shown["0"].quality is Quality.INVALID
    assert not list(rig.ledger.standing_still(rig.clock.now_us()))


@pytest.mark.parametrize(("pause", "stops", "silent"), [(1.5, True, False), (1.5, False, True), (4.0, True, True)])
def test_a_node_is_silent_by_what_was_read_and_not_by_the_time_since(rig, pause, stops, silent):
    """Its records miss for a moment, and then its worker stops: nobody knows whether it sends."""
    rig.run(4.0, lambda: [rig.send(node) for node in NODES])
    rig.run(pause, lambda: [rig.send(node) for node in (0, 2)])
    if stops:
        rig.worker.step = lambda: None
    rig.run(6.0, lambda: [rig.send(node) for node in (0, 2)])
    assert rig.ledger.is_silent(1, 2 * SECOND) is silent
    assert rig.ledger.is_silent(0, 2 * SECOND) is False


def test_partitions_are_asked_for_their_ends_only_where_nothing_comes(rig, monkeypatch):
    asked = []
    ask = rig.log.ask_ends
    monkeypatch.setattr(rig.log, "ask_ends", lambda places: asked.append(len(places)) or ask(places))
    rig.run(3.0, all_nodes(rig), step=0.02)
    busy = len(asked)
    rig.run(10.0)
    assert busy <= 8, "at most once for each window, where the record behind it is a moment late"
    assert 8 <= len(asked) - busy <= 25


def test_records_of_an_open_transaction_hold_up_the_watermark_and_its_mark_does_not(rig):
    """They were appended, and are given out later, when it is committed; behind the mark no record may ever come."""
    rig.run(2.0, all_nodes(rig))
    upstream = Upstream(rig.broker, PLAN.topic)
    (value,) = encoded(heap(1, rig.sequences[1], rig.clock.now() - BASE_US / 1e6))
    upstream.begin(1, b"1", value)
    before = rig.clock.now() - BASE_US / 1e6
    rig.run(4.0, lambda: rig.send(0))
    assert max(at for partition, at in rig.watermarks() if partition == 1) <= before
    assert max(at for partition, at in rig.watermarks() if partition == 0) > before + 3
    upstream.commit()
    rig.run(4.0)
    assert max(at for partition, at in rig.watermarks() if partition == 1) > before + 6
    assert ("1", 2) in rig.valid or rig.shown["1"].quality is Quality.INVALID


def test_a_watermark_that_cannot_be_is_a_dead_letter(rig):
    """Rule 16: internal records are foreign as well."""
    rig.run(3.0, all_nodes(rig))
    good = next(one for one in rig.broker.read_from("ingest.summary", 0, 0) if one.key.startswith(b"watermark/"))
    document = json.loads(good.value)
    wrong = {
        "read_to": {"read_to": good.timestamp_us + PLAN.rule.disorder_us + 1},
        "partition": {"partition": 2},
        "key": {"stream": "ingest.buffers"},
        "schema": {"read_to": -1},
    }
    before = rig.ledger.read_to()
    for name, change in wrong.items():
        key = b"watermark/ingest.heaps/2" if name == "partition" else good.key
        outcome = rig.flow.fold(replace(good, key=key, value=json.dumps(document | change).encode()), count=True)
        assert isinstance(outcome, RecordRejected) or outcome.reason == "other-stream", (name, outcome)
    assert rig.ledger.read_to() == before
