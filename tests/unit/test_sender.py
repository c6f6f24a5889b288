"""What is said of a command that the bus did not confirm in time, by what the client reports of it."""

import pytest
from confluent_kafka import KafkaError

from facade.bus.kafka import sender as module
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.sender import KafkaSender
from facade.bus.port import BusHealth, Record
from facade.clock import ManualClock
from facade.config import Settings
from facade.errors import NotSent, OutcomeUnknown

RECORD = Record(topic="commands", key=b"d", value=b"{}")


class Producer:
    """Reports one thing about each record: when it is polled, or only once it is purged."""

    def __init__(self, clock: ManualClock, code: int | None, *, at_once: bool) -> None:
        self._clock, self._code, self._at_once = clock, code, at_once
        self._report = None

    def produce(self, *_, on_delivery, **__):
        self._report = on_delivery

    def poll(self, timeout):
        if self._at_once and self._report is not None:
            report, self._report = self._report, None
            report(None if self._code is None else KafkaError(self._code), None)
        else:
            self._clock.sleep(timeout)

    def purge(self, **_):
        self._at_once = self._code is not None


def sender(monkeypatch, code, *, at_once=False, connected=False) -> tuple[KafkaSender, ManualClock]:
    clock, health = ManualClock(), BusHealth(connected=connected)
    monkeypatch.setattr(module, "Producer", lambda _: Producer(clock, code, at_once=at_once))
    return KafkaSender(Connection(Settings(), clock=clock), health=health, client="test"), clock


def test_what_is_confirmed_is_sent(monkeypatch):
    sender(monkeypatch, None, at_once=True)[0].send(RECORD, 0.4)


@pytest.mark.parametrize(
    ("code", "at_once", "connected", "error"),
    [
        (KafkaError._PURGE_QUEUE, False, False, NotSent),
        # It may wait there for its second try: a broker that answers may have taken the first.
        (KafkaError._PURGE_QUEUE, False, True, OutcomeUnknown),
        (KafkaError._PURGE_INFLIGHT, False, False, OutcomeUnknown),
        (KafkaError._PURGE_INFLIGHT, False, True, OutcomeUnknown),
        (None, False, True, OutcomeUnknown),
        (KafkaError.MSG_SIZE_TOO_LARGE, True, True, NotSent),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True, True, NotSent),
        (KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True, True, OutcomeUnknown),
        (KafkaError.REQUEST_TIMED_OUT, True, True, OutcomeUnknown),
        (KafkaError._MSG_TIMED_OUT, True, True, OutcomeUnknown),
    ],
)
def test_what_is_not_confirmed_is_surely_not_there_or_unknown(monkeypatch, code, at_once, connected, error):
    made, clock = sender(monkeypatch, code, at_once=at_once, connected=connected)
    begin = clock.monotonic()
    with pytest.raises(error):
        made.send(RECORD, 0.4)
    assert clock.monotonic() - begin < 0.5
