"""The demo as its users start it: everything balances, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from devices.demo.plan import OBSERVATION
from devices.demo.report import DemoReport
from facade.infra import local
from facade.infra.processes import ProcessRecord, is_alive

pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.slow]

PROGRAM = Path(sys.executable).with_name("sdp-facade")
PLAN = [step.command for step in OBSERVATION]
SMALL = ("--nodes", "2", "--rate", "2000", "--no-live")


def start(state_dir: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(PROGRAM), "demo", "--state-dir", str(state_dir), *SMALL, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def running(state_dir: Path) -> list[str]:
    """Give what the records of the demo and of its services say is alive, and any process that names the folder."""
    file = state_dir / "demo" / "processes.json"
    records = msgspec.json.decode(file.read_bytes(), type=list[ProcessRecord]) if file.exists() else []
    alive = [record.name for record in records if is_alive(record)]
    alive += [line.process for line in local.status(state_dir) if line.alive]
    return alive + processes_of(state_dir)


def processes_of(state_dir: Path) -> list[str]:
    """Look for leftovers without trusting any record: their logs are in the folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "fd" / "1").startswith(str(state_dir)):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def wait_for(state_dir: Path, text: str, process: subprocess.Popen[str]) -> None:
    """Read the output until a line contains the text."""
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    pytest.fail(f"{text!r} never came from the demo in {state_dir}:\n{''.join(seen)}")


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=90)
    return process.returncode, output


def report_of(state_dir: Path) -> DemoReport:
    return msgspec.json.decode((state_dir / "demo-report.json").read_bytes(), type=DemoReport)


@pytest.mark.timeout(240)
def test_two_demos_balance_and_leave_nothing(tmp_path: Path) -> None:
    """The second one finds the data of the first, has another size, and starts from zero all the same."""
    options: Sequence[Sequence[str]] = (("--seconds", "9"), ("--seconds", "5", "--nodes", "1", "--no-kills"))
    for nodes, chosen in zip((2, 1), options, strict=True):
        code, output = finish(start(tmp_path, *chosen))
        assert code == 0, output
        report = report_of(tmp_path)
        assert report.balanced
        assert report.failures == []
        assert report.sent is not None
        assert report.sent.sent > 2000 * nodes
        assert report.invalid_after is not None
        assert report.invalid_after < 4.0
        assert len([line for line in report.account if line.where.startswith("node ")]) == 7 * nodes
        assert "DIFFERS" not in output
        assert "nothing of this demo is left running" in output
        assert running(tmp_path) == []
        if "--no-kills" not in chosen:
            assert report.server_recovery is not None
            assert report.server_recovery < 5.0
            assert report.worker_recovery is not None
            assert report.subarray_recovery is not None
            assert report.controller_recovery is not None
            assert [kill.what for kill in report.kills] == ["subarray", "controller", "aggregate-1", "ingest-00"]
        assert_observed(report, kills="--no-kills" not in chosen)


def assert_observed(report: DemoReport, *, kills: bool) -> None:
    """Both subarrays went through the whole plan, and everyone agrees about each command."""
    devices = ("mid-sdp/subarray/01", "mid-sdp/subarray/02")
    assert len(report.command_account) == 8 * len(devices)
    assert all(line.agrees for line in report.command_account)
    for device in devices:
        lines = [line for line in report.commands if line.device == device]
        assert all(line.id and line.outcome for line in lines)
        done = [line.name for line in lines if line.outcome == "COMPLETED"]
        assert [name for name in dict.fromkeys(done) if name in PLAN] == PLAN
        if not kills:
            assert done == PLAN
            assert len(lines) == len(PLAN)
            assert all(line.calls == 1 and line.executions == 1 for line in lines)
    if kills:
        # The controller died while it was executing it: it is not executed again, but given anew.
        first, second, *_ = (line for line in report.commands if line.device == devices[0] and line.name == "Configure")
        assert (first.outcome, first.text.partition(":")[0], first.path[-1]) == ("FAILED", "interrupted", "FAULT")
        assert (first.executions, second.outcome) == (1, "COMPLETED")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_clears_everything_away(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "--seconds", "60")
    wait_for(tmp_path, "all nodes show values", process)
    # While the next process is started, which must not be forgotten.
    assert running(tmp_path)
    process.send_signal(number)
    code, output = finish(process)
    assert code == 130, output
    assert "nothing of this demo is left running" in output
    assert "Traceback" not in output
    assert running(tmp_path) == []


@pytest.mark.timeout(120)
def test_a_process_that_dies_is_noticed_and_its_log_shown(tmp_path: Path) -> None:
    """The exit code is 1; the message has the name, the log's last lines and its folder."""
    process = start(tmp_path, "--seconds", "60", "--no-kills")
    wait_for(tmp_path, "all nodes show values", process)
    records = msgspec.json.decode((tmp_path / "demo" / "processes.json").read_bytes(), type=list[ProcessRecord])
    (victim,) = (record for record in records if record.name == "control")
    os.kill(victim.pid, signal.SIGKILL)
    code, output = finish(process)
    assert code == 1, output
    assert f"control (process {victim.pid}) ended by itself" in output
    assert "bus opened" in output
    assert f"logs: {tmp_path / 'demo'}" in output
    report = report_of(tmp_path)
    assert not report.balanced
    assert len(report.failures) == 1
    assert running(tmp_path) == []


@pytest.mark.timeout(120)
def test_what_a_killed_demo_left_is_found_by_the_next_one(tmp_path: Path) -> None:
    process = start(tmp_path, "--seconds", "60", "--no-kills")
    wait_for(tmp_path, "all nodes show values", process)
    process.kill()
    process.communicate()
    left = running(tmp_path)
    assert {"control", "ingest-00", "subarray", "controller", "simulate", "kafka", "tango-db"} <= set(left)
    code, output = finish(start(tmp_path, "--seconds", "5", "--no-kills"))
    assert code == 0, output
    assert "stopped what an earlier demo had left" in output
    assert report_of(tmp_path).balanced
    # The services ran when it began, so it leaves them as they were.
    assert sorted(line.process for line in local.status(tmp_path) if line.alive) == ["kafka", "tango-db"]
    local.down(tmp_path)
    deadline = time.monotonic() + 5
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running(tmp_path) == []
