"""The processes of a deployment: none is forgotten, and one that ends by itself is noticed unless it should."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from facade.clock import SystemClock
from facade.errors import InfraError
from facade.infra.processes import Process
from proving.supervisor import Supervisor

SLEEP = ["sleep", "60"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path, SystemClock())
    yield supervisor
    supervisor.stop_all(kill=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_start_comes_once_the_process_is_written_down(
    number: signal.Signals, running: Supervisor
) -> None:
    class Interrupted(Process):
        @classmethod
        def start(cls, *arguments: object, **more: object) -> Process:
            signal.raise_signal(number)
            return super().start(*arguments, **more)

    def on_signal(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, on_signal)
    try:
        with pytest.raises(KeyboardInterrupt):
            running.start(Interrupted, "worker", SLEEP)
        assert signal.getsignal(number) is on_signal
    finally:
        signal.signal(number, before)
    assert '"worker"' in (running.folder / "processes.json").read_text()
    assert running["worker"].is_alive


@pytest.mark.parametrize("ends", [False, True])
def test_a_process_may_end_by_itself_only_if_that_was_said(ends: bool, running: Supervisor) -> None:
    assert running.start(Process, "tm", ["true"], ends=ends).wait(10.0)
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
    while "said" not in second.tail():
        assert second.is_alive
    assert running.alive() == [f"server (process {second.pid})"]
    assert running.last_words() == "    server: said"
    assert running.stop("server")
    assert running.alive() == []


def test_what_an_earlier_run_left_is_found_and_stopped(running: Supervisor) -> None:
    left = running.start(Process, "server", SLEEP)
    assert Supervisor(running.folder, SystemClock()).stop_left_over() == ["server"]
    assert not left.is_alive
    assert Supervisor(running.folder, SystemClock()).stop_left_over() == []


def test_a_list_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert Supervisor(tmp_path, SystemClock()).stop_left_over() == []
    (tmp_path / "processes.json").write_text('{"a": 1}')
    with pytest.raises(InfraError, match=r"processes\.json cannot be read"):
        Supervisor(tmp_path, SystemClock()).stop_left_over()
