"""Whether a member of a group leaves it at a planned stop, by who else is there."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from facade.bus.kafka.connection import Clients, Connection
from facade.bus.kafka.departure import leave
from facade.bus.port import BusHealth
from facade.clock import ManualClock
from facade.config import Settings

AWAY = KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Group:
    """Plays a group, and a member of it; `away`: from which question on there is no answer."""

    def __init__(self, clock: ManualClock, others: set[str], *, away: int, leaves: bool) -> None:
        self.clock, self.members, self.away, self.leaves = clock, {"t.a-0", *others}, away, leaves
        self.asked, self.is_subscribed = 0, True

    def describe_consumer_groups(self, names: list[str], request_timeout: float) -> dict[str, Future[Any]]:
        self.asked += 1
        answer: Future[Any] = Future()
        if self.asked > self.away:
            answer.set_exception(AWAY)
        else:
            answer.set_result(
                SimpleNamespace(members=[SimpleNamespace(group_instance_id=one, member_id="") for one in self.members])
            )
        return {names[0]: answer}

    def unsubscribe(self) -> None:
        self.is_subscribed = False

    def consume(self, limit: int, timeout: float) -> list[Any]:
        self.clock.sleep(timeout)
        if self.leaves and not self.is_subscribed:
            self.members.discard("t.a-0")
        return []


@pytest.mark.parametrize(
    ("others", "away", "leaves", "left", "subscribed"),
    [
        pytest.param(set(), 9, True, False, True, id="alone: it is expected back, and its partitions wait"),
        pytest.param({"t.a-1"}, 9, True, True, False, id="others take over"),
        pytest.param({"t.a-1"}, 0, True, False, True, id="the broker is away: it would not hear of it"),
        pytest.param({"t.a-1"}, 1, True, False, False, id="the broker goes away meanwhile"),
        pytest.param({"t.a-1"}, 99, False, False, False, id="it takes too long: the session ends by itself"),
    ],
)
def test_it_leaves_where_others_can_take_over(
    others: set[str], away: int, leaves: bool, left: bool, subscribed: bool
) -> None:
    clock = ManualClock()
    group = Group(clock, others, away=away, leaves=leaves)
    clients = Clients(consumer=lambda _: group, admin=lambda _: group)  # type: ignore[arg-type,return-value]
    connection = Connection(Settings(prefix="t."), clock=clock, clients=clients)
    began = clock.monotonic()
    assert leave(connection, connection.consumer(BusHealth(), {}), "t.a", "t.a-0") is left
    assert group.is_subscribed is subscribed
    assert clock.monotonic() - began < 2.0
