"""Talks to the devices of the telescope for the mirror: reads, subscribes, and searches for names.

Calls to devices may take seconds, so a few threads make them; each has one device at a time. Events come in Tango's
own thread, which only queues them.
"""

import fnmatch
import logging
import math
import threading
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np
import tango

from facade.flows.mirror.source import Done, Found, Job, Lost, Missed, News, Search, Seen, Task

_log = logging.getLogger(__name__)

THREADS = 8
MOST_WAITING = 50_000
"""Events that may wait to be taken."""
CALL_MS = 3000
"""Longest time that a device may take for an answer [ms]."""
_EVENTS_STOPPED, _EVENTS_MISSED = "API_EventTimeout", "API_MissedEvents"
"""Tango's reasons for an event that is none."""
_NOT_PUSHED = {"API_AttributePollingNotStarted", "API_EventPropertiesNotSet", "API_AttrNotFound"}
"""Tango's reasons why there are no change events of an attribute; any other one may be gone at the next attempt."""
_LONGEST_TEXT = 500
MOST_FOUND = 20_000
"""Attributes that a pattern may choose."""
_AWAY = (tango.ConnectionFailed, tango.CommunicationFailed)

_QUALITIES = {one: str(one).removeprefix("ATTR_") for one in tango.AttrQuality}

# PyTango makes a wrapper for the traces of device servers anew for each event that a client gets, which takes longer
# than all else that is done with it here. This process answers for no call when it gets an event.
tango.green._forcefully_traced_method = lambda callback: callback  # noqa: SLF001 - there is no other way

Tell = Callable[[News], None]


class TangoSource:
    """See `facade.flows.mirror.source.Source`.

    Parameters
    ----------
    is_own
        Whether a device is one of the facade's, which no search asks.
    """

    def __init__(self, is_own: Callable[[str], bool]) -> None:
        self._is_own = is_own
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._news: deque[News] = deque()
        self._dropped: dict[str, None] = {}
        """Attributes of which events had no room."""
        self._arrived = threading.Event()
        self._sessions: dict[str, _Session] = {}
        self._threads: list[threading.Thread] = []

    def begin(self, task: Task) -> None:
        """Take a task; see `facade.flows.mirror.source.Source`."""
        if not self._threads:  # before, there is nothing to be done
            self._threads = [threading.Thread(target=self._work, name="mirror", daemon=True) for _ in range(THREADS)]
            for thread in self._threads:
                thread.start()
        self._tasks.put(task)

    def take(self) -> Sequence[News]:
        """Return what has come; see `facade.flows.mirror.source.Source`."""
        self._arrived.clear()  # first: what comes from now on is told of again
        found = [self._news.popleft() for _ in range(len(self._news))]
        found += [Missed(self._dropped.popitem()[0]) for _ in range(len(self._dropped))]
        return found

    def wait(self, timeout: float) -> None:
        """Wait until something has come; see `facade.flows.mirror.source.Source`."""
        self._arrived.wait(timeout)

    def close(self) -> None:
        """Let the threads end."""
        for _ in self._threads:
            self._tasks.put(None)

    def _tell(self, news: News) -> None:
        if isinstance(news, Seen) and len(self._news) >= MOST_WAITING:
            self._dropped[news.name] = None  # who is behind by so much reads the newest instead
        else:
            self._news.append(news)
        self._arrived.set()

    def _work(self) -> None:
        with tango.EnsureOmniThread():
            while (task := self._tasks.get()) is not None:
                try:
                    self._tell(self._search(task) if isinstance(task, Search) else self._do(task))
                except Exception as error:  # a mistake of ours must not end the thread, nor leave a device waiting
                    _log.exception("task failed task=%s", task)
                    why = f"internal error: {type(error).__name__}"
                    if isinstance(task, Search):
                        self._tell(Found(task.pattern, trouble=why))
                    else:
                        self._tell(Done(task, trouble=why))

    def _do(self, job: Job) -> Done:
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
                session.ping()
            seen = session.read(job.read) if job.read else ()
            pushes = {name: session.subscribe(name) for name in job.subscribe}
        except tango.DevFailed as failed:
            return Done(job, trouble=_reason(failed))
        if job.leave and not session.subscriptions:
            del self._sessions[job.device]  # perhaps nothing of the device is wanted any more
        pushed = frozenset(name for name, is_pushed in pushes.items() if is_pushed)
        return Done(job, seen, pushed, frozenset(name for name, is_pushed in pushes.items() if is_pushed is None))

    def _search(self, search: Search) -> Found:
        device, _, attribute = search.pattern.rpartition("/")
        host, _, pattern = device.removeprefix("tango://").partition("/") if "://" in device else ("", "", device)
        prefix = f"tango://{host}/" if host else ""
        found: set[str] = set()
        trouble = ""
        try:
            database = tango.Database(*_address(host)) if host else tango.Database()
            devices = database.get_device_exported(pattern).value_string
        except tango.DevFailed as failed:
            return Found(search.pattern, trouble=_reason(failed))
        for one in devices:
            name = f"{prefix}{one.lower()}"
            if self._is_own(name):
                continue
            try:
                names = map(str.lower, _proxy(name).get_attribute_list())
                found.update(f"{name}/{one}" for one in names if fnmatch.fnmatchcase(one, attribute))
            except tango.DevFailed as failed:
                trouble = f"{name} could not be asked: {_reason(failed)}"
        if len(found) > MOST_FOUND:
            trouble = f"expected at most {MOST_FOUND} attributes, found {len(found)}; say more in the pattern"
            return Found(search.pattern, trouble=trouble)
        return Found(search.pattern, frozenset(found), trouble)


class _Session:
    """A connection to a device, and the subscriptions that it has."""

    def __init__(self, device: str, tell: Tell) -> None:
        self._tell, self._device = tell, device
        self._proxy = _proxy(device)
        # A server that was started again has none of the subscriptions: that must not be hidden from us.
        self._proxy.set_transparency_reconnection(False)
        self.subscriptions: dict[str, int] = {}
        """Tango's numbers, by full name of the attribute."""
        self._labels: dict[str, Sequence[str]] = {}
        self._is_closed = False

    def ping(self) -> None:
        """Ask whether the device is there."""
        self._proxy.ping()

    def read(self, names: Sequence[str]) -> tuple[Seen, ...]:
        """Return values of attributes."""
        found = self._proxy.read_attributes([name.rpartition("/")[2] for name in names])
        return tuple(self._seen(name, one) for name, one in zip(names, found, strict=True))

    def subscribe(self, name: str) -> bool | None:
        """Subscribe to the changes of an attribute; False: the device does not push them; None: it has failed."""
        if name in self.subscriptions:
            return True

        asks = threading.get_ident()

        def take(event: Any) -> None:
            # Tango calls at once, with a value that it reads: that is no sign yet that events arrive. What an end of a
            # subscription does not reach, as Tango refuses it, is of no interest either.
            if not self._is_closed and threading.get_ident() != asks:
                self._event(name, event)

        try:
            number = self._proxy.subscribe_event(
                name.rpartition("/")[2], tango.EventType.CHANGE_EVENT, take, tango.EventSubMode.Sync
            )
        except _AWAY:
            raise
        except tango.DevFailed as failed:
            self.ping()  # whoever does not answer pushes perhaps
            if any(one.reason in _NOT_PUSHED for one in failed.args):
                return False
            _log.warning("subscription failed attribute=%s why=%s", name, _reason(failed))
            return None
        self.subscriptions[name] = number
        return True

    def leave(self, name: str) -> None:
        """Take no more events of an attribute."""
        if (number := self.subscriptions.pop(name, None)) is not None:
            with suppress(tango.DevFailed, KeyError):
                self._proxy.unsubscribe_event(number)

    def close(self) -> None:
        """End all subscriptions."""
        self._is_closed = True
        for name in list(self.subscriptions):
            self.leave(name)

    def _event(self, name: str, event: Any) -> None:
        if not event.err:
            self._tell(self._seen(name, event.attr_value))
            return
        reason, text = event.errors[0].reason, event.errors[0].desc
        if reason == _EVENTS_STOPPED:
            self._tell(Lost(self._device, text[:_LONGEST_TEXT]))
        elif reason == _EVENTS_MISSED:
            self._tell(Missed(name))
        else:
            self._tell(Seen(name, error=f"{reason}: {text}"[:_LONGEST_TEXT]))

    def _seen(self, name: str, found: Any) -> Seen:
        if found.has_failed:
            error = found.get_err_stack()[0]
            return Seen(name, error=f"{error.reason}: {error.desc}"[:_LONGEST_TEXT])
        kind = found.type
        quality = _QUALITIES[found.quality]
        value = None if found.value is None or quality == "INVALID" else _in_json(found.value, kind)
        label = self._label(name, value) if kind == tango.CmdArgType.DevEnum else ""
        time = found.time.tv_sec * 1_000_000 + found.time.tv_usec
        return Seen(name, value, str(kind), quality, time, label)

    def _label(self, name: str, value: Any) -> str:
        """Return the label of an enumerated value; asked for when it is read first, which is before any event."""
        if name not in self._labels:
            with suppress(tango.DevFailed):
                self._labels[name] = list(self._proxy.get_attribute_config(name.rpartition("/")[2]).enum_labels)
        labels = self._labels.get(name, ())
        return labels[value] if isinstance(value, int) and 0 <= value < len(labels) else ""


def _proxy(device: str) -> Any:
    proxy = tango.DeviceProxy(device)
    proxy.set_timeout_millis(CALL_MS)
    return proxy


def _address(host: str) -> tuple[str, int]:
    name, _, port = host.partition(":")
    return name, int(port or 10000)


def _reason(failed: tango.DevFailed) -> str:
    """Return why a call has failed, in one line."""
    first = failed.args[0]
    return " ".join(f"{first.reason}: {first.desc}".split())[:_LONGEST_TEXT]


def _in_json(value: Any, kind: Any) -> Any:
    """Return a value as JSON can have it."""
    if kind == tango.CmdArgType.DevEncoded:
        encoding, data = value
        return {"format": encoding, "data": b64encode(bytes(data)).decode()}
    if isinstance(value, tango.DevState):
        return str(value)
    if isinstance(value, np.ndarray):
        is_plain = value.dtype.kind != "f" or bool(np.isfinite(value).all())
        value = value.tolist()
        if is_plain:
            return value
    if isinstance(value, list | tuple):
        return [_in_json(one, kind) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
