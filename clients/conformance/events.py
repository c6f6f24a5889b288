"""Values and events of many attributes in one window of time.

Each attribute is read before its subscriptions, right after them, and at the end of the window. The first event must
agree with one of the first two reads; the later events give the pace. Tango's threads deliver the events.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import tango

from clients.events import immutable
from clients.sockets import await_sockets
from facade.clock import Clock, wait_until
from facade.icd.model import Attribute

_FIRST_WITHIN = 5.0
"""Longest wait for the first events [s]; Tango sends them during the subscription."""
KINDS = {
    "change": tango.EventType.CHANGE_EVENT,
    "archive": tango.EventType.ARCHIVE_EVENT,
    "alarm": tango.EventType.ALARM_EVENT,
    "data-ready": tango.EventType.DATA_READY_EVENT,
}


def kinds_of(entry: Attribute) -> tuple[str, ...]:
    """Return the kinds of events that an attribute has."""
    return ("change", "archive", "alarm") if entry.is_pushed else ("data-ready",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TangoValue:
    """The value of an attribute, from a read or an event."""

    value: Any = None
    quality: str = ""
    """Without Tango's prefix: VALID, INVALID ..."""
    time: float = 0.0
    """Of the data [Unix s]."""
    at: float
    """Of its arrival here [Unix s]."""
    error: str = ""
    """Reason of a missing value."""


@dataclass(slots=True)
class EventStream:
    """The events of one kind of one attribute."""

    refused: str = ""
    """Reason of a missing subscription."""
    first: TangoValue | None = None
    """The event that Tango makes of a read during the subscription."""
    pushed: list[TangoValue] = field(default_factory=list)
    """Events from the server within the window."""
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True)
class AttributeTrace:
    """The reads and events of one attribute in one window."""

    before: TangoValue
    """Read before the subscriptions."""
    subscribed: TangoValue
    """Read right after them."""
    after: TangoValue
    """Read at the end."""
    streams: dict[str, EventStream]
    """By kind of event."""


def observe(
    proxy: Callable[[str], Any], wanted: Mapping[str, Sequence[Attribute]], seconds: float, clock: Clock
) -> dict[tuple[str, str], AttributeTrace]:
    """Subscribe to attributes of devices, wait, and return a trace for each device and attribute."""
    traces: dict[tuple[str, str], AttributeTrace] = {}
    recorder = _Recorder(clock)
    try:
        for device, entries in wanted.items():
            for entry in entries:
                # One by one: the first attributes of a device would change before the second read of the whole device.
                (before,) = read_all(proxy(device), [entry], clock)
                streams = {kind: recorder.subscribe(proxy(device), entry.name, kind) for kind in kinds_of(entry)}
                (subscribed,) = read_all(proxy(device), [entry], clock)
                traces[device, entry.name] = AttributeTrace(before, subscribed, subscribed, streams)
        recorder.await_first(trace.streams for trace in traces.values())
        clock.sleep(seconds)
        recorder.is_on = False
        for device, entries in wanted.items():
            for entry, value in zip(entries, read_all(proxy(device), entries, clock), strict=True):
                traces[device, entry.name].after = value
    finally:
        recorder.close()
    return traces


def read_all(proxy: Any, entries: Sequence[Attribute], clock: Clock) -> list[TangoValue]:
    """Read attributes of a device in one call."""
    if not entries:
        return []
    try:
        answers = proxy.read_attributes([entry.name for entry in entries])
    except tango.DevFailed as failed:
        return [TangoValue(at=clock.now(), error=str(failed.args[0].desc))] * len(entries)
    now = clock.now()
    return [_of_tango(answer, now) for answer in answers]


def _of_tango(answer: Any, now: float) -> TangoValue:
    if getattr(answer, "has_failed", False):
        return TangoValue(at=now, error=_reason(answer.get_err_stack()))
    value = answer.value
    if isinstance(value, tango.DevState):
        value = str(value)
    elif getattr(value, "ndim", 0) == 2:
        value = tuple(immutable(row) for row in value.tolist())
    elif isinstance(value, tuple | list) or getattr(value, "ndim", 0) == 1:
        value = immutable(value.tolist() if hasattr(value, "tolist") else value)
    quality = str(answer.quality).removeprefix("ATTR_")
    return TangoValue(value=value, quality=quality, time=answer.time.totime(), at=now)


def _reason(errors: Sequence[Any]) -> str:
    return str(errors[0].desc) if errors else "no reason"


class _Recorder:
    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._ids: list[tuple[Any, int]] = []
        self.is_on = True

    def subscribe(self, proxy: Any, attribute: str, kind: str) -> EventStream:
        stream = EventStream()
        await_sockets(self._clock)
        try:
            id = proxy.subscribe_event(attribute, KINDS[kind], lambda event: self._take(stream, event))
            self._ids.append((proxy, id))
        except tango.DevFailed as failed:
            stream.refused = str(failed.args[0].desc)
        return stream

    def await_first(self, all_streams: Iterator[dict[str, EventStream]]) -> None:
        """Wait for the first event of each stream, and begin the window."""
        streams = [(kind, stream) for streams in all_streams for kind, stream in streams.items()]

        def all_there() -> bool:
            with self._lock:
                return all(kind == "data-ready" or one.first or one.refused or one.errors for kind, one in streams)

        wait_until(self._clock, all_there, _FIRST_WITHIN)
        with self._lock:
            for _, stream in streams:
                stream.pushed.clear()

    def close(self) -> None:
        for proxy, id in self._ids:
            await_sockets(self._clock)
            with suppress(tango.DevFailed):  # the server has ended
                proxy.unsubscribe_event(id)

    def _take(self, stream: EventStream, event: Any) -> None:
        now = self._clock.now()
        with self._lock:
            if not self.is_on:
                return
            if event.err:
                stream.errors.append(_reason(event.errors))
            elif not hasattr(event, "attr_value"):  # data-ready: only a counter
                stream.pushed.append(TangoValue(value=event.ctr, quality="VALID", time=now, at=now))
            else:
                made = _of_tango(event.attr_value, now)
                stream.first = stream.first or made
                # The read of a connection, or of a new one after a loss, is no event of the server.
                if event.event_reason == tango.EventReason.Update:
                    stream.pushed.append(made)
