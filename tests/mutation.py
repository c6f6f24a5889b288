"""Changes the pure parts of the flows, one place at a time, and runs the tests that need no broker: do they notice?

The library is mutmut. It makes the changes, and finds which tests reach which function; what it changes, and which
tests it knows, stands in ``pyproject.toml`` under ``tool.mutmut``. Here a process has collected these tests. First the
tests that need no fixture are called as functions, one change after the other in one process: a change is found if a
test fails with it and passes again without it. For each change that is left the process forks, and the child runs the
tests of the function, the quickest first, until one fails.
``tests/mutation.toml`` names changes that make no difference, each with the line that it makes and the reason. The exit
code is 1 if fewer than 95 % of the others were found.
"""

import argparse
import copy
import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]
_MUTANTS = _ROOT / "mutants"
_WANTED = 0.95
_PROCESSOR_TIME = 60
"""A change whose tests take more of it does not end [s]; all tests take a quarter of that."""
_CALL_TIME = 2.0
"""A test without fixtures that takes more of it does not end [s]."""
_SLOW = 0.5
"""Tests without fixtures that take longer are left to the forks [s]."""
_WALL_TIME = 600.0
"""One whose tests take longer waits for what does not come [s]."""
_SAID = 30.0
"""How often it is said how far it is [s]."""
_MEMORY = 4 << 30
"""One that grows beyond it does not end either [bytes]."""
_QUIET = ("-q", "--tb=no", "--capture=no", "-p", "no:xdist", "-p", "no:forked", "-p", "no:cacheprovider", "--rootdir=.")


def _mutmut(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def _is_equivalent(name: str, shown: str, known: Collection[tuple[str, str]]) -> bool:
    """Return whether a change, as mutmut shows it, is one of those that make no difference."""
    lines = (line[1:].strip() for line in shown.splitlines() if line.startswith("+"))
    return any((name.rpartition("__mutmut_")[0], line) in known for line in lines)


class _Tests:
    """Which tests reach a function, the quickest first."""

    def __init__(self) -> None:
        known = json.loads((_MUTANTS / "mutmut-stats.json").read_text())
        self._by_function, self._duration = known["tests_by_mangled_function_name"], known["duration_by_test"]

    def is_slow(self, test: str) -> bool:
        """Return whether a test took long without any change."""
        return float(self._duration[test]) > _SLOW

    def all(self) -> list[str]:
        return [test for test in self._duration if any(test in several for several in self._by_function.values())]

    def of(self, name: str) -> list[str]:
        tests = self._by_function.get(name.rpartition("__mutmut_")[0], ())
        return sorted(tests, key=self._duration.__getitem__)


class _Tries:
    """Tries changes in place of pytest's own loop over the tests that it has collected."""

    def __init__(self, names: list[str], tests: _Tests, processes: int) -> None:
        self._names, self._tests, self._processes = names, tests, processes
        self.codes: dict[str, int] = {}
        """Exit code of each change: 0 if no test noticed, negative if the tests did not end."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        _, status = os.waitpid(_begin("", [items[test] for test in self._tests.all()]), 0)
        if status:
            sys.exit(f"tests fail without any change: exit code {os.waitstatus_to_exitcode(status)}")
        by_calls = self._call_plain_tests(items)
        self.codes = dict.fromkeys(by_calls, 1)
        print(f"{len(by_calls)} of {len(self._names)} found by tests without fixtures", flush=True)
        left, running = [name for name in self._names[::-1] if name not in by_calls], dict[int, tuple[str, float]]()
        started = said = time.monotonic()
        while left or running:
            while left and len(running) < self._processes:
                name = left.pop()
                running[_begin(name, [items[test] for test in self._tests.of(name)])] = name, time.monotonic()
            time.sleep(0.01)
            now = time.monotonic()
            for process, (name, begun) in list(running.items()):
                if now - begun > _WALL_TIME:
                    os.kill(process, signal.SIGKILL)
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    self.codes[name] = os.waitstatus_to_exitcode(status)
                    if self.codes[name] == 0:
                        print(f"not found: {name}", flush=True)
                    del running[process]
            if now - said >= _SAID:
                said = now
                found = sum(code != 0 for code in self.codes.values())
                print(
                    f"{len(self.codes)} of {len(self._names)} tried in {now - started:.0f} s, {found} found", flush=True
                )
        return True

    def _call_plain_tests(self, items: Mapping[str, pytest.Item]) -> set[str]:
        """Return the changes that tests without fixtures find; a process of their own calls them."""
        report = _MUTANTS / "found-by-calls.txt"
        report.touch()
        if (process := os.fork()) == 0:
            try:
                _silence()
                signal.signal(signal.SIGPROF, _interrupt)
                plain = {
                    name: test
                    for name, test in items.items()
                    if isinstance(test, pytest.Function) and _is_plain(test) and not self._tests.is_slow(name)
                }
                with report.open("w", buffering=1) as found:
                    for name in self._names:
                        tests = [plain[test] for test in self._tests.of(name) if test in plain]
                        failed = next((test for test in tests if not _passes(test, name)), None)
                        if failed is not None and _passes(failed, ""):  # else it is another change's doing
                            found.write(f"{name}\n")
            finally:
                os._exit(0)
        os.waitpid(process, 0)
        return set(report.read_text().split())


class _EndlessError(BaseException):
    """A test has taken too long; no test is to catch it."""


def _interrupt(*_: object) -> None:
    raise _EndlessError


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def _is_plain(test: pytest.Function) -> bool:
    """Return whether a test is a function that needs nothing but its parameters."""
    return not hasattr(test.obj, "hypothesis") and {*test.fixturenames} <= {*_parameters(test), "request"}


def _parameters(test: pytest.Function) -> dict[str, object]:
    return dict(test.callspec.params) if hasattr(test, "callspec") else {}


def _passes(test: pytest.Function, name: str) -> bool:
    """Return whether a test passes with a change; no name: without any."""
    os.environ["MUTANT_UNDER_TEST"] = name
    signal.setitimer(signal.ITIMER_PROF, _CALL_TIME)
    try:
        test.obj(**copy.deepcopy(_parameters(test)))
    except BaseException:  # also what a test that fails raises
        return False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return True


def _begin(name: str, tests: list[pytest.Item]) -> int:
    """Fork a process that runs the tests with a change; return its id. Its exit code is 0 if no test fails."""
    if (process := os.fork()) != 0:
        return process
    code = 1
    try:
        _silence()
        limit = round(time.process_time()) + _PROCESSOR_TIME
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        os.environ["MUTANT_UNDER_TEST"] = name
        for test, following in itertools.zip_longest(tests, tests[1:]):
            test.ihook.pytest_runtest_protocol(item=test, nextitem=following)
            if test.session.testsfailed:
                break
        else:
            code = 0
    finally:
        os._exit(code)


def main() -> int:
    """Run a sample; return the exit code of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="this many changes only, drawn by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="changes with this in their names only")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    entries = tomllib.loads((_ROOT / "tests" / "mutation.toml").read_text())["equivalent"]
    equivalent = {(one["function"], one["line"]) for one in entries}
    shutil.rmtree(_MUTANTS, ignore_errors=True)  # what an older sample has found is of older code
    said = _mutmut("run", "no such change").stdout  # makes the changed code, and runs each test once
    if not (_MUTANTS / "mutmut-stats.json").exists():
        sys.exit(f"mutmut changed nothing:\n{said[-2000:]}")
    metas = [json.loads(path.read_text()) for path in sorted(_MUTANTS.rglob("*.meta"))]
    names = sorted(name for meta in metas for name in meta["exit_code_by_key"] if given.only in name)
    if given.sample:
        names = sorted(random.Random(given.seed).sample(names, min(given.sample, len(names))))
    print(f"{len(names)} changes, seed {given.seed}", flush=True)
    sys.path[:] = [str(_MUTANTS), *(path for path in sys.path if Path(path).resolve() != _ROOT)]
    os.chdir(_MUTANTS)
    os.environ["SDP_TEST_PROFILE"] = "unshrunk"
    tests = _Tests()
    files = sorted({test.partition("::")[0] for test in tests.all()})
    tries = _Tries(names, tests, given.processes)
    pytest.main([*_QUIET, *files], plugins=[tries])
    os.chdir(_ROOT)
    codes = tries.codes
    shown = {name: _mutmut("show", name).stdout for name in names if codes[name] == 0}
    survivors = [name for name, text in shown.items() if not _is_equivalent(name, text, equivalent)]
    for name in survivors:
        print(f"\nnot found: {name}\n{shown[name]}")
    counted = len(names) - len(shown) + len(survivors)
    ended = sum(code < 0 for code in codes.values())
    print(
        f"\n{counted - len(survivors)} of {counted} found, {ended} of them as tests did not end;"
        f" {len(names) - counted} make no difference"
    )
    return 0 if counted - len(survivors) >= _WANTED * counted else 1


if __name__ == "__main__":
    sys.exit(main())
