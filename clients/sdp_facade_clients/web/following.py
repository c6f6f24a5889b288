"""The attributes followed by the operator's page: a fixed part of every device, and all of viewed devices."""

import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import tango

from facade.kernel.clock import Clock, as_time, utc_seconds
from facade.kernel.errors import FacadeError
from facade.kernel.icd.model import Attribute, DeviceClass, Icd
from facade.kernel.icd.telescope import instance_of
from facade.kernel.runtime.steps import run_steps
from sdp_facade_clients.events import EventPulse, EventRecorder, find_servers

MOST_DEVICES: Final = 64
"""Most devices of a numbered class that are followed completely; the one with the oldest request goes."""
_LOOK_AGAIN, _TRY_AGAIN = 30.0, 2.0
"""Time between two reads of the Tango database, and between two tries while it does not answer [s]."""
_STATE: Final = ("State",)
_DATABASE: Final = "sys/database/2"
"""The Tango database as a device: PyTango's calls of `Database` block every thread of the process while they wait."""


class Following:
    """Subscribes in one thread, since a subscription takes milliseconds, and seconds for a dead server."""

    def __init__(
        self,
        tango_host: str,
        server: str,
        icd: Icd,
        clock: Clock,
        *,
        on_change: Callable[[str, str], None],
        on_forget: Callable[[str, tuple[str, ...]], None],
    ) -> None:
        self._tango_host, self._server, self._icd, self._clock = tango_host, server, icd, clock
        self._on_forget = on_forget
        self.recorder = EventRecorder(tango_host, clock, keep=1, on_change=on_change)
        self.devices: Mapping[str, str] = {}
        """Class of each device of the deployment."""
        self.instances: Mapping[str, str] = {}
        """Instance of the device server of each device, as SdpMaster names it; it is the rack of a node."""
        self.problem = "the Tango database has not been asked yet"
        """Reason why `devices` may be old; empty: they are not."""
        self._pulse: EventPulse | None = None
        self._servers: Mapping[str, Mapping[str, str]] = {}
        self._followed: dict[str, None] = {}
        """Devices of numbered classes that are followed completely, the oldest request first."""
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._looked = -_LOOK_AGAIN
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="following", daemon=True)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join(5.0)

    def ask(self, device: str) -> None:
        """Follow all attributes of a device that is being viewed."""
        self._asked.put(device)

    def silent(self) -> Mapping[str, float]:
        """Return the devices whose server does not answer, with the time of its last answer [Unix s]."""
        return self._pulse.silent() if self._pulse else {}

    @property
    def away(self) -> str:
        """Return the reason why devices cannot be reached; empty: the Tango database answers."""
        since = self.silent().get(_DATABASE)
        where = f"The Tango database at {self._tango_host}"
        return f"{where} has not answered since {utc_seconds(as_time(since))}." if since else ""

    def _run(self) -> None:
        with tango.EnsureOmniThread():
            run_steps(self.step, self._stop, "following", each=0.05)
            self.recorder.close()
            if self._pulse:
                self._pulse.close()

    def step(self) -> None:
        """Search for devices, follow requested ones, and compare one with a read; each when it is due."""
        now = self._clock.monotonic()
        if not self.away and now - self._looked >= (_TRY_AGAIN if self.problem else _LOOK_AGAIN):
            self._looked = now
            self._look()
        with suppress(queue.Empty):
            while True:
                self._follow(self._asked.get_nowait())
        self.recorder.step(self.silent())

    def _look(self) -> None:
        try:
            servers = find_servers(self._tango_host, self._server)
        except FacadeError as error:
            self.problem = str(error)
            return
        self.problem = ""
        if servers != self._servers:
            found = {device: name for known in servers.values() for device, name in known.items()}
            begin = f"{self._server}/{instance_of(self._icd.telescope, '')}"
            instances = {device: name.removeprefix(begin) for name, known in servers.items() for device in known}
            asked = {name: list(known) for name, known in servers.items() if known}
            pulse = EventPulse(self._tango_host, {**asked, "database": [_DATABASE]}, self._clock)  # or tried again
            if self._pulse:
                self._pulse.close()
            self._pulse, self._servers, self.instances, self.devices = pulse, servers, instances, found
        subscribed = {*self.recorder.devices}
        for device, name in self.devices.items():
            kind = self._icd.classes.get(name)
            if kind is None or device in subscribed:
                continue
            if not self._subscribe(device, _attributes(kind) if not kind.family or kind.commands else _STATE):
                return  # the next look goes on here

    def _follow(self, device: str) -> None:
        kind = self._icd.classes.get(self.devices.get(device, ""))
        if kind is None or not kind.family or kind.commands:
            return  # unknown, or followed completely from the start
        if device not in self._followed:
            known = _STATE if device in self.recorder.devices else ()  # a look may not have come to this device yet
            self._subscribe(device, tuple(name for name in _attributes(kind) if name not in known))
        self._followed.pop(device, None)
        self._followed[device] = None
        while len(self._followed) > MOST_DEVICES:
            oldest = next(iter(self._followed))
            del self._followed[oldest]
            gone = tuple(name for name in _attributes(kind) if name not in _STATE)
            self.recorder.unsubscribe(oldest, gone)
            self._on_forget(oldest, gone)

    def _subscribe(self, device: str, attributes: tuple[str, ...]) -> bool:
        """Subscribe; return whether the database knew the device, and we do not end."""
        for attribute in attributes:
            if self._stop.is_set():
                return False
            with suppress(tango.DevFailed):  # the running version may not have the attribute yet
                self.recorder.subscribe(device, [attribute])
            if device not in self.recorder.devices:
                return False
        return True


def is_followed(entry: Attribute) -> bool:
    """Return whether an attribute is followed: it sends events, and is not an expert's array of numbers."""
    return entry.is_pushed and not (entry.expert and entry.length and entry.type != "DevString")


def _attributes(kind: DeviceClass) -> tuple[str, ...]:
    return ("State", "Status", *(one.name for one in kind.attributes if is_followed(one)))
