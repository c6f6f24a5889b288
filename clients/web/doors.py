"""Rights of people on the operator's page.

Everybody who reaches the server may look. To act, a person signs in with a token, which has a name and a role. The
browser then has a cookie that no script can read and that no other site can make it send (SameSite=Strict). In addition
a request for an action must name our own origin, and be JSON, which a form of another site cannot send.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from facade.clock import Clock
from facade.errors import ConfigError

COOKIE: Final = "sdp_session"
LONGEST_SESSION: Final = 12 * 3600.0
"""Length of a shift [s]."""
_MOST_SESSIONS: Final = 1000
_SHORTEST_TOKEN: Final = 16
_PER_SECOND, _AT_ONCE = 5.0, 20.0
"""Requests for actions, for each person or address: the rate, and the largest burst."""
_LINE = re.compile(r"(\S+)\s+(\S+)\s+(\S+)")


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
    role: PageRole


NOBODY = Person("", PageRole.VIEWER)


class TooManyRequests(Exception):
    """Requests for actions of a person or an address exceed the rate."""


def read_tokens(text: str, where: str) -> dict[bytes, Person]:
    """Return the people of a list of tokens: a line each with role, name and token; # begins a comment."""
    people: dict[bytes, Person] = {}
    roles = [role.name.lower() for role in PageRole]
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
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
        digest = _digest(token)
        if digest in people:
            raise ConfigError(f"{place}: expected a token of its own for {name!r:.50}, got one that stands above")
        people[digest] = Person(name, PageRole[role.upper()])
    return people


def load_tokens(path: Path) -> dict[bytes, Person]:
    """Return the people of a file of tokens, which only its owner may read."""
    try:
        mode = path.stat().st_mode
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected a file of tokens, got {error}") from error
    if mode & 0o077:
        raise ConfigError(f"{path}: expected a file that only its owner may read, got mode {mode & 0o777:o}; chmod 600")
    return read_tokens(text, str(path))


class Doors:
    """Sessions of people, their rights and their rates; people are known by the digests of their tokens."""

    def __init__(self, people: Mapping[bytes, Person], clock: Clock) -> None:
        self._people, self._clock = people, clock
        self._sessions: dict[str, tuple[Person, float]] = {}
        self._buckets: dict[str, tuple[float, float]] = {}

    @property
    def anybody_may_act(self) -> bool:
        """Return whether the deployment has tokens; without them signing in is impossible."""
        return bool(self._people)

    def sign_in(self, token: str) -> str | None:
        """Return a new session for a token; None: the token is unknown."""
        digest = _digest(token)
        person = next((one for known, one in self._people.items() if hmac.compare_digest(known, digest)), None)
        if person is None:
            return None
        now = self._clock.monotonic()
        self._sessions = {key: one for key, one in self._sessions.items() if one[1] > now}
        while len(self._sessions) >= _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = secrets.token_urlsafe(32)
        self._sessions[session] = (person, now + LONGEST_SESSION)
        return session

    def sign_out(self, session: str) -> None:
        """End a session."""
        self._sessions.pop(session, None)

    def who(self, session: str) -> Person:
        """Return the person of a session; `NOBODY` if it has ended."""
        person, until = self._sessions.get(session, (NOBODY, 0.0))
        return person if self._clock.monotonic() < until else NOBODY

    def count(self, key: str) -> None:
        """Count a request for an action; `TooManyRequests` if the rate is exceeded."""
        now = self._clock.monotonic()
        left, at = self._buckets.get(key, (_AT_ONCE, now))
        left = min(_AT_ONCE, left + (now - at) * _PER_SECOND)
        if len(self._buckets) >= _MOST_SESSIONS:
            self._buckets = {one: found for one, found in self._buckets.items() if now - found[1] < 60.0}
        if left < 1:
            raise TooManyRequests
        self._buckets[key] = (left - 1, now)


def is_own_origin(origin: str, host: str, sec_fetch_site: str) -> bool:
    """Return whether a request for an action comes from our own page."""
    own = origin.partition("://")[2] == host and origin.partition("://")[0] in ("http", "https")
    return own and sec_fetch_site in ("", "same-origin")


_OURS = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"
# Open MCT compiles its templates in the browser, and styles elements by attributes.
_EXPLORE = (
    "default-src 'self'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; connect-src 'self'"
)


def headers(path: str, *, secure: bool) -> Iterable[tuple[str, str]]:
    """Return the headers of an answer: only our own scripts and styles, no frames, no guessed content types."""
    policy = _EXPLORE if path.startswith("/explore/") else _OURS
    yield "Content-Security-Policy", f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    yield "X-Content-Type-Options", "nosniff"
    yield "Referrer-Policy", "no-referrer"
    yield "Cross-Origin-Resource-Policy", "same-origin"
    if secure:
        yield "Strict-Transport-Security", "max-age=31536000"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
