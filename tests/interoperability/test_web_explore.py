"""Open MCT on the operator's page in a real browser: displays of everybody, histories, commands and alarms."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from facade.archive.stores import FolderStore
from facade.flows.alerts.follower import FollowedAlert
from facade.infra.ports import choose_port
from facade.kernel.clock import SystemClock, utc_text
from sdp_facade_clients.web import site as web_site
from sdp_facade_clients.web.app import make_app
from sdp_facade_clients.web.archived import ArchivedAnswers
from sdp_facade_clients.web.displays import Displays
from sdp_facade_clients.web.doors import Doors, read_tokens
from sdp_facade_clients.web.site import Site
from tests.archive.test_history_archive import RATE
from tests.archive.test_moment_archive import SUBARRAY, night
from tests.clients.test_web_app import Asked
from tests.clients.test_web_feed import Scene
from tests.interoperability.page_server import in_background
from tests.interoperability.test_web_past import DEVICES
from tests.support.deployment import ICD
from tests.support.waiting import HANG, until

TOKENS = {"anna": "operator-token-00001", "ben": "operator-token-00002"}
DISPLAY = "Rates of the night"
expect.set_options(timeout=HANG * 1000)


class Place:
    """A folder of displays and an archive, with the server of a page that may be started again."""

    def __init__(self, folder: Path, *, is_shared: bool = True) -> None:
        self.port = choose_port()
        self.address = f"http://localhost:{self.port}"
        self._folder, self._is_shared = folder, is_shared
        night(folder / "archive")

    def stored(self) -> dict[str, Any]:
        """Return the newest version of the display that was made."""
        displays = Displays(self._folder / "displays", SystemClock())
        (member,) = displays.read("root")["model"]["composition"]
        return displays.read(member["key"])

    @contextmanager
    def served(self) -> Iterator[Scene]:
        clock = SystemClock()
        scene = Scene(clock)
        scene.change("1 Scan QUEUED", attribute="lastCommand", device=SUBARRAY)
        site = Site("db:10000", ICD, lambda: DEVICES, clock)
        people = "".join(f"operator {name} {token}\n" for name, token in TOKENS.items())
        app = make_app(
            scene.feed,
            site,
            Doors(lambda: read_tokens(people, ""), clock),
            hosts=["localhost"],
            answers=ArchivedAnswers(FolderStore(self._folder / "archive"), ICD, site, clock, 50),
            displays=Displays(self._folder / "displays", clock) if self._is_shared else None,
        )
        with in_background(app, self.port):
            yield scene


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    Asked.calls, Asked.error, Asked.commands, Asked.alarms = [], None, [], []
    monkeypatch.setattr(web_site, "AskedDevice", Asked)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def explored(browser: Browser, place: Place, path: str, person: str = "") -> Page:
    """Open Explore in a browser of its own, as a person or as nobody."""
    page = browser.new_context(viewport={"width": 1500, "height": 900}).new_page()
    page.set_default_timeout(HANG * 1000)
    if person:
        page.goto(place.address)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_label("Token").fill(TOKENS[person])
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    page.goto(f"{place.address}/explore/#/browse/{path}")
    expect(page.get_by_role("button", name="Create")).to_be_visible()
    return page


def make_folder(page: Page, name: str) -> str:
    """Make a folder among the displays of everybody, and return its path."""
    page.get_by_role("button", name="Create").click()
    page.get_by_role("menuitem", name="Folder", exact=True).click()
    form = page.get_by_role("dialog")
    form.get_by_label("Title", exact=True).fill(name)
    form.get_by_role("button", name="Save").click()
    expect(title(page)).to_have_text(name)
    expect(page).to_have_url(re.compile("/browse/shared:root/shared:"))
    return page.url.partition("#/browse/")[2].partition("?")[0]


def title(page: Page) -> Locator:
    return page.get_by_label("Browse bar object name")


def rename(page: Page, name: str) -> None:
    title(page).fill(name)
    title(page).press("Enter")


def said(page: Page) -> Locator:
    return page.locator(".c-message-banner")


def test_a_display_is_in_each_browser_and_there_after_a_restart(browser: Browser, place: Place) -> None:
    with place.served():
        anna = explored(browser, place, "shared:root", "anna")
        path = make_folder(anna, DISPLAY)
        nobody = explored(browser, place, path)
        expect(title(nobody)).to_have_text(DISPLAY)
        expect(nobody.get_by_text("Sign in as operator on the page")).to_be_visible()
        assert title(nobody).get_attribute("contenteditable") != "true"
    with place.served():
        again = explored(browser, place, "shared:root")
        expect(again.get_by_role("main").get_by_text(DISPLAY).first).to_be_visible()


def test_a_display_that_another_person_has_changed_is_not_overwritten(browser: Browser, place: Place) -> None:
    with place.served():
        anna = explored(browser, place, "shared:root", "anna")
        path = make_folder(anna, DISPLAY)
        ben = explored(browser, place, path, "ben")
        expect(title(ben)).to_have_text(DISPLAY)
        rename(ben, "Rates, by Ben")
        until(lambda: place.stored()["version"] == 2, "the change of Ben is kept")
        rename(anna, "Rates, by Anna")
        expect(said(anna)).to_contain_text(
            re.compile("'Rates, by Ben' was changed by ben at .* nothing was overwritten")
        )
        assert place.stored()["model"]["name"] == "Rates, by Ben"
        expect(title(anna)).to_have_text("Rates, by Ben")
        # The version before Ben's is brought back, as a new one.
        anna.get_by_role("button", name="More actions").click()
        anna.get_by_role("menuitem", name="Older Versions…").click()
        expect(anna.get_by_label("Version").locator("option")).to_have_text(re.compile(f"1: {DISPLAY}, anna, .* UTC"))
        anna.get_by_role("dialog").get_by_role("button", name="Save").click()
        expect(title(anna)).to_have_text(DISPLAY)
        kept = place.stored()
        assert (kept["version"], kept["person"], kept["model"]["name"]) == (3, "anna", DISPLAY)


def test_without_a_folder_the_page_says_that_the_browser_keeps_displays(browser: Browser, tmp_path: Path) -> None:
    place = Place(tmp_path, is_shared=False)
    with place.served():
        page = explored(browser, place, "sdp:root")
        expect(page.get_by_text("Displays are kept in this browser only.")).to_be_visible()
        expect(page.get_by_text("Displays in this browser")).to_be_visible()
        expect(page.get_by_text("Displays of everybody")).to_have_count(0)


REQUEST = """async ([key, start, end, strategy]) => {
  const object = await openmct.objects.get({ namespace: "sdp", key });
  const from = Date.parse(start);
  const found = await openmct.telemetry.request(object, { start: from, end: Date.parse(end), strategy, size: 10 });
  return found.map(({ utc, value }) => [(utc - from) / 1000, value]);
}"""


def test_values_of_a_past_that_only_the_archive_knows(browser: Browser, place: Place) -> None:
    with place.served():
        page = explored(browser, place, "sdp:root")
        page.clock.set_system_time("2027-01-17T00:00:00Z")

        def asked(name: str, strategy: str) -> list[list[Any]]:
            key = name.replace("/", "~")
            found: list[list[Any]] = page.evaluate(
                REQUEST, [key, "2027-01-15T08:00:00Z", "2027-01-15T08:10:00Z", strategy]
            )
            return found

        rates = asked(RATE, "minmax")
        assert rates == asked(RATE, "average") == [[60 * minute, minute] for minute in range(10)]
        labels = [ICD.enums["ObsState"][value] for _, value in asked(f"{SUBARRAY}/obsState", "average")]
        assert list(dict.fromkeys(labels)) == ["IDLE", "SCANNING"]


def test_commands_and_alarms_are_rows_as_they_happen(browser: Browser, place: Place) -> None:
    command = {"id": "1_1_Scan", "name": "Scan", "status": "QUEUED", "operator": "anna", "client": "c", "text": ""}
    Asked.commands = [command | {"submitted_time": utc_text(SystemClock().now_us())}]
    with place.served() as scene:
        page = explored(browser, place, "sdp:root/sdp:commands")
        rows = page.get_by_role("row").filter(has_text=SUBARRAY)
        expect(rows.filter(has_text="QUEUED").first).to_contain_text("anna")
        Asked.commands = [Asked.commands[0] | {"status": "COMPLETED"}]
        scene.change("1_1_Scan Scan COMPLETED", attribute="lastCommand", device=SUBARRAY)
        expect(rows.filter(has_text="COMPLETED").first).to_contain_text("1_1_Scan")
        page.goto(page.url.replace("sdp:commands", "sdp:alarms"))
        expect(page.get_by_label("Browse bar object name")).to_have_text("Alarms")
        alert = {
            "condition": "storageLow",
            "source": "s/1",
            "severity": "ALARM",
            "state": "ACTIVE",
            "text": "disk is full",
        }
        scene.feed.take_alert(FollowedAlert(sequence=1, previous=0, time=SystemClock().now(), alert=alert))
        expect(page.get_by_role("row").filter(has_text="storageLow")).to_contain_text("disk is full")
