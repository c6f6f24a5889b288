"""What SDP's commands do to a subarray: a small model, made of nothing but what was reported last.

Each command is a function from the subarray and the argument to the attributes that change; how long
it takes, and what is shown meanwhile, is not decided here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from facade.controller import Device, Rejected

_HOST_CHANNELS = 4096
"""Channels that one simulated host receives."""
_FIRST_PORT = 9000
_MOST_HOSTS = 64
"""Hosts of one spectral window."""

AttributeChanges = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subarray:
    """What was last reported of one subarray."""

    number: int = 1
    obs_state: str = "EMPTY"
    resources: Mapping[str, Any] = field(default_factory=dict)
    scan_types: tuple[str, ...] = ()
    eb_id: str | None = None
    realtime: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()
    """Ids of the processing blocks that have not ended."""
    again: bool = False
    """Whether the command was begun before, so that it may have been done already."""


def resources_of(text: str) -> dict[str, Any]:
    """Return resources as they were reported; what others have written and is no object says nothing."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}


def subarray(device: Device, *, again: bool = False) -> Subarray:
    """Return what was last reported of a subarray."""
    return Subarray(
        number=int(device.device.rsplit("/", 1)[-1]),
        obs_state=device.reported("obsState", "EMPTY"),
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


def _on(_: Subarray, __: Mapping[str, Any]) -> AttributeChanges:
    return {"State": "ON", "obsState": "EMPTY"}


def _off(_: Subarray, __: Mapping[str, Any]) -> AttributeChanges:
    return {**_RELEASED, "errorMessages": [], "obsState": "EMPTY", "State": "OFF"}


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


def _release_all(_: Subarray, __: Mapping[str, Any]) -> AttributeChanges:
    return {**_RELEASED, "obsState": "EMPTY"}


def _configure(before: Subarray, argument: Mapping[str, Any]) -> AttributeChanges:
    scan_types = [*before.scan_types, *_names(argument.get("new_scan_types", ()))]
    wanted = argument["scan_type"]
    if wanted not in scan_types:
        known = f"one of {', '.join(scan_types)}"
        expected = known if scan_types else "a type of an assigned execution block, and none is assigned"
        raise Rejected(f"$.scan_type: expected {expected}, got {wanted!r:.80}")
    return {"scanTypes": list(dict.fromkeys(scan_types)), "scanType": wanted, "obsState": "READY"}


def _scan(_: Subarray, argument: Mapping[str, Any]) -> AttributeChanges:
    return {"scanID": argument["scan_id"], "obsState": "SCANNING"}


def _end_scan(_: Subarray, __: Mapping[str, Any]) -> AttributeChanges:
    return {"scanID": 0, "obsState": "READY"}


def _end(_: Subarray, __: Mapping[str, Any]) -> AttributeChanges:
    return {"scanType": None, "scanID": 0, "obsState": "IDLE"}


def _abort(_: Subarray, __: Mapping[str, Any]) -> AttributeChanges:
    return {"scanID": 0, "obsState": "ABORTED"}


def _obs_reset(_: Subarray, __: Mapping[str, Any]) -> AttributeChanges:
    return {"scanType": None, "scanID": 0, "errorMessages": [], "obsState": "IDLE"}


def _restart(_: Subarray, __: Mapping[str, Any]) -> AttributeChanges:
    return {**_RELEASED, "errorMessages": [], "obsState": "EMPTY"}


COMMANDS: Mapping[str, Callable[[Subarray, Mapping[str, Any]], AttributeChanges]] = {
    "On": _on,
    "Off": _off,
    "AssignResources": _assign,
    "ReleaseResources": _release,
    "ReleaseAllResources": _release_all,
    "Configure": _configure,
    "Scan": _scan,
    "EndScan": _end_scan,
    "End": _end,
    "Abort": _abort,
    "ObsReset": _obs_reset,
    "Restart": _restart,
}
"""What each command changes; the state that it leads to comes last, when all else is known."""


def receive_addresses(block: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return where the data of each scan type and beam go, in the form of ska-sdp-recvaddrs 0.5.

    An entry of a map applies from its channel up to that of the next one, and its port grows by the
    third number from one channel to the next.
    """
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
    """Return the scan types with what they derive from others; those that are only derived from are left out."""
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
    """Return the attributes that say where the fields of an execution block are, each once."""
    names = (entry.get("pointing_fqdn") for entry in block.get("fields", ()))
    return list(dict.fromkeys(name for name in names if name))


def _names(entries: list[Mapping[str, Any]] | tuple[()]) -> list[str]:
    return [entry["scan_type_id"] for entry in entries if not entry["scan_type_id"].startswith(".")]


def _starts(window: Mapping[str, Any]) -> range:
    """Return the first channel of each host of a spectral window."""
    span = max(window["count"] * window.get("stride", 1), 1)
    return range(window["start"], window["start"] + span, max(_HOST_CHANNELS, -(-span // _MOST_HOSTS)))
