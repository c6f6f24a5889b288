"""Histories and past seconds over HTTP: by the OpenAPI document, by the requests of the pages, and what is refused."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012
from starlette.testclient import TestClient

from facade.archive.post_mortem import post_mortem_of
from facade.archive.stores import FolderStore
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.clock import SECOND, ManualClock, Time, utc_text
from sdp_facade_clients.web.app import make_app
from sdp_facade_clients.web.archived import ArchivedAnswers
from sdp_facade_clients.web.doors import Doors, read_tokens
from sdp_facade_clients.web.following import MOST_DEVICES
from sdp_facade_clients.web.openapi import document
from sdp_facade_clients.web.site import Site
from tests.archive.test_history_archive import RATE, archived, record
from tests.archive.test_moment_archive import SUBARRAY, TOPICS, at, night
from tests.clients.test_web_feed import Scene
from tests.support.archives import START
from tests.support.overview import ICD, MASTER

HOST = "http://localhost:8800"
DEVICE, _, ATTRIBUTE = RATE.rpartition("/")
DEVICES = {DEVICE: "SdpIngestNode", SUBARRAY: "SdpSubarray", MASTER: "SdpMaster"}
HISTORY = Path(__file__).parents[2] / "docs/how-to/history.md"


def client(answers: ArchivedAnswers | None, site: Site, scene: Scene | None = None) -> TestClient:
    doors = Doors(lambda: read_tokens("operator anna operator-token-00001", ""), ManualClock())
    app = make_app((scene or Scene()).feed, site, doors, hosts=["localhost"], answers=answers)
    return TestClient(app, base_url=HOST, headers={"Origin": HOST})


def site(devices: dict[str, str]) -> Site:
    return Site("db:10000", ICD, lambda: devices, ManualClock())


def test_an_alarm_leads_to_the_post_mortems_that_have_its_minutes(tmp_path: Path) -> None:
    """Of several alarms at once at one place, only the first one has its own."""
    for seconds, source in ((0, "a"), (600, "b")):
        (tmp_path / "kept" / post_mortem_of(("serverGone", source, at(seconds)), at(seconds)).name).mkdir(parents=True)
    made = site(DEVICES)
    answers = ArchivedAnswers(FolderStore(tmp_path), ICD, made, ManualClock(), 50, f"{tmp_path / 'kept'}")
    page = client(answers, made)

    def titles(**given: str) -> list[str]:
        return [one["title"] for one in page.get("/api/post-mortems", params=given).json()]

    assert titles() == ["serverGone-b", "serverGone-a"]
    alarm = {"condition": "serverGone", "source": "a"}
    assert titles(**alarm) == ["serverGone-a"]
    assert titles(**alarm | {"raised_at": utc_text(at(700))}) == ["serverGone-b", "serverGone-a"]
    assert titles(**alarm | {"raised_at": utc_text(at(900))}) == ["serverGone-a"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder = tmp_path_factory.mktemp("archive")
    night(folder)
    made = site(DEVICES)
    answers = ArchivedAnswers(FolderStore(folder), ICD, made, ManualClock(), 50)
    return client(answers, made)


def asked(page: TestClient, **more: Any) -> Any:
    given = {"device": DEVICE, "attribute": ATTRIBUTE, "begin": utc_text(at(0)), "end": utc_text(at(600))} | more
    return page.get("/api/history", params=given)


def validator(name: str) -> Draft202012Validator:
    root = document()
    schema = {"$ref": f"urn:openapi#/components/schemas/{name}"}
    registry = Registry().with_resource("urn:openapi", DRAFT202012.create_resource(root))
    return Draft202012Validator(schema, registry=registry)


TIMES = st.one_of(
    st.integers(-1000, 2000).map(lambda one: utc_text(at(one))),
    st.sampled_from(["", "now", "2027-01-15", "1960-01-01", "9999-12-31T23:59:59Z", "2027-01-15T08:01+02:00"]),
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "device": st.sampled_from([DEVICE, SUBARRAY, "no/such/device", "", "a,b"]),
        "attribute": st.lists(st.sampled_from([ATTRIBUTE, "obsState", "State", "none", ""]), max_size=10),
        "begin": TIMES,
        "end": TIMES,
        "points": st.one_of(st.integers(-1, 2001).map(str), st.sampled_from(["", "x", "9" * 30, "٣", "1e3"])),
    },
)


@given(REQUESTS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_answer_is_as_the_document_says(page: TestClient, request_: dict[str, Any]) -> None:
    got = page.get("/api/history", params=request_)
    documented = document()["paths"]["/api/history"]["get"]["responses"]
    assert str(got.status_code) in documented
    validator("History" if got.status_code == 200 else "Error").validate(got.json())


def test_the_document_is_given(page: TestClient) -> None:
    assert page.get("/api/openapi.json").json() == document()
    for path in ("/api/at", "/api/at?time=2027-01-15T08:05:00Z", "/api/at?time=2027-01-15T08:05:00Z&step=2&count=3"):
        validator("Moment").validate(page.get(path).json())
    assert [page.get(f"/api/at?{wrong}").status_code for wrong in ("count=61", "step=0", "step=11&count=60")] == [
        400
    ] * 3


def test_two_seconds_are_compared(page: TestClient) -> None:
    given = {"time": "2027-01-15T08:05:10Z", "against": "2027-01-15T08:03:00Z"}
    found = page.get("/api/differences", params=given).json()
    validator("Differences").validate(found)
    assert (found["compared"], found["different"], found["what"]) == (2, 2, "another time")
    assert (found["time"], found["against"]) == (START / 1e6 + 310, START / 1e6 + 180)
    assert found["rows"] == [
        {"device": SUBARRAY, "attribute": "obsState", "unit": "", "moved": 1.0,
         "before": {"value": "IDLE", "quality": "VALID"}, "after": {"value": "SCANNING", "quality": "VALID"}},
        {"device": DEVICE, "attribute": ATTRIBUTE, "unit": "records/s", "moved": 0.4,
         "before": {"value": 3.0, "quality": "VALID"}, "after": {"value": 5.0, "quality": "VALID"}},
    ]  # fmt: skip
    for wrong in ({}, {"against": "soon"}, {"against": "last-scan"}, {"against": "yesterday"}):
        got = page.get("/api/differences", params=wrong)
        assert got.status_code == 400
        validator("Error").validate(got.json())


def test_a_history_is_thinned_to_rows(page: TestClient) -> None:
    found = asked(page, points=2, attribute=[ATTRIBUTE]).json()
    assert found["bin"] == 300
    (series,) = found["series"]
    assert {name: series[name] for name in ("device", "attribute", "unit")} == {
        "device": DEVICE, "attribute": ATTRIBUTE, "unit": "records/s"
    }  # fmt: skip
    assert series["rows"][0] == {
        "time": utc_text(at(0)), "min": 0.0, "max": 4.0, "mean": 2.0, "last": 4.0, "quality": "VALID"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"points": 2001}, "points: expected 1 to 2000, got '2001'"),
        ({"attribute": []}, f"expected a device, and 1 to 8 times attribute, got {DEVICE} with 0 attributes"),
        ({"end": "2027-01-24T08:00Z"}, "expected an end up to 691200 s after the begin"),
        ({"begin": "noon"}, "begin: expected a time such as 2027-01-14T18:00"),
        ({"attribute": "none"}, "attribute: expected one of"),
        ({"device": "no/such/device"}, "device: expected one of"),
    ],
)
def test_mistakes_are_told_in_words(page: TestClient, more: dict[str, Any], said: str) -> None:
    got = asked(page, **more)
    assert got.status_code == 400
    assert said in got.json()["error"]


def zulu(time: Time) -> str:
    return f"{utc_text(time)[:23]}Z"


def test_the_requests_of_the_page_about_histories_work(page: TestClient) -> None:
    """Grafana puts the times in place of its variables."""
    urls = re.findall(r"^http://localhost:8800\S+$", HISTORY.read_text(), re.MULTILINE)
    assert len(urls) == 3
    for url in urls:
        for variable, time in (("from", at(0)), ("to", at(600))):
            url = url.replace(f"${{__{variable}:date:iso}}", zulu(time))
        for pattern, time in ((r"begin=2[^&]*", at(0)), (r"end=2[^&]*", at(600)), (r"time=2[^&]*", at(300))):
            url = re.sub(pattern, lambda found, time=time: f"{found[0].partition('=')[0]}={zulu(time)}", url)
        got = page.get(url.removeprefix(HOST))
        assert got.status_code == 200, got.text
        if "history" in url:
            rows = got.json()["series"][0]["rows"]
            assert {"time", "min", "mean", "max"} < rows[0].keys()
            assert any(row["mean"] == 5.0 for row in rows)


def test_a_second_of_the_past_has_all_that_the_page_shows(page: TestClient) -> None:
    found = page.get("/api/at", params={"time": utc_text(at(30))}).json()
    assert [one["state"] for one in found["alarms"]] == ["SHLVD"]
    assert found["nodes"] == {ATTRIBUTE: [None, 0.0]}
    assert found["judgement"] is None
    assert found["unknown"]["judgement"] == "the archive has no values of SdpMaster of that second"
    assert found["begin"] == START / 1e6
    assert "waiting" in found["unknown"]
    assert page.get("/api/at").json()["time"] == START / 1e6 + 600
    late = page.get("/api/at", params={"time": "2027-01-16"})
    assert late.status_code == 400
    assert late.json()["error"].startswith("expected a time from 2027-01-15T08:00:00")


def test_of_many_devices_of_a_class_one_is_given_whole(tmp_path: Path) -> None:
    nodes = [f"mid-sdp/ingest/{node:04d}" for node in range(MOST_DEVICES + 1)]
    names = ("State", "Status")
    archived(FolderStore(tmp_path), [record(0, name, f"{node}/{name}") for node in nodes for name in names])
    made = site(dict.fromkeys(nodes, "SdpIngestNode"))
    answers = ArchivedAnswers(FolderStore(tmp_path), ICD, made, ManualClock(), 50)
    values = answers.at("", nodes[7])["values"]
    assert [len(values[node]) for node in nodes] == [2 if node == nodes[7] else 1 for node in nodes]


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> ArchivedAnswers:
    """Ten minutes in which alarms and commands change, values come and go, and one class has many devices."""
    folder, log = tmp_path_factory.mktemp("changing"), MemoryLog(dict.fromkeys(TOPICS, 1))
    nodes = [f"mid-sdp/ingest/{node:04d}" for node in range(MOST_DEVICES + 1)]
    for second in range(0, 600, 7):
        some = {f"{nodes[0]}/State": "ON", f"{nodes[second % 5]}/State": "STANDBY" if second > 300 else "ON"}
        some |= {RATE: second // 20, f"{nodes[second % 64]}/heapsLate": float(second)}
        some |= {f"{MASTER}/healthState": "OK"} if second % 200 < 60 else {}
        for name, value in some.items():
            log.append(record(second * SECOND, value, name))
        log.append(
            replace(record(second * SECOND, 0, f"{SUBARRAY}/ebID"), value=b"no message" if second % 2 else b"{}")
        )
    night(folder, log)
    made = site(DEVICES | dict.fromkeys(nodes, "SdpIngestNode"))
    return ArchivedAnswers(FolderStore(folder), ICD, made, ManualClock(), 50)


def after(shown: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Return what is shown after a step, as the page does, without devices and figures of which nothing is known."""

    def joined(name: str, before: dict[str, Any]) -> dict[str, Any]:
        names = before.keys() | step[name].keys()
        found = {one: before.get(one, {}) | step[name].get(one, {}) for one in names}
        known = {one: {at: value for at, value in some.items() if value is not None} for one, some in found.items()}
        return {one: some for one, some in known.items() if some}

    nodes = {name: row if isinstance(row, dict) else dict(enumerate(row)) for name, row in shown["nodes"].items()}
    return shown | step | {"values": joined("values", shown["values"]), "nodes": joined("nodes", nodes), "steps": []}


@given(st.integers(0, 689), st.integers(1, 100), st.integers(1, 60))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_step_is_what_its_second_shows_alone(changing: ArchivedAnswers, first: int, step: int, count: int) -> None:
    count = min(count, 600 // step)
    begun = changing.at(utc_text(at(first)), DEVICE, f"{step}", f"{count}")
    shown, nothing = begun, {"values": {}, "nodes": {}}
    for second, one in zip(range(first, 10**6, step), [nothing, *begun["steps"]], strict=False):
        shown = after(shown, one)
        assert shown == after(changing.at(utc_text(at(second)), DEVICE), nothing)
    assert len(begun["steps"]) + 1 == min(count, -(-(690 - first) // step))  # an attribute is known for 90 s


def test_nobody_acts_in_the_past(page: TestClient) -> None:
    assert page.post("/api/sign-in", json={"token": "operator-token-00001"}).status_code == 200
    command = {"device": SUBARRAY, "command": "End", "argument": ""}
    for path in ("command", "decide", "alarm", "admin-mode", "redrive", "check"):
        got = page.post(f"/api/{path}?at=2027-01-15T08:00:30Z", json=command)
        assert got.status_code == 409, path
        assert got.json()["error"] == (
            "at: expected a page that shows now, got one that shows 2027-01-15T08:00:30Z; nothing was done"
        )


def test_a_store_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(topic: str = "*") -> list[str]:
        raise OSError("no route to the store")

    store = FolderStore(tmp_path)
    monkeypatch.setattr(store, "names", names)
    got = client(ArchivedAnswers(store, ICD, site(DEVICES), ManualClock(), 50), site(DEVICES)).get("/api/at")
    assert (got.status_code, got.json()) == (502, {"error": "no route to the store"})


def test_a_page_without_an_archive_says_so() -> None:
    page = client(None, site(DEVICES))
    assert page.get("/api/site").json()["archive"] is False
    for path in ("at", "differences", "history"):
        got = page.get(f"/api/{path}")
        assert got.status_code == 404
        assert "--archive FOLDER" in got.json()["error"]
