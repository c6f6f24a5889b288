"""Rights of people on the operator's page.

Every visitor may look. To act, a person signs in with a token, which has a name and a role, or by the provider of the
site (`sdp_facade_clients.web.oidc`). The browser then has a cookie that no script can read and that no other site can
make it send (SameSite=Strict). In addition a request for an action must name our own origin, and be JSON, which a form
of another site cannot send.

A session has the key of its person, of a token its digest, and what the file of tokens or the provider says of this key
at that moment: a token that is taken from the file ends its sessions. A token is compared before any rate is, so wrong
tokens from the same address never keep a right one out. The strength of the tokens keeps guessing out.
"""

import hashlib
import ipaddress
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from facade.kernel.clock import Clock
from facade.kernel.errors import ConfigError
from facade.kernel.recent import Bounded

_log = logging.getLogger(__name__)

COOKIE: Final = "sdp_session"
SIGN_IN_COOKIE: Final = "sdp_sign_in"
"""Of a sign-in by the provider that has begun."""
LOCAL: Final = ("localhost", "127.0.0.1")
LONGEST_SESSION: Final = 12 * 3600.0
"""Length of a shift [s]."""
LONGEST_IDLE: Final = 1800.0
"""After which a session ends if its person has touched nothing on any page [s]."""
MOST_SESSIONS: Final = 10
"""Of a token or a subject; the next one ends the oldest."""
REREAD: Final = 10.0
"""After which the file of tokens is read again [s]."""
_SHORTEST_TOKEN, _FEWEST_KINDS = 16, 8
"""Characters of a token, and different ones among them."""
_OF_CONTAINER: Final = "/run/secrets"
_MOST_KEYS: Final = 10_000
"""People and addresses whose rates are kept."""
_LINE = re.compile(r"(\S+)\s+(\S+)\s+(\S+)(?:\s+#.*)?")


class PageRole(IntEnum):
    """Rights of a person; each role also has the rights of the previous roles."""

    VIEWER = 0
    OPERATOR = 1
    """Commands of subarrays and of SDP, and actions on alarms."""
    EXPERT = 2
    """Also modes of devices."""


class Person(NamedTuple):
    """A person at a browser."""

    name: str
    """As records have it; of a person of the provider with the subject, see `facade.flows.commands.approvals`."""
    role: PageRole


NOBODY = Person("", PageRole.VIEWER)


class RequestRefused(Exception):
    """A request that is answered with an HTTP status and a text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class TooManyRequests(Exception):
    """Requests of a person or an address exceed the rate, or the places for them are taken."""


def read_tokens(text: str, where: str) -> dict[bytes, Person]:
    """Return the people of a list of tokens: a line each with role, name and token.

    A comment begins with # at the beginning of a line, or behind the token and a space.
    """
    people: dict[bytes, Person] = {}
    roles = [role.name.lower() for role in PageRole]
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        place = f"{where}, line {number}"
        if found is None:
            raise ConfigError(f"{place}: expected role, name and token, got {len(line.split())} words")
        role, name, token = found.groups()
        if role not in roles:
            raise ConfigError(f"{place}: expected one of {', '.join(roles)}, got {role!r:.50}")
        if len(token) < _SHORTEST_TOKEN:
            raise ConfigError(f"{place}: expected a token of at least {_SHORTEST_TOKEN} characters, got {len(token)}")
        if (kinds := len(set(token))) < _FEWEST_KINDS:
            raise ConfigError(f"{place}: expected a token of {_FEWEST_KINDS} different characters or more, got {kinds}")
        digest = _digest(token)
        if digest in people:
            raise ConfigError(f"{place}: expected a token of its own for {name!r:.50}, got one that stands above")
        people[digest] = Person(name, PageRole[role.upper()])
    return people


def load_tokens(path: Path) -> dict[bytes, Person]:
    """Return the people of a file of tokens, which only its owner may read."""
    return read_tokens(read_secret(path, "a file of tokens"), str(path))


def read_secret(path: Path, what: str) -> str:
    """Return the text of a file that only its owner may read; a container's secrets are for it alone."""
    try:
        mode = path.stat().st_mode
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected {what}, got {error}") from error
    if mode & 0o077 and not path.is_relative_to(_OF_CONTAINER):
        raise ConfigError(f"{path}: expected a file that only its owner may read, got mode {mode & 0o777:o}; chmod 600")
    return text


class TokenFile:
    """The people of a file of tokens, which is read again while the server runs."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._people, self._read, self._error = load_tokens(path), clock.monotonic(), ""

    def __call__(self) -> Mapping[bytes, Person]:
        """Return the people of now; while the file cannot be used, the log says so and the former ones stay."""
        now = self._clock.monotonic()
        if now - self._read >= REREAD:
            self._read, before = now, self._error
            try:
                self._people, self._error = load_tokens(self._path), ""
            except ConfigError as error:
                self._error = str(error)
            if self._error not in ("", before):
                _log.error("the tokens read before stay in force: %s", self._error)
        return self._people


class Rate:
    """Limits the requests of each key, a person or an address: a burst, then a number a second."""

    def __init__(self, per_second: float, at_once: float, clock: Clock) -> None:
        self._per_second, self._at_once, self._clock = per_second, at_once, clock
        self._left: Bounded[str, tuple[float, float]] = Bounded(_MOST_KEYS)
        """Requests left in the burst of each key, and the time of this count [s]; the key seen last comes last."""

    def count(self, key: str) -> None:
        """Count a request; `TooManyRequests` if the rate is exceeded."""
        now = self._clock.monotonic()
        left, at = self._left.get(key, (self._at_once, now))
        left = min(self._at_once, left + (now - at) * self._per_second)
        self._left[key] = (left - 1 if left >= 1 else left, now)
        if left < 1:
            raise TooManyRequests


@dataclass(slots=True)
class _Session:
    person: bytes
    begun: float
    used: float


class Doors:
    """Sessions of people, their rights and their rates; people are known by their keys."""

    def __init__(
        self, people: Callable[[], Mapping[bytes, Person]], clock: Clock, *, has_provider: bool = False
    ) -> None:
        self._people, self._clock, self._has_provider = people, clock, has_provider
        self._sessions: dict[str, _Session] = {}
        self.acts, self.questions = Rate(5, 20, clock), Rate(20, 200, clock)
        self.refusals = Rate(1, 10, clock)

    @property
    def anybody_may_act(self) -> bool:
        """Return whether the deployment has tokens or a provider; without them signing in is impossible."""
        return self._has_provider or bool(self._people())

    def sign_in(self, token: str, old: str = "") -> str | None:
        """Return a new session for a token in place of an old one; None: the token is unknown."""
        digest = _digest(token)
        if digest not in self._people():  # how long that takes tells something of the digest, and nothing of the token
            return None
        return self.open(digest, old)

    def open(self, person: bytes, old: str = "") -> str:
        """Return a new session for the key of a person in place of an old one."""
        now = self._clock.monotonic()
        self.sign_out(old)
        self._sessions = {key: one for key, one in self._sessions.items() if self._lasts(one)}
        of_person = [key for key, one in self._sessions.items() if one.person == person]
        if len(of_person) >= MOST_SESSIONS:
            del self._sessions[of_person[0]]
        session = secrets.token_urlsafe(32)
        self._sessions[session] = _Session(person, now, now)
        return session

    def key_of(self, session: str) -> bytes:
        """Return the key of the person of a session, with rights or without; empty: there is no such session."""
        found = self._sessions.get(session)
        return found.person if found is not None and self._lasts(found) else b""

    def sign_out(self, session: str) -> bytes:
        """End a session, and return the key of its person; empty: there is none."""
        found = self._sessions.pop(session, None)
        return b"" if found is None else found.person

    def sign_out_everywhere(self, person: bytes) -> None:
        """End all sessions of a person."""
        self._sessions = {key: one for key, one in self._sessions.items() if one.person != person}

    def present(self) -> set[bytes]:
        """Return the keys of people with sessions."""
        return {one.person for one in self._sessions.values() if self._lasts(one)}

    def who(self, session: str, *, used: bool = False) -> Person:
        """Return the person of a session, or `NOBODY` if it does not exist or has ended.

        Parameters
        ----------
        used
            Whether the person has done something: a page that only shows asks as well, and keeps no session.
        """
        found = self._sessions.get(session)
        if found is None or not self._lasts(found):
            return NOBODY
        if used:
            found.used = self._clock.monotonic()
        return self._people().get(found.person, NOBODY)

    def _lasts(self, session: _Session) -> bool:
        now = self._clock.monotonic()
        return now - session.begun < LONGEST_SESSION and now - session.used < LONGEST_IDLE


def require(person: Person, role: PageRole) -> None:
    """Refuse a request if a person does not have a role."""
    if not person.name or person.role < role:
        had = f"{person.name} is {person.role.name.lower()}" if person.name else "nobody has signed in"
        raise RequestRefused(403, f"expected the role {role.name.lower()}, but {had}; nothing was done")


def network(address: str) -> str:
    """Return what an address is counted as: a household has a whole /64 of IPv6.

    A server that listens at ``::`` sees those of IPv4 within one /64.
    """
    if ":" not in address:
        return address
    found = ipaddress.IPv6Interface(f"{address}/64")
    return str(found.ip.ipv4_mapped or found.network)


def host_in_url(name: str) -> str:
    """Return a host as URLs and the header Host have it: an address of IPv6 is in brackets."""
    try:
        return f"[{ipaddress.IPv6Address(name)}]"
    except ValueError:
        return name


def cookie(scheme: str, name: str = COOKIE) -> str:
    """Return the name of a cookie: under this one no other host and no page without TLS can set it."""
    return f"__Host-{name}" if scheme == "https" else name


def is_own_origin(origin: str, own: str, sec_fetch_site: str) -> bool:
    """Return whether a request for an action comes from our own page."""
    return origin == own and sec_fetch_site in ("", "same-origin")


def is_foreign(sec_fetch_site: str) -> bool:
    """Return whether a question comes from another site; only browsers say so, to a server by TLS or on localhost."""
    return sec_fetch_site not in ("", "same-origin", "none")


_OURS = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"
# Open MCT compiles its templates in the browser, and styles elements by attributes.
_EXPLORE = (
    "default-src 'self'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; connect-src 'self'"
)


def headers(path: str, scheme: str) -> Iterable[tuple[str, str]]:
    """Return the headers of an answer: only our own scripts and styles, no frames, no guessed content types."""
    policy = _EXPLORE if path.startswith("/explore/") else _OURS
    yield (
        "Content-Security-Policy",
        f"{policy}; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    )
    yield "X-Content-Type-Options", "nosniff"
    yield "Referrer-Policy", "no-referrer"
    yield "Cross-Origin-Resource-Policy", "same-origin"
    yield "Cross-Origin-Opener-Policy", "same-origin"
    if scheme == "https":
        yield "Strict-Transport-Security", "max-age=31536000; includeSubDomains"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
