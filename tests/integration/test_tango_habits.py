"""What Tango's own tools do to a device server, while a client is subscribed: afterwards all is as it was.

Each class is tried in a real device server on a Tango database of its own; see `tests.support.tango_server`.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tango

from facade.exports.tango_db import SERVER
from facade.icd.load import load
from facade.infra.ports import choose_port
from tests.support.processes import Running
from tests.support.waiting import until, until_equal

ICD = load()
CLASSES = sorted(ICD.classes)
ROOT = Path(__file__).parents[2]


class Site:
    """A Tango database, a device server, and a client that has subscribed to all of it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        port = choose_port()
        self.host = f"127.0.0.1:{port}"
        argv = ["PyDatabaseds", "--host", "127.0.0.1", "--port", str(port), "2"]
        self._start("tango-db", argv, PYTANGO_DATABASE_NAME=":memory:")

        def database() -> tango.Database | None:
            try:
                return tango.Database("127.0.0.1", port)
            except tango.DevFailed:
                return None

        self.database = until(database, "the Tango database answers")
        self.events: Counter[tuple[str, str]] = Counter()
        """Change events by device and attribute."""

    def _start(self, name: str, argv: list[str], **changes: str) -> Running:
        environment = {**os.environ, "TANGO_HOST": self.host, "PYTHONPATH": str(ROOT), **changes}
        program = str(Path(sys.executable).with_name(argv[0])) if argv[0] != sys.executable else argv[0]
        process = Running.start(name, [program, *argv[1:]], log=self._folder / f"{name}.log", env=environment)
        self._stack.callback(process.kill)
        return process

    def add(self, device: str, kind: str) -> None:
        """Enter a device of the server into the database."""
        info = tango.DbDevInfo()
        info.name, info._class, info.server = device, kind, f"{SERVER}/habits"
        self.database.add_device(info)

    def serve(self, *options: str) -> None:
        """Start the device server, and wait until it shows its values."""
        self.server = self._start("server", [sys.executable, "-m", "tests.support.tango_server", "habits", *options])
        until(lambda: self._answers(f"dserver/{SERVER}/habits"), "the server answers")
        self.admin = self.proxy(f"dserver/{SERVER}/habits")

    def _answers(self, device: str) -> bool:
        assert self.server.running, self.server.tail()
        try:
            return bool(self.proxy(device).ping() >= 0)
        except tango.DevFailed:
            return False

    def answers_with(self, device: str, state: tango.DevState) -> bool:
        """Return whether a device answers, and has a State."""
        return self._answers(device) and bool(self.proxy(device).state() == state)

    def proxy(self, device: str) -> Any:
        return tango.DeviceProxy(f"tango://{self.host}/{device}")

    def subscribe(self, device: str) -> Any:
        """Follow all that a device pushes; returns its proxy, which keeps the subscriptions."""
        proxy = self.proxy(device)
        for name in self.pushed(proxy):

            def on_event(event: Any, name: str = name) -> None:
                if not event.err:
                    self.events[device, name] += 1

            proxy.subscribe_event(name, tango.EventType.CHANGE_EVENT, on_event)
        return proxy

    @staticmethod
    def pushed(proxy: Any) -> list[str]:
        """Return the attributes of which there are change events."""
        image = tango.AttrDataFormat.IMAGE
        return [one.name for one in proxy.attribute_list_query() if one.data_format != image]

    def levels(self, devices: list[str]) -> list[int]:
        return list(self.admin.GetLoggingLevel(devices)[0])

    def shown(self, device: str) -> dict[str, Any]:
        """Return value and quality of each attribute; that of Status changes all the time."""
        assert self.server.running, self.server.tail()
        try:
            found = self.proxy(device).read_attributes(self.proxy(device).get_attribute_list())
        except tango.DevFailed:  # a server that is being restarted
            return {}
        return {one.name: (repr(one.value), str(one.quality)) for one in found if one.name != "Status"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a server of all classes, to each device of which a client has subscribed."""
    with ExitStack() as stack:
        made = Site(tmp_path_factory.mktemp("habits"), stack)
        for kind in CLASSES:
            made.add(name_of(kind), kind)
        made.serve()
        kept = [made.subscribe(name_of(kind)) for kind in CLASSES]
        yield made
        del kept


def name_of(kind: str, number: int = 1) -> str:
    return f"test/{kind}/{number}".lower()


def class_of(device: str) -> str:
    return next(kind for kind in CLASSES if name_of(kind) == device)


def init(site: Site, device: str) -> None:
    site.proxy(device).Init()


def dev_restart(site: Site, device: str) -> None:
    site.admin.DevRestart(device)


def restart_server(site: Site, device: str) -> None:
    restart(site)


def restart(site: Site) -> None:
    """Give RestartServer, and wait for its end: it answers at once, and does the work in a thread."""
    site.admin.RestartServer()
    until(lambda: site.shown(name_of(CLASSES[-1])), "the devices answer again")


def poll(site: Site, device: str) -> None:
    site.proxy(device).poll_attribute("State", 20)
    site.proxy(device).stop_poll_attribute("State")


def configure(site: Site, device: str) -> None:
    proxy, name = site.proxy(device), ICD.classes[class_of(device)].attributes[0].name
    settings = proxy.get_attribute_config(name)
    label, settings.label = settings.label, "of a client"
    proxy.set_attribute_config(settings)
    assert proxy.get_attribute_config(name).label == "of a client"
    settings.label = label
    proxy.set_attribute_config(settings)


def lock(site: Site, device: str) -> None:
    proxy = site.proxy(device)
    proxy.lock()
    proxy.unlock()


def level(site: Site, device: str) -> None:
    before = site.admin.GetLoggingLevel([device])[0][0]
    for wanted in (int(tango.LogLevel.LOG_DEBUG), before):
        site.admin.SetLoggingLevel([[wanted], [device]])


HABITS = [init, dev_restart, restart_server, poll, configure, lock, level]
ANEW = (init, dev_restart, restart_server)
"""Those after which whoever has subscribed is told everything."""


@pytest.mark.xdist_group("habits")
@pytest.mark.parametrize("habit", HABITS)
def test_after_a_habit_of_tango_all_is_as_it_was(site: Site, habit: Callable[[Site, str], None]) -> None:
    """Values, State, events and log levels of a device of each class; the process is the same one."""
    devices = [name_of(kind) for kind in CLASSES]
    for device in devices:
        until(lambda device=device: "INVALID" not in str(site.shown(device)) and site.shown(device), "values are shown")
    wanted = {device: site.shown(device) for device in devices}
    levels = site.levels(devices)
    assert {one["State"][0] for one in wanted.values()} == {repr(tango.DevState.ON)}
    before = Counter(site.events)
    for device in devices[: 1 if habit is restart_server else None]:
        habit(site, device)
        if habit is not restart_server:  # whose end is not that of the call
            assert site.shown(device) == wanted[device], "at once"
    until_equal(lambda: {device: site.shown(device) for device in devices}, wanted, "the same values")
    told = {device: site.pushed(site.proxy(device)) if habit in ANEW else ["Status"] for device in devices}
    every = [(device, name) for device, names in told.items() for name in names]
    until_equal(lambda: [one for one in every if site.events[one] <= before[one]], [], "an event of each attribute")
    assert site.levels(devices) == levels
    assert site.server.running
    assert "OFF" not in site.server.text
    assert "Traceback" not in site.server.text


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Site]:
    """Return a database, and a server that is not running yet."""
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


@pytest.mark.parametrize("kind", ["SdpIngestNode", "SdpSubarray"])
def test_a_device_fewer_and_one_more(other: Site, kind: str) -> None:
    """After RestartServer a removed device is absent; an added one says that the process must be started again."""
    stays, goes, comes = (name_of(kind, number) for number in (1, 2, 3))
    for device in (stays, goes):
        other.add(device, kind)
    other.serve()
    kept = [other.subscribe(device) for device in (stays, goes)]
    until(lambda: "INVALID" not in str(other.shown(stays)) and other.shown(stays), "values are shown")
    wanted = other.shown(stays)
    other.database.delete_device(goes)
    other.add(comes, kind)
    for _ in range(2):  # the event loop goes on pushing at what was deleted
        other.admin.RestartServer()
        until(lambda: other.answers_with(comes, tango.DevState.FAULT), "the added device answers")
        until_equal(lambda: other.shown(stays), wanted, "the same values")
        seen = other.events[stays, "Status"]
        until(lambda seen=seen: other.events[stays, "Status"] > seen + 2, "events go on")
    assert "end the process and start it" in other.proxy(comes).status()
    other.server.says(f"device={comes} was added")
    with pytest.raises(tango.DevFailed):
        other.proxy(goes).ping()
    if ICD.classes[kind].commands:
        with pytest.raises(tango.DevFailed):
            other.proxy(comes).adminMode = 1
    assert "Traceback" not in other.server.text
    del kept


@pytest.mark.parametrize("end", ["Kill", "SIGTERM"])
def test_the_process_ends_when_it_is_told_to(other: Site, end: str) -> None:
    """After a restart: exit code 0, and nobody pushes at what Tango deletes."""
    device = name_of("SdpBus")
    other.add(device, "SdpBus")
    other.serve()
    kept = other.subscribe(device)
    until(lambda: other.events[device, "Status"] > 2, "events come")
    other.admin.DevRestart(device)
    if end == "Kill":
        other.admin.Kill()
    else:
        other.server.signal(signal.SIGTERM)
    assert other.server.exit_code() == 0, other.server.tail()
    assert "Traceback" not in other.server.text
    del kept


def test_a_server_that_astor_has_exported_without_an_address_starts(other: Site) -> None:
    """Astor's "Start New" exports the admin device with the address "null"; this database does not unexport it."""
    info, export = tango.DbDevInfo(), tango.DbDevExportInfo()
    info.name = export.name = f"dserver/{SERVER}/logs"
    info._class, info.server = "DServer", f"{SERVER}/logs"
    export.ior, export.host, export.version, export.pid = "null", "astor", "1", 0
    other.database.add_device(info)
    other.database.export_device(export)
    info.name, info._class = "mid-sdp/logs/0", "SdpLogs"
    other.database.add_device(info)
    other.server = other._start("logs", [SERVER, "logs"], KAFKA_BOOTSTRAP=f"127.0.0.1:{choose_port()}")
    until(lambda: other._answers("mid-sdp/logs/0"), "the device answers")
    assert "unusable address 'null'" in other.server.tail()
