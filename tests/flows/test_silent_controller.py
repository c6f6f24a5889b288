"""When a controller that has fallen silent is noticed, by a clock that the test moves."""

import pytest

from facade.flows.alerts.messages import Alarm, Alert, decode_alert, state_record
from facade.kernel.runtime.heartbeats import SILENT, HeartbeatMessage, heartbeat_record
from tests.support.commanding import CONTROLLER, SUBARRAY, Bench, Server

STEP = 0.1
"""Time between two looks of the device server [s]."""


def beat(bench: Bench, component: str = CONTROLLER, incarnation: str = "1", group: str = "") -> None:
    """Let a controller say that it lives."""
    message = HeartbeatMessage(
        component=component,
        incarnation=incarnation,
        group=group,
        devices=(SUBARRAY,),
        time=bench.clock.now_us(),
        interval=1.0,
    )
    bench.broker.append(heartbeat_record(message))


def goes_on(bench: Bench, server: Server, seconds: float) -> None:
    for _ in range(round(seconds / STEP)):
        bench.clock.sleep(STEP)
        server.cycle()


def test_a_silent_controller_is_noticed_after_three_missing_heartbeats_and_forgiven_at_the_next() -> None:
    assert SILENT / 1e6 + 1.0 < 5.0, "an operator knows within five seconds"
    bench = Bench()
    server = bench.server()
    bench.report(State="ON", obsState="IDLE")
    beat(bench)
    server.cycle()
    assert server.shows("healthState") == "OK"
    goes_on(bench, server, SILENT / 1e6 - 2 * STEP)
    assert server.shows("healthState") == "OK"
    goes_on(bench, server, 1.0)
    assert server.shows("healthState") == "FAILED"
    assert f"controller {CONTROLLER} has been silent since" in " ".join(server.shows("healthInfo"))
    beat(bench)
    goes_on(bench, server, 2 * STEP)
    assert server.shows("healthState") == "OK"


@pytest.mark.parametrize(
    ("beats", "healthy"),
    [
        pytest.param([("a", "1", ""), ("b", "1", "")], False, id="two of two groups"),
        pytest.param([("a", "1", "shared"), ("b", "1", "shared")], True, id="two of one group share the commands"),
        pytest.param([("a", "1", ""), ("a", "2", "")], True, id="one that was started again"),
        pytest.param([("a", "1", ""), ("a", "2", ""), ("a", "1", "")], False, id="two of one name"),
    ],
)
def test_two_controllers_that_each_execute_every_command_are_told(
    beats: list[tuple[str, str, str]], healthy: bool
) -> None:
    bench = Bench()
    server = bench.server()
    bench.report(State="ON", obsState="IDLE")
    for one in beats:
        beat(bench, *one)
    server.cycle()
    assert (server.shows("healthState") == "OK") is healthy
    told = "each execute every command" in " ".join(server.shows("healthInfo"))
    assert told is not healthy
    goes_on(bench, server, SILENT / 1e6 + 1.0)
    assert "each execute" not in " ".join(server.shows("healthInfo")), "a dead one executes nothing"


def lives(bench: Bench, server: Server, seconds: float) -> None:
    """Let time pass while the controller gives signs of life."""
    for _ in range(round(seconds)):
        beat(bench)
        goes_on(bench, server, 1.0)


@pytest.mark.parametrize("later", ["FAULT", "IDLE"])
def test_a_state_on_the_way_that_outlives_its_command_is_named_and_raises_an_alarm(later: str) -> None:
    bench = Bench()
    server = bench.server()
    bench.report(State="ON", obsState="IDLE")
    lives(bench, server, 2.0)
    id = server.give("Configure", {"interface": "https://schema.skao.int/ska-sdp-configure/0.4", "scan_type": "a"})
    bench.report(obsState="CONFIGURING", command=id)
    lives(bench, server, 5.0)
    assert server.shows("healthState") == "OK"
    bench.ack(id, "FAILED")
    lives(bench, server, 1.0)
    assert server.shows("healthState") == "OK", "a final state may come a little later"
    lives(bench, server, 8.0)
    what = f"obsState is CONFIGURING, but no command is under way; the last one, Configure ({id}), is FAILED"
    assert (server.shows("healthState"), server.shows("healthInfo")) == ("FAILED", (what,))
    (raised,) = [decode_alert(record.value) for record in bench.broker.read("alerts")]
    assert isinstance(raised, Alert)
    assert (raised.condition, raised.source, raised.state) == ("subarrayStuck", "sdp-facade/subarray/01", "ACTIVE")
    assert raised.text == f"subarray 01: {what}"
    bench.report(obsState=later)
    lives(bench, server, 8.0)
    assert not any("under way" in one for one in server.shows("healthInfo"))
    cleared = decode_alert(bench.broker.read("alerts")[-1].value)
    assert isinstance(cleared, Alert)
    assert (cleared.condition, cleared.state) == ("subarrayStuck", "CLEARED")


def test_an_alarm_of_another_source_with_the_same_condition_is_not_cleared() -> None:
    bench = Bench()
    server = bench.server()
    alarm = Alarm(condition="subarrayStuck", source="simulated-003", state="UNACK", through=1, source_sequence=7)
    bench.broker.append(state_record(alarm.key, alarm))
    bench.report(State="ON", obsState="IDLE")
    lives(bench, server, 10.0)
    assert bench.broker.read("alerts") == []
