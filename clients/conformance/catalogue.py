"""All checks of all entries of the ICD, for the system that is there."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from clients.conformance.attributes import ATTRIBUTE_CHECKS
from clients.conformance.case import (
    AttributeOf,
    Case,
    Check,
    CommandOf,
    ConditionOf,
    DeviceOf,
    NamedOf,
    QueryOf,
    TopicOf,
    cases,
)
from clients.conformance.commands import COMMAND_CHECKS
from clients.conformance.conditions import CONDITION_CHECKS
from clients.conformance.deployment import CLASS_CHECKS, DEVICE_CHECKS, ICD_CHECKS, wanted_devices
from clients.conformance.flows import flow_checks
from clients.conformance.queries import QUERY_CHECKS
from clients.conformance.reported import REPORTED_CHECKS
from clients.conformance.system import System
from clients.conformance.topics import topic_checks
from clients.conformance.values import VALUE_CHECKS
from clients.conformance.verdicts import NotShown
from facade.icd.model import DeviceClass, Query


def catalogue(system: System) -> list[Case]:
    """Return the cases that were asked for, in the order in which they run."""
    return [case for case in _all(system) if wanted(case.id, system.options.only)]


def wanted(id: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a case was asked for: by its id, the beginning of it up to a ``/``, or a pattern with ``*``."""
    return not patterns or any(id == one or fnmatchcase(id, one) or id.startswith(f"{one}/") for one in patterns)


def _all(system: System) -> Iterator[Case]:
    yield from cases(ICD_CHECKS, NamedOf(name="icd", entry=system.icd), "icd")
    for device_class in system.icd.classes.values():
        yield from _of_class(system, device_class)
    for name in system.absent:
        yield Case(id=f"{name}/devices", run=_absent)
    yield from _of_conditions(system)
    for name, topic in system.icd.topics.items():
        yield from cases(topic_checks(topic), TopicOf(name=name, entry=topic), f"topics/{name}")


def _absent(_: System) -> str:
    raise NotShown("the deployment does not run it (setting `without`, SDP_WITHOUT)")


def _of_conditions(system: System) -> Iterator[Case]:
    for device_class in system.icd.classes.values():
        if not device_class.conditions:
            continue
        (device,) = known_devices(system, device_class)[:1]
        for name, condition in system.icd.conditions.items():
            of = ConditionOf(name=name, entry=condition, device=device)
            yield from cases(CONDITION_CHECKS, of, f"conditions/{name}")
        of_device = DeviceOf(device_class=device_class, device=device, entry=device_class)
        for flow in flow_checks():
            for name, check in flow.conditions(system, of_device):
                yield from cases((check,), of_device, f"conditions/{name}")


def known_devices(system: System, device_class: DeviceClass) -> list[str]:
    """Return the devices of a class; of one that has none, a device that should be there, whose checks all fail."""
    return system.devices[device_class.name] or wanted_devices(system, device_class)[:1]


def _of_class(system: System, device_class: DeviceClass) -> Iterator[Case]:
    known, name = known_devices(system, device_class), device_class.name
    devices = [DeviceOf(device_class=device_class, device=device, entry=device_class) for device in known]
    yield from cases(CLASS_CHECKS, devices[0], name)
    for of in devices:
        yield from cases(DEVICE_CHECKS, of, f"{name}/{of.device}")
    for of in devices if system.options.thorough else devices[:1]:
        yield from _of_device(system, of, name if of is devices[0] else f"{name}/{of.device}")


def _of_device(system: System, of: DeviceOf, prefix: str) -> Iterator[Case]:
    """Give the checks of a device's entries; those of what controllers report come once commands were given."""
    place: dict[str, Any] = {"device_class": of.device_class, "device": of.device}
    attributes = {f"{prefix}/{entry.name}": AttributeOf(**place, entry=entry) for entry in of.entry.attributes}
    for id, attribute in attributes.items():
        yield from cases(ATTRIBUTE_CHECKS + VALUE_CHECKS, attribute, id)
    for command in of.entry.commands:
        given = CommandOf(**place, entry=command)
        checks = (check for flow in flow_checks() for check in flow.command(system, given))
        yield from cases((*COMMAND_CHECKS, *checks), given, f"{prefix}/{command.name}")
    for id, attribute in attributes.items():
        yield from cases(REPORTED_CHECKS, attribute, id)
    for query in of.entry.queries:
        asked = QueryOf(**place, entry=query)
        more = (check for flow in flow_checks() for check in flow.query(system, asked))
        yield from cases((*_general(query), *more), asked, f"{prefix}/{query.name}")
    for flow in flow_checks():
        yield from cases(flow.device(system, of), of, f"{of.device_class.name}/{of.device}")


def _general(query: Query) -> tuple[Check[QueryOf], ...]:
    takes_any = any(query.name in flow.takes_any for flow in flow_checks())
    return tuple(check for check in QUERY_CHECKS if not (takes_any and check.aspect == "refusal"))
