"""Real, short-lived processes: found again, told apart from a successor, and stopped for certain."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from facade.infra.processes import Process, ProcessRecord, started_in
from facade.kernel.clock import ManualClock
from tests.support.waiting import HANG


def wait_for(condition: Callable[[], bool], seconds: float = HANG) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.005)


@contextmanager
def spawned(log: Path, *argv: str) -> Iterator[Process]:
    process = Process.start("sample", argv, log=log)
    try:
        yield process
    finally:
        process.kill()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "sample.log"


def test_a_signal_while_it_starts_waits_until_it_has_its_own_environment(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        signal.raise_signal(signal.SIGTERM)
        started.append(begin(*arguments, **options))
        return started[0]

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        monkeypatch.setattr(subprocess, "Popen", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Process.start("sample", ["sleep", "60"], log=log)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [found.pid for found in started_in(log.parent)] == [child.pid for child in started], "it is found again"
    started[0].kill()
    assert started[0].wait(HANG) == -signal.SIGKILL
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_thread_of_the_kernel_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.16, root reads an empty environment of each: `infra down` waited half a minute for each."""
    thread = psutil.Process()
    monkeypatch.setattr(thread, "environ", dict)
    monkeypatch.setattr(thread, "cmdline", list)
    monkeypatch.setattr(psutil, "process_iter", lambda: [thread])
    monkeypatch.setattr(os, "getsid", lambda pid: 0 if pid == thread.pid else 1)
    clock = ManualClock()
    began = clock.now()
    assert started_in(tmp_path, clock) == []
    assert clock.now() == began


def test_both_output_streams_go_to_the_log_and_the_last_log_is_kept(log: Path) -> None:
    for word in ("first", "second"):
        code = f"import sys; print('{word} out', flush=True); print('{word} err', file=sys.stderr)"
        with spawned(log, *python(code)) as process:
            wait_for(lambda process=process: not process.is_alive)
    assert log.read_text() == "second out\nsecond err\n"
    assert log.with_name("sample.log.1").read_text() == "first out\nfirst err\n"


def test_a_successor_with_the_same_pid_is_not_the_process_and_is_never_signalled(log: Path) -> None:
    with spawned(log, "sleep", "60") as stranger:
        forged = Process(replace(stranger.record, created=stranger.record.created - 10))
        assert not forged.is_alive
        assert forged.stop(1) is True
        forged.kill()
        forged.send(signal.SIGKILL)
        assert stranger.is_alive


def test_it_is_found_again_by_its_record_also_when_the_clock_was_set_a_little(log: Path) -> None:
    with spawned(log, "sleep", "60") as process:
        for record in (process.record, replace(process.record, created=process.record.created + 1.0)):
            assert Process(record).is_alive
        assert Process(process.record).stop(HANG) is True
        assert not process.is_alive


def test_a_zombie_of_another_parent_is_dead(log: Path) -> None:
    # The parent never waits for its child, so the child stays a zombie as long as the parent lives.
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    with spawned(log, *python(code)):
        wait_for(lambda: log.read_text().endswith("\n"))
        pid = int(log.read_text())
        created = psutil.Process(pid).create_time()
        child = Process(ProcessRecord(name="child", pid=pid, created=created, argv=(), log=""))
        assert child.is_alive
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not child.is_alive)
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_process_that_ignores_sigterm_is_killed(log: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    with spawned(log, *python(code)) as process:
        wait_for(lambda: "deaf" in log.read_text())
        assert process.stop(0.1) is False
        assert not process.is_alive


def test_what_it_started_itself_ends_with_it(log: Path) -> None:
    with spawned(log, "sh", "-c", "sleep 60 & echo $!; wait") as process:
        wait_for(lambda: log.read_text().endswith("\n"))
        child = Path(f"/proc/{int(log.read_text())}")
        process.kill()
        wait_for(lambda: not child.exists() or ") Z" in (child / "stat").read_text())


def test_the_children_of_others_in_this_process_keep_their_exit_code(log: Path) -> None:
    # `is_alive` collects its own dead; it must not snatch the status of a Popen elsewhere.
    with subprocess.Popen(["sh", "-c", "exit 3"]) as other:
        wait_for(lambda: ") Z" in Path(f"/proc/{other.pid}/stat").read_text())
        forged = ProcessRecord(name="old", pid=other.pid, created=1.0, argv=(), log="")
        assert not Process(forged).is_alive
        assert other.wait(HANG) == 3


def test_a_successor_may_go_on_in_the_same_log(log: Path) -> None:
    for word in ("first", "second"):
        process = Process.start("sample", ["echo", word], log=log, append=True)
        assert process.wait(HANG)
    assert process.tail() == "    first\n    second"
