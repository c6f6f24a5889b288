"""What several clients of one device server together say about the broker."""

import logging

import pytest

from facade.bus.kafka.connection import Connection
from facade.bus.port import BusHealth
from facade.clock import ManualClock
from facade.config import Settings

UP, IDLE = '{"brokers": {"1": {"state":"UP"}}}', '{"brokers": {"1": {"state":"INIT"}}}'


def test_connected_while_any_client_is() -> None:
    """An idle client whose connection the broker has closed does not make `connected` flap; the last one does."""
    clock, health = ManualClock(), BusHealth()
    connection = Connection(Settings(), clock=clock)
    reader, writer = (connection.config(health, {})["stats_cb"] for _ in range(2))
    reader(UP)
    for _ in range(10):
        clock.sleep(1.0)
        reader(UP)
        assert health.connected
        writer(IDLE)
        assert health.connected
    reader(IDLE)
    assert not health.connected


def test_a_closed_client_says_nothing_any_more() -> None:
    """A client that was connected when it was closed is forgotten."""
    clock, health = ManualClock(), BusHealth()
    connection = Connection(Settings(), clock=clock)
    closed, writer = (connection.config(health, {})["stats_cb"] for _ in range(2))
    closed(UP)
    clock.sleep(5.0)
    writer(IDLE)
    assert not health.connected
    assert len(health.last_up) == 0


def test_an_error_that_repeats_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """With the broker away two errors take turns several times a second: each is logged every ten seconds."""
    clock, health = ManualClock(), BusHealth()
    connection = Connection(Settings(), clock=clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(200):
            connection.note(health, "one")
            connection.note(health, "two")
            clock.sleep(0.1)
    assert 4 <= len(caplog.records) <= 6
    assert health.last_error == "two"
