"""Runs the kit: is everything there that it needs, then each case, then the reports."""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as Xml

from clients.conformance.case import Result, decide
from clients.conformance.catalogue import catalogue
from clients.conformance.flows import flow_checks
from clients.conformance.options import Options
from clients.conformance.page import page
from clients.conformance.report import Progress, print_report
from clients.conformance.system import System
from facade.clock import Clock
from facade.config import Settings, load_settings
from facade.console import Console
from facade.errors import ConfigError, FacadeError
from facade.icd.load import load
from facade.printable import printable
from facade.runtime.stopping import terminable

PASSED, FAILED, NOT_RUN = 0, 1, 2
"""Exit codes."""


def run(options: Options, console: Console, clock: Clock) -> int:
    """Run the kit against a system, and give the exit code."""
    try:
        return _run(options, console, clock)
    except FacadeError as error:
        console.print(f"could not run: {error}", markup=False, highlight=False, soft_wrap=True)
        return NOT_RUN


def _run(options: Options, console: Console, clock: Clock) -> int:
    system = System(load(options.icd), options, _settings(options), clock)
    system.require()
    for flow in flow_checks():
        flow.prepare(system)
    cases = catalogue(system)
    if not cases:
        raise ConfigError(f"--only {' '.join(options.only)}: expected the beginning of an entry, got what fits none")
    _require_folders(options)
    begin, results = clock.monotonic(), list[Result]()
    logging.getLogger("facade").addHandler(logging.NullHandler())  # the report says what the client's log would
    with suppress(KeyboardInterrupt), terminable(), Progress(console, len(cases)) as progress:
        for case in cases:
            results.append(decide(case, system))
            progress.show(results[-1])
    if options.junit is not None:
        _write_junit(options.junit, results)
    if len(results) < len(cases):
        raise ConfigError(f"interrupted after {len(results)} of {len(cases)} checks")
    if options.html is not None:
        options.html.write_text(page(results, options, clock.now()), encoding="utf-8")
    print_report(console, results, clock.monotonic() - begin)
    return FAILED if any(result.outcome == "failed" for result in results) else PASSED


def _write_junit(path: Path, results: Sequence[Result]) -> None:
    """Write the results in the older form of JUnit's XML, which has a place for what was measured."""
    tags = {"failed": "failure", "skipped": "skipped"}
    failures, skipped = (str(sum(result.outcome == one for result in results)) for one in tags)
    numbers = {"tests": str(len(results)), "errors": "0", "failures": failures, "skipped": skipped}
    seconds = f"{sum(result.seconds for result in results):.3f}"
    suite = Xml.Element("testsuite", numbers, name="conformance", time=seconds)
    for result in results:
        attributes = {"classname": "entries", "name": f"test_icd[{result.id}]", "time": f"{result.seconds:.3f}"}
        case, detail = Xml.SubElement(suite, "testcase", attributes), printable(result.detail, keep="\n")
        if result.outcome == "passed":
            Xml.SubElement(Xml.SubElement(case, "properties"), "property", name="measured", value=detail)
        else:
            Xml.SubElement(case, tags[result.outcome], message=detail).text = detail
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _require_folders(options: Options) -> None:
    for path in (options.junit, options.html):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: expected a file in a folder that is there, got none called {path.parent}")


def _settings(options: Options) -> Settings:
    """Return the settings that reach the brokers, and what is not run; the others come from the settings file."""
    environment = {
        **{name: value for name, value in os.environ.items() if name in ("SDP_FACADE_CONFIG", "SDP_WITHOUT")},
        "KAFKA_BOOTSTRAP": options.bootstrap,
        "SDP_TOPIC_PREFIX": options.prefix,
    }
    return load_settings(environment)
