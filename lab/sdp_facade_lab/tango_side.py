"""The values that devices of a deployment show, which runs compare with the records sent."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tango

from facade.kernel.icd.model import Attribute, DeviceClass, Icd
from sdp_facade_clients.terminal import BUS, MASTER, NODE, SUBARRAY
from sdp_facade_lab.heap_account import BUS_FIGURES, MASTER_TOTALS, NODE_TOTALS, STREAMS, HeapCounts

_REASONS_STREAM = "ingest.heaps"
_MOST_COMMANDS = 2000


class Shown(NamedTuple):
    """One attribute as it was read."""

    value: Any
    valid: bool
    """Not ATTR_INVALID."""
    time: float
    """Of the data [Unix s]."""


class TangoSide:
    """Reads the devices of a deployment.

    Parameters
    ----------
    devices
        Device names by class.
    """

    def __init__(self, tango_host: str, devices: Mapping[str, Sequence[str]], icd: Icd) -> None:
        self._icd = icd
        self.devices = devices
        self._proxies = {
            name: tango.DeviceProxy(f"tango://{tango_host}/{name}") for names in devices.values() for name in names
        }

    @property
    def nodes(self) -> dict[int, str]:
        return {int(name.rsplit("/", 1)[-1]): name for name in self.devices[NODE]}

    @property
    def subarrays(self) -> Sequence[str]:
        return self.devices[SUBARRAY]

    @property
    def sdp(self) -> str:
        return self.devices[MASTER][0]

    def read(self, device: str, attributes: Iterable[str]) -> dict[str, Shown]:
        try:
            answers = self._proxies[device].read_attributes(list(attributes))
        except tango.DevFailed:
            return {}
        return {
            answer.name: Shown(answer.value, answer.quality != tango.AttrQuality.ATTR_INVALID, answer.time.totime())
            for answer in answers
            if not answer.has_failed
        }

    def bus(self, *attributes: str) -> dict[str, Shown]:
        return self.read(self.devices[BUS][0], attributes)

    def subarrays_known(self) -> bool:
        """Return whether all subarrays show what the bus says of them."""
        states = [self.read(device, ["State"]).get("State") for device in self.subarrays]
        return all(one is not None and one.value != tango.DevState.UNKNOWN for one in states)

    def executes(self, device: str, command: str) -> bool:
        """Return whether a subarray shows a command in the middle of its execution."""
        shown = self.read(device, ["longRunningCommandProgress"]).get("longRunningCommandProgress")
        return shown is not None and any(text.endswith(f"_{command}") for text in shown.value or ())

    def has_begun(self, device: str, command: str) -> bool:
        """Return whether a subarray shows a command in the middle of its execution, or executed."""
        try:
            told = json.loads(self.history(device))
        except tango.DevFailed:
            return False
        return any(one["name"] == command and one["status"] in ("IN_PROGRESS", "COMPLETED") for one in told)

    def nothing_pending(self) -> bool:
        """Return whether every command of SDP and of every subarray has an outcome."""
        devices = (self.sdp, *self.subarrays)
        pending = [self.read(device, ["commandsPending"]).get("commandsPending") for device in devices]
        return all(one is not None and one.value == 0 for one in pending)

    def history(self, device: str) -> str:
        """Return all that a device tells of its commands."""
        return str(self._proxies[device].GetCommandHistory(_MOST_COMMANDS))

    def windows_since(self, time: float) -> bool:
        """Return whether every node shows a valid window with data from after a time [Unix s]."""
        for device in self.nodes.values():
            shown = self.read(device, ["heapRate"]).get("heapRate")
            if shown is None or not shown.valid or shown.time <= time:
                return False
        return True

    def totals(self) -> dict[int, int]:
        """Return the heaps of each node whose total can be read and is valid."""
        shown = {number: self.read(device, ["heapsTotal"]).get("heapsTotal") for number, device in self.nodes.items()}
        return {number: int(one.value) for number, one in shown.items() if one is not None and one.valid}

    def is_drained(self, sent: int) -> bool:
        """Return whether all notifications sent were taken, accounted for, and merged by the device servers."""
        names = ["ingestHeapsConsumed", "ingestHeapsUsed", "ingestHeapsLate", "ingestHeapsLag", "ingestSummaryLag"]
        shown = {name: one.value for name, one in self.bus(*names).items() if one.value is not None}
        if any(name not in shown for name in names[:3]) or shown["ingestHeapsConsumed"] < sent:
            return False
        merged = sum(self.totals().values())
        counted = shown["ingestHeapsUsed"] + shown["ingestHeapsLate"]
        return not shown.get(names[3]) and not shown.get(names[4]) and merged >= counted

    def stale(self) -> bool:
        """Return whether every attribute that shows a window is ATTR_INVALID."""
        for device_class in (NODE, MASTER):
            names = [entry.name for entry in windowed(self._icd.classes[device_class])]
            for device in self.devices[device_class]:
                shown = self.read(device, names)
                if len(shown) < len(names) or any(one.valid for one in shown.values()):
                    return False
        return True

    def found(self) -> HeapCounts:
        bus_names = [prefix + figure for prefix in STREAMS.values() for figure in BUS_FIGURES]
        reasons = self.bus("deadLetterReasons").get("deadLetterReasons")
        return HeapCounts(
            bus=_numbers(self.bus(*bus_names)),
            reasons=_reasons(() if reasons is None else reasons.value or ()),
            master=_numbers(self.read(self.devices[MASTER][0], MASTER_TOTALS)),
            nodes={number: _numbers(self.read(device, NODE_TOTALS)) for number, device in self.nodes.items()},
        )


def windowed(device_class: DeviceClass) -> list[Attribute]:
    return [
        entry
        for entry in device_class.attributes
        if entry.source is not None and (device_class.stale_after if entry.stale_after is None else entry.stale_after)
    ]


def _numbers(shown: Mapping[str, Shown]) -> dict[str, int]:
    return {name: int(one.value) for name, one in shown.items() if one.value is not None}


def _reasons(lines: Iterable[str]) -> dict[str, int]:
    parts = [line.split() for line in lines]
    return {reason: int(count) for stream, reason, count in parts if stream == _REASONS_STREAM}
