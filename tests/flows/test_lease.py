"""Who may command, by the heartbeats on the log: tables of what the servers of one name see."""

import msgspec
import pytest

from facade.flows.commands.lease import TERM, Lease
from facade.flows.commands.messages import HeartbeatMessage
from facade.kernel.runtime.heartbeats import SERVERS, TOPIC, heartbeat_record
from tests.support.commanding import Bench

NAME = "SdpFacade-subarray"
T0 = 1_800_000_000.0


def beat(incarnation: str, at: float, **changes) -> HeartbeatMessage:
    fields = {"component": NAME, "devices": (), "interval": 0.5, "role": "server"} | changes
    return HeartbeatMessage(incarnation=incarnation, time=round(at * 1e6), **fields)


class Log:
    """One partition of heartbeats that every server reads in the same order."""

    def __init__(self, *incarnations: str) -> None:
        self.leases = {name: Lease(NAME, name) for name in incarnations}

    def beat(self, incarnation: str, at: float, *, delay: float = 0.0, **changes) -> None:
        """Let a server send a heartbeat at a time; everyone reads it `delay` later."""
        message = beat(incarnation, at, **changes)
        self.leases[incarnation].sent(message, at)
        for lease in self.leases.values():
            lease.fold(message, round((at + delay) * 1e6))

    def holders(self, at: float) -> set[str]:
        return {name for name, lease in self.leases.items() if lease.held(at)}


def test_the_first_one_holds_the_lease_and_the_second_is_told_by_whom():
    log = Log("a", "b")
    for step in range(10):
        log.beat("a", T0 + step / 2)
        log.beat("b", T0 + step / 2 + 0.1)
    now = T0 + 4.7
    assert log.holders(now) == {"a"}
    assert log.leases["a"].why_not_held(now, round(now * 1e6)) == ""
    why = log.leases["b"].why_not_held(now, round(now * 1e6))
    assert "incarnation a" in why
    assert "0.2 s ago" in why
    assert "stop it" in why


@pytest.mark.parametrize(
    ("silence", "holders"), [(0.0, set()), (TERM - 0.1, set()), (TERM + 0.1, {"b"})], ids=["at once", "within", "after"]
)
def test_after_a_kill_the_next_one_waits_until_the_lease_has_lapsed(silence, holders):
    log = Log("a", "b")
    log.beat("a", T0)
    log.beat("b", T0 + silence + 0.001)
    assert log.holders(T0 + silence + 0.002) - {"a"} == holders


def test_after_an_orderly_end_the_next_one_holds_it_at_once():
    log = Log("a", "b")
    log.beat("a", T0)
    log.beat("a", T0 + 0.2, stopping=True)
    assert log.holders(T0 + 0.2) == set()
    log.beat("b", T0 + 0.3)
    assert log.holders(T0 + 0.4) == {"b"}


def test_who_was_stopped_for_a_while_refuses_before_another_has_taken_over():
    """At no time do two hold the lease, however long heartbeats take to be read back."""
    log = Log("a", "b")
    log.beat("a", T0)
    for step in range(1, 100):
        at = T0 + step / 10
        log.beat("b", at)
        assert len(log.holders(at)) <= 1
    assert log.holders(T0 + 9.9) == {"b"}
    log.beat("a", T0 + 10.0)
    assert log.holders(T0 + 10.0) == {"b"}
    assert "incarnation b" in log.leases["a"].trouble(T0 + 10.0)


def test_who_has_said_goodbye_commands_no_more():
    log = Log("a", "b")
    log.beat("a", T0)
    assert log.leases["a"].held(T0 + 1)
    log.leases["a"].release()
    log.beat("a", T0 + 1)  # one that was under way comes back
    assert log.holders(T0 + 1) == set()
    assert "about to end" in log.leases["a"].why_not_held(T0 + 1, round((T0 + 1) * 1e6))


def test_a_brokers_clock_that_was_set_back_does_not_keep_a_dead_servers_lease():
    log = Log("a", "b")
    log.beat("a", T0)
    log.beat("b", T0 + 10, delay=-3600)
    assert log.holders(T0 + 10.1) == {"b"}


def test_the_lease_knows_for_how_long_it_has_been_held_without_a_gap():
    log = Log("a")
    for step in range(5):
        log.beat("a", T0 + step)
    assert log.leases["a"].held_for(T0 + 4.5) == 4.5
    assert log.leases["a"].held_for(T0 + 8) == 0.0
    log.beat("a", T0 + 20)
    assert log.leases["a"].held_for(T0 + 21) == 1.0


def test_a_heartbeat_that_took_long_is_good_only_from_its_sending():
    log = Log("a")
    log.beat("a", T0, delay=TERM - 0.5)
    assert log.leases["a"].held(T0 + TERM - 0.1)
    assert not log.leases["a"].held(T0 + TERM)
    assert "do not come back" in log.leases["a"].why_not_held(T0 + TERM, round((T0 + TERM) * 1e6))


@pytest.mark.parametrize("other", [{"component": "SdpFacade-control"}, {"role": "controller"}])
def test_other_components_do_not_count(other):
    log = Log("a", "b")
    for step in range(5):
        message = beat("b", T0 + step, **other)
        log.leases["a"].fold(message, message.time)
    assert log.leases["a"].holder is None


def test_an_absent_bus_costs_no_memory():
    lease = Lease(NAME, "a")
    for step in range(10_000):
        lease.sent(beat("a", T0 + step), T0 + step)
    assert len(lease._sent) == 100


@pytest.mark.parametrize(("topic", "is_lost"), [(TOPIC, False), (SERVERS, True)])
def test_only_device_servers_can_take_the_lease_of_one(topic: str, is_lost: bool) -> None:
    """Controllers and workers write heartbeats too, under any name."""
    bench = Bench()
    server = bench.server()
    own = server.service.sign_of_life.incarnation
    for incarnation, stopping in ((own, True), ("2000000000.000-x-y", False)):
        forged = msgspec.structs.replace(beat(incarnation, bench.clock.now()), component=server.service.instance)
        bench.broker.append(heartbeat_record(msgspec.structs.replace(forged, stopping=stopping), topic))
    server.cycle()
    assert server.gateway.lease.held(bench.clock.monotonic()) != is_lost
