"""When a standby of a device server has its turn, and when the one that served ends."""

import signal
import socket
import struct
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from devices import standby
from devices.standby import STANDBY, Reachability, Replacement, Succession, ask_locator
from facade.bus.memory import MemoryBus, MemoryLog
from facade.bus.port import Reader
from facade.clock import ManualClock, SystemClock
from facade.config import Settings
from facade.errors import BusError
from facade.flows.commands.lease import Lease
from facade.messages import Heartbeat
from facade.runtime.heartbeats import TOPIC, SignOfLife, began, decode_heartbeat, heartbeat_record
from tests.support.waiting import until

SERVER = "SdpFacade-subarray"
FIRST, SECOND, THIRD = "1000.000-cc", "1010.500-bb", "1011.000-aa"
"""Incarnations of servers."""


def sign(incarnation: str, component: str = SERVER, *, stopping: bool = False) -> Heartbeat:
    return Heartbeat(
        component=component,
        incarnation=incarnation,
        devices=[],
        time=1,
        interval=0.5,
        role="server",
        stopping=stopping,
        version="1",
        complaints=[],
    )


def gone() -> Reachability:
    return Reachability.GONE


def hangs() -> Reachability:
    return Reachability.HANGS


def answers() -> Reachability:
    return Reachability.ANSWERS


class Log:
    """Gives signs of life to one standby, `b`."""

    def __init__(self) -> None:
        self.succession = Succession(SERVER, "b")

    def server(self, at: float, incarnation: str = "a", *, stopping: bool = False) -> None:
        self.succession.fold(sign(incarnation, stopping=stopping), round(at * 1e6))

    def standby(self, at: float, incarnation: str = "b", *, stopping: bool = False) -> None:
        self.succession.fold(sign(incarnation, SERVER + STANDBY, stopping=stopping), round(at * 1e6))


def test_a_server_that_says_goodbye_is_followed_at_once() -> None:
    log = Log()
    log.standby(100.0)
    log.server(100.1)
    assert not log.succession.is_due(gone)
    log.server(100.2, stopping=True)
    assert log.succession.is_due(gone)


def test_a_server_that_missed_signs_of_life_is_asked_and_followed_soon_if_it_is_gone_later_if_it_hangs() -> None:
    log = Log()
    log.server(100.0)
    log.standby(100.75)
    assert not log.succession.is_due(gone)
    log.standby(101.0)
    assert log.succession.is_due(gone)
    log.standby(101.5)
    assert not log.succession.is_due(hangs)
    log.standby(101.75)
    assert log.succession.is_due(hangs)
    log.standby(103.5)
    assert not log.succession.is_due(answers), "a busy machine"
    log.standby(103.75)
    assert log.succession.is_due(answers), "its event loop hangs, or it has lost the bus"


def test_a_locator_tells_whether_a_server_is_gone_hangs_or_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        profile = b"\x01\x01\x00\x00" + struct.pack("<I10sHI4s", 10, b"127.0.0.1\0", port, 4, b"key0")
        ior = b"\x01\0\0\0" + struct.pack("<I4sIII", 4, b"IDL\0", 1, 0, len(profile)) + profile
        text = f"IOR:{ior.hex()}"
        assert ask_locator(text, 0.01) is Reachability.HANGS
        asked: list[bytes] = []

        def answer() -> None:
            for _ in range(2):  # the first connection waits in the queue
                connection, _ = server.accept()
                with connection:
                    asked.append(connection.recv(100))
                    connection.sendall(b"GIOP\1\0\1\4")

        thread = threading.Thread(target=answer)
        thread.start()
        assert ask_locator(text, 10.0) is Reachability.ANSWERS
        thread.join()
    assert asked[1] == b"GIOP\1\0\1\3" + struct.pack("<III4s", 12, 1, 4, b"key0")
    assert ask_locator(text, 10.0) is Reachability.GONE
    assert ask_locator("nonsense", 10.0) is Reachability.HANGS


def test_while_the_bus_is_away_nobody_is_silent() -> None:
    log = Log()
    log.server(100.0)
    assert not log.succession.is_due(gone), "its own signs of life do not come back"
    log.standby(100.1)
    log.server(160.0)
    log.standby(160.1)
    assert not log.succession.is_due(gone)


def test_a_server_that_nobody_has_heard_of_is_waited_for() -> None:
    log = Log()
    log.standby(100.0)
    log.standby(103.0)
    assert not log.succession.is_due(gone)
    log.standby(103.75)
    assert log.succession.is_due(gone)


def test_of_several_standbys_the_first_one_that_lives_follows() -> None:
    log = Log()
    log.standby(100.0, "a2")
    log.standby(100.0)
    log.server(100.0, stopping=True)
    assert not log.succession.is_due(gone)
    log.standby(100.2, "a2", stopping=True)
    assert log.succession.is_due(gone)
    log.standby(100.3, "a3")
    assert log.succession.is_due(gone), "whatever its clock says, a3 comes later on the log, and knows this one"


def test_a_standby_that_was_silent_stands_behind_those_that_came_meanwhile() -> None:
    log = Log()
    log.standby(100.0)
    log.server(100.0, stopping=True)
    log.standby(103.9, "c")
    log.standby(104.0)
    assert not log.succession.is_due(gone), "for c, which knows nothing of its signs of life, c is the first"
    log.standby(107.4)
    log.standby(107.5)
    assert log.succession.is_due(gone), "c is silent"


def test_a_goodbye_of_a_server_that_was_replaced_is_none_of_its_successor() -> None:
    log = Log()
    log.standby(100.0)
    log.server(100.0, FIRST)
    log.server(110.0, SECOND)
    log.server(110.1, FIRST, stopping=True)
    log.standby(110.2)
    assert not log.succession.is_due(gone)
    log.server(110.5, SECOND, stopping=True)
    assert log.succession.is_due(gone)


def test_a_server_ends_when_a_later_one_has_its_name_and_not_for_an_earlier_one() -> None:
    ended_for: list[str] = []
    replacement = Replacement(SERVER, SECOND, ended_for.append)
    others = sign(FIRST), sign(SECOND), sign("unknown"), sign(THIRD, "SdpFacade-control"), sign(SECOND)
    for heartbeat in others:
        replacement.fold(heartbeat, 1)
    assert ended_for == []
    replacement.fold(sign(THIRD), 1)
    assert ended_for == [THIRD]


def test_a_server_does_not_end_for_its_predecessor_that_goes_on_and_was_not_heard_of_before() -> None:
    ended_for: list[str] = []
    replacement = Replacement(SERVER, SECOND, ended_for.append)
    replacement.fold(sign(SECOND), 1)
    replacement.fold(sign(FIRST), 2)
    assert ended_for == []


def test_a_server_that_reads_late_ends_for_a_successor_that_goes_on_and_not_for_what_stood_before_itself() -> None:
    ended_for: list[str] = []
    replacement = Replacement(SERVER, FIRST, ended_for.append)
    replacement.fold(sign(SECOND), 1)
    replacement.fold(sign(FIRST), 2)
    assert ended_for == [], "a clock that was ahead before"
    replacement.fold(sign(SECOND), 3)
    assert ended_for == [SECOND]


def test_the_text_of_an_incarnation_says_when_it_began() -> None:
    clock = ManualClock(1_000_000_000.25)
    assert began(SignOfLife(SERVER, "server", lambda record: None, clock).incarnation) == 1_000_000_000.25
    assert [began(text) for text in ("", "inf-1", "62a9f1-1f", "5", "-1.000-a")] == [0.0] * 5


class Stop(threading.Event):
    """Counts the waits, and waits for nothing."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return self.is_set()


class Ended(Exception):
    """Stands for the end of the process."""


def test_a_server_whose_reader_fails_tries_again_and_ends_without_goodbye_when_it_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, clock = MemoryLog({TOPIC: 1}), ManualClock()
    own = SignOfLife(SERVER, "server", log.append, clock)
    own.perform()
    clock.sleep(10.0)
    SignOfLife(SERVER, "server", log.append, clock).perform()
    failures = [BusError("no broker"), BusError("no broker")]

    def open_reader(settings: object, bus: object) -> Reader:
        if failures:
            raise failures.pop()
        return MemoryBus(log).open_reader({TOPIC: None}, {})

    def end_process(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(standby, "KafkaBus", lambda connection, client: None)
    monkeypatch.setattr(standby, "_open", open_reader)
    monkeypatch.setattr(standby, "end_process", end_process)
    server: Any = SimpleNamespace(settings=Settings(), clock=clock, instance=SERVER, sign_of_life=own, threads=[])
    pulse: Any = SimpleNamespace(end=lambda: None)
    standby.end_when_replaced(server, pulse)
    (follow,), stop = server.threads, Stop()
    with pytest.raises(Ended):
        follow(stop)
    assert stop.waits == 2
    assert caplog.text.count("no broker") == 1
    assert len(log.records(TOPIC)) == 2, "no goodbye"


def test_while_another_one_holds_the_lease_signs_of_life_come_more_often() -> None:
    log, clock, lease = MemoryLog({TOPIC: 1}), ManualClock(), Lease(SERVER, "b")
    own = SignOfLife(SERVER, "server", log.append, clock)
    own.interval, own.hurries = 0.5, lambda: lease.is_another_s

    def given_in_a_second() -> int:
        before = len(log.records(TOPIC))
        for _ in range(20):
            clock.sleep(0.05)
            own.perform()
        return len(log.records(TOPIC)) - before

    assert given_in_a_second() == 2, "nobody holds it: the bus may be away"
    lease.fold(sign("a"), 1)
    assert given_in_a_second() >= 9
    lease.fold(sign("a", stopping=True), 2)
    lease.fold(sign("b"), 3)
    assert given_in_a_second() <= 3


@pytest.mark.parametrize("presence", [Reachability.HANGS, Reachability.GONE])
def test_the_address_of_a_server_that_does_not_answer_is_removed_before_tango_asks_it(
    monkeypatch: pytest.MonkeyPatch, presence: Reachability
) -> None:
    removed: list[str] = []
    database: Any = SimpleNamespace(unexport_device=removed.append)
    monkeypatch.setattr(standby, "_presence", lambda database, instance: presence)
    standby._end_server(database, "subarray")
    assert removed == ["dserver/SdpFacade/subarray"]


def test_a_standby_whose_turn_it_is_stands_first_until_it_is_heard_as_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, stop = MemoryLog({TOPIC: 1}), threading.Event()
    bus: Any = MemoryBus(log)
    bus.close = lambda timeout: None
    monkeypatch.setattr(standby, "KafkaBus", lambda connection, client: bus)
    monkeypatch.setattr(standby, "_open", lambda settings, bus: bus.open_reader({TOPIC: None}, {}))
    monkeypatch.setattr(standby.tango, "Database", lambda: None)
    monkeypatch.setattr(standby, "_end_server", lambda database, instance: None)
    log.append(heartbeat_record(sign("0.000-a", stopping=True)))
    pulse = standby.await_turn(Settings(), "subarray")

    def told() -> list[tuple[str, bool]]:
        found = [decode_heartbeat(one.value) for one in log.records(TOPIC)[1:]]
        return [(one.component, one.stopping) for one in found if isinstance(one, Heartbeat)]

    before = len(told())
    until(lambda: len(told()) > before, "it goes on as a standby while it starts")
    assert set(told()) == {(SERVER + STANDBY, False)}, "another standby has no turn"
    own = SignOfLife(SERVER, "server", log.append, SystemClock())
    server: Any = SimpleNamespace(
        settings=Settings(), clock=SystemClock(), instance=SERVER, sign_of_life=own, threads=[]
    )
    standby.end_when_replaced(server, pulse)
    own.perform()
    following = threading.Thread(target=server.threads[0], args=(stop,))
    following.start()
    until(lambda: (SERVER + STANDBY, True) in told(), "the standby says goodbye")
    stop.set()
    following.join()
    assert told().index((SERVER, False)) < told().index((SERVER + STANDBY, True))


def test_a_standby_that_is_told_to_end_when_the_server_says_goodbye_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    bus: Any = MemoryBus(MemoryLog({TOPIC: 1}))
    bus.close = lambda timeout: None

    def end_process() -> None:
        raise Ended

    def is_due(succession: Succession, ask: object) -> bool:
        signal.raise_signal(signal.SIGTERM)
        return True

    monkeypatch.setattr(standby, "KafkaBus", lambda connection, client: bus)
    monkeypatch.setattr(standby, "_open", lambda settings, bus: bus.open_reader({TOPIC: None}, {}))
    monkeypatch.setattr(standby.tango, "Database", lambda: None)
    monkeypatch.setattr(standby, "end_process", end_process)
    monkeypatch.setattr(Succession, "is_due", is_due)
    with pytest.raises(Ended):
        standby.await_turn(Settings(), "subarray")
