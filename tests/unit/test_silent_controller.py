"""When a controller that has fallen silent is noticed, by a clock that the test moves."""

from facade.flows.commands.messages import HeartbeatMessage, heartbeat_record
from facade.flows.commands.view import SILENT
from tests.support.commanding import CONTROLLER, SUBARRAY, Bench, Server

STEP = 0.1
"""Time between two looks of the device server [s]."""


def beat(bench: Bench) -> None:
    """Let the controller say that it lives."""
    now_us = round(bench.clock.now() * 1e6)
    message = HeartbeatMessage(component=CONTROLLER, incarnation="1", devices=(SUBARRAY,), time=now_us, interval=1.0)
    bench.broker.append(heartbeat_record(message))


def goes_on(bench: Bench, server: Server, seconds: float) -> None:
    for _ in range(round(seconds / STEP)):
        bench.clock.sleep(STEP)
        server.cycle()


def test_a_silent_controller_is_noticed_after_three_missing_heartbeats_and_forgiven_at_the_next() -> None:
    assert SILENT + 1.0 < 5.0, "an operator knows within five seconds"
    bench = Bench()
    server = bench.server()
    bench.report(State="ON", obsState="IDLE")
    beat(bench)
    server.cycle()
    assert server.shows("healthState") == "OK"
    goes_on(bench, server, SILENT - 2 * STEP)
    assert server.shows("healthState") == "OK"
    goes_on(bench, server, 1.0)
    assert server.shows("healthState") == "FAILED"
    assert f"controller {CONTROLLER} has been silent since" in " ".join(server.shows("healthInfo"))
    beat(bench)
    goes_on(bench, server, 2 * STEP)
    assert server.shows("healthState") == "OK"
