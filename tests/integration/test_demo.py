"""The demo as its users start it: everything balances, and nothing is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from facade.infra import local
from facade.infra.processes import started_in
from facade.kernel.errors import InfraError
from sdp_facade_lab.debian import SHIPPERS, unpacked_packages
from sdp_facade_lab.demo.flows import TABLES
from sdp_facade_lab.demo.plan import OBSERVATION, SWITCHED_ON
from sdp_facade_lab.demo.report import FAULTS, DemoReport
from tests.support.waiting import HANG, until_equal

_ENDS_WITHIN = 1800.0
"""After so long a demo hangs, on a machine of any speed: beside a load of 35 it took 458 s [s]."""
pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.slow, pytest.mark.timeout(2 * _ENDS_WITHIN)]

PROGRAM = Path(sys.executable).with_name("sdp-facade")
PLAN = [step.command for step in OBSERVATION]
SMALL = ("--nodes", "2", "--rate", "500", "--no-live", "--patience", "20")
"""A demo judges its limits of time by itself; here it has no limits, only an end."""


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return what starts a demo in the test's folder; what a test that failed left there is ended."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*options: str) -> subprocess.Popen[str]:
        argv = [str(PROGRAM), "demo", "--state-dir", str(tmp_path), *SMALL, *options]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    yield start_one
    for process in started:
        if process.poll() is None:
            kill_both(process)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    for left in started_in(tmp_path / "demo"):
        left.kill()
    local.down(tmp_path, wipe=True)


def player_of(guard: subprocess.Popen[str]) -> int:
    """Return the process in which the demo plays."""
    (player,) = psutil.Process(guard.pid).children()
    return player.pid


def kill_both(guard: subprocess.Popen[str]) -> None:
    """Kill a demo with its guard, so that neither clears anything away."""
    guard.send_signal(signal.SIGSTOP)
    for player in psutil.Process(guard.pid).children():
        player.kill()
    guard.kill()


def running(state_dir: Path) -> list[str]:
    """Return what the demo and its services find alive, and any process that names the folder."""
    alive = [process.name for process in started_in(state_dir / "demo")]
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
    try:
        output, _ = process.communicate(timeout=_ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # it clears away, and says what it was doing
        output, _ = process.communicate(timeout=HANG)
        pytest.fail(f"the demo did not end within {_ENDS_WITHIN:g} s:\n{output}")
    return process.returncode, output


def why(state_dir: Path, output: str) -> str:
    """Return what failed before all else: whoever shortens the output keeps its beginning."""
    failures = report_of(state_dir).failures if (state_dir / "demo-report.json").exists() else ["no report"]
    return "\n".join([*failures, output])


def report_of(state_dir: Path) -> DemoReport:
    return msgspec.json.decode((state_dir / "demo-report.json").read_bytes(), type=DemoReport)


def balanced(state_dir: Path, code: int, output: str) -> DemoReport:
    """Return the report of a demo that found everything as it should be."""
    assert code == 0, why(state_dir, output)
    report = report_of(state_dir)
    assert report.balanced
    assert report.failures == []
    assert report.sent is not None
    assert report.sent.sent > 4000
    assert report.invalid_after is not None
    assert len([line for line in report.account if line.where.startswith("node ")]) == 14
    assert "DIFFERS" not in output
    assert_observed(report)
    assert_ordered(report)
    assert_alerts(report)
    assert [line.found for line in report.accounts["tables"]] == [TABLES, TABLES, 0, 0, 1, 1]
    assert all(line.agrees for line in report.accounts["tables"])
    return report


def test_a_demo_balances_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    """Each part of the deployment is killed once, and comes back in time; with logs, where Debian's packages are.
    All is archived, and played again.

    An earlier demo of another size was killed with its guard. What it left is stopped, and totals begin at zero.
    """
    earlier = start("--seconds", "60", "--nodes", "1", "--no-kills")
    wait_for(tmp_path, "started: 2 aggregate workers", earlier)
    kill_both(earlier)
    earlier.communicate()
    left = running(tmp_path)
    assert {"control", "ingest-00", "subarray", "controller", "kafka", "tango-db"} <= set(left)
    flows = ["--all"] if has_shippers() else ["--mirror"]
    code, output = finish(start("--seconds", "9", "--archive", *flows))
    report = balanced(tmp_path, code, output)
    assert "stopped what an earlier demo had left" in output
    assert "services: an earlier demo had left" in output
    assert "nothing of this demo is left running" in output
    until_equal(lambda: running(tmp_path), [], "nothing is left")  # a killed one that nobody waits for takes a moment
    killed = [kill.what for kill in report.kills]
    logs = ["logs-aggregate-0"] if "--all" in flows else []
    assert killed == ["subarray", "mirror", "controller", "alerts", "tables", *logs, "aggregate-1", "ingest-00"]
    shipped = {"logs"} if logs else set()
    assert report.recoveries.keys() == FAULTS.keys() - {"logs"} | shipped
    assert_mirrored(report)
    assert_shipped(report, expected=bool(logs))
    assert_archived(report, output)
    assert bool(report.orders) == bool(logs)
    assert all(line.agrees for line in report.accounts.get("blocks", ()))
    assert len(
        [line for line in report.accounts.get("blocks", ()) if line.what == "alarm processingBlockFailed"]
    ) == 2 * bool(logs)


def has_shippers() -> bool:
    """Return whether rsyslog and collectd can be had."""
    try:
        unpacked_packages(SHIPPERS, print)
    except InfraError as error:
        print(error)
        return False
    return True


def assert_ordered(report: DemoReport) -> None:
    """Where there are orders, subarrays were switched by them, and each Configure went down to a worker."""
    assert all(line.agrees for line in report.accounts.get("orders", ()))
    found = {(line.depth, line.name) for line in report.orders}
    below = {(1, "On"), (1, "Off"), (1, "Prepare"), (2, "Load")}
    assert found == ({(0, "Standby"), (0, "On"), (0, "Configure"), (0, "Off")} | below if found else set())


def assert_mirrored(report: DemoReport) -> None:
    """Each value of nine receptors is on the bus, or said to be missing; eight were mirrored while they were held."""
    found = {line.what: line.found for line in report.accounts["mirror"]}
    assert all(line.agrees for line in report.accounts["mirror"])
    assert (found["receptors that were mirrored"], found["of these, ended with their resources"]) == (9, 8)
    assert found["values pushed = mirrored + said to be missing"] > 9


def assert_shipped(report: DemoReport, *, expected: bool) -> None:
    """What rsyslog and collectd shipped is counted once, and one record of nonsense is a dead letter."""
    found = {line.what: line.found for line in report.accounts.get("logs", ())}
    assert all(line.agrees for line in report.accounts.get("logs", ()))
    assert bool(found) == expected
    if expected:
        assert found["logsDeadLettered"] == 1
        assert found["logsConsumed"] > found["records of ERROR on the topic"] > 0
        assert found["metricsConsumed"] > 0


def assert_archived(report: DemoReport, output: str) -> None:
    """Each record is in one file, and a replay of them comes to the same results."""
    assert len(report.accounts["archive"]) == 4
    assert all(line.agrees for line in report.accounts["archive"])
    assert [
        word for word in ("archived", "verified", "replayed equal", "report made") if f"s  {word}: " not in output
    ] == []


def assert_alerts(report: DemoReport) -> None:
    """The client got each alert and each action, though the device server was killed in between."""
    told = [(line.alarm, line.what) for line in report.alerts]
    for expected in (
        ("receiveOverrun@receive/0001", "ALARM ACTIVE"),
        ("pipelineFailed@buffer/0", "ALARM ACTIVE"),
        ("storageLow@buffer/0", "WARNING CLEARED"),
    ):
        assert told.count(expected) == 1
    for expected in (("receiveOverrun@receive/0001", "ACKNOWLEDGE"), ("coolantWarm@cooling/2", "SHELVE")):
        assert expected in told  # the operator repeats one that the bus did not confirm in time
    assert all(line.agrees for line in report.accounts["alerts"])


def assert_observed(report: DemoReport) -> None:
    """Both subarrays went through the whole plan, and everyone agrees about each command."""
    devices, plan = ("mid-sdp/subarray/01", "mid-sdp/subarray/02"), PLAN
    if report.orders:  # TM switches SDP as a whole
        plan = [step.command for step in SWITCHED_ON]
        switched = [line for line in report.commands if line.device == "mid-sdp/control/0"]
        assert [one.name for one in switched if one.outcome == "COMPLETED"] == ["Standby", "On", "Off"]
    assert len(report.accounts["commands"]) == 3 * (len(devices) + bool(report.orders))
    assert all(line.agrees for line in report.accounts["commands"])
    for device in devices:
        lines = [line for line in report.commands if line.device == device]
        assert all(line.id and line.outcome for line in lines)
        done = [line.name for line in lines if line.outcome == "COMPLETED"]
        assert [name for name in dict.fromkeys(done) if name in plan] == plan
    # The controller died while it was executing it: it is not executed again, but given anew.
    first, second, *_ = (line for line in report.commands if line.device == devices[0] and line.name == "Configure")
    assert (first.outcome, first.text.partition(":")[0], first.path[-1]) == ("FAILED", "interrupted", "FAULT")
    assert (first.executions, second.outcome) == (1, "COMPLETED")


def test_a_signal_clears_away_all_but_the_services_that_the_user_has_started(start: Start, tmp_path: Path) -> None:
    """A demo stops those of a demo that was killed, and no others."""
    local.up(local.LocalOptions(state_dir=tmp_path))
    process = start("--seconds", "60")
    wait_for(tmp_path, "services: some run already and will be left running: kafka, tango-db", process)
    wait_for(tmp_path, "devices registered", process)
    process.terminate()
    code, output = finish(process)
    assert code == 130, output
    assert "nothing of this demo is left running" in output
    assert "Traceback" not in output
    until_equal(lambda: [one.name for one in started_in(tmp_path / "demo")], [], "nothing of it is left")
    assert sorted(line.process for line in local.status(tmp_path) if line.alive) == ["kafka", "tango-db"]


def test_a_crash_in_a_library_is_a_failure_with_a_name_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    """D6: ZMQ ran out of sockets, Tango's library crashed, and broker and database ran on without a word."""
    process = start("--seconds", "60")
    wait_for(tmp_path, "devices registered", process)
    os.kill(player_of(process), signal.SIGSEGV)
    code, output = finish(process)
    assert code == 1, output
    assert "stopped: " in output
    (failure,) = report_of(tmp_path).failures
    assert failure.startswith("the demo's own process was ended by SIGSEGV")
    assert "The demo has failed: 1 failure, named above." in output
    until_equal(lambda: running(tmp_path), [], "nothing is left")
