"""What happened in a span of time, and one execution block from its first to its last record: archived and live."""

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from facade.archive.stores import FolderStore
from facade.flows.alerts.follower import FollowedAlert
from facade.flows.alerts.messages import CLEARED, Alert, alert_record
from facade.flows.blocks.source import BLOCKS, block_record
from facade.flows.commands.messages import AckMessage, CommandMessage, ack_record, command_id, command_record
from facade.flows.tables.messages import table_record
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock, SystemClock, utc_text
from facade.sdp.device_state import StateMessage, state_record
from facade.sdp.messages import ProcessingBlock, Table
from sdp_facade_clients.web import app as web_app
from sdp_facade_clients.web import site as web_site
from sdp_facade_clients.web.archived import ArchivedAnswers
from tests.support.archives import ICD, START, archive
from tests.support.deployment import MASTER
from tests.unit.test_history_archive import MINUTE, RATE, record
from tests.unit.test_moment_archive import SUBARRAY, at, put
from tests.unit.test_web_app import Asked
from tests.unit.test_web_feed import Scene
from tests.unit.test_web_history import DEVICES, client, site, validator

EB, NEXT = "eb-mvp01-20270115-00001", "eb-mvp01-20270115-00002"
OTHER = "mid-sdp/subarray/02"
TOPICS = ("history", "alerts", "commands", "command-acks", "commands-held", "state", "tables", BLOCKS)
LATENCY = RATE.replace("heapRate", "latencyP99")
B = START / 1e6
"""The begin [Unix s]."""


def report(log: MemoryLog, seconds: float, attribute: str, value: str, device: str = SUBARRAY) -> None:
    message = StateMessage(device=device, attribute=attribute, value=value, time=at(seconds), origin="controller")
    put(log, state_record(message), seconds)


def command(log: MemoryLog, seconds: float, name: str, device: str = SUBARRAY, eb: str = "") -> None:
    id = command_id(at(seconds), 1, name)
    given = CommandMessage(
        id=id, device=device, command=name, argument={"eb_id": eb}, transaction_id=f"t{seconds}", issued=at(seconds),
        not_after=at(seconds + 60), deadline=at(seconds + 90), ceiling=at(seconds + 200), repeatable=False,
        origin="subarray", operator="anna",
    )  # fmt: skip
    put(log, command_record(given, ()), seconds)
    ack = AckMessage(id=id, device=device, command=name, status="COMPLETED", time=at(seconds + 1), origin="controller")
    put(log, ack_record(ack), seconds + 1)


def observation(folder: Path) -> None:
    """Archive ten minutes with one execution block of subarray 01, from 100 s to 400 s, and another one behind it."""
    log = MemoryLog(dict.fromkeys(TOPICS, 1))
    for minute in range(11):
        if minute not in (3, 4):  # the server was down
            log.append(record(minute * MINUTE, "ON", f"{SUBARRAY}/State"))
        for name in (RATE, LATENCY, f"{MASTER}/heapRate"):
            log.append(record(minute * MINUTE, float(minute), name))
    for seconds, name, eb in ((50, "On", ""), (100, "AssignResources", EB), (400, "AssignResources", NEXT)):
        command(log, seconds, name, eb=eb)
    command(log, 150, "On", OTHER)
    for seconds, value in ((10, "EMPTY"), (102, "IDLE"), (103, "IDLE"), (200, "SCANNING"), (300, "IDLE")):
        report(log, seconds, "obsState", value)
    for seconds, value in ((10, ""), (102, EB), (200, EB), (402, NEXT)):
        report(log, seconds, "ebID", value)
    named = {"condition": "receiveOverrun", "source": "receive/0007"}
    for number, (seconds, state) in enumerate(((210, "ACTIVE"), (211, "ACTIVE"), (250, CLEARED)), 1):
        alert = Alert(**named, severity="ALARM", state=state, text="lost", raised_at=at(210), sequence=number)
        put(log, alert_record(alert), seconds)
    for seconds, product in ((220, "subarray/01/gains"), (221, "subarray/02/gains")):
        table = Table(
            table="cal-7", product=product, kind="gains", content_type="x", state="COMPLETE", size=9, received=9,
            sha256="0" * 64, sent_at=at(seconds), time=at(seconds),
        )  # fmt: skip
        put(log, table_record(table), seconds)
    for seconds, state in ((104, "RUNNING"), (450, "FINISHED")):
        block = ProcessingBlock(
            pb_id="pb-mvp01-20270115-00001", eb_id=EB, subarray=1, kind="batch", state=state, sequence=seconds,
            time=at(seconds),
        )  # fmt: skip
        put(log, block_record(block), seconds)
    archive(log, FolderStore(folder), *TOPICS)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    Asked.calls, Asked.error, Asked.commands = [], None, []
    monkeypatch.setattr(web_site, "AskedDevice", Asked)
    observation(tmp_path)
    made, clock = site(DEVICES), ManualClock(B + 3600)
    monkeypatch.setattr(web_app, "SystemClock", lambda: clock)
    return client(ArchivedAnswers(FolderStore(tmp_path), ICD, made, clock, 50), made)


def between(page: TestClient, begin: float, end: float, **more: str) -> Any:
    answer = page.get("/api/timeline", params={"begin": utc_text(at(begin)), "end": utc_text(at(end))} | more)
    assert answer.status_code == 200, answer.text
    validator("Timeline").validate(answer.json())
    return answer.json()


def test_a_span_has_what_happened_in_it(page: TestClient) -> None:
    found = between(page, 60, 390, device=SUBARRAY)
    assert [(one["device"], one["name"], one["status"]) for one in found["commands"]] == [
        (SUBARRAY, "AssignResources", "COMPLETED"), (OTHER, "On", "COMPLETED")
    ]  # fmt: skip
    assert found["obs_states"][SUBARRAY] == [
        [B + 60, "EMPTY"], [B + 102, "IDLE"], [B + 200, "SCANNING"], [B + 300, "IDLE"]
    ]  # fmt: skip
    assert [(one["time"] - B, one["state"], one["severity"]) for one in found["alarms"]] == [
        (210, "ACTIVE", "ALARM"), (250, CLEARED, "ALARM")
    ]  # fmt: skip
    assert [(one["product"], one["state"]) for one in found["tables"]] == [
        ("subarray/01/gains", "COMPLETE"), ("subarray/02/gains", "COMPLETE")
    ]  # fmt: skip
    assert found["gaps"] == [[B + 120, B + 300]]
    assert found["unknown"] == {}


def test_an_execution_block_is_from_its_assignment_to_the_end_of_its_last_processing_block(page: TestClient) -> None:
    listed = page.get("/api/execution-blocks").json()
    validator("ExecutionBlocks").validate(listed)
    assert [(one["id"], one["begin"] - B, one["end"] and one["end"] - B) for one in listed] == [
        (NEXT, 402, None), (EB, 102, 402)
    ]  # fmt: skip
    found = page.get("/api/execution-block", params={"id": EB}).json()
    validator("ExecutionBlock").validate(found)
    assert (found["begin"], found["end"], found["is_open"]) == (B + 100, B + 450, False)
    assert [one["name"] for one in found["commands"]] == ["AssignResources", "AssignResources"]
    assert [one["product"] for one in found["tables"]] == ["subarray/01/gains"], "of its subarray"
    assert [(one["time"] - B, one["state"]) for one in found["blocks"]] == [(104, "RUNNING"), (450, "FINISHED")]
    assert page.get("/api/execution-block", params={"id": NEXT}).json()["is_open"] is True


def test_an_execution_block_has_a_report_for_people_and_by_a_command(page: TestClient, tmp_path: Path) -> None:
    refused = page.get("/api/report", params={"id": EB})
    assert (refused.status_code, "nobody has signed in" in refused.text) == (403, True)
    assert page.post("/api/sign-in", json={"token": "operator-token-00001"}).status_code == 200
    answer = page.get("/api/report", params={"id": EB})
    assert answer.headers["content-disposition"].startswith("attachment")
    for said in (f"<h1>Execution block {EB}</h1>", "2027-01-15 08:01:40 UTC to 2027-01-15 08:07:30 UTC", "gains"):
        assert said in answer.text
    file = tmp_path / "block.html"
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--eb", EB, "-o", str(file)])
    assert (done.exit_code, f"Execution block {EB}" in file.read_text()) == (0, True)
    for more, said in ((["--night", "2027-01-15"], "either --eb"), ([], "near: ")):
        wrong = CliRunner().invoke(app, ["report", str(tmp_path), "--eb", "eb-none", *more])
        assert said in str(wrong.exception or wrong.output)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("timeline?begin=2027-01-15&end=2027-01-14", "expected an end up to 8 days after the begin, got -86400 s"),
        (
            "timeline?begin=2027-01-15&end=2027-01-16&device=a/b/c",
            "device: expected one of the deployment, got 'a/b/c'",
        ),
        ("execution-blocks?days=2", "days: expected one of 1, 7, 30, got '2'"),
        (
            "execution-block?id=eb-none",
            f"expected an execution block of the last 30 days, got 'eb-none'; known: {NEXT}",
        ),
    ],
)
def test_mistakes_are_told_in_words(page: TestClient, path: str, said: str) -> None:
    answer = page.get(f"/api/{path}")
    assert (answer.status_code, said in answer.json()["error"]) == (400, True), answer.text


def test_what_the_archive_lacks_is_named(tmp_path: Path) -> None:
    log = MemoryLog({"history": 1})
    log.append(record(0, "ON", f"{SUBARRAY}/State"))
    archive(log, FolderStore(tmp_path), "history")
    answers = ArchivedAnswers(FolderStore(tmp_path), ICD, site(DEVICES), SystemClock(), 50)
    unknown = answers.timeline.between(at(0), at(60))["unknown"]
    assert unknown["obs_states"] == "the archive has no records of the topic state"
    assert set(unknown) == {"commands", "obs_states", "alarms", "tables", "blocks"}


def test_without_an_archive_devices_tell_what_they_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    Asked.calls, Asked.error = [], None
    monkeypatch.setattr(web_site, "AskedDevice", Asked)
    clock = SystemClock()
    now, scene = clock.now(), Scene(clock)
    scene.change(2, attribute="obsState", device=SUBARRAY)
    scene.feed.step()
    alert = {"condition": "c", "source": "s", "severity": "ALARM", "state": "ACTIVE"}
    scene.feed.take_alert(FollowedAlert(sequence=1, previous=0, time=now, alert=alert))
    given = {"id": "1", "name": "On", "status": "COMPLETED", "submitted_time": utc_text(clock.now_us())}
    monkeypatch.setattr(Asked, "commands", [given])
    page = client(None, site({SUBARRAY: "SdpSubarray"}), scene)
    found = page.get("/api/timeline", params={"begin": iso(now - 60), "end": iso(now + 60)}).json()
    validator("Timeline").validate(found)
    assert [(one["device"], one["name"]) for one in found["commands"]] == [(SUBARRAY, "On")]
    assert [state for _, state in found["obs_states"][SUBARRAY]] == ["IDLE"]
    assert [one["condition"] for one in found["alarms"]] == ["c"]
    assert "no archive" in found["unknown"]["blocks"]


def iso(time: float) -> str:
    return utc_text(at(time - B))
