"""Displays that all browsers share: versions, conflicts, bounds, and that no text of a browser becomes a path."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from facade.kernel.clock import ManualClock
from facade.kernel.errors import ConfigError, InfraError
from facade.sdp import files
from sdp_facade_clients.web import displays as of_displays
from sdp_facade_clients.web.app import make_app
from sdp_facade_clients.web.displays import DEEPEST, LARGEST, ROOT, VERSIONS, Displays
from sdp_facade_clients.web.doors import Doors, PageRole, Person, Rate, RequestRefused, read_tokens
from sdp_facade_clients.web.openapi import document
from sdp_facade_clients.web.site import Site
from tests.clients.test_web_app import DEVICES, HOST, TOKENS, sign_in
from tests.clients.test_web_feed import Scene
from tests.clients.test_web_history import validator
from tests.support.archives import ICD

ANNA, BEN = Person("anna", PageRole.OPERATOR), Person("ben", PageRole.OPERATOR)
PLOT = {"name": "Rates", "type": "telemetry.plot.overlay", "composition": []}
FOLDER = {"name": "Night shift", "type": "folder", "composition": []}


@pytest.fixture
def displays(tmp_path: Path) -> Displays:
    return Displays(tmp_path / "displays", ManualClock(1000.0))


@pytest.fixture
def page(displays: Displays) -> Iterator[TestClient]:
    with TestClient(app(displays), base_url=HOST, headers={"Origin": HOST}) as client:
        yield client


def app(displays: Displays | None) -> Any:
    doors = Doors(lambda: read_tokens(TOKENS, ""), ManualClock())
    doors.acts = doors.questions = Rate(1e9, 1e9, ManualClock())
    return make_app(
        Scene().feed, Site("db:10000", ICD, lambda: DEVICES, ManualClock()), doors, hosts=["localhost"],
        displays=displays,
    )  # fmt: skip


def kept(displays: Displays, id: str = "plot-1") -> tuple[int, str]:
    found = displays.read(id)
    return found["version"], found["model"]["name"]


def test_a_display_is_there_after_a_restart_and_older_versions_come_back(displays: Displays, tmp_path: Path) -> None:
    assert displays.read("plot-1") == {"id": "plot-1", "version": 0, "person": "", "time": None, "model": None}
    displays.save(ANNA, "plot-1", 0, PLOT)
    displays.save(BEN, "plot-1", 1, PLOT | {"name": "Rates of heaps"})
    again = Displays(tmp_path / "displays", ManualClock())
    assert kept(again) == (2, "Rates of heaps")
    assert again.versions("plot-1") == [
        {"id": "plot-1", "version": 2, "person": "ben", "time": 1000.0, "name": "Rates of heaps"},
        {"id": "plot-1", "version": 1, "person": "anna", "time": 1000.0, "name": "Rates"},
    ]
    again.save(ANNA, "plot-1", 2, again.read("plot-1", "1")["model"])
    assert kept(again) == (3, "Rates")


def test_a_change_of_what_somebody_else_has_changed_is_refused(displays: Displays) -> None:
    displays.save(ANNA, "plot-1", 0, PLOT)
    displays.save(BEN, "plot-1", 1, PLOT | {"name": "of Ben"})
    for base in (0, 1, 7, -1):
        with pytest.raises(
            RequestRefused, match=r"'of Ben' was changed by ben at 1970-01-01 .*version 2.* nothing was"
        ):
            displays.save(ANNA, "plot-1", base, PLOT | {"name": "of Anna"})
    assert kept(displays) == (2, "of Ben")


def test_of_two_servers_that_save_at_once_one_is_refused(
    displays: Displays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that version 1 is the newest, and then write version 2."""
    displays.save(ANNA, "plot-1", 0, PLOT)
    servers = [displays, Displays(tmp_path / "displays", ManualClock())]
    seen, refused = threading.Barrier(2), []

    def write(path: Path, content: bytes) -> None:
        seen.wait()
        files.write_new(path, content)

    def save(server: Displays, name: str) -> None:
        try:
            server.save(Person(name, PageRole.OPERATOR), "plot-1", 1, PLOT | {"name": name})
        except RequestRefused as error:
            refused.append(str(error))

    monkeypatch.setattr(of_displays, "write_new", write)
    threads = [threading.Thread(target=save, args=one) for one in zip(servers, ("carl", "dora"), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    version, winner = kept(displays)
    assert version == 2
    assert len(refused) == 1
    assert f"was changed by {winner} at" in refused[0]


def test_two_people_add_displays_to_one_folder(displays: Displays) -> None:
    """Each has opened the folder before the other has added a display, or removed one."""

    def members(*names: str) -> dict[str, Any]:
        return FOLDER | {
            "composition": [{"namespace": "shared", "key": name} for name in names],
            "modified": len(names),
        }

    displays.save(ANNA, ROOT, 0, members("a", "b"))
    displays.save(ANNA, ROOT, 1, members("b", "c"))
    found = displays.save(BEN, ROOT, 1, members("a", "b", "d"))
    assert [one["key"] for one in found["model"]["composition"]] == ["b", "c", "d"]
    assert displays.save(BEN, ROOT, 0, members("e"))["version"] == 4  # the folder was empty when it was opened
    assert [one["key"] for one in displays.read(ROOT)["model"]["composition"]] == ["b", "c", "d", "e"]
    with pytest.raises(RequestRefused, match="changed by ben"):
        displays.save(ANNA, ROOT, 1, members("a") | {"name": "Another name"})


def test_the_same_again_is_no_version(displays: Displays) -> None:
    displays.save(ANNA, "plot-1", 0, PLOT | {"persisted": 1})
    assert displays.save(ANNA, "plot-1", 1, PLOT | {"persisted": 2, "modified": 2})["version"] == 1


def test_number_and_size_are_bounded(displays: Displays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(VERSIONS + 3):
        displays.save(ANNA, "plot-1", number, PLOT | {"name": f"{number}"})
    versions = displays.versions("plot-1")
    assert [versions[0]["version"], versions[-1]["version"], len(versions)] == [VERSIONS + 3, 4, VERSIONS]
    with pytest.raises(ConfigError, match="version: expected one that is kept"):
        displays.read("plot-1", "1")
    monkeypatch.setattr(of_displays, "MOST", 2)
    displays.save(ANNA, "plot-2", 0, PLOT)
    with pytest.raises(RequestRefused, match="expected at most 2 objects"):
        displays.save(ANNA, "plot-3", 0, PLOT)
    displays.save(ANNA, "plot-2", 1, PLOT | {"name": "changed"})
    assert len([*(tmp_path / "displays").rglob("*.json")]) == VERSIONS + 2
    assert not [*(tmp_path / "displays").rglob("*.part")]


def nested(depth: int) -> dict[str, Any]:
    found: Any = 1
    for _ in range(depth - 1):
        found = [found]
    return PLOT | {"configuration": found}


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (PLOT | {"notes": "x" * LARGEST}, f"at most {LARGEST} bytes"),
        (nested(DEEPEST), f"at most {DEEPEST} objects and lists"),
        (PLOT | {"configuration": [{"__proto__": {"isAdmin": True}}]}, "no field __proto__"),
        ({"type": "folder"}, "a name of 1 to 200"),
        (PLOT | {"name": ""}, "a name of 1 to 200"),
        (PLOT | {"type": 7}, "a type of 1 to 200"),
        (PLOT | {"composition": None}, "a list of members"),
    ],
)
def test_what_is_no_display_is_refused(displays: Displays, tmp_path: Path, model: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        displays.save(ANNA, "plot-1", 0, model)
    displays.save(ANNA, "plot-1", 0, nested(DEEPEST - 1))
    assert kept(displays)[0] == 1


@pytest.mark.parametrize("id", ["", "..", "../plot", "/etc/passwd", "a/b", "a\0b", "a.json", "x" * 65, "é", "a\n"])
def test_no_text_of_a_browser_is_a_path(displays: Displays, tmp_path: Path, id: str) -> None:
    for call in (
        lambda: displays.read(id),
        lambda: displays.versions(id),
        lambda: displays.save(ANNA, id, 0, PLOT),
    ):
        with pytest.raises(ConfigError, match="id: expected 1 to 64 letters"):
            call()
    for number in ("../1", "0", "-1", "٣", "1.5"):
        with pytest.raises(ConfigError, match="version: expected one that is kept"):
            displays.read("plot-1", number)
    displays.save(ANNA, "plot-1", 0, PLOT)
    (file,) = (tmp_path / "displays").rglob("*.json")
    assert "plot" not in str(file.relative_to(tmp_path / "displays"))


def test_a_damaged_file_is_named_and_never_taken_for_no_display(displays: Displays, tmp_path: Path) -> None:
    displays.save(ANNA, "plot-1", 0, PLOT)
    displays.save(ANNA, "plot-1", 1, PLOT | {"name": "newer"})
    newest = max((tmp_path / "displays").rglob("*.json"))
    newest.write_bytes(b"{")
    for call in (lambda: displays.read("plot-1"), lambda: displays.save(ANNA, "plot-1", 0, PLOT)):
        with pytest.raises(InfraError, match="expected version 2 of display plot-1"):
            call()
    newest.unlink()
    assert kept(displays) == (1, "Rates")


def test_a_folder_that_cannot_be_read_is_not_taken_for_no_display(displays: Displays, tmp_path: Path) -> None:
    """Without rights, or while the storage fails, a display must not look as if nobody had made it."""
    displays.save(ANNA, "plot-1", 0, PLOT)
    (folder,) = (tmp_path / "displays").iterdir()
    (folder / "00000001 (copy).json").write_bytes(b"{")  # by an administrator
    assert kept(displays) == (1, "Rates")
    folder.rename(tmp_path / "away")
    folder.touch()
    for call in (lambda: displays.read("plot-1"), lambda: displays.versions("plot-1")):
        with pytest.raises(NotADirectoryError):
            call()


def test_operators_change_displays_and_everybody_sees_them(page: TestClient) -> None:
    change = {"id": "plot-1", "version": 0, "model": PLOT}
    assert page.get("/api/site").json()["displays"] is True
    assert page.post("/api/display", json=change).status_code == 403
    sign_in(page, "olga")
    assert page.post("/api/display", json=change).status_code == 403
    sign_in(page, "anna")
    saved = page.post("/api/display", json=change)
    assert saved.status_code == 200
    assert saved.json()["person"] == "anna"
    page.cookies.clear()
    assert page.get("/api/display", params={"id": "plot-1"}).json() == saved.json()
    validator("Display").validate(saved.json())
    validator("Display").validate(page.get("/api/display?id=other").json())
    validator("DisplayVersions").validate(page.get("/api/display-versions?id=plot-1").json())


def test_what_was_saved_is_read_at_once(page: TestClient) -> None:
    """Answers to other questions are shared by browsers for half a second."""
    sign_in(page, "anna")
    for number in range(3):
        model = PLOT | {"name": f"name {number}"}
        page.post("/api/display", json={"id": "plot-1", "version": number, "model": model})
        assert page.get("/api/display?id=plot-1").json()["model"] == model


def test_a_page_without_a_folder_says_so() -> None:
    with TestClient(app(None), base_url=HOST, headers={"Origin": HOST}) as page:
        sign_in(page, "anna")
        assert page.get("/api/site").json()["displays"] is False
        for got in (
            page.get("/api/display?id=a"),
            page.get("/api/display-versions?id=a"),
            page.post("/api/display", json={"id": "a", "version": 0, "model": PLOT}),
        ):
            assert got.status_code == 404
            assert "--displays FOLDER" in got.json()["error"]


IDS = st.sampled_from(["plot-1", "root", "", "../a", "x" * 70])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)
MODELS = st.fixed_dictionaries({}, optional={"name": JSON, "type": JSON, "composition": JSON}) | JSON
BODIES = st.fixed_dictionaries(
    {}, optional={"id": IDS | JSON, "version": st.integers(-1, 9) | JSON, "model": st.just(PLOT) | MODELS}
)


@given(
    BODIES, st.fixed_dictionaries({}, optional={"id": IDS, "version": st.sampled_from(["", "1", "0", "x", "9" * 30])})
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_answer_is_as_the_document_says(page: TestClient, body: dict[str, Any], asked: dict[str, str]) -> None:
    if "sdp_session" not in page.cookies:
        sign_in(page, "anna")
    paths = document()["paths"]
    for got, how, schema in (
        (page.post("/api/display", json=body), paths["/api/display"]["post"], "Display"),
        (page.get("/api/display", params=asked), paths["/api/display"]["get"], "Display"),
        (page.get("/api/display-versions", params=asked), paths["/api/display-versions"]["get"], "DisplayVersions"),
    ):
        assert str(got.status_code) in how["responses"]
        validator(schema if got.status_code == 200 else "Error").validate(got.json())


def test_a_body_without_an_end_is_a_bad_request(page: TestClient) -> None:
    sign_in(page, "anna")
    deep = b'{"model":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    got = page.post("/api/display", content=deep, headers={"Content-Type": "application/json"})
    assert got.status_code == 400
    assert "nothing was done" in got.json()["error"]
