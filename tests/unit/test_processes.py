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

import pytest

from facade.errors import InfraError
from facade.infra.processes import ProcessRecord, is_alive, kill, spawn, stop


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.005)


@contextmanager
def spawned(log: Path, *argv: str) -> Iterator[ProcessRecord]:
    record = spawn("sample", argv, log=log)
    try:
        yield record
    finally:
        kill(record)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "sample.log"


def test_a_spawned_process_is_alive_until_it_is_stopped(log: Path) -> None:
    with spawned(log, "sleep", "60") as record:
        assert is_alive(record)
        assert stop(record, grace_s=10) is True
        assert not is_alive(record)
        assert not Path(f"/proc/{record.pid}").exists(), "a zombie was left behind"


def test_it_is_detached_from_its_parent(log: Path) -> None:
    with spawned(log, "sleep", "60") as record:
        assert os.getsid(record.pid) == record.pid != os.getsid(0)


def test_both_output_streams_go_to_the_log_and_the_last_log_is_kept(log: Path) -> None:
    for word in ("first", "second"):
        code = f"import sys; print('{word} out', flush=True); print('{word} err', file=sys.stderr)"
        with spawned(log, *python(code)) as record:
            wait_for(lambda record=record: not is_alive(record))
    assert log.read_text() == "second out\nsecond err\n"
    assert log.with_name("sample.log.1").read_text() == "first out\nfirst err\n"


def test_the_environment_is_the_given_one(log: Path) -> None:
    code = "import os; print(os.environ.get('SAMPLE'), 'HOME' in os.environ)"
    record = spawn("sample", python(code), log=log, env={"SAMPLE": "yes"})
    wait_for(lambda: not is_alive(record))
    assert log.read_text() == "yes False\n"


def test_a_successor_with_the_same_pid_is_not_the_process_and_is_never_signalled(log: Path) -> None:
    with spawned(log, "sleep", "60") as stranger:
        for forged in (
            replace(stranger, start_ticks=stranger.start_ticks - 1),
            replace(stranger, boot_id="an-earlier-boot"),
        ):
            assert not is_alive(forged)
            assert stop(forged, grace_s=1) is True
            kill(forged)
        assert is_alive(stranger)


def test_a_zombie_of_another_parent_is_dead(log: Path) -> None:
    # The parent never waits for its child, so the child stays a zombie as long as the parent lives.
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    with spawned(log, *python(code)):
        wait_for(lambda: log.read_text().endswith("\n"))
        pid = int(log.read_text())
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        child = ProcessRecord(name="child", pid=pid, start_ticks=int(fields[19]), boot_id=boot_id, argv=(), log="")
        assert is_alive(child)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(child))
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_process_that_ignores_sigterm_is_killed(log: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    with spawned(log, *python(code)) as record:
        wait_for(lambda: "deaf" in log.read_text())
        assert stop(record, grace_s=0.1) is False
        assert not is_alive(record)


def test_what_it_started_itself_ends_with_it(log: Path) -> None:
    with spawned(log, "sh", "-c", "sleep 60 & echo $!; wait") as record:
        wait_for(lambda: log.read_text().endswith("\n"))
        child = Path(f"/proc/{int(log.read_text())}")
        kill(record)
        wait_for(lambda: not child.exists() or ") Z" in (child / "stat").read_text())


def test_the_children_of_others_in_this_process_keep_their_exit_code(log: Path) -> None:
    # `is_alive` collects its own dead; it must not snatch the status of a Popen elsewhere.
    with subprocess.Popen(["sh", "-c", "exit 3"]) as other:
        wait_for(lambda: ") Z" in Path(f"/proc/{other.pid}/stat").read_text())
        forged = ProcessRecord(name="old", pid=other.pid, start_ticks=1, boot_id="x", argv=(), log="")
        assert not is_alive(forged)
        assert other.wait(10) == 3


def test_a_program_that_does_not_exist_is_a_clear_error(log: Path) -> None:
    with pytest.raises(InfraError, match=r"sample cannot be started: .*no-such-program"):
        spawn("sample", ["/no-such-program", "-x"], log=log)
