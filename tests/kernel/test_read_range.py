"""How known ranges of a topic are read to their ends, with a client that gives what the test wants."""

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.connection import Clients, Connection
from facade.kernel.bus.kafka.read_range import RangeOfPartition, read_range
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import BusError

END, MOVED = KafkaError._PARTITION_EOF, KafkaError.NOT_LEADER_FOR_PARTITION


def record(offset: int, partition: int = 0) -> Message:
    return Message(topic="t.alerts", partition=partition, offset=offset, value=b"v", timestamp=(1, 5))


def event(code: int, offset: int = -1, partition: int = 0) -> Message:
    return Message(topic="t.alerts", partition=partition, offset=offset, error=KafkaError(code))


class Client:
    """Plays a consumer that gives some messages, one in each call, and then nothing."""

    def __init__(self, clock: ManualClock, messages: Sequence[Message]) -> None:
        self._clock, self._left = clock, [*messages]
        self.assigned: list[TopicPartition] = []
        self.is_closed = False

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned = places

    def consume(self, limit: int, timeout: float) -> list[Message]:
        if self._left:
            return [self._left.pop(0)]
        self._clock.sleep(timeout)
        return []

    def close(self) -> None:
        self.is_closed = True


def read(ranges: RangeOfPartition, messages: Sequence[Message], **how: Any) -> tuple[list[int], Client]:
    clock = ManualClock()
    client = Client(clock, messages)
    connection = Connection(Settings(prefix="t."), clock=clock, clients=Clients(consumer=lambda config: client))
    try:
        return [one.offset for one in read_range(connection, "alerts", ranges, **how)], client
    finally:
        assert client.is_closed or not client.assigned


@pytest.mark.parametrize("whole", [False, True])
def test_records_behind_the_range_are_left(whole: bool) -> None:
    found, client = read({0: (3, 5), 1: (7, 7)}, [record(3), record(4), record(5)], whole=whole)
    assert found == [3, 4]
    assert [(one.partition, one.offset) for one in client.assigned] == [(0, 3)]


def test_a_range_that_ends_with_the_mark_of_a_transaction_ends() -> None:
    assert read({0: (3, 5)}, [record(3), event(END, 5)], whole=True)[0] == [3]
    assert read({0: (3, 5)}, [record(3), record(6)], whole=True)[0] == [3]


def test_a_range_ends_before_an_open_transaction_unless_all_of_it_is_wanted() -> None:
    before, after = [record(3), event(END, 4)], [record(4), event(END, 5)]
    assert read({0: (3, 5)}, before + after)[0] == [3]
    assert read({0: (3, 5)}, before + after, whole=True)[0] == [3, 4]


def test_each_partition_has_an_end_of_its_own() -> None:
    messages = [record(1, 1), record(0), event(MOVED), record(1)]
    assert read({0: (0, 2), 1: (0, 2)}, messages)[0] == [1, 0, 1]


@pytest.mark.parametrize(
    ("within", "said"), [(None, f"nothing came for {timeouts.STANDSTILL:g} s"), (4.0, "within 4 s")]
)
def test_an_end_that_does_not_come_is_named(within: float | None, said: str) -> None:
    with pytest.raises(BusError, match=rf"end of t\.alerts, partitions \[0\], was not reached.*{said}"):
        read({0: (0, 2)}, [record(0)], whole=True, within=within)


def test_a_refusal_is_said_with_the_topic() -> None:
    with pytest.raises(BusError, match=r"topic t\.alerts cannot be read at .*AUTHORIZATION"):
        read({0: (0, 2)}, [event(KafkaError.TOPIC_AUTHORIZATION_FAILED)])
