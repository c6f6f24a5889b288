"""The newest settings and states of devices, from compacted topics: the log is the state.

Operators' settings (adminMode) and controllers' reports (obsState, receiveAddresses ...) have the same form and other
authors. So each has its topic, and an attribute is taken from its own topic only: a reporter of states can set no
mode. A value is text on the bus; the ICD's type of the attribute defines how to parse it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from facade.kernel.bus.offsets import Extent
from facade.kernel.bus.port import Record
from facade.kernel.bus.signatures import UNSIGNED, Signatures, signed_topics
from facade.kernel.clock import NEVER, SECOND, Time
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.plausible import wrong_key, wrong_unit
from facade.kernel.icd.model import Attribute, DeviceClass, Executor, Icd
from facade.kernel.outcome import LATE, USED, Outcome, RecordRejected, Suppressed
from facade.kernel.reading import Reading, Value
from facade.kernel.runtime.flow import DeviceReading, Flow
from facade.sdp import messages

if TYPE_CHECKING:  # a controller has no device server
    from facade.kernel.runtime.composition import Server

TOPIC, SETTINGS = "state", "settings"
STATE = "State"
"""Tango's own attribute; controllers report it if commands of the class lead to it."""
OBS_STATE = "obsState"
NO_BLOCK = frozenset({"", "null"})
"""Values of ebID without an execution block."""
_DERIVED = frozenset({STATE, OBS_STATE})
"""Reported attributes that also depend on commands under way; see `facade.flows.commands.rules.shown`."""
_APART = SECOND
"""Records of two partitions appended at least this time apart are ordered by time, despite the differences of brokers'
clocks."""

StateMessage = messages.State
decode_state = BatchDecoder(StateMessage).decode_one


def state_record(message: StateMessage, topic: str = TOPIC) -> Record:
    """Return the record that sets a device's attribute."""
    key = f"{message.device}/{message.attribute}".encode()
    return Record(topic=topic, key=key, value=msgspec.json.encode(message))


def as_text(value: Any) -> str:
    """Return a value in the form of the bus.

    Raises
    ------
    ValueError
        JSON cannot hold it, such as NaN, which many parsers of other languages refuse.
    """
    try:
        return value if isinstance(value, str) else json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"expected a text, or what JSON can hold, got {value!r:.80}: {error}") from error


@dataclass(frozen=True, slots=True)
class Reported:
    """The last report of one attribute."""

    value: Value
    time: Time
    """Time of the setting; 0: never."""
    appended_us: Time = NEVER
    """Append time of the report."""
    command: str = ""


class DeviceStates(Flow):
    """A flow: the reported attributes of some devices.

    Parameters
    ----------
    devices
        Device class, or executor of the ICD, by device name.
    signatures
        Keys by which records are checked. For a device with a key, an older state than the newest one does not count,
        because each writer of the topic can copy an old record with its valid signature.
    """

    topic = TOPIC

    def __init__(self, icd: Icd, devices: Mapping[str, str], signatures: Signatures = UNSIGNED) -> None:
        self._icd, self.signatures = icd, signatures
        self._newest: dict[bytes | None, Time] = {}
        """Time of the newest signed record [Unix us], by its key."""
        self._known: dict[str, dict[str, Attribute | frozenset[str]]] = {
            device: _known(icd.commanded[name]) for device, name in devices.items()
        }
        self._told: dict[tuple[str, str], Reported] = {}
        self._versions = dict.fromkeys(devices, 0)
        self._changed: dict[tuple[str, str], None] = {}
        """Attributes reported since the last call of `readings`; threads of Tango add to it."""
        self._set_here: dict[tuple[str, str], Time] = {}
        """Time of the newest record of each attribute that this server has written."""
        self._acknowledged: dict[tuple[str, str], StateMessage] = {}
        """States from outcomes of commands, until their own records on `state` are read."""
        self.listeners: list[Callable[[StateMessage], None]] = []
        """Called with each report, of any device."""
        self._started = NEVER
        self._lost: set[str] = set()
        """Topics that were created again, or cut, while no server read them: initial values may be wrong."""
        self._incomplete: set[str] = set()
        """Topics to which this happened in any run: the next one cannot read what this one has read before."""
        for device, known in self._known.items():
            for name, entry in known.items():
                if isinstance(entry, Attribute) and entry.initial is not None:
                    self._tell((device, name), Reported(self._parse(entry, entry.initial), NEVER))

    def get(self, device: str, attribute: str) -> Reported | None:
        """Return the last report; None: there is none, and no initial value."""
        return self._told.get((device, attribute))

    def label(self, device: str, attribute: str, default: str = "") -> str:
        """Return the value of an enumerated attribute, or of ``State``."""
        told = self._told.get((device, attribute))
        return default if told is None else str(told.value)

    @property
    def are_lost(self) -> bool:
        """Whether initial states may be wrong, because `state` was created again, or cut, while no server read it."""
        return TOPIC in self._lost

    def has_lost(self, device: str, attribute: str) -> bool:
        """Return whether an attribute has lost its value: its topic may lack the record, and none has come since."""
        entry = self._known.get(device, {}).get(attribute)
        return entry is not None and _topic(entry) in self._lost and (device, attribute) not in self._told

    def place(self, now: Extent, before: Mapping[int, int], after: Mapping[int, int], *, topic: str = TOPIC) -> None:
        """Forget the initial values if records of a topic may be lost that this server has not read."""
        if any(after.get(partition, 0) < at for partition, at in before.items()):
            self._incomplete.add(topic)
            if not self._started:
                self._forget_initial(topic)

    def as_dict(self, topic: str = TOPIC) -> dict[str, Any]:
        """Return whether a topic may lack records."""
        return {"are_lost": True} if topic in self._incomplete else {}

    def restore(self, state: Mapping[str, Any], topic: str = TOPIC) -> None:
        """Forget the initial values if a former run did, because no record may have come since then."""
        if state.get("are_lost"):
            self._forget_initial(topic)

    def _forget_initial(self, topic: str) -> None:
        self._lost.add(topic)
        self._incomplete.add(topic)
        for (device, name), told in list(self._told.items()):
            if not told.time and _topic(self._known[device][name]) == topic:
                del self._told[device, name]
                self._changed.pop((device, name), None)

    def version(self, device: str) -> int:
        """Return a number that changes with each report about a device."""
        return self._versions[device]

    def set(self, message: StateMessage) -> Reading:
        """Apply a record that this server has just written, before it comes back from the bus."""
        key = (message.device, message.attribute)
        value = self._parse(self._known[message.device][message.attribute], message.value)
        self._set_here[key] = message.time
        self._tell(key, Reported(value, message.time, message.time, message.command))
        return Reading(value, message.time)

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Apply a report; see `facade.kernel.runtime.flow.Flow`."""
        message = decode_state(record.value)
        if not isinstance(message, StateMessage):
            return message
        key = f"{message.device}/{message.attribute}"
        if why := wrong_key(record.key, key, "$.attribute") or wrong_unit(message.time, record.timestamp_us, "$.time"):
            return why
        if self.signatures.covers(record):
            if why := self.signatures.refusal(record):
                return why
            if message.time < self._newest.get(record.key, NEVER):
                return LATE
        outcome = self.take(message, record.timestamp_us, record.topic)
        if self.signatures.covers(record) and not isinstance(outcome, RecordRejected):
            self._newest[record.key] = message.time  # a refused one has set nothing
        return outcome

    def take(self, message: StateMessage, appended_us: Time, topic: str = TOPIC) -> Outcome:
        """Apply a report of a topic with its append time."""
        for listener in self.listeners if topic == TOPIC else ():
            listener(message)
        known = self._known.get(message.device)
        if known is None:
            return Suppressed("other-device")
        entry = known.get(message.attribute)
        if entry is None or _topic(entry) != topic:
            names = ", ".join(name for name, one in known.items() if _topic(one) == topic)
            what = f"{message.device}: expected one of {names}, got {message.attribute!r:.80}"
            return RecordRejected("attribute", "$.attribute", what)
        try:
            value = self._parse(entry, message.value)
        except ValueError as error:
            return RecordRejected("value", "$.value", f"{message.attribute}: {error}")
        key = (message.device, message.attribute)
        if message.origin == message.device and message.time < self._set_here.get(key, NEVER):
            return USED  # our own record, and we have written a newer one since
        if (acknowledged := self._acknowledged.get(key)) is not None:
            if message.time < acknowledged.time and appended_us <= self._told[key].appended_us + _APART:
                return USED  # it precedes a state from an outcome, whose record is still to come
            del self._acknowledged[key]
        self._tell(key, Reported(value, message.time, appended_us, message.command))
        return USED

    def acknowledge(self, messages: Sequence[StateMessage], appended_us: Time) -> Outcome:
        """Apply states from the outcome of a command.

        The same states come on ``state``, another partition, perhaps after older ones. The controller's timestamps show
        which are newer; but a record appended long before is never newer, whatever a controller's clock says. All are
        applied or none.
        """
        taken = []
        for message in messages:
            known = {name: one for name, one in self._known.get(message.device, {}).items() if _topic(one) == TOPIC}
            if (entry := known.get(message.attribute)) is None:
                what = f"{message.device}: expected some of {', '.join(known)}, got {message.attribute!r:.80}"
                return RecordRejected("states", "$.states", what)
            try:
                taken.append((message, self._parse(entry, message.value)))
            except ValueError as error:
                return RecordRejected("states", f"$.states.{message.attribute}.value", str(error))
        for message, value in taken:
            key, told = (message.device, message.attribute), self._told.get((message.device, message.attribute))
            if told is None or (message.time > told.time and appended_us + _APART >= told.appended_us):
                self._tell(key, Reported(value, message.time, appended_us, message.command))
                self._acknowledged[key] = message
        return USED

    def unrecorded(self, before_us: Time, origin: str) -> list[StateMessage]:
        """Return the states known only from outcomes, once: their writer was killed before it wrote ``state``.

        Parameters
        ----------
        before_us
            A state set later may be under way.
        origin
            The writer that asks: its own states are not under way.
        """
        found = {key: one for key, one in self._acknowledged.items() if one.time < before_us or one.origin == origin}
        for key in found:
            del self._acknowledged[key]
        return list(found.values())

    def readings(self, now: Time, topic: str = TOPIC) -> Iterator[DeviceReading]:
        """Return the reports of a topic since the last call that no other view shows.

        Initial values are as old as this server.
        """
        self._started = self._started or now
        for device, name in list(self._changed):
            key = (device, name)
            if _topic(self._known[device][name]) != topic:
                continue
            del self._changed[key]  # first: another report may come right now
            if name not in _DERIVED:
                told = self._told[key]
                yield device, name, Reading(told.value, told.time or self._started)

    def _tell(self, key: tuple[str, str], told: Reported) -> None:
        self._told[key] = told  # first: readers of the other attributes look for it
        self._changed[key] = None
        self._versions[key[0]] += 1

    def _parse(self, entry: Attribute | frozenset[str], text: str) -> Value:
        """Parse a value by its attribute's type.

        Raises
        ------
        ValueError
            The text is no value of the attribute.
        """
        labels: Sequence[str] = ()
        if isinstance(entry, frozenset):
            labels = sorted(entry)
        elif entry.enum is not None:
            labels = self._icd.enums[entry.enum]
        if labels:
            if text not in labels:
                raise ValueError(f"expected one of {', '.join(labels)}, got {text!r:.80}")
            return text
        assert isinstance(entry, Attribute)
        if entry.length:
            return _texts(text)
        if entry.type in ("DevLong", "DevLong64"):
            return _integer(text)
        return text


def states_of(server: "Server") -> DeviceStates:
    """Return the states of a server's devices, which all its flows share."""

    def make() -> DeviceStates:
        keys = () if server.settings.replay else server.settings.controller_keys  # those of a night long ago have ended
        return DeviceStates(server.icd, server.classes, Signatures(keys, signed_topics(server.icd)))

    return server.share(DeviceStates, make)


class DeviceSettings(Flow):
    """A flow: what operators set on the devices of `DeviceStates`, which knows it together with their states."""

    topic = SETTINGS

    def __init__(self, states: DeviceStates) -> None:
        self._states = states

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Apply a setting; see `facade.kernel.runtime.flow.Flow`."""
        return self._states.fold(record, count=count)

    def place(self, now: Extent, before: Mapping[int, int], after: Mapping[int, int]) -> None:
        """Forget the initial settings if an operator may have set others."""
        self._states.place(now, before, after, topic=SETTINGS)

    def as_dict(self) -> dict[str, Any]:
        """Return whether settings may be lost."""
        return self._states.as_dict(SETTINGS)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Forget the initial settings if a former run did."""
        self._states.restore(state, SETTINGS)

    def readings(self, now: Time) -> Iterator[DeviceReading]:
        """Return the settings since the last call."""
        return self._states.readings(now, SETTINGS)


def _topic(entry: Attribute | frozenset[str]) -> str:
    return entry.topic if isinstance(entry, Attribute) else TOPIC


def _known(device_class: DeviceClass | Executor) -> dict[str, Attribute | frozenset[str]]:
    known: dict[str, Attribute | frozenset[str]] = {a.name: a for a in device_class.attributes if a.reported}
    states = [label for command in device_class.commands if command.reports == STATE for label in command.targets]
    if states:
        known[STATE] = frozenset(states)
    return known


def _texts(text: str) -> tuple[str, ...]:
    try:
        return tuple(msgspec.json.decode(text, type=list[str]))
    except msgspec.DecodeError as error:
        raise ValueError(f"expected a JSON list of texts, got {text!r:.80}: {error}") from error


def _integer(text: str) -> int:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
        raise ValueError(f"expected an integer of 64 bits, got {text!r:.80}")
    return value
