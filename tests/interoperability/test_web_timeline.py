"""What happened is drawn into what changed, in a real browser: marks, zoom, two axes, files, execution blocks."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from facade.kernel.clock import SystemClock, Time
from tests.archive.test_history_archive import RATE
from tests.archive.test_moment_archive import SUBARRAY, at
from tests.clients.test_timeline import EB, LATENCY, NEXT, observation
from tests.interoperability.test_web_past import opened, served

NODE, _, _ = RATE.rpartition("/")


class Later(SystemClock):
    """A clock that began an hour after the observation."""

    def __init__(self) -> None:
        self._ahead = int(at(3600)) - int(super().now_us())

    def now_us(self) -> Time:
        return Time(int(super().now_us()) + self._ahead)

    def now(self) -> float:
        return self.now_us() / 1e6


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    observation(tmp_path)
    with served(tmp_path, monkeypatch, Later()) as found:
        yield found


def drag(page: Page, begin: float, end: float) -> None:
    """Drag over a share of the first trend."""
    box = page.locator(f'[data-plot="{RATE}"] .u-over').bounding_box()
    assert box
    for share, step in ((begin, page.mouse.down), (end, page.mouse.up)):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 3, steps=4)
        step()


def test_what_happened_is_in_a_trend_which_is_zoomed_paired_and_kept(browser: Browser, address: str) -> None:
    page = opened(browser, f"{address}/?at=2027-01-15T08:10:00Z#/node/{NODE}")
    caption = page.locator(f'[data-plot="{RATE}"] figcaption')
    expect(caption).to_have_text(re.compile("marked: commands 4, alarms 2"))
    listed = page.get_by_role("group", name="What happened")
    page.get_by_text("What happened in this time").click()
    for said in ("subarray 01 is SCANNING", "receiveOverrun of receive/0007: raised, ALARM", "AssignResources"):
        expect(listed).to_contain_text(said)
    # By dragging, then closer, and back.
    drag(page, 0.9, 0.99)
    expect(page.get_by_role("button", name="Back", exact=True)).to_be_visible()
    zoomed = unquote(page.url)
    assert re.search(r"from=2027-01-15T08:0\d.*to=2027-01-15T08:0\d", zoomed), zoomed
    expect(caption).to_contain_text(re.compile(r"Heap rate.* to (2027-01-15 )?08:0\d"))
    # A second attribute has its own axis; the pointer reads both.
    figure = page.locator(f'[data-plot="{RATE}"]')
    figure.get_by_label("Second attribute").select_option("latencyP99")
    expect(caption).to_contain_text("dashed on the right")
    expect(figure.locator(".u-axis")).to_have_count(3)
    expect(figure).to_have_attribute("aria-busy", "false")
    plot = figure.locator(".u-over")
    plot.hover()
    expect(figure.locator("output")).to_have_text(re.compile(r"UTC; .*\d.*; \d"))
    # What is shown, as files.
    with page.expect_download() as csv:
        figure.get_by_role("button", name="CSV").click()
    lines = csv.value.path().read_text().splitlines()
    begin, *names = lines[0].split(",")
    assert re.fullmatch(r"begin of [0-9.]+ s", begin)
    assert [re.sub(r" \[.*\]", "", one) for one in names] == [
        f"{name} {figure}" for name in (RATE, LATENCY) for figure in ("min", "max", "mean")
    ]
    times = [one.split(",")[0] for one in lines[1:]]
    assert len(times) == len({*times}) == 400
    assert times == sorted(times)
    with page.expect_download() as png:
        figure.get_by_role("button", name="PNG").click()
    assert png.value.path().read_bytes()[:4] == b"\x89PNG"
    other = opened(browser, zoomed)
    expect(other.get_by_role("button", name="Back", exact=True)).to_be_visible()
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Back", exact=True).click()
    page.get_by_role("button", name="Back", exact=True).click()
    expect(page.get_by_role("button", name="Back", exact=True)).to_have_count(0)
    assert "from=" not in page.url
    # A mark leads to its record; a list that still grows would move another link under the pointer.
    expect(caption).to_contain_text("marked: commands 4, alarms 2")
    expect(figure).to_have_attribute("aria-busy", "false")
    listed.get_by_role("link", name="AssignResources").first.click()
    expect(page.get_by_role("heading", name="Command AssignResources")).to_be_visible()
    for said in ("COMPLETED", "anna"):
        expect(page.locator("main")).to_contain_text(said)


def test_a_mark_in_a_trend_is_read_and_followed(browser: Browser, address: str) -> None:
    span = "from=2027-01-15T08:00:00Z&to=2027-01-15T08:07:00Z"
    page = opened(browser, f"{address}/?{span}#/node/{NODE}")
    figure = page.locator(f'[data-plot="{RATE}"]')
    expect(figure.locator("figcaption")).to_contain_text("marked: commands 4, alarms 2")
    box = figure.locator(".u-over").bounding_box()
    assert box
    at_alarm = {"x": box["width"] * 210 / 420, "y": 40.0}
    figure.locator(".u-over").hover(position=at_alarm)
    expect(figure.locator("output")).to_contain_text("receiveOverrun of receive/0007: raised, ALARM")
    figure.locator(".u-over").click(position=at_alarm)
    expect(page).to_have_url(re.compile("#/alarms/receiveOverrun"))


def test_an_execution_block_has_its_timeline_and_an_address(browser: Browser, address: str) -> None:
    page = opened(browser, f"{address}/#/blocks")
    page.get_by_role("link", name=EB).click()
    expect(page.locator("main")).to_contain_text(re.compile(r"from .*08:01:40 UTC to .*08:07:30 UTC \(6 min\)"))
    listed = page.get_by_role("group", name="What happened")
    said = ("AssignResources of", "subarray 01 is SCANNING", "receiveOverrun of receive/0007: cleared")
    for one in (*said, "table cal-7 of subarray/01/gains: COMPLETE", "pb-mvp01-20270115-00001, batch: FINISHED"):
        expect(listed).to_contain_text(one)
    expect(listed).not_to_contain_text("subarray/02")
    expect(page.locator('[data-plot="mid-sdp/control/0/heapRate"] figcaption')).to_contain_text("marked: commands 3")
    other = opened(browser, page.url)
    expect(other.get_by_role("group", name="What happened")).to_contain_text("subarray 01 is SCANNING")
    expect(other.get_by_role("link", name="01", exact=True)).to_have_attribute("href", f"#/subarray/{SUBARRAY}")


def test_a_block_that_answers_late_changes_no_other_page_and_one_that_goes_on_is_followed(
    browser: Browser, address: str
) -> None:
    page = opened(browser, f"{address}/#/blocks")
    held: list[Route] = []
    page.route("**/api/execution-block?*", lambda route: held.append(route))
    with page.expect_request("**/api/execution-block?*"):
        page.get_by_role("link", name=EB).click()
    page.evaluate("location.hash = '#/blocks'")
    expect(page.get_by_role("heading", name="Execution blocks")).to_be_visible()
    with page.expect_response("**/api/execution-block?*") as late:
        held[0].continue_()
    late.value.finished()
    page.unroute("**/api/execution-block?*")
    page.evaluate("new Promise(requestAnimationFrame)")
    assert "from=" not in page.url
    page.get_by_role("link", name=NEXT).click()
    page.wait_for_url(re.compile("to="))
    before = page.url
    page.wait_for_url(lambda url: "to=" in url and url != before)


def test_what_happened_is_asked_again_after_a_failure(browser: Browser, address: str) -> None:
    page = opened(browser, f"{address}/#/blocks")
    page.route("**/api/timeline?*", lambda route: route.abort())
    with page.expect_event("requestfailed", lambda request: "/api/timeline" in request.url):
        page.get_by_role("link", name=EB).click()
    page.unroute("**/api/timeline?*")
    caption = page.locator('[data-plot="mid-sdp/control/0/heapRate"] figcaption')
    expect(caption).to_contain_text("marked: commands 3", timeout=30_000)
