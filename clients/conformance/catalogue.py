"""All checks of all entries of the ICD, for the system that is there."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from clients.conformance.attributes import ATTRIBUTE_CHECKS
from clients.conformance.case import (
    AttributeOf,
    Case,
    Check,
    ClassOf,
    CommandOf,
    ConditionOf,
    DeviceOf,
    QueryOf,
    TopicOf,
    WholeIcd,
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
from facade.icd.model import DeviceClass, Query


def catalogue(system: System) -> list[Case]:
    """Return the cases that were asked for, in the order in which they run."""
    return [case for case in _all(system) if wanted(case.id, system.options.only)]


def wanted(id: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a case was asked for: by its id, the beginning of it up to a ``/``, or a pattern with ``*``."""
    return not patterns or any(id == one or fnmatchcase(id, one) or id.startswith(f"{one}/") for one in patterns)


def _all(system: System) -> Iterator[Case]:
    yield from cases(ICD_CHECKS, WholeIcd(), "icd")
    for device_class in system.icd.classes.values():
        yield from _of_class(system, device_class)
    yield from _of_conditions(system)
    for name, topic in system.icd.topics.items():
        id = f"topics/{name}"
        yield from cases(topic_checks(topic), TopicOf(name, id, topic), id)


def _of_conditions(system: System) -> Iterator[Case]:
    for device_class in system.icd.classes.values():
        if not device_class.conditions:
            continue
        (device,) = known_devices(system, device_class)[:1]
        for name, condition in system.icd.conditions.items():
            id = f"conditions/{name}"
            yield from cases(CONDITION_CHECKS, ConditionOf(name, device, id, condition), id)
        for flow in flow_checks():
            for name, check in flow.conditions(system, DeviceOf(device_class, device, device)):
                yield from cases((check,), DeviceOf(device_class, device, f"conditions/{name}"), f"conditions/{name}")


def known_devices(system: System, device_class: DeviceClass) -> list[str]:
    """Return the devices of a class; of one that has none, a device that should be there, whose checks all fail."""
    return system.devices[device_class.name] or wanted_devices(system, device_class)[:1]


def _of_class(system: System, device_class: DeviceClass) -> Iterator[Case]:
    name = device_class.name
    yield from cases(CLASS_CHECKS, ClassOf(name, device_class), name)
    known = known_devices(system, device_class)
    examined = known if system.options.thorough else known[:1]
    for device in known:
        yield from cases(DEVICE_CHECKS, DeviceOf(device_class, device, device), f"{name}/{device}")
    for device in examined:
        prefix = name if device == known[0] else f"{name}/{device}"
        for entry in device_class.attributes:
            id = f"{prefix}/{entry.name}"
            yield from cases(ATTRIBUTE_CHECKS + VALUE_CHECKS, AttributeOf(device_class, device, id, entry), id)
        for command in device_class.commands:
            id = f"{prefix}/{command.name}"
            of = CommandOf(device_class, device, id, command)
            checks = (check for flow in flow_checks() for check in flow.command(system, of))
            yield from cases((*COMMAND_CHECKS, *checks), of, id)
        for entry in device_class.attributes:  # once commands have made controllers report
            id = f"{prefix}/{entry.name}"
            yield from cases(REPORTED_CHECKS, AttributeOf(device_class, device, id, entry), id)
        for query in device_class.queries:
            id = f"{prefix}/{query.name}"
            asked = QueryOf(device_class, device, id, query)
            more = (check for flow in flow_checks() for check in flow.query(system, asked))
            yield from cases((*_general(query), *more), asked, id)
        of_device = DeviceOf(device_class, device, f"{name}/{device}")
        for flow in flow_checks():
            yield from cases(flow.device(system, of_device), of_device, of_device.id)


def _general(query: Query) -> tuple[Check[QueryOf], ...]:
    takes_any = any(query.name in flow.takes_any for flow in flow_checks())
    return tuple(check for check in QUERY_CHECKS if not (takes_any and check.aspect == "refusal"))
