"""A small provider of OpenID Connect on localhost: discovery, keys, sign-in with PKCE, refresh tokens, sign-out."""

import base64
import hashlib
import http.client
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

from facade.kernel.clock import Clock
from tests.support.issuer import serving

CLIENT, SECRET = "sdp-page", "secret-of-the-page/with+marks"


class Provider:
    """People who may sign in, by subject with their claims; tests change them, the keys and the tokens."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.address = clock, ""
        self.people: dict[str, dict[str, Any]] = {}
        self.spoil: Callable[[dict[str, Any]], None] = lambda claims: None
        """Changes the claims of a token before it is signed."""
        self.answer: dict[str, Any] = {}
        """Fields of each answer with tokens."""
        self.status = 200
        """Of each answer; another one: it is out of order."""
        self.failing = ""
        """Subject for whom each refresh token fails, with a fault of the provider."""
        self.asked: Counter[str] = Counter()
        self.other_keys: list[dict[str, Any]] = []
        """Keys beside the one that signs."""
        self.left: list[dict[str, str]] = []
        """What browsers asked for when they signed out."""
        self._codes: dict[str, dict[str, str]] = {}
        self._refresh: dict[str, str] = {}
        self.rotate()

    def rotate(self) -> None:
        """Take a new key in place of the old one."""
        self.key = RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "alg": "RS256", "use": "sig"})

    def token(self, sub: str, kind: str = "JWT", **claims: Any) -> str:
        now = int(self.clock.now())
        told = {"iss": self.address, "aud": CLIENT, "sub": sub, "iat": now, "exp": now + 300, **claims}
        self.spoil(told)
        return jwt.encode({"alg": "RS256", "kid": self.key.kid, "typ": kind}, told, self.key)

    def let_in(self, url: str, sub: str) -> dict[str, str]:
        """Sign a person in at an address of `/authorize`, and return what the browser brings back."""
        parts = urlsplit(url)
        with closing(http.client.HTTPConnection(parts.netloc, timeout=30)) as client:
            client.request("GET", f"{parts.path}?{parts.query}&as={sub}")
            return _flat(urlsplit(client.getresponse().headers["Location"]).query)

    def sign_in(self, asked: dict[str, str]) -> str:
        """Return the address to which a browser goes back."""
        assert (asked["client_id"], asked["response_type"], asked["code_challenge_method"]) == (CLIENT, "code", "S256")
        self._codes[code := secrets.token_hex(8)] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], 'iss': self.address})}"

    def tokens(self, asked: dict[str, str], login: str) -> tuple[int, dict[str, Any]]:
        if base64.b64decode(login.removeprefix("Basic ")).decode() != f"{CLIENT}:secret-of-the-page%2Fwith%2Bmarks":
            return 401, {"error": "invalid_client"}
        if asked["grant_type"] == "refresh_token":
            begun, sub = {}, self._refresh.pop(asked["refresh_token"], "")
            if sub and sub == self.failing:
                return 500, {}
        else:
            begun = self._codes.pop(asked["code"], {})
            sub, digest = begun.get("as", ""), hashlib.sha256(asked["code_verifier"].encode()).digest()
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != begun.get("code_challenge"):
                sub = ""
        if sub not in self.people:
            return 400, {"error": "invalid_grant", "error_description": "no such code, token or person"}
        self._refresh[fresh := secrets.token_hex(8)] = sub
        nonce = {"nonce": begun["nonce"]} if begun else {}
        answer = {"access_token": "a", "token_type": "Bearer", "refresh_token": fresh}
        return 200, answer | {"id_token": self.token(sub, **self.people[sub], **nonce)} | self.answer

    def document(self) -> dict[str, Any]:
        names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        places = {name: f"{self.address}/{path}" for name, path in (names | {"end_session_endpoint": "leave"}).items()}
        return {"issuer": self.address, "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"], **places}


@contextmanager
def provider(clock: Clock) -> Iterator[Provider]:
    """Run a provider."""
    one = Provider(clock)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            asked = _flat(parts.query)
            one.asked[parts.path] += 1
            if parts.path == "/authorize" and "as" in asked:
                self._go(one.sign_in(asked))
            elif parts.path == "/authorize":  # for a browser
                links = [f"<a href='{self.path}&as={sub}'>{claims['name']}</a>" for sub, claims in one.people.items()]
                self._answer(
                    200, f"<!doctype html><h1>Who are you?</h1>{' '.join(links)}".encode(), "text/html; charset=utf-8"
                )
            elif parts.path == "/leave":
                one.left.append(asked)
                self._go(asked["post_logout_redirect_uri"])
            else:
                keys = {"keys": [*one.other_keys, one.key.as_dict(private=False)]}
                self._json(one.status, keys if parts.path == "/keys" else one.document())

        def do_POST(self) -> None:
            one.asked[self.path] += 1
            asked = _flat(self.rfile.read(int(self.headers["Content-Length"])).decode())
            login = self.headers.get("Authorization", "")
            self._json(*one.tokens(asked, login) if one.status == 200 else (one.status, {}))

        def _json(self, status: int, content: Any) -> None:
            self._answer(status, json.dumps(content).encode(), "application/json")

        def _go(self, to: str) -> None:
            self._answer(302, b"", "text/plain", ("Location", to))

        def _answer(self, status: int, body: bytes, kind: str, *head: tuple[str, str]) -> None:
            self.send_response(status)
            for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *head):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with serving(Handler) as one.address:
        yield one


def _flat(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}
