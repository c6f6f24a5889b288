"""A process that is forked is one like any other: what is given to it, what comes of it, and how it is ended."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.processes import Running
from tests.support.waiting import HANG

PROGRAM = """
import os, signal, sys, threading
print(sys.argv[1:], os.environ["SDP_NAME"], os.getcwd(), os.getsid(0) == os.getpid(), __name__)
print("and an error", file=sys.stderr, flush=True)
if sys.argv[1] == "waits":
    print("waits", flush=True)
    signal.pause()
sys.exit(3)
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py")]


ENVIRONMENT = {**os.environ, "SDP_NAME": "name"}


def test_it_has_what_it_was_given_and_ends_by_itself(program: list[str]) -> None:
    done = fork_server.run([*program, "ends"], ENVIRONMENT, HANG)
    said = f"['ends'] name {os.getcwd()} True __main__\n"
    assert (done.returncode, done.stdout.decode(), done.stderr) == (3, said, b"and an error\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_ends_it_alone(program: list[str], tmp_path: Path, number: signal.Signals) -> None:
    first, second = (
        Running.start(name, [*program, "waits"], log=tmp_path / f"{name}.log", env=ENVIRONMENT, append=True)
        for name in ("first", "second")
    )
    for one in (first, second):
        one.says("waits\n")
    first.send(number)
    assert first.exit_code() == -number
    assert second.is_alive
    second.kill()
    assert second.code == -signal.SIGKILL
    assert "and an error" in second.text


def test_what_reads_another_environment_or_is_not_ours_is_executed(program: list[str]) -> None:
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert fork_server.can_fork(["sdp-facade", "version"], ENVIRONMENT | path)
    assert fork_server.can_fork(program, ENVIRONMENT | path)
    for name in ("PYTHONPATH", "COLUMNS", "TANGO_TELEMETRY_ENABLE", "OTEL_RESOURCE_ATTRIBUTES"):
        assert not fork_server.can_fork(program, ENVIRONMENT | path | {name: "on"}), name
    for argv in (["java", "-version"], ["/elsewhere/bin/sdp-facade"], [sys.executable, "-c", "pass"]):
        assert not fork_server.can_fork(argv, ENVIRONMENT | path), argv
