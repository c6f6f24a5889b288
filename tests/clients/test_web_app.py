"""Answers of the operator's page to good and to forged requests."""

import asyncio
import json
import math
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.types import Message

from facade.flows.alerts.follower import FollowedAlert
from facade.flows.overview.page_acts import act_record, page_entry
from facade.kernel.clock import ManualClock, SystemClock
from facade.kernel.errors import CommandRefused, ConfigError, InfraError
from facade.kernel.reading import Quality
from facade.sdp.messages import PageAct
from sdp_facade_clients.ask import AskedDevice
from sdp_facade_clients.events import DeviceEvent
from sdp_facade_clients.web import STATIC, answers
from sdp_facade_clients.web import app as web_app
from sdp_facade_clients.web import cli as web_cli
from sdp_facade_clients.web import site as web_site
from sdp_facade_clients.web.answers import Places, Shared
from sdp_facade_clients.web.app import make_app
from sdp_facade_clients.web.doors import Doors, TooManyRequests, read_tokens
from sdp_facade_clients.web.feed import Feed
from sdp_facade_clients.web.site import Site
from tests.clients.test_web_feed import Recorded
from tests.support.archives import ICD
from tests.support.waiting import HANG, until

TOKENS = "viewer olga viewer-token-0000001\noperator anna operator-token-00001\nexpert eve expert-token-000000001\n"
PEOPLE = read_tokens(TOKENS, "")
HOST = "http://localhost:8800"
DEVICES = {"mid-sdp/subarray/01": "SdpSubarray", "mid-sdp/alerts/0": "SdpAlerts", "mid-sdp/control/0": "SdpMaster"}
DEVICES["mid-sdp/bus/0"] = "SdpBus"
NOBODY_HAS = "expected the role operator, but nobody has signed in; nothing was done"
COMMAND = {"device": "mid-sdp/subarray/01", "command": "End", "argument": ""}


class Asked(AskedDevice):
    """Stands for `AskedDevice`: notes what is asked of a device."""

    calls: list[tuple[str, str, Any]]
    error: Exception | None = None
    alarms: Sequence[dict[str, Any]] = ()
    commands: Sequence[dict[str, Any]] = ()
    figures: Sequence[Sequence[float]] | None = None

    def __init__(self, tango_host: str, name: str, server: str) -> None:
        self._name = name

    def command(self, name: str, argument: Any = None) -> Any:
        if self.error:
            raise self.error
        self.calls.append((self._name, name, argument))
        if name == "GetCommand":
            return json.dumps(next(one for one in self.commands if one["id"] == argument) | {"argument": None})
        if name == "GetCommandHistory":
            return json.dumps(self.commands)
        return (2, ("id-1",)) if name == "GiveCommand" else json.dumps(self.alarms)

    def event(self, attribute: str) -> DeviceEvent:
        return DeviceEvent(value=((1.0, math.nan),), quality=Quality.WARNING, time=5.0, received=5.0)

    def read(self, *attributes: str) -> dict[str, Any]:
        if self.error:
            raise self.error
        self.calls.append((self._name, "read", attributes))
        known: dict[str, Any] = {"State": "ON", "Status": "In ON.", "healthState": 0, "deviceServers": ("control",)}
        return {one: known.get(one, self.figures) for one in attributes}


@pytest.fixture
def feed() -> Feed:
    recorded = Recorded()
    return Feed(recorded, recorded, SystemClock())


kept: list[PageAct] = []
"""What the audit gets from the page."""


@pytest.fixture
def page(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    Asked.calls, Asked.error = [], None
    monkeypatch.setattr(web_site, "AskedDevice", Asked)
    clock = SystemClock()
    site = Site("db:10000", ICD, lambda: DEVICES, clock)
    kept.clear()
    app = make_app(
        feed, site, Doors(lambda: PEOPLE, ManualClock()), hosts=["localhost"], keep=kept.append, comment=kept.append
    )
    with TestClient(app, base_url=HOST, headers={"Origin": HOST}) as client:
        yield client


def sign_in(page: TestClient, name: str) -> None:
    token = next(line.split()[2] for line in TOKENS.splitlines() if line.split()[1] == name)
    assert page.post("/api/sign-in", json={"token": token}).status_code == 200


def other_browser(page: TestClient, name: str) -> dict[str, str]:
    """Sign in at another browser, and return the headers of its requests."""
    sign_in(page, name)
    session = page.cookies["sdp_session"]
    page.cookies.clear()
    return {"Cookie": f"sdp_session={session}"}


def test_everybody_may_look(page: TestClient) -> None:
    found = page.get("/api/site").json()
    assert found["classes"]["SdpSubarray"]["commands"]["Abort"]["overtakes"] is True
    assert found["devices"] == DEVICES
    assert page.get("/api/me").json() == {
        "name": "",
        "role": "viewer",
        "can_sign_in": True,
        "unconfirmed": False,
        "ended": False,
    }
    assert page.get("/api/alarms").json() == []
    assert "0.4" in page.get("/api/schemas", params={"family": "assignres"}).json()
    assert page.get("/").status_code == 200


@pytest.mark.parametrize(
    ("hosts", "at", "status"),
    [
        (["::1"], "[::1]", 200),
        (["2001:DB8:0::1"], "[2001:db8::1]", 200),
        (["SDP.example.org"], "sdp.example.org", 200),
        (["::1"], "[::2]", 400),
        (["sdp.example.org"], "evil.example.org", 400),
    ],
)
def test_the_page_is_reached_by_its_names_and_addresses_only(
    feed: Feed, hosts: Sequence[str], at: str, status: int
) -> None:
    site, doors = Site("db:10000", ICD, lambda: DEVICES, SystemClock()), Doors(lambda: PEOPLE, ManualClock())
    with TestClient(make_app(feed, site, doors, hosts=hosts), base_url=f"http://{at}:8800") as page:
        assert page.get("/api/site").status_code == status


def test_a_flow_has_the_page_of_its_manifest(page: TestClient) -> None:
    flows = page.get("/api/site").json()["flows"]
    assert flows["overview"]["page"] is None
    assert set(flows["blocks"]["page"]["attributes"]) == {"SdpMaster", "SdpSubarray"}
    quality = flows["quality"]["page"]
    assert quality["title"] == "Quality"
    assert quality["over"]["bandpassSpectrum"] == "channelFrequencies"
    assert quality["waterfalls"] == ["bandpassSpectrum"]
    assert "bandpassSpectrum" in quality["attributes"]["SdpQuality"]
    gains = flows["tables"]["page"]["attributes"]["SdpCalibration"]
    assert "gainAmplitude" in gains
    assert "pointing_cal_SKA001" not in gains, "for experts"


def test_what_is_read_has_quality_and_time(page: TestClient) -> None:
    asked = {"device": "mid-sdp/control/0", "attribute": "heapRate"}
    found = page.get("/api/read", params=asked).json()
    assert found == {"value": [[1.0, "NaN"]], "quality": "WARNING", "time": 5.0}


def test_the_most_urgent_alarm_comes_first(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [("ACKED", "CRITICAL", 1), ("UNACK", "WARNING", 2), ("UNACK", "ALARM", 3), ("UNACK", "ALARM", 4)]
    alarms = [{"state": state, "severity": severity, "occurrence": number} for state, severity, number in kinds]
    monkeypatch.setattr(Asked, "alarms", alarms)
    assert [one["occurrence"] for one in page.get("/api/alarms").json()] == [4, 3, 2, 1]
    actions = page.get("/api/site").json()["actions"]
    assert actions["unshelve"] == ["SHLVD"]
    assert "SHLVD" not in actions["shelve"]


def test_the_judgement_is_that_of_the_terminal_and_knows_the_alarms_that_wait(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = {"condition": "serverGone", "source": "sdp-facade/ingest-00", "state": "RTNUN", "severity": "CRITICAL"}
    monkeypatch.setattr(Asked, "alarms", [over | {"text": "gone", "occurrence": 1}])
    judged = page.get("/api/judgement").json()
    assert (judged["state"], judged["idle"]) == ("ATTENTION", False)
    (finding,) = judged["findings"]
    assert finding["alarm"] == "serverGone@sdp-facade/ingest-00"
    assert finding["do"].endswith("`sdp-facade alerts ack serverGone@sdp-facade/ingest-00`.")


def test_without_an_answer_of_the_devices_the_judgement_is_that_nothing_is_known(page: TestClient) -> None:
    Asked.error = InfraError("gone")
    judged = page.get("/api/judgement").json()
    assert (judged["state"], judged["idle"]) == ("UNKNOWN", False)


def test_a_person_decides_about_a_command_that_waits(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    device = {"device": "mid-sdp/subarray/01"}
    monkeypatch.setattr(Asked, "commands", [{"id": "2", "status": "HELD"}, {"id": "1", "status": "COMPLETED"}])
    assert page.get("/api/waiting", params=device).json() == [{"id": "2", "status": "HELD", "argument": None}]
    sign_in(page, "anna")
    Asked.calls.clear()
    for decision in ("approve", "withdraw"):
        assert page.post("/api/decide", json=device | {"decision": decision, "id": "2"}).status_code == 200
    said = json.dumps({"id": "2", "operator": "anna"})
    assert [call[1:] for call in Asked.calls] == [("ApproveCommand", said), ("WithdrawCommand", said)]
    answer = page.post("/api/decide", json=device | {"decision": "Restart", "id": "2"})
    assert (answer.status_code, len(Asked.calls)) == (400, 2)


def test_nobody_acts_without_a_role(page: TestClient) -> None:
    acts = {"command": COMMAND, "alarm": {"action": "ack"}, "redrive": {"put_back": True}, "decide": {}}
    for path, body in acts.items():
        answer = page.post(f"/api/{path}", json=body)
        assert answer.status_code == 403
        assert "nobody has signed in" in answer.json()["error"]
    sign_in(page, "olga")
    answer = page.post("/api/command", json=COMMAND)
    assert answer.status_code == 403
    assert "expected the role operator, but olga is viewer" in answer.json()["error"]
    sign_in(page, "anna")
    answer = page.post("/api/admin-mode", json={"device": "mid-sdp/control/0", "mode": "OFFLINE"})
    assert (answer.status_code, Asked.calls) == (403, [])
    assert "expected the role expert, but anna is operator" in answer.json()["error"]


def test_a_command_and_an_action_bear_the_name_of_their_person(page: TestClient) -> None:
    sign_in(page, "anna")
    assert page.post("/api/command", json=COMMAND).json() == "id-1"
    asked = {"action": "shelve", "condition": "c", "source": "s", "occurrence": 3, "comment": "why", "duration": 60}
    assert page.post("/api/alarm", json=asked).status_code == 200
    (_, command, request), (_, action, content) = Asked.calls
    assert (command, action) == ("GiveCommand", "Shelve")
    assert json.loads(request) == {"command": "End", "operator": "anna"}
    assert json.loads(content)["operator"] == "anna"
    page.post("/api/sign-out", json={})
    assert page.post("/api/command", json=COMMAND).status_code == 403


def test_a_mode_bears_the_name_of_its_person(page: TestClient) -> None:
    """The device's record has it: it lasts if the page's server is killed at that moment."""
    sign_in(page, "eve")
    assert page.post("/api/admin-mode", json={"device": "mid-sdp/control/0", "mode": "OFFLINE"}).status_code == 200
    ((device, command, request),) = Asked.calls
    assert (device, command) == ("mid-sdp/control/0", "SetAdminMode")
    assert json.loads(request) == {"mode": "OFFLINE", "operator": "eve"}
    answer = page.post("/api/admin-mode", json={"device": "mid-sdp/bus/0", "mode": "OFFLINE"})
    assert (answer.status_code, len(Asked.calls)) == (400, 1), "it has no mode"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": ""}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Host": "evil.example"}, 400),
    ],
)
def test_a_forged_request_does_nothing(page: TestClient, headers: dict[str, str], status: int) -> None:
    sign_in(page, "anna")
    answer = page.post(
        "/api/command", content=json.dumps(COMMAND), headers={"Content-Type": "application/json"} | headers
    )
    assert (answer.status_code, Asked.calls) == (status, [])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[1]", "expected a JSON object"),
        (b"{", "expected a JSON object"),
        (b'{"device": "x"}', "device: expected one of"),
        (json.dumps(COMMAND | {"command": "Explode"}).encode(), "command: expected one of"),
        (b" " * 1_000_001, "expected at most 1000000 bytes"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(page: TestClient, body: bytes, says: str) -> None:
    sign_in(page, "anna")
    answer = page.post("/api/command", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 413)
    assert says in answer.json()["error"]
    assert Asked.calls == []


@pytest.mark.parametrize(
    ("error", "status"),
    [(CommandRefused("API_CommandNotAllowed", "not in EMPTY", "o"), 409), (InfraError("gone"), 502)],
)
def test_what_a_device_says_reaches_the_person(page: TestClient, error: Exception, status: int) -> None:
    sign_in(page, "anna")
    Asked.error = error
    answer = page.post("/api/command", json=COMMAND)
    assert (answer.status_code, answer.json()["error"]) == (status, str(error))


@pytest.mark.parametrize("refused", [None, CommandRefused("API_CommandNotAllowed", "not in EMPTY", "o")])
def test_each_act_is_a_line_of_the_log(
    page: TestClient, caplog: pytest.LogCaptureFixture, refused: Exception | None
) -> None:
    """Who, from where, what, and what became of it; no line has a token."""
    caplog.set_level("INFO")
    page.post("/api/sign-in", json={"token": "guessed-by-somebody"})
    page.post("/api/command", json=COMMAND)
    sign_in(page, "eve")
    Asked.error = refused
    page.post("/api/admin-mode", json={"device": "mid-sdp/control/0", "mode": "OFFLINE"})
    page.post("/api/command", json=COMMAND)
    page.post("/api/sign-out", json={})
    lines = [one.message for one in caplog.records if one.name == "sdp_facade_clients.web.journal"]
    eve = "name='eve' role=expert address=testclient"
    nobody = "name='' role=none address=testclient"
    was_set, given = [f"refused: {refused}"] * 2 if refused else ["done: null", 'done: "id-1"']
    assert lines == [
        f"act=sign-in {nobody} asked={{}} refused: the token is not valid; ask who maintains the tokens of this page",
        f"act=command {nobody} asked={{}} refused: {NOBODY_HAS}",
        f'act=sign-in {eve} asked={{}} done: {{"name":"eve","role":"expert"}}',
        f'act=admin-mode {eve} asked={{"device":"mid-sdp/control/0","mode":"OFFLINE"}} {was_set}',
        f'act=command {eve} asked={{"device":"mid-sdp/subarray/01","command":"End"}} {given}',
        f"act=sign-out {eve} asked={{}} done: null",
    ]
    # Of these, the audit gets what no device writes: a command has a record of its own, done or refused, and a mode
    # that was set.
    assert [(one.act, one.person, one.refused) for one in kept] == [
        ("sign-in", "", True), ("command", "", True), ("sign-in", "eve", False),
        *([("admin-mode", "eve", True)] if refused else []), ("sign-out", "eve", False),
    ]  # fmt: skip
    entries = [page_entry(act_record(one)) for one in kept]
    assert [one and (one.act, one.kind, one.operator, one.client) for one in entries] == [
        ("sign-in refused by the page", "refusal", "", "testclient"),
        ("command refused by the page", "refusal", "", "testclient"),
        ("sign-in at the page", "sign-in", "eve", "testclient"),
        *([("admin-mode refused by the page", "refusal", "eve", "testclient")] if refused else []),
        ("sign-out at the page", "sign-in", "eve", "testclient"),
    ]
    assert kept[1].text == NOBODY_HAS
    assert not refused or (kept[3].target, kept[3].text) == ("mid-sdp/control/0", str(refused))
    assert not [token for token in TOKENS.split() if len(token) > 16 and token in caplog.text]
    assert "guessed-by" not in caplog.text


def test_a_comment_is_kept_with_its_person_or_refused(page: TestClient) -> None:
    said = {"about": "1800000000.000000_000000000001_Scan", "text": " the second node was slow\n"}
    assert page.post("/api/comment", json=said).status_code == 403
    sign_in(page, "anna")
    kept.clear()
    assert page.post("/api/comment", json=said).status_code == 200
    for wrong in (said | {"text": " "}, said | {"text": "x" * 301}, said | {"about": ""}):
        answer = page.post("/api/comment", json=wrong)
        assert (answer.status_code, "expected 1 to" in answer.json()["error"]) == (400, True)
    (entry,) = [one for act in kept if not act.refused and (one := page_entry(act_record(act)))]
    assert (entry.act, entry.kind, entry.operator) == ("comment at the page", "comment", "anna")
    assert (entry.target, entry.said) == (said["about"], "the second node was slow")


def test_without_a_bus_a_comment_is_refused(feed: Feed) -> None:
    site = Site("db:10000", ICD, lambda: DEVICES, SystemClock())
    app = make_app(feed, site, Doors(lambda: PEOPLE, ManualClock()), hosts=["localhost"])
    page = TestClient(app, base_url=HOST, headers={"Origin": HOST})
    sign_in(page, "anna")
    answer = page.post("/api/comment", json={"about": "a", "text": "b"})
    assert (answer.status_code, "settings of the bus" in answer.json()["error"]) == (404, True)


def test_wrong_tokens_are_counted_and_never_keep_a_right_one_out(
    page: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = [page.post("/api/sign-in", json={"token": f"guess {turn}"}).status_code for turn in range(100)]
    assert {*wrong[:10]} == {403}
    assert wrong.count(429) > 50
    assert caplog.text.count("act=sign-in") < 50
    sign_in(page, "anna")


def test_a_session_that_has_ended_is_said(page: TestClient) -> None:
    """As after a restart of the server, which remembers no session."""
    sign_in(page, "anna")
    assert page.get("/api/me").json()["ended"] is False
    page.cookies = {"sdp_session": "of-a-server-that-is-gone"}
    assert page.get("/api/me").json() == {
        "name": "",
        "role": "viewer",
        "can_sign_in": True,
        "unconfirmed": False,
        "ended": True,
    }


def test_a_question_of_another_site_is_refused(page: TestClient) -> None:
    for site, status in {"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200}.items():
        headers = {"Sec-Fetch-Site": site}
        assert page.get("/api/me", headers=headers).status_code == status
        if status == 403:
            assert page.get("/events", headers=headers).status_code == 403
        assert page.get("/", headers=headers).status_code == 200  # a link to the page is welcome


def test_questions_of_nobody_are_counted_by_address_and_those_of_a_person_apart(
    page: TestClient,
) -> None:
    olga = other_browser(page, "olga")
    assert 429 in {page.get("/api/me").status_code for _ in range(400)}
    assert page.get("/api/me", headers=olga).json()["name"] == "olga"


def test_reads_of_the_bus_by_nobody_leave_a_place_to_people(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked, one process at a time reads the bus for those who have not signed in."""
    begun, go_on = threading.Semaphore(0), threading.Event()
    runs: list[tuple[str, ...]] = []

    def run(*arguments: str) -> list[str]:
        runs.append(arguments)
        begun.release()
        assert go_on.wait(HANG)
        return []

    monkeypatch.setattr(web_site, "_sdp_facade", run)
    olga = other_browser(page, "olga")
    with ThreadPoolExecutor(40) as browsers:
        asked = [browsers.submit(page.get, f"/api/dead-letter?letter=0:{number}") for number in range(30)]
        assert begun.acquire(timeout=HANG)
        until(lambda: sum(one.done() for one in asked) == 30 - 1 - 8, "those who find no place to wait are refused")
        assert {one.result().status_code for one in asked if one.done()} == {429}
        letters = browsers.submit(page.get, "/api/dead-letters?since=10m", headers=olga)
        assert begun.acquire(timeout=HANG)
        assert len(runs) == 2
        go_on.set()
        assert letters.result().status_code == 200
        assert [one.result().status_code for one in asked].count(200) == 9


def test_calls_that_come_at_once_are_counted_before_any_has_begun() -> None:
    async def ask() -> list[object]:
        places = Places(anybody=1, people=1)
        calls = [places.run(lambda: None, is_person=False) for _ in range(60)]
        return await asyncio.gather(*calls, places.run(lambda: None, is_person=True), return_exceptions=True)

    *answers, of_person = asyncio.run(ask())
    assert of_person is None
    assert [type(one) for one in answers] == [type(None)] * 9 + [TooManyRequests] * 51


def test_one_address_does_not_fill_the_queue_and_who_has_gone_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, called = threading.Event(), list[str]()

    def call(of: str) -> str:
        called.append(of)
        assert go_on.wait(HANG)
        return of

    def request(kind: str) -> Request:
        async def receive() -> Message:
            return {"type": kind}

        return Request({"type": "http"}, receive)

    async def ask() -> list[object]:
        shared = Shared(call, Places(anybody=1, people=1))
        here, gone = request("http.request"), request("http.disconnect")
        asked = [(here, f"a{number}", "a") for number in range(20)] + [(gone, "b", "b"), (here, "c", "c")]
        asked += [(gone, "both", "d"), (here, "both", "e")]
        tasks = [
            asyncio.create_task(shared.answer(one, (of,), 0, who, is_person=False), name=of) for one, of, who in asked
        ]
        while sum(one.done() for one in tasks) < 20 - 9:
            await asyncio.sleep(0)
        go_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    given = asyncio.run(ask())
    assert called == [*(f"a{number}" for number in range(9)), "c", "both"]
    refused = [isinstance(one, TooManyRequests) for one in given]
    assert refused == [False] * 9 + [True] * 11 + [True, False, False, False]
    monkeypatch.setattr(answers, "_LONGEST_WAIT", -1.0)
    assert all(isinstance(one, TooManyRequests) for one in asyncio.run(ask())), "who has waited for long is refused"


def test_arguments_are_checked_for_people_only_and_in_a_process_that_is_ended(
    page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"device": "mid-sdp/subarray/01", "command": "Scan", "argument": "{}"}
    assert page.post("/api/check", json=asked).status_code == 403
    sign_in(page, "olga")
    (said,) = page.post("/api/check", json=asked).json()
    assert "$.scan_id: expected such a key" in said
    assert page.post("/api/check", json=asked | {"command": "End"}).json() == []
    assert page.post("/api/check", json=asked | {"argument": " " * 1_000_000}).status_code == 413
    processes = psutil.Process().children(recursive=True)
    assert processes
    monkeypatch.setattr(web_app, "_LONGEST_CHECK", 0.0)
    answer = page.post("/api/check", json=asked)
    assert (answer.status_code, answer.json()["error"]) == (502, "the argument could not be checked within 0 s")


def test_answers_carry_the_policies_of_the_page(page: TestClient) -> None:
    headers = page.get("/").headers
    policy = headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "object-src 'none'", "base-uri 'none'"} <= {*policy}
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in str(policy)
    assert "unsafe-eval" in page.get("/explore/").headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert not [name for name in headers if name in ("server", "strict-transport-security") or "allow-origin" in name]
    answer = page.get("/api/me", headers={"Origin": "http://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert (answer.headers["cache-control"], answer.headers["content-type"]) == ("no-store", "application/json")
    assert page.request("TRACE", "/").status_code == page.request("TRACE", "/api/me").status_code == 405
    assert page.get("/explore/..%2f..%2fapp.py").status_code == page.get("/docs").status_code == 404
    answer = page.post("/api/sign-in", json={"token": "operator-token-00001"})
    assert answer.headers["set-cookie"].startswith("sdp_session=")
    assert "Secure" not in answer.headers["set-cookie"]
    own = {"Origin": HOST.replace("http", "https")}
    site = own["Origin"]
    answer = page.post(f"{site}/api/sign-in", json={"token": "operator-token-00001"}, headers=own)
    assert answer.headers["strict-transport-security"] == "max-age=31536000; includeSubDomains"
    name, *parts = answer.headers["set-cookie"].split("; ")
    assert name.startswith("__Host-sdp_session=")
    assert {"HttpOnly", "Secure", "Path=/", "SameSite=strict"} <= {*parts}
    assert not [one for one in parts if one.startswith("Domain")]
    assert page.get(f"{site}/api/me").json()["name"] == "anna"
    assert page.post(f"{site}/api/sign-out", json={}, headers=own).status_code == 200
    assert page.get(f"{site}/api/me").json() == {
        "name": "",
        "role": "viewer",
        "can_sign_in": True,
        "unconfirmed": False,
        "ended": False,
    }


def test_a_proxy_that_is_not_named_is_told(page: TestClient) -> None:
    """It has TLS in front and says so, but nobody has said that it may: the cookie would not be safe."""
    forwarded = {"Origin": HOST.replace("http", "https"), "X-Forwarded-Proto": "https"}
    answer = page.post("/api/sign-in", json={"token": "operator-token-00001"}, headers=forwarded)
    assert (answer.status_code, answer.headers.get("set-cookie")) == (403, None)
    assert "the proxy must be named by --proxy" in answer.json()["error"]


def test_a_stream_ends_with_its_browser(feed: Feed) -> None:
    clock = SystemClock()
    app = make_app(feed, Site("db:10000", ICD, lambda: DEVICES, clock), Doors(dict, clock), hosts=["localhost"])
    given: list[dict[str, Any]] = []

    async def receive() -> Any:
        if len(given) < 4:  # the browser is there
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        given.append(message)

    async def browse() -> None:
        task = asyncio.create_task(feed.run())
        host = [(b"host", b"localhost")]
        scope = {"type": "http", "scheme": "http", "path": "/events", "method": "GET", "headers": host}
        await app(scope, receive, send)
        task.cancel()

    asyncio.run(asyncio.wait_for(browse(), HANG))
    head, *parts = given
    assert (b"content-type", b"text/event-stream; charset=utf-8") in head["headers"]
    assert [name for name, _ in head["headers"] if name == b"content-security-policy"]
    assert [part["body"].split(b"\n")[1][:6] for part in parts] == [b"", b"event:", b"event:"]


def test_browsers_share_one_answer_until_there_is_a_new_alert(
    page: TestClient, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_SHARED", 600.0)
    for alerts in (1, 2):
        for _ in range(5):
            assert page.get("/api/alarms").json() == []
        assert len(Asked.calls) == alerts
        before = feed.changed("mid-sdp/alerts/0")
        feed.take_alert(FollowedAlert(sequence=alerts, previous=alerts - 1, time=1.0, alert={"text": "t"}))
        until(lambda before=before: feed.changed("mid-sdp/alerts/0") > before, "the alert is in a frame")


@pytest.mark.parametrize(
    ("path", "asked"),
    [("dead-letters", {"since": "--yes"}), ("dead-letter", {"letter": "--help"}), ("read", {"device": "x"})],
)
def test_a_question_is_checked(page: TestClient, path: str, asked: dict[str, str]) -> None:
    answer = page.get(f"/api/{path}", params=asked)
    assert answer.status_code == 400
    assert "expected" in answer.json()["error"]


def test_what_contributors_read_stays_small() -> None:
    """Modules of the page have no build step, so nothing else makes them readable."""
    scripts = [*STATIC.glob("*.js"), *STATIC.glob("explore/*.js"), STATIC / "style.css"]
    lines = {one.name: one.read_text().splitlines() for one in scripts}
    assert [name for name, some in lines.items() if len(some) > 300] == []
    assert [name for name, some in lines.items() if max(map(len, some)) > 140] == []


def test_a_trend_is_of_an_hour_or_of_a_shift(page: TestClient) -> None:
    asked = {"device": "mid-sdp/control/0", "attribute": "latencyP99"}
    for hours in ({}, {"hours": "1"}, {"hours": "12"}):
        assert page.get("/api/trend", params=asked | hours).json() == [[], []]
    assert "expected one of 1, 12" in page.get("/api/trend", params=asked | {"hours": "24"}).json()["error"]


def test_the_figures_of_all_nodes_are_one_read(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not known is null; SdpMaster may not have any yet."""
    assert page.get("/api/nodes").json() == {}
    monkeypatch.setattr(Asked, "figures", [[1.0, math.nan]] * 5)
    monkeypatch.setattr(answers, "_SHARED", 0.0)
    until(lambda: page.get("/api/nodes").json(), "the answer is a new one")
    found = page.get("/api/nodes").json()
    names = ["heapRate", "packetLossFraction", "latencyMean", "heapsLate", "silence"]
    assert found == {name: [1.0, None] for name in names}
    assert set(Asked.calls) == {("mid-sdp/control/0", "read", ("nodeFigures",))}


def test_a_redrive_names_its_letters(page: TestClient) -> None:
    """None would mean all of them."""
    sign_in(page, "eve")
    for letters in ([], ["0:1", "--all"]):
        answer = page.post("/api/redrive", json={"letters": letters, "put_back": True})
        assert answer.status_code == 400
        assert "expected PARTITION:OFFSET of at least one" in answer.json()["error"]


def test_too_many_requests_are_told_to_wait(page: TestClient) -> None:
    sign_in(page, "anna")
    codes = {page.post("/api/check", json=COMMAND).status_code for _ in range(40)}
    assert 429 in codes


def test_reports_of_kafka_are_served_between_acts_and_queued_ones_leave_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next act served them all in the event loop, hours later."""
    polled, closed = threading.Event(), list[float]()

    class Writer:
        def poll(self) -> None:
            polled.set()

        def close(self, timeout: float) -> None:
            closed.append(timeout)

    class Bus:
        def __init__(self, connection: object, *, client: str) -> None:
            self.writer = Writer

    monkeypatch.setattr(web_cli, "load_client_settings", lambda: None)
    monkeypatch.setattr(web_cli, "Connection", lambda settings, *, clock: None)
    monkeypatch.setattr(web_cli, "KafkaBus", Bus)
    with web_cli._kept(SystemClock()):
        assert polled.wait(HANG)
        assert closed == []
    assert closed == [2.0]


def test_a_certificate_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(web_cli, "require_tango_database", lambda tango_host: None)
    file = tmp_path / "chain of the site.pem"
    for got in ("No such file", "NO_CERTIFICATE_OR_CRL|PEM lib"):
        with pytest.raises(ConfigError, match=rf"--certificate {file}, --key {file}: expected .* got: .*({got})"):
            web_cli.web(certificate=file, key=file)
        file.write_text("no certificate")


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_a_bus() -> None:
        raise ConfigError("no broker")

    monkeypatch.setattr(web_cli, "require_tango_database", lambda tango_host: None)
    monkeypatch.setattr(web_cli, "how_to_install", lambda: "")
    monkeypatch.setattr(web_cli, "load_client_settings", without_a_bus)
    monkeypatch.setattr(web_cli, "start_logging", lambda tags: None)
    monkeypatch.setattr(web_cli.gc, "set_threshold", lambda count: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = rf"--host 127\.0\.0\.1 --port {port}: expected .* a free port, got: Address already in use; end the prog"
        with pytest.raises(ConfigError, match=said):
            web_cli.web("db:10000", port=port)
