"""Whether the devices that the ICD demands are in the database, exported, and answer."""

import json
import re

import tango

from clients.conformance.case import Check, DeviceOf, NamedOf, demand
from clients.conformance.observation import KINDS
from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch, NotShown
from clients.sockets import await_sockets
from facade.icd.model import DeviceClass, Icd
from facade.instances import FAMILIES, number_of, pattern_of

_VERSION = "sdpVersion"
"""Attribute that says, among other things, which ICD a deployment follows."""


def _demanded(system: System, of: DeviceOf) -> str:
    wanted, found = wanted_devices(system, of.entry), system.devices[of.entry.name]
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        got = f"missing {_few(missing)}; beyond them {_few(extra)}"
        raise Mismatch(f"{len(wanted)} device(s) as {of.entry.device} in the database", got)
    return f"{len(found)} in the database"


def wanted_devices(system: System, device_class: DeviceClass) -> list[str]:
    """Return the devices of a class that the deployment must have."""
    family = device_class.family
    if not family:
        return [device_class.device.lower()]
    first = FAMILIES[family].first
    numbers = range(first, first + _size(system, family))
    return [device_class.device.format(**{family: number}).lower() for number in numbers]


def _size(system: System, family: str) -> int:
    """Return how many there must be: as was said, else as far as any class of the family goes."""
    said = {"node": system.options.nodes, "subarray": system.options.subarrays}.get(family)
    if said is not None:
        return said
    first = FAMILIES[family].first
    numbers = [
        number - first + 1
        for one in system.icd.classes.values()
        if one.family == family
        for device in system.devices[one.name]
        if (number := number_of(one, device)) is not None
    ]
    return max([1, *numbers, *_claimed(system, family)])


def _claimed(system: System, family: str) -> list[int]:
    """Return how many there are in a family by what SDP itself says, such as ``nodesExpected``."""
    name = f"{family}sExpected"
    try:
        found = [system.proxy(device).read_attribute(name).value for device in _with(system, name)]
    except tango.DevFailed:  # the checks of the attribute say so
        return []
    return [one for one in found if isinstance(one, int)]


def _with(system: System, attribute: str) -> list[str]:
    """Return the devices of which the ICD says that they have an attribute."""
    classes = [name for name, one in system.icd.classes.items() if any(a.name == attribute for a in one.attributes)]
    return [device for name in classes for device in system.devices[name]]


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "none"


def _instance(system: System, of: DeviceOf) -> str:
    servers = set()
    for device in system.devices[of.entry.name]:
        server = str(system.database.get_device_info(device).ds_full_name)
        if not re.fullmatch(pattern_of(of.entry.instance), server.partition("/")[2], re.IGNORECASE):
            raise Mismatch(f"{device} in a server instance {of.entry.instance}", server)
        servers.add(server)
    if not servers:
        raise NotShown("no devices in the database")
    return ", ".join(sorted(servers))


def _exported(system: System, of: DeviceOf) -> str:
    if not system.database.get_device_info(of.device).exported:
        raise Mismatch("an exported device", "one that no server has exported")
    return "exported"


def _answers(system: System, of: DeviceOf) -> str:
    try:
        _exported(system, of)
    except (Mismatch, tango.DevFailed) as error:
        raise NotShown(f"{of.device} is not exported") from error
    begin = system.clock.monotonic()
    state = system.proxy(of.device).state()
    return f"{state} after {(system.clock.monotonic() - begin) * 1e3:.1f} ms"


def _names(system: System, of: DeviceOf) -> str:
    attributes = {entry.name for entry in of.device_class.attributes}
    commands = {entry.name for entry in of.device_class.commands} | {entry.name for entry in of.device_class.queries}
    for what, wanted, found in (
        ("attributes", attributes, system.configs(of.device)),
        ("commands", commands, system.commands(of.device)),
    ):
        if missing := sorted(wanted - set(found)):
            raise Mismatch(f"the {len(wanted)} {what} of {of.device_class.name}", f"none called {_few(missing)}")
    return f"{len(attributes)} attributes, {len(commands)} commands"


def _state_events(system: System, of: DeviceOf) -> str:
    proxy, kinds = system.proxy(of.device), ("change", "archive", "alarm")
    for kind in kinds:
        await_sockets(system.clock)
        try:
            number = proxy.subscribe_event("State", KINDS[kind], lambda event: None)
        except tango.DevFailed as failed:
            raise Mismatch(f"a subscription to {kind} events of State", str(failed.args[0].desc)) from failed
        proxy.unsubscribe_event(number)
    return ", ".join(kinds)


def _version(system: System, _: NamedOf[Icd]) -> str:
    devices = _with(system, _VERSION)
    if not devices:
        raise NotShown(f"there is no device with {_VERSION} to ask")
    text = system.proxy(devices[0]).read_attribute(_VERSION).value
    if text is None:
        raise NotShown(f"{_VERSION} is ATTR_INVALID")
    return demand(system.icd.version, json.loads(text).get("icd"))


ICD_CHECKS: tuple[Check[NamedOf[Icd]], ...] = (Check(aspect="version", claims=("Icd.version",), judge=_version),)
CLASS_CHECKS: tuple[Check[DeviceOf], ...] = (
    Check(
        aspect="devices",
        claims=("Icd.classes", "DeviceClass.name", "DeviceClass.device"),
        judge=_demanded,
        asks=False,
    ),
    Check(aspect="instance", claims=("DeviceClass.instance",), judge=_instance, asks=False),
)
DEVICE_CHECKS: tuple[Check[DeviceOf], ...] = (
    Check(aspect="exported", judge=_exported, asks=False),
    Check(aspect="answers", judge=_answers, asks=False),
    Check(aspect="names", judge=_names),
    Check(aspect="state-events", judge=_state_events),
)
