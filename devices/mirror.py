"""Accesses the devices of the telescope for the mirror: reads, subscribes, and searches for names.

Calls to a hanging device take 3 to 13 s, so threads make them, each for one device at a time. There are as many as were
ever needed at once. Events come in Tango's own thread, which only queues them.

A call that keeps Python's lock during network access stops the whole device server. PyTango 10.3 does so in
`set_timeout_millis`, which connects, and in the calls of `Database` except `command_inout`: they are not used here. A
test has the list of the calls that were tried with a hanging device and database.
"""

import logging
import threading
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np
import tango

from facade.flows.mirror.source import (
    AttributeValue,
    DeviceJob,
    DeviceLost,
    DeviceSearch,
    EventsMissed,
    JobResult,
    SearchResult,
    SourceEvent,
    SourceTask,
)
from facade.kernel.clock import Time
from facade.kernel.numbers import json_value

_log = logging.getLogger(__name__)

MOST_JOBS = 128
"""Devices that can be asked at once; for hanging ones a thread only waits."""
_MOST_THREADS = MOST_JOBS + 8
"""Including the searches, one for each Tango database."""
MOST_WAITING = 50_000
"""Most queued events."""
_EVENTS_STOPPED, _EVENTS_MISSED = "API_EventTimeout", "API_MissedEvents"
"""Tango's errors that come instead of an event."""
_NOT_PUSHED = {"API_AttributePollingNotStarted", "API_EventPropertiesNotSet", "API_AttrNotFound"}
"""Tango's errors for attributes without change events; other errors may be gone at the next attempt."""
_LONGEST_TEXT = 500
_AWAY = (tango.ConnectionFailed, tango.CommunicationFailed)

_QUALITIES = {one: str(one).removeprefix("ATTR_") for one in tango.AttrQuality}

# PyTango makes a wrapper for the traces of device servers for each event of a client, which takes longer than all other
# work on it. This process answers no calls in its event callbacks.
tango.green._forcefully_traced_method = lambda callback: callback  # noqa: SLF001 - there is no other way

Tell = Callable[[SourceEvent], None]


class TangoSource:
    """See `facade.flows.mirror.source.DeviceSource`."""

    most_jobs = MOST_JOBS

    def __init__(self) -> None:
        self._tasks: SimpleQueue[SourceTask | None] = SimpleQueue()
        self._events: deque[SourceEvent] = deque()
        self._dropped: dict[str, None] = {}
        """Attributes with dropped events."""
        self._arrived = threading.Event()
        self._sessions: dict[str, _Session] = {}
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        """Counts the idle threads."""

    def begin(self, task: SourceTask) -> None:
        """Begin a task; see `facade.flows.mirror.source.DeviceSource`."""
        self._tasks.put(task)
        if not self._idle.acquire(blocking=False) and len(self._threads) < _MOST_THREADS:
            self._threads.append(threading.Thread(target=self._work, name="mirror", daemon=True))
            self._threads[-1].start()

    def take(self) -> Sequence[SourceEvent]:
        """Return new events; see `facade.flows.mirror.source.DeviceSource`."""
        self._arrived.clear()  # first: a later event sets it again
        found = [self._events.popleft() for _ in range(len(self._events))]
        found += [EventsMissed(self._dropped.popitem()[0]) for _ in range(len(self._dropped))]
        return found

    def wait(self, timeout: float) -> None:
        """Wait for an event; see `facade.flows.mirror.source.DeviceSource`."""
        self._arrived.wait(timeout)

    def close(self) -> None:
        """Stop the threads."""
        for _ in self._threads:
            self._tasks.put(None)

    def _tell(self, event: SourceEvent) -> None:
        if isinstance(event, AttributeValue) and len(self._events) >= MOST_WAITING:
            self._dropped[event.name] = None  # with such a backlog, the newest value is read instead
        else:
            self._events.append(event)
        self._arrived.set()

    def _work(self) -> None:
        with tango.EnsureOmniThread():
            while (task := self._tasks.get()) is not None:
                try:
                    self._tell(self._search(task) if isinstance(task, DeviceSearch) else self._do(task))
                except Exception as error:  # a bug must not end the thread, nor leave a device waiting
                    _log.exception("task failed task=%s", task)
                    why = f"internal error: {type(error).__name__}"
                    self._tell(
                        SearchResult(task.pattern, trouble=why)
                        if isinstance(task, DeviceSearch)
                        else JobResult(task, trouble=why)
                    )
                self._idle.release()

    def _do(self, job: DeviceJob) -> JobResult:
        session = self._sessions.get(job.device)
        if session is not None and job.anew:
            del self._sessions[job.device]
            session.close()
            session = None
        try:
            if session is None:
                session = self._sessions[job.device] = _Session(job.device, self._tell)
            for name in job.leave:
                session.leave(name)
            if not job.read:
                session.check()
            seen = session.read(job.read) if job.read else ()
            pushes = {name: session.subscribe(name) for name in job.subscribe}
            names = session.names() if job.names else None
        except tango.DevFailed as failed:
            if session is not None:
                # Otherwise Tango itself tries to subscribe again, and delivers no events of any device meanwhile: with
                # ten hanging servers, 484 of 582 events of another one were lost.
                del self._sessions[job.device]
                session.close()
            return JobResult(job, trouble=_reason(failed))
        if (job.leave or job.names) and not session.subscriptions:
            del self._sessions[job.device]  # there may be no wanted attribute of the device any more
        pushed = frozenset(name for name, is_pushed in pushes.items() if is_pushed)
        failed_ones = frozenset(name for name, is_pushed in pushes.items() if is_pushed is None)
        return JobResult(job, seen, pushed, failed_ones, names=names)

    def _search(self, search: DeviceSearch) -> SearchResult:
        host, _, pattern = search.pattern.rpartition("://")[2].partition("/")
        if "://" not in search.pattern:
            host, pattern = "", search.pattern
        prefix = f"tango://{host}/" if host else ""

        def list_of(command: str) -> frozenset[str]:
            return frozenset(f"{prefix}{one.lower()}" for one in database.command_inout(command, pattern))

        try:
            database = tango.Database(*_address(host)) if host else tango.Database()
            return SearchResult(search.pattern, list_of("DbGetDeviceExportedList"), list_of("DbGetDeviceWideList"))
        except tango.DevFailed as failed:
            return SearchResult(search.pattern, trouble=_reason(failed))


class _Session:
    """A connection to a device, with its subscriptions."""

    def __init__(self, device: str, tell: Tell) -> None:
        self._tell, self._device = tell, device
        self._proxy = tango.DeviceProxy(device)
        # A restarted server has none of the subscriptions: this must not be hidden from us.
        self._proxy.set_transparency_reconnection(False)
        self.subscriptions: dict[str, int] = {}
        """Tango's ids, by full name of the attribute."""
        self._labels: dict[str, Sequence[str]] = {}
        self._is_closed = False

    def check(self) -> None:
        """Check that the device is there.

        Tango answers this, also while the device is busy. A `ping` of a hanging server takes twice as long, and after
        10 s Tango itself reports missing events, see `TangoSource._do`.
        """
        self._proxy.get_attribute_config("State")

    def read(self, names: Sequence[str]) -> tuple[AttributeValue, ...]:
        found = self._proxy.read_attributes([name.rpartition("/")[2] for name in names])
        return tuple(self._seen(name, one) for name, one in zip(names, found, strict=True))

    def names(self) -> frozenset[str] | None:
        """Return the full names of all attributes in lower case; None: the device cannot name them."""
        try:
            return frozenset(f"{self._device}/{one.lower()}" for one in self._proxy.get_attribute_list())
        except tango.DevFailed as failed:
            self.check()
            _log.warning("attributes not named device=%s why=%s", self._device, _reason(failed))
            return None

    def subscribe(self, name: str) -> bool | None:
        """Subscribe to the changes of an attribute; False: the device does not push them; None: a failure."""
        if name in self.subscriptions:
            return True

        asks = threading.get_ident()

        def take(event: Any) -> None:
            # Tango calls back at once, with a value that it reads: this does not prove that events arrive. Events after
            # the end of a subscription, which Tango may refuse to end, are ignored as well.
            if not self._is_closed and threading.get_ident() != asks:
                self._event(name, event)

        try:
            number = _subscribe(self._proxy, name.rpartition("/")[2], take)
        except _AWAY:
            raise
        except tango.DevFailed as failed:
            self.check()  # a device without an answer may push
            if any(one.reason in _NOT_PUSHED for one in failed.args):
                return False
            _log.warning("subscription failed attribute=%s why=%s", name, _reason(failed))
            return None
        self.subscriptions[name] = number
        return True

    def leave(self, name: str) -> None:
        if (number := self.subscriptions.pop(name, None)) is not None:
            with suppress(tango.DevFailed, KeyError):
                self._proxy.unsubscribe_event(number)

    def close(self) -> None:
        self._is_closed = True
        for name in list(self.subscriptions):
            self.leave(name)

    def _event(self, name: str, event: Any) -> None:
        if not event.err:
            self._tell(self._seen(name, event.attr_value))
            return
        reason, text = event.errors[0].reason, event.errors[0].desc
        if reason == _EVENTS_STOPPED:
            self._tell(DeviceLost(self._device, text[:_LONGEST_TEXT]))
        elif reason == _EVENTS_MISSED:
            self._tell(EventsMissed(name))
        else:
            self._tell(AttributeValue(name, error=f"{reason}: {text}"[:_LONGEST_TEXT]))

    def _seen(self, name: str, found: Any) -> AttributeValue:
        if found.has_failed:
            error = found.get_err_stack()[0]
            return AttributeValue(name, error=f"{error.reason}: {error.desc}"[:_LONGEST_TEXT])
        kind = found.type
        quality = _QUALITIES[found.quality]
        value = None if found.value is None or quality == "INVALID" else _in_json(found.value, kind)
        label = self._label(name, value) if kind == tango.CmdArgType.DevEnum else ""
        time = Time(found.time.tv_sec * 1_000_000 + found.time.tv_usec)
        return AttributeValue(name, value, str(kind), quality, time, label)

    def _label(self, name: str, value: Any) -> str:
        """Return the label of an enumerated value, requested at the first read, which is before any event."""
        if name not in self._labels:
            with suppress(tango.DevFailed):
                self._labels[name] = list(self._proxy.get_attribute_config(name.rpartition("/")[2]).enum_labels)
        labels = self._labels.get(name, ())
        return labels[value] if isinstance(value, int) and 0 <= value < len(labels) else ""


_first_subscription = threading.Lock()


def _subscribe(proxy: tango.DeviceProxy, attribute: str, take: Callable[[Any], None]) -> int:
    """Subscribe to the changes of an attribute; the first subscription of the process is made alone.

    Tango makes its event consumer with the first one, without a lock. Two simultaneous first subscriptions make two
    consumers, one of which is lost: a subscription fails (``Could not find event consumer for ptr``), and events and
    calls of the process hang later.
    """
    with _first_subscription:
        if not tango.ApiUtil.instance().is_zmq_event_consumer_created():
            return int(proxy.subscribe_event(attribute, tango.EventType.CHANGE_EVENT, take, tango.EventSubMode.Sync))
    return int(proxy.subscribe_event(attribute, tango.EventType.CHANGE_EVENT, take, tango.EventSubMode.Sync))


def _address(host: str) -> tuple[str, int]:
    name, _, port = host.partition(":")
    return name, int(port or 10000)


def _reason(failed: tango.DevFailed) -> str:
    """Return the reason of a failed call, in one line."""
    first = failed.args[0]
    return " ".join(f"{first.reason}: {first.desc}".split())[:_LONGEST_TEXT]


def _in_json(value: Any, kind: Any) -> Any:
    """Return a value in a form for JSON."""
    if kind == tango.CmdArgType.DevEncoded:
        encoding, data = value
        return {"format": encoding, "data": b64encode(bytes(data)).decode()}
    if isinstance(value, tango.DevState):
        return str(value)
    if isinstance(value, np.ndarray):
        is_plain = value.dtype.kind != "f" or bool(np.isfinite(value).all())
        return value.tolist() if is_plain else json_value(value)
    if isinstance(value, list | tuple):
        return [_in_json(one, kind) for one in value]
    return json_value(value)
