"""The judge of histories accepts a correct one, and refuses each kind of wrong one; it is built by Go."""

import shutil
import subprocess
from pathlib import Path

import pytest

from facade.kernel.errors import InfraError
from sdp_facade_lab.fault_runs.history import _SOURCE, HistoryOperation, judge

# In one group: the judge is built once.
pytestmark = [
    pytest.mark.xdist_group("judge"),
    pytest.mark.skipif(shutil.which("go") is None, reason="the judge is written in Go, and there is no Go here"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one folder for all tests, so that the judge is built once."""
    fetched = subprocess.run(["go", "mod", "download"], cwd=_SOURCE, text=True, capture_output=True, check=False)
    if fetched.returncode:
        pytest.skip(f"Go cannot fetch Porcupine: {fetched.stderr.strip()}")
    return tmp_path_factory.mktemp("judge")


def operation(call: int, returned: int | None, op: str, id: str = "", **more) -> HistoryOperation:
    names = ("command", "attribute", "repeatable", "outcome", "executions", *["scan"] * (op == "give"))
    given = {name: more.pop(name) for name in names if name in more}
    into = {"op": op, "id": id, **given}
    return HistoryOperation(client=0, device="subarray", call=call, returned=returned, input=into, output=more)


def command(
    call: int, answer: int, seen: int | None, id: str, status: str = "COMPLETED", **more
) -> list[HistoryOperation]:
    """Return the operations of a command that was given."""
    return [
        operation(call, answer, "give", id, **more),
        operation(call, answer, "take", id),
        operation(call, seen, "end", id, status=status),
    ]


def read(call: int, obs_state: str) -> HistoryOperation:
    return operation(call, call + 5, "read", attribute="obsState", got=obs_state)


def look(call: int, status: str) -> HistoryOperation:
    return operation(call, call + 5, "look", "a", status=status)


def execute(call: int, *, repeatable: bool = False) -> HistoryOperation:
    return operation(call, call, "execute", "a", repeatable=repeatable)


ON = command(0, 10, 20, "on", command="On")
IDLE = [*ON, *command(30, 40, 50, "assign", command="AssignResources")]
READY = [*IDLE, *command(60, 70, 80, "configure", command="Configure")]
SCAN = command(100, 110, 200, "scan", command="Scan", scan=7)
BUSY = {"command": "End", "while": "scan"}

RIGHT = {
    "a scan": [*READY, *SCAN, read(210, "SCANNING"), operation(220, 221, "read", attribute="scanID", scan=7)],
    "a state on the way": [*IDLE, *command(60, 70, 200, "configure", command="Configure"), read(80, "CONFIGURING")],
    "the effect before the outcome": [
        *READY,
        *SCAN,
        read(120, "SCANNING"),
        *command(130, 140, 190, "e", command="EndScan"),
    ],
    "refusals": [
        *READY,
        operation(90, 95, "refuse", command="Restart", got="READY"),
        *SCAN,
        operation(120, 121, "refuse", **BUSY),
    ],
    "an abort": [
        *IDLE,
        *command(60, 70, 200, "configure", "ABORTED", command="Configure"),
        *command(80, 90, 200, "abort", command="Abort"),
        read(210, "ABORTED"),
    ],
    "FAULT after a failure": [*READY, *command(100, 110, 200, "scan", "FAILED", command="Scan"), read(210, "FAULT")],
    "a fate that nobody learned, with an effect": [
        *READY,
        *command(100, None, None, "scan", command="Scan"),
        read(300, "SCANNING"),
    ],
    "a fate that nobody learned, without one": [
        *READY,
        *command(100, None, None, "scan", command="Scan"),
        read(300, "READY"),
    ],
    "an expired command behind Off": [
        *READY,
        *command(100, 110, 300, "abort", "REJECTED", command="Abort"),
        *command(120, 130, 140, "off", command="Off"),
        operation(150, 160, "refuse", command="End", got="OFF"),
    ],
    "an effect that a controller reports behind the time-out": [
        *IDLE,
        *command(60, 70, 100, "abort", "TIMED_OUT", command="Abort", outcome="TIMED_OUT", executions=1),
        read(110, "ABORTING"),
        read(120, "ABORTED"),
        *command(130, 140, 150, "reset", command="ObsReset"),
        read(160, "IDLE"),
    ],
    "one outcome": [look(0, "SENT"), execute(10), look(20, "COMPLETED"), look(30, "COMPLETED")],
    "a repeatable command after a crash": [
        execute(10, repeatable=True),
        execute(20, repeatable=True),
        look(30, "COMPLETED"),
    ],
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_history_that_the_interface_allows_is_accepted(name: str, folder: Path) -> None:
    assert judge(RIGHT[name], folder) == ""


WRONG = {
    "an outcome without its effect": ([*READY, *SCAN, read(210, "READY")], "read obsState READY"),
    "a read of an old state": ([*READY, read(90, "IDLE")], "read obsState IDLE"),
    "no state on the way": (
        [*IDLE, *command(60, 70, 200, "c", command="Configure"), read(80, "IDLE")],
        "obsState IDLE",
    ),
    "a value of another command": (
        [*READY, *SCAN, operation(220, 221, "read", attribute="scanID", scan=6)],
        "read scanID 6",
    ),
    "a command that its state forbids": ([*ON, *command(30, 40, 50, "c", command="Configure")], "give Configure"),
    "two commands at once": (
        [*READY, *command(100, 110, None, "one", command="Scan"), *command(120, 130, None, "two", command="Scan")],
        "give Scan",
    ),
    "a refusal by an old state": (
        [*READY, operation(90, 95, "refuse", command="Scan", got="IDLE")],
        "refuse Scan IDLE",
    ),
    "a refusal in spite of the state": (
        [*READY, operation(90, 95, "refuse", command="Scan", got="READY")],
        "refuse Scan",
    ),
    "a refusal by a command that has ended": (
        [*READY, *SCAN, operation(210, 220, "refuse", **BUSY)],
        "refuse End scan",
    ),
    "an effect of an abort before its outcome": (
        [
            *IDLE,
            *command(60, 70, 200, "configure", command="Configure"),
            *command(80, 90, 190, "abort", command="Abort"),
            read(210, "READY"),
        ],
        "read obsState READY",
    ),
    "an abort where everything is off": (
        [
            *READY,
            *command(100, 110, 200, "off", command="Off"),
            *command(120, 130, 220, "abort", command="Abort"),
            operation(230, 231, "refuse", command="On", got="ABORTED"),
        ],
        "refuse On ABORTED",
    ),
    "an effect behind the time-out of a command that was never executed": (
        [*IDLE, *command(60, 70, 100, "a", "TIMED_OUT", command="Abort"), read(110, "ABORTING"), read(120, "ABORTED")],
        "read obsState ABORTED",
    ),
    "an effect behind the time-out, and behind that of the next command": (
        [
            *READY,
            *command(100, 110, 200, "scan", "TIMED_OUT", command="Scan", outcome="TIMED_OUT", executions=1),
            *command(210, 220, 230, "end", command="End"),
            read(240, "SCANNING"),
        ],
        "read obsState SCANNING",
    ),
    "a lost outcome": ([execute(10), look(20, "COMPLETED"), look(30, "SENT")], "look a SENT"),
    "two outcomes": ([execute(10), look(20, "COMPLETED"), look(30, "TIMED_OUT")], "look a TIMED_OUT"),
    "two executions": ([execute(10), execute(20), look(30, "COMPLETED")], "execute a"),
    "an execution behind the outcome": ([look(20, "TIMED_OUT"), execute(30)], "execute a"),
    "COMPLETED without an execution": ([look(20, "COMPLETED")], "look a COMPLETED"),
    "REJECTED and executed": ([execute(10), look(20, "REJECTED")], "look a REJECTED"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_history_that_the_interface_forbids_is_refused(name: str, folder: Path) -> None:
    history, words = WRONG[name]
    (folder / "history.html").unlink(missing_ok=True)
    said = judge(history, folder)
    assert said.startswith("not linearizable: ")
    assert words in said
    assert "<html" in (folder / "history.html").read_text()


def test_what_is_no_history_is_not_judged(folder: Path) -> None:
    with pytest.raises(InfraError, match='line 1: unknown operation "dance"'):
        judge([operation(0, 1, "dance")], folder)


def test_without_go_nothing_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfraError, match="there is no Go here"):
        judge(RIGHT["a scan"], tmp_path)
