"""Subscribes to Tango change events of many attributes and keeps the values.

Tango calls back from its own threads, one event at a time: the callback copies the event under a lock and returns.
Readers get a copy.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import tango

from facade.kernel.clock import Clock, as_seconds
from facade.kernel.config import load_settings
from facade.kernel.errors import ConfigError, InfraError
from facade.kernel.icd.telescope import is_foreign
from facade.kernel.reading import Quality
from facade.kernel.runtime.steps import run_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvent:
    """One value on arrival at a client."""

    value: Any
    """A string for State, a tuple for a spectrum, a tuple of rows for an image, otherwise Tango's value.

    For INVALID, the previous value; None if there was none.
    """
    quality: Quality
    time: float
    """Time of the data [Unix s]."""
    received: float
    """Arrival by this client's clock [Unix s]."""


@dataclass(slots=True, kw_only=True)
class EventRecord:
    """What came of one attribute so far; readers have a copy."""

    newest: DeviceEvent | None = None
    """From an event, or from the read at the subscription."""
    events: deque[DeviceEvent] = field(default_factory=deque)
    """The last events pushed by the server, oldest first."""
    errors: int = 0
    last_error: str = ""
    failing: bool = False

    def judged(self, *, silent: bool = False) -> "EventRecord":
        """Return the record for display: INVALID if its events fail, or its server is silent."""
        if self.newest is None or not (self.failing or silent):
            return self
        return replace(self, newest=replace(self.newest, quality=Quality.INVALID))


EventRecords = Mapping[str, Mapping[str, EventRecord]]


@dataclass(slots=True)
class _Subscription:
    proxy: Any
    ids: dict[str, int] = field(default_factory=dict)
    """Tango's id of the subscription by attribute."""


class EventRecorder:
    """Subscribes to attributes and keeps, for each, the newest value and the last events.

    Parameters
    ----------
    tango_host
        The Tango database, host:port.
    keep
        Events to keep per attribute.
    on_change
        Called with device and attribute after each event, in a thread of Tango's; it must return at once.
    """

    def __init__(
        self,
        tango_host: str,
        clock: Clock,
        *,
        keep: int = 16,
        on_change: Callable[[str, str], None] = lambda device, attribute: None,
    ) -> None:
        self._tango_host = tango_host
        self._clock = clock
        self._keep = keep
        self._on_change = on_change
        self._lock = threading.Lock()
        self._records: dict[str, dict[str, EventRecord]] = {}
        self._subscriptions: dict[str, _Subscription] = {}
        self._compared = clock.monotonic()
        self._next = 0

    def subscribe(self, device: str, attributes: Iterable[str]) -> None:
        """Subscribe to attributes; for a server that is down, Tango tries again every ten seconds."""
        if device not in self._subscriptions:
            # Making a proxy asks only the database, so it works for a server that is down.
            proxy = tango.DeviceProxy(f"tango://{self._tango_host}/{device}")
            self._subscriptions[device] = _Subscription(proxy)
        subscription = self._subscriptions[device]
        for attribute in attributes:
            with self._lock:
                empty = EventRecord(events=deque(maxlen=self._keep))
                record = self._records.setdefault(device, {}).setdefault(attribute, empty)
            await_sockets(self._clock)
            subscription.ids[attribute] = subscription.proxy.subscribe_event(
                attribute,
                tango.EventType.CHANGE_EVENT,
                self._callback(record, device, attribute),
                tango.EventSubMode.Stateless,
            )

    def renew(self, devices: Iterable[str]) -> None:
        """Subscribe again now, after a server was restarted; Tango itself takes up to ten seconds to notice."""
        for device in devices:
            subscription = self._subscriptions[device]
            # One by one: Tango logs an error for each event between the end and the new start.
            for attribute in list(subscription.ids):
                self._unsubscribe(subscription, attribute)
                self.subscribe(device, [attribute])

    def step(self, silent: Container[str]) -> None:
        """Compare the next device with a read, if it is due; a silent one is skipped, as it would take seconds."""
        devices = self.devices
        if devices and self._clock.monotonic() - self._compared >= COMPARED_EACH / len(devices):
            self._compared = self._clock.monotonic()
            device = devices[self._next % len(devices)]
            self._next += 1
            if device not in silent:
                self.compare(device)

    def compare(self, device: str) -> None:
        """Read all subscribed attributes, and keep values newer than the last event, whose own events are lost or late.

        Tango loses events silently: during the setup of a connection, and beyond ZMQ's high-water mark. A device keeps
        the time of the data when only the quality changes. So a read of the same time is newer if no event came
        meanwhile.
        """
        subscription = self._subscriptions[device]
        with self._lock:
            before = {name: self._records[device][name].newest for name in subscription.ids}
        with suppress(tango.DevFailed):  # if the server is away, Tango reports it by its events
            for answer in subscription.proxy.read_attributes(list(before)):
                if not answer.has_failed:
                    self._keep_read(device, answer, before[answer.name])

    def _keep_read(self, device: str, answer: Any, before: DeviceEvent | None) -> None:
        made = as_event(answer, as_seconds(self._clock.now_us()))
        with self._lock:
            record = self._records[device][answer.name]
            record.failing = False
            newest = record.newest
            if newest is None or made.time > newest.time or (made.time == newest.time and newest is before):
                record.newest = _with_value(made, newest)
        self._on_change(device, answer.name)

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices with subscriptions."""
        return tuple(self._subscriptions)

    def records(self) -> EventRecords:
        """Return a copy of all records."""
        with self._lock:
            return {
                device: {name: replace(record, events=record.events.copy()) for name, record in attributes.items()}
                for device, attributes in self._records.items()
            }

    def record(self, device: str, attribute: str) -> EventRecord:
        """Return the record of one attribute, without its events."""
        with self._lock:
            return replace(self._records.get(device, {}).get(attribute, EventRecord()), events=deque())

    def unsubscribe(self, device: str, attributes: Iterable[str]) -> None:
        """Unsubscribe from some attributes, and forget them."""
        if device not in self._subscriptions:
            return
        subscription = self._subscriptions[device]
        for attribute in attributes:
            if attribute in subscription.ids:
                self._unsubscribe(subscription, attribute)
            with self._lock:
                self._records[device].pop(attribute, None)

    def close(self) -> None:
        """Unsubscribe from all attributes; the records stay."""
        for subscription in self._subscriptions.values():
            for attribute in list(subscription.ids):
                self._unsubscribe(subscription, attribute)
        self._subscriptions.clear()

    def _unsubscribe(self, subscription: _Subscription, attribute: str) -> None:
        await_sockets(self._clock)
        with suppress(tango.DevFailed):  # the server may be gone
            subscription.proxy.unsubscribe_event(subscription.ids.pop(attribute))

    def _callback(self, record: EventRecord, device: str, attribute: str) -> Callable[[Any], None]:
        def on_event(event: Any) -> None:
            received = as_seconds(self._clock.now_us())
            if event.err:
                text = event.errors[0].desc if event.errors else "unknown error"
                with self._lock:
                    record.errors += 1
                    record.last_error = text
                    record.failing = True
                self._on_change(device, attribute)
                return
            made = as_event(event.attr_value, received)
            with self._lock:
                made = record.newest = _with_value(made, record.newest)
                record.failing = False
                # The value read at (re)subscription comes the same way, but is no event.
                if event.event_reason == tango.EventReason.Update:
                    record.events.append(made)
            self._on_change(device, attribute)

        return on_event


class EventPulse:
    """Reads State from one device of each server twice a second, and finds silent servers.

    Tango's own events report a hanging server only after ten seconds. A call to such a server waits for three, so each
    server has a thread of its own.
    """

    def __init__(self, tango_host: str, servers: Mapping[str, Iterable[str]], clock: Clock) -> None:
        self._clock = clock
        self._devices = {server: tuple(devices) for server, devices in servers.items()}
        self._asked = {
            server: _Asked(tango.DeviceProxy(f"tango://{tango_host}/{devices[0]}"), clock)
            for server, devices in self._devices.items()
        }
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(asked,), name=f"pulse {server}", daemon=True)
            for server, asked in self._asked.items()
        ]
        for thread in self._threads:
            thread.start()

    def silent(self) -> dict[str, float]:
        """Return the devices whose server does not answer, with the time of its last answer [Unix s]."""
        now = as_seconds(self._clock.now_us())
        return {
            device: asked.answered
            for server, asked in self._asked.items()
            if now - asked.unanswered > _SILENT
            for device in self._devices[server]
        }

    def close(self) -> None:
        """Stop reading; wait for calls that are under way, at most as long as Tango does."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_LONGEST_CALL)

    def _run(self, asked: "_Asked") -> None:
        with tango.EnsureOmniThread():
            run_steps(asked.step, self._stop, "asking a server for its pulse", each=_PULSE)


class _Asked:
    """The answers of one server."""

    def __init__(self, proxy: Any, clock: Clock) -> None:
        self._proxy, self._clock = proxy, clock
        self.answered = as_seconds(clock.now_us())
        """Time of the last answer [Unix s]."""
        self.unanswered = math.inf
        """Time of the first unanswered read [Unix s]."""

    def step(self) -> None:
        """Read State, and note the answer."""
        self.unanswered = min(self.unanswered, as_seconds(self._clock.now_us()))
        with suppress(tango.DevFailed):  # gone, or it hangs: the read is repeated
            self._proxy.read_attribute("State")
            self.answered, self.unanswered = as_seconds(self._clock.now_us()), math.inf


COMPARED_EACH: Final = 10.0
"""Time between two reads of a device, in case an event was lost [s]."""
_PULSE: Final = 0.5
"""Time between two reads of a server [s]."""
_SILENT: Final = 1.8
"""Time without an answer after which a server is silent [s]: visible within 3 s, with the next read and display."""
_LONGEST_CALL: Final = 3.5
"""Longest call [s]: Tango gives up after 3 s."""


def find_servers(tango_host: str, server: str) -> dict[str, dict[str, str]]:
    """Return the class of each device in the Tango database, by instance of a server and by device.

    Devices of another telescope's SDP, whose deployment shares the database, are left out.
    """
    found: dict[str, dict[str, str]] = {}
    telescope = load_settings().telescope
    try:
        database = open_database(tango_host)
        for instance in database.get_server_list(f"{server}/*"):
            pairs = list(database.get_device_class_list(instance))
            classes = zip(pairs[::2], pairs[1::2], strict=True)
            devices = {device.lower(): name for device, name in classes if name != "DServer"}
            kept = {one: name for one, name in devices.items() if not is_foreign(one, telescope)}
            if kept or not devices:
                found[instance] = kept
    except tango.DevFailed as failed:
        raise InfraError(f"the Tango database at {tango_host!r} does not answer: {failed.args[0].desc}") from failed
    return found


def find_devices(tango_host: str, server: str) -> dict[str, list[str]]:
    """Return the devices of all instances of a server, by class."""
    return by_class(find_servers(tango_host, server))


def by_class(servers: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the devices of some servers by class, in order."""
    found: dict[str, list[str]] = {}
    for devices in servers.values():
        for device, name in devices.items():
            found.setdefault(name, []).append(device)
    return {name: sorted(devices) for name, devices in found.items()}


def open_database(tango_host: str) -> Any:
    """Connect to a Tango database.

    Raises
    ------
    ConfigError
        The address does not have the form host:port.
    tango.DevFailed
        The device does not answer.
    """
    host, _, port = tango_host.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"TANGO_HOST={tango_host!r}: expected host:port of the Tango database")
    return tango.Database(host, int(port))


def as_event(attribute: Any, received: float) -> DeviceEvent:
    """Return an event, or a read, of Tango as our event."""
    value = attribute.value
    if isinstance(value, tango.DevState):
        value = str(value)
    elif attribute.data_format == tango.AttrDataFormat.SPECTRUM:
        value = () if value is None else immutable(value)
    elif attribute.data_format == tango.AttrDataFormat.IMAGE:
        value = () if value is None else tuple(map(immutable, value))
    quality = _QUALITIES.get(attribute.quality, Quality.VALID)
    return DeviceEvent(value=value, quality=quality, time=attribute.time.totime(), received=received)


def _with_value(made: DeviceEvent, before: DeviceEvent | None) -> DeviceEvent:
    """Return an event with the previous value if it has none: Tango sends none with ATTR_INVALID."""
    return replace(made, value=before.value) if made.value is None and before is not None else made


def immutable(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return one of Tango's arrays as a tuple, equal to another one with the same values, NaN or not."""
    return tuple(math.nan if value != value else value for value in values)


_QUALITIES = {
    tango.AttrQuality.ATTR_WARNING: Quality.WARNING,
    tango.AttrQuality.ATTR_ALARM: Quality.ALARM,
    tango.AttrQuality.ATTR_INVALID: Quality.INVALID,
}


# --- Sockets: ZMQ has time to close them between many subscriptions ---

_MOST_SOCKETS: Final = 300
"""Most open sockets; libzmq allows 1,023 in a process, and Tango opens up to three at once."""
_CLOSED_WITHIN: Final = 30.0
"""Longest wait [s]: after it something else holds the sockets."""
_LOOK_AT_SOCKETS: Final = 0.005
_DESCRIPTORS: Final = Path("/proc/self/fd")


def await_sockets(clock: Clock) -> None:
    """Wait while too many sockets are open. Call it before each subscription that begins or ends.

    For each of these Tango opens a socket to its own event thread, three at an end. libzmq closes them in a separate
    thread, which falls behind on a busy machine. The 1,024th is refused ("Too many open files"): then the subscription
    does not end, its callback is freed nevertheless, and the next event crashes the process.
    """
    end = clock.monotonic() + _CLOSED_WITHIN
    while open_sockets() > _MOST_SOCKETS and clock.monotonic() < end:
        clock.sleep(_LOOK_AT_SOCKETS)


def open_sockets() -> int:
    """Return the number of event descriptors of this process: each socket of ZMQ has one; 0 where there is no /proc."""
    count = 0
    with suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):
            with suppress(OSError):  # it may be closed already
                count += "eventfd" in os.readlink(_DESCRIPTORS / name)
    return count
