"""The processes of a deployment: none is forgotten, and one that ends by itself is noticed unless it should."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from facade.clock import ManualClock, SystemClock
from facade.errors import InfraError
from facade.infra.processes import Process, started_in
from proving.supervisor import Supervisor
from tests.support.waiting import HANG, until

SLEEP = ["sleep", "60"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path, SystemClock())
    yield supervisor
    supervisor.stop_all(kill=True)


class CutOff(Process):
    """Its starter gets no further than the start: a Ctrl-C, or a crash."""

    @classmethod
    def start(cls, *arguments: Any, **more: Any) -> Self:
        super().start(*arguments, **more)
        raise KeyboardInterrupt


@pytest.mark.parametrize("earlier", [False, True])
def test_a_process_whose_starter_was_cut_off_is_found_and_stopped(running: Supervisor, earlier: bool) -> None:
    """Nobody wrote down that it runs; neither this run nor the next one leaves it behind."""
    with pytest.raises(KeyboardInterrupt):
        running.start(CutOff, "worker", SLEEP)
    (left,) = running.alive()
    assert left.startswith("worker (process ")
    if earlier:
        assert Supervisor(running.folder, SystemClock()).stop_left_over() == ["worker"]
    else:
        running.stop_all()
    assert running.alive() == []


def test_several_that_do_not_end_take_no_longer_than_one(running: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty processes that hang held a demo up for 400 s, one behind the other, without a word."""
    monkeypatch.setattr("proving.supervisor.GRACE", 1.0)
    deaf = ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 60; done"]
    processes = [running.start(Process, name, deaf) for name in ("one", "two", "three")]
    for process in processes:
        until(lambda one=process: "deaf" in one.tail(), "it ignores a signal")
    waits: list[float] = []
    end = Process.end
    monkeypatch.setattr(Process, "end", lambda self, grace: (waits.append(grace), end(self, grace))[1])
    running.stop_all()
    assert running.alive() == []
    assert sum(grace > 0.0 for grace in waits) == 1


def test_processes_of_another_folder_are_left_alone(running: Supervisor, tmp_path: Path) -> None:
    stranger = running.start(Process, "stranger", SLEEP)
    assert Supervisor(tmp_path / "other", SystemClock()).stop_left_over() == []
    assert Supervisor(tmp_path.parent, SystemClock()).stop_left_over() == []
    assert stranger.is_alive


def test_what_a_process_has_started_is_found_when_it_has_ended_itself(running: Supervisor) -> None:
    assert running.start(Process, "parent", ["sh", "-c", "sleep 60 &"]).wait(HANG)
    assert Supervisor(running.folder, SystemClock()).stop_left_over() == ["parent"]
    assert running.alive() == []


@pytest.mark.parametrize("ends", [False, True])
def test_a_process_may_end_by_itself_only_if_that_was_said(ends: bool, running: Supervisor) -> None:
    assert running.start(Process, "tm", ["true"], ends=ends).wait(HANG)
    if ends:
        running.check()
    else:
        with pytest.raises(InfraError, match=r"tm .* ended by itself"):
            running.check()


def test_what_is_killed_is_not_missed_and_starts_again_as_before(running: Supervisor) -> None:
    first = running.start(Process, "server", ["sh", "-c", "echo $WORD; exec sleep 60"], {"WORD": "said"})
    running.kill("server")
    running.check()
    assert not first.is_alive
    second = running.start_again("server")
    assert second.record.argv == first.record.argv
    until(lambda: "said" in second.tail() or not second.is_alive, "it begins")
    assert "said" in second.tail()
    assert running.alive() == [f"server (process {second.pid})"]
    assert running.last_words() == "    server: said"
    assert running.stop("server")
    assert running.alive() == []


def test_what_an_earlier_run_left_is_found_and_stopped(running: Supervisor) -> None:
    left = running.start(Process, "server", SLEEP)
    assert Supervisor(running.folder, SystemClock()).stop_left_over() == ["server"]
    assert not left.is_alive
    assert Supervisor(running.folder, SystemClock()).stop_left_over() == []


def test_a_process_that_is_just_beginning_its_program_is_found(
    running: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within execve the kernel shows neither environment nor arguments; a busy machine leaves a process there long."""
    left = running.start(Process, "server", SLEEP)
    environ, cmdline, looks = psutil.Process.environ, psutil.Process.cmdline, Counter[int]()

    def begins(self: psutil.Process) -> bool:
        return self.pid == left.pid and looks[left.pid] < 500

    def shown(self: psutil.Process) -> dict[str, str]:
        looks[self.pid] += 1
        return {} if begins(self) else environ(self)

    monkeypatch.setattr(psutil.Process, "environ", shown)
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: [] if begins(self) else cmdline(self))
    clock = ManualClock(0.0)
    assert [process.pid for process in started_in(running.folder, clock)] == [left.pid]
    assert clock.now() == pytest.approx(5.0, abs=0.1)


def test_a_child_that_outlives_its_leader_is_stopped_as_well(running: Supervisor) -> None:
    """The leader ends at once when it is told to, and the child takes longer."""
    child = "trap 'sleep 0.5; exit' TERM; echo ready; while :; do sleep 0.1; done"
    leader = running.start(Process, "leader", ["sh", "-c", f'sh -c "{child}" & exec sleep 60'])
    until(lambda: "ready" in leader.log.read_text(), "the child has its handler")
    running.stop_all()
    assert running.alive() == []
