"""The running system as the kit sees it: answers of the Tango database, of devices and of brokers, asked once each."""

import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import tango
from msgspec.structs import replace

from facade.admin.cluster import FoundTopic, inspect_topics
from facade.kernel.bus.dead_letters import TOPIC as DEAD_LETTERS
from facade.kernel.bus.dead_letters import original
from facade.kernel.bus.kafka.admin import newest_records
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, Clock, as_seconds, wait_until
from facade.kernel.config import Settings
from facade.kernel.errors import ConfigError, InfraError
from facade.kernel.icd.model import Attribute, DeviceClass, Icd, instance_role
from facade.kernel.icd.telescope import is_foreign
from facade.kernel.instances import devices_of
from sdp_facade_clients.conformance.checks import CheckOptions, Mismatch, Subject
from sdp_facade_clients.events import await_sockets, immutable, open_database

# --- Values and events of many attributes in one window of time ---
#
# Each attribute is read before its subscriptions, right after them, and at the end of the window. The first event must
# agree with one of the first two reads; the later events give the pace. Tango's threads deliver the events.

_FIRST_WITHIN = 5.0
"""Longest wait for the first events [s]; Tango sends them during the subscription."""
KINDS = {
    "change": tango.EventType.CHANGE_EVENT,
    "archive": tango.EventType.ARCHIVE_EVENT,
    "alarm": tango.EventType.ALARM_EVENT,
    "data-ready": tango.EventType.DATA_READY_EVENT,
}
PUSHED = ("change", "archive", "alarm")


def kinds_of(entry: Attribute) -> tuple[str, ...]:
    """Return the kinds of events that an attribute has."""
    return PUSHED if entry.is_pushed else ("data-ready",)


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

    kind: str = "change"
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


def observe(
    proxy: Callable[[str], Any], wanted: Mapping[str, Sequence[Attribute]], seconds: float, clock: Clock
) -> dict[tuple[str, str], AttributeTrace]:
    """Subscribe to attributes of devices, wait, and return a trace for each device and attribute."""
    traces: dict[tuple[str, str], AttributeTrace] = {}
    with closing(EventStreams(clock)) as subscribed:
        for device, entries in wanted.items():
            for entry in entries:
                # One by one: the first attributes of a device would change before the second read of the whole device.
                (before,) = read_all(proxy(device), [entry], clock)
                streams = {kind: subscribed.add(proxy(device), entry.name, kind) for kind in kinds_of(entry)}
                (after,) = read_all(proxy(device), [entry], clock)
                traces[device, entry.name] = AttributeTrace(before, after, after, streams)
        subscribed.begin()
        clock.sleep(seconds)
        subscribed.is_on = False
        for device, entries in wanted.items():
            for entry, value in zip(entries, read_all(proxy(device), entries, clock), strict=True):
                traces[device, entry.name].after = value
    return traces


def read_all(proxy: Any, entries: Sequence[Attribute], clock: Clock) -> list[TangoValue]:
    """Read attributes of a device in one call."""
    if not entries:
        return []
    try:
        answers = proxy.read_attributes([entry.name for entry in entries])
    except tango.DevFailed as failed:
        return [TangoValue(at=as_seconds(clock.now_us()), error=str(failed.args[0].desc))] * len(entries)
    now = as_seconds(clock.now_us())
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


class EventStreams:
    """Subscriptions to events, until they are closed."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._subscribed: list[tuple[EventStream, Any, int]] = []
        self.is_on = True

    def add(self, proxy: Any, attribute: str, kind: str = "change") -> EventStream:
        """Subscribe to events of one kind of an attribute; a refusal is in the stream."""
        stream = EventStream(kind)
        await_sockets(self._clock)
        try:
            id = proxy.subscribe_event(attribute, KINDS[kind], lambda event: self._take(stream, event))
            self._subscribed.append((stream, proxy, id))
        except tango.DevFailed as failed:
            stream.refused = str(failed.args[0].desc)
        return stream

    def begin(self) -> None:
        """Wait for the first event of each stream, and forget those that were pushed."""
        streams = [stream for stream, _, _ in self._subscribed]
        wait_until(
            self._clock,
            lambda: all(one.first or one.errors or one.kind == "data-ready" for one in streams),
            _FIRST_WITHIN,
        )
        with self._lock:
            for stream in streams:
                stream.pushed.clear()

    def close(self) -> None:
        """End the subscriptions."""
        for _, proxy, id in self._subscribed:
            await_sockets(self._clock)
            with suppress(tango.DevFailed):  # the server has ended
                proxy.unsubscribe_event(id)

    def _take(self, stream: EventStream, event: Any) -> None:
        now = as_seconds(self._clock.now_us())
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


# --- The system ---


CLOCKS: Final = 1.0
"""Allowed difference of two clocks: here, at the device, at the source of the data [s]."""
_SAMPLE, _HISTORY = 20, 2000
"""Newest records per partition: those that are checked, and those among which the kit looks for its own."""
_SET_ASIDE_WITHIN = 10.0
"""Age of an invalid record at which its dead letter must be there [s]."""


class LiveSystem:
    """Asks the system, and remembers the answers that cannot change during a run."""

    def __init__(self, icd: Icd, options: CheckOptions, settings: Settings, clock: Clock) -> None:
        self.absent = [
            name
            for name, one in icd.classes.items()
            if instance_role(one.instance) in settings.left_out or not devices_of(one, settings)
        ]
        """Device classes that the deployment does not run: by its setting `without`, or as it has no such devices."""
        classes = {name: one for name, one in icd.classes.items() if name not in self.absent}
        self.icd, self.options, self.clock = replace(icd, classes=classes), options, clock
        self.connection = Connection(settings, clock=clock)
        self._answers: dict[tuple[str, str], Any] = {}
        try:
            self.database = open_database(options.tango_host)
            self.devices: Mapping[str, list[str]] = {
                name: in_order(
                    (one for one in self.database.get_device_name("*", name) if not is_foreign(one, icd.telescope)),
                    options,
                )
                for name in classes
            }
        except tango.DevFailed as failed:
            what = f"the Tango database at {options.tango_host!r} does not answer: {failed.args[0].desc}"
            raise InfraError(what) from failed

    def _once(self, device: str, question: str, ask: Callable[[], Any]) -> Any:
        """Ask once, and remember an error as well: thousands of checks would wait for it again."""
        key = device, question
        if key not in self._answers:
            try:
                self._answers[key] = ask()
            except tango.DevFailed as failed:
                self._answers[key] = failed
        if isinstance(self._answers[key], tango.DevFailed):
            raise self._answers[key]
        return self._answers[key]

    def proxy(self, device: str) -> Any:
        """Return a proxy of a device."""
        return self._once(device, "", lambda: tango.DeviceProxy(f"tango://{self.options.tango_host}/{device}"))

    def is_silent(self, device: str) -> bool:
        """Return whether a device gives no answer, not even its State."""
        try:
            self._once(device, "state", lambda: self.proxy(device).state())
        except tango.DevFailed:
            return True
        return False

    def configs(self, device: str) -> dict[str, Any]:
        """Return Tango's configuration of each attribute of a device."""
        return self._once(
            device, "configs", lambda: {one.name: one for one in self.proxy(device).attribute_list_query_ex()}
        )

    def config(self, of: Subject) -> Any:
        """Return Tango's configuration of an attribute; a missing one is a mismatch."""
        return _found(self.configs(of.device), "an attribute", of.entry.name)

    def commands(self, device: str) -> dict[str, Any]:
        """Return Tango's description of each command of a device."""
        return self._once(
            device, "commands", lambda: {one.cmd_name: one for one in self.proxy(device).command_list_query()}
        )

    def command(self, of: Subject) -> Any:
        """Return Tango's description of a command; a missing one is a mismatch."""
        return _found(self.commands(of.device), "a command", of.entry.name)

    def polled(self, device: str) -> set[str]:
        """Return the attributes that Tango polls, in lower case."""
        found = "\n".join(self._once(device, "polled", lambda: self.proxy(device).polling_status()))
        return {name.lower() for name in re.findall(r"Polled attribute name = (\S+)", found)}

    def examined(self, device_class: DeviceClass) -> list[str]:
        """Return the devices of a class that are compared entry by entry."""
        found = self.devices[device_class.name]
        return found if self.options.thorough else found[:1]

    @cached_property
    def traces(self) -> Mapping[tuple[str, str], AttributeTrace]:
        """Return the reads and events of all examined attributes in one window of time, by device and attribute."""
        wanted = {}
        for device_class in self.icd.classes.values():
            for device in self.examined(device_class):
                known: Collection[str] = ()
                with suppress(tango.DevFailed):  # the checks of the device say so
                    known = self.configs(device)
                wanted[device] = [entry for entry in device_class.attributes if entry.name in known]
        return observe(self.proxy, wanted, self.options.window, self.clock)

    @cached_property
    def topics(self) -> Mapping[str, FoundTopic]:
        """Return the topics of the ICD that the brokers have."""
        return inspect_topics(self.connection, self.icd.topics)

    @property
    def commanded_class(self) -> DeviceClass:
        """Return the class of the device that is commanded; ConfigError without such a device."""
        device = self.options.subarray
        commanded = [one for one in self.icd.classes.values() if one.commands and one.family == "subarray"]
        for one in commanded:
            if device in self.devices[one.name]:
                return one
        known = [name for one in commanded for name in self.devices[one.name]]
        raise ConfigError(f"--subarray: expected one of {', '.join(known) or 'none in the database'}, got {device}")

    def messages(self, topic: str) -> list[tuple[Record, dict[str, Any]]]:
        """Return the newest records of a topic that are JSON objects, each with its content."""
        found = []
        for record in newest_records(self.connection, topic, _HISTORY):
            with suppress(ValueError):
                message = read_json(record.value or b"")
                if isinstance(message, dict):
                    found.append((record, message))
        return found

    def dead_letters(self, topic: str, records: Collection[Record]) -> frozenset[tuple[int, int]]:
        """Return partition and offset of the records that have a dead letter, once each is old enough to have one."""
        offsets, found = {(one.partition, one.offset) for one in records}, set[tuple[int, int]]()
        newest = as_seconds(max((one.timestamp_us for one in records), default=NEVER))

        def all_there() -> bool:
            for letter in newest_records(self.connection, DEAD_LETTERS, _HISTORY) if offsets else ():
                with suppress(ValueError):  # a malformed dead letter
                    about = original(letter)
                    found.update([(about.partition, about.offset)] if about.topic == topic else [])
            return found.issuperset(offsets)

        wait_until(self.clock, all_there, _SET_ASIDE_WITHIN - max(as_seconds(self.clock.now_us()) - newest, 0.0), 0.2)
        return frozenset(found.intersection(offsets))

    def sample(self, topic: str) -> list[Record]:
        """Return the newest records of a topic, for its checks."""
        return list(self._once(topic, "sample", lambda: newest_records(self.connection, topic, _SAMPLE)))


def _found(known: Mapping[str, Any], what: str, name: str) -> Any:
    if name not in known:
        raise Mismatch(f"{what} {name}", "none of this name")
    return known[name]


def read_json(text: bytes | str) -> Any:
    """Read JSON of unknown origin; ValueError, too, if it is nested too deep to be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def in_order(devices: Iterable[str], options: CheckOptions) -> list[str]:
    """Sort device names, the commanded one first: the first of a family is compared closely."""
    names = sorted(device.lower() for device in devices)
    return sorted(names, key=lambda name: not (options.active and name == options.subarray))
