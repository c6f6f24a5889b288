"""Values and events of many attributes in one window of time.

Each attribute is read before its subscription, right after it, and at the end of the window. The first event must agree
with one of the first two reads; the events of the window give the pace. Tango's threads call the recorder.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
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

    value: Any
    quality: str
    """Without Tango's prefix: VALID, INVALID ..."""
    time: float
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EventWindow:
    """Reads (by device and attribute) and events (by device, attribute and kind) of one window."""

    seconds: float
    before: Mapping[tuple[str, str], TangoValue]
    """Read before the subscription."""
    subscribed: Mapping[tuple[str, str], TangoValue]
    """Read right after it."""
    after: Mapping[tuple[str, str], TangoValue]
    """Read at the end."""
    streams: Mapping[tuple[str, str, str], EventStream]


def observe(
    proxy: Callable[[str], Any], wanted: Mapping[str, Sequence[Attribute]], seconds: float, clock: Clock
) -> EventWindow:
    """Subscribe to all attributes, wait, and return reads and events."""
    before: dict[tuple[str, str], TangoValue] = {}
    subscribed: dict[tuple[str, str], TangoValue] = {}
    after: dict[tuple[str, str], TangoValue] = {}
    recorder = _Recorder(clock)
    try:
        for device, entries in wanted.items():
            for entry in entries:
                # One by one: the first attributes of a device would change before the second read of the whole device.
                before |= read_all(proxy(device), device, [entry], clock)
                for kind in kinds_of(entry):
                    recorder.subscribe(proxy(device), device, entry.name, kind)
                subscribed |= read_all(proxy(device), device, [entry], clock)
        wait_until(clock, recorder.has_all_first, _FIRST_WITHIN)
        recorder.restart()
        clock.sleep(seconds)
        streams = recorder.stop()
        for device, entries in wanted.items():
            after |= read_all(proxy(device), device, entries, clock)
    finally:
        recorder.close()
    return EventWindow(seconds=seconds, before=before, subscribed=subscribed, after=after, streams=streams)


def read_all(proxy: Any, device: str, entries: Sequence[Attribute], clock: Clock) -> dict[tuple[str, str], TangoValue]:
    """Read attributes of a device in one call."""
    if not entries:
        return {}
    try:
        answers = proxy.read_attributes([entry.name for entry in entries])
    except tango.DevFailed as failed:
        nothing = _no_value(str(failed.args[0].desc), clock.now())
        return {(device, entry.name): nothing for entry in entries}
    now = clock.now()
    return {(device, entry.name): _of_tango(answer, now) for entry, answer in zip(entries, answers, strict=True)}


def _of_tango(answer: Any, now: float) -> TangoValue:
    if getattr(answer, "has_failed", False):
        return _no_value(_reason(answer.get_err_stack()), now)
    value = answer.value
    if isinstance(value, tango.DevState):
        value = str(value)
    elif getattr(value, "ndim", 0) == 2:
        value = tuple(immutable(row) for row in value.tolist())
    elif isinstance(value, tuple | list) or getattr(value, "ndim", 0) == 1:
        value = immutable(value.tolist() if hasattr(value, "tolist") else value)
    quality = str(answer.quality).removeprefix("ATTR_")
    return TangoValue(value=value, quality=quality, time=answer.time.totime(), at=now)


def _no_value(error: str, now: float) -> TangoValue:
    return TangoValue(value=None, quality="", time=0.0, at=now, error=error)


def _reason(errors: Sequence[Any]) -> str:
    return str(errors[0].desc) if errors else "no reason"


class _Recorder:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ids: list[tuple[Any, int]] = []
        self._streams: dict[tuple[str, str, str], EventStream] = {}
        self._is_on = True

    def subscribe(self, proxy: Any, device: str, attribute: str, kind: str) -> None:
        stream = self._streams[device, attribute, kind] = EventStream()
        await_sockets(self._clock)
        try:
            id = proxy.subscribe_event(attribute, KINDS[kind], lambda event: self._take(stream, event))
        except tango.DevFailed as failed:
            stream.refused = str(failed.args[0].desc)
        else:
            self._ids.append((proxy, id))

    def has_all_first(self) -> bool:
        with self._lock:
            return all(
                kind == "data-ready" or stream.first or stream.refused or stream.errors
                for (_, _, kind), stream in self._streams.items()
            )

    def restart(self) -> None:
        with self._lock:
            for stream in self._streams.values():
                stream.pushed.clear()

    def stop(self) -> dict[tuple[str, str, str], EventStream]:
        with self._lock:
            self._is_on = False
            return dict(self._streams)

    def close(self) -> None:
        for proxy, id in self._ids:
            await_sockets(self._clock)
            try:
                proxy.unsubscribe_event(id)
            except tango.DevFailed:  # the server has ended
                continue

    def _take(self, stream: EventStream, event: Any) -> None:
        now = self._clock.now()
        with self._lock:
            if not self._is_on:
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
