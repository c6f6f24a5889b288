"""Who may do what through the operator's page."""

import os
from pathlib import Path

import pytest

from clients.web.doors import (
    LONGEST_SESSION,
    NOBODY,
    Doors,
    PageRole,
    Person,
    TooManyRequests,
    is_own_origin,
    load_tokens,
    read_tokens,
)
from facade.clock import ManualClock
from facade.errors import ConfigError

TOKEN = "a-token-of-an-operator"


def test_a_token_gives_a_session_with_the_role_of_its_person() -> None:
    clock = ManualClock(0.0)
    doors = Doors(read_tokens(f"# people\noperator anna {TOKEN}  # until May\n", "file"), clock)
    assert doors.sign_in("another-token-of-nobody") is None
    session = doors.sign_in(TOKEN)
    assert session is not None
    assert doors.who(session) == Person("anna", PageRole.OPERATOR)
    assert doors.who("guessed") == NOBODY
    clock.sleep(LONGEST_SESSION + 1)
    assert doors.who(session) == NOBODY
    session = doors.sign_in(TOKEN)
    assert session is not None
    doors.sign_out(session)
    assert doors.who(session) == NOBODY


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("operator anna", "line 1: expected role, name and token, got 2 words"),
        (f"\nboss anna {TOKEN}", "line 2: expected one of viewer, operator, expert, got 'boss'"),
        ("operator anna short", "expected a token of at least 16 characters, got 5"),
        (f"operator anna {TOKEN}\nexpert eve {TOKEN}", "line 2: expected a token of its own for 'eve'"),
    ],
)
def test_a_bad_line_is_named_without_its_token(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_tokens(text, "tokens.txt")
    assert says in str(error.value)
    assert TOKEN not in str(error.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.txt"
    path.write_text(f"viewer vera {TOKEN}")
    os.chmod(path, 0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_tokens(path)
    os.chmod(path, 0o600)
    assert list(load_tokens(path).values()) == [Person("vera", PageRole.VIEWER)]
    with pytest.raises(ConfigError, match="expected a file of tokens"):
        load_tokens(tmp_path / "absent")


def test_requests_are_limited_for_each_person() -> None:
    clock = ManualClock(0.0)
    doors = Doors({}, clock)
    for _ in range(20):
        doors.count("anna")
    with pytest.raises(TooManyRequests):
        doors.count("anna")
    doors.count("eve")
    clock.sleep(0.2)
    doors.count("anna")


@pytest.mark.parametrize(
    ("origin", "site", "own"),
    [
        ("http://sdp:8800", "same-origin", True),
        ("https://sdp:8800", "", True),
        ("", "", False),
        ("null", "", False),
        ("http://evil:8800", "", False),
        ("http://sdp:8801", "", False),
        ("http://sdp:8800", "cross-site", False),
        ("file://sdp:8800", "", False),
    ],
)
def test_only_our_own_page_may_act(origin: str, site: str, own: bool) -> None:
    assert is_own_origin(origin, "sdp:8800", site) is own
