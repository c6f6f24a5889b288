"""Reads and subscribes to many attributes at once, and keeps what comes in one window of time."""

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
"""Longest wait for the first events [s]; Tango sends them while the subscription is made."""
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
class Shown:
    """An attribute as it was read, or as an event brought it."""

    value: Any
    quality: str
    """Without Tango's prefix: VALID, INVALID ..."""
    time: float
    """Of the data [Unix s]."""
    at: float
    """When it was here [Unix s]."""
    type: str = ""
    """Tango type; only of what was read."""
    error: str = ""
    """Why there is nothing."""


@dataclass(slots=True)
class Stream:
    """The events of one kind of one attribute."""

    refused: str = ""
    """Why there is no subscription."""
    first: Shown | None = None
    """What Tango gave when the subscription was made."""
    pushed: list[Shown] = field(default_factory=list)
    """What the server sent within the window."""
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen in one window."""

    seconds: float
    before: Mapping[tuple[str, str], Shown]
    """What was read before the subscription, by device and attribute."""
    subscribed: Mapping[tuple[str, str], Shown]
    """What was read right after it."""
    after: Mapping[tuple[str, str], Shown]
    """What was read at the end."""
    streams: Mapping[tuple[str, str, str], Stream]
    """By device, attribute and kind of event."""


def observe(
    proxy: Callable[[str], Any], wanted: Mapping[str, Sequence[Attribute]], seconds: float, clock: Clock
) -> Observation:
    """Subscribe to all attributes, wait, and give what came."""
    before: dict[tuple[str, str], Shown] = {}
    subscribed: dict[tuple[str, str], Shown] = {}
    after: dict[tuple[str, str], Shown] = {}
    recorder = _Recorder(clock)
    try:
        for device, entries in wanted.items():
            for entry in entries:
                # One by one: of a whole device the first attributes would be other ones by the time of the second read.
                before |= read_all(proxy(device), device, [entry], clock)
                for kind in kinds_of(entry):
                    recorder.subscribe(proxy(device), device, entry.name, kind)
                subscribed |= read_all(proxy(device), device, [entry], clock)
        recorder.await_first(_FIRST_WITHIN)
        recorder.restart()
        clock.sleep(seconds)
        streams = recorder.stop()
        for device, entries in wanted.items():
            after |= read_all(proxy(device), device, entries, clock)
    finally:
        recorder.close()
    return Observation(seconds=seconds, before=before, subscribed=subscribed, after=after, streams=streams)


def read_all(proxy: Any, device: str, entries: Sequence[Attribute], clock: Clock) -> dict[tuple[str, str], Shown]:
    """Read attributes of a device with one call."""
    if not entries:
        return {}
    try:
        answers = proxy.read_attributes([entry.name for entry in entries])
    except tango.DevFailed as failed:
        text = str(failed.args[0].desc)
        nothing = Shown(value=None, quality="", time=0.0, at=clock.now(), error=text)
        return {(device, entry.name): nothing for entry in entries}
    now = clock.now()
    return {(device, entry.name): shown(answer, now) for entry, answer in zip(entries, answers, strict=True)}


def shown(answer: Any, now: float) -> Shown:
    """Return what Tango's client gives in the kit's own form, which can be compared."""
    if getattr(answer, "has_failed", False):
        errors = answer.get_err_stack()
        return Shown(value=None, quality="", time=0.0, at=now, error=str(errors[0].desc) if errors else "no reason")
    return Shown(
        value=_plain(answer.value),
        quality=str(answer.quality).removeprefix("ATTR_"),
        time=answer.time.totime(),
        at=now,
        type=str(answer.type),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, tango.DevState):
        return str(value)
    if getattr(value, "ndim", 0) == 2:
        return tuple(immutable(row) for row in value.tolist())
    if isinstance(value, tuple | list) or getattr(value, "ndim", 0) == 1:
        return immutable(value.tolist() if hasattr(value, "tolist") else value)
    return value


class _Recorder:
    """Takes events from Tango's threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ids: list[tuple[Any, int]] = []
        self._streams: dict[tuple[str, str, str], Stream] = {}
        self._taking = True

    def subscribe(self, proxy: Any, device: str, attribute: str, kind: str) -> None:
        """Subscribe to one attribute; a refusal is a finding."""
        stream = self._streams[device, attribute, kind] = Stream()
        await_sockets(self._clock)
        try:
            self._ids.append((proxy, proxy.subscribe_event(attribute, KINDS[kind], self._callback(stream))))
        except tango.DevFailed as failed:
            stream.refused = str(failed.args[0].desc)

    def await_first(self, within: float) -> None:
        """Wait until every subscription has brought what Tango gives at once; data-ready events bring nothing."""

        def all_there() -> bool:
            with self._lock:
                return all(
                    kind == "data-ready" or stream.first or stream.refused or stream.errors
                    for (_, _, kind), stream in self._streams.items()
                )

        wait_until(self._clock, all_there, within)

    def restart(self) -> None:
        """Begin the window."""
        with self._lock:
            for stream in self._streams.values():
                stream.pushed.clear()

    def stop(self) -> dict[tuple[str, str, str], Stream]:
        """End the window, and give what came."""
        with self._lock:
            self._taking = False
            return dict(self._streams)

    def close(self) -> None:
        """End all subscriptions."""
        for proxy, id in self._ids:
            await_sockets(self._clock)
            try:
                proxy.unsubscribe_event(id)
            except tango.DevFailed:  # of a server that has gone meanwhile
                continue

    def _callback(self, stream: Stream) -> Callable[[Any], None]:
        def on_event(event: Any) -> None:
            now = self._clock.now()
            with self._lock:
                if not self._taking:
                    return
                if event.err:
                    stream.errors.append(str(event.errors[0].desc) if event.errors else "no reason")
                    return
                if not hasattr(event, "attr_value"):  # data-ready: only that there is something to be read
                    stream.pushed.append(Shown(value=event.ctr, quality="VALID", time=now, at=now))
                    return
                made = shown(event.attr_value, now)
                if stream.first is None:
                    stream.first = made
                # What Tango reads when it connects, or connects again, is no event.
                if event.event_reason == tango.EventReason.Update:
                    stream.pushed.append(made)

        return on_event
