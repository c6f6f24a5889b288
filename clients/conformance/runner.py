"""Runs the kit: lists the cases of all ICD entries, decides each of them, and writes the reports."""

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase

from rich.progress import Progress

from clients.conformance.attributes import ATTRIBUTE_CHECKS, REPORT_CHECKS
from clients.conformance.checks import Case, CheckOptions, CheckResult, Subject, cases, decide, flow_checks, not_shown
from clients.conformance.devices import (
    CLASS_CHECKS,
    COMMAND_CHECKS,
    CONDITION_CHECKS,
    DEVICE_CHECKS,
    ICD_CHECKS,
    QUERY_CHECKS,
    wanted_devices,
)
from clients.conformance.live_system import LiveSystem
from clients.conformance.report import print_report, write_html, write_junit
from clients.conformance.topics import topic_checks
from facade.clock import Clock
from facade.config import Settings, load_settings
from facade.console import Console
from facade.errors import ConfigError, FacadeError
from facade.icd.load import load
from facade.icd.model import DeviceClass
from facade.runtime.stopping import terminable

PASSED, FAILED, NOT_RUN = 0, 1, 2
"""Exit codes."""


def run(options: CheckOptions, console: Console, clock: Clock) -> int:
    """Run the kit against a system, and return the exit code."""
    try:
        return _run(options, console, clock)
    except FacadeError as error:
        console.print(f"could not run: {error}", markup=False, highlight=False, soft_wrap=True)
        return NOT_RUN


def _run(options: CheckOptions, console: Console, clock: Clock) -> int:
    system = LiveSystem(load(options.icd), options, _settings(options), clock)
    _ = system.topics  # or a BusError
    for flow in flow_checks():
        flow.prepare(system)
    wanted = catalogue(system)
    if not wanted:
        raise ConfigError(f"--only {' '.join(options.only)}: expected the beginning of an entry, got what fits none")
    for path in (options.junit, options.html):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: expected a file in a folder that is there, got none called {path.parent}")
    begin, results = clock.monotonic(), list[CheckResult]()
    logging.getLogger("facade").addHandler(logging.NullHandler())  # the report has the messages of the client's log
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    with suppress(KeyboardInterrupt), terminable(), bar:
        task = bar.add_task("", total=len(wanted))
        for case in wanted:
            results.append(decide(case, system))
            bar.update(task, advance=1, description=case.id[:40])
    if options.junit is not None:
        write_junit(options.junit, results)
    if len(results) < len(wanted):
        raise ConfigError(f"interrupted after {len(results)} of {len(wanted)} checks")
    if options.html is not None:
        write_html(options.html, results, options, clock.now())
    print_report(console, results, clock.monotonic() - begin)
    return FAILED if any(result.outcome == "failed" for result in results) else PASSED


def _settings(options: CheckOptions) -> Settings:
    """Return the settings: brokers by the options, the rest by the settings file and SDP_WITHOUT."""
    environment = {name: os.environ[name] for name in ("SDP_FACADE_CONFIG", "SDP_WITHOUT") if name in os.environ}
    return load_settings({**environment, "KAFKA_BOOTSTRAP": options.bootstrap, "SDP_TOPIC_PREFIX": options.prefix})


def catalogue(system: LiveSystem) -> list[Case]:
    """Return the cases that ``--only`` asks for, in the order of the run."""
    return [case for case in _all(system) if is_wanted(case.id, system.options.only)]


def is_wanted(id: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a case has one of some ids, begins with it up to a ``/``, or matches it as a pattern."""
    return not patterns or any(id == one or fnmatchcase(id, one) or id.startswith(f"{one}/") for one in patterns)


def _all(system: LiveSystem) -> Iterator[Case]:
    yield from cases(ICD_CHECKS, Subject(entry=system.icd), "icd")
    for device_class in system.icd.classes.values():
        yield from _of_class(system, device_class)
    for name in system.absent:
        yield Case(
            f"{name}/devices",
            lambda _: not_shown("the deployment does not run it (SDP_WITHOUT)")(system, Subject(entry=None)),
        )
    for device_class in system.icd.classes.values():
        if device_class.conditions:
            yield from _of_conditions(system, _devices(system, device_class)[0])
    for name, topic in system.icd.topics.items():
        yield from cases(topic_checks(topic), Subject(entry=topic, name=name), f"topics/{name}")


def _devices(system: LiveSystem, device_class: DeviceClass) -> list[Subject]:
    """Return the devices of a class; without any, the first that should be there, whose checks fail."""
    names = system.devices[device_class.name] or wanted_devices(system, device_class)[:1]
    return [Subject(entry=device_class, device=name, device_class=device_class) for name in names]


def _of_conditions(system: LiveSystem, device: Subject) -> Iterator[Case]:
    for name, condition in system.icd.conditions.items():
        yield from cases(CONDITION_CHECKS, replace(device, entry=condition, name=name), f"conditions/{name}")
    for flow in flow_checks():
        name, checks = flow.condition(system, device)
        yield from cases(checks, device, f"conditions/{name}")


def _of_class(system: LiveSystem, device_class: DeviceClass) -> Iterator[Case]:
    devices, name = _devices(system, device_class), device_class.name
    yield from cases(CLASS_CHECKS, devices[0], name)
    for of in devices:
        yield from cases(DEVICE_CHECKS, of, f"{name}/{of.device}")
    for of in devices if system.options.thorough else devices[:1]:
        yield from _of_device(system, of, name if of is devices[0] else f"{name}/{of.device}")


def _of_device(system: LiveSystem, of: Subject, prefix: str) -> Iterator[Case]:
    flows = flow_checks()
    attributes = [replace(of, entry=entry) for entry in of.entry.attributes]
    for one in attributes:
        yield from cases(ATTRIBUTE_CHECKS, one, f"{prefix}/{one.entry.name}")
    for entry in of.entry.commands:
        one = replace(of, entry=entry)
        more = [check for flow in flows for check in flow.commands(system, one)]
        yield from cases((*COMMAND_CHECKS, *more), one, f"{prefix}/{entry.name}")
    for one in attributes:
        yield from cases(REPORT_CHECKS, one, f"{prefix}/{one.entry.name}")
    for entry in of.entry.queries:
        one = replace(of, entry=entry)
        more = [check for flow in flows for check in flow.commands(system, one)]
        takes_any = any(entry.name in flow.takes_any for flow in flows)
        checks = [check for check in QUERY_CHECKS if not (takes_any and check.aspect == "refusal")]
        yield from cases((*checks, *more), one, f"{prefix}/{entry.name}")
    for flow in flows:
        yield from cases(flow.device(system, of), of, f"{of.device_class.name}/{of.device}")
