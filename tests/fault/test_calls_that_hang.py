"""Calls of PyTango to a server that hangs: which of them let the other threads of Python work meanwhile."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tango

from facade.infra.ports import choose_port
from tests.support.waiting import HANG, until

pytestmark = [pytest.mark.tango, pytest.mark.xdist_group("calls")]

ROOT = Path(__file__).parents[2]
CHANGE, SYNC = tango.EventType.CHANGE_EVENT, tango.EventSubMode.Sync
PAUSE = 0.02
"""Between two steps [s]."""
WAITS = 25
"""Steps of another process while a call waits, at least: Tango waits for 3 s or more."""
FEW = 0.1
"""So many steps of another thread for each of another process, at most, while a call keeps Python's lock.

On a slow machine both make few, and while the machine stands still neither makes any.
"""
STEPS = f"""
import sys, time
with open(sys.argv[1], "ab", buffering=0) as file:
    while True:
        file.write(b".")
        time.sleep({PAUSE})
"""


class Hanging(NamedTuple):
    """A device and a Tango database that were connected to and stand still now."""

    device: str
    database: tuple[str, int]
    proxies: list[Any]
    """Of the device, each for one call: after it the connection is another one."""
    subscribed: tuple[Any, int]
    lost: threading.Event
    """Set when Tango finds that no events come, and tries to subscribe again."""
    connected: Any
    steps: Path
    """A file with a byte for each step of another process."""


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hanging]:
    folder, port, dish_port = tmp_path_factory.mktemp("hanging"), choose_port(), choose_port()
    name = f"tango://127.0.0.1:{dish_port}/mid-dish/x/1#dbase=no"
    database = [str(Path(sys.executable).with_name("PyDatabaseds")), "--host", "127.0.0.1", "--port", str(port), "2"]
    dish = [sys.executable, str(ROOT / "tests/support/telescope.py"), "1", "-nodb", "-dlist", "mid-dish/x/1"]
    listens = [*dish, "-host", "127.0.0.1", "-port", str(dish_port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TANGO_HOST": f"127.0.0.1:{port}"}
    steps = folder / "steps"
    started = [
        subprocess.Popen(one, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for one in (database, listens, [sys.executable, "-c", STEPS, str(steps)])
    ]
    try:
        connected = until(lambda: attempt(lambda: tango.Database("127.0.0.1", port)), "the database answers")
        connected.command_inout("DbGetDeviceExportedList", "*")
        until(lambda: attempt(lambda: tango.DeviceProxy(name).ping() or True), "the device answers")
        proxies = [tango.DeviceProxy(name) for _ in range(6)]
        for one in proxies:
            one.set_transparency_reconnection(False)
            one.read_attributes(["azimuth"])
        watched, lost = proxies.pop(), threading.Event()
        number = watched.subscribe_event("azimuth", CHANGE, lambda event: lost.set() if event.err else None, SYNC)
        until(steps.exists, "another process makes steps")
        for one in started[:2]:
            one.send_signal(signal.SIGSTOP)
        yield Hanging(name, ("127.0.0.1", port), proxies, (watched, number), lost, connected, steps)
    finally:
        for one in started:
            one.kill()
            one.wait()


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except tango.DevFailed:
        return None


class Turns(NamedTuple):
    """Steps while a call was under way."""

    here: int
    """Of another thread of this process."""
    elsewhere: int
    """Of another process."""

    @property
    def are_kept(self) -> bool:
        """Return whether the call has waited, and kept the other threads from working."""
        return self.elsewhere >= WAITS and self.here <= FEW * self.elsewhere


def turns_beside(steps: Path, *calls: Callable[[], Any]) -> list[Turns]:
    """Return how many steps this thread and another process made while each call was under way in another thread."""
    turns = 0

    def now() -> Turns:
        return Turns(turns, steps.stat().st_size)

    def make(call: Callable[[], Any]) -> Turns:
        with tango.EnsureOmniThread():
            before = now()
            attempt(call)
            after = now()
            return Turns(after.here - before.here, after.elsewhere - before.elsewhere)

    with ThreadPoolExecutor(len(calls)) as pool:
        made = [pool.submit(make, call) for call in calls]
        while not all(one.done() for one in made):
            turns += 1
            time.sleep(PAUSE)
    return [one.result() for one in made]


CALLS: dict[str, Callable[[Hanging], Any]] = {
    "DeviceProxy": lambda at: tango.DeviceProxy(at.device),
    "get_attribute_config": lambda at: at.proxies[0].get_attribute_config("State"),
    "get_attribute_list": lambda at: at.proxies[1].get_attribute_list(),
    "read_attributes": lambda at: at.proxies[2].read_attributes(["azimuth"]),
    "subscribe_event": lambda at: at.proxies[3].subscribe_event("source", CHANGE, print, SYNC),
    "set_transparency_reconnection": lambda at: at.proxies[4].set_transparency_reconnection(False),
    "Database": lambda at: tango.Database(*at.database),
    "command_inout": lambda at: at.connected.command_inout("DbGetDeviceExportedList", "*"),
    "unsubscribe_event": lambda at: at.subscribed[0].unsubscribe_event(at.subscribed[1]),
}
"""What `devices/mirror.py` calls; `tests/flows/test_mirror_source.py` holds this against it."""


@pytest.mark.slow
def test_a_call_that_the_mirror_makes_lets_other_threads_work(hanging: Hanging) -> None:
    """All but the last at once: one that keeps the lock makes no steps possible while it waits."""
    *calls, unsubscribe = (partial(call, hanging) for call in CALLS.values())
    found = turns_beside(hanging.steps, *calls)
    assert hanging.lost.wait(HANG), "Tango finds that no events come, and tries to subscribe again"
    found += turns_beside(hanging.steps, unsubscribe)
    kept = {name: one for name, one in zip(CALLS, found, strict=True) if one.are_kept}
    assert not kept


def test_a_call_that_keeps_the_lock_is_found(hanging: Hanging) -> None:
    """If this fails, PyTango has mended it: the mirror may set its own time limit."""
    proxy = tango.DeviceProxy(hanging.device)  # it has no connection: the call makes one
    [found] = turns_beside(hanging.steps, lambda: proxy.set_timeout_millis(2000))
    assert found.are_kept, found
