"""Device servers whose topics are not what they were: made again, cleared, cut, with a snapshot of the future."""

import pytest

from facade.flows.alerts.follower import Follower
from facade.flows.alerts.operator_api import OperatorApi
from facade.flows.commands.refused import CommandRefused
from facade.kernel.bus.port import Record
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from facade.kernel.runtime import composition
from facade.kernel.runtime.snapshots import TOPIC
from tests.support import commanding
from tests.support.alerting import Bench, Server
from tests.support.simulated_bus import MemoryBus


@pytest.fixture
def bench() -> Bench:
    return Bench()


def alerts(bench: Bench, *texts: str) -> None:
    for text in texts:
        bench.alert(source=text, text=text)


def account(server: Server):
    return server.service.event_loop.accounts["alerts"]


def said(server: Server) -> list[tuple[int, str]]:
    return [(event["sequence"], event["alert"]["text"]) for event in server.events()]


def figures(server: Server) -> tuple[int, int, int, int]:
    """Return the records consumed, the cuts of the log, the records that are missing, and the balance."""
    one = account(server)
    assert one.overlap == 0
    return one.consumed, one.log_cuts, one.skipped, one.balance


def going_on(bench: Bench, server: Server, *, stopped: bool) -> Server:
    """Return the server that goes on: the same one, or one that is started after a kill."""
    if not stopped:
        server.sink.pushed.clear()
        server.cycle(30)
        return server
    return bench.server(30)


def prepared(bench: Bench) -> Server:
    """Return a server that has read ten alerts, written a snapshot, and asked twice since which topic this is."""
    server = bench.server()
    alerts(bench, *(f"old/{number}" for number in range(10)))
    server.cycle(60)
    assert figures(server) == (10, 0, 0, 0)
    return server


@pytest.mark.parametrize(("new", "stopped"), [(3, True), (10, False), (14, True)])
def test_a_topic_that_was_made_again_is_read_whole_and_its_numbers_go_on(bench, stopped, new):
    """Shorter than the old one, as long, and longer."""
    server = prepared(bench)
    bench.broker.make_again("alerts")
    alerts(bench, *(f"new/{number}" for number in range(new)))
    server = going_on(bench, server, stopped=stopped)
    assert [one for one in said(server) if "new" in one[1]] == [(11 + number, f"new/{number}") for number in range(new)]
    assert figures(server) == (10 + new, 1, 0, 0)
    assert len(list(server.ledger.alarms())) == 10 + new  # those of the old topic stay
    assert (
        "alerts, partition 0: the topic was deleted and made again: expected offset 10 next"
        in account(server).last_error
    )
    assert (
        "alerts, partition 0: the topic was deleted and made again: expected offset 10 next"
        in server.bus.health.last_error
    )
    # What was true once is true after each further restart, and is not said again.
    again = bench.server(30)
    assert (again.flow.sequence, figures(again), again.bus.health.last_error) == (10 + new, (10 + new, 1, 0, 0), "")


@pytest.mark.parametrize(("stopped", "grown"), [(True, 2), (False, 0)])
def test_a_log_that_was_cut_is_said_and_what_comes_next_is_no_repetition(bench, stopped, grown):
    server = prepared(bench)
    bench.broker.cut("alerts", 0, 7)
    alerts(bench, *(f"new/{number}" for number in range(grown)))
    server = going_on(bench, server, stopped=stopped)
    alerts(bench, "last/0", "last/1")
    server.cycle(30)
    new = ["last/0", "last/1"]
    assert [text for _, text in said(server) if text in new] == new
    assert min(number for number, text in said(server) if text in new) > 10  # clients know those up to 10
    assert figures(server) == (10 + 2, 1, 0, 0)
    assert (
        f"alerts, partition 0: the log was cut: expected offset 10 next, it goes on at {7 + grown}"
        in account(server).last_error
    )
    again = bench.server(30)
    assert (figures(again), again.bus.health.last_error) == ((10 + 2, 1, 0, 0), "")


def test_an_added_partition_is_read_from_its_beginning_while_the_server_runs(bench):
    server = prepared(bench)
    reader = server.reader
    bench.broker.model.grow("alert-state", 2)
    bench.broker.append(Record(topic="alerts", key=b"x", value=b"{"))
    server.cycle(30)
    assert server.reader is reader  # of other topics this server reads nothing
    bench.broker.model.grow("alerts", 2)
    bench.broker.append(Record(topic="alerts", partition=1, key=b"x", value=b"{"))
    server.cycle(30)
    assert figures(server) == (12, 0, 0, 0)


def test_numbers_go_on_behind_the_states_of_alarms_if_the_snapshot_is_lost_with_the_topic(bench):
    prepared(bench)
    bench.broker.make_again("alerts")
    bench.broker.make_again(TOPIC)
    alerts(bench, "old/9")
    server = bench.server(30)
    assert said(server) == [(11, "old/9")]
    assert server.flow.numbering == bench.broker.model.topics["alerts"].id


def page(server: Server, since: int) -> str:
    return server.service.find(OperatorApi).since(since)


def test_a_client_goes_on_over_a_topic_that_was_made_again(bench):
    server, follower = prepared(bench), Follower(0)
    given = follower.add_page(0, page(server, 0))
    bench.broker.make_again("alerts")
    alerts(bench, "new/0", "new/1")
    server = bench.server(30)
    given += follower.add_page(follower.seen, page(server, follower.seen))
    assert [entry.sequence for entry in given] == [*range(1, 13)]
    assert follower.made_anew == 0


def test_states_that_went_with_their_topics_while_the_server_was_stopped_are_unknown_until_they_are_reported():
    """It showed initial states as if controllers had reported them."""
    bench = commanding.Bench()
    server = bench.server()
    bench.report(State="ON", obsState="READY", ebID="eb-test-20270115-00001", adminMode="ENGINEERING")
    server.cycle()
    bench.clock.sleep(3.0)
    server.cycle()  # writes a snapshot
    assert (server.shows("State"), server.shows("obsState")) == ("ON", "READY")
    for topic in ("state", "command-acks"):
        bench.broker.make_again(topic)
    for _ in range(2):  # a further start knows no more
        server = bench.server(ready=False)
        server.cycle(30)
        shown = {name for device, name in server.sink.shown if device == commanding.SUBARRAY}
        assert not shown & {"obsState", "commandedObsState", "ebID", "receiveAddresses"}
        assert (server.shows("State"), server.shows("adminMode")) == ("UNKNOWN", "ENGINEERING")
        assert "obsState is not known" in server.shows("Status")
        accounts = server.service.event_loop.accounts
        cuts = {name: one.log_cuts for name, one in accounts.items() if one.log_cuts}
        assert cuts == {"state": 1}, "no outcome was on the other one"
        bench.clock.sleep(3.0)
        server.cycle()
    assert server.give("Scan", {"interface": "https://schema.skao.int/ska-sdp-scan/0.4", "scan_id": 7}), "SDP decides"
    bench.report(State="ON", obsState="IDLE")
    server.cycle()
    assert (server.shows("State"), server.shows("obsState")) == ("ON", "IDLE")
    assert "ebID" not in {name for device, name in server.sink.shown if device == commanding.SUBARRAY}


@pytest.mark.parametrize("change", ["made again", "cut"])
def test_states_that_went_while_the_server_ran_are_unknown_after_its_next_start(change):
    """The running server knew them. Its next run showed initial states as if controllers had reported them."""
    bench = commanding.Bench()
    server = bench.server()
    bench.report(State="ON", obsState="READY")
    server.cycle()
    if change == "cut":
        bench.broker.cut("state", 0, 0)
    else:
        bench.broker.make_again("state")
    for _ in range(2):  # asks which topics these are, and takes the answer
        bench.clock.sleep(3.0)
        has_moved = server.service.event_loop.has_moved(server.reader)
        server.cycle()
    assert has_moved
    server.reader.close()
    server.open()
    server.cycle(30)
    bench.clock.sleep(3.0)
    server.cycle()  # writes a snapshot
    assert (server.shows("State"), server.shows("obsState")) == ("ON", "READY")
    server = bench.server(ready=False)
    server.cycle(30)
    assert server.shows("State") == "UNKNOWN"
    assert "obsState" not in {name for device, name in server.sink.shown if device == commanding.SUBARRAY}


def next_life(bench: commanding.Bench, **options) -> commanding.Server:
    """Return a server that is started after a kill, when it holds the lease."""
    server = bench.server(ready=False, **options)
    server.cycle(30)
    bench.clock.sleep(3.0)
    server.cycle()
    return server


def after_loss(bench: commanding.Bench, loss: str) -> commanding.Server:
    """Return the server that is started after `settings` was lost, by way of a snapshot of the former one."""
    bench.clock.sleep(3.0)
    server = bench.servers[-1]
    server.cycle()  # writes a snapshot
    if loss == "cut":
        bench.broker.cut("settings", 0, 0)
    else:
        bench.broker.make_again("settings")
    if loss == "made again while the server ran":
        for _ in range(2):  # asks which topics these are, and takes the answer
            bench.clock.sleep(3.0)
            server.service.event_loop.has_moved(server.reader)
            server.cycle()
        server.reader.close()
        server.open()
        server.cycle(30)
        assert "adminMode is OFFLINE" in server.shows("Status"), "it knows what was set"
        bench.clock.sleep(3.0)
        server.cycle()
    return next_life(bench)


@pytest.mark.parametrize("loss", ["made again", "cut", "made again while the server ran"])
def test_devices_whose_mode_is_lost_take_no_command_until_it_is_set(loss):
    """A device that an operator had set OFFLINE took commands."""
    bench = commanding.Bench()
    bench.servers = [bench.server()]
    bench.report(State="ON", obsState="IDLE", adminMode="OFFLINE")
    bench.servers[0].cycle()
    with pytest.raises(CommandRefused, match="adminMode is OFFLINE"):
        bench.servers[0].give("ReleaseAllResources")
    server = after_loss(bench, loss)
    for _ in range(2):  # a further start knows no more
        for device in (commanding.SUBARRAY, commanding.OTHER):
            with pytest.raises(CommandRefused, match=r"adminMode is not known, .* set it to any mode"):
                server.give("Off", device=device)
            assert server.shows("State", device) == "UNKNOWN"
            assert (device, "adminMode") not in server.sink.shown
            assert "commands are refused: adminMode is not known, because" in server.shows("Status", device)
            assert server.shows("healthState", device) == "FAILED"
        assert server.service.event_loop.accounts["settings"].log_cuts == 1
        server = next_life(bench)
    bench.report(adminMode="ONLINE")
    server.cycle()
    for last in (False, True):
        assert (server.shows("State"), server.shows("adminMode")) == ("ON", "ONLINE")
        assert "commands are refused" not in server.shows("Status")
        with pytest.raises(CommandRefused, match="adminMode is not known"):
            server.give("Off", device=commanding.OTHER)
        if not last:
            server = next_life(bench)
    server.give("ReleaseAllResources")


def test_a_start_that_the_bus_interrupts_counts_a_cut_once(monkeypatch: pytest.MonkeyPatch):
    """Snapshots are restored again after a failure to read the alarms; cuts of a log counted each time."""
    bench = commanding.Bench()
    devices = {"SdpAlerts": ["mid-sdp/alerts/0"], "SdpSubarray": [commanding.SUBARRAY, commanding.OTHER]}
    servers = commanding.DeviceServers(bench.broker, mixed=devices)
    bench.report(adminMode="OFFLINE")
    servers.cycle()
    bench.broker.make_again("settings")
    servers.start()
    read_all, failures = MemoryBus.read_all, [BusError("no broker answers")]

    def fail_once(self: MemoryBus, topic: str, **options: bool) -> list[Record]:
        if topic == "alert-state" and failures:
            raise failures.pop()
        return read_all(self, topic, **options)

    monkeypatch.setattr(MemoryBus, "read_all", fail_once)
    bus, versions = MemoryBus(bench.broker), {"versionId": "1"}
    event_loop = composition.Server(
        commanding.ICD, Settings(), devices, commanding.Sink(), bus, instance="mixed", clock=bench.clock,
        versions=versions,
    ).event_loop  # fmt: skip
    with pytest.raises(BusError):
        event_loop._open()
    event_loop._open()
    assert event_loop.accounts["settings"].log_cuts == 1


def test_a_topic_of_settings_without_a_record_loses_none():
    bench = commanding.Bench()
    bench.servers = [bench.server()]
    bench.report(State="ON", obsState="IDLE")
    server = after_loss(bench, "made again")
    assert (server.shows("State"), server.shows("adminMode")) == ("ON", "ONLINE")
    server.give("ReleaseAllResources")


@pytest.mark.parametrize("device", [commanding.SUBARRAY, "mid-sdp/control/0"])
def test_no_mode_is_called_lost_before_the_topic_has_been_read(device):
    """On slow brokers, Status asked an operator for a new mode at each start, though the topic had one."""
    bench, options = commanding.Bench(), {}
    if device != commanding.SUBARRAY:
        options = {"devices": (device,), "instance": "SdpFacade-control", "device_class": "SdpMaster"}
    bench.servers = [bench.server(**options)]
    bench.report(device=device, adminMode="OFFLINE")
    bench.servers[0].cycle()
    bench.clock.sleep(3.0)
    bench.servers[0].cycle()
    bench.broker.make_again("settings")
    next_life(bench, **options)
    bench.report(device=device, adminMode="ONLINE")
    server = bench.server(ready=False, start=False, **options)
    server.open()
    server.service.event_loop._look(bench.clock.now_us())
    assert server.gateway.states.has_lost(device, "adminMode")
    assert "adminMode is not known" in server.shows("Status")
    assert "commands are refused: adminMode" not in server.shows("Status")


def test_sdp_as_a_whole_takes_no_command_while_its_mode_is_lost():
    bench, master = commanding.Bench(), "mid-sdp/control/0"
    options = {"devices": (master,), "instance": "SdpFacade-control", "device_class": "SdpMaster"}
    server = bench.server(**options)
    bench.report(device=master, adminMode="OFFLINE")
    server.cycle()
    bench.clock.sleep(3.0)
    server.cycle()
    assert server.shows("State") == "DISABLE"
    bench.broker.make_again("settings")
    server = next_life(bench, **options)
    with pytest.raises(CommandRefused, match="adminMode is not known"):
        server.give("Off", device=master)
    assert server.shows("State") == "UNKNOWN"
    assert "commands are refused: adminMode is not known, because" in server.shows("Status")
