"""Runs the kit: lists the cases of all ICD entries, decides each of them, and writes the reports."""

import io
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree as Xml

import typer
from rich.progress import Progress

from facade.kernel.cli.tango_host import TangoHost, device_name
from facade.kernel.clock import Clock, SystemClock, as_seconds
from facade.kernel.config import Settings, load_settings
from facade.kernel.console import Console, table, wide
from facade.kernel.errors import ConfigError, FacadeError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Attribute, DeviceClass
from facade.kernel.names import domain
from facade.kernel.printable import printable
from facade.kernel.runtime.stopping import terminable
from sdp_facade_clients.conformance.attributes import ATTRIBUTE_CHECKS, REPORT_CHECKS
from sdp_facade_clients.conformance.checks import (
    Case,
    CheckOptions,
    CheckResult,
    LiveCheck,
    Subject,
    cases,
    decide,
    flow_checks,
    not_shown,
)
from sdp_facade_clients.conformance.devices import (
    CLASS_CHECKS,
    COMMAND_CHECKS,
    DEVICE_CHECKS,
    ICD_CHECKS,
    QUERY_CHECKS,
    topic_checks,
    wanted_devices,
)
from sdp_facade_clients.conformance.live_system import LiveSystem

# --- The command ---


def conformance(
    tango_host: TangoHost = "",
    bus: Annotated[
        str, typer.Option(envvar="KAFKA_BOOTSTRAP", help="Kafka brokers, host:port with commas between.")
    ] = "127.0.0.1:9092",
    prefix: Annotated[str, typer.Option(envvar="SDP_TOPIC_PREFIX", help="Prefix of all topic names.")] = "local.",
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only these entries, such as SdpMaster, SdpMaster/healthState, 'topics/*/partitions'."),
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Compare each device of a family, not only the first.")
    ] = False,
    active: Annotated[
        bool, typer.Option("--active", help="Also command --subarray and raise one test alert; both are put back.")
    ] = False,
    subarray: Annotated[
        str, typer.Option(callback=device_name, help="Device to command; it must be OFF and EMPTY.")
    ] = f"{domain(load_settings().telescope)}/subarray/01",
    outcome: Annotated[
        str,
        typer.Option(
            metavar="COMMAND=OUTCOME",
            help="With --active: the controller is set to end COMMAND so (REJECTED, FAILED, TIMED_OUT), "
            "and the observation ends there.",
        ),
    ] = "",
    nodes: Annotated[int | None, typer.Option(min=1, help="Ingest nodes. Default: as SDP says.")] = None,
    subarrays: Annotated[int | None, typer.Option(min=1, help="Subarrays. Default: as many as there are.")] = None,
    window: Annotated[float, typer.Option(min=1, help="Time for which events are observed, in seconds.")] = 10.0,
    icd: Annotated[Path | None, typer.Option(help="Folder of another ICD than the installed one.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the results as JUnit XML.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the results as one page.")] = None,
) -> None:
    """Compare a running system with the ICD, entry by entry, through its Tango database and its brokers.

    Nothing is changed without --active. What the deployment leaves out (SDP_WITHOUT) is not shown. The exit code is 0
    when all passed, 1 when something failed, and 2 when the database or the brokers do not answer, or a report cannot
    be written.

    Examples: sdp-facade conformance --only SdpMaster

    sdp-facade conformance --active --outcome AssignResources=FAILED, beside a controller that was started by
    sdp-facade simulate controller --fault fail:AssignResources
    """
    command, _, ending = outcome.partition("=")
    options = CheckOptions(
        tango_host=tango_host,
        bootstrap=bus,
        prefix=prefix,
        only=tuple(only or ()),
        thorough=thorough,
        active=active,
        subarray=subarray.lower(),
        outcome=(command, ending) if outcome else None,
        nodes=nodes,
        subarrays=subarrays,
        window=window,
        icd=icd,
        junit=junit,
        html=html,
    )
    raise typer.Exit(run(options, wide(120), SystemClock()))


# --- Reports: on the terminal, as JUnit XML, and as one HTML page without other files ---

_WORDS = {"passed": "passed", "failed": "failed", "skipped": "not shown"}
_STYLES = {"passed": "", "failed": "bold red", "skipped": "yellow"}
_PAGE_WIDTH = 160


def print_report(console: Console, results: Sequence[CheckResult], seconds: float) -> None:
    """Print each failure, the reasons of checks that are not shown, and the counts by class."""
    for one in results:
        if one.outcome == "failed":
            _print_line(console, one.outcome, "FAILED", f"{one.id}: {one.detail}")
    reasons = Counter(_line(result.detail) for result in results if result.outcome == "skipped")
    for reason, count in reasons.most_common():
        _print_line(console, "skipped", "not shown", f"{count} x {reason}")
    _print_counts(console, results, f"{len(results)} checks in {seconds:.0f} s")


def write_html(path: Path, results: Sequence[CheckResult], options: CheckOptions, now: float) -> None:
    """Write the counts of each part, and a line for each check."""
    page = Console(file=io.StringIO(), record=True, width=_PAGE_WIDTH, highlight=False)
    about = (
        f"Tango database {options.tango_host}, brokers {options.bootstrap}, topics {options.prefix}*;"
        f" {'read-only and active' if options.active else 'read-only'};"
        f" {datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%S} UTC; events observed for {options.window:g} s."
    )
    page.print(about, markup=False, soft_wrap=True)
    _print_counts(page, results, f"{len(results)} checks")
    for one in results:
        _print_line(page, one.outcome, f"{_WORDS[one.outcome]:>9}", f"{one.id}: {one.detail}")
    page.save_html(str(path))


def _print_line(console: Console, outcome: str, word: str, text: str) -> None:
    console.print(word, style=_STYLES[outcome], end="  ")
    console.print(_line(text), markup=False, highlight=False, soft_wrap=True)


def _print_counts(console: Console, results: Sequence[CheckResult], caption: str) -> None:
    """Print the counts of each outcome in each part of the ICD, and the sums."""
    found: dict[str, Counter[str]] = {}
    for result in results:
        found.setdefault(result.id.partition("/")[0], Counter())[result.outcome] += 1
    found["all"] = Counter(result.outcome for result in results)
    *rows, sums = ((part, *(str(counts[outcome]) for outcome in _WORDS)) for part, counts in found.items())
    verdict = f"{sums[2]} failed" if sums[2] != "0" else "conforms, as far as it was shown"
    shown = table(("part", *_WORDS.values()), rows, title=f"conformance: {verdict}", caption=caption)
    for column in shown.columns[1:]:
        column.justify = "right"
    shown.add_row(*sums, style="bold")
    console.print(shown)


def write_junit(path: Path, results: Sequence[CheckResult]) -> None:
    """Write the older form of JUnit's XML, which has a place for the measured value."""
    tags = {"failed": "failure", "skipped": "skipped"}
    failures, skipped = (str(sum(result.outcome == one for result in results)) for one in tags)
    numbers = {"tests": str(len(results)), "errors": "0", "failures": failures, "skipped": skipped}
    root = Xml.Element("testsuites")
    seconds = f"{sum(result.seconds for result in results):.3f}"
    suite = Xml.SubElement(root, "testsuite", numbers, name="conformance", time=seconds)
    for result in results:
        attributes = {"classname": "entries", "name": f"test_icd[{result.id}]", "time": f"{result.seconds:.3f}"}
        case, detail = Xml.SubElement(suite, "testcase", attributes), printable(result.detail, keep="\n")
        if result.outcome == "passed":
            Xml.SubElement(Xml.SubElement(case, "properties"), "property", name="measured", value=detail)
        else:
            Xml.SubElement(case, tags[result.outcome], message=detail).text = detail
    Xml.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _line(text: str) -> str:
    return " ".join(text.split())


# --- The run ---


PASSED, FAILED, NOT_RUN = 0, 1, 2


def run(options: CheckOptions, console: Console, clock: Clock) -> int:
    """Run the kit against a system, and return the exit code."""
    try:
        return _run(options, console, clock)
    except (FacadeError, OSError) as error:
        what = "could not read or write" if isinstance(error, OSError) else "could not run"
        console.print(f"{what}: {error}", markup=False, highlight=False, soft_wrap=True)
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
    is_whole = len(results) == len(wanted)
    if is_whole:  # before the files: a full disk must not take minutes of work
        print_report(console, results, clock.monotonic() - begin)
    if options.junit is not None:
        write_junit(options.junit, results)
    if not is_whole:
        raise ConfigError(f"interrupted after {len(results)} of {len(wanted)} checks")
    if options.html is not None:
        write_html(options.html, results, options, as_seconds(clock.now_us()))
    return FAILED if any(result.outcome == "failed" for result in results) else PASSED


def _settings(options: CheckOptions) -> Settings:
    """Return the settings: brokers by the options, the rest by the settings file, SDP_ARCHIVES and SDP_WITHOUT."""
    names = ("SDP_FACADE_CONFIG", "SDP_ARCHIVES", "SDP_WITHOUT")
    environment = {name: os.environ[name] for name in names if name in os.environ}
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
        none = LiveCheck("devices", not_shown("the deployment has none (SDP_WITHOUT, SDP_ARCHIVES)"))
        yield from cases([none], Subject(entry=None), name)
    for name, topic in system.icd.topics.items():
        yield from cases(topic_checks(topic), Subject(entry=topic, name=name), f"topics/{name}")


def _devices(system: LiveSystem, device_class: DeviceClass) -> list[Subject]:
    """Return the devices of a class; without any, the first that should be there, whose checks fail."""
    names = system.devices[device_class.name] or wanted_devices(system, device_class)[:1]
    return [Subject(entry=device_class, device=name, device_class=device_class) for name in names]


def _of_class(system: LiveSystem, device_class: DeviceClass) -> Iterator[Case]:
    devices, name = _devices(system, device_class), device_class.name
    yield from cases(CLASS_CHECKS, devices[0], name)
    for of in devices:
        yield from cases(DEVICE_CHECKS, of, f"{name}/{of.device}")
    for of in devices if system.options.thorough else devices[:1]:
        yield from _of_device(system, of, name if of is devices[0] else f"{name}/{of.device}")


def _of_device(system: LiveSystem, of: Subject, prefix: str) -> Iterator[Case]:
    flows = flow_checks()
    for checks, entries in (
        (ATTRIBUTE_CHECKS, of.entry.attributes),
        (COMMAND_CHECKS, of.entry.commands),
        (REPORT_CHECKS, of.entry.attributes),  # the commands have made controllers report
        (QUERY_CHECKS, of.entry.queries),
    ):
        for one in (replace(of, entry=entry) for entry in entries):
            own = () if isinstance(one.entry, Attribute) else flows
            more = [check for flow in own for check in flow.commands(system, one)]
            yield from cases((*checks, *more), one, f"{prefix}/{one.entry.name}")
    for flow in flows:
        yield from cases(flow.device(system, of), of, f"{of.device_class.name}/{of.device}")
