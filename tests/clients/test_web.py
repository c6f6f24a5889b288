"""The operator's page in a real browser: an operator's shift on the real devices."""

import json
import re
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tango
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from clients.sample_arguments import sample
from facade.infra import local
from facade.infra.ports import choose_port
from tests.clients.conftest import whole_system
from tests.support.deployment import BUS, MASTER, Deployment, node_device, subarray_device
from tests.support.processes import Running
from tests.support.waiting import HANG, until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

TOKENS = {"operator": "token-of-anna-the-operator", "expert": "token-of-eve-the-expert"}
SUBARRAY = subarray_device(1)
AXE = Path(__file__).parents[2] / ".venv/web/node_modules/axe-core/axe.min.js"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
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
    with whole_system(infra, tmp_path_factory.mktemp("web")) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def web(system: Deployment) -> Web:
    return Web(system)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "there is no chromium; install it by: scripts/bootstrap clients"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


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


def value(page: Page, device: str, attribute: str) -> Locator:
    return page.locator(f'[data-value="{device}/{attribute}"]').first


def test_the_overview_says_what_the_devices_say(open_page: Open, system: Deployment) -> None:
    page = open_page("")
    expect(page.get_by_role("note")).to_have_text("Test data")
    label = {0: "OK", 1: "DEGRADED", 2: "FAILED", 3: "UNKNOWN"}[system.read_one(MASTER, "healthState")]
    expect(value(page, MASTER, "healthState")).to_contain_text(label)
    expect(value(page, MASTER, "nodesExpected")).to_contain_text("4")
    expect(page.locator(".map a.on")).not_to_have_count(0)
    expect(value(page, SUBARRAY, "obsState")).to_have_text("EMPTY")
    # Two browsers agree.
    other = open_page("")
    expect(value(other, SUBARRAY, "obsState")).to_have_text("EMPTY")


def test_who_has_not_signed_in_cannot_act(open_page: Open, web: Web) -> None:
    page = open_page(f"subarray/{SUBARRAY}")
    expect(page.get_by_role("button", name="Abort", exact=True).first).to_be_disabled()
    body = json.dumps({"device": SUBARRAY, "command": "Abort", "argument": ""}).encode()
    for origin in (web.address, "http://evil.example"):
        request = urllib.request.Request(
            f"{web.address}/api/command", body, {"Content-Type": "application/json", "Origin": origin}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            OPENER.open(request, timeout=HANG)
        assert refused.value.code == 403
        refused.value.close()


def test_an_observation_runs_by_forms_and_another_is_aborted(open_page: Open) -> None:
    page = open_page(f"subarray/{SUBARRAY}")
    sign_in(page, "operator")
    state = value(page, SUBARRAY, "obsState")

    def give(name: str, argument: dict[str, object] | None, reaches: str) -> None:
        page.get_by_role("group", name="Commands").get_by_role("button", name=re.compile(rf"^{name}\b")).click()
        if argument is not None:
            text = page.get_by_label("Argument, as JSON")
            text.fill("{}{")
            expect(page.get_by_text("Send " + name)).to_be_disabled()
            text.fill(json.dumps(argument))
        page.get_by_role("button", name="Send " + name).click()
        expect(state).to_have_text(reaches)

    observe = (
        ("AssignResources", sample("assignres", "test-20261125-00001"), "IDLE"),
        ("Configure", sample("configure", ""), "READY"),
        ("Scan", sample("scan", "", number=5), "SCANNING"),
    )
    give("On", None, "EMPTY")
    for step in observe:
        give(*step)
    expect(value(page, SUBARRAY, "scanID")).to_have_text("5")
    for step in (("EndScan", None, "READY"), ("End", None, "IDLE"), ("ReleaseAllResources", None, "EMPTY")):
        give(*step)
    give("AssignResources", sample("assignres", "test-20261125-00002"), "IDLE")
    page.get_by_role("button", name="Abort", exact=True).first.click()
    expect(state).to_have_text("ABORTED")
    expect(page.get_by_role("cell", name=re.compile("^Abort"))).to_be_visible()
    give("Restart", None, "EMPTY")


def test_an_alarm_is_acknowledged_shelved_and_its_history_shown(open_page: Open, system: Deployment) -> None:
    page = open_page("alarms")
    sign_in(page, "operator")
    alarms = json.loads(system.proxy("mid-sdp/alerts/0").command_inout("GetAlarms"))
    alarm = next(one for one in alarms if one["state"] == "UNACK")
    row = page.locator(".row", has_text=alarm["source"]).filter(has_text="UNACK").first
    row.get_by_role("checkbox").check()
    actions = page.get_by_role("group", name="Actions about 1 alarms").first
    actions.get_by_label("Comment").fill("<b>seen</b>")
    actions.get_by_role("button", name="Acknowledge").click()

    def now() -> dict[str, object]:
        found = json.loads(system.proxy("mid-sdp/alerts/0").command_inout("GetAlarms"))
        keys = ("condition", "source")
        return next((one for one in found if all(one[key] == alarm[key] for key in keys)), {"state": "NORM"})

    until(lambda: now()["state"] in ("ACKED", "NORM"), "acknowledged")
    actions.get_by_role("button", name="Shelve", exact=True).click()
    until(lambda: now()["state"] in ("SHLVD", "NORM"), "shelved")
    page.locator(".row", has_text=alarm["source"]).first.get_by_role("button").click()
    expect(page.get_by_text("<b>seen</b>").first).to_be_visible()  # text is text
    assert any(one["operator"] == "anna" for one in now().get("actions", [{"operator": "anna"}]))


def test_the_last_hour_of_a_node_is_one_click_away(open_page: Open) -> None:
    page = open_page("")
    page.locator(f'.map a[aria-label^="{node_device(0)}"]').click()
    expect(page.locator("figure.trend canvas").first).to_be_visible()
    asked = {"device": node_device(0), "attribute": "heapRate"}
    until(lambda: len(page.request.get("/api/trend", params=asked).json()[1]) > 2, "the trend has points")


def test_an_attribute_is_explored_in_open_mct(open_page: Open) -> None:
    page = open_page("")
    key = "mid-sdp~bus~0"
    page.goto(page.url.replace("#/", f"explore/#/browse/sdp:root/sdp:SdpBus/sdp:{key}/sdp:{key}~ingestHeapsRate"))
    expect(page.get_by_text("Fault Management").first).to_be_visible()
    expect(page.locator(".plot-series-name").filter(has_text="mid-sdp/bus/0").first).to_be_visible()


def test_dead_letters_are_shown_and_tried(open_page: Open, system: Deployment) -> None:
    page = open_page("bus")
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_text("The bus is read")).to_have_count(0)
    expect(page.locator("main .said.wrong")).to_have_count(0)


PLACES = (
    "",
    "alarms",
    f"subarray/{SUBARRAY}",
    f"node/{node_device(0)}",
    "bus",
    "devices",
    "device/mid-sdp/calibration/01",
)


@pytest.mark.parametrize("place", PLACES)
def test_every_page_is_for_everybody(open_page: Open, place: str) -> None:
    """No finding of axe-core, and the keyboard alone reaches the content."""
    page = open_page(place)
    expect(page.locator("main h2").first).to_be_visible()
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})")
    wrong = [(one["id"], [node["html"][:150] for node in one["nodes"]][:3]) for one in found["violations"]]
    assert wrong == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


def test_nothing_old_looks_new(open_page: Open, system: Deployment, web: Web) -> None:
    """Each process on the way of a value is stopped in turn: each tile that depends on it looks so, and comes back."""
    page = open_page("")
    rate = value(page, BUS, "ingestHeapsRate")
    node = page.locator(f'.map a[aria-label^="{node_device(0)}"]')
    expect(rate).to_have_class(re.compile(r"\bvalid\b"))
    expect(node).to_have_class("on")
    server = system.processes["ingest-00"]
    server.send(signal.SIGSTOP)
    expect(node).to_have_class("invalid")
    server.send(signal.SIGCONT)
    expect(node).to_have_class("on")
    system.processes["aggregate-0"].kill()
    expect(value(page, MASTER, "heapRate")).to_have_class(re.compile("invalid"))
    system.worker()
    expect(value(page, MASTER, "heapRate")).to_have_class(re.compile(r"\b(valid|warning)\b"))
    database = system.processes["tango-db"]
    database.send(signal.SIGSTOP)
    expect(page.get_by_role("alert")).to_contain_text("does not answer since")
    database.send(signal.SIGCONT)
    expect(page.get_by_role("alert")).to_have_count(0)
    with system.broker.frozen():
        expect(rate).to_have_class(re.compile("invalid"))
    expect(rate).to_have_class(re.compile(r"\bvalid\b"))
    web.process.kill()
    expect(page.get_by_role("alert")).to_contain_text("No connection to the server of this page since")
    expect(rate).to_have_class(re.compile("invalid"))
    web.start()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(rate).to_have_class(re.compile(r"\bvalid\b"))
    assert system.proxy(MASTER).state() in (tango.DevState.ON, tango.DevState.ALARM)


def test_ten_thousand_alarms_are_a_list_of_which_a_part_is_drawn(open_page: Open) -> None:
    """A choice survives each change of the list, and a filter finds one of them."""
    turns = iter(range(1, 1_000_000))

    def alarms(number: int) -> list[dict[str, object]]:
        states, severities = ("UNACK", "ACKED", "RTNUN"), ("CRITICAL", "ALARM", "WARNING", "INFO")
        return [
            {"condition": "streamLate", "source": f"node/{one:05d}", "state": states[(one + number) % 3]}
            | {"severity": severities[one % 4], "text": f"turn {number}", "occurrence": one, "raised_at": 1.0}
            for one in range(10_000)
        ]

    page = open_page("bus")
    page.route("**/api/alarms", lambda route: route.fulfill(json=alarms(next(turns))))
    page.get_by_role("link", name=re.compile("^Alarms")).click()
    expect(page.get_by_text("Choose all 10000")).to_be_visible()
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


def test_an_expert_switches_sdp_and_its_mode(open_page: Open) -> None:
    page = open_page(f"device/{MASTER}")
    expect(page.get_by_role("button", name="Set")).to_be_disabled()
    sign_in(page, "expert")
    page.get_by_role("group", name="Commands").get_by_role("button", name="Standby").click()
    page.get_by_role("button", name="Send Standby").click()
    expect(value(page, MASTER, "State")).to_contain_text("STANDBY")
    page.get_by_label("new mode").select_option("ENGINEERING")
    page.get_by_role("button", name="Set").click()
    expect(value(page, MASTER, "adminMode")).to_contain_text("ENGINEERING")
