"""What happened in a span of time, and one execution block from its first to its last record: archived and live."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from facade.archive import timeline
from facade.archive.stores import FolderStore
from facade.flows.alerts.follower import FollowedAlert
from facade.flows.alerts.messages import CLEARED, Alert, alert_record
from facade.flows.blocks.source import BLOCKS, block_record
from facade.flows.commands.messages import AckMessage, CommandMessage, ack_record, command_id, command_record
from facade.flows.tables.messages import table_record
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock, SystemClock, utc_text
from facade.kernel.errors import FacadeError
from facade.kernel.reading import Quality
from facade.sdp.messages import ProcessingBlock, Table
from sdp_facade_clients.events import DeviceEvent
from sdp_facade_clients.web import app as web_app
from sdp_facade_clients.web import site as web_site
from sdp_facade_clients.web.archived import ArchivedAnswers
from sdp_facade_clients.web.timeline import Timelines
from tests.archive.test_history_archive import MINUTE, RATE, record
from tests.archive.test_moment_archive import SUBARRAY, at, put, report
from tests.clients.test_web_app import Asked
from tests.clients.test_web_feed import Scene
from tests.clients.test_web_history import DEVICES, client, site, validator
from tests.support.archives import ICD, START, archive
from tests.support.overview import MASTER

EB, NEXT = "eb-mvp01-20270115-00001", "eb-mvp01-20270115-00002"
OTHER = "mid-sdp/subarray/02"
TOPICS = ("history", "alerts", "commands", "command-acks", "commands-held", "state", "tables", BLOCKS)
LATENCY = RATE.replace("heapRate", "latencyP99")
B = START / 1e6
"""The begin [Unix s]."""


def command(
    log: MemoryLog, seconds: float, name: str, device: str = SUBARRAY, eb: str = "", operator: str = "anna"
) -> None:
    id = command_id(at(seconds), 1, name)
    given = CommandMessage(
        id=id, device=device, command=name, argument={"eb_id": eb}, transaction_id=f"t{seconds}", issued=at(seconds),
        not_after=at(seconds + 60), deadline=at(seconds + 90), ceiling=at(seconds + 200), repeatable=False,
        origin="subarray", operator=operator,
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


def asked(
    monkeypatch: pytest.MonkeyPatch, store: FolderStore | None, scene: Scene, commands: Sequence[dict[str, Any]] = ()
) -> Timelines:
    """Return the timelines of a page with devices that are stood for, at the time of a scene."""
    monkeypatch.setattr(web_site, "AskedDevice", Asked)
    for name, value in (("calls", []), ("error", None), ("commands", commands)):
        monkeypatch.setattr(Asked, name, value, raising=False)
    made = site(DEVICES)
    answers = None if store is None else ArchivedAnswers(store, ICD, made, scene.clock, 50)
    return Timelines(scene.feed, made, scene.clock, answers.timeline if answers else None)


def holds(monkeypatch: pytest.MonkeyPatch, eb: str, since: float) -> None:
    """Let each device say which execution block it has."""
    seen = DeviceEvent(value=eb, quality=Quality.VALID, time=B + since, received=B + since)
    monkeypatch.setattr(Asked, "event", lambda *_: seen)


def spans(blocks: Sequence[dict[str, Any]]) -> list[tuple[str, float, float | None]]:
    return [(one["id"], one["begin"] - B, one["end"] and one["end"] - B) for one in blocks]


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
    assert spans(listed["blocks"]) == [(NEXT, 402, None), (EB, 102, 402)]
    found = page.get("/api/execution-block", params={"id": EB}).json()
    validator("ExecutionBlock").validate(found)
    assert (found["begin"], found["end"], found["is_open"]) == (B + 100, B + 450, False)
    assert [one["name"] for one in found["commands"]] == ["AssignResources", "AssignResources"]
    assert [one["product"] for one in found["tables"]] == ["subarray/01/gains"], "of its subarray"
    assert [(one["time"] - B, one["state"]) for one in found["blocks"]] == [(104, "RUNNING"), (450, "FINISHED")]
    assert page.get("/api/execution-block", params={"id": NEXT}).json()["is_open"] is True


@pytest.mark.needs("nexus")
def test_of_an_id_that_is_used_again_the_newest_use_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from facade.archive.nexus import find_time

    log = MemoryLog({"commands": 1, "state": 1, "processing-blocks": 1, "command-acks": 1})
    refused, again = 1300, 2500
    for seconds in (100, refused, 2000, again):
        command(log, seconds, "AssignResources", eb=EB)
    for seconds, value in ((10, "null"), (102, EB), (400, "null"), (2002, EB), (2100, EB), (2300, "null")):
        report(log, seconds, "ebID", value)
    archive(log, store := FolderStore(tmp_path), "commands", "state", "processing-blocks", "command-acks")
    timelines = asked(monkeypatch, store, Scene(ManualClock(B + 9000)))
    assert spans(timelines.execution_blocks("")["blocks"]) == [(EB, 2002, 2300), (EB, 102, 400)]
    found = timelines.execution_block(EB)
    assert (found["begin"] - B, found["end"] - B, len(found["commands"])) == (2000, 2300, 1)
    assert find_time(store, EB) == (at(2000), at(2300) + 1000)


def test_without_its_archive_a_page_tells_why_and_what_the_devices_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observation(tmp_path)
    for file in tmp_path.rglob("*.parquet"):
        file.write_bytes(b"")
    given = {"id": "1", "name": "AssignResources", "status": "COMPLETED", "submitted_time": utc_text(at(500))}
    timelines = asked(monkeypatch, FolderStore(tmp_path), Scene(ManualClock(B + 600)), [given])
    holds(monkeypatch, EB, 502)
    found = timelines.between(SUBARRAY, utc_text(at(0)), utc_text(at(600)))
    assert {one["device"] for one in found["commands"]} == {SUBARRAY, MASTER}
    listed = timelines.execution_blocks("")
    assert spans(listed["blocks"]) == [(EB, 500, None)]
    one = timelines.execution_block(EB)
    assert (one["is_open"], one["begin"] - B) == (True, 500)
    for answer in (found, listed, one):
        assert "expected a whole file of an archive" in answer["unknown"]["archive"]


def test_nothing_of_now_is_added_to_a_post_mortem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observation(tmp_path)
    given = {"id": "1", "name": "AssignResources", "status": "COMPLETED", "submitted_time": utc_text(at(500))}
    scene = Scene(ManualClock(B + 600))
    asked(monkeypatch, None, scene, [given])
    made = site(DEVICES)
    archive = ArchivedAnswers(FolderStore(tmp_path), ICD, made, scene.clock, 50).timeline
    kept = Timelines(scene.feed, made, scene.clock, archive, is_kept=True).between(
        "", utc_text(at(0)), utc_text(at(600))
    )
    assert "1" not in [one["id"] for one in kept["commands"]]
    assert Asked.calls == []


def test_a_device_is_asked_for_its_commands_once_for_all_and_not_while_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(ManualClock(B + 600))
    timelines = asked(monkeypatch, None, scene)

    def question(end: float) -> tuple[list[str], dict[str, str]]:
        Asked.calls = []
        unknown = timelines.between("", utc_text(at(0)), utc_text(at(end)))["unknown"]
        return [device for device, *_ in Asked.calls], unknown

    assert question(600)[0] == [MASTER, SUBARRAY]
    assert question(599)[0] == [], "asked a moment ago"
    scene.recorded.gone = {SUBARRAY: B}
    scene.feed.step()
    scene.clock.sleep(10)
    devices, unknown = question(600)
    assert devices == [MASTER]
    assert unknown["commands"] == f"{SUBARRAY} does not answer: its server is silent"
    Asked.error = FacadeError("hangs")
    scene.clock.sleep(10)
    assert f"{MASTER} does not answer: hangs" in question(600)[1]["commands"]
    Asked.error = None
    assert question(600)[0] == [], "nor is one that has not answered a moment ago"


def test_archived_states_hold_and_live_ones_come_behind_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observation(tmp_path)
    scene, labels = Scene(clock := ManualClock(B + 50)), site(DEVICES).labels("ObsState")
    for seconds, state in ((50, "EMPTY"), (110, "IDLE"), (208, "SCANNING"), (308, "IDLE"), (500, "SCANNING")):
        clock.sleep(B + seconds - clock.now())
        scene.change(labels.index(state), attribute="obsState", device=SUBARRAY)
        scene.feed.step()
    clock.sleep(100)
    span = utc_text(at(90)), utc_text(at(600))
    exact = [(102, "IDLE"), (200, "SCANNING"), (300, "IDLE"), (500, "SCANNING")]
    for store, told in (
        (FolderStore(tmp_path), [(90, "EMPTY"), *exact]),
        (None, [(90, "EMPTY"), (110, "IDLE"), (208, "SCANNING"), (308, "IDLE"), (500, "SCANNING")]),
    ):
        found = asked(monkeypatch, store, scene).between("", *span)["obs_states"][SUBARRAY]
        assert [(time - B, state) for time, state in found] == told


@pytest.mark.parametrize(
    ("value", "since", "known"),
    [
        ("null", 700, [(NEXT, 402, 700), (EB, 102, 402)]),
        (EB, 700, [(EB, 700, None), (NEXT, 402, 700), (EB, 102, 402)]),
        (NEXT, 402, [(NEXT, 402, None), (EB, 102, 402)]),
        (EB, 102, [(NEXT, 402, None), (EB, 102, 402)]),
    ],
    ids=["left", "used again", "the same", "behind the archive"],
)
def test_a_device_knows_the_end_of_a_block_that_no_file_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, since: float, known: list[Any]
) -> None:
    observation(tmp_path)
    timelines = asked(monkeypatch, FolderStore(tmp_path), Scene(ManualClock(B + 900)))
    holds(monkeypatch, value, since)
    assert spans(timelines.execution_blocks("")["blocks"]) == known
    found = timelines.execution_block(known[0][0])
    assert (found["is_open"], found["end"] - B) == (known[0][2] is None, known[0][2] or 901)


def test_what_is_cut_is_told_and_of_a_block_only_its_own_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observation(tmp_path)
    monkeypatch.setattr(timeline, "MOST", 1)
    timelines = asked(monkeypatch, FolderStore(tmp_path), Scene(ManualClock(B + 3600)))
    found = timelines.between("", utc_text(at(0)), utc_text(at(390)))
    assert [(one["device"], one["name"]) for one in found["commands"]] == [(OTHER, "On")], "the newest one"
    assert [one["product"] for one in found["tables"]] == ["subarray/02/gains"]
    cut = "only the newest 1 are given; ask for a shorter time"
    assert found["unknown"] == {"commands": cut, "tables": cut, "alarms": cut}
    block = timelines.execution_block(EB)
    assert [one["product"] for one in block["tables"]] == ["subarray/01/gains"]
    assert [one["device"] for one in block["commands"]] == [SUBARRAY]
    assert "tables" not in block["unknown"]


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
    (tmp_path / "empty").mkdir()
    answers = ArchivedAnswers(FolderStore(tmp_path / "empty"), ICD, site(DEVICES), SystemClock(), 50)
    unknown = answers.timeline.between(at(0), at(60), SUBARRAY)["unknown"]
    assert unknown["gaps"] == "the archive has no records of the topic history"


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


def test_a_source_that_repeats_an_alert_raises_its_alarm_once() -> None:
    """Each new text of a standing alarm was shown as another one, until the archive had it."""
    clock = ManualClock(B)
    scene = Scene(clock)
    for number, back in enumerate(range(1200, 0, -10), 1):
        entry = {"condition": "deadLetters", "source": "ingest.heaps", "severity": "WARNING", "state": "ACTIVE"}
        entry |= {"text": f"{number} records"}
        scene.feed.take_alert(FollowedAlert(sequence=number, previous=number - 1, time=B - back, alert=entry))
    scene.feed.step()
    timelines = Timelines(scene.feed, site(DEVICES), clock, None)

    def times(since: float) -> list[float]:
        found = timelines.between("", utc_text(at(-since)), utc_text(at(0)))
        return [one["time"] for one in found["alarms"]]

    assert times(1800) == [B - 1200]
    assert times(600) == [], "it was raised before"
