"""The kit as a plugin of pytest: makes an item of each case, and takes what becomes of it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tango

from clients.conformance.case import Case
from clients.conformance.results import Result
from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch, NotShown
from facade.errors import FacadeError


class ConformancePlugin:
    """Runs the cases of one system and keeps the results.

    Parameters
    ----------
    progress
        Is told of each result as it comes, with the number of cases in all.
    """

    def __init__(self, system: System, cases: Sequence[Case], progress: Callable[[Result, int], None]) -> None:
        self._system, self._cases, self._progress = system, cases, progress
        self.results: list[Result] = []

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: Any) -> None:
        """Take the terminal from pytest, whose report is made for programmers."""
        config.pluginmanager.unregister(name="terminalreporter")

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Make an item of each case."""
        metafunc.parametrize("case", self._cases, ids=[case.id for case in self._cases])

    @pytest.fixture
    def judged(self, record_property: Callable[[str, object], None]) -> Callable[[Case], None]:
        """Return what runs a case and turns its end into pytest's."""

        def judge(case: Case) -> None:
            wrong = ""
            try:
                record_property("measured", case.run(self._system))
            except NotShown as reason:
                pytest.skip(str(reason))
            except Mismatch as mismatch:
                wrong = str(mismatch)
            except tango.DevFailed as failed:
                wrong = f"expected an answer, got {failed.args[0].reason}: {failed.args[0].desc}"
            except FacadeError as error:
                wrong = f"expected an answer, got {error}"
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                wrong = f"expected something that can be understood, got {type(error).__name__}: {error}"
            if wrong:
                pytest.fail(wrong, pytrace=False)

        return judge

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep what became of an item."""
        if report.when != "call" and report.outcome == "passed":
            return
        result = Result(id=_id(report.nodeid), outcome=report.outcome, detail=_detail(report))
        self.results.append(result)
        self._progress(result, len(self._cases))


def _id(nodeid: str) -> str:
    return nodeid.partition("[")[2].removesuffix("]")


def _detail(report: Any) -> str:
    if report.outcome == "skipped":
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    if report.outcome == "failed":
        return str(report.longrepr).strip()
    return str(dict(report.user_properties).get("measured", ""))
