"""A small issuer of OAuth tokens: gives a client a signed token for its secret, and the broker its public key."""

import base64
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from joserfc import jwt
from joserfc.jwk import RSAKey

AUDIENCE = "sdp-kafka"


@contextmanager
def issuer(secrets: Mapping[str, str], given: Counter[str], lifetimes: Mapping[str, int]) -> Iterator[str]:
    """Run an issuer for clients with their secrets, and return its address.

    Parameters
    ----------
    given
        Counts the tokens of each client.
    lifetimes
        Lifetime of a token by client, otherwise a minute [s].
    """
    key = RSAKey.generate_key(2048, {"kid": "1", "alg": "RS256", "use": "sig"})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, {"keys": [key.as_dict(private=False)]})

        def do_POST(self) -> None:
            login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
            name, _, secret = login.partition(":")
            if secrets.get(name) != secret:
                self._answer(401, {"error": "invalid_client"})
                return
            now, lifetime = int(time.time()), lifetimes.get(name, 60)
            claims = {"iss": address, "aud": AUDIENCE, "sub": name, "iat": now, "exp": now + lifetime}
            token = jwt.encode({"alg": "RS256", "kid": "1"}, claims, key)
            given[name] += 1
            self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": lifetime})

        def _answer(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with serving(Handler) as address:
        yield address


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server of HTTP in this process, and return its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def broker_properties(address: str, listener: str) -> dict[str, str]:
    """Return what a broker needs on a listener that takes logins by SCRAM already."""
    own, package = f"listener.name.{listener}.oauthbearer.sasl", "org.apache.kafka.common.security.oauthbearer"
    return {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        f"{own}.jaas.config": f"{package}.OAuthBearerLoginModule required;",
        f"{own}.server.callback.handler.class": f"{package}.OAuthBearerValidatorCallbackHandler",
        f"listener.name.{listener}.sasl.oauthbearer.jwks.endpoint.url": f"{address}/keys",
        f"listener.name.{listener}.sasl.oauthbearer.expected.issuer": address,
        f"listener.name.{listener}.sasl.oauthbearer.expected.audience": AUDIENCE,
    }


def allowed_urls(address: str) -> str:
    """Return the option of Java without which a broker since Kafka 4.0 fetches no keys."""
    return f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={address}/keys"


def client_settings(address: str, name: str, secret: str) -> dict[str, str]:
    """Return the Kafka settings of a client that logs in by a token."""
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": f"{address}/token",
        "sasl.oauthbearer.client.id": name,
        "sasl.oauthbearer.client.secret": secret,
    }
