"""The page shows a second of the past in a real browser, and nobody acts there."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest
from playwright.sync_api import Browser, Locator, Page, Position, Route, expect

from facade.archive.stores import FolderStore
from facade.flows.alerts.messages import CLEARED, Alert, alert_record, state_record
from facade.infra.ports import choose_port
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.clock import Clock, SystemClock, as_time, utc_text
from facade.sdp import alarm_states as states
from sdp_facade_clients.web import app as web_app
from sdp_facade_clients.web import site as web_site
from sdp_facade_clients.web.app import make_app
from sdp_facade_clients.web.archived import ArchivedAnswers
from sdp_facade_clients.web.doors import Doors, read_tokens
from sdp_facade_clients.web.site import Site
from tests.archive import test_post_mortem as post_mortem
from tests.archive.test_history_archive import RATE, SECOND, record
from tests.archive.test_moment_archive import KEY, SUBARRAY, TOPICS, alarm, at, night, put
from tests.clients.test_timeline import command
from tests.clients.test_web_app import Asked, kept
from tests.clients.test_web_feed import Scene
from tests.interoperability.asking import Asking
from tests.interoperability.page_server import in_background
from tests.support.deployment import BUS, ICD, MASTER, node_device
from tests.support.waiting import HANG

TOKEN = "operator-token-00001"
NODE, _, _ = RATE.rpartition("/")
READ = "Nobody can act here."
"""What the page says when the archive has answered."""
ALERTS, OTHER_NODE = "mid-sdp/alerts/0", node_device(2)
DEVICES = {NODE: "SdpIngestNode", SUBARRAY: "SdpSubarray", MASTER: "SdpMaster", ALERTS: "SdpAlerts", BUS: "SdpBus"}
DEVICES[OTHER_NODE] = "SdpIngestNode"
expect.set_options(timeout=HANG * 1000)


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve a page whose devices say EMPTY now, with an archive of ten minutes."""
    night(tmp_path)
    with served(tmp_path, monkeypatch, SystemClock()) as found:
        yield found


@contextmanager
def served(folder: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, post_mortems: str = "") -> Iterator[str]:
    """Serve a page with an archive."""
    Asked.calls, Asked.error, Asked.commands = [], None, []
    monkeypatch.setattr(web_site, "AskedDevice", Asked)
    monkeypatch.setattr(web_app, "SystemClock", lambda: clock)
    scene = Scene(clock)
    scene.change("EMPTY", attribute="obsState", device=SUBARRAY)
    scene.change(2, attribute="unacknowledgedCount", device=ALERTS)
    site = Site("db:10000", ICD, lambda: DEVICES, clock)
    answers = ArchivedAnswers(FolderStore(folder), ICD, site, clock, 50, post_mortems)
    doors = Doors(lambda: read_tokens(f"operator anna {TOKEN}", ""), SystemClock())
    app = make_app(scene.feed, site, doors, hosts=["localhost"], answers=answers, keep=kept.append, comment=kept.append)
    with in_background(app, port := choose_port()):
        yield f"http://localhost:{port}"


def opened(browser: Browser, address: str) -> Page:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(HANG * 1000)
    page.goto(address)
    return page


def state(page: Page, device: str = SUBARRAY, attribute: str = "obsState") -> str:
    return f'[data-value="{device}/{attribute}"]'


def test_a_second_of_the_past_is_shown_marked_linked_and_left(browser: Browser, address: str) -> None:
    page = opened(browser, f"{address}/#/subarray/{SUBARRAY}")
    obs_state = page.locator(state(page)).first
    bar = page.get_by_role("region", name="Time of the page")
    expect(obs_state).to_have_text("EMPTY")
    expect(bar).to_have_count(0)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    abort = page.get_by_role("button", name="Abort")
    expect(abort).to_be_enabled()
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    # The newest second, then one that is chosen, and one step before it.
    page.get_by_role("button", name="Look back").click()
    expect(bar).to_contain_text("PAST: 2027-01-15 08:10:00 UTC")
    expect(bar).to_contain_text("Now: 2 unacknowledged alarms")
    expect(obs_state).to_have_text("SCANNING")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
    expect(page.get_by_role("group", name="Past commands")).to_contain_text(
        re.compile("Scan.*COMPLETED.*anna", re.DOTALL)
    )
    page.get_by_label("Time (UTC)").fill("2027-01-15T08:05:00")
    expect(bar).to_contain_text("08:05:00 UTC")
    expect(obs_state).to_have_text("SCANNING")
    page.get_by_label("Step", exact=True).select_option("1 s")
    page.get_by_role("button", name="Step back").click()
    expect(bar).to_contain_text("08:04:59 UTC")
    expect(obs_state).to_have_text("IDLE")
    # Nothing is offered, and what is sent all the same is refused.
    expect(abort).to_have_count(0)
    expect(page.get_by_role("heading", name="Give a command")).to_have_count(0)
    expect(page.get_by_text("The page shows the past, where nobody can act.")).to_be_visible()
    said = page.evaluate(
        "import('/store.js').then(({ act }) => act('command', { device: 'd' })).catch((error) => error.message)"
    )
    assert said.startswith("at: expected a page that shows now")
    assert not [one for one in Asked.calls if one[1] == "GiveCommand"]
    # Whoever opens the address sees the same; other pages keep the second.
    other = opened(browser, page.url)
    assert "?at=2027-01-15T08:04:59Z#" in unquote(page.url)
    expect(other.locator(state(other)).first).to_have_text("IDLE")
    other.get_by_role("link", name="Alarms", exact=False).first.click()
    other.get_by_label("Time (UTC)").fill("2027-01-15T08:00:30")
    expect(other.get_by_role("group", name="Alarms", exact=True)).to_contain_text("SHLVD")
    other.get_by_role("link", name="Who did what").click()
    expect(other.locator("main")).to_contain_text("Not known of a past second")
    # A trend of that time comes from the archive, with marks of what happened.
    other.goto(f"{address}/?at=2027-01-15T08:08:20Z#/node/{NODE}")
    figure = other.locator(f'[data-plot="{RATE}"] figcaption')
    expect(figure).to_have_text(re.compile("^Heap rate.*; marked: commands 1, alarms 1$"))
    # Time goes on, and one key leads back to now.
    page.get_by_role("button", name="Play").click()
    expect(obs_state).to_have_text("SCANNING")
    page.keyboard.press("Escape")
    expect(obs_state).to_have_text("EMPTY")
    expect(bar).to_have_count(0)
    expect(abort).to_be_enabled()
    assert "at=" not in page.url


def test_what_is_played_comes_with_few_questions_and_is_what_each_second_shows_alone(
    browser: Browser, address: str
) -> None:
    page = opened(browser, f"{address}/?at=2027-01-15T08:04:58Z#/node/{NODE}")
    expect(page.get_by_role("region", name="Time of the page")).to_contain_text(READ)
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if "/api/at?" in one.url else None)
    page.get_by_role("button", name="Play").click()
    store, seconds = "import('/store.js').then(({ store }) => %s)", 0
    for least in (1, 2, 4):
        page.wait_for_function(f"() => {store % f'store.past.time >= {at(298 + least) / 1e6}'}")
        shown = page.evaluate(store % "JSON.parse(JSON.stringify(store.past))")
        alone = page.request.get(f"{address}/api/at", params={"time": utc_text(as_time(shown["time"]))}).json()
        for name in alone.keys() - {"steps"}:
            assert shown[name] == alone[name], name
        seconds = round(shown["time"] - at(298) / 1e6)
    assert len(asked) <= 1 + seconds // 30
    assert "step=1&count=60" in asked[0]


def test_what_is_played_stops_at_the_end_of_the_archive_which_is_asked_for_once(browser: Browser, address: str) -> None:
    page = opened(browser, f"{address}/?at=2027-01-15T08:04:58Z#/node/{NODE}")
    bar = page.get_by_role("region", name="Time of the page")
    expect(bar).to_contain_text(READ)
    end = page.evaluate("import('/store.js').then(({ store }) => store.past.end)")
    bar.get_by_label("Time (UTC)").fill(utc_text(as_time(end - 2))[:19])
    bar.get_by_label("Time (UTC)").blur()
    bar.get_by_label("Speed").select_option("60×")
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if "/api/at?" in one.url else None)
    bar.get_by_role("button", name="Play").click()
    expect(bar.get_by_role("status")).to_contain_text("expected a time from", timeout=60_000)
    expect(bar.get_by_role("button", name="Play")).to_be_visible()
    assert len(asked) <= 4


def test_a_second_that_the_archive_lacks_is_not_shown_as_now(browser: Browser, address: str) -> None:
    page = opened(browser, f"{address}/?at=2027-01-15T12:00:00Z#/subarray/{SUBARRAY}")
    expect(page.get_by_role("region", name="Time of the page")).to_contain_text("expected a time from 2027-01-15")
    value = page.locator(state(page)).first
    expect(value).to_have_class(re.compile("invalid"))
    expect(value).not_to_contain_text("EMPTY")


BIN = {"time": "2026-01-01T00:00:00.000+00:00", "min": 1.0, "max": 1.0, "mean": 1.0, "last": 1.0, "quality": "VALID"}
ANSWERS = {
    "history": {"bin": 9.0, "series": [{"unit": "1/s", "rows": [BIN]}]},
    "timeline": {"obs_states": {}, "unknown": {}, "begin": 0.0, "end": 1.0}
    | {kind: [] for kind in ("commands", "alarms", "tables", "blocks", "gaps")},
}


def answered(page: Page) -> None:
    """Answer questions about a span at once, and those about a second of any post-mortem from the archive."""
    for kind, answer in ANSWERS.items():
        page.route(f"**/api/{kind}?*", lambda route, _, answer=answer: route.fulfill(json=answer))
    page.route("**/api/at?*", lambda route: route.continue_(url=route.request.url.partition("&post_mortem")[0]))


@pytest.mark.parametrize("kind", ANSWERS)
def test_what_a_post_mortem_has_of_a_span_is_not_shown_as_that_of_the_archive(
    browser: Browser, address: str, kind: str
) -> None:
    page = opened(browser, address)
    answered(page)
    span = "from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00Z"
    with page.expect_request(re.compile(rf"/api/{kind}\?.*&post_mortem=some$"), timeout=HANG * 1000):
        page.goto(f"{address}/?at=2027-01-15T08:05:00Z&post_mortem=some&{span}#/node/{NODE}")
    expect(page.locator(f'[data-plot="{RATE}"]')).to_have_attribute("aria-busy", "false")
    with page.expect_request(re.compile(rf"/api/{kind}\?(?!.*post_mortem)"), timeout=HANG * 1000):
        page.keyboard.press("Escape")


def test_a_span_that_the_archive_may_not_have_yet_is_asked_for_again(browser: Browser, address: str) -> None:
    page = opened(browser, address)
    answered(page)
    page.goto(f"{address}/?at=2027-01-15T08:05:00Z#/node/{NODE}")  # it is in the future of this server
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if "attribute=heapRate" in one.url else None)
    with page.expect_request(lambda one: asked.count(one.url) > 1, timeout=HANG * 1000):
        expect(page.locator(f'[data-plot="{RATE}"]')).to_have_attribute("aria-busy", "false")


def test_alarms_of_now_that_come_late_are_not_those_of_the_past(
    browser: Browser, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarm = {"condition": "receiveOverrun", "source": "receive/0009", "state": "UNACK", "severity": "ALARM"}
    monkeypatch.setattr(Asked, "alarms", [alarm | {"text": "x", "occurrence": 1, "raised_at": 1.8e9}])
    page = opened(browser, f"{address}/#/alarms")
    listed = page.get_by_role("group", name="Alarms", exact=True)
    expect(listed).to_contain_text("receive/0009")
    held: list[Route] = []
    page.route("**/api/alarms", lambda route: held.append(route))
    with page.expect_request("**/api/alarms"):
        page.reload()
    page.get_by_role("button", name="Look back").click()
    page.get_by_label("Time (UTC)").fill("2027-01-15T08:00:30")
    expect(listed).to_contain_text("SHLVD")
    with page.expect_response("**/api/alarms") as late:
        held[0].continue_()
    late.value.finished()
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    expect(listed).to_contain_text("SHLVD")
    expect(listed).not_to_contain_text("receive/0009")


def test_a_comment_is_kept_and_found_by_its_text(browser: Browser, address: str) -> None:
    kept.clear()
    page = opened(browser, f"{address}/#/acts")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    entries = [
        {"time": at, "kind": "comment", "act": "comment at the page", "target": "id-7", "operator": who, "client": "",
         "said": said, "rests_on": "nothing"}
        for at, who, said in ((1.8e9, "anna", "the second node was slow"), (1.8e9, "eve", "all well"))
    ]  # fmt: skip
    page.route("**/api/acts*", lambda route: route.fulfill(json=entries))
    page.get_by_role("textbox", name="Comment").fill("the second node was slow")
    page.get_by_role("button", name="Keep").click()
    expect(page.get_by_text("Kept: a comment about")).to_be_visible()
    assert [(one.act, one.person, one.text) for one in kept if one.act == "comment"] == [
        ("comment", "anna", "the second node was slow")
    ]
    rows = page.get_by_role("group", name="What people did").get_by_role("row")
    expect(rows).to_have_count(3)
    page.get_by_role("searchbox", name="Text").fill("Slow")
    expect(rows).to_have_count(2)
    expect(rows.last).to_contain_text("anna")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_and_acknowledges_an_alarm_without_sideways_scrolling(
    browser: Browser, address: str, theme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarm = {
        "condition": "receiveOverrun",
        "source": "receive/0007",
        "state": "UNACK",
        "severity": "ALARM",
        "text": "x",
    }
    monkeypatch.setattr(Asked, "alarms", [alarm | {"occurrence": 1, "raised_at": 1.8e9}])
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "color_scheme": theme}
    page = browser.new_context(**phone).new_page()
    page.set_default_timeout(HANG * 1000)
    page.goto(address)
    parts = "[...document.querySelectorAll('html, nav, .tile, .scroll')]"
    wide = f"{parts}.filter((one) => one.scrollWidth > one.clientWidth + 1)"
    expect(page.get_by_role("heading", name="Most urgent alarms")).to_be_visible()
    expect(page.locator('.cards [data-title="obsState"]')).to_have_text("EMPTY")
    assert page.evaluate(f"{wide}.map((one) => one.outerHTML.slice(0, 200))") == []
    page.get_by_role("button", name="Sign in").tap()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("dialog").get_by_role("button", name="Sign in").tap()
    page.get_by_role("link", name="Alarms", exact=False).first.tap()
    page.get_by_role("group", name="Alarms", exact=True).locator(".row button").tap()
    acknowledge = page.locator("#one-alarm").get_by_role("button", name="Acknowledge")
    expect(acknowledge).to_be_in_viewport()
    acknowledge.tap()
    expect(page.locator("#one-alarm").get_by_role("status")).to_contain_text("done for 1 alarm")
    assert page.evaluate(f"{wide}.map((one) => one.outerHTML.slice(0, 200))") == []
    assert [one[1] for one in Asked.calls if one[1] == "Acknowledge"] == ["Acknowledge"]


def test_what_differs_between_two_times_is_listed_and_linked(browser: Browser, address: str) -> None:
    page = opened(browser, f"{address}/?at=2027-01-15T08:06:00Z#/compare/2027-01-15T08:04:00Z")
    rows = page.get_by_role("row")
    expect(page.locator("main")).to_contain_text("2 of 2 attributes differ between 08:04:00 UTC (another time)")
    expect(rows.nth(1)).to_contain_text(re.compile(f"{SUBARRAY}/obsState.*IDLE.*SCANNING.*100 %", re.DOTALL))
    expect(rows.nth(2)).to_contain_text(re.compile(f"{RATE}.*4.*6.*33 %", re.DOTALL))
    page.get_by_role("searchbox", name="Filter").fill("INGEST")
    expect(rows).to_have_count(2)
    # Another second of the page is compared anew; so is another time, which the address then names.
    page.get_by_role("searchbox", name="Filter").fill("")
    page.get_by_label("Time (UTC)", exact=True).fill("2027-01-15T08:04:30")
    expect(page.locator("main")).to_contain_text("0 of 2 attributes differ")
    page.get_by_label("Earlier or later (UTC)").fill("2027-01-15T08:02:00")
    expect(rows).to_have_count(2)
    assert page.url.endswith("#/compare/2027-01-15T08:02:00Z")
    # Without an answer, the reason is said.
    page.get_by_label("Compare with").select_option("last-scan")
    expect(page.get_by_text("got none in the archive's reports of obsState")).to_be_visible()
    page.get_by_label("Compare with").select_option("yesterday")
    expect(page.get_by_text("expected a time from 2027-01-15")).to_be_visible()


def test_a_critical_alarm_leads_to_its_post_mortem(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are no longer in the archive."""
    post_mortem.night(tmp_path, post_mortem.alert(610))
    (one,) = post_mortem.made(tmp_path)
    night(tmp_path / "now")
    alarm = {"condition": "serverGone", "source": post_mortem.RACK, "state": "UNACK", "severity": "CRITICAL"}
    monkeypatch.setattr(Asked, "alarms", [alarm | {"text": "x", "occurrence": 1, "raised_at": 1.8e9}])
    with served(tmp_path / "now", monkeypatch, SystemClock(), f"{tmp_path / 'kept'}") as address:
        page = opened(browser, f"{address}/#/alarms")
        held: list[Route] = []
        page.route("**/api/site*", lambda route: held.append(route))
        page.reload()
        expect(page.get_by_text("Connecting …")).to_be_visible()
        for one_held in held:
            one_held.continue_()
        page.unroute("**/api/site*")
        page.get_by_text("Post-mortems of CRITICAL alarms").click()
        expect(page.locator("main").get_by_role("link", name="2027-01-15 08:10:10 UTC")).to_have_count(1)
        page.get_by_role("group", name="Alarms", exact=True).locator(".row button").click()
        page.locator("#one-alarm").get_by_role("link", name="2027-01-15 08:10:10 UTC").click()
        bar = page.get_by_role("region", name="Time of the page")
        expect(bar).to_contain_text("PAST: 2027-01-15 08:10:10 UTC")
        expect(bar).to_contain_text("This is a post-mortem")
        assert f"post_mortem={one.name}" in page.url
        expect(page.get_by_role("group", name="Alarms", exact=True)).to_contain_text("bus-b")
        page.get_by_role("link", name="Bus", exact=True).click()
        expect(page.locator(state(page, BUS, "connected")).first).not_to_have_text("–")
        page.keyboard.press("Escape")
        expect(bar).to_have_count(0)
        assert "post_mortem" not in page.url
        # One that made room is told as such.
        page.goto(f"{address}/?at=2027-01-15T08:10:10Z&post_mortem=gone#/bus")
        expect(bar).to_contain_text("post_mortem: expected one that is kept")


class Evening(NamedTuple):
    """What the devices showed ten minutes after the begin of an evening."""

    days: int
    """Time from it to the newest night of the archive."""
    alarm: str
    lost: str
    obs_state: str
    command: str
    person: str
    losses: dict[str, float]
    health: str
    reasons: tuple[str, ...]
    judged: tuple[str, ...]

    def at(self, seconds: float) -> float:
        return seconds - self.days * 86_400


BEHIND = {"health": "DEGRADED", "text": "its clock is 3 s behind", "device": MASTER, "severity": "WARNING"}
EVENINGS = (
    Evening(
        days=6, alarm=states.UNACK, lost="312 heaps lost", obs_state="SCANNING", command="Scan", person="eve",
        losses={NODE: 0.001, OTHER_NODE: 0.02}, health="DEGRADED", reasons=(json.dumps(BEHIND),),
        judged=("DEGRADED", BEHIND["text"], "ALARM UNACK: 312 heaps lost"),
    ),
    Evening(
        days=1, alarm=states.RTNUN, lost="7 heaps lost", obs_state="READY", command="Configure", person="anna",
        losses={NODE: 0.03, OTHER_NODE: 0.0}, health="OK", reasons=(),
        judged=("ATTENTION", "ALARM RTNUN: 7 heaps lost"),
    ),
)  # fmt: skip
RAISED, ASKED, GONE, LATER = 120, 600, 900, 1140
"""Times of an evening: an alarm comes, questions are about it, it is at rest, and the last question [s]."""


def archive_evening(log: MemoryLog, evening: Evening) -> None:
    shown: dict[str, object] = {f"{device}/State": "ON" for device in DEVICES}
    shown |= {f"{node}/packetLossFraction": loss for node, loss in evening.losses.items()}
    shown |= {f"{MASTER}/healthState": evening.health, f"{MASTER}/healthIssues": evening.reasons}
    shown |= {f"{MASTER}/healthInfo": (), f"{MASTER}/deviceServers": ("control",)}
    shown |= {f"{SUBARRAY}/lastCommand": f"1 {evening.command} COMPLETED"}
    for seconds in range(0, LATER + 1, 60):
        moving = {f"{MASTER}/heapRate": float(seconds), f"{SUBARRAY}/obsState": evening.obs_state}
        if seconds < ASKED:
            moving[f"{SUBARRAY}/obsState"] = "IDLE"
        for name, value in (shown | moving).items():
            log.append(record(round(evening.at(seconds) * SECOND), value, name))
    for seconds, name, person in ((200, "On", "tom"), (500, evening.command, evening.person), (700, "End", "tom")):
        command(log, evening.at(seconds), name, operator=person)
    raised = evening.at(RAISED)
    put(log, alarm(evening.alarm, raised, text=evening.lost), raised)
    put(log, state_record(KEY, None), evening.at(GONE))
    for sequence, (seconds, state) in enumerate(((RAISED, "ACTIVE"), (GONE, CLEARED)), 1):
        condition, source = KEY
        told = Alert(
            condition=condition, source=source, severity="ALARM", state=state, text=evening.lost, raised_at=at(raised),
            sequence=sequence,
        )  # fmt: skip
        put(log, alert_record(told), evening.at(seconds))


def test_six_questions_about_any_time_of_the_past_week_are_answered_in_three_clicks(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog(dict.fromkeys(TOPICS, 1))
    for evening in EVENINGS:
        archive_evening(log, evening)
    night(tmp_path, log)
    with served(tmp_path, monkeypatch, SystemClock()) as address:
        page = opened(browser, address)
        for evening in EVENINGS:
            answer_six_questions(page, evening)


def answer_six_questions(page: Page, evening: Evening) -> None:
    """Find each answer, which is what the devices showed then, and print its clicks and its time."""

    def asking(seconds: int = ASKED) -> Asking:
        page.keyboard.press("Escape")
        found, time = Asking(page, most=3), utc_text(at(evening.at(seconds)))[:19]
        found.click(page.get_by_role("button", name="Look back"))
        found.write(page.get_by_label("Time (UTC)"), time)
        found.sees(bar.filter(has_text=f"PAST: {time.replace('T', ' ')} UTC"))
        return found

    def answered(question: str, asking: Asking, *answer: Locator) -> None:
        took = asking.sees(*answer)
        print(f"{evening.days} days before: {question}: {asking.clicks} clicks, {took:.0f} ms")

    def tile(title: str) -> Locator:
        return page.locator(".tile").filter(has=page.get_by_role("heading", name=title))

    bar = page.get_by_role("region", name="Time of the page")
    time_of_alarm = utc_text(at(evening.at(RAISED)))[11:19]

    person = asking()
    person.click(tile("Most urgent alarms").get_by_role("row").get_by_role("link", name="Receive overrun"))
    said = re.compile(f"ALARM {evening.alarm}, receive/0007, since .*{time_of_alarm} UTC.*{evening.lost}", re.DOTALL)
    answered("which alarm was there, and what did it say", person, tile("One alarm").filter(has_text=said))

    person = asking()
    answered("what was obsState", person, page.locator(state(page)).filter(has_text=evening.obs_state).first)

    person = asking()
    person.click(page.get_by_role("navigation", name="Pages").get_by_role("link", name="Subarray 01"))
    rows = page.get_by_role("group", name="Past commands").locator("tbody tr")
    last = re.compile(f"{evening.command}.*COMPLETED.*{evening.person}", re.DOTALL)
    answered("which command was the last one, and whose", person, rows.first.filter(has_text=last))

    person = asking()
    loss, worst = max((loss, node) for node, loss in evening.losses.items())
    first = page.locator(".worst tbody tr").first.filter(has_text=re.compile(rf"Node {int(worst[-4:])}\b"))
    answered("which node lost most", person, first.filter(has_text=f"{100 * loss:g} %"))

    person = asking()
    well = tile("Is all well?")
    answered("was all well", person, *(well.filter(has_text=one) for one in evening.judged))

    person = asking(LATER)
    plot = page.locator(f'[data-plot="{MASTER}/heapRate"]')
    expect(plot.locator("figcaption")).to_contain_text("alarms 2")
    canvas = plot.locator(".u-over")
    box = canvas.bounding_box()
    assert box
    mark = Position(x=box["width"] * (3600 - LATER + RAISED) / 3600, y=40)
    person.click(canvas, mark)
    begun = tile("One alarm").get_by_role("row").filter(has_text=f"{time_of_alarm} UTC")
    answered("when did the marked alarm begin", person, begun.filter(has_text=f"ACTIVE: {evening.lost}"))
