"""A topic that may not be used is told from one that is not there, with a client that says what the test wants."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from facade.kernel.bus.kafka.connection import Clients, Connection
from facade.kernel.bus.kafka.producer import KafkaStreamWriter, KafkaWriter
from facade.kernel.bus.kafka.reader import KafkaReader
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import BusError

NO_RIGHT = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class Client:
    """Plays a consumer or producer for which the brokers have one answer about any topic."""

    answer: KafkaError | None = None
    """None: the topic is there, but whoever takes from it or writes to it is refused."""

    def __init__(self, config: dict[str, Any]) -> None:
        pass

    def list_topics(self, name: str, timeout: float) -> SimpleNamespace:
        partitions = {} if self.answer else {0: None}
        return SimpleNamespace(topics={name: SimpleNamespace(error=self.answer, partitions=partitions)})

    def assign(self, places: list[object]) -> None:
        pass

    def consume(self, limit: int, timeout: float) -> list[SimpleNamespace]:
        return [SimpleNamespace(error=lambda: NO_RIGHT, topic=lambda: "t.state", partition=lambda: 0, offset=lambda: 0)]

    def produce(self, topic: str, *_: object, on_delivery: Any, **__: object) -> None:
        on_delivery(NO_RIGHT, SimpleNamespace(topic=lambda: topic))

    def poll(self, timeout: float) -> int:
        return 0

    def close(self) -> None:
        pass


CONNECTION = Connection(Settings(prefix="t."), clock=ManualClock(), clients=Clients(consumer=Client, producer=Client))


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    monkeypatch.setattr(Client, "answer", None)
    return Client


@pytest.mark.parametrize(
    ("code", "reading", "writing"),
    [
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "no right to topic t.state: this process's principal needs Describe and Read on it",
            "no right to topic t.state: this process's principal needs Describe and Write on it",
        ),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, *["topic t.state does not exist; create it with"] * 2),
        (
            KafkaError.LEADER_NOT_AVAILABLE,
            *["topic t.state cannot be used now: LEADER_NOT_AVAILABLE: Broker"] * 2,
        ),
    ],
)
def test_what_the_brokers_say_of_a_topic_is_said(client: type[Client], code: int, reading: str, writing: str) -> None:
    """Only a topic that is not there is to be created; for a missing ACL that would be a wrong trail."""
    client.answer = KafkaError(code)
    with pytest.raises(BusError) as refused:
        KafkaReader(CONNECTION, {"state": None}, start={}, health=BusHealth())
    assert reading in str(refused.value)
    with pytest.raises(BusError) as refused:
        KafkaStreamWriter(CONNECTION, health=BusHealth(), client="w").require_topic("state", 1.0)
    assert writing in str(refused.value)


def test_a_right_that_is_missing_later_is_named_with_its_topic() -> None:
    """Describe alone shows a topic; the brokers refuse each record of it, and their words name no topic."""
    health = BusHealth()
    KafkaReader(CONNECTION, {"state": None}, start={}, health=health).take(1, 0.0)
    assert "no right to topic t.state: this process's principal needs Describe and Read" in health.last_error
    KafkaWriter(CONNECTION, health=health, client="w").send(Record(topic="alerts", key=b"", value=b""))
    assert "no right to topic t.alerts: this process's principal needs Describe and Write" in health.last_error


def test_a_topic_counts_as_refused_until_something_of_it_is_read(
    client: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client says once that a fetch was refused, and goes on trying."""
    reader = KafkaReader(CONNECTION, {"state": None}, start={}, health=BusHealth())

    def is_refused(*messages: tuple[int, int | None]) -> bool:
        fields: dict[str, Any] = {"topic": "t.state", "partition": 0, "value": b"", "timestamp": (1, 1)}
        taken = [
            Message(offset=at, error=None if code is None else KafkaError(code), **fields) for at, code in messages
        ]
        monkeypatch.setattr(client, "consume", lambda self, limit, timeout: taken)
        reader.take_columns(9, 0.0)
        assert set(reader.refused) <= {"state"}
        return bool(reader.refused)

    refusal, end = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._PARTITION_EOF
    assert [is_refused(), is_refused((5, refusal)), is_refused()] == [False, True, True]
    assert not is_refused((5, None))
    assert is_refused((6, None), (7, refusal))
    assert not is_refused((7, end))
    assert is_refused((7, refusal))
    assert not is_refused((7, None), (8, None))
