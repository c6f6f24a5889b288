"""How a member of a group leaves it at a planned stop, and when it stays."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from facade.kernel.bus.kafka.connection import Clients, Connection
from facade.kernel.bus.kafka.group import leave
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings

AWAY = KafkaException(KafkaError(KafkaError._TIMED_OUT))
MINE, OTHERS = TopicPartition("t.a", 0), TopicPartition("t.a", 1)


class Member:
    """Plays a member of a group; `leaves`: whether the client gives its partitions up."""

    def __init__(self, clock: ManualClock, *, leaves: bool = True, away: bool = False) -> None:
        self.clock, self.leaves, self.away = clock, leaves, away
        self.id, self.is_subscribed, self.asked = "t.a-0-1", True, list[str]()

    def subscribe(self, topics: list[str], **_: Any) -> None:
        pass

    def unsubscribe(self) -> None:
        self.is_subscribed = False

    def memberid(self) -> str:
        return self.id

    def consume(self, limit: int, timeout: float) -> list[Any]:
        self.clock.sleep(timeout)
        if self.leaves and not self.is_subscribed:
            self.id = ""
        return []

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self.asked.append(self.id)
        if self.away:
            raise AWAY
        return places


@pytest.mark.parametrize(
    ("played", "left", "asked"),
    [
        pytest.param({}, True, [""], id="the group is asked once the client has left"),
        pytest.param({"away": True}, False, [""], id="the broker is away: the others wait for the session's end"),
        pytest.param({"leaves": False}, False, [], id="it takes too long: the session ends by itself"),
    ],
)
def test_it_leaves_and_knows_whether_the_group_knows(played: dict[str, bool], left: bool, asked: list[str]) -> None:
    clock = ManualClock()
    member = Member(clock, **played)
    began = clock.monotonic()
    connection = Connection(Settings(prefix="t."), clock=clock)
    assert leave(connection, member, MINE) is left  # type: ignore[arg-type]
    assert (member.is_subscribed, member.asked) == (False, asked)
    assert clock.monotonic() - began < 2.0


@pytest.mark.parametrize(
    ("assigned", "partitions", "stays"),
    [
        pytest.param([MINE, OTHERS], 2, True, id="it has all: it is expected back, and its partitions wait"),
        pytest.param([MINE], 2, False, id="others take over"),
        pytest.param([MINE], None, False, id="it is not known yet how many there are"),
        pytest.param([], 2, True, id="it has none: nothing is to be taken over"),
    ],
)
def test_a_worker_that_is_alone_stays_in_its_group(
    assigned: list[TopicPartition], partitions: int | None, stays: bool
) -> None:
    clock = ManualClock()
    member = Member(clock)
    clients = Clients(consumer=lambda _: member, producer=lambda _: SimpleNamespace())  # type: ignore[arg-type,return-value]
    connection = Connection(Settings(prefix="t."), clock=clock, clients=clients)
    log = KafkaTransactionalLog(connection, "a", group="a", slot="0", health=BusHealth())
    log._assigned = assigned
    log._shapes = {} if partitions is None else {"a": partitions}
    log.close()
    assert member.is_subscribed is stays
