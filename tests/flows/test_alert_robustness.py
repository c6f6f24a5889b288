"""The alerts' device under odd sources, odd clocks, kills at bad moments and a bus that does half of its work."""

import itertools
import json
import threading

import pytest
import tango

from devices.kernel.base import FacadeDevice, TangoSink
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from facade.kernel.reading import Quality, Reading
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.publisher import Publisher
from tests.support.alerting import DEVICE, Bench
from tests.support.commanding import ICD, Sink
from tests.support.simulated_bus import MemoryBus


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def server(bench):
    return bench.server()


def test_a_server_that_never_reached_a_broker_does_not_show_norm_as_valid(bench):
    bus, sink = MemoryBus(bench.broker), Sink()
    bus.away, bus.health.connected = True, False
    service = Server(
        ICD,
        Settings(),
        {"SdpAlerts": [DEVICE]},
        sink,
        bus,
        instance="x",
        clock=bench.clock,
        versions={"versionId": "1"},
    )
    with pytest.raises(BusError):
        service.event_loop._open()
    service.event_loop.tick()  # what _idle does
    shown = {n: (r.value, r.quality) for (_, n), r in sink.shown.items()}
    wrong = {
        n: v
        for n, v in shown.items()
        if n in (*ICD.conditions, "activeCount", "worstSeverity", "otherConditions") and v[1] is Quality.VALID
    }
    assert wrong == {}, "nothing is known, and formulas see NORM with ATTR_VALID"


def test_without_a_broker_the_states_do_not_stay_valid_for_ever(bench, server):
    bench.alert(state="CLEARED")
    server.cycle()
    server.bus.away, server.bus.health.connected = True, False
    server.cycle(10, seconds=60.0)
    assert server.sink.shown[DEVICE, "receiveOverrun"].quality is Quality.INVALID
    assert server.shows("State") != "ON"


def test_a_delay_does_not_end_before_the_log_has_been_read_so_far(bench, server):
    server.cycle(seconds=2.1)
    bench.alert("qualityLow")  # on-delay 2 s
    server.cycle(1, seconds=0.0)  # killed here
    for _ in range(600):
        bench.alert(source="other")  # a burst in between
    bench.clock.sleep(0.5)
    bench.alert("qualityLow", state="CLEARED")  # 0.5 s later: within the on-delay
    bench.clock.sleep(10.0)
    again = bench.server()
    again.cycle(200, seconds=0.01)
    assert again.state("qualityLow") == "NORM"
    assert again.ledger.get(("qualityLow", "receive/1")).raised == 0


def test_an_acknowledged_alarm_that_came_back_within_its_off_delay_is_not_new_after_a_restart(bench, server):
    began = bench.alert("qualityLow")
    server.cycle(seconds=2.1)
    server.acknowledge("qualityLow")
    bench.alert("qualityLow", state="CLEARED", raised_at=began.raised_at)
    server.cycle(1, seconds=0.0)  # killed here
    for _ in range(600):
        bench.alert(source="other")
    bench.clock.sleep(0.5)
    bench.alert("qualityLow", raised_at=began.raised_at)
    bench.clock.sleep(10.0)
    again = bench.server()
    again.cycle(200, seconds=0.01)
    assert again.state("qualityLow") == "ACKED"


def test_sequences_of_a_hostile_source_do_not_end_the_snapshots(bench, server):
    for _ in range(2100):
        bench.alert(state="CLEARED", sequence=0)
        bench.alert(state="CLEARED", sequence=2**53 - 1)
    server.cycle(1000, seconds=0.001)
    bench.clock.sleep(3.0)
    server.cycle(1)
    assert server.flow.missing < 2**63


def test_a_forgotten_alarm_whose_last_writes_failed_does_not_come_back_active(bench, server):
    began = bench.alert()
    server.cycle()
    server.acknowledge()
    server.cycle(seconds=2.1)
    server.bus.refused = ["alert-state", "snapshots"]  # too few replicas are in sync: reading goes on, writing does not
    bench.alert(state="CLEARED", raised_at=began.raised_at)
    server.cycle()
    server.cycle(seconds=700.0)
    server.bus.refused = []
    server.cycle(seconds=2.1)
    server.cycle(seconds=2.1)
    assert server.state() == "NORM"
    again = bench.server()
    again.cycle()
    assert again.state() == "NORM"


def test_what_is_kept_in_memory_and_what_one_call_gives_are_bounded_in_bytes(bench, server):
    values = {f"v{n}": float(n) for n in range(4500)}
    for _ in range(200):
        bench.alert(values=values)
    server.cycle(100, seconds=0.05)
    assert len(server.api.since(0)) < 4_000_000  # one Tango call; 100,000 such entries are 6.5 GB


def test_a_snapshot_fits_on_its_topic(bench, server):
    long = "\U0001f600" * 2000
    bench.alert("workerGone")
    for condition in ("receiveOverrun", "storageLow", "streamSilent"):
        for number in range(256):
            bench.alert(condition, source=str(number), text=long)
            if condition == "storageLow":
                bench.alert(condition, source=str(number), text=long, state="CLEARED")
            bench.action("COMMENT", condition, str(number), comment=long)
    server.cycle(100, seconds=0.1)
    size = max(len(r.value) for r in bench.broker.read("snapshots") if r.key.endswith(b"/alerts"))
    assert size < ICD.topics["snapshots"].max_bytes


def test_alarms_that_a_delay_held_back_count_for_floods(bench, server):
    for number in range(12):
        bench.alert("qualityLow", source=str(number))
    server.cycle(seconds=3.0)
    assert server.shows("unacknowledgedCount") == 12
    assert server.shows("flood")


def test_more_actions_than_sixteen_between_two_snapshots_are_still_there_after_a_kill(bench, server):
    bench.alert()
    server.cycle(seconds=2.1)
    server.cycle(1, seconds=0.0)
    for _ in range(30):
        bench.action("COMMENT", comment="x")
    server.cycle(1, seconds=0.0)
    again = bench.server()
    again.cycle()
    one, two = (json.loads(s.api.since(0))["entries"] for s in (server, again))
    assert [e["sequence"] for e in two] == [e["sequence"] for e in one]


def test_a_reader_that_gives_old_records_again_does_not_disturb_the_log(bench, server):
    for _ in range(5):
        bench.alert()
    server.cycle()
    server.reader = server.service.event_loop._open()
    server.cycle()
    assert [e["sequence"] for e in json.loads(server.api.since(0))["entries"]] == [1, 2, 3, 4, 5]


def test_heap_of_due_times_does_not_grow_with_comments(bench, server):
    bench.action("SHELVE", until=bench.now_us + 6 * 86_400_000_000)
    for _ in range(2000):
        bench.action("COMMENT", comment="x")
    server.cycle(20)
    assert len(server.ledger._due) < 100


def test_an_alarm_out_of_service_suppresses_no_other(bench, server):
    bench.alert("workerGone", source="b")
    bench.alert("streamSilent", source="a")
    server.cycle(seconds=3.0)
    server.act("RemoveFromService", "REMOVE_FROM_SERVICE", "workerGone", source="b", comment="broken sensor")
    assert server.state("streamSilent", "a") == "UNACK"


def test_a_condition_name_with_a_line_break_is_no_name(bench, server):
    bench.alert("receiveOverrun\n")
    server.cycle()
    assert server.events() == []


@pytest.mark.parametrize(("ahead", "seconds"), [(-61.0, 60), (1.0, 7 * 86_400)])
def test_a_shelf_holds_for_its_time_by_the_clock_of_the_brokers(bench, ahead, seconds):
    """The clock of the server may be behind or ahead."""
    bench.broker.model.clock = brokers = ManualClock(bench.clock.now() - ahead)
    server = bench.server()
    alert = bench.alert()
    server.cycle()
    server.act("Shelve", "SHELVE", duration=seconds, comment="known")  # returned an id
    assert (server.shows("actionsRefused"), server.state()) == (0, "SHLVD")
    assert server.ledger.get((alert.condition, alert.source)).shelved_until == brokers.now_us() + seconds * 1_000_000


def test_a_source_that_counts_on_raises_no_flood_of_states_after_one_failed_write(bench, server):
    """One record that cannot be written makes all states be written again, each two seconds, for ever."""
    for number in range(300):
        bench.alert(source=str(number))
    server.cycle(10, seconds=0.5)
    real = server.bus.send

    def send(record):  # a snapshot larger than the topic takes
        if record.topic != "snapshots":
            real(record)

    server.bus.send = send
    before = len(bench.broker.read("alert-state"))
    server.cycle(20, seconds=2.1)
    assert len(bench.broker.read("alert-state")) - before <= 300


def test_a_bus_that_confirms_nothing_holds_up_no_alert(bench, server):
    """Too few in-sync replicas: what the last snapshot builds on stays open, and alerts still come."""
    server.bus.settled = lambda mark: False
    server.cycle(seconds=2.1)
    kept = len(bench.broker.read("snapshots"))
    bench.alert()
    server.cycle(2, seconds=2.1)
    assert [entry["sequence"] for entry in server.events()] == [1]
    assert len(bench.broker.read("snapshots")) == kept
    del server.bus.settled
    server.cycle(2, seconds=2.1)
    assert len(bench.broker.read("snapshots")) > kept


def test_a_mistake_of_ours_between_two_records_loses_none(bench):
    """What the reader had given and the event loop had not counted must be read again."""
    for _ in range(3):
        bench.alert()
    bench.garbage(b"{")
    bench.alert(text="urgent")
    server = bench.server(cycles=0)
    server.bus.waits = True
    real, failed, stop = server.bus.send, [], threading.Event()

    def send(record):
        if record.topic == "dead-letters" and not failed:
            failed.append(record)
            raise RuntimeError("ours")
        real(record)

    server.bus.send = send
    rounds, sleep = itertools.count(), bench.clock.sleep

    def counted(seconds):
        sleep(seconds)
        if next(rounds) > 50:
            stop.set()

    bench.clock.sleep = counted
    server.service.event_loop.run(stop)
    assert failed
    assert [entry["sequence"] for entry in server.events()] == [1, 2, 3, 5]


def test_the_end_takes_less_than_tango_waits_for_it(bench, server):
    """No event leaves, no state becomes durable, and the broker takes nothing more."""
    stop, ended, sleep = threading.Event(), [], bench.clock.sleep

    def counted(seconds):
        sleep(seconds)
        if server.service.publisher.queued and not stop.is_set():
            stop.set()
            ended.append(bench.clock.monotonic())

    server.bus.waits = True
    server.bus.settled = lambda mark: False
    server.bus.close = lambda timeout: ended.append(bench.clock.monotonic() + timeout)
    server.service.publisher.tick = lambda: None
    bench.clock.sleep = counted
    bench.alert()
    server.service.event_loop.run(stop)
    assert ended[1] - ended[0] < 4.0


def test_an_event_that_tango_cannot_take_now_is_sent_later(bench):
    """A call that holds the device's monitor for long makes a push fail."""
    sent, tries = [], []

    class Device:
        def push(self, name, reading):
            tries.append(reading.value)
            if len(tries) == 1:
                tango.Except.throw_exception("API_CommandTimedOut", "Not able to acquire the monitor", "push")
            sent.append(reading.value)

        def withdraw(self, name):
            raise AssertionError("the value is one that Tango can carry")

        def show(self, name, reading):
            return True

    FacadeDevice.present["x/y/z"] = Device()
    try:
        publisher = Publisher(ICD, {"x/y/z": "SdpAlerts"}, TangoSink(), bench.clock)
        for text in ("1", "2"):
            publisher.append("x/y/z", "lastAlert", Reading(text, 0.0))
        for _ in range(3):
            publisher.tick()
            bench.clock.sleep(0.1)
    finally:
        del FacadeDevice.present["x/y/z"]
    assert (sent, tries) == (["1", "2"], ["1", "1", "2"])


def test_a_value_at_which_tango_fails_in_any_way_holds_up_no_other(bench):
    """PyTango raises IndexError, for one, about rows of different lengths."""
    sent, withdrawn = [], []

    class Device:
        def push(self, name, reading):
            if name == "odd":
                raise IndexError("rows")
            sent.append(name)

        def withdraw(self, name):
            withdrawn.append(name)

        def show(self, name, reading):
            return True

    FacadeDevice.present["x/y/z"] = Device()
    try:
        publisher = Publisher(ICD, {"x/y/z": "SdpAlerts"}, TangoSink(), bench.clock)
        for name in ("odd", "even"):
            publisher.offer("x/y/z", name, Reading("1", 0.0))
        publisher.tick()
    finally:
        del FacadeDevice.present["x/y/z"]
    assert (sent, withdrawn) == (["even"], ["odd"])
