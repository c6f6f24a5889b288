"""Two Tango databases: one is killed, stands still or loses its files; servers and clients go on with the other."""

import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
import tango

from facade.infra.ports import choose_port
from facade.kernel.corba import DATABASE, Located, ObjectAddress, is_database, locate
from tests.conftest import Deploy
from tests.support.deployment import Deployment, node_device
from tests.support.processes import Running
from tests.support.waiting import HANG, until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

INSTANCE, NODE = "ingest-00", node_device(0)
ADMIN = f"dserver/SdpFacade/{INSTANCE}"
CLIENT = """
import sys, time, tango
proxy = tango.DeviceProxy(sys.argv[1])
said = lambda event: print("error" if event.err else "event", flush=True)
proxy.subscribe_event("heapsTotal", tango.EventType.CHANGE_EVENT, said)
print("reads", proxy.read_attribute("heapsTotal").value, flush=True)
time.sleep(3600)
"""
"""A program that knows nothing of ours: its databases are those of TANGO_HOST."""


class Databases:
    """Two databases with files of their own, each at a port that it keeps."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment, self._ports = deployment, (choose_port(), choose_port())
        self.running = [self.start(number) for number in range(2)]
        deployment.tango_host = ",".join(self.address(number) for number in range(2))

    def enter_devices(self) -> None:
        """Write the same devices into both, without a process for it."""
        both = self._deployment.tango_host
        for number in range(2):
            self._deployment.tango_host = self.address(number)
            self._deployment.enter_devices()
        self._deployment.tango_host = both

    def address(self, number: int) -> str:
        return f"127.0.0.1:{self._ports[number]}"

    def file(self, number: int) -> Path:
        return self._deployment.folder / f"database-{number}.sqlite"

    def start(self, number: int) -> Running:
        address = self.address(number)
        argv = ["PyDatabaseds", "--host", "127.0.0.1", "--port", str(self._ports[number]), "2"]
        variables = {"TANGO_HOST": address, "PYTANGO_DATABASE_NAME": str(self.file(number))}
        made = self._deployment.start(f"database-{number}", argv, **variables)
        until(lambda: is_database(address, HANG), f"the Tango database {address} answers")
        return made

    def again(self, number: int) -> None:
        self.running[number] = self.start(number)

    def names(self, number: int, process: Running) -> bool:
        """Return whether a database has the address of a device server, for all of its devices."""
        try:
            database = tango.Database("127.0.0.1", self._ports[number])
            found = [database.get_device_info(name) for name in (NODE, ADMIN)]
        except tango.DevFailed:
            return False
        return all(one.exported and one.pid == process.pid for one in found)

    def address_of_node(self, number: int) -> str:
        return str(tango.Database("127.0.0.1", self._ports[number]).get_device_info(NODE).ior)


def test_of_two_databases_each_may_be_lost(deploy: Deploy):
    deployment = deploy(nodes=1, prepare=False, tango_host="none")
    assert deployment.create_topics() == []
    databases = Databases(deployment)

    def register(*words: str) -> str:
        return deployment.command("register", *words)

    def start(name: str) -> Running:
        """Start the device server as it is always started, and wait until each living database has its address."""
        return deployment.start(name, ["SdpFacade", INSTANCE])

    def is_known(process: Running, *numbers: int) -> None:
        for number in numbers:
            until(lambda number=number: databases.names(number, process), f"database {number} has the address")  # type: ignore[misc]

    def client(name: str) -> Running:
        return deployment.start(name, [sys.executable, "-u", "-c", CLIENT, NODE])

    def follows(process: Running) -> None:
        """Wait until a client gets further events."""
        before = process.text.count("event")
        until(lambda: process.text.count("event") > before + 1, "the client gets further events")
        assert process.running

    assert register().count("devices registered") == 2
    server = start("server-1")
    is_known(server, 0, 1)
    deployment.worker("0")
    deployment.launch("simulate", "simulate", "ingest", "--rate", 20)
    old = client("client-old")
    follows(old)

    # A restarted device has a new address, which a new client finds in either.
    before = [databases.address_of_node(number) for number in range(2)]
    tango.DeviceProxy(f"tango://{databases.address(0)}/{ADMIN}").command_inout("DevRestart", NODE)
    for number in range(2):
        until(lambda n=number: databases.address_of_node(n) != before[n], f"database {number} has the new address")  # type: ignore[misc]
        assert databases.names(number, server)
    read = tango.DeviceProxy(f"tango://{databases.address(1)}/{NODE}").read_attribute("heapsTotal")
    assert read.value is not None
    follows(old)

    # The first one is killed: a client that was there goes on, a new one finds all, a server can start.
    databases.running[0].kill()
    follows(old)
    follows(client("client-after-the-kill"))
    server.kill()
    server = start("server-2")
    is_known(server, 1)
    follows(old)

    # It comes back without its files: the registration is enough, and no server is restarted.
    databases.file(0).unlink()
    databases.again(0)
    assert not databases.names(0, server)
    register()
    is_known(server, 0)
    follows(client("client-of-the-restored-one"))

    # It stands still: whoever is connected goes on, and our own programs use the other one.
    databases.running[0].signal(signal.SIGSTOP)
    follows(old)
    server.kill()
    server = start("server-3")
    is_known(server, 1)
    follows(old)
    deployment.command("watch", "--seconds", "1", NODE)  # refuses a device that it does not find

    # It goes on, with the address of the server that was killed meanwhile.
    databases.running[0].signal(signal.SIGCONT)
    is_known(server, 0, 1)
    follows(client("client-after-all"))
    follows(old)


def test_a_database_whose_tables_are_away_is_passed_over(deploy: Deploy):
    """Its server still has the CORBA object, as while its MariaDB is away."""
    deployment = deploy(nodes=1, prepare=False, tango_host="none")
    assert deployment.create_topics() == []
    databases = Databases(deployment)
    databases.enter_devices()
    with closing(sqlite3.connect(databases.file(0))) as tables:
        tables.execute("DROP TABLE device")
    host, _, port = databases.address(0).rpartition(":")
    assert locate(ObjectAddress(host, int(port), DATABASE), HANG) is Located.HERE

    server = deployment.start("server", ["SdpFacade", INSTANCE])

    until(lambda: databases.names(1, server), "the other database has the address")
    databases.running[0].kill()
    databases.running[0].log.write_text("")  # it has logged each question with a traceback


def test_registering_shows_in_what_the_databases_differ_and_makes_them_equal(deploy: Deploy):
    deployment = deploy(nodes=1, prepare=False, tango_host="none")
    databases = Databases(deployment)
    databases.enter_devices()
    first, second = (tango.Database(*databases.address(number).split(":")) for number in range(2))
    first.put_device_attribute_property(NODE, {"heapRate": {"max_alarm": ["3000"]}})
    second.put_device_property(NODE, {"polled_attr": ["State", "1000"]})

    shown = deployment.command("register")
    assert (
        f"differs: {NODE}/heaprate max_alarm: 3000 at {databases.address(0)}; none at {databases.address(1)}" in shown
    )
    assert f"differs: {NODE} polled_attr: none at {databases.address(0)}; State, 1000 at" in shown
    assert "make them equal: sdp-facade register --properties-of HOST:PORT" in shown

    deployment.command("register", "--properties-of", databases.address(0))
    assert "differs" not in deployment.command("register")
    found = second.get_device_attribute_property(NODE, "heapRate")
    assert [*found["heapRate"]["max_alarm"]] == ["3000"]
    assert not [*second.get_device_property(NODE, "polled_attr")["polled_attr"]]
