"""The event loop and the publisher on the simulation's brokers: restarts, bad records, an absent broker, pacing."""

import itertools
import json
import threading
from types import SimpleNamespace

import pytest

from facade.flows.telemetry.view import TelemetryColumn
from facade.flows.telemetry.worker import telemetry_worker
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock, utc_seconds
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.reading import Quality, Reading
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.heartbeats import HeartbeatMessage, SignOfLife, heartbeat_record
from facade.kernel.runtime.publisher import Publisher
from tests.support.commanding import Sink
from tests.support.heaps import BASE_US, encoded, heap
from tests.support.simulated_bus import MemoryBroker, MemoryBus, MemoryReader, MemoryTransactionalLog

ICD = load()
WITHOUT = "alerts,calibration,quality,mirror,logs,subarray,alerts-intake,tables-assemble,logs-aggregate"
SETTINGS = Settings(nodes=2, without=WITHOUT)
NODES = {"SdpIngestNode": ["mid-sdp/ingest/0000", "mid-sdp/ingest/0001"]}
CONTROL = {"SdpMaster": ["mid-sdp/control/0"], "SdpBus": ["mid-sdp/bus/0"]}
NODE, MASTER, BUS = "mid-sdp/ingest/0000", "mid-sdp/control/0", "mid-sdp/bus/0"


class Deployment:
    """Workers, brokers and device servers in one process, under one clock that tests move."""

    def __init__(self) -> None:
        self.clock = ManualClock(BASE_US / 1e6)
        self.broker = MemoryBroker(self.clock)
        log = MemoryTransactionalLog(self.broker, "ingest.heaps", group="aggregate")
        self.worker = telemetry_worker(log, ICD, SETTINGS, slot="0", clock=self.clock)
        self.sign_of_life = SignOfLife("aggregate-0", "worker", self.broker.append, self.clock)
        self.seq = itertools.count()

    def server(self, devices, instance):
        bus, sink = MemoryBus(self.broker), Sink()
        service = Server(
            ICD, SETTINGS, devices, sink, bus, instance=instance, clock=self.clock, versions={"versionId": "1"}
        )
        return service, sink, bus

    def send(self, rate=10, seconds=1.0, servers=()):
        for _ in range(round(seconds * rate)):
            at, seq = self.clock.now() - BASE_US / 1e6 + 0.03, next(self.seq)
            for node in (0, 1):
                value = encoded(heap(node=node, seq=seq, at=at))[0]
                self.broker.append(Record(topic="ingest.heaps", key=b"%d" % node, value=value, partition=node))
            self.idle(1 / rate, servers)

    def beat(self):
        time = self.clock.now_us()
        beat = HeartbeatMessage(component="c", incarnation="1", devices=(MASTER,), time=time, interval=1.0)
        self.broker.append(heartbeat_record(beat))

    def idle(self, seconds, servers=()):
        until = self.clock.now() + seconds - 1e-6
        while self.clock.now() < until:
            self.worker.step()
            self.sign_of_life.perform()
            for event_loop, reader in servers:
                event_loop.cycle(reader)
            self.clock.sleep(0.05)


def opened(service):
    return service.event_loop, service.event_loop._open()


@pytest.fixture
def deployment() -> Deployment:
    return Deployment()


def test_heaps_become_readings_and_events(deployment):
    service, sink, _ = deployment.server(NODES, "ingest-00")
    server = opened(service)
    deployment.send(seconds=4, servers=[server])
    assert sink.shown[NODE, "heapRate"].value == 10.0
    times = [r.time for d, a, r in sink.pushed if (d, a) == (NODE, "heapsTotal")]
    assert len(times) >= 2
    assert all(b - a > 0.7 for a, b in itertools.pairwise(times))
    assert sink.shown[NODE, "State"].value == "ON"
    deployment.idle(5, servers=[server])
    assert sink.shown[NODE, "heapRate"].quality is Quality.INVALID
    assert sink.shown[NODE, "heapsTotal"] == Reading(40, sink.shown[NODE, "heapsTotal"].time)
    assert sink.shown[NODE, "State"].value == "STANDBY"


@pytest.mark.parametrize("failure", [TypeError("an image of numbers"), ValueError("a label of an older interface")])
def test_a_value_in_a_snapshot_that_cannot_be_shown_stops_nothing(deployment, failure, monkeypatch):
    service, _, _ = deployment.server(NODES, "ingest-00")
    deployment.send(seconds=3, servers=[opened(service)])
    service, sink, bus = deployment.server(NODES, "ingest-00")
    restore, first = TelemetryColumn.restore, []

    def restoring(column, position, reading):
        if column.attribute == "heapRate" and not first:
            first.append(reading)
            raise failure
        restore(column, position, reading)

    monkeypatch.setattr(TelemetryColumn, "restore", restoring)
    server = opened(service)
    assert first
    assert sink.shown[NODE, "heapsTotal"].value > 0
    assert f"heapRate of {NODE}" in bus.health.last_error
    deployment.send(seconds=3, servers=[server])
    assert sink.shown[NODE, "heapRate"].value == 10.0


@pytest.mark.parametrize(
    "value", [b"", b"{", b"null", b"[" * 100_000, b'{"schema":"snapshot/1"}', b'{"schema":"snapshot/9"}', b"\xff"]
)
def test_a_broken_snapshot_is_no_reason_not_to_start(deployment, value):
    service, _, _ = deployment.server(NODES, "ingest-00")
    deployment.send(seconds=2, servers=[opened(service)])
    key = b"ingest-00/ingest.summary"
    deployment.broker.append(Record(topic="snapshots", key=key, value=value))
    service, sink, bus = deployment.server(NODES, "ingest-00")
    deployment.idle(3, servers=[opened(service)])
    assert sink.shown[NODE, "heapsTotal"].value == 20
    assert "not usable" in bus.health.last_error


@pytest.mark.parametrize(
    "totals",
    [
        {"count": "x"},
        {"count": 2**63},
        {"heard": 1e300},
        {"sums": {"received": 2**64}},
        {"seen": {"records": 2**64}},
        {"seen": {"runs": [[0, 2**64]]}},
    ],
)
def test_a_snapshot_of_another_form_means_reading_the_topic_anew(deployment, totals):
    service, _, _ = deployment.server(NODES, "ingest-00")
    deployment.send(seconds=2, servers=[opened(service)])
    key = b"ingest-00/ingest.summary"
    newest = [json.loads(record.value) for record in deployment.broker.read("snapshots") if record.key == key][-1]
    newest["ledger"]["streams"]["ingest.heaps"]["groups"]["1"] |= totals
    deployment.broker.append(Record(topic="snapshots", key=key, value=json.dumps(newest).encode()))
    service, sink, _ = deployment.server(NODES, "ingest-00")
    deployment.idle(3, servers=[opened(service)])
    assert sink.shown[NODE, "heapsTotal"].value == 20


@pytest.mark.parametrize("field", ["time", "account"])
def test_numbers_that_nobody_can_reckon_with_stop_nothing(deployment, field):
    ingest, _, _ = deployment.server(NODES, "ingest-00")
    deployment.send(seconds=3, servers=[opened(ingest)])
    huge = int("9" * 400)
    (newest,) = (json.loads(r.value) for r in deployment.broker.read("snapshots")[-1:])
    newest |= {"instance": "other", "time": huge} if field == "time" else {"account": {"consumed": huge}}
    value = json.dumps(newest).encode()
    for key in (b"other/ingest.summary", b"ingest-00/ingest.summary"):
        deployment.broker.append(Record(topic="snapshots", key=key, value=value))
    ingest, shown, bus = deployment.server(NODES, "ingest-00")
    service, sink, _ = deployment.server(CONTROL, "control")
    servers = [opened(ingest), opened(service)]
    deployment.send(seconds=3, servers=servers)
    deployment.idle(3, servers=servers)
    assert sink.shown[MASTER, "heapsTotal"].value == 120
    assert shown.shown[NODE, "heapsTotal"].value == 60
    assert "not usable: schema: $." in bus.health.last_error
    letters = [dict(r.headers) for r in deployment.broker.read("dead-letters")]
    where = b"$.time" if field == "time" else b"$.account.consumed"
    assert [(one["dl.topic"], one["dl.path"]) for one in letters] == [(b"snapshots", where)] * 2


def test_snapshots_are_written_while_each_cycle_has_an_unusable_record(deployment):
    """There was none as long as they came, and each of their dead letters stayed in memory."""
    service, _, bus = deployment.server(CONTROL, "control")
    loop, reader = opened(service)
    mark, marked_at = bus.mark, {0: 0.0}

    def marked():
        marked_at[found := mark()] = deployment.clock.monotonic()
        return found

    bus.mark = marked
    bus.settled = lambda mark: deployment.clock.monotonic() > marked_at[mark] + 0.05  # longer than a cycle
    most = 0
    for _ in range(500):
        deployment.broker.append(Record(topic="state", key=b"k", value=b"x"))
        loop.cycle(reader)
        most = max(most, len(loop._dead_letters))
        deployment.clock.sleep(0.02)
    assert deployment.clock.monotonic() - loop._snapshot_at < 3.0
    assert most < 150
    while any(reader.behind("state").values()) or loop._dead_letters:
        deployment.clock.sleep(0.1)
        loop.cycle(reader)
    assert len(deployment.broker.read("dead-letters")) == 500


def test_nothing_is_read_while_too_many_dead_letters_cannot_be_written(deployment):
    service, _, bus = deployment.server(CONTROL, "control")
    loop, reader = opened(service)
    bus.refused = ["dead-letters"]
    for _ in range(100):
        deployment.broker.append(Record(topic="state", key=b"k", value=b"x" * 900_000))
        deployment.clock.sleep(0.1)
        loop.cycle(reader)
    assert loop.accounts["state"].consumed == 72, "all others wait on the log"
    bus.refused = []
    for _ in range(30):
        loop.cycle(reader)
    assert loop.accounts["state"].consumed == len(deployment.broker.read("dead-letters")) == 100


def test_control_shows_health_accounts_and_their_balance(deployment):
    ingest, _, _ = deployment.server(NODES, "ingest-00")
    control, sink, bus = deployment.server(CONTROL, "control")
    servers = [opened(ingest), opened(control)]
    deployment.send(seconds=3, servers=servers)
    assert sink.shown[MASTER, "healthState"].value == "DEGRADED"
    assert sink.shown[MASTER, "healthInfo"].value[-1].startswith(f"no controller of {MASTER} was heard of")
    for _ in range(3):
        deployment.beat()
        deployment.send(seconds=1, servers=servers)
    assert sink.shown[MASTER, "healthState"].value == "OK"
    assert sink.shown[MASTER, "nodesReporting"].value == 2
    assert sink.shown[MASTER, "heapRate"].value == 20.0
    deployment.idle(0.3, servers=servers)  # accounts are looked at once in a while
    assert sink.shown[BUS, "ingestHeapsConsumed"].value == 120
    assert sink.shown[BUS, "ingestHeapsRate"].value == pytest.approx(20, abs=2)
    assert sink.shown[BUS, "ingestHeapsLagTime"].value == 0.0
    for stream in ("ingestHeaps", "ingestSummary"):
        assert sink.shown[BUS, f"{stream}Balance"].value == 0
    assert sink.shown[BUS, "State"].value == "ON"
    bus.away = True
    deployment.clock.sleep(3.0)  # a client that was closed is believed for so long
    deployment.idle(0.5, servers=servers)
    assert sink.shown[MASTER, "healthState"].value == "UNKNOWN"
    assert sink.shown[BUS, "State"].value == "ALARM"
    assert "no Kafka broker" in sink.shown[BUS, "Status"].value


def test_the_last_error_is_the_newest_and_keeps_its_time(deployment):
    def shown(seconds):
        deployment.send(seconds=seconds, servers=servers)
        return sink.shown[BUS, "lastError"].value

    def at(time):
        return utc_seconds(round(time * 1e6))

    control, sink, bus = deployment.server(CONTROL, "control")
    servers = [opened(control)]
    deployment.clock.sleep(0.4)  # so that a worker's commit is within the second of its error
    assert shown(2) == ""
    summary_at = deployment.clock.now()
    deployment.broker.append(Record(topic="ingest.summary", key=b"0", value=b"x", partition=0))
    first = shown(4)
    assert first.startswith(f"{at(summary_at)} ingest.summary: ")
    heaps_at = deployment.clock.now()
    deployment.broker.append(Record(topic="ingest.heaps", key=b"0", value=b"x", partition=0))
    second = shown(4)
    assert second.startswith(f"{at(heaps_at)} ingest.heaps: not-json")
    assert shown(3) == second
    bus.health.last_error, bus.health.last_error_at = "gone", round(summary_at * 1e6)
    assert shown(1) == second
    state_at = deployment.clock.now()
    deployment.broker.append(Record(topic="state", key=b"k", value=b"x", partition=0))
    third = shown(4)
    assert third.startswith(f"{at(state_at)} state: ")
    control, sink, bus = deployment.server(CONTROL, "control")
    servers = [opened(control)]
    assert shown(5) == third
    bus.health.last_error, bus.health.last_error_at = "gone", deployment.clock.now_us()
    assert shown(1).endswith(" UTC bus: gone")


def test_the_thread_waits_for_an_absent_broker_and_then_works(deployment):
    service, sink, bus = deployment.server(CONTROL, "control")
    bus.away, bus.waits = True, True
    stop = threading.Event()
    rounds = itertools.count()
    sleep = deployment.clock.sleep

    def counted(seconds):
        sleep(seconds)
        match next(rounds):
            case 50:
                assert "no broker answers" in bus.health.last_error
                bus.away = False
            case 200:
                stop.set()

    deployment.clock.sleep = counted
    service.event_loop.run(stop)
    assert service.event_loop.restored
    assert sink.shown[MASTER, "nodesExpected"].value == 2


def test_a_mistake_in_a_flow_does_not_end_the_thread(deployment, caplog):
    service, _, bus = deployment.server(CONTROL, "control")
    bus.waits = True
    stop = threading.Event()
    calls = itertools.count()

    def broken(now):
        if next(calls) > 3:
            stop.set()
        raise RuntimeError("ours")

    performed, looked = [], []
    task = SimpleNamespace(perform=lambda: performed.append(1), end=lambda: None)
    loop = service.event_loop
    loop._periodic_tasks = [task]
    loop._views[0].readings = broken
    loop._views = [*loop._views, SimpleNamespace(readings=lambda now: looked.append(now) or ())]
    written = len(deployment.broker.read("snapshots"))
    loop.run(stop)
    assert "internal error" in bus.health.last_error
    assert "RuntimeError: ours" in caplog.text
    assert len(performed) >= next(calls), "periodic tasks, such as the lease of commands, go on"
    assert looked, "the views behind it go on"
    assert len(deployment.broker.read("snapshots")) > written


@pytest.mark.parametrize("call", [0, 1, 2])
def test_records_of_a_cycle_that_failed_are_read_again(deployment, monkeypatch, call):
    """The reader has given them, and does not give them again."""
    service, _, bus = deployment.server(NODES, "ingest-00")
    deployment.send(seconds=2)
    bus.waits = True
    take, calls, turns, stop = MemoryReader.take, itertools.count(), itertools.count(), threading.Event()
    sleep = deployment.clock.sleep

    def failing(reader, limit, timeout):
        found = take(reader, limit, timeout)
        if next(calls) == call:
            raise RuntimeError("ours")
        return found

    def counted(seconds):
        sleep(seconds)
        if next(turns) == 200:
            stop.set()

    monkeypatch.setattr(MemoryReader, "take", failing)
    deployment.clock.sleep = counted
    service.event_loop.run(stop)
    assert next(calls) > call
    (ledger,) = [ledger for topic, ledger in service.event_loop._flows["ingest.summary"].ledgers.items()]
    assert ledger.totals.count.tolist() == [20, 20]
    assert service.event_loop.accounts["ingest.summary"].skipped == 0


def test_events_are_paced_and_only_the_newest_waits():
    clock, sink = ManualClock(0.0), Sink()
    devices = {f"mid-sdp/ingest/{n:04d}": "SdpIngestNode" for n in range(1000)}
    publisher = Publisher(ICD, devices, sink, clock)
    for value in (1.0, 2.0):
        for device in devices:
            publisher.offer(device, "heapRate", Reading(value, 0.0))
            publisher.offer(device, "heapRate", Reading(value, 0.0, Quality.INVALID))
    publisher.tick()
    assert len(sink.pushed) == 400
    assert publisher.coalesced == 3000
    for _ in range(10):
        clock.sleep(0.01)
        before = len(sink.pushed)
        publisher.tick()
        assert len(sink.pushed) - before <= 101
    assert {(d, r.value, r.quality) for d, _, r in sink.pushed} == {(d, 2.0, Quality.INVALID) for d in devices}


def test_what_nobody_follows_takes_no_place_of_what_is_followed():
    class Followed(Sink):
        def show(self, device, attribute, reading):
            super().show(device, attribute, reading)
            return attribute in followed

    followed, sink, clock = {"heapsTotal"}, Followed(), ManualClock()
    devices = [f"mid-sdp/ingest/{node:04d}" for node in range(1000)]
    publisher = Publisher(ICD, dict.fromkeys(devices, "SdpIngestNode"), sink, clock)
    for device in devices:
        publisher.offer(device, "latencyMean", Reading(0.5, 1.0))
    publisher.offer(NODE, "heapsTotal", Reading(10, 1.0))
    publisher.tick()
    assert sink.pushed == [(NODE, "heapsTotal", Reading(10, 1.0))]
    assert publisher.waiting == 0
    assert sink.shown[NODE, "latencyMean"].value == 0.5
    followed.add("latencyMean")  # from now on: what came before was read as the subscription was made
    publisher.offer(NODE, "latencyMean", Reading(0.5, 2.0))
    publisher.tick()
    assert sink.pushed[1:] == [(NODE, "latencyMean", Reading(0.5, 2.0))]


def test_of_a_device_that_begins_anew_everything_is_shown_and_told():
    clock, sink = ManualClock(0.0), Sink()
    publisher = Publisher(ICD, {NODE: "SdpIngestNode"}, sink, clock)
    readings = {"heapRate": Reading(1.0, 0.0), "heapsTotal": Reading(5, 0.0), "State": Reading("ON", 0.0)}
    for name, reading in readings.items():
        publisher.offer(NODE, name, reading)
    publisher.tick()
    sink.shown.clear()
    sink.pushed.clear()
    subscribed = []
    assert publisher.begin_anew(NODE, lambda: bool(subscribed)) == readings
    publisher.tick()
    assert sink.pushed == []
    subscribed.append(True)
    for _ in range(2):  # once, not each time
        publisher.tick()
        assert {(NODE, name): reading for name, reading in readings.items()} == sink.shown
        assert sorted(sink.pushed) == sorted((NODE, name, reading) for name, reading in readings.items())
    assert publisher.begin_anew("nobody's", lambda: True) == {}
    publisher.tick()


def test_what_was_held_back_before_a_restart_of_the_device_follows_no_newer_value():
    """Up to ten seconds after DevRestart clients got the older value, and kept it until the next change."""

    class Followed(Sink):
        def show(self, device, attribute, reading):
            return super().show(device, attribute, reading) and is_followed

    is_followed, sink, clock = True, Followed(), ManualClock(0.0)
    publisher = Publisher(ICD, {"master": "SdpMaster"}, sink, clock)
    publisher.offer("master", "nodesReporting", Reading(1, 0.0))
    publisher.offer("master", "nodesReporting", Reading(2, 0.1))  # held back: it follows too soon
    publisher.tick()
    is_followed = False
    publisher.offer("master", "nodesReporting", Reading(3, 0.2))
    is_followed = True  # Tango has restored the subscriptions
    publisher.begin_anew("master", lambda: True)
    for _ in range(2):
        publisher.tick()
        clock.sleep(20.0)
    assert [reading.value for *_, reading in sink.pushed] == [1, 3]
    publisher.offer("master", "nodesReporting", Reading(1, 40.0))
    publisher.tick()
    assert sink.pushed[-1][-1].value == 1, "clients have 3, although an event with 1 was the last one before"


def test_a_newer_value_keeps_the_place_in_the_queue():
    clock, sink = ManualClock(0.0), Sink()
    devices = {f"mid-sdp/ingest/{n:04d}": "SdpIngestNode" for n in range(1500)}
    publisher = Publisher(ICD, devices, sink, clock)
    for value in range(40):  # all change every 10 ms, and 100 may leave in that time
        for device in devices:
            publisher.offer(device, "heapRate", Reading(float(value), 0.0, list(Quality)[value % 4]))
        publisher.tick()
        clock.sleep(0.01)
    counts = {device: sum(d == device for d, _, _ in sink.pushed) for device in devices}
    assert min(counts.values()) >= max(counts.values()) - 1


def test_a_snapshot_shows_no_reported_attribute():
    """The topic `state` gives the newest mode at once; the snapshot may be older (a mode that was changed back)."""
    sink, device = Sink(), "mid-sdp/control/0"
    publisher = Publisher(ICD, {device: "SdpMaster"}, sink, ManualClock())
    before = {"adminMode": Reading(0, 1.0), "heapsTotal": Reading(10, 1.0)}
    assert publisher.restore({device: before}) == []
    assert publisher.last == {device: {"heapsTotal": Reading(10, 1.0)}}
