"""A reader asks a busy broker once for what it needs to know, however many topics it reads."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Message

from facade.kernel.bus.kafka import connection, reader
from facade.kernel.bus.kafka.connection import Clients, Connection
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import BusError

KNOWN = {"test.state": 1, "test.commands": 2, "test.heartbeats": 1}
"""Topics on the broker, with their partitions."""


class Broker:
    """In the place of the client's consumer."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.assigned: list[tuple[str, int, int]] = []
        self.closed = False
        self.given, self.ahead = 0, 1

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        self.asked.append(topic)
        found = {
            name: SimpleNamespace(error=None, partitions=dict.fromkeys(range(count)))
            for name, count in KNOWN.items()
            if topic in (None, name)
        }
        return SimpleNamespace(topics=found)

    def assign(self, places: Any) -> None:
        self.assigned = [(place.topic, place.partition, place.offset) for place in places]

    def consume(self, limit: int, timeout: float) -> list[Any]:
        """Give a record, while the next one is written: none of the answers is empty."""
        self.given += 1
        fields = {"topic": "test.state", "partition": 0, "offset": self.given - 1, "value": b"{}", "key": b"k"}
        return [Message(**fields, timestamp=(1, 1_800_000_000_000))]

    def get_watermark_offsets(self, place: Any, cached: bool) -> tuple[int, int]:
        return 0, self.given + self.ahead

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(connection, "KAFKA", Clients(consumer=lambda _: made))
    return made


def opened(topics: dict[str, list[int] | None], **start: dict[int, int]) -> reader.KafkaReader:
    shared = Connection(Settings(prefix="test."), clock=ManualClock())
    return reader.KafkaReader(shared, topics, start=start, health=BusHealth())


def test_many_topics_are_one_question(broker: Broker) -> None:
    opened({"state": None, "commands": None, "heartbeats": [0]}, commands={1: 7})
    assert broker.asked == [None]
    assert broker.assigned == [
        ("test.state", 0, OFFSET_BEGINNING),
        ("test.commands", 0, OFFSET_BEGINNING),
        ("test.commands", 1, 7),
        ("test.heartbeats", 0, OFFSET_BEGINNING),
    ]


@pytest.mark.parametrize(
    ("topics", "says"),
    [
        ({"absent": None}, "topic test.absent does not exist"),
        ({"state": None, "absent": None}, "topic test.absent does not exist"),
        ({"state": None, "commands": [2]}, "topic test.commands has no partition"),
    ],
)
def test_what_is_missing_is_named(broker: Broker, topics: dict[str, list[int] | None], says: str) -> None:
    with pytest.raises(BusError, match=says):
        opened(topics)
    assert broker.closed


def test_a_reader_has_caught_up_though_records_come_all_the_time(broker: Broker) -> None:
    """The end that it heard of first is reached, while the client never says that it stands at the end.

    With 20 alerts a second, a new device server of the alerts refused all calls for 100 s.
    """
    one = opened({"state": None})
    broker.ahead = 3
    caught_up = []
    for _ in range(5):
        one.take(1, 0.0)
        caught_up.append(one.caught_up("state"))
    assert caught_up == [False, False, False, True, True]
