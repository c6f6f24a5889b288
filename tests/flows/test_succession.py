"""When a standby of a device server has its turn, and when the one that served ends."""

import signal
import socket
import struct
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import tango

from devices.kernel import standby
from devices.kernel.standby import STANDBY, Reachability, Replacement, Succession, ask_locator
from facade.flows.commands.lease import Lease
from facade.kernel.bus.memory import MemoryBus, MemoryLog
from facade.kernel.bus.port import Reader
from facade.kernel.clock import ManualClock, SystemClock
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from facade.kernel.runtime.heartbeats import (
    SERVERS,
    TOPIC,
    Pulse,
    SignOfLife,
    began,
    decode_heartbeat,
    heartbeat_record,
    host_of,
)
from facade.sdp.messages import Heartbeat
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
    """Gives heartbeats to one standby, `b`."""

    def __init__(self) -> None:
        self.succession = Succession(SERVER, "b")

    def server(self, at: float, incarnation: str = "a", *, stopping: bool = False) -> None:
        self.succession.fold(sign(incarnation, stopping=stopping), round(at * 1e6))

    def standby(self, at: float, incarnation: str = "b", *, stopping: bool = False) -> None:
        self.succession.fold(sign(incarnation, SERVER + STANDBY, stopping=stopping), round(at * 1e6))


def test_a_server_that_has_ended_in_order_is_followed_at_once() -> None:
    log = Log()
    log.standby(100.0)
    log.server(100.1)
    assert not log.succession.is_due(gone)
    log.server(100.2, stopping=True)
    assert log.succession.is_due(gone)
    assert log.succession.is_due(lambda: Reachability.UNEXPORTED)


def test_a_server_that_ends_has_time_for_its_last_events() -> None:
    log = Log()
    log.standby(100.0)
    log.server(100.2, stopping=True)
    for at in range(101, 106):
        log.standby(at)
        assert not log.succession.is_due(answers)
        assert not log.succession.is_due(hangs)
    log.standby(105.25)
    assert log.succession.is_due(answers)
    assert log.succession.is_due(hangs)


def test_a_server_that_missed_heartbeats_is_asked_and_followed_soon_if_it_is_gone_later_if_it_hangs() -> None:
    log = Log()
    log.standby(99.9)
    log.server(100.0)
    log.standby(100.75)
    assert not log.succession.is_due(gone)
    log.standby(101.0)
    assert log.succession.is_due(gone)
    assert not log.succession.is_due(lambda: Reachability.UNEXPORTED), "it may run"
    log.standby(101.5)
    assert not log.succession.is_due(hangs)
    log.standby(101.75)
    assert log.succession.is_due(hangs)
    assert log.succession.is_due(lambda: Reachability.UNEXPORTED)
    log.standby(103.5)
    assert not log.succession.is_due(answers), "a busy machine"
    log.standby(103.75)
    assert log.succession.is_due(answers), "its event loop hangs, or it has lost the bus"


def test_without_a_tango_database_a_standby_goes_on_waiting() -> None:
    log = Log()
    log.standby(99.9)
    log.server(100.0)
    log.standby(102.0)
    log.standby(104.0)
    assert not log.succession.is_due(lambda: Reachability.UNKNOWN)
    log.server(104.1, stopping=True)
    assert not log.succession.is_due(lambda: Reachability.UNKNOWN)


def test_a_standby_that_gives_its_place_has_no_turn_until_it_has_read_so_and_then_stands_last() -> None:
    log = Log()
    log.server(100.0, stopping=True)
    log.standby(100.1)
    log.standby(100.2, "c")
    assert log.succession.is_due(gone)

    log.succession.give_place()
    log.standby(100.3)
    assert not log.succession.is_due(gone), "the other one may have read it"
    log.standby(100.4, "c", stopping=True)
    assert not log.succession.is_due(gone)

    log.standby(100.4, "c")
    log.standby(100.5, stopping=True)
    log.standby(100.5)
    assert not log.succession.is_due(gone), "the other one is first"
    log.standby(100.6, "c", stopping=True)
    assert log.succession.is_due(gone)


def test_heartbeats_that_came_during_the_question_count() -> None:
    log = Log()
    log.standby(99.9)
    log.server(100.0)
    log.standby(101.75)

    def ask() -> Reachability:
        log.server(102.0)
        log.standby(103.0)
        return Reachability.HANGS

    assert not log.succession.is_due(ask)


def ior_of(host: str, port: int) -> str:
    name = host.encode() + b"\0"
    body = b"\x01\x01\x00\x00" + struct.pack("<I", len(name)) + name
    profile = body + bytes(len(body) % 2) + struct.pack("<H", port)
    profile += bytes(-len(profile) % 4) + struct.pack("<I4s", 4, b"key0")
    whole = b"\x01\0\0\0" + struct.pack("<I4sIII", 4, b"IDL\0", 1, 0, len(profile)) + profile
    return f"IOR:{whole.hex()}"


HERE, UNKNOWN_OBJECT = (b"GIOP\1\0\1\4" + struct.pack("<III", 8, 1, status) for status in (1, 0))
BIG_ENDIAN = b"GIOP\1\0\0\4" + struct.pack(">III", 8, 1, 1)
CLOSE = b"GIOP\1\0\1\5" + struct.pack("<I", 0)


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (HERE, Reachability.ANSWERS),
        (BIG_ENDIAN, Reachability.ANSWERS),
        (UNKNOWN_OBJECT, Reachability.GONE),  # of another server, which has got the port
        (CLOSE, Reachability.HANGS),
        (b"HTTP/1.1 400 Bad Request", Reachability.HANGS),
        (b"", Reachability.HANGS),
    ],
)
def test_the_reply_of_a_locator_tells_whether_a_server_answers(reply: bytes, found: Reachability) -> None:
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(100))
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        assert ask_locator(ior_of("127.0.0.1", server.getsockname()[1]), 10.0, is_one_host=True) is found
        thread.join()
    assert asked == [b"GIOP\1\0\1\3" + struct.pack("<III4s", 12, 1, 4, b"key0")]


def test_a_server_that_does_not_reply_hangs_and_one_that_refuses_connections_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = ior_of("127.0.0.1", server.getsockname()[1])
        assert ask_locator(text, 0.01, is_one_host=True) is Reachability.HANGS
    assert ask_locator(text, 10.0, is_one_host=True) is Reachability.GONE
    assert ask_locator(text, 10.0, is_one_host=False) is Reachability.HANGS, "it may be of another host"
    assert ask_locator(ior_of("localhost", 1), 10.0, is_one_host=False) is Reachability.HANGS
    assert ask_locator(ior_of("127.0.0.1", 0), 10.0, is_one_host=True) is Reachability.HANGS
    assert ask_locator("nonsense", 10.0, is_one_host=True) is Reachability.HANGS


def test_the_database_tells_where_to_ask_and_may_be_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def presence(reply: Any, host: str = "127.0.0.1") -> Reachability:
        monkeypatch.setattr(standby, "addresses", lambda: (f"{host}:10000",))

        def command_inout(name: str, device: str) -> Any:
            assert (name, device) == ("DbGetDeviceInfo", "dserver/SdpFacade/subarray")
            if reply == "RuntimeError":
                raise RuntimeError
            if isinstance(reply, str):
                tango.Except.throw_exception(reply, "", "")
            return reply

        monkeypatch.setattr(standby, "answering", lambda: iter([SimpleNamespace(command_inout=command_inout)]))
        return standby._presence("subarray")

    with socket.create_server(("127.0.0.1", 0)) as server:
        ior = ior_of("127.0.0.1", server.getsockname()[1])
    assert presence(([1, 7], ["name", ior])) is Reachability.GONE
    assert presence(([1, 7], ["name", ior]), "localhost") is Reachability.GONE
    assert presence(([1, 7], ["name", ior]), "db.site") is Reachability.HANGS
    assert presence(([0, 7], ["name", ior])) is Reachability.UNEXPORTED
    assert presence("DB_DeviceNotDefined") is Reachability.UNEXPORTED
    assert presence("API_CorbaException") is Reachability.UNKNOWN
    assert presence("RuntimeError") is Reachability.UNKNOWN
    monkeypatch.setattr(standby, "answering", lambda: iter(()))
    assert standby._presence("subarray") is Reachability.UNKNOWN


def test_while_the_bus_is_away_nobody_is_silent() -> None:
    log = Log()
    log.server(100.0)
    assert not log.succession.is_due(gone), "its own heartbeats do not come back"
    log.standby(100.1)
    log.server(160.0)
    log.standby(160.1)
    assert not log.succession.is_due(gone)


def test_after_an_outage_of_the_bus_a_server_has_time_for_its_next_heartbeat() -> None:
    for outage in (2.5, 3.0, 3.5, 60.0):
        log = Log()
        log.standby(99.5)
        log.server(99.8)
        log.standby(100.25)
        log.standby(100.25 + outage)
        assert not log.succession.is_due(answers), outage
        log.server(100.5 + outage)
        log.standby(100.5 + outage)
        assert not log.succession.is_due(gone), outage


def test_a_standby_that_begins_after_an_outage_of_the_bus_waits_for_the_server() -> None:
    log = Log()
    log.server(40.0)
    log.standby(100.0)
    assert not log.succession.is_due(gone)


def test_after_the_clock_of_the_broker_was_set_a_server_that_lives_has_a_successor_only_when_it_is_silent() -> None:
    for now in (13600.0, 6400.0):
        for server_first in (True, False):
            log = Log()
            log.standby(9990.0)
            log.standby(9992.0)
            log.server(10000.0)
            log.standby(10000.0)
            if server_first:
                log.server(now)
                assert not log.succession.is_due(gone)
            log.standby(now + 0.1)
            assert not log.succession.is_due(gone)
            log.server(now + 0.5)
            log.standby(now + 1.0)
            assert not log.succession.is_due(gone)
            log.standby(now + 1.5)
            assert log.succession.is_due(gone)


def test_after_the_clock_of_the_broker_was_set_back_standbys_stand_in_a_new_order() -> None:
    log = Log()
    log.standby(10000.0, "a2")
    log.standby(10000.0)
    log.standby(6400.0)
    log.server(6400.1, stopping=True)
    assert log.succession.is_due(gone)
    log.standby(6400.2, "a2")
    assert log.succession.is_due(gone), "a standby that begins now reads this one first"


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
    assert not log.succession.is_due(gone), "for c, which knows nothing of its heartbeats, c is the first"
    log.standby(107.4)
    log.standby(107.5)
    assert log.succession.is_due(gone), "c is silent"


def test_the_final_heartbeat_of_a_server_that_was_replaced_is_none_of_its_successor() -> None:
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


@pytest.mark.parametrize("other", [FIRST, THIRD])
def test_the_server_that_the_tango_database_names_stays_whichever_began_later(other: str) -> None:
    """Two that start at once export their devices in any order; clients find the last one that did."""
    ended_for: list[str] = []
    for is_exported in (True, False):
        replacement = Replacement(SERVER, SECOND, ended_for.append, is_exported=lambda found=is_exported: found)
        for heartbeat in (sign(other), sign(SECOND), sign(other)):
            replacement.fold(heartbeat, 1)
        assert ended_for == ([] if is_exported else [other])


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
    assert [began(text) for text in ("", "inf-1", "62a9f1-1f", "5", "-1.000-a", "999999999999.000-x")] == [0.0] * 6


def test_the_text_of_an_incarnation_has_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "sdp-1.example.org")
    sign = SignOfLife(SERVER, "server", lambda record: None, ManualClock())
    assert host_of(sign.incarnation) == "sdp-1.example.org"
    assert [host_of(text) for text in ("1795701634.246-ab12cd34", "62a9f1-1f", "")] == ["", "", ""]


class Stop(threading.Event):
    """Counts the waits, and waits for nothing."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return self.is_set()


class Ended(BaseException):
    """Stands for the end of the process."""


def test_a_server_whose_reader_fails_tries_again_and_ends_without_a_final_heartbeat_when_it_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, clock = MemoryLog({SERVERS: 1, TOPIC: 1}), ManualClock()
    own = SignOfLife(SERVER, "server", log.append, clock)
    own.perform()
    clock.sleep(10.0)
    SignOfLife(SERVER, "server", log.append, clock).perform()
    failures = [BusError("no broker"), BusError("no broker"), ValueError("a bug")]

    def open_reader(settings: object, bus: object) -> Reader:
        if failures:
            raise failures.pop()
        return MemoryBus(log).open_reader({SERVERS: None}, {})

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
    assert stop.waits == 4
    assert caplog.text.count("no broker") == 1
    assert len(log.records(SERVERS)) == 2, "no final heartbeat"


def test_only_what_device_servers_write_tells_of_a_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Controllers and workers write heartbeats too, under any name."""
    log, heard, asked = MemoryLog({SERVERS: 1, TOPIC: 1}), [], list[dict[str, bool]]()
    log.append(heartbeat_record(sign(FIRST), TOPIC))
    own = SignOfLife(SERVER, "server", log.append, ManualClock())
    own.perform()
    monkeypatch.setattr(standby, "find_range", lambda connection, topic, **how: {0: (0, 1)})
    monkeypatch.setattr(standby, "Connection", lambda settings: None)
    opened = MemoryBus(log).open_reader({SERVERS: None}, {})
    bus: Any = SimpleNamespace(open_reader=lambda topics, starts, **how: asked.append(how) or opened)
    monkeypatch.setattr(standby, "_WAIT", 0.0)
    standby._take(standby._open(Settings(), bus), lambda beat, at: heard.append(beat.incarnation))
    assert heard == [own.incarnation]
    assert asked == [{"together": True}], "one answer for the heartbeats of many servers"
    assert len(log.records(TOPIC)) == 2, "all others know it by the topic of all"


def test_while_another_server_holds_the_lease_heartbeats_come_more_often() -> None:
    log, clock, lease = MemoryLog({SERVERS: 1, TOPIC: 1}), ManualClock(), Lease(SERVER, "b")
    own = SignOfLife(SERVER, "server", log.append, clock)
    own.interval, own.hurries = 0.5, lambda: lease.is_another_s

    def given_in_a_second() -> int:
        before = len(log.records(SERVERS))
        for _ in range(20):
            clock.sleep(0.05)
            own.perform()
        return len(log.records(SERVERS)) - before

    assert given_in_a_second() == 2, "nobody holds it: the bus may be away"
    lease.fold(sign("a"), 1)
    assert given_in_a_second() >= 9
    lease.fold(sign("a", stopping=True), 2)
    lease.fold(sign("b"), 3)
    assert given_in_a_second() <= 3


class Admin:
    """A database and an admin device: notes commands, and fails one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *presence: Reachability, fails: str) -> None:
        self.commands: list[Any] = []
        self.clock = ManualClock()
        self._fails, answers = fails, [*presence]
        monkeypatch.setattr(standby, "_presence", lambda instance: answers.pop(0) if answers[1:] else answers[0])
        self.asked = list[str]()
        monkeypatch.setattr(tango, "DeviceProxy", lambda name: self.asked.append(name) or self)
        monkeypatch.setattr(standby, "answering", lambda: iter([self]))
        monkeypatch.setattr(standby, "address_of", lambda database: "second:10000")
        standby._end_server("subarray", self.clock)

    def command_inout(self, *command: str) -> None:
        self.commands.append(command)
        if command[0] == self._fails:
            tango.Except.throw_exception("", "", "")


UNEXPORT = ("DbUnExportServer", "SdpFacade/subarray")


@pytest.mark.parametrize("presence", [Reachability.HANGS, Reachability.GONE])
def test_the_address_of_a_server_that_does_not_answer_is_removed_before_tango_asks_it(
    monkeypatch: pytest.MonkeyPatch, presence: Reachability
) -> None:
    admin = Admin(monkeypatch, presence, fails="DbUnExportServer")
    assert admin.commands == [UNEXPORT]


def test_a_server_that_answers_is_killed_and_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(monkeypatch, *[Reachability.ANSWERS] * 3, Reachability.GONE, fails="")
    assert admin.commands == [("Kill",), UNEXPORT]
    assert admin.asked == ["tango://second:10000/dserver/SdpFacade/subarray"], "the first database may stand still"
    assert admin.clock.monotonic() - ManualClock().monotonic() == pytest.approx(0.1)


def test_a_database_that_fails_does_not_say_which_server_clients_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: str) -> None:
        raise RuntimeError("a CORBA error")

    util = SimpleNamespace(_UseDb=True, get_dserver_device=lambda: SimpleNamespace(get_name=lambda: "dserver/a/b"))
    monkeypatch.setattr(tango.Util, "instance", lambda *_: util)
    monkeypatch.setattr(standby, "answering", lambda: iter([SimpleNamespace(command_inout=fail)]))
    assert standby.is_exported() is None


def stand_by(monkeypatch: pytest.MonkeyPatch, log: MemoryLog, presence: Callable[[], Reachability]) -> Pulse:
    """Stand by until the turn comes."""
    bus: Any = MemoryBus(log)
    bus.close = lambda timeout: None
    monkeypatch.setattr(standby, "KafkaBus", lambda connection, client: bus)
    monkeypatch.setattr(standby, "_open", lambda settings, bus: bus.open_reader({SERVERS: None}, {}))
    monkeypatch.setattr(standby, "_end_server", lambda instance, clock: None)
    monkeypatch.setattr(standby, "_presence", lambda instance: presence())
    return standby.await_turn(Settings(), "subarray")


def test_a_standby_writes_heartbeats_while_it_asks_and_for_as_long_as_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    log, clock = MemoryLog({SERVERS: 1, TOPIC: 1}), ManualClock()
    monkeypatch.setattr(standby, "SystemClock", lambda: clock)
    log.append(heartbeat_record(sign("0.000-a", stopping=True), SERVERS))
    found = [Reachability.GONE, Reachability.UNKNOWN]

    def presence() -> Reachability:
        before = len(log.records(SERVERS))
        clock.sleep(40.0)
        until(lambda: len(log.records(SERVERS)) > before, "it goes on")
        return found.pop()

    stand_by(monkeypatch, log, presence).end()


def test_a_standby_that_alone_reaches_no_tango_database_lets_another_one_go_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    log = MemoryLog({SERVERS: 1, TOPIC: 1}, clock)
    monkeypatch.setattr(standby, "SystemClock", lambda: clock)
    log.append(heartbeat_record(sign("0.000-a", stopping=True), SERVERS))
    other, turns = "1.000-b", list[bool]()

    def has_turn() -> bool:
        """Return whether the other standby, which came later, has its turn by what is on the log."""
        succession = Succession(SERVER, other)
        for record in log.records(SERVERS):
            heartbeat = decode_heartbeat(record.value)
            assert isinstance(heartbeat, Heartbeat)
            succession.fold(heartbeat, record.timestamp_us)
        return succession.is_due(gone)

    def presence() -> Reachability:
        if turns:
            return Reachability.GONE
        log.append(heartbeat_record(sign(other, SERVER + STANDBY), SERVERS))
        turns.append(has_turn())
        return Reachability.UNKNOWN

    def sleep(seconds: float) -> None:
        turns.append(has_turn())
        log.append(heartbeat_record(sign(other, SERVER + STANDBY, stopping=True), SERVERS))

    monkeypatch.setattr(clock, "sleep", sleep)
    stand_by(monkeypatch, log, presence).end()
    assert turns == [False, True]


def test_a_server_that_is_heard_while_a_standby_asks_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog({SERVERS: 1, TOPIC: 1})
    log.append(heartbeat_record(sign("0.000-a", stopping=True), SERVERS))
    heard = [msgspec.structs.replace(sign("1.000-b"), interval=0.05)]
    asked: list[bool] = []

    def presence() -> Reachability:
        asked.append(bool(heard))
        if heard:
            log.append(heartbeat_record(heard.pop(), SERVERS))
        return Reachability.GONE

    stand_by(monkeypatch, log, presence).end()
    assert asked == [True, False]


def test_a_standby_whose_turn_it_is_stands_first_until_it_is_heard_as_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, stop = MemoryLog({SERVERS: 1, TOPIC: 1}), threading.Event()
    log.append(heartbeat_record(sign("0.000-a", stopping=True), SERVERS))
    pulse = stand_by(monkeypatch, log, gone)

    def told() -> list[tuple[str, bool]]:
        found = [decode_heartbeat(one.value) for one in log.records(SERVERS)[1:]]
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
    until(lambda: (SERVER + STANDBY, True) in told(), "the standby has ended")
    stop.set()
    following.join()
    assert told().index((SERVER, False)) < told().index((SERVER + STANDBY, True))


def test_a_standby_that_is_told_to_end_when_the_server_ends_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_process() -> None:
        raise Ended

    def is_due(succession: Succession, ask: object) -> bool:
        signal.raise_signal(signal.SIGTERM)
        return True

    monkeypatch.setattr(standby, "end_process", end_process)
    monkeypatch.setattr(Succession, "is_due", is_due)
    with pytest.raises(Ended):
        stand_by(monkeypatch, MemoryLog({SERVERS: 1, TOPIC: 1}), gone)
