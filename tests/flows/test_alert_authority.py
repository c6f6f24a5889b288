"""Who may act on alarms: an action counts only if a device server has given it, and once."""

import json

import pytest

from facade.flows.alerts.messages import ACTIONS, ALERTS, Action, action_records
from facade.kernel.bus.port import Record
from facade.kernel.errors import BusError
from tests.support.alerting import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def server(bench):
    bench.alert()
    return bench.server()


def forged(bench: Bench, action: str, **more) -> Record:
    """Return what whoever may write to ``alerts`` can put there, in the name of an operator."""
    content = {"operator": "anna", "comment": "c", "time": bench.now_us, "origin": "mid-sdp/alerts/0", **more}
    content |= {"client": "this host (sdp-1), process 4242", "until": bench.now_us + 60_000_000, "id": f"f-{action}"}
    return action_records(Action(action=action, condition="receiveOverrun", source="receive/1", **content))[1]


def shown(server) -> tuple[str, int, list[str]]:
    """Return the state of the alarm, the actions that took effect, and those that clients get, by id."""
    entries = json.loads(server.api.since(0))["entries"]
    return server.state(), server.flow.actions, [one["action"]["id"] for one in entries if "action" in one]


KINDS = ("ACKNOWLEDGE", "COMMENT", "SHELVE", "UNSHELVE", "RESET", "REMOVE_FROM_SERVICE", "RETURN_TO_SERVICE")


@pytest.mark.parametrize("kind", KINDS)
def test_an_action_that_no_device_server_has_given_changes_nothing_and_is_a_dead_letter(bench, server, kind):
    if kind in ("UNSHELVE", "RETURN_TO_SERVICE"):
        for hide in ("SHELVE", "REMOVE_FROM_SERVICE"):
            bench.action(hide, until=bench.now_us + 60_000_000, id=hide)
    server.cycle()
    before = shown(server)
    bench.broker.append(forged(bench, kind, occurrence=1))
    server.cycle()
    assert shown(server) == before
    (letter,) = bench.letters()
    assert letter.startswith("action: expected an action of a device server")
    assert shown(bench.server()) == before, "nor is it among the actions that are read again after a restart"


def test_a_given_action_that_is_put_on_the_log_again_changes_nothing(bench, server):
    server.act("RemoveFromService", "REMOVE_FROM_SERVICE", comment="c")
    server.act("ReturnToService", "RETURN_TO_SERVICE")
    before = shown(server)
    removal = next(one for one in bench.broker.read(ALERTS) if b"REMOVE" in one.value)
    for seconds in (0.1, 700.0):  # also when its id is not remembered any more
        bench.clock.sleep(seconds)
        bench.broker.append(Record(topic=ALERTS, key=removal.key, value=removal.value))
        server.cycle()
        assert shown(server) == before
        server = bench.server()
        server.flow._acted.clear()
    assert server.state() == "UNACK"


def test_an_action_that_another_device_server_has_given_counts(bench, server):
    bench.broker.append(forged(bench, "SHELVE"))
    server.cycle()
    bench.clock.sleep(1.0)  # a look at the topic each second, for those who put forged ones there
    bench.action("REMOVE_FROM_SERVICE", id="theirs")
    server.cycle()
    assert shown(server) == ("OOSRV", 1, ["theirs"])
    assert shown(bench.server())[0] == "OOSRV"


@pytest.mark.parametrize(("failures", "counts"), [(1, True), (9, True), (20, False)])
def test_an_action_is_read_again_while_the_bus_does_not_say_who_has_given_it(
    bench, server, monkeypatch, failures, counts
):
    """If the proofs cannot be read for good, alerts go on without it."""
    read, left = server.bus.read_all, [BusError("no broker answers")] * failures

    def answer(topic: str):
        if left and topic == ACTIONS:
            raise left.pop()
        return read(topic)

    monkeypatch.setattr(server.bus, "read_all", answer)
    bench.action("REMOVE_FROM_SERVICE", id="theirs")
    bench.alert()
    for _ in range(30):
        try:
            server.cycle(1, seconds=1.0)
        except BusError:  # as `EventLoop.run` does
            server.reader = server.service.event_loop._open()
    assert shown(server) == (("OOSRV", 1, ["theirs"]) if counts else ("UNACK", 0, []))
    assert server.flow.alerts == 2


def test_forged_actions_make_a_server_look_for_proofs_once_a_second(bench, server, monkeypatch):
    looks = []
    read = server.bus.read_all
    monkeypatch.setattr(server.bus, "read_all", lambda topic: looks.append(topic) or read(topic))
    for number in range(100):
        bench.broker.append(forged(bench, "COMMENT", occurrence=number))
    server.cycle(1)
    assert looks == [ACTIONS]
    server.act("Shelve", "SHELVE", duration=60.0, comment="c")
    assert server.state() == "SHLVD", "a server needs no look for what it gave itself"


def test_an_action_whose_place_was_not_taken_by_the_bus_is_not_done(bench, server, monkeypatch):
    """The operator is told; what stands on the topic of proofs alone does nothing."""
    send = server.api._send

    def only_proofs(record: Record, timeout: float) -> None:
        server.bus.away = record.topic == ALERTS
        send(record, timeout)

    monkeypatch.setattr(server.api, "_send", only_proofs)
    with pytest.raises(Exception, match="plays dead"):
        server.act("Shelve", "SHELVE", duration=60.0, comment="c")
    server.bus.away = False
    server.cycle()
    assert len(bench.broker.read(ACTIONS)) == 1
    assert shown(server) == ("UNACK", 0, [])
