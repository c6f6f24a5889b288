"""A small model of a subarray: the effects of SDP's commands on it, computed from its last reports only.

Each command is a function from the subarray and the argument to the attributes that change. Real-time processing blocks
run at once, batch ones after End. Receptors are reserved for as long as the subarray has them.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from facade.flows.blocks.source import FAILED, FINISHED, RUNNING, STARTING, WAITING
from facade.flows.reservations.ledger import GRANTED, RELEASED
from facade.flows.reservations.source import ReservationSource
from facade.sdk.controller.api import Rejected
from facade.sdk.controller.call import Call, Device

_HOST_CHANNELS = 4096
"""Channels per simulated host."""
_FIRST_PORT = 9000
_MOST_HOSTS = 64
"""Most hosts of one spectral window."""

AttributeChanges = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subarray:
    """The last reports of one subarray."""

    number: int = 1
    resources: Mapping[str, Any] = field(default_factory=dict)
    scan_types: tuple[str, ...] = ()
    eb_id: str | None = None
    realtime: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()
    """Ids of the unfinished batch blocks."""
    again: bool = False
    """Whether the command was begun before, so that it may already have taken effect."""


def resources_of(text: str) -> dict[str, Any]:
    """Return reported resources; text that is not a JSON object counts as empty."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}


def subarray(device: Device, *, again: bool = False) -> Subarray:
    """Return the last reports of a subarray."""
    return Subarray(
        number=int(device.device.rsplit("/", 1)[-1]),
        resources=resources_of(device.reported("resources", "{}")),
        scan_types=tuple(device.reported("scanTypes", ())),
        eb_id=device.reported("ebID") or None,
        realtime=tuple(device.reported("pbRealtime", ())),
        batch=tuple(device.reported("pbBatch", ())),
        again=again,
    )


_RELEASED: AttributeChanges = {
    "resources": {},
    "receiveAddresses": None,
    "ebID": None,
    "pointingAttributes": [],
    "scanTypes": [],
    "scanType": None,
    "scanID": 0,
    "pbRealtime": [],
    "pbBatch": [],
}


def _assign(before: Subarray, argument: Mapping[str, Any]) -> AttributeChanges:
    resources = dict(before.resources)
    for kind, wanted in argument.get("resources", {}).items():
        known = resources.get(kind)
        if isinstance(known, list) and isinstance(wanted, list):
            wanted = [*known, *(one for one in wanted if one not in known)]
        resources[kind] = wanted
    changes: AttributeChanges = {"resources": resources}
    if block := argument.get("execution_block"):
        changes["ebID"] = block["eb_id"]
        changes["scanTypes"] = _names(block["scan_types"])
        changes["pointingAttributes"] = _pointing(block)
        changes["receiveAddresses"] = receive_addresses(block, before.number)
    for name, kind, known in (("pbRealtime", "realtime", before.realtime), ("pbBatch", "batch", before.batch)):
        added = [one["pb_id"] for one in argument.get("processing_blocks", ()) if one["script"]["kind"] == kind]
        changes[name] = list(dict.fromkeys((*known, *added)))
    return {**changes, "obsState": "IDLE"}


def _release(before: Subarray, argument: Mapping[str, Any]) -> AttributeChanges:
    resources = dict(before.resources)
    for kind, given in argument["resources"].items():
        known, wanted = (value if isinstance(value, list) else [value] for value in (resources.get(kind, []), given))
        if (strange := [one for one in wanted if one not in known]) and not before.again:
            raise Rejected(f"$.resources.{kind}: expected some of {known}, got {strange}")
        resources[kind] = [one for one in known if one not in wanted]
    resources = {kind: value for kind, value in resources.items() if value != []}
    return {"resources": resources, "obsState": "IDLE"} if resources else {**_RELEASED, "obsState": "EMPTY"}


def _configure(before: Subarray, argument: Mapping[str, Any]) -> AttributeChanges:
    scan_types = [*before.scan_types, *_names(argument.get("new_scan_types", ()))]
    wanted = argument["scan_type"]
    if wanted not in scan_types:
        known = f"one of {', '.join(scan_types)}"
        expected = known if scan_types else "a type of an assigned execution block, and none is assigned"
        raise Rejected(f"$.scan_type: expected {expected}, got {wanted!r:.80}")
    return {"scanTypes": list(dict.fromkeys(scan_types)), "scanType": wanted, "obsState": "READY"}


COMMANDS: Mapping[str, Callable[[Subarray, Mapping[str, Any]], AttributeChanges]] = {
    "On": lambda *_: {"State": "ON", "obsState": "EMPTY"},
    "Off": lambda *_: {**_RELEASED, "errorMessages": [], "obsState": "EMPTY", "State": "OFF"},
    "AssignResources": _assign,
    "ReleaseResources": _release,
    "ReleaseAllResources": lambda *_: {**_RELEASED, "obsState": "EMPTY"},
    "Configure": _configure,
    "Scan": lambda _, argument: {"scanID": argument["scan_id"], "obsState": "SCANNING"},
    "EndScan": lambda *_: {"scanID": 0, "obsState": "READY"},
    "End": lambda *_: {"scanType": None, "scanID": 0, "obsState": "IDLE"},
    "Abort": lambda *_: {"scanID": 0, "obsState": "ABORTED"},
    "ObsReset": lambda *_: {"scanType": None, "scanID": 0, "errorMessages": [], "obsState": "IDLE"},
    "Restart": lambda *_: {**_RELEASED, "errorMessages": [], "obsState": "EMPTY"},
}
"""Function of each command; the resulting state comes last in its changes."""


def receive_addresses(block: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the hosts and ports of each scan type and beam, in the form of ska-sdp-recvaddrs 0.5."""
    channels = {entry["channels_id"]: entry["spectral_windows"] for entry in block.get("channels", ())}
    functions = {beam["beam_id"]: beam for beam in block["beams"]}
    hosts: dict[tuple[str, str], list[list[Any]]] = {}
    count = 0
    found: dict[str, Any] = {"interface": "https://schema.skao.int/ska-sdp-recvaddrs/0.5"}
    for name, beams in _scan_types(block["scan_types"]):
        found[name] = {}
        for beam_id, setup in beams.items():
            beam = functions.get(beam_id, {})
            entry = {key: value for key, value in beam.items() if key == "function" or key.endswith("_beam_id")}
            windows = channels.get(setup.get("channels_id", ""), ())
            place = (beam_id, setup.get("channels_id", ""))
            if place not in hosts:
                starts = sorted(start for window in windows for start in _starts(window))
                hosts[place] = [[start, f"10.{number}.{(count + i) >> 8 & 255}.{(count + i) & 255}"]
                                for i, start in enumerate(starts, 1)]  # fmt: skip
                count += len(starts)
            if hosts[place]:
                entry["host"] = hosts[place]
                entry["port"] = [[start, _FIRST_PORT, 1] for start, _ in hosts[place]]
            found[name][beam_id] = entry
    return found


def _scan_types(entries: list[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Return the scan types with their inherited beams, without templates."""
    by_name = {entry["scan_type_id"]: entry for entry in entries}
    for name in _names(entries):
        line: list[Mapping[str, Any]] = []
        parent: str | None = name
        while parent in by_name and by_name[parent] not in line:
            line.append(by_name[parent])
            parent = by_name[parent].get("derive_from")
        beams: dict[str, dict[str, Any]] = {}
        for entry in reversed(line):
            for beam_id, setup in entry.get("beams", {}).items():
                beams[beam_id] = {**beams.get(beam_id, {}), **setup}
        yield name, beams


def _pointing(block: Mapping[str, Any]) -> list[str]:
    """Return the attributes with the positions of an execution block's fields, without repetitions."""
    names = (entry.get("pointing_fqdn") for entry in block.get("fields", ()))
    return list(dict.fromkeys(name for name in names if name))


def _names(entries: list[Mapping[str, Any]] | tuple[()]) -> list[str]:
    return [entry["scan_type_id"] for entry in entries if not entry["scan_type_id"].startswith(".")]


def _starts(window: Mapping[str, Any]) -> range:
    """Return the first channel of each host of a spectral window."""
    span = max(window["count"] * window.get("stride", 1), 1)
    return range(window["start"], window["start"] + span, max(_HOST_CHANNELS, -(-span // _MOST_HOSTS)))


class BlockState(NamedTuple):
    """A state of a block."""

    pb_id: str
    kind: Literal["realtime", "batch"]
    state: str
    more: Mapping[str, Any] = {}


def begin_blocks(command: str, argument: Mapping[str, Any]) -> Iterator[BlockState]:
    """Return the states of blocks at the begin of a command."""
    if command == "AssignResources":
        for block in argument.get("processing_blocks", ()):
            kind = block["script"]["kind"]
            yield BlockState(block["pb_id"], kind, STARTING if kind == "realtime" else WAITING, _said(block))


def end_blocks(
    before: Subarray, command: str, argument: Mapping[str, Any], changes: Mapping[str, Any]
) -> Iterator[BlockState]:
    """Return the states of blocks at the end of a command."""
    if command == "AssignResources":
        for block in argument.get("processing_blocks", ()):
            if block["script"]["kind"] == "realtime":
                yield BlockState(block["pb_id"], "realtime", RUNNING, _said(block))
    elif command == "End":
        yield from (BlockState(pb_id, "batch", RUNNING, {"progress": 0.0}) for pb_id in before.batch)
    elif changes.get("pbRealtime") == []:
        yield from (BlockState(pb_id, "realtime", FINISHED) for pb_id in before.realtime)
        yield from (BlockState(pb_id, "batch", FINISHED, {"progress": 100.0}) for pb_id in before.batch)


def fail_block(before: Subarray) -> tuple[BlockState, dict[str, Any]] | None:
    """Return the failure of a subarray's first block, and the changes of the subarray; None: it has no block."""
    text = {"text": "simulated failure of the processing block"}
    if before.realtime:
        first, *left = before.realtime
        return BlockState(first, "realtime", FAILED, text), {"pbRealtime": left}
    if before.batch:
        first, *left = before.batch
        return BlockState(first, "batch", FAILED, text), {"pbBatch": left}
    return None


def _said(block: Mapping[str, Any]) -> dict[str, Any]:
    script = block["script"]
    return {
        "script": f"{script['name']}:{script['version']}"[:200],
        "dependencies": [one["pb_id"] for one in block.get("dependencies", ())][:64],
        "resources": {"nodes": 1.0},
    }


RECEPTORS = "receptors"
"""The exclusive resources; others may be shared by subarrays, or are only counted."""
_RESERVED_FOR = 86400.0
"""Duration of a reservation [s]: longer than any observation, as only the next command renews it."""
_MOST_NAMES, _LONGEST_NAME = 1024, 100
"""Most names in a reservation, and most characters of a name, by the message's schema."""


def reserve_receptors(source: ReservationSource, before: Subarray, changes: Mapping[str, Any]) -> None:
    """Reserve the receptors of a subarray at the end of a command. `Receptors` has refused others before."""
    if "resources" not in changes:
        return
    reservation_id = f"subarray-{before.number:02d}/{RECEPTORS}"
    held, wanted = (_receptor_names(resources) for resources in (before.resources, changes["resources"]))
    if wanted or held:
        state = GRANTED if wanted else RELEASED
        source.reserve(reservation_id, before.number, RECEPTORS, wanted or held, seconds=_RESERVED_FOR, state=state)


class Receptors:
    """The existing receptors, and those claimed by running commands; may be used from several threads.

    Parameters
    ----------
    there
        Names of all receptors. Without names, none is refused.
    """

    def __init__(self, there: Collection[str]) -> None:
        self._there = frozenset(there)
        self._claimed: dict[str, set[str]] = {}
        """By device of the subarray whose command is running."""
        self._lock = threading.Lock()

    @contextmanager
    def claimed(self, call: Call, changes: Mapping[str, Any], subarrays: Collection[str]) -> Iterator[None]:
        """Keep the receptors of a command from other subarrays until they are reported.

        Raises
        ------
        Rejected
            A receptor does not exist, or another subarray has it.
        """
        wanted = _receptor_names(changes.get("resources", {}))
        if not self._there or not wanted:
            yield
            return
        with self._lock:
            self._require(call, wanted, subarrays)
            self._claimed[call.device] = {*wanted}
        try:
            yield
        finally:
            del self._claimed[call.device]

    def _require(self, call: Call, wanted: Collection[str], subarrays: Collection[str]) -> None:
        if strange := [name for name in wanted if name not in self._there]:
            raise Rejected(f"$.resources.{RECEPTORS}: expected receptors that are there, got {', '.join(strange):.200}")
        for device in subarrays:
            if device == call.device:
                continue
            held = {
                *_receptor_names(resources_of(call.reported_of(device, "resources", "{}"))),
                *self._claimed.get(device, ()),
            }
            if taken := [name for name in wanted if name in held]:
                what = f"expected receptors that no other subarray has, got {', '.join(taken):.200}"
                raise Rejected(f"$.resources.{RECEPTORS}: {what} of {device}")


def _receptor_names(resources: Mapping[str, Any]) -> list[str]:
    names = resources.get(RECEPTORS)
    found = map(str, names) if isinstance(names, list) else ()
    return [name for name in found if 0 < len(name) <= _LONGEST_NAME][:_MOST_NAMES]
