"""Which of several Tango databases have the address of a server, and when it enters its own."""

import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tango

from devices.kernel import databases
from devices.kernel.base import FacadeDevice
from devices.kernel.databases import Exporting
from facade.kernel.corba import DATABASE, Located, ObjectAddress, is_database, locate

OWN, OTHER = "IOR:own", "IOR:other"
ADMIN, DEVICE = "dserver/SdpFacade/control", "mid-sdp/control/0"


class Database:
    """What one database has as the address of the server; it may refuse."""

    def __init__(self, address: str | None, *, fails: str = "", host: str = "tango") -> None:
        self.host, self.iors = host, dict[str, str]()
        self.address, self.fails, self.exported = address, fails, list[str]()

    def command_inout(self, command: str, argument: Any) -> Any:
        if command == "DbGetDeviceInfo":
            self._fail()
            return [int(self.address is not None)], ["", self.address or "nada"]
        assert command == "DbExportDevice"
        self._fail()
        self.exported.append(argument[0])
        self.iors[argument[0]] = argument[1]
        if argument[0] == ADMIN:
            self.address = argument[1]
        return None

    def _fail(self) -> None:
        if self.fails == "RuntimeError":
            raise RuntimeError("a CORBA error")
        if self.fails:
            tango.Except.throw_exception(self.fails, "", "")

    def get_db_host(self) -> str:
        return self.host

    def get_db_port(self) -> str:
        return "10000"


class Device:
    def __init__(self, name: str) -> None:
        self.name = name

    def get_name(self) -> str:
        return self.name

    def get_dev_idl_version(self) -> int:
        return 6


class Util:
    """Tango's side of the server: a restart of the devices gives them new references."""

    def __init__(self) -> None:
        self.restarts, self.ends_after = 0, -1
        """`ends_after`: number of questions after which the server is shutting down; negative: it never is."""

    def get_dserver_device(self) -> Device:
        return Device(ADMIN)

    def get_dserver_ior(self, _: Device) -> str:
        return OWN

    def get_device_ior(self, one: Device) -> str:
        return f"IOR:{one.name}{'*' * self.restarts}"

    def is_svr_shutting_down(self) -> bool:
        self.ends_after -= 1
        return self.ends_after == -1


Steps = Callable[[Sequence[Database], Located], Exporting]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Steps:
    def make(present: Sequence[Database], other: Located) -> Exporting:
        monkeypatch.setattr(databases, "answering", lambda: iter(present))
        monkeypatch.setattr(FacadeDevice, "present", {DEVICE: Device(DEVICE)})
        monkeypatch.setattr(databases, "read_ior", lambda ior: ObjectAddress("host", 1, ior.encode()))
        monkeypatch.setattr(databases, "locate", lambda address, within: other)
        return Exporting()

    return make


@pytest.fixture(autouse=True)
def util(monkeypatch: pytest.MonkeyPatch) -> Util:
    util = Util()
    monkeypatch.setattr(tango.Util, "instance", lambda *_: util)
    return util


@pytest.mark.parametrize(
    ("before", "other", "after"),
    [
        ([OWN, None], Located.HERE, [OWN, OWN]),  # the second one never had it
        ([None, OWN], Located.HERE, [OWN, OWN]),  # the first one was restored
        ([None, None], Located.HERE, [OWN, OWN]),  # all were restored
        ([OTHER, OWN], Located.GONE, [OWN, OWN]),  # the first one was away while this server took over
        ([OWN, OTHER], Located.HERE, [OWN, OWN]),  # the first one decides
        ([OTHER, OWN], Located.HERE, [OTHER, OWN]),  # the other server may stay: it is not this one's to say
        ([None, OTHER], Located.HERE, [None, OTHER]),
        ([OTHER, None], Located.SILENT, [OTHER, None]),  # it may only stand still
        ([], Located.HERE, []),
    ],
)
def test_a_server_enters_its_address_and_takes_none_of_a_server_that_may_live(
    make: Steps, before: list[str | None], other: Located, after: list[str | None]
):
    present = [Database(address) for address in before]
    exporting = make(present, other)

    for _ in range(databases._LOST_AFTER):
        exporting.step()

    assert [one.address for one in present] == after


def test_a_server_that_stays_silent_is_taken_for_lost(make: Steps):
    first, second = Database(OTHER), Database(OWN)
    exporting = make([first, second], Located.SILENT)

    for _ in range(databases._LOST_AFTER + 1):
        assert first.address == OTHER
        exporting.step()

    assert first.address == OWN


def test_the_admin_device_comes_last_so_that_a_broken_export_is_repeated(make: Steps):
    database = Database(None)

    make([database], Located.HERE).step()

    assert database.exported == [DEVICE, ADMIN]


def test_a_database_that_does_not_know_the_devices_is_told_of_once(make: Steps, caplog: pytest.LogCaptureFixture):
    database = Database(None, fails="DB_DeviceNotDefined")
    exporting = make([database], Located.HERE)

    exporting.step()
    exporting.step()
    assert caplog.text.count("devices cannot be exported in the Tango database tango:10000") == 1

    database.fails = ""
    exporting.step()
    assert database.address == OWN


def test_a_restarted_device_has_its_new_address_in_each_database(
    make: Steps, util: Util, caplog: pytest.LogCaptureFixture
):
    """Tango enters it in one database only; the admin device keeps its address."""
    first, second = Database(OWN, host="first"), Database(None, host="second")
    exporting = make([first, second], Located.HERE)

    exporting.step()
    assert (first.exported, second.exported) == ([], [DEVICE, ADMIN]), "Tango has exported them in the first one"
    told = caplog.text
    util.restarts += 1
    exporting.step()
    exporting.step()

    assert second.exported == [DEVICE, ADMIN, DEVICE]
    assert second.iors[DEVICE] == util.get_device_ior(Device(DEVICE))
    assert caplog.text == told, "nothing was lost"


def test_a_device_that_is_being_made_waits_for_its_address(make: Steps, util: Util, monkeypatch: pytest.MonkeyPatch):
    database = Database(OWN)
    exporting = make([database], Located.HERE)
    exporting.step()

    util.restarts += 1
    with monkeypatch.context() as patch:
        patch.setattr(databases, "read_ior", lambda ior: None)
        exporting.step()
    assert database.exported == []

    exporting.step()
    assert database.exported == [DEVICE]


@pytest.mark.parametrize(("questions", "exported"), [(0, []), (2, [DEVICE])])
def test_a_server_that_ends_exports_nothing(make: Steps, util: Util, questions: int, exported: list[str]):
    """Astor ends it by a command: Tango unexports the devices while the exporting thread still runs."""
    database, exporting = Database(None), make(present := [], Located.HERE)
    present.append(database)
    util.ends_after = questions

    exporting.step()

    assert database.exported == exported


def test_a_sick_database_is_no_reason_to_leave_out_a_healthy_one(
    make: Steps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    answering, sick, healthy = databases.answering, Database(None, fails="RuntimeError"), Database(None)
    exporting = make([sick, healthy], Located.HERE)

    exporting.step()
    assert healthy.address == OWN

    refusing = Database(None, host="refusing")
    monkeypatch.setattr(refusing, "command_inout", lambda command, argument: refuse(command))
    exporting = make([refusing, healthy], Located.HERE)
    exporting.step()
    assert "devices cannot be exported in the Tango database refusing:10000: a CORBA error" in caplog.text

    def opened(address: str) -> Database:
        if address == "sick:1":
            raise RuntimeError("a CORBA error")
        if address == "refusing:1":
            tango.Except.throw_exception("API_CorbaException", "", "")
        return healthy

    monkeypatch.setattr(databases, "addresses", lambda: ("sick:1", "refusing:1", "away:1", "healthy:1"))
    monkeypatch.setattr(databases, "is_database", lambda address, within: address != "away:1")
    monkeypatch.setattr(databases, "open_database", opened)
    assert [*answering()] == [healthy]


def refuse(command: str) -> Any:
    if command == "DbExportDevice":
        raise RuntimeError("a CORBA error")
    return [0], ["", "nada"]


def test_a_call_that_fails_does_not_mean_that_nobody_serves(make: Steps):
    """On a busy machine a call may take too long: the devices may be those of a successor all the same."""
    first, second = Database(OTHER, fails="API_DeviceTimedOut"), Database(OWN)
    exporting = make([first, second], Located.GONE)

    exporting.step()
    assert first.address == OTHER

    first.fails = ""
    exporting.step()
    assert first.address == OWN


def test_databases_that_answer_come_first_for_a_process_that_starts(monkeypatch: pytest.MonkeyPatch):
    configured = "still:1, here:2,there:3"
    monkeypatch.setattr(databases, "_configured", lambda: configured)
    monkeypatch.setattr(databases, "is_database", lambda address, within: not address.startswith("still"))
    monkeypatch.setenv("TANGO_HOST", configured)

    databases.put_first()

    assert databases.os.environ["TANGO_HOST"] == "here:2,there:3,still:1"
    assert databases.addresses() == ("still:1", "here:2", "there:3")


def reply(status: int, order: str = "<", *, context: bytes = b"") -> bytes:
    """Return the answer of a server to a request, with one context or none."""
    contexts = [0] if not context else [1, 7, len(context)]
    body = struct.pack(f"{order}{len(contexts)}I", *contexts) + context + bytes(-len(context) % 4)
    body += struct.pack(order + "II", 1, status) + b"what follows is not read" * 100
    return b"GIOP\1\0" + bytes([order == "<", 1]) + struct.pack(order + "I", len(body)) + body


SYSTEM_EXCEPTION, USER_EXCEPTION, NO_EXCEPTION = 2, 1, 0
HAS_OBJECT = b"GIOP\1\0\1\4" + struct.pack("<III", 8, 1, 1)


@pytest.mark.parametrize(
    ("answer", "is_well"),
    [
        (reply(NO_EXCEPTION), True),
        (reply(NO_EXCEPTION, ">"), True),
        (reply(NO_EXCEPTION, context=b"codes"), True),
        (reply(USER_EXCEPTION), False),  # MariaDB is away: it throws DB_SQLError
        (reply(SYSTEM_EXCEPTION), False),
        (HAS_OBJECT, False),
        (reply(NO_EXCEPTION)[:15], False),
        (b"HTTP/1.1 400 Bad Request", False),
        (b"", False),
    ],
)
def test_a_tango_database_that_answers_a_ping_but_no_command_does_not_count(answer: bytes, is_well: bool):
    """A stand-in for a database that says to each LocateRequest, as to a ping, that it is there."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(HAS_OBJECT if connection.recv(1000)[7] == 3 else answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        assert locate(ObjectAddress("127.0.0.1", port, DATABASE), 10.0) is Located.HERE
        assert is_database(f"127.0.0.1:{port}", 10.0) is is_well
        thread.join()
