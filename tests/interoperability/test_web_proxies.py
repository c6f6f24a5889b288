"""The operator's page as browsers reach it: directly, and through the proxies of its documentation (Debian's)."""

import http.client
import json
import re
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from facade.infra import local
from facade.infra.ports import choose_port
from tests.interoperability.conftest import chromium
from tests.interoperability.foreign import PROXIES, ROOT, installed
from tests.support.deployment import Deployment
from tests.support.processes import Running
from tests.support.waiting import HANG, until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

TOKEN = "a#token#of-anna-the-operator"
PAGE = ROOT / "docs/how-to/operators-page.md"
TABS = 8
"""More than the six connections that a browser has to a server without HTTP/2."""
NGINX = "user root; daemon off; pid {folder}/pid; events {{}} http {{ access_log off; {temporary} {server} }}"
expect.set_options(timeout=HANG * 1000)


class Served(NamedTuple):
    """A server of the page, and where browsers reach it."""

    deployment: Deployment
    process: Running
    port: int
    tls: ssl.SSLContext | None

    @property
    def address(self) -> str:
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}"

    def ask(self, path: str, body: object = None, source: str = "127.0.0.1", **headers: str) -> tuple[int, str]:
        """Ask from an address of this host, as a program that lies in its headers."""
        where = ("localhost", self.port, HANG, (source, 0))
        name, port, timeout, bound = where
        connection = (
            http.client.HTTPSConnection(name, port, timeout=timeout, source_address=bound, context=self.tls)
            if self.tls
            else http.client.HTTPConnection(name, port, timeout=timeout, source_address=bound)
        )
        kind = {"Content-Type": "application/json", "Origin": self.address}
        method = "GET" if body is None else "POST"
        connection.request(method, path, None if body is None else json.dumps(body), kind | headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text


@pytest.fixture(scope="module")
def system(infra: local.Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Give a Tango database with devices whose servers do not run: the stream says so each second."""
    with Deployment(infra, tmp_path_factory.mktemp("proxies"), subarrays=2) as deployment:
        deployment.enter_devices()
        yield deployment


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium("--ignore-certificate-errors") as browser:
        yield browser


def documented(language: str, changes: Mapping[str, str]) -> str:
    """Return the settings of a proxy as the documentation has them, with other places."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return str(text)


def start(kind: str, deployment: Deployment, folder: Path) -> Served:
    """Serve the page on a port of its own; `kind` is a proxy in front of it, or none."""
    own, port = choose_port(), choose_port()
    tokens = folder / "tokens.txt"
    tokens.write_text(f"operator anna {TOKEN}\n")
    tokens.chmod(0o600)
    argv = ["sdp-facade", "web", "--port", str(own), "--tokens", str(tokens), "--name", "sdp.example.org"]
    if not kind:
        process = deployment.start(f"web-{own}", argv)
        return awaited(Served(deployment, process, own, None))
    process = deployment.start(f"web-{own}", [*argv, "--proxy", "127.0.0.1"])
    key, chain = folder / "key.pem", folder / "chain.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-subj", "/CN=page", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(chain)]
    subprocess.run(make, check=True, capture_output=True, timeout=HANG)
    places = {"/etc/ssl/sdp": str(folder), "127.0.0.1:8800": f"127.0.0.1:{own}"}
    root, settings = Path(installed(PROXIES)) / "root", folder / kind
    if kind == "nginx":
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = " ".join(f"{one}_temp_path {folder}/{one};" for one in kinds)
        server = documented(kind, places | {"443": str(port), "sdp.example.org": "localhost"})
        settings.write_text(NGINX.format(folder=folder, temporary=temporary, server=server))
        argv = [str(root / "usr/sbin/nginx"), "-p", str(folder), "-e", "stderr", "-c", str(settings)]
    else:
        server = documented(kind, places | {"sdp.example.org": f"https://localhost:{port}"})
        settings.write_text("{\n admin off\n auto_https disable_redirects\n}\n" + server)
        argv = [str(root / "usr/bin/caddy"), "run", "--adapter", "caddyfile", "--config", str(settings)]
    deployment.start(f"{kind}-{port}", argv, HOME=str(folder))
    return awaited(Served(deployment, process, port, ssl.create_default_context(cafile=str(chain))))


def awaited(served: Served) -> Served:
    def answers() -> bool:
        try:
            return served.ask("/api/me")[0] == 200
        except OSError:
            return False

    until(answers, f"{served.address} answers")
    return served


@pytest.fixture(params=["", "nginx", "caddy"])
def served(request: pytest.FixtureRequest, system: Deployment, tmp_path: Path) -> Served:
    if request.param and (PROXIES / "left-out").exists():
        pytest.skip((PROXIES / "left-out").read_text())
    return start(request.param, system, tmp_path)


def sign_in(page: Page, button: str = "Sign in") -> None:
    page.get_by_role("button", name=button).click()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()


def test_a_person_works_in_many_tabs_and_through_a_restart_of_the_server(browser: Browser, served: Served) -> None:
    """Each tab has the stream and its answers; a server that is away for longer than a proxy waits comes back."""
    context = browser.new_context(base_url=served.address)
    tabs = [context.new_page() for _ in range(TABS)]
    cut, ended = "No connection to the server of this page", "You are no longer signed in"
    for tab in tabs:
        tab.set_default_timeout(HANG * 1000)
        tab.goto("/")
        expect(tab.get_by_role("heading", name="Is all well?")).to_be_visible()
        expect(tab.get_by_text(cut)).to_have_count(0)
    first = tabs[0]
    sign_in(first)
    (cookie,) = context.cookies()
    name = "__Host-sdp_session" if served.tls else "sdp_session"
    assert (cookie["name"], cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (
        name,
        served.tls is not None,
        True,
        "Strict",
    )
    served.process.says("act=sign-in name='anna' role=operator address=")
    served.process.kill()
    for tab in tabs:
        expect(tab.get_by_role("alert").filter(has_text=cut)).to_be_visible()  # tiles say it too
    gateway = [tab for tab in tabs if tab.evaluate("fetch('api/me').then((one) => one.status, () => 0)") == 502]
    assert len(gateway) == (TABS if served.tls else 0)
    served.deployment.start(f"{served.process.name}-again", list(served.process.record.argv))
    for tab in tabs:
        expect(tab.get_by_text(cut)).to_have_count(0)
    expect(first.get_by_role("alert").filter(has_text=ended)).to_be_visible()
    sign_in(first, "Sign in again")
    expect(first.get_by_text(ended)).to_have_count(0)
    context.close()


def test_a_proxy_says_who_asks_and_nobody_else_does(served: Served) -> None:
    """A guesser who names other addresses is counted by the own one, and keeps nobody out who shares it."""
    lies = {"X-Forwarded-For": "192.0.2.1, 127.0.0.1", "X-Forwarded-Proto": "http", "X-Real-IP": "192.0.2.1"}
    guesser = "127.0.0.2"
    codes = [served.ask("/api/sign-in", {"token": f"guess {turn}"}, guesser, **lies)[0] for turn in range(100)]
    assert {*codes} == {403, 429}
    said = [line for line in served.process.text.splitlines() if "act=sign-in" in line]
    assert {line.split("address=")[1].split()[0] for line in said} == {guesser}
    assert len(said) < len(codes)
    assert served.ask("/api/sign-in", {"token": TOKEN}, guesser, **lies)[0] == 200
    assert served.ask("/api/sign-in", {"token": TOKEN.partition("#")[0]})[0] == 403


def test_a_token_that_goes_from_the_file_ends_its_sessions(
    browser: Browser, system: Deployment, tmp_path: Path
) -> None:
    served = start("", system, tmp_path)
    page = browser.new_context(base_url=served.address).new_page()
    page.set_default_timeout(HANG * 1000)
    page.goto("/")
    sign_in(page)
    (tmp_path / "tokens.txt").write_text("")
    expect(page.get_by_role("alert").filter(has_text="You are no longer signed in")).to_be_visible()
    page.get_by_role("button", name="Stay signed out").click()
    expect(page.get_by_role("alert").filter(has_text="You are no longer signed in")).to_have_count(0)
    page.context.close()
