"""Signing in at the operator's page by a provider of OpenID Connect, and out again, in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from facade.infra.ports import choose_port
from facade.kernel.clock import SystemClock
from sdp_facade_clients.web import app as web_app
from sdp_facade_clients.web import site as web_site
from sdp_facade_clients.web.app import make_app
from sdp_facade_clients.web.doors import Doors
from sdp_facade_clients.web.feed import Feed
from sdp_facade_clients.web.oidc import make_sign_on
from sdp_facade_clients.web.site import Site
from tests.clients.test_web_app import DEVICES, Asked
from tests.clients.test_web_feed import Recorded
from tests.clients.test_web_oidc import settings
from tests.interoperability.page_server import in_background
from tests.support.deployment import ICD
from tests.support.provider import Provider, provider
from tests.support.waiting import HANG


@pytest.fixture
def given() -> Iterator[Provider]:
    with provider(SystemClock()) as one:
        one.people["4711"] = {"name": "Anna Öst", "groups": ["sdp-operators"]}
        yield one


@pytest.fixture
def address(given: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a server of the page, which to a browser is another site than the provider: localhost, not 127.0.0.1."""
    Asked.calls, Asked.error = [], None
    monkeypatch.setattr(web_site, "AskedDevice", Asked)
    monkeypatch.setattr(web_app, "_STEP", 0.05)
    clock, port, recorded = SystemClock(), choose_port(), Recorded()
    home = f"http://localhost:{port}"
    sign_on = make_sign_on(settings(given, tmp_path, redirect_uri=f"{home}/sso/sign-in"), "", clock)
    app = make_app(
        Feed(recorded, recorded, clock),
        Site("db:10000", ICD, lambda: DEVICES, clock),
        Doors(sign_on.people, clock, has_provider=True),
        hosts=["localhost"],
        sign_on=sign_on,
    )
    with in_background(app, port):
        yield home


def test_a_person_signs_in_by_the_provider_and_out_of_all_browsers(
    browser: Browser, address: str, given: Provider
) -> None:
    contexts = [browser.new_context() for _ in range(2)]
    pages = [one.new_page() for one in contexts]
    for page in pages:
        page.set_default_timeout(HANG * 1000)
        page.goto(f"{address}/#/acts")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name=re.compile("Sign in by 127.0.0.1")).click()
        page.get_by_role("link", name="Anna Öst").click()
        expect(page).to_have_url(f"{address}/#/acts", timeout=HANG * 1000)
        expect(page.get_by_role("banner")).to_contain_text("Anna Öst operator", timeout=HANG * 1000)
    pages[0].get_by_role("button", name="Sign out").click()
    expect(pages[0].get_by_role("button", name="Sign in")).to_be_visible(timeout=HANG * 1000)
    assert given.left[0]["post_logout_redirect_uri"] == f"{address}/"
    pages[1].reload()
    expect(pages[1].get_by_text("You are no longer signed in")).to_be_visible(timeout=HANG * 1000)
    for one in contexts:
        one.close()
