"""The processes of a deployment: none is forgotten, and one that ends by itself is noticed unless it should."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from facade.clock import SystemClock
from facade.errors import InfraError
from facade.infra.processes import Process
from proving.supervisor import Supervisor
from tests.support.waiting import HANG

SLEEP = ["sleep", "60"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path, SystemClock())
    yield supervisor
    supervisor.stop_all(kill=True)


@pytest.mark.parametrize("ends", [False, True])
def test_a_process_may_end_by_itself_only_if_that_was_said(ends: bool, running: Supervisor) -> None:
    assert running.start(Process, "tm", ["true"], ends=ends).wait(HANG)
    if ends:
        running.check()
    else:
        with pytest.raises(InfraError, match=r"tm .* ended by itself"):
            running.check()


def test_what_an_earlier_run_left_is_found_and_stopped(running: Supervisor) -> None:
    left = running.start(Process, "server", SLEEP)
    assert Supervisor(running.folder, SystemClock()).stop_left_over() == ["server"]
    assert not left.is_alive
    assert Supervisor(running.folder, SystemClock()).stop_left_over() == []
