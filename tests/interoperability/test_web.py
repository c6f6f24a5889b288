"""The operator's page in a real browser: an operator's shift on the real devices."""

import itertools
import json
import re
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tango
from playwright.sync_api import Browser, Locator, Page, expect

from facade.infra import local
from facade.infra.ports import choose_port
from facade.kernel.bus.dead_letters import dead_letter
from facade.kernel.bus.port import Record
from facade.kernel.clock import utc_seconds
from facade.kernel.outcome import RecordRejected
from sdp_facade_clients.sample_arguments import sample
from tests.interoperability.asking import Asking
from tests.interoperability.conftest import SILENT, whole_system
from tests.support.deployment import BUS, ICD, MASTER, Deployment, node_device, subarray_device
from tests.support.heaps import encoded, heap
from tests.support.processes import Running
from tests.support.waiting import HANG, until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

TOKENS = {"operator": "token-of-anna-the-operator", "expert": "token-of-eve-the-expert"}
SUBARRAY = subarray_device(1)
LATE = 1
"""The node whose clock is behind: all that it sends is too late."""
_offsets = itertools.count(int(time.time()))
"""Each dead letter is of a record of its own."""
AXE = Path(__file__).parents[2] / ".venv/web/node_modules/axe-core/axe.min.js"
TIME_IN_UTC = re.compile(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC")
expect.set_options(timeout=HANG * 1000)


class Web:
    """The server of the page, on a port that stays."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.port = choose_port()
        self.address = f"http://localhost:{self.port}"
        self._tokens = deployment.folder / "tokens.txt"
        self._tokens.write_text(f"operator anna {TOKENS['operator']}\nexpert eve {TOKENS['expert']}\n")
        self._tokens.chmod(0o600)
        self.process = self.start()

    def start(self) -> Running:
        self.process = self._deployment.start(
            "web",
            ["sdp-facade", "web", "--port", str(self.port), "--tokens", str(self._tokens), "--banner", "Test data"],
        )
        self.process.says(self.address)
        return self.process


@pytest.fixture(scope="module")
def system(infra: local.Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Give a deployment of its own: alarms are acknowledged here, and processes stopped."""
    with whole_system(
        infra, tmp_path_factory.mktemp("web"), "--skew", f"{LATE}:-30", approvals="SdpMaster.Standby"
    ) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def web(system: Deployment) -> Web:
    return Web(system)


Open = Callable[[str], Page]


@pytest.fixture
def open_page(browser: Browser, web: Web) -> Iterator[Open]:
    """Open the page in a browser of its own that knows nobody; what the browser complains about fails the test."""
    contexts, complaints = [], []

    def opened(place: str) -> Page:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=web.address)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(HANG * 1000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
        page.goto(f"{web.address}/#/{place}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def sign_in(page: Page, role: str) -> None:
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Token").fill(TOKENS[role])
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()


def settled(page: Page) -> None:
    """Wait until the page has drawn all that it shows."""
    expect(page.locator("main h2").first).to_be_visible()
    expect(page.locator("figure[aria-busy=true]")).to_have_count(0)
    expect(page.get_by_text(re.compile("^Reading "))).to_have_count(0)
    expect(page.locator("main .value[title*='not received yet']")).to_have_count(0)


def value(page: Page, device: str, attribute: str) -> Locator:
    return page.locator(f'[data-value="{device}/{attribute}"]').first


def in_map(page: Page, node: int) -> Locator:
    return page.locator(f'.map a[href="#/node/{node_device(node)}"]')


def waiting(page: Page) -> Locator:
    return page.get_by_role("region", name="Commands that wait for a second person")


def past_command(page: Page, id: str) -> Locator:
    return page.get_by_role("group", name="Past commands").get_by_role("row").filter(has_text=id)


def test_the_overview_says_what_the_devices_say(open_page: Open, system: Deployment) -> None:
    page = open_page("")
    expect(page.get_by_role("note")).to_have_text("Test data")
    health = value(page, MASTER, "healthState")

    def agrees() -> bool:  # both may change meanwhile
        found = system.read_one(MASTER, "healthState")
        return found is not None and ICD.enums["HealthState"][found] in health.inner_text()

    until(agrees, "the page says what the device says")
    expect(value(page, MASTER, "nodesExpected")).to_contain_text("4")
    expect(page.get_by_role("list", name="ingest-00").get_by_role("link")).to_have_count(4)
    expect(in_map(page, 0)).to_have_class(re.compile("^on level[0-4]$"))
    # The worst node by a figure, its level and the colour in the map.
    silent = page.get_by_role("row").filter(has_text=f"Node {SILENT}")
    page.get_by_role("button", name="Silence").click()
    expect(page.locator(".worst tbody tr").first).to_contain_text(f"Node {SILENT}")
    expect(silent.locator("td").last).to_have_class("number WARNING")
    expect(in_map(page, 0)).to_have_attribute("aria-label", re.compile(r"^Node 0 \(.*\): ON, silence \d"))
    page.get_by_role("button", name="Late heaps").click()
    expect(page.locator(".worst tbody tr").first).to_contain_text(f"Node {LATE}")
    expect(value(page, SUBARRAY, "obsState")).to_have_text("EMPTY")
    # Two browsers agree.
    other = open_page("")
    expect(value(other, SUBARRAY, "obsState")).to_have_text("EMPTY")


def answered(page: Page, path: str, body: str, content_type: str = "application/json") -> None:
    """Answer what a page asks in place of its server."""
    page.route(re.compile(rf"/{path}(\?|$)"), lambda route: route.fulfill(body=body, content_type=content_type))


def stream_says(page: Page, values: dict[str, dict[str, list[Any]]], **more: Any) -> None:
    """Answer a page with a stream that has these values, by device and attribute, from its next document on."""
    page.add_init_script("delete window.SharedWorker")  # only what a tab asks itself can be answered here
    snapshot = {"time": time.time(), "values": values, "silent": {}, "away": "", "alerts": []} | more
    answered(page, "events", f"event: snapshot\ndata: {json.dumps(snapshot)}\n\n", "text/event-stream")


def test_of_1500_nodes_the_worst_are_found_by_one_question(open_page: Open) -> None:
    """No node is asked: SdpMaster has the figures of all."""
    page = open_page("")
    site = page.request.get("/api/site").json()
    nodes = range(1500)
    devices = {device: kind for device, kind in site["devices"].items() if kind != "SdpIngestNode"}
    site["devices"] = devices | {node_device(node): "SdpIngestNode" for node in nodes}
    site["instances"] |= {node_device(node): f"ingest-{node // 50:02d}" for node in nodes}
    now = time.time()
    values: dict[str, Any] = {node_device(node): {"State": ["ON", "VALID", now, ""]} for node in nodes}
    values[MASTER] = {"heapRate": [30_000.0, "VALID", now, ""]}
    loss = [0.02 if node == 777 else 2e-4 if node == 1401 else 0.0 for node in nodes]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition("/api/")[2].partition("?")[0]))
    stream_says(page, values)
    answered(page, "api/site", json.dumps(site))
    figures = {"packetLossFraction": loss, "latencyMean": [0.004] * 1499 + [0.7], "heapRate": [20.0] * 1500}
    figures["heapsLate"] = [1.0 if node == 5 else 3.0 if node == 6 else 0.0 for node in nodes]
    answered(page, "api/nodes", json.dumps(figures))
    page.reload()
    expect(page.locator(".worst tbody tr").first).to_contain_text(re.compile("Node 777.*2 %.*4.0 ms", re.DOTALL))
    expect(page.locator(".worst tbody tr").nth(1)).to_contain_text(re.compile("Node 1401.*0.02 %", re.DOTALL))
    expect(page.locator(".map a")).to_have_count(1500)
    expect(in_map(page, 777)).to_have_class("on level4")
    expect(in_map(page, 1401)).to_have_class("on level2")
    page.get_by_role("button", name="Latency", exact=True).click()
    expect(page.locator(".worst tbody tr").first).to_contain_text(re.compile("Node 1499.*700 ms", re.DOTALL))
    expect(in_map(page, 1499)).to_have_class("on level3")
    expect(in_map(page, 777)).to_have_class("on level0")
    page.get_by_role("button", name="Late heaps").click()
    expect(in_map(page, 5)).to_have_class("on level3")
    expect(in_map(page, 6)).to_have_class("on level4")  # from a tenth of its heaps, as in SDP's health
    page.wait_for_event("request", lambda request: "/api/nodes" in request.url)  # the figures are asked for again
    assert {"read", "follow"}.isdisjoint(asked)


def test_what_is_old_or_not_needed_now_is_said_so(open_page: Open) -> None:
    """Before a scan, what only a scan needs is no alarm; without a broker, what comes over the bus is not current."""
    page, calibration = open_page(""), "mid-sdp/calibration/01"
    enums = page.request.get("/api/site").json()["enums"]

    def show(place: str, obs_state: str, *, connected: bool = True) -> None:
        now = time.time()
        says: dict[str, dict[str, Any]] = {
            MASTER: {"State": "ON", "healthState": enums["HealthState"].index("UNKNOWN")},
            BUS: {"State": "ALARM", "connected": connected},
            SUBARRAY: {"State": "ON", "obsState": enums["ObsState"].index(obs_state)},
            calibration: {"State": "ALARM", "Status": f"Silent since {utc_seconds(round(now * 1e6))}."},
        }
        values = {name: {key: [one, "VALID", now, ""] for key, one in some.items()} for name, some in says.items()}
        stream_says(page, values)
        page.goto(page.url.partition("#")[0] + f"#/{place}")
        page.reload()

    show(f"device/{calibration}", "EMPTY")
    state = value(page, calibration, "State")
    expect(state).to_have_class(re.compile("badge soft"))
    expect(state).to_contain_text("ALARM not needed now")
    expect(page.get_by_text(re.compile(r"^Silent since \d\d:\d\d:\d\d UTC\.$"))).to_be_attached()
    show(f"device/{calibration}", "SCANNING")
    expect(state).to_have_class(re.compile("badge ALARM"))
    show("", "EMPTY", connected=False)
    expect(value(page, MASTER, "healthState")).to_have_class(re.compile(r"\bvalid\b"))
    expect(value(page, SUBARRAY, "State")).to_have_class(re.compile("invalid"))
    urgent = page.locator(".tile").filter(has_text="Most urgent alarms")
    expect(urgent).to_contain_text("Not current: no broker answers")


def test_text_of_the_bus_is_text_in_every_field(open_page: Open) -> None:
    """Each field of each page has markup, and none becomes an element."""
    markup = "<img src=x onerror=document.title='bad'>"
    page = open_page("")
    site = page.request.get("/api/site").json()
    scalar, names = {"length": 0}, ("State", "Status")
    values = {
        device: {
            name: [[markup, json.dumps({markup: markup})] if one["length"] else markup, "VALID", time.time(), markup]
            for name, one in {**dict.fromkeys(names, scalar), **site["classes"][kind]["attributes"]}.items()
        }
        for device, kind in site["devices"].items()
    }
    alert = dict.fromkeys(("condition", "source", "severity", "state", "text"), markup)
    values[SUBARRAY]["longRunningCommandStatus"][0] = [markup, "STAGING"]
    values[MASTER]["deviceServers"][0] = sorted(set(site["instances"].values()))  # else no part would be deployed
    command = dict.fromkeys(("id", "name", "status", "text", "operator", "client", "approver", "device"), markup)
    act = dict.fromkeys(("act", "target", "client", "operator", "said", "kind", "rests_on"), markup) | {"time": 1.0}
    letter = dict.fromkeys(("letter", "time", "topic", "reason", "path", "detail", "partition", "offset"), markup)
    count = {"letters": 1, "topic": markup, "reason": markup}
    stream_says(page, values, away=markup, alerts=[{"sequence": 1, "previous": 0, "time": 1.0, "alert": alert}])
    answered(page, "api/site", json.dumps({**site, "banner": markup, "problem": markup, "tango_host": markup}))
    answered(page, "api/alarms", json.dumps([alert]))
    answered(page, "api/commands", json.dumps([command]))
    answered(page, "api/waiting", json.dumps([command | {"device": SUBARRAY, "argument": {markup: markup}}]))
    answered(page, "api/acts", json.dumps([act]))
    answered(page, "api/nodes", json.dumps({"packetLossFraction": [markup, 0.5], markup: [markup]}))
    answered(page, "api/dead-letters", json.dumps({"letters": [letter], "counts": [count]}))
    page.reload()
    for place in PLACES:
        page.goto(page.url.partition("#")[0] + f"#/{place}")
        page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        expect(page.locator("main").get_by_text(markup).first).to_be_attached()
        expect(waiting(page)).to_contain_text(f"{markup} of {SUBARRAY}, given by {markup}, from {markup}")
        assert page.locator("#page img, #page script").count() == 0
    assert page.title() == "SDP"


def test_an_observation_runs_by_forms_and_another_is_aborted(open_page: Open) -> None:
    page = open_page(f"subarray/{SUBARRAY}")
    sign_in(page, "operator")
    state = value(page, SUBARRAY, "obsState")
    said = page.get_by_role("status").first
    given: list[str] = []

    def ends(name: str, reaches: str) -> None:
        """Wait for the outcome: a command is refused while another one is under way."""
        expect(said).to_contain_text(re.compile(rf"^{name} has the id"))
        id = re.search(r"id (\S+)\.$", said.inner_text())
        assert id
        given.append(id[1])
        expect(state).to_have_text(reaches)

        def outcome() -> object:
            commands = page.request.get("/api/commands", params={"device": SUBARRAY}).json()
            return next((one["finished_time"] for one in commands if one["id"] == given[-1]), None)

        until(outcome, f"the outcome of {name}")

    def give(name: str, argument: dict[str, object] | str | None, reaches: str) -> None:
        """Give a command: without an argument, with one, or with the example that fills the form of a version."""
        page.get_by_role("group", name="Commands").get_by_role("button", name=re.compile(rf"^{name}\b")).click()
        send = page.get_by_role("button", name="Send " + name)
        expect(send).to_be_visible()
        text = page.get_by_label("Argument, as JSON")
        if isinstance(argument, str):
            version = page.get_by_label(re.compile("^Version 0"))
            for one in ("0.4", argument):  # the first one is chosen already
                expect(text).to_have_value(re.compile(rf'"https://schema.skao.int/ska-sdp-[a-z]+/{one}"'))
                version.select_option(argument)
        elif argument is not None:
            if name == "AssignResources":
                text.fill("{}{")
                expect(send).to_be_disabled()
            text.fill(json.dumps(argument))
            if name == "Scan":  # a field of the form changes the text
                field = page.get_by_label(re.compile("^scan_id"))
                expect(field).to_have_value("4")  # the form follows the text with the next frame
                field.fill("5")
                field.press("Tab")
                expect(text).to_have_value(re.compile(r'"scan_id": 5\b'))
        send.click()
        ends(name, reaches)

    observe = (
        ("AssignResources", "1.1", "IDLE"),
        ("Configure", "0.4", "READY"),
        ("Scan", sample("scan", "", number=4), "SCANNING"),
    )
    give("On", None, "EMPTY")
    for step in observe:
        give(*step)
    expect(value(page, SUBARRAY, "scanID")).to_have_text("5")
    flow = open_page("flow/blocks")
    for place, row in (("blocks", "pb-mvp01-20261121-00002"), ("reservations", "SKA001, SKA036, SKA063")):
        flow.goto(page.url.partition("#")[0] + f"#/flow/{place}")
        expect(flow.get_by_role("row").filter(has_text=row)).to_contain_text(TIME_IN_UTC)
        assert flow.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the table stays in its tile"
    for step in (("EndScan", None, "READY"), ("End", None, "IDLE"), ("ReleaseAllResources", None, "EMPTY")):
        give(*step)
    give("AssignResources", sample("assignres", "test-20261125-00002"), "IDLE")
    page.get_by_role("button", name="Abort", exact=True).first.click()
    ends("Abort", "ABORTED")
    give("Restart", None, "EMPTY")
    for id in given:
        expect(past_command(page, id)).to_contain_text("COMPLETED")
        expect(past_command(page, id)).to_contain_text("anna, from ")


def alarm_of(system: Deployment, source: str) -> dict[str, Any]:
    found = json.loads(system.proxy("mid-sdp/alerts/0").command_inout("GetAlarms"))
    (alarm,) = (one for one in found if one["source"] == source)
    return alarm


def test_an_alarm_is_acknowledged_shelved_and_its_history_shown(open_page: Open, system: Deployment, web: Web) -> None:
    """Of the node that stays silent: its alarm ends with the deployment."""
    source = f"ingest/{SILENT:04d}"
    until(lambda: alarm_of(system, source)["state"] == "UNACK", "the alarm asks for somebody")
    page = open_page("alarms")
    sign_in(page, "operator")
    row = page.locator(".row").filter(has_text=source)
    row.get_by_role("checkbox").check()
    actions = page.get_by_role("group", name="Actions about 1 alarm")
    expect(actions.get_by_role("button", name="Unshelve")).to_be_disabled()

    def act(action: str, state: str) -> None:
        actions.get_by_role("button", name=action, exact=True).click()
        expect(row).to_contain_text(state)
        assert alarm_of(system, source)["state"] == state

    act("Shelve", "UNACK")
    expect(page.get_by_text("comment: expected a reason, got none")).to_be_visible()
    actions.get_by_label("Comment").fill("<b>seen</b>")
    act("Acknowledge", "ACKED")
    act("Shelve", "SHLVD")
    shelved = alarm_of(system, source)
    assert [(one["action"], one["operator"], one["comment"]) for one in shelved["actions"]] == [
        (action, "anna", "<b>seen</b>") for action in ("ACKNOWLEDGE", "SHELVE")
    ]
    web.process.says(
        "INFO sdp_facade_clients.web.journal act=alarm name='anna' role=operator address="
    )  # by the process itself
    assert 3000 < shelved["shelved_until"] - shelved["acted_at"] <= 3600 + 5  # by the clocks of two processes
    act("Unshelve", "ACKED")
    page.get_by_role("button", name="Sound off").click()
    expect(page.get_by_role("button", name="Sound on")).to_be_visible()
    row.get_by_role("button").click()
    history = page.locator(".tile").filter(has=page.get_by_role("heading", name="History")).get_by_role("row")
    expect(history.filter(has_text="SHELVE").filter(has_text="anna: <b>seen</b>").first).to_be_visible()  # text is text


def press_to(page: Page, wanted: Locator) -> None:
    """Press Tab until the wanted part of the page has the focus."""
    wanted.wait_for()
    for _ in range(300):
        page.keyboard.press("Tab")
        if wanted.evaluate("one => one === document.activeElement"):
            return
    raise AssertionError(f"the keyboard does not reach {wanted}")


def test_the_keyboard_alone_signs_in_and_comments_an_alarm(open_page: Open, system: Deployment) -> None:
    source = f"ingest/{SILENT:04d}"
    page = open_page("alarms")
    press_to(page, page.get_by_role("button", name="Sign in"))
    page.keyboard.press("Enter")
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type(TOKENS["operator"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    press_to(page, page.locator(".row").filter(has_text=source).get_by_role("checkbox"))
    page.keyboard.press("Space")
    actions = page.get_by_role("group", name="Actions about 1 alarm")
    press_to(page, actions.get_by_label("Comment"))
    page.keyboard.type("by keyboard")
    press_to(page, actions.get_by_role("button", name="Comment", exact=True))
    page.keyboard.press("Enter")
    until(lambda: alarm_of(system, source)["actions"][-1]["comment"] == "by keyboard", "the comment is at the alarm")


def shows_replay(page: Page) -> None:
    """Let the stream of a page say that a device shows a replay."""
    stream_says(page, {BUS: {"Status": ["REPLAY of an archive.\nThe device is in ON state.", "VALID", 1.0, ""]}})


def test_every_page_marks_a_replay(open_page: Open) -> None:
    page = open_page("")
    expect(page.get_by_role("note")).to_have_text(["Test data"])
    shows_replay(page)
    page.reload()
    for place in ("", "alarms", f"subarray/{SUBARRAY}", "flow/quality", "bus"):
        page.goto(page.url.partition("#")[0] + f"#/{place}")
        expect(page.get_by_role("note")).to_have_text(["Test data", re.compile("^REPLAY: of an archive")])


def test_an_attribute_is_explored_in_open_mct(open_page: Open) -> None:
    page = open_page("")
    shows_replay(page)
    key = "mid-sdp~bus~0"
    page.goto(page.url.replace("#/", f"explore/#/browse/sdp:root/sdp:SdpBus/sdp:{key}/sdp:{key}~ingestHeapsRate"))
    expect(page.get_by_text("Fault Management").first).to_be_visible()
    expect(page.locator(".plot-series-name").filter(has_text="mid-sdp/bus/0").first).to_be_visible()
    expect(page.get_by_text("Test data")).to_be_attached()
    expect(page.get_by_text("REPLAY: of an archive")).to_be_attached()


def set_aside(system: Deployment, *values: bytes) -> Iterator[str]:
    """Let records of the node 0 have become dead letters; give the place of each, as the page shows it."""
    for value, offset in zip(values, _offsets, strict=False):
        yield f"0@{offset}"
        record = Record(topic="ingest.heaps", key=b"0", value=value, partition=0, offset=offset)
        system.send(dead_letter(record, RecordRejected("unknown-node", "$.node", "expected 0 to 3, got 7"), by="test"))


def heap_now(seq: int) -> bytes:
    """Return a heap of a time at which it is used, of another scan than the simulator's."""
    (value,) = encoded(heap(seq=seq, scan_id=6, time=round(time.time() * 1e6)))
    assert value is not None
    return value


def test_six_questions_of_an_operator_are_answered_in_two_clicks(open_page: Open, system: Deployment) -> None:
    page = open_page("")
    menu = page.get_by_role("navigation", name="Pages")

    # Is all well?
    Asking(page)
    well = page.locator(".tile").filter(has_text="Is all well?")
    expect(well).to_contain_text("DEGRADED")
    expect(well.get_by_role("listitem").filter(has_text=f"ingest/{LATE:04d}").first).to_be_visible()

    # What do I do?
    asking, source = Asking(page), f"ingest/{LATE:04d}"
    worst = page.locator(".tile").filter(has_text="Most urgent alarms").get_by_role("row").filter(has_text=source)
    asking.click(worst.get_by_role("link"))
    one = page.locator(".tile").filter(has_text="One alarm")
    expect(one.get_by_role("heading", name="Response")).to_be_visible()
    expect(one).to_contain_text("look at its clock")
    assert "`" not in one.inner_text()

    # Which node loses packets? The simulator's rarely do: another figure, and the node that it names.
    asking = Asking(page)
    expect(page.locator(".worst tbody tr").first.locator("td").first).to_contain_text("%")
    asking.click(page.get_by_role("button", name="Late heaps"))
    late = page.locator(".worst tbody tr").first
    expect(late).to_contain_text(f"Node {LATE}")
    asking.click(late.get_by_role("link"))
    expect(page.get_by_text("came too late for their window: they are in totals")).to_be_visible()

    # What did we command or get refused, and who did it?
    other = open_page(f"subarray/{subarray_device(2)}")
    sign_in(other, "operator")
    other.get_by_role("group", name="Commands").get_by_role("button", name=re.compile("^On")).click()
    other.get_by_role("button", name="Send On").click()
    expect(other.get_by_role("status").first).to_contain_text("On has the id")
    refused = {"device": subarray_device(2), "command": "Scan", "argument": json.dumps(sample("scan", "", number=4))}
    headers = {"Origin": other.url.partition("/#")[0]}
    assert other.request.post("/api/command", data=refused, headers=headers).status == 409
    asking = Asking(page)
    asking.click(menu.get_by_role("link", name="Who did what"))
    acts = page.get_by_role("group", name="What people did")
    of_subarray = acts.get_by_role("row").filter(has_text=subarray_device(2))
    expect(of_subarray.filter(has_text="anna").filter(has_text=re.compile(r"On\s*command")).first).to_be_visible()
    expect(of_subarray.filter(has_text="Scan refused")).to_contain_text("not allowed")
    expect(acts.get_by_role("row").filter(has_text="sign-in at the page").filter(has_text="anna").first).to_be_visible()
    page.get_by_role("searchbox", name="Person").fill("anna")
    page.get_by_label("Kind").select_option("refusal")
    expect(acts.get_by_role("row").filter(has_text=re.compile(r"On\s*command"))).to_have_count(0)
    expect(acts).to_contain_text("Scan refused")
    listed = json.loads(system.command("audit", "--since", "1h", "--by", "anna", "--kind", "refusal", "--json"))
    assert {(one["act"], one["target"]) for one in listed} >= {("Scan refused", subarray_device(2))}
    assert {one["kind"] for one in listed} == {"refusal"}

    # Was the latency higher an hour ago?
    asking = Asking(page)
    latency = page.locator(f'[data-plot="{MASTER}/latencyP99"]')
    expect(latency).to_contain_text("last hour; warning from 500 ms; alarm from 2.0 s; begins at ")
    page.get_by_label("Trends of the last").select_option("12 h")
    expect(latency).to_contain_text("last 12 h")
    expect(latency.get_by_role("img")).to_be_visible()

    # Which calibration is valid?
    asking = Asking(page)
    asking.click(menu.get_by_role("link", name="Calibration"))
    of_first = page.get_by_role("row").filter(has=page.get_by_role("link", name="mid-sdp/calibration/01"))
    expect(of_first).to_contain_text(system.read_one("mid-sdp/calibration/01", "solutionId"))
    expect(of_first).to_contain_text(re.compile(r"UTC .*(ago|in \d+)"))
    expect(of_first).to_contain_text(re.compile("01: [A-Z]+"))


def test_an_alarm_is_acted_on_and_dead_letters_are_put_back(open_page: Open, system: Deployment) -> None:
    page = open_page("")
    sign_in(page, "expert")
    source = f"ingest/{LATE:04d}"
    worst = page.locator(".tile").filter(has_text="Most urgent alarms").get_by_role("row").filter(has_text=source)
    worst.get_by_role("link").click()
    one = page.locator(".tile").filter(has_text="One alarm")
    one.get_by_label("Comment").fill("its clock is being set")
    one.get_by_role("button", name="Acknowledge").click()
    expect(one).to_contain_text("ACKED")
    one.get_by_role("button", name="Shelve", exact=True).click()
    expect(one).to_contain_text("shelved until")
    assert alarm_of(system, source)["state"] == "SHLVD"

    values = [heap_now(1), heap_now(2)]
    places = [*set_aside(system, *values)]
    page.get_by_role("link", name="Bus").click()
    expect(page.locator("select", has=page.locator("option[value='10m']"))).to_have_value("10m")
    for place in places:
        expect(page.get_by_role("row").filter(has_text=place)).to_contain_text("unknown-node")
    page.get_by_role("button", name=re.compile(r"^Try all \d \(dry run\)$")).click()
    expect(page.get_by_role("table").filter(has_text="Dry run")).to_contain_text("put back")
    page.get_by_role("button", name=re.compile("^Put back [2-9]$")).click()
    expect(page.get_by_text("records were put back.")).to_be_visible()
    assert {one.value() for one in system.messages("ingest.heaps")} >= {*values}


def test_the_newest_alerts_are_there_after_a_restart_of_the_server(open_page: Open, web: Web) -> None:
    """Otherwise the last hour looks quiet, as soon as somebody starts the server again."""
    page = open_page("")
    newest = page.locator(".tile").filter(has_text="Newest alerts").get_by_role("row")
    expect(newest).to_have_count(3)
    web.process.kill()
    expect(page.get_by_role("alert")).to_contain_text("No connection to the server of this page since")
    web.start()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(newest).to_have_count(3)


def test_the_judgement_says_what_to_do_and_leads_to_the_alarm(open_page: Open) -> None:
    """The page said that there was nothing to do beside an alarm that waited."""
    page = open_page("")
    well = page.locator(".tile").filter(has_text="Is all well?")
    silent = well.get_by_role("listitem").filter(has_text=f"Stream silent: ingest/{SILENT:04d}")
    expect(silent).to_contain_text("sends no records")
    expect(silent).to_contain_text("Look at the source of the stream")
    silent.get_by_role("link").click()
    expect(page.locator(".tile").filter(has_text="One alarm")).to_contain_text(f"ingest/{SILENT:04d}")
    page.route("**/api/judgement", lambda route: route.fulfill(json=WAITS))
    page.goto(page.url.partition("#")[0] + "#/")
    expect(well).to_contain_text("ATTENTION")
    expect(well).not_to_contain_text("Nothing to do")
    expect(well.get_by_role("link")).to_have_attribute("href", "#/alarms/serverGone%40sdp-facade%2Fingest-00")
    # Without SdpAlerts as well: the judgement says what to do about it.
    page.route("**/api/alarms", lambda route: route.fulfill(status=503, json={"error": "SdpAlerts does not answer"}))
    page.reload()
    expect(page.locator(".tile").filter(has_text="Most urgent alarms")).to_contain_text("SdpAlerts does not answer")
    expect(well).to_contain_text("ATTENTION")


WAITS = {
    "state": "ATTENTION",
    "idle": False,
    "findings": [
        {"level": "ATTENTION", "about": "serverGone of sdp-facade/ingest-00", "text": "CRITICAL RTNUN: silent"}
        | {"do": "It is over.", "alarm": "serverGone@sdp-facade/ingest-00", "severity": "CRITICAL", "device": ""}
    ],
}


PLACES = (
    "",
    "alarms",
    f"subarray/{SUBARRAY}",
    f"node/{node_device(0)}",
    "bus",
    "nodes",
    "acts",
    "devices",
    "device/mid-sdp/calibration/01",
    "flow/tables",
    "flow/quality",
    "flow/logs",
    "flow/mirror",
    "flow/blocks",
    "flow/reservations",
)


@pytest.mark.parametrize("place", PLACES)
def test_every_page_is_for_everybody(open_page: Open, place: str) -> None:
    """No finding of axe-core, and the keyboard alone reaches the content."""
    page = open_page(place)
    settled(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.evaluate(AXE.read_text())
    # Themes differ in colours only.
    rules: dict[str, dict[str, object]] = {
        "light": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]},
        "dark": {"type": "rule", "values": ["color-contrast"]},
    }
    for theme, only in rules.items():
        expect(page.locator(f"html[data-theme={theme}]")).to_have_count(1)
        settled(page)
        found = page.evaluate("(only) => axe.run({runOnly: only, resultTypes: ['violations']})", only)
        wrong = [(one["id"], [node["html"][:150] for node in one["nodes"]][:3]) for one in found["violations"]]
        assert (theme, wrong) == (theme, [])
        page.get_by_role("button", name="Dark or light").click()
    for width in (3840, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_certificate_files_give_tls(system: Deployment, tmp_path: Path) -> None:
    """Browsers are told to come by TLS from then on, and others are not answered."""
    key, certificate, port = tmp_path / "key.pem", tmp_path / "certificate.pem", choose_port()
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-subj", "/CN=page", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out"]
    subprocess.run([*argv, str(certificate)], check=True, capture_output=True, timeout=HANG)
    argv = ["sdp-facade", "web", "--port", str(port), "--certificate", str(certificate), "--key", str(key)]
    process = system.start("web-tls", argv)
    process.says(f"https://localhost:{port}")
    trusted = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(certificate)))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusted)

    def security() -> str:
        try:
            with opener.open(f"https://localhost:{port}/", timeout=HANG) as answer:
                return str(answer.headers["Strict-Transport-Security"])
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):  # the address is printed a moment before
                return ""
            raise

    until(lambda: "max-age=" in security(), "the page is served by TLS")
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        opener.open(f"http://localhost:{port}/", timeout=HANG)
    process.terminate()


def test_nothing_old_looks_new(open_page: Open, system: Deployment, web: Web) -> None:
    """Each process on the way of a value is stopped in turn: each tile that depends on it looks so, and comes back."""
    page = open_page("")
    rate = value(page, BUS, "ingestHeapsRate")
    node = in_map(page, 0)
    expect(rate).to_have_class(re.compile(r"\bvalid\b"))
    expect(node).to_have_class(re.compile("^on "))
    server = system.processes["ingest-00"]
    server.send(signal.SIGSTOP)
    system.processes["aggregate-0"].kill()
    expect(node).to_have_class("invalid")  # no State of a device is that
    expect(value(page, MASTER, "heapRate")).to_have_class(re.compile("invalid"))  # its server goes on
    server.send(signal.SIGCONT)
    system.worker()  # it needs no Tango database
    database = system.processes["tango-db"]
    database.send(signal.SIGSTOP)
    expect(page.get_by_role("alert")).to_contain_text("has not answered since")
    database.send(signal.SIGCONT)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(node).to_have_class(re.compile("^on "))
    expect(value(page, MASTER, "heapRate")).to_have_class(re.compile(r"\b(valid|warning)\b"))
    expect(rate).to_have_class(re.compile(r"\bvalid\b"))
    with system.broker.frozen():
        expect(rate).to_have_class(re.compile("invalid"))
    web.process.kill()
    expect(page.get_by_role("alert")).to_contain_text("No connection to the server of this page since")
    expect(rate).to_have_class(re.compile("invalid"))
    web.start()
    expect(page.get_by_role("alert")).to_have_count(0)

    def is_valid() -> bool:
        # A worker may end if the broker hangs for longer than a session; its service manager starts it again.
        if not system.processes["aggregate-0"].is_alive:
            system.worker()
        return re.search(r"\bvalid\b", rate.get_attribute("class") or "") is not None

    until(is_valid, "the rate is valid")
    states = (tango.DevState.ON, tango.DevState.ALARM)
    until(lambda: system.proxy(MASTER).state() in states, "SDP goes on")


RECORDED_TONES = """() => {
  window.tones = [];
  window.AudioContext = class {
    createGain() { return { gain: {}, connect: () => null }; }
    createOscillator() {
      const frequency = {};
      return { frequency, connect: (other) => other, start: () => tones.push(frequency.value), stop() {} };
    }
  };
}"""
"""Keeps the frequencies of the tones of a page."""


def test_ten_thousand_alarms_are_a_list_of_which_a_part_is_drawn(open_page: Open) -> None:
    """A choice survives each change of the list, and a filter finds one of them; a suppressed one makes no tone."""
    turns = iter(range(1, 1_000_000))

    def alarms(number: int) -> list[dict[str, object]]:
        states, severities = ("UNACK", "ACKED", "RTNUN"), ("CRITICAL", "ALARM", "WARNING", "INFO")
        return [
            {"condition": "streamLate", "source": f"node/{one:05d}"}
            | {"state": states[(one + number) % 3] if one % 4 else "DSUPR"}
            | {"severity": severities[one % 4], "text": f"turn {number}", "occurrence": one, "raised_at": 1.0}
            for one in range(10_000)
        ]

    page = open_page("bus")
    page.route("**/api/alarms", lambda route: route.fulfill(json=alarms(next(turns))))
    page.evaluate(RECORDED_TONES)
    page.get_by_role("button", name="Sound off").click()
    page.get_by_role("link", name=re.compile("^Alarms")).click()
    expect(page.get_by_text("Choose all 10000")).to_be_visible()
    expect(page.locator(".rows .row").first).to_be_visible()
    assert page.locator(".rows .row").count() <= 60
    page.get_by_label("Filter").fill("node/00777")
    page.get_by_label("Choose streamLate@node/00777").check()
    page.get_by_label("Filter").fill("")
    text = page.locator(".rows .row").first.inner_text()
    until(lambda: page.locator(".rows .row").first.inner_text() != text, "the list has changed")
    page.locator(".rows").evaluate("(rows) => { rows.scrollTop = rows.scrollHeight; }")
    expect(page.locator(".rows .row").last).to_be_visible()
    page.get_by_label("Filter").fill("node/00777")
    expect(page.get_by_label("Choose streamLate@node/00777")).to_be_checked()
    until(lambda: {*page.evaluate("tones")} == {660}, "the tone of ALARM, the worst severity of those that are told")


def test_standby_takes_two_persons_and_the_mode_an_expert(open_page: Open) -> None:
    page, other = open_page(f"device/{MASTER}"), open_page("")
    expect(page.get_by_role("button", name="Set")).to_be_disabled()
    sign_in(page, "operator")
    sign_in(other, "expert")
    page.get_by_role("group", name="Commands").get_by_role("button", name="Standby").click()
    approve, withdraw = (f"{word} Standby of {MASTER}" for word in ("Approve", "Withdraw"))

    def give() -> str:
        page.get_by_role("button", name="Send Standby").click()
        expect(waiting(page)).to_contain_text(f"Standby of {MASTER}, given by anna, from ")
        expect(page.get_by_role("status").first).to_contain_text("Standby has the id")
        return page.get_by_role("status").first.inner_text().split()[-1].rstrip(".")

    id = give()
    expect(waiting(page).get_by_role("button")).to_have_accessible_name(withdraw)
    expect(waiting(other).get_by_role("button")).to_have_accessible_name(approve)
    other.evaluate(AXE.read_text())
    assert other.evaluate("axe.run('.waiting', {resultTypes: ['violations']})")["violations"] == []
    # What a device refuses is said with its reason.
    refused = json.dumps({"device": MASTER, "decision": "withdraw", "id": id})
    other.route("**/api/decide", lambda route: route.continue_(post_data=refused), times=1)
    waiting(other).get_by_role("button").click()
    expect(waiting(other)).to_contain_text("expected the person who gave it, anna, from ")
    waiting(page).get_by_role("button", name=withdraw).press("Enter")
    expect(waiting(page)).to_have_text("Standby is withdrawn.")
    expect(past_command(page, id)).to_contain_text("ABORTED")
    expect(waiting(other).get_by_role("button")).to_have_count(0)
    id = give()
    waiting(other).get_by_role("button", name=approve).click()
    expect(waiting(other)).to_have_text("Standby is approved.")
    expect(value(page, MASTER, "State")).to_contain_text("STANDBY")
    expect(past_command(page, id)).to_contain_text("COMPLETED")
    expect(past_command(page, id)).to_contain_text("; approved by eve, from ")
    other.goto(page.url)
    other.get_by_label("new mode").select_option("ENGINEERING")
    other.get_by_role("button", name="Set").click()
    expect(value(other, MASTER, "adminMode")).to_contain_text("ENGINEERING")


def test_what_would_fail_again_is_not_put_back(open_page: Open, system: Deployment) -> None:
    bad, good = set_aside(system, b"<script>no heap</script>", heap_now(0))
    page = open_page("bus")
    sign_in(page, "expert")
    row = page.get_by_role("row").filter(has_text=bad)
    row.get_by_role("button").click()
    expect(page.locator("pre")).to_contain_text("<script>no heap</script>")  # text is text
    row.get_by_role("checkbox").check()
    page.get_by_role("row").filter(has_text=good).get_by_role("checkbox").check()
    page.get_by_role("button", name="Try 2 chosen (dry run)").click()
    dry = page.get_by_role("table").filter(has_text="Dry run")
    expect(dry).to_contain_text("1 of 2 would be put back")
    expect(dry.get_by_role("row").filter(has_text="fails")).to_contain_text("ingest.heaps")
    row.get_by_role("checkbox").uncheck()
    expect(dry).to_have_count(0)  # what is put back has been tried
    expect(page.get_by_role("button", name=re.compile("^Put back"))).to_have_count(0)


def test_a_flow_has_a_page_where_it_is_deployed(open_page: Open, system: Deployment) -> None:
    page = open_page("")
    pages = page.get_by_role("navigation", name="Pages")
    pages.get_by_role("link", name="Calibration").click()
    device = "mid-sdp/calibration/01"
    expect(value(page, device, "solutionId")).to_contain_text(system.read_one(device, "solutionId"))
    expect(value(page, device, "validUntilUtc")).to_contain_text(TIME_IN_UTC)
    gains = page.get_by_role("img", name=re.compile("^Gain amplitude over Channel frequencies"))
    expect(gains).to_have_accessible_name(
        re.compile(r"from 0\.\d+ to 1\.\d+, of .* 8 rows of 64, from left to right .*Hz to ")
    )
    expect(page.get_by_role("img", name=re.compile("^Amplitude per antenna over Antennas: from 0"))).to_be_visible()
    pages.get_by_role("link", name="Quality").click()
    limits = page.locator("dd").filter(has=page.locator('[data-value="mid-sdp/quality/01/flaggedFraction"]'))
    expect(limits).to_contain_text("warning from 30 %, alarm from 70 %")
    fall = page.get_by_role("img", name=re.compile("^Bandpass over Channel frequencies .*waterfall"))
    expect(fall).to_have_accessible_name(re.compile("; ([2-9]|[0-9]{2,}) rows of 1024"))
    pages.get_by_role("link", name="Processing blocks").click()
    expect(value(page, MASTER, "blocksRunning")).to_contain_text("0")
    page.get_by_role("navigation", name="Devices").get_by_role("link", name=SUBARRAY).click()
    expect(value(page, SUBARRAY, "blocksRunning")).to_contain_text("0")
    for title in ("Logs", "Telescope model", "Reservations"):
        pages.get_by_role("link", name=title).click()
        expect(page.get_by_role("heading", name=f"{title}: mid-sdp/")).to_be_visible()

    # A part that is left out is registered all the same.
    servers = ["alerts", "calibration", "control", "ingest-00", "quality", "subarray"]
    stream_says(page, {MASTER: {"deviceServers": [servers, "VALID", time.time(), ""]}})
    page.reload()
    expect(pages.get_by_role("link", name="Quality")).to_be_visible()
    expect(pages.get_by_role("link", name=re.compile("Logs|Telescope"))).to_have_count(0)
