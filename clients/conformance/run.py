"""Runs the kit: is everything there that it needs, then pytest, then the reports."""

import logging
import os
from pathlib import Path

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
from facade.runtime.stopping import terminable

PASSED, FAILED, NOT_RUN = 0, 1, 2
"""Exit codes."""
_FOLDER = Path(__file__).parent
_UNUSED = ("cacheprovider", "doctest", "logging", "threadexception", "unittest", "unraisableexception", "warnings")
"""Parts of pytest that are about the code of tests; without them thousands of checks take half the time."""
_JUNIT = ("-o", "junit_suite_name=conformance", "-o", "junit_family=xunit1")
"""The older form of the report, which has a place for what was measured."""
_MISSING = "pytest is not installed, which the conformance kit runs on; expected it beside this program: \
pip install 'sdp-tango-facade[conformance]'"


def run(options: Options, console: Console, clock: Clock) -> int:
    """Run the kit against a system, and give the exit code."""
    try:
        return _run(options, console, clock)
    except FacadeError as error:
        console.print(f"could not run: {error}", markup=False, highlight=False, soft_wrap=True)
        return NOT_RUN


def _run(options: Options, console: Console, clock: Clock) -> int:
    try:
        import pytest  # only this command needs it
    except ImportError:
        raise ConfigError(_MISSING) from None
    from clients.conformance.plugin import ConformancePlugin

    system = System(load(options.icd), options, _settings(options), clock)
    system.require()
    for flow in flow_checks():
        flow.prepare(system)
    cases = catalogue(system)
    if not cases:
        raise ConfigError(f"--only {' '.join(options.only)}: expected the beginning of an entry, got what fits none")
    _require_folders(options)
    begin = clock.monotonic()
    logging.getLogger("facade").addHandler(logging.NullHandler())  # the report says what the client's log would
    # What else is installed for pytest has no business here.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with terminable(), Progress(console) as progress:
        plugin = ConformancePlugin(system, cases, progress.show)
        arguments = ["-c", str(_FOLDER / "pytest.ini"), "--rootdir", str(_FOLDER), "-s"]
        arguments += [part for name in _UNUSED for part in ("-p", f"no:{name}")]
        if options.junit is not None:
            arguments += ["--junit-xml", str(options.junit.absolute()), *_JUNIT]
        code = pytest.main([*arguments, str(_FOLDER / "entries.py")], plugins=[plugin])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise ConfigError(f"pytest ended with {code!r} after {len(plugin.results)} of {len(cases)} checks")
    if options.html is not None:
        options.html.write_text(page(plugin.results, options, clock.now()), encoding="utf-8")
    print_report(console, plugin.results, clock.monotonic() - begin)
    return PASSED if code == pytest.ExitCode.OK else FAILED


def _require_folders(options: Options) -> None:
    for path in (options.junit, options.html):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{path}: expected a file in a folder that is there, got none called {path.parent}")


def _settings(options: Options) -> Settings:
    """Return the settings that reach the brokers; those of security come from the settings file as for any program."""
    environment = {
        **{name: value for name, value in os.environ.items() if name == "SDP_FACADE_CONFIG"},
        "KAFKA_BOOTSTRAP": options.bootstrap,
        "SDP_TOPIC_PREFIX": options.prefix,
    }
    return load_settings(environment)
