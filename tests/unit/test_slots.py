"""Who gets a slot of a consumer group, by what the kernel and the group say of its last holder."""

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.slots import SlotClaim
from facade.bus.port import Fenced
from facade.clock import ManualClock
from facade.config import Settings

MEMBER = "t.aggregate-0"


class Admin:
    """Plays the broker: each look at the group gives the next entry of the script, the last one for ever."""

    def __init__(self, *looks: str | KafkaException | None) -> None:
        self._looks = list(looks)
        self.cluster_id = str(id(self))

    def describe_cluster(self, request_timeout: float) -> Future[Any]:
        found: Future[Any] = Future()
        found.set_result(SimpleNamespace(cluster_id=self.cluster_id))
        return found

    def describe_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
        look = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        found: Future[Any] = Future()
        if isinstance(look, KafkaException):
            found.set_exception(look)
        else:
            members = [] if look is None else [SimpleNamespace(group_instance_id=MEMBER, host=look)]
            found.set_result(SimpleNamespace(members=members))
        return {groups[0]: found}


def claim_of(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> SlotClaim:
    connection = Connection(Settings(prefix="t."), clock=ManualClock())
    claim = SlotClaim(connection, "aggregate", "aggregate-0")
    monkeypatch.setattr(claim, "_admin", lambda: admin)
    return claim


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that makes claims; they end with the test as they do with their process."""
    made: list[SlotClaim] = []

    def make(admin: Admin) -> SlotClaim:
        made.append(claim_of(admin, monkeypatch))
        return made[-1]

    yield make
    for one in made:
        one.release()


OTHER_HOST = "/192.0.2.7"


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([None], id="nobody has it"),
        pytest.param(["/127.0.0.1"], id="one of this host had it, and ended, or its socket would be there"),
        pytest.param([OTHER_HOST, OTHER_HOST, None], id="one of another host that was killed leaves the group"),
        pytest.param([KafkaException(KafkaError(KafkaError._TRANSPORT)), None], id="no broker at first"),
        pytest.param([KafkaException(KafkaError(KafkaError.GROUP_ID_NOT_FOUND))], id="there is no such group yet"),
    ],
)
def test_a_slot_that_nobody_alive_has_is_taken(claims: Any, looks: list[Any]) -> None:
    assert claims(Admin(*looks)).claim()


def test_a_slot_of_a_live_process_of_this_host_is_refused_unless_told(claims: Any) -> None:
    admin = Admin(None)
    first = claims(admin)
    assert first.claim()
    with pytest.raises(Fenced, match=r"slot t\.aggregate-0 .* on this host .*--take-over"):
        claims(admin).claim()
    second = claims(admin)
    assert second.claim(take_over=True)
    first.release()  # it was fenced, and has ended
    with pytest.raises(Fenced):
        claims(admin).claim()
    second.release()
    assert claims(admin).claim()


def test_a_slot_of_a_live_process_of_another_host_is_refused_unless_told(claims: Any) -> None:
    with pytest.raises(Fenced, match=r"on host 192\.0\.2\.7"):
        claims(Admin(OTHER_HOST)).claim()
    assert claims(Admin(OTHER_HOST)).claim(take_over=True)


def test_who_waits_for_another_host_does_not_take_a_slot_that_was_taken_over_meanwhile(claims: Any) -> None:
    """The one that took over is in the group, on this host: the same as one that was killed."""
    admin = Admin(OTHER_HOST, OTHER_HOST, "/127.0.0.1")
    second, first = claims(admin), claims(admin)
    looks = iter([lambda: False, lambda: not second.claim(take_over=True)])
    with pytest.raises(Fenced, match="on this host"):
        first.claim(stopped=lambda: next(looks, lambda: False)())
    assert admin.describe_consumer_groups(["g"], 1.0)["g"].result().members[0].host == "/127.0.0.1"


def test_waiting_ends_when_it_is_to_end(claims: Any) -> None:
    stops = iter([False, True])
    assert not claims(Admin(OTHER_HOST)).claim(stopped=lambda: next(stops))
