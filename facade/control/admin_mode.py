"""adminMode: written by operators, kept on the compacted state topic, so it outlives any restart.

The moves are those of the SKA control model: free within {NOT_FITTED, RESERVED, OFFLINE} and
within {OFFLINE, ENGINEERING, ONLINE}; OFFLINE is the only bridge.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from facade.bus.port import Record
from facade.flow import DeviceReading, LastReadings
from facade.reading import Reading

TOPIC = "state"
ATTRIBUTE = "adminMode"
INITIAL = "ONLINE"

_OUT_OF_USE = frozenset({"NOT_FITTED", "RESERVED", "OFFLINE"})
_IN_USE = frozenset({"OFFLINE", "ENGINEERING", "ONLINE"})
DISABLED = _OUT_OF_USE
"""Modes in which a device's State is DISABLE."""


class StateMessage(msgspec.Struct, tag_field="schema", tag="state/1", kw_only=True):
    """A setting or state of a device; the wire form is ``state.schema.json``."""

    device: str
    attribute: str
    value: str
    time: int
    """When it was set [Unix us]."""
    origin: str


_decode = msgspec.json.Decoder(StateMessage).decode


def allowed(current: str, wanted: str) -> bool:
    """Tell whether the control model lets a device go from one mode to another."""
    return {current, wanted} <= _OUT_OF_USE or {current, wanted} <= _IN_USE


def to_record(device: str, mode: str, *, now: float, origin: str) -> Record:
    """Give the record that sets a device's mode.

    Parameters
    ----------
    now
        Wall-clock time [Unix s].
    """
    message = StateMessage(device=device, attribute=ATTRIBUTE, value=mode, time=round(now * 1e6), origin=origin)
    return Record(topic=TOPIC, key=f"{device}/{ATTRIBUTE}".encode(), value=msgspec.json.encode(message))


class AdminModes:
    """A flow: the modes of the devices of this server."""

    topic = TOPIC
    durable = False
    partitions: Sequence[int] | None = None

    def __init__(self, devices: Iterable[str], modes: tuple[str, ...]) -> None:
        self._labels = modes
        self.modes: dict[str, str] = dict.fromkeys(devices, INITIAL)
        self._times: dict[str, float] = dict.fromkeys(self.modes, 0.0)
        self._set_here: dict[str, int] = {}
        """Time of the newest record of each device that this server has written [Unix us]."""

    def set(self, device: str, mode: str, time: float) -> Reading:
        """Take over a mode that this server has just written, before it comes back from the bus.

        Parameters
        ----------
        time
            That of the record [Unix s].
        """
        self._set_here[device] = round(time * 1e6)
        self.modes[device], self._times[device] = mode, time
        return Reading(mode, time)

    def fold(self, record: Record, *, count: bool) -> str | None:
        """Take over a mode; see `facade.flow.Flow`."""
        if record.value is None:
            return "-tombstone"
        try:
            message = _decode(record.value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return f"schema: {error}"
        if message.attribute != ATTRIBUTE or message.device not in self.modes:
            return "-other-device"
        if message.value not in self._labels:
            return f"value: adminMode: expected one of {', '.join(self._labels)}, got {message.value!r:.80}"
        if message.origin == message.device and message.time < self._set_here.get(message.device, 0):
            return None  # our own, and we have set another one since
        self.modes[message.device] = message.value
        self._times[message.device] = message.time / 1e6
        return None

    def readings(self, now: float, last: LastReadings) -> Iterator[DeviceReading]:
        """Give the modes, by label; a mode that was never set is as old as this server."""
        for device, mode in self.modes.items():
            self._times[device] = self._times[device] or now
            yield device, ATTRIBUTE, Reading(mode, self._times[device])

    def as_dict(self) -> dict[str, Any]:
        """Give nothing: the topic itself is compacted."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take nothing: the topic itself is read from its beginning."""
