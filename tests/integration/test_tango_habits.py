"""What Tango's own tools do to a device server, while a client is subscribed: afterwards all is as it was.

Each class is tried in a real device server on a Tango database of its own; see `tests.support.tango_server`.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import tango

from facade.infra.ports import choose_port
from facade.kernel.icd.load import load
from facade.kernel.names import SERVER
from tests.support.processes import Running
from tests.support.waiting import until, until_equal

ICD = load()
CLASSES = sorted(ICD.classes)
ROOT = Path(__file__).parents[2]
_CALL = 30_000
"""After so long a Tango call has hung; a busy machine may take more than Tango's own 3 s [ms]."""


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
        self._subscriptions: list[tuple[Any, int]] = []
        """Each proxy with Tango's number of a subscription."""

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
        assert self.admin

    @property
    def admin(self) -> Any:
        """Return a proxy of the admin device, which answers."""
        return self.answering(f"dserver/{SERVER}/habits")

    def answering(self, device: str) -> Any:
        """Return a proxy of a device once it answers: omniORB gives up a connection that is just being closed."""
        return until(lambda: self._answering(device), f"{device} answers")

    def _answering(self, device: str) -> Any:
        assert self.server.running, self.server.tail()
        try:
            proxy = self.proxy(device)
            proxy.ping()
        except tango.DevFailed:
            return None
        return proxy

    def status(self, device: str) -> str:
        """Return the State of a device and its Status; empty while it does not answer."""
        try:
            proxy = self.proxy(device)
            return f"{proxy.state()}: {proxy.status()}"
        except tango.DevFailed:
            return ""

    def proxy(self, device: str) -> Any:
        proxy = tango.DeviceProxy(f"tango://{self.host}/{device}")
        proxy.set_timeout_millis(_CALL)
        return proxy

    def leave(self) -> None:
        """End all subscriptions while the server is there: this process crashed once as it was killed (SIGSEGV)."""
        for proxy, subscription in self._subscriptions:
            with suppress(tango.DevFailed, KeyError):
                proxy.unsubscribe_event(subscription)

    def subscribe(self, device: str) -> Any:
        """Follow all that a device pushes; returns its proxy."""
        proxy = self.proxy(device)
        for name in self.pushed(proxy):

            def on_event(event: Any, name: str = name) -> None:
                if not event.err:
                    self.events[device, name] += 1

            subscription = proxy.subscribe_event(name, tango.EventType.CHANGE_EVENT, on_event)
            self._subscriptions.append((proxy, subscription))
        # Tango loses events of a connection that is still being made.
        until(lambda: self.events[device, "Status"] > 1, f"events of {device} come")
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

    def settled(self, device: str) -> dict[str, Any]:
        """Return what a device shows once each attribute has a value, and it is ON."""

        def values() -> dict[str, Any]:
            found = self.shown(device)
            is_whole = "INVALID" not in str(found) and found.get("State", ("",))[0] == repr(tango.DevState.ON)
            return found if is_whole else {}

        return until(values, f"{device} shows values")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a server of all classes, to each device of which a client has subscribed."""
    with ExitStack() as stack:
        made = Site(tmp_path_factory.mktemp("habits"), stack)
        for kind in CLASSES:
            made.add(name_of(kind), kind)
        made.serve()
        for kind in CLASSES:
            made.subscribe(name_of(kind))
        yield made
        made.leave()


def name_of(kind: str, number: int = 1) -> str:
    return f"test/{kind}/{number}".lower()


def class_of(device: str) -> str:
    return next(kind for kind in CLASSES if name_of(kind) == device)


def init(site: Site, device: str) -> None:
    site.answering(device).Init()


def dev_restart(site: Site, device: str) -> None:
    site.admin.DevRestart(device)


def restart_server(site: Site, device: str) -> None:
    """Give RestartServer: it answers at once, and does the work in a thread."""
    site.admin.RestartServer()


def poll(site: Site, device: str) -> None:
    proxy = site.answering(device)
    proxy.poll_attribute("State", 20)
    proxy.stop_poll_attribute("State")


def configure(site: Site, device: str) -> None:
    proxy, name = site.answering(device), ICD.classes[class_of(device)].attributes[0].name
    settings = proxy.get_attribute_config(name)
    label, settings.label = settings.label, "of a client"
    proxy.set_attribute_config(settings)
    assert proxy.get_attribute_config(name).label == "of a client"
    settings.label = label
    proxy.set_attribute_config(settings)


def lock(site: Site, device: str) -> None:
    proxy = site.answering(device)
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
    wanted = {device: site.settled(device) for device in devices}
    levels = site.levels(devices)
    told = {device: site.pushed(site.answering(device)) if habit in ANEW else ["Status"] for device in devices}
    every = [(device, name) for device, names in told.items() for name in names]
    before = Counter(site.events)
    for device in devices[: 1 if habit is restart_server else None]:
        habit(site, device)
        if habit is not restart_server:  # whose end is not that of the call
            answer = until(lambda device=device: site.shown(device), f"{device} answers")
            assert answer == wanted[device], "at once"
    until_equal(lambda: [one for one in every if site.events[one] <= before[one]], [], "an event of each attribute")
    until_equal(lambda: {device: site.shown(device) for device in devices}, wanted, "the same values")
    assert site.levels(devices) == levels
    assert site.server.running
    assert "OFF" not in site.server.text
    assert "Traceback" not in site.server.text


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Site]:
    """Return a database, and a server that is not running yet."""
    with ExitStack() as stack:
        made = Site(tmp_path, stack)
        yield made
        made.leave()


@pytest.mark.parametrize("kind", ["SdpIngestNode", "SdpSubarray"])
def test_a_device_fewer_and_one_more(other: Site, kind: str) -> None:
    """After RestartServer a removed device is absent; an added one says that the process must be started again."""
    stays, goes, comes = (name_of(kind, number) for number in (1, 2, 3))
    for device in (stays, goes):
        other.add(device, kind)
    other.serve()
    kept = [other.subscribe(device) for device in (stays, goes)]
    wanted = other.settled(stays)
    names = other.pushed(kept[0])
    other.database.delete_device(goes)
    other.add(comes, kind)
    for _ in range(2):  # the event loop goes on pushing at what was deleted
        before = Counter(other.events)
        other.admin.RestartServer()

        def untold(before: Counter[tuple[str, str]] = before) -> tuple[bool, list[str]]:
            """Return whether the server runs, and the attributes of which no event has come since."""
            return other.server.running, [one for one in names if other.events[stays, one] <= before[stays, one]]

        until_equal(untold, (True, []), "an event of each attribute after the restart of the server")
        until(lambda: other.status(comes).startswith("FAULT: "), "the added device answers")
        until_equal(lambda: other.shown(stays), wanted, "the same values")
        seen = other.events[stays, "Status"]
        until(lambda seen=seen: other.events[stays, "Status"] > seen + 2, "events go on")
    assert "end the process and start it" in until(lambda: other.status(comes), "the added device answers")
    other.server.says(f"device={comes} was added")
    with pytest.raises(tango.DevFailed):
        other.proxy(goes).ping()
    if ICD.classes[kind].commands:
        with pytest.raises(tango.DevFailed):
            other.proxy(comes).adminMode = 1
    assert "Traceback" not in other.server.text


@pytest.mark.parametrize("end", ["Kill", "SIGTERM"])
def test_the_process_ends_when_it_is_told_to(other: Site, end: str) -> None:
    """After a restart: exit code 0, and nobody pushes at what Tango deletes."""
    device = name_of("SdpBus")
    other.add(device, "SdpBus")
    other.serve()
    other.subscribe(device)
    until(lambda: other.events[device, "Status"] > 2, "events come")
    other.admin.DevRestart(device)
    if end == "Kill":
        other.admin.Kill()
    else:
        other.server.signal(signal.SIGTERM)
    assert other.server.exit_code() == 0, other.server.tail()
    assert "Traceback" not in other.server.text


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
    other.server = other._start("logs", [SERVER, "logs"], KAFKA_BOOTSTRAP="127.0.0.1:1")
    assert other.answering("mid-sdp/logs/0")
    other.server.says("unusable address 'null'")
