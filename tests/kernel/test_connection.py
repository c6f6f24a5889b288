"""What several clients of one device server together say about the broker."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from facade.kernel.bus.kafka.connection import Clients, Connection, Repeats, in_words
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from tests.support.waiting import HANG

NONE = '{"brokers": {"GroupCoordinator": {"source":"logical"}}}'
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


def test_a_client_that_has_forgotten_all_brokers_is_told_of_them_again() -> None:
    """Kafka's library forgets the brokers that a broker does not name, and may never look for another one."""
    mock = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
    (broker,) = mock.list_topics(timeout=HANG).brokers.values()
    made: list[tuple[dict[str, Any], Any]] = []

    def opened(kind: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Any:
        """Make a client of the library that knows another broker, which is not there."""
        made.append((config, kind({**config, "bootstrap.servers": "127.0.0.1:1", "log_level": 0})))
        return made[-1][1]

    clients = Clients(consumer=partial(opened, Consumer), producer=partial(opened, Producer))
    connection = Connection(Settings(bootstrap=f"{broker.host}:{broker.port}"), clients=clients)
    connection.producer(BusHealth(), {})
    connection.consumer(BusHealth(), {"group.id": "g"})
    for config, client in made:
        with pytest.raises(KafkaException):
            client.list_topics(timeout=0.1)
        for _ in range(2):
            config["stats_cb"](NONE)
        assert client.list_topics(timeout=HANG).brokers


def _line(at: float, client: str, text: str) -> logging.LogRecord:
    line = logging.LogRecord("client", logging.ERROR, "", 0, "%s [%s] %s", ("FAIL", client, text), None)
    line.created = at
    return line


def test_a_lost_broker_is_one_line_a_minute_and_a_count() -> None:
    """One worker wrote 662 lines about one broker in 33 s."""
    repeats, shown = Repeats(), []
    for at in range(1300):
        text = f"[thrd:b/{at}]: b:9092/1: Connect to ipv4#b:9092 failed: refused (after {at}ms in state CONNECT)"
        line = _line(at / 10, f"worker#consumer-{at % 12}", text)
        if repeats.filter(line):
            shown.append(line.getMessage())
    assert len(shown) == 3
    assert shown[0].endswith("(after 0ms in state CONNECT)")
    assert all(one.endswith("(599 more such lines since the last one)") for one in shown[1:])


def test_another_error_is_shown_at_once() -> None:
    repeats = Repeats()
    assert repeats.filter(_line(0.0, "a", "Connect to b failed: refused"))
    assert repeats.filter(_line(0.1, "a", "SASL authentication failed"))
    assert not repeats.filter(_line(0.2, "b", "SASL authentication failed"))


def test_errors_without_end_are_forgotten_again() -> None:
    repeats = Repeats()
    assert all(repeats.filter(_line(0.0, "a", "x" * number)) for number in range(1000))
    assert len(repeats._seen) <= 200


def test_the_last_error_is_kept_for_operators_even_if_it_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock, health = ManualClock(), BusHealth()
    connection = Connection(Settings(), clock=clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(200):
            connection.note(health, "error of this test")
            connection.note(health, "another error of this test")
    assert len(caplog.records) == 2
    assert health.last_error == "another error of this test"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "127.0.0.1:31685/bootstrap: Connect to ipv4#127.0.0.1:31685 failed: Connection refused (after 0ms in state"
            " CONNECT, 5 identical error(s) suppressed)",
            "127.0.0.1:31685: Connection refused",
        ),
        (
            "sasl_ssl://b.example.org:9093/3: SASL authentication error: Authentication failed (after 1ms in state"
            " AUTH_REQ)",
            "b.example.org:9093: SASL authentication error: Authentication failed",
        ),
        ("1/1 brokers are down", "1/1 brokers are down"),
        ("Failed to resolve 'b:1': Name or service not known", "Failed to resolve 'b:1': Name or service not known"),
    ],
)
def test_an_error_of_the_library_is_told_in_words(error, said):
    assert in_words(error) == said
