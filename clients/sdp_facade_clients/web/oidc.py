"""Signing in at the operator's page by the site's provider of OpenID Connect.

The page sends the browser to the provider (authorization code flow with PKCE). One secret of a cookie, which lasts
until the person comes back, gives `state`, `nonce` and the code verifier: the server remembers no sign-in that has only
begun, and only the browser that began one can end it. The ID token is checked by a key of the provider's JWKS, and is
the only thing that counts: its subject is the person, and one of its claims has the role.

A right lasts a minute after the provider has confirmed it. `SignOn.step` has it confirmed every 20 s: it trades the
refresh token for a new ID token. If the provider refuses, the sessions of the subject end. If it does not answer,
they are suspended after the minute, because a role may have gone.
"""

import base64
import hashlib
import hmac
import logging
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote_plus, urlencode, urljoin, urlsplit

import msgspec
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import Key, KeySet
from joserfc.jws import JWSRegistry

from facade.flows.commands.approvals import signature
from facade.kernel.clock import Clock
from facade.kernel.errors import ConfigError, FacadeError, InfraError
from facade.kernel.http_request import send_request
from sdp_facade_clients.web.doors import LOCAL, PageRole, Person, read_secret

_log = logging.getLogger(__name__)

BACK: Final = "sso/sign-in"
"""Where the provider sends a browser back to, below the page."""
LONGEST_SIGN_IN: Final = 600.0
"""From the first step to the last one [s]."""
CONFIRMED_EACH: Final = 20.0
LONGEST_UNCONFIRMED: Final = 60.0
"""How long a right lasts after the provider has confirmed it [s]."""
_PATIENCE: Final = 5.0
"""Longest wait for a whole answer of the provider [s]."""
_KEYS_LAST: Final = 300.0
"""After which the discovery document and the keys are read again [s]."""
_KEYS_LAST_AT_LEAST: Final = 5.0
"""Before which no unknown key makes us read them: anybody may send a token with one [s]."""
_LEEWAY: Final = 30
"""Difference of clocks [s]."""
_LARGEST_ANSWER: Final = 1_000_000
_LONGEST_NAME, _LONGEST_SIGNATURE = 80, 200
_ALGORITHMS: Final = frozenset({f"{kind}{size}" for kind in ("RS", "PS", "ES") for size in (256, 384, 512)})
"""None of them is symmetric: a public key is no password."""
_LOGOUT: Final = "http://schemas.openid.net/event/backchannel-logout"
_SUBJECT = re.compile(r"[!-;=?-~]+")


class SignInRefused(FacadeError):
    """A person may not come in, or not any more."""


class _UnknownKey(SignInRefused):
    """A token is signed by a key that the provider did not have when its keys were read last."""


class OidcSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file of settings."""

    issuer: str
    client_id: str
    redirect_uri: str
    """Address of the page as browsers know it, with `sso/sign-in` at its end."""
    claim: str
    """Claim of the ID token with a text or a list of texts."""
    roles: dict[str, Literal["viewer", "operator", "expert"]]
    """Role by text of the claim; of several the highest counts."""
    scope: str = "openid profile"
    client_secret_file: str = ""


def load_oidc(path: Path) -> OidcSettings:
    """Return the settings of a file."""
    try:
        settings = msgspec.convert(tomllib.loads(path.read_text()), OidcSettings)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: expected settings of OpenID Connect, got {error}") from error
    for name, url in (("issuer", settings.issuer), ("redirect_uri", settings.redirect_uri)):
        parts = urlsplit(url)
        if not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOCAL)):
            raise ConfigError(f"{path}: {name}: expected an address with https, got {url!r:.200}")
    if not settings.redirect_uri.endswith(f"/{BACK}"):
        raise ConfigError(f"{path}: redirect_uri: expected /{BACK} at its end, got {settings.redirect_uri!r:.200}")
    return settings


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """What we need of the provider's discovery document."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    end_session_endpoint: str = ""
    id_token_signing_alg_values_supported: tuple[str, ...] = ("RS256",)


class _Read(NamedTuple):
    """What the provider says of itself."""

    at: float
    document: _Document
    keys: KeySet


@dataclass(slots=True)
class _Known:
    """A person whose role the provider has confirmed."""

    person: Person
    subject: str
    confirmed: float
    asked: float
    id_token: str = field(repr=False)
    refresh_token: str = field(repr=False)


class SignOn:
    """People who have signed in by the provider. Their keys differ from those of people with tokens.

    Parameters
    ----------
    secret
        Of this client; empty: it has none, and PKCE alone protects the code.
    """

    def __init__(self, settings: OidcSettings, secret: str, clock: Clock) -> None:
        self._settings, self._secret, self._clock = settings, secret, clock
        self._known: dict[bytes, _Known] = {}
        self._read: _Read | None = None
        self._away = ""
        self.home = settings.redirect_uri.removesuffix(BACK)
        """Address of the page."""
        parts = urlsplit(settings.redirect_uri)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.name = urlsplit(settings.issuer).netloc

    def people(self) -> dict[bytes, Person]:
        """Return the people whose rights the provider has confirmed within the last minute."""
        since = self._clock.monotonic() - LONGEST_UNCONFIRMED
        return {key: one.person for key, one in list(self._known.items()) if one.confirmed > since}

    def is_unconfirmed(self, key: bytes) -> bool:
        """Return whether a person has signed in whose rights the provider has not confirmed within the last minute."""
        return key in self._known and key not in self.people()

    # Each of the following may ask the provider, and wait for it.

    def begin(self, secret: str) -> str:
        """Return the address at the provider where a person signs in."""
        challenge = hashlib.sha256(_derived(secret, "verifier").encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._settings.redirect_uri,
            "scope": self._settings.scope,
            "state": _derived(secret, "state"),
            "nonce": _derived(secret, "nonce"),
            "code_challenge": _base64(challenge),
            "code_challenge_method": "S256",
        }
        return _with(self._provider().document.authorization_endpoint, asked)

    def finish(self, secret: str, answer: Mapping[str, str]) -> bytes:
        """Return the key of the person whose browser brings an answer of the provider.

        Raises
        ------
        SignInRefused
            The answer is not for this browser, the provider or the ID token is not as it must be, or no role follows.
        InfraError
            The provider does not answer.
        """
        state = answer.get("state", "").encode()
        if not secret or not hmac.compare_digest(state, _derived(secret, "state").encode()):
            raise SignInRefused("this sign-in was not begun in this browser within ten minutes; begin it again")
        if (issuer := answer.get("iss", self._settings.issuer)) != self._settings.issuer:
            raise SignInRefused(f"iss: expected {self._settings.issuer}, got {issuer!r:.200}")
        if "error" in answer:
            raise SignInRefused(f"{self.name} refuses the sign-in: {_error(answer)}")
        asked = self._clock.monotonic()
        tokens = self._tokens(
            grant_type="authorization_code",
            code=answer.get("code", ""),
            redirect_uri=self._settings.redirect_uri,
            code_verifier=_derived(secret, "verifier"),
        )
        if not tokens.get("refresh_token"):
            what = "expected a refresh token, by which the role is confirmed every 20 s, got none"
            raise SignInRefused(f"{self.name}: {what}; its client must get one (often by the scope offline_access)")
        claims = self._claims(tokens, {"nonce": {"essential": True, "value": _derived(secret, "nonce")}})
        known = self._person(claims, tokens, asked)
        key = _key(known.subject)
        self._known[key] = known
        return key

    def step(self, present: Collection[bytes]) -> bytes | None:
        """Have due rights confirmed, and return the key of the first person whose sessions must end, or None.

        Parameters
        ----------
        present
            Keys of people with sessions; others are forgotten.
        """
        # The longest unconfirmed person comes first, so failures for one person do not hold up the others.
        for key, known in sorted(self._known.items(), key=lambda one: one[1].asked):
            if (now := self._clock.monotonic()) - known.asked < CONFIRMED_EACH:
                break
            fresh, known.asked = None, now
            try:
                if key in present:
                    fresh = self._confirm(known, now)
                    self._away = ""
            except InfraError as error:
                if self._away != (away := str(error)):
                    self._away = away
                    _log.error("rights by sign-ins end a minute after they were confirmed: %s", away)
                break  # the others are asked in the next steps
            except SignInRefused as error:
                _log.warning("the sessions of %s end: %s", known.person.name, error)
            if self._known.get(key) is not known:  # the person has gone or come meanwhile
                continue
            if fresh is not None:
                self._known[key] = fresh
                continue
            self._known.pop(key, None)
            if key in present:
                return key
        return None

    def leave(self, key: bytes) -> str | None:
        """Forget a person, and return where the browser goes to sign out at the provider; empty: nowhere.

        None: the person has not signed in by the provider. The provider is not asked.
        """
        known = self._known.pop(key, None)
        if known is None:
            return None
        end = self._read.document.end_session_endpoint if self._read else ""
        asked = {
            "id_token_hint": known.id_token,
            "client_id": self._settings.client_id,
            "post_logout_redirect_uri": self.home,
        }
        return _with(end, asked) if end else ""

    def signed_out(self, token: str) -> tuple[bytes, str]:
        """Return the key and the name of the person who, by a logout token of the provider, has signed out there."""
        claims = self._claims({"id_token": token}, {"events": {"essential": True}})
        if not isinstance(claims["events"], dict) or _LOGOUT not in claims["events"] or "nonce" in claims:
            raise SignInRefused("logout_token: expected the event of a sign-out, and no nonce")
        key = _key(self._subject(claims))
        known = self._known.pop(key, None)
        return key, known.person.name if known else ""

    def _confirm(self, known: _Known, now: float) -> _Known:
        tokens = self._tokens(grant_type="refresh_token", refresh_token=known.refresh_token)
        known.refresh_token = tokens.get("refresh_token") or known.refresh_token  # the former one may count no more
        try:
            claims = self._claims(tokens, {})
        except _UnknownKey as error:  # the next question reads the keys again
            raise InfraError(str(error)) from error
        fresh = self._person(claims, tokens | {"refresh_token": known.refresh_token}, now)
        if fresh.subject != known.subject:
            raise SignInRefused(f"sub: expected that of the sign-in, got {claims['sub']!r:.200}")
        return fresh

    def _person(self, claims: Mapping[str, Any], tokens: Mapping[str, Any], asked: float) -> _Known:
        subject = self._subject(claims)
        told = next((one for one in (claims.get("name"), claims.get("preferred_username")) if isinstance(one, str)), "")
        shown = "".join(one for one in told if one.isprintable() and one not in "<>")[:_LONGEST_NAME].strip()
        name = signature(shown or claims["sub"][:_LONGEST_NAME], subject)
        if len(name) > _LONGEST_SIGNATURE:
            raise SignInRefused(f"sub: expected at most {_LONGEST_SIGNATURE} characters with issuer and name, got more")
        claim = self._settings.claim
        values = given if isinstance(given := claims.get(claim), list) else [given]
        roles = [self._settings.roles[one] for one in values if isinstance(one, str) and one in self._settings.roles]
        if not roles:
            raise SignInRefused(f"{name}: expected one of {', '.join(self._settings.roles)} in {claim}, got none")
        role = max(PageRole[one.upper()] for one in roles)
        return _Known(Person(name, role), subject, asked, asked, tokens["id_token"], tokens["refresh_token"])

    def _subject(self, claims: Mapping[str, Any]) -> str:
        subject = f"{self._settings.issuer}#{claims['sub']}"
        if not _SUBJECT.fullmatch(subject):
            raise SignInRefused(
                f"sub: expected visible characters of ASCII without < and >, got {claims['sub']!r:.200}"
            )
        return subject

    def _claims(self, tokens: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the claims of an ID token, or of a logout token, that all is right with."""
        token, client = str(tokens.get("id_token") or ""), self._settings.client_id
        if not token:
            raise SignInRefused(f"{self.name}: expected an ID token, got none")
        expected = jwt.JWTClaimsRegistry(
            now=lambda: int(self._clock.now()),
            leeway=_LEEWAY,
            **{
                "iss": {"essential": True, "value": self._settings.issuer},
                "aud": {"essential": True, "value": client},
                "azp": {"value": client},
                **{name: {"essential": True} for name in ("sub", "exp", "iat")},
                **more,
            },
        )
        try:
            try:
                decoded = self._decoded(token, self._provider())
            except InvalidKeyIdError:  # the provider has new keys, or somebody sends anything
                decoded = self._decoded(token, self._provider(_KEYS_LAST_AT_LEAST))
            expected.validate(decoded.claims)
        except (JoseError, ValueError) as error:
            kind = _UnknownKey if isinstance(error, InvalidKeyIdError) else SignInRefused
            raise kind(f"{self.name}: the ID token cannot be used: {error}") from error
        return decoded.claims

    def _decoded(self, token: str, provider: _Read) -> jwt.Token:
        offered = _ALGORITHMS & {*provider.document.id_token_signing_alg_values_supported}
        registry = JWSRegistry(algorithms=offered or {"RS256"}, strict_check_header=False)
        return jwt.decode(token, provider.keys, registry=registry)

    def _provider(self, lasts: float = _KEYS_LAST) -> _Read:
        """Return the discovery document and the keys, which may be this old [s]."""
        now, issuer = self._clock.monotonic(), self._settings.issuer
        if self._read is None or now - self._read.at >= lasts:
            told = self._ask("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            try:
                document = msgspec.convert(told, _Document)
                keys = _usable(self._ask("GET", document.jwks_uri)["keys"])
            except (KeyError, TypeError, ValueError, JoseError) as error:
                raise InfraError(f"{self.name}: its document or its keys cannot be used: {error!r:.200}") from error
            if document.issuer != issuer:
                raise InfraError(f"{self.name}: issuer: expected {issuer}, got {document.issuer!r:.200}")
            self._read = _Read(now, document, keys)
        return self._read

    def _tokens(self, **asked: str) -> dict[str, Any]:
        head = {"Content-Type": "application/x-www-form-urlencoded"}
        if self._secret:
            login = f"{quote_plus(self._settings.client_id)}:{quote_plus(self._secret)}"
            head["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        else:
            asked["client_id"] = self._settings.client_id
        return self._ask("POST", self._provider().document.token_endpoint, urlencode(asked), head)

    def _ask(self, method: str, url: str, body: str | None = None, head: Mapping[str, str] | None = None) -> Any:
        """Return the JSON object that the provider answers with; a redirect is not followed."""
        what = f"the provider of sign-ins does not answer ({urljoin(url, '/')})"
        if urlsplit(url).scheme != urlsplit(self._settings.issuer).scheme:
            raise InfraError(f"{self.name}: expected addresses of the scheme of the issuer, got {url!r:.200}")
        headers = {"Accept": "application/json", **(head or {})}
        try:
            status, _, content = send_request(
                *(method, url, body, headers), within=_PATIENCE, largest=_LARGEST_ANSWER, clock=self._clock
            )
            said = msgspec.json.decode(content, type=dict[str, Any])
        except (OSError, ValueError, RecursionError) as error:
            raise InfraError(f"{what}: {error}; sign in with a token instead") from error
        if status == 400 and said.get("error") == "invalid_grant":
            raise SignInRefused(f"{self.name} refuses: {_error(said)}")
        if status != 200:
            raise InfraError(f"{what}: expected 200, got {status}: {_error(said)}; sign in with a token instead")
        return said


def make_sign_on(path: Path, secret: str, clock: Clock) -> SignOn:
    """Return what signs in by the settings of a file; a secret from the environment is preferred to one from a file."""
    settings = load_oidc(path)
    if not secret and settings.client_secret_file:
        secret = read_secret(Path(settings.client_secret_file), "the client's secret").strip()
        if not secret:
            raise ConfigError(f"{settings.client_secret_file}: expected the client's secret, got an empty file")
    return SignOn(settings, secret, clock)


def _usable(keys: Iterable[Any]) -> KeySet:
    """Return the keys that can be used: a provider may have others, such as of a curve that we do not know."""
    found, why = list[Key](), "none"
    for one in keys:
        try:
            found += KeySet.import_key_set({"keys": [one]})
        except (KeyError, TypeError, ValueError, JoseError) as error:
            why = repr(error)
    if not found:
        raise ValueError(f"keys: expected one that can be used, got {why}")
    return KeySet(found)


def _key(subject: str) -> bytes:
    return b"subject " + subject.encode()


def _derived(secret: str, use: str) -> str:
    return _base64(hmac.digest(secret.encode(errors="surrogateescape"), use.encode(), "sha256"))


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _with(url: str, asked: Mapping[str, str]) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(asked)}"


def _error(said: Mapping[str, Any]) -> str:
    return ", ".join(f"{said[name]!s:.200}" for name in ("error", "error_description") if name in said) or "no reason"
