"""What is said of a command that the bus did not confirm in time, by what the client reports of it."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from facade.kernel.bus.kafka.connection import Clients, Connection
from facade.kernel.bus.kafka.producer import KafkaSender
from facade.kernel.bus.kafka.reader import KafkaReader
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.clock import ManualClock, SystemClock
from facade.kernel.config import Settings
from facade.kernel.errors import NotSent, OutcomeUnknown
from tests.support.alerting import Bench
from tests.support.simulated_bus import MemorySender
from tests.support.waiting import until

RECORD = Record(topic="commands", key=b"d", value=b"{}")


OK = 0
QUIET = None
"""No report at all, also not of what is given up."""


class Producer:
    """Reports one thing about each try: when it is polled, or, for what was given up, only once it is purged."""

    def __init__(self, clock: ManualClock, codes: list[int | None]) -> None:
        self._clock, self._codes = clock, iter(codes)
        self._report = None
        self._code: int | None = None

    def produce(self, *_, on_delivery, **__):
        self._report, self._code = on_delivery, next(self._codes)
        self._at_once = self._code not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)

    def poll(self, timeout):
        if self._at_once and self._report is not None and self._code is not QUIET:
            report, self._report = self._report, None
            report(KafkaError(self._code) if self._code else None, None)
        else:
            self._clock.sleep(timeout)

    def purge(self, **_):
        self._at_once = True


def sender(monkeypatch, *codes) -> tuple[KafkaSender, ManualClock, dict]:
    clock, settings = ManualClock(), {}

    def make(given):
        settings.update(given)
        return Producer(clock, [*codes])

    connection = Connection(Settings(), clock=clock, clients=Clients(producer=make))
    return KafkaSender(connection, health=BusHealth(), client="test"), clock, settings


@pytest.mark.parametrize(
    "codes",
    [(OK,), (KafkaError._TRANSPORT, OK), (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, OK)],
)
def test_what_is_confirmed_is_sent(monkeypatch, codes):
    """At the first try, or at another one where the first met a broker that was going away."""
    made, clock, settings = sender(monkeypatch, *codes)
    begin = clock.monotonic()
    made.send(RECORD, 0.4).result()
    assert clock.monotonic() - begin < 0.1
    # What the client itself tries again is reported as never sent when it is given up, though it may be there.
    assert (settings["retries"], settings["enable.idempotence"], settings["acks"]) == (0, False, "all")


@pytest.mark.parametrize(
    ("codes", "error"),
    [
        ([KafkaError._PURGE_QUEUE], NotSent),
        ([KafkaError._PURGE_INFLIGHT], OutcomeUnknown),
        ([QUIET], OutcomeUnknown),
        ([KafkaError.MSG_SIZE_TOO_LARGE], NotSent),
        ([KafkaError.TOPIC_AUTHORIZATION_FAILED], NotSent),
        ([KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND], OutcomeUnknown),
        ([KafkaError.REQUEST_TIMED_OUT], OutcomeUnknown),
        ([KafkaError._MSG_TIMED_OUT], OutcomeUnknown),
        ([KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._PURGE_QUEUE], NotSent),
        # The first try may have been taken, whatever becomes of the second.
        ([KafkaError._TRANSPORT, KafkaError._PURGE_QUEUE], OutcomeUnknown),
        ([KafkaError._TRANSPORT, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._PURGE_QUEUE], OutcomeUnknown),
        ([KafkaError._TRANSPORT] * 100, OutcomeUnknown),
        ([KafkaError.NOT_ENOUGH_REPLICAS] * 100, NotSent),
    ],
)
def test_what_is_not_confirmed_is_surely_not_there_or_unknown(monkeypatch, codes, error):
    made, clock, _ = sender(monkeypatch, *codes)
    begin = clock.monotonic()
    with pytest.raises(error):
        made.send(RECORD, 0.4).result()
    assert clock.monotonic() - begin <= 0.401


def test_a_sender_that_sends_nothing_is_asked_what_its_client_has_to_say(monkeypatch):
    """D20: nobody polled the one for operators' actions; it kept 2 kB of statistics and more each second for ever."""
    asked = []
    monkeypatch.setattr(MemorySender, "perform", lambda self: asked.append(self))
    Bench().server(cycles=3)
    assert len(asked) >= 3
    assert len(set(asked)) == 1


def test_what_the_client_has_to_say_is_taken_without_a_record():
    health = BusHealth()
    nobody = KafkaSender(Connection(Settings(bootstrap="127.0.0.1:1"), clock=SystemClock()), health=health, client="t")

    def heard() -> str:
        nobody.perform()
        return health.last_error

    assert until(heard, "the client says that nobody answers")


def test_clients_on_which_commands_depend_look_for_a_new_leader_while_the_old_one_hangs(monkeypatch):
    """A broker that stands still keeps its connections: nothing else makes the client ask."""
    _, _, sends = sender(monkeypatch)
    reads = {}

    def consumer(given):
        reads.update(given)
        return SimpleNamespace(assign=lambda places: None, list_topics=lambda timeout: SimpleNamespace(topics={}))

    connection = Connection(Settings(), clock=ManualClock(), clients=Clients(consumer=consumer))
    KafkaReader(connection, {}, start={}, health=BusHealth())
    assert max(one["topic.metadata.refresh.interval.ms"] for one in (sends, reads)) <= 2000
