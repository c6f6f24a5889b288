"""Who may say what about a device: its mode comes from its device server, its states from its controllers."""

import pytest

from facade.flows.commands.messages import ReportedState
from facade.flows.commands.source import StateSource
from facade.kernel.bus.memory import MemoryBus, MemoryLog
from facade.sdp.device_state import SETTINGS, TOPIC, StateMessage, state_record
from tests.support.commanding import SUBARRAY, Bench
from tests.support.tm import SCAN


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def server(bench):
    server = bench.server()
    bench.report(State="ON", obsState="READY")
    server.cycle()
    return server


def forge(bench: Bench, topic: str, attribute: str, value: str) -> None:
    """Write a record in the name of the device, as whoever may write to a topic can."""
    now_us = bench.clock.now_us()
    message = StateMessage(
        device=SUBARRAY, attribute=attribute, value=value, time=now_us, origin=SUBARRAY, client="this host (sdp-1)"
    )
    bench.broker.append(state_record(message, topic))


@pytest.mark.parametrize(
    ("topic", "attribute", "value"), [(TOPIC, "adminMode", "OFFLINE"), (SETTINGS, "obsState", "EMPTY")]
)
def test_an_attribute_is_taken_from_its_own_topic_only(bench, server, topic, attribute, value):
    forge(bench, topic, attribute, value)
    server.cycle()
    assert (server.shows("adminMode"), server.shows("obsState")) == ("ONLINE", "READY")
    (letter,) = bench.broker.read("dead-letters")
    assert dict(letter.headers)["dl.reason"] == b"attribute"
    assert server.give("Scan", SCAN), "and the device takes commands as before"


def test_an_outcome_of_a_command_sets_no_mode(bench, server):
    id = server.give("Scan", SCAN)
    offline = ReportedState("OFFLINE", bench.clock.now_us())
    bench.ack(id, "COMPLETED", states={"adminMode": offline})
    server.cycle()
    assert server.shows("adminMode") == "ONLINE"
    assert [dict(one.headers)["dl.reason"] for one in bench.broker.read("dead-letters")] == [b"states"]


def test_a_program_of_sdp_is_told_that_it_can_set_no_mode():
    with pytest.raises(ValueError, match=r"expected one of .*, got 'adminMode'"):
        StateSource("anybody", MemoryBus(MemoryLog({TOPIC: 1}))).publish(SUBARRAY, "adminMode", "OFFLINE")
