"""People who sign in at the operator's page by a provider of OpenID Connect, which is a real one on localhost."""

import base64
import hashlib
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from starlette.testclient import TestClient

from facade.kernel.clock import ManualClock, SystemClock
from facade.kernel.errors import ConfigError, InfraError
from sdp_facade_clients.web import app as web_app
from sdp_facade_clients.web import oidc
from sdp_facade_clients.web import site as web_site
from sdp_facade_clients.web.app import make_app
from sdp_facade_clients.web.doors import LONGEST_IDLE, Doors, PageRole
from sdp_facade_clients.web.feed import Feed
from sdp_facade_clients.web.oidc import CONFIRMED_EACH, LONGEST_UNCONFIRMED, SignInRefused, SignOn, make_sign_on
from sdp_facade_clients.web.site import Site
from tests.clients.test_web_app import COMMAND, DEVICES, HOST, PEOPLE, Asked, kept, sign_in
from tests.clients.test_web_feed import Recorded
from tests.support.archives import ICD
from tests.support.drip import Drip
from tests.support.provider import CLIENT, SECRET, Provider, provider
from tests.support.waiting import until

ANNA = {"name": "Anna <script> Öst\n", "groups": ["staff", "sdp-operators"]}
HERS = "Anna script Öst"
LOGOUT = {"http://schemas.openid.net/event/backchannel-logout": {}}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def given(clock: ManualClock) -> Iterator[Provider]:
    with provider(clock) as one:
        one.people["4711"] = ANNA
        yield one


def settings(given: Provider, folder: Path, **more: str) -> Path:
    """Write the file of settings, and return its path."""
    (folder / "secret").write_text(f"{SECRET}\n")
    (folder / "secret").chmod(0o600)
    fields = {"issuer": given.address, "client_id": CLIENT, "redirect_uri": f"{HOST}/sso/sign-in", "claim": "groups"}
    fields |= {"client_secret_file": str(folder / "secret")} | more
    lines = [f'{name} = "{value}"' for name, value in fields.items()]
    path = folder / "oidc.toml"
    path.write_text("\n".join([*lines, '[roles]\nsdp-operators = "operator"\nsdp-experts = "expert"\n']))
    return path


@pytest.fixture
def sign_on(given: Provider, clock: ManualClock, tmp_path: Path) -> SignOn:
    return make_sign_on(settings(given, tmp_path), "", clock)


@pytest.fixture
def doors(sign_on: SignOn, clock: ManualClock) -> Doors:
    return Doors(lambda: {**PEOPLE, **sign_on.people()}, clock, has_provider=True)


@pytest.fixture
def pages(sign_on: SignOn, doors: Doors, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], TestClient]]:
    """Give browsers at one server of the page."""
    Asked.calls, Asked.error = [], None
    monkeypatch.setattr(web_site, "AskedDevice", Asked)
    monkeypatch.setattr(web_app, "_STEP", 0.01)
    kept.clear()
    site, recorded = Site("db:10000", ICD, lambda: DEVICES, SystemClock()), Recorded()
    app = make_app(
        Feed(recorded, recorded, SystemClock()), site, doors, hosts=["localhost"], keep=kept.append, sign_on=sign_on
    )

    def browser() -> TestClient:
        return TestClient(app, base_url=HOST, headers={"Origin": HOST}, follow_redirects=False)

    with browser():
        yield browser


def signed_in(page: TestClient, given: Provider, sub: str = "4711") -> TestClient:
    back = given.let_in(page.post("/api/provider", json={}).json()["to"], sub)
    answer = page.get("/sso/sign-in", params=back, headers={"Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, answer.headers["Location"]) == (303, f"{HOST}/")
    cookies = answer.headers.get_list("Set-Cookie")
    assert all("HttpOnly" in one for one in cookies)
    assert [one.partition("=")[0] for one in cookies if "SameSite=strict" in one] == ["sdp_session"]
    return page


def finished(sign_on: SignOn, given: Provider, sub: str = "4711") -> bytes:
    return sign_on.finish("begun", given.let_in(sign_on.begin("begun"), sub))


def name(page: TestClient) -> str:
    return str(page.get("/api/me").json()["name"])


def test_a_person_signs_in_and_each_record_has_the_subject(
    pages: Callable[[], TestClient], given: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    page = pages()
    assert page.get("/api/me").json()["can_sign_in"] is True
    assert page.get("/api/site").json()["provider"] == given.address.removeprefix("http://")
    signed_in(page, given)
    anna = f"{HERS} <{given.address}#4711>"
    assert page.get("/api/me").json()["role"] == "operator"
    assert name(page) == anna
    asked = {"action": "shelve", "condition": "c", "source": "s", "occurrence": 3, "comment": "why", "duration": 60}
    decision = {"device": COMMAND["device"], "decision": "approve", "id": "2"}
    for path, body in {"command": COMMAND, "alarm": asked, "decide": decision}.items():
        assert page.post(f"/api/{path}", json=body).status_code == 200
    assert [json.loads(content)["operator"] for *_, content in Asked.calls] == [anna] * 3
    page.post("/api/sign-out", json={})
    assert [(one.act, one.person) for one in kept] == [("sign-in", anna), ("sign-out", anna)]
    lines = "\n".join(one.message for one in caplog.records if one.name.startswith("sdp_facade"))
    assert "act=sign-out" in lines
    assert [one for one in (SECRET, "id_token", "eyJ", "code=") if one in lines] == []


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"iss": "https://elsewhere.example"}, "iss"),
        ({"aud": "another-client"}, "aud"),
        ({"aud": [CLIENT, "b"], "azp": "b"}, "azp"),
        ({"exp": 1_800_000_000 - 31}, "expired"),
        ({"iat": 1_800_000_000 + 31}, "future"),
        ({"nonce": "of another sign-in"}, "nonce"),
        ({"sub": ""}, "sub"),
        ({"sub": "a b"}, "visible characters"),
        ({"sub": "4711> <https://elsewhere.example#1"}, "visible characters"),
        ({"sub": "x" * 180}, "at most 200"),
        ({"groups": ["staff"]}, "expected one of sdp-operators, sdp-experts in groups, got none"),
        ({"groups": {"sdp-operators": True}}, "got none"),
    ],
)
def test_an_id_token_that_is_not_as_it_must_be_lets_nobody_in(
    sign_on: SignOn, given: Provider, claims: dict[str, Any], says: str
) -> None:
    given.spoil = lambda told: told.update(claims)
    with pytest.raises(SignInRefused, match=says):
        finished(sign_on, given)
    assert sign_on.people() == {}


def forged(given: Provider, kind: str) -> str:
    """Return an ID token that is right but for its signature."""
    key: Any = given.key
    claims = {"iss": given.address, "aud": CLIENT, "sub": "4711", **ANNA, "iat": 1_800_000_000, "exp": 1_800_000_300}
    header, algorithms = {"alg": "RS256", "kid": given.key.kid}, None
    if kind == "of another key":
        key = RSAKey.generate_key(2048)
    elif kind == "of an algorithm that is not the key's":
        header, algorithms = {**header, "alg": "PS256"}, ["PS256"]
        key = RSAKey.import_key({one: value for one, value in given.key.as_dict(private=True).items() if one != "alg"})
    elif kind == "by the public key as a password":
        header, algorithms = {**header, "alg": "HS256"}, ["HS256"]
        key = OctKey.import_key(hashlib.sha512(given.key.as_pem(private=False)).hexdigest())
    elif kind == "none":
        parts = (base64.urlsafe_b64encode(json.dumps(one).encode()).decode() for one in ({"alg": "none"}, claims))
        return f"{'.'.join(parts)}."
    return jwt.encode(header, claims, key, algorithms=algorithms) if kind else "no token"


@pytest.mark.parametrize(
    "kind",
    ["", "none", "of another key", "of an algorithm that is not the key's", "by the public key as a password"],
)
def test_a_token_without_a_signature_of_the_provider_s_key_is_refused(
    sign_on: SignOn, given: Provider, kind: str
) -> None:
    given.answer = {"id_token": forged(given, kind)}
    with pytest.raises(SignInRefused, match="the ID token cannot be used"):
        finished(sign_on, given)


def test_new_keys_of_the_provider_are_read_and_old_ones_forgotten(
    sign_on: SignOn, given: Provider, clock: ManualClock
) -> None:
    finished(sign_on, given)
    old = given.token("4711", "logout+jwt", events=LOGOUT)
    given.rotate()
    with pytest.raises(SignInRefused):  # whoever sends unknown keys has us read them once in 5 s
        finished(sign_on, given)
    assert given.asked["/keys"] == 1
    clock.sleep(5)
    finished(sign_on, given)
    assert given.asked["/keys"] == 2
    with pytest.raises(SignInRefused):
        sign_on.signed_out(old)


def test_keys_that_cannot_be_used_are_left_out(
    sign_on: SignOn, given: Provider, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    given.other_keys = [{"kty": "EC", "crv": "P-999", "x": "a", "y": "b", "kid": "1"}, {"kty": "new"}]
    finished(sign_on, given)
    monkeypatch.setattr(given.key, "as_dict", lambda *, private: {"kty": "RSA"})
    clock.sleep(300)
    with pytest.raises(InfraError, match="expected one that can be used, got KeyParameterError"):
        sign_on.begin("begun")


def test_a_new_key_that_may_not_be_read_yet_ends_no_session(
    sign_on: SignOn, given: Provider, clock: ManualClock
) -> None:
    """The refresh token counts once: the next confirmation is by the new one."""
    key = finished(sign_on, given)
    clock.sleep(CONFIRMED_EACH)
    given.rotate()
    stray = given.token("4711", events=LOGOUT)
    given.rotate()
    with pytest.raises(SignInRefused):
        sign_on.signed_out(stray)
    given.rotate()
    assert sign_on.step([key]) is None
    clock.sleep(CONFIRMED_EACH)
    assert sign_on.step([key]) is None
    clock.sleep(LONGEST_UNCONFIRMED - 1)
    assert [*sign_on.people()] == [key]


def test_only_the_browser_that_began_a_sign_in_ends_it(pages: Callable[[], TestClient], given: Provider) -> None:
    page, other = pages(), pages()
    back = given.let_in(page.post("/api/provider", json={}).json()["to"], "4711")
    other.post("/api/provider", json={})
    for browser, asked in ((other, back), (pages(), back), (page, back | {"state": "é"}), (page, {"code": "x"})):
        answer = browser.get("/sso/sign-in", params=asked)
        assert (answer.status_code, "not begun in this browser" in answer.text) == (403, True)
    answer = page.get("/sso/sign-in", params=back | {"iss": "https://elsewhere.example"})
    assert (answer.status_code, "iss: expected" in answer.text) == (403, True)
    denied = {"state": back["state"], "error": "access_denied", "error_description": "<b>no</b>"}
    answer = page.get("/sso/sign-in", params=denied)
    assert "refuses the sign-in: access_denied, &lt;b&gt;no&lt;/b&gt;" in answer.text
    assert page.get("/sso/sign-in", params=back).status_code == 303


def test_forged_returns_are_counted_before_the_provider_is_asked(
    pages: Callable[[], TestClient], given: Provider
) -> None:
    """A browser that makes up its cookie can make up the state as well."""
    page = pages()
    page.cookies["sdp_sign_in"] = "begun"
    forged = {"state": oidc._derived("begun", "state"), "code": "x"}
    statuses = {page.get("/sso/sign-in", params=forged).status_code for _ in range(201)}
    assert (statuses, given.asked["/token"] <= 200) == ({403, 429}, True)


def test_a_code_counts_once_and_with_its_verifier(sign_on: SignOn, given: Provider) -> None:
    back = given.let_in(sign_on.begin("begun"), "4711")
    stolen = back | {"state": given.let_in(sign_on.begin("another"), "4711")["state"]}
    with pytest.raises(SignInRefused, match="refuses: invalid_grant"):
        sign_on.finish("another", stolen)
    back = given.let_in(sign_on.begin("begun"), "4711")
    sign_on.finish("begun", back)
    with pytest.raises(SignInRefused, match="refuses: invalid_grant"):
        sign_on.finish("begun", back)


def test_a_sign_in_begins_on_our_own_page_only(pages: Callable[[], TestClient]) -> None:
    page = pages()
    assert page.post("/api/provider", json={}, headers={"Origin": "http://evil.example"}).status_code == 403
    there = {"Host": "localhost:9", "Origin": "http://localhost:9"}
    answer = page.post("/api/provider", json={}, headers=there)
    assert answer.json()["error"] == f"expected the page at {HOST}/, got http://localhost:9; sign in there"


def test_a_session_ends_within_a_minute_after_its_role(
    pages: Callable[[], TestClient], given: Provider, sign_on: SignOn, doors: Doors, clock: ManualClock
) -> None:
    page = signed_in(pages(), given)
    given.people["4711"] = ANNA | {"groups": ["sdp-experts", "sdp-operators"]}
    clock.sleep(CONFIRMED_EACH)
    until(lambda: PageRole.EXPERT in [one.role for one in sign_on.people().values()], "the new role counts")
    assert page.get("/api/me").json()["role"] == "expert"
    given.people["4711"] = ANNA | {"groups": []}
    clock.sleep(CONFIRMED_EACH)
    until(lambda: not doors.present(), "the session has ended")
    assert page.get("/api/me").json()["ended"]
    given.people["4711"] = ANNA  # who gets the role back signs in again
    signed_in(pages(), given)
    assert name(page) == ""
    assert CONFIRMED_EACH < LONGEST_UNCONFIRMED <= 60


@pytest.mark.parametrize("other", [{"sub": "1"}, {"aud": "another-client"}])
def test_a_confirmation_must_be_of_the_same_person(
    sign_on: SignOn, given: Provider, clock: ManualClock, other: dict[str, str]
) -> None:
    key = finished(sign_on, given)
    given.spoil = lambda told: told.update(other)
    clock.sleep(CONFIRMED_EACH)
    assert sign_on.step({key}) == key
    assert sign_on.people() == {}


def test_sessions_end_before_others_are_asked_for(sign_on: SignOn, given: Provider, clock: ManualClock) -> None:
    """The provider may take seconds for each."""
    given.people["4712"] = {"name": "Eve", "groups": "sdp-experts"}
    present = [finished(sign_on, given, sub) for sub in ("4711", "4712")]
    del given.people["4711"]
    clock.sleep(CONFIRMED_EACH)
    assert (sign_on.step(present), given.asked["/token"]) == (present[0], 3)
    assert (sign_on.step(present), given.asked["/token"]) == (None, 4)


def test_a_person_for_whom_the_provider_fails_keeps_nobody_waiting(
    sign_on: SignOn, given: Provider, clock: ManualClock
) -> None:
    """The others lost their rights after a minute."""
    given.people["4712"] = {"name": "Eve", "groups": "sdp-experts"}
    present = [finished(sign_on, given, sub) for sub in ("4711", "4712")]
    given.failing = "4711"
    for _ in range(3):
        assert [*sign_on.people()][-1] == present[1]
        clock.sleep(CONFIRMED_EACH)
        sign_on.step(present)
    assert [*sign_on.people()] == [present[1]]


def test_a_person_without_a_session_is_not_asked_for(sign_on: SignOn, given: Provider, clock: ManualClock) -> None:
    finished(sign_on, given)
    clock.sleep(CONFIRMED_EACH)
    assert sign_on.step(set()) is None
    assert (sign_on.people(), given.asked["/token"]) == ({}, 1)


@pytest.mark.parametrize("status", [500, 503, 429, 401, 302])
def test_without_the_provider_rights_by_it_pause_and_tokens_work(
    pages: Callable[[], TestClient],
    sign_on: SignOn,
    given: Provider,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    page, other = signed_in(pages(), given), pages()
    given.status = status
    for _ in range(3):
        clock.sleep(LONGEST_UNCONFIRMED / 3 - 0.1)
        assert name(page).startswith(HERS)
    clock.sleep(1)
    refused = page.post("/api/command", json=COMMAND)
    assert (refused.status_code, "it cannot be reached; sign in with a token" in refused.json()["error"]) == (403, True)
    me = page.get("/api/me").json()
    assert (me["name"], me["unconfirmed"], me["ended"]) == ("", True, False)
    until(lambda: "rights by sign-ins end a minute after" in caplog.text, "the log says so")
    clock.sleep(300)
    answer = other.post("/api/provider", json={})
    assert answer.status_code == 502
    assert f"does not answer ({given.address}/): expected 200, got {status}" in answer.json()["error"]
    assert answer.json()["error"].endswith("; sign in with a token instead")
    sign_in(other, "anna")
    assert name(other) == "anna"
    given.status = 200
    clock.sleep(CONFIRMED_EACH)
    until(sign_on.people, "the provider has confirmed the role")
    assert name(page).startswith(HERS), "the session goes on"
    assert not page.get("/api/me").json()["unconfirmed"]


def test_a_session_ends_at_its_bound_also_while_the_provider_is_away(
    pages: Callable[[], TestClient], given: Provider, clock: ManualClock
) -> None:
    page = signed_in(pages(), given)
    given.status = 500
    clock.sleep(LONGEST_IDLE)
    me = page.get("/api/me").json()
    assert (me["name"], me["unconfirmed"], me["ended"]) == ("", False, True)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
def test_an_answer_that_comes_byte_by_byte_ends_in_time(given: Provider, tmp_path: Path, head: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, closing(Drip(server, head)) as clock:
        given.address = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InfraError, match="its answer takes longer than 5 s"):
            make_sign_on(settings(given, tmp_path), "", clock).begin("begun")


def test_another_issuer_s_document_is_refused(
    sign_on: SignOn, given: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, jwks = given.document(), {"jwks_uri": "https://elsewhere.example/keys"}
    for document in ([1], None, {}, right | {"jwks_uri": 1}, right | jwks, right | {"issuer": f"{given.address}/"}):
        monkeypatch.setattr(given, "document", lambda told=document: told)
        with pytest.raises(InfraError):
            sign_on.begin("begun")
    monkeypatch.setattr(given, "document", lambda: right)
    sign_on.begin("begun")


def test_no_provider_at_all_is_told(sign_on: SignOn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HTTPConnection, "connect", lambda self: (_ for _ in ()).throw(OSError("gone")))
    with pytest.raises(InfraError, match=r"does not answer \(http.*\): gone; sign in with a token instead"):
        sign_on.begin("begun")


def test_signing_out_ends_all_sessions_of_the_subject(pages: Callable[[], TestClient], given: Provider) -> None:
    given.people["4712"] = {"name": "Eve", "groups": "sdp-experts"}
    here, there, eve = (signed_in(pages(), given, sub) for sub in ("4711", "4711", "4712"))
    to = here.post("/api/sign-out", json={}).json()["to"]
    assert (name(here), name(there), name(eve)[:4]) == ("", "", "Eve ")
    assert to.startswith(f"{given.address}/leave?id_token_hint=eyJ")
    assert to.endswith(f"&client_id={CLIENT}&post_logout_redirect_uri=http%3A%2F%2Flocalhost%3A8800%2F")
    sign_in(here, "anna")
    assert here.post("/api/sign-out", json={}).json() is None


def test_the_provider_signs_out(pages: Callable[[], TestClient], given: Provider) -> None:
    page, elsewhere = signed_in(pages(), given), TestClient(pages().app, base_url=HOST)
    wrong_ones: list[dict[str, Any]] = [{}, {"events": LOGOUT, "nonce": "n"}, {"events": [1]}, {"events": 1}]
    for wrong in ("x", *(given.token("4711", "logout+jwt", **one) for one in wrong_ones)):
        assert elsewhere.post("/sso/sign-out", data={"logout_token": wrong}).status_code == 403
    assert elsewhere.post("/sso/sign-out", content=b"x" * 5000).status_code == 413
    assert name(page)
    right = given.token("4711", events=LOGOUT)  # not each provider writes the type
    assert elsewhere.post("/sso/sign-out", data={"logout_token": right}).status_code == 200
    assert (name(page), kept[-1].act, kept[-1].person[: len(HERS)]) == ("", "sign-out", HERS)


def test_a_sign_in_needs_a_refresh_token(sign_on: SignOn, given: Provider) -> None:
    given.answer = {"refresh_token": None}
    with pytest.raises(SignInRefused, match=r"expected a refresh token.*offline_access"):
        finished(sign_on, given)


def test_a_subject_is_no_token(sign_on: SignOn, given: Provider, clock: ManualClock) -> None:
    key = finished(sign_on, given)
    assert [one.role for one in sign_on.people().values()] == [PageRole.OPERATOR]
    doors = Doors(sign_on.people, clock)
    for guess in (key.decode(), f"{given.address}#4711", "4711"):
        assert doors.sign_in(guess) is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"issuer": "http://sso.example.org"}, "issuer: expected an address with https"),
        ({"redirect_uri": "https://sdp.example.org/"}, "expected /sso/sign-in at its end"),
        ({"secret": "s"}, "unknown field `secret`"),
        ({"client_secret_file": "/absent"}, "expected the client's secret, got"),
    ],
)
def test_wrong_settings_are_told(
    given: Provider, tmp_path: Path, clock: ManualClock, wrong: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        make_sign_on(settings(given, tmp_path, **wrong), "", clock)
    assert says in str(error.value)


def test_a_secret_is_the_owner_s_and_shown_nowhere(given: Provider, tmp_path: Path, clock: ManualClock) -> None:
    path = settings(given, tmp_path)
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        make_sign_on(path, "", clock)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(ConfigError, match="got an empty file"):
        make_sign_on(path, "", clock)
    one = make_sign_on(path, SECRET, clock)
    finished(one, given)
    shown = repr([vars(one)["_known"], one, vars(one)["_settings"]])
    assert (SECRET in shown, "eyJ" in shown, HERS in shown) == (False, False, True)
