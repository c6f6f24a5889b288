"""Who may do what through the operator's page."""

import os
from pathlib import Path
from typing import Protocol

import pytest

from facade.kernel.clock import ManualClock
from facade.kernel.errors import ConfigError
from sdp_facade_clients.web.doors import (
    LONGEST_IDLE,
    LONGEST_SESSION,
    MOST_SESSIONS,
    NOBODY,
    REREAD,
    Doors,
    PageRole,
    Person,
    Rate,
    TokenFile,
    TooManyRequests,
    is_own_origin,
    load_tokens,
    network,
    read_tokens,
)

TOKEN = "a-token-of-an-operator"


class SignedIn(Protocol):
    def __call__(self, token: str, old: str = "") -> str:
        """Return a session."""


def doors_of(text: str, clock: ManualClock) -> tuple[Doors, SignedIn]:
    """Return doors, and what signs in at them."""
    doors = Doors(lambda: read_tokens(text, "file"), clock)

    def signed_in(token: str, old: str = "") -> str:
        session = doors.sign_in(token, old)
        assert session is not None
        return session

    return doors, signed_in


@pytest.mark.parametrize("token", [TOKEN, "#a-token-with#marks#", "a-token-with#a#mark"])
def test_a_token_gives_a_session_with_the_role_of_its_person(token: str) -> None:
    doors, signed_in = doors_of(f"# people\n  # and more\noperator anna {token}  # until May\n", ManualClock(0.0))
    for wrong in ("another-token-of-nobody", token.partition("#")[0], token + "#"):
        assert (doors.sign_in(wrong) is None) == (wrong != token)
    session = signed_in(token)
    assert doors.who(session) == Person("anna", PageRole.OPERATOR)
    assert doors.who("guessed") == NOBODY
    doors.sign_out(session)
    assert doors.who(session) == NOBODY


def test_a_session_ends_when_its_person_is_idle_and_at_the_end_of_a_shift() -> None:
    clock = ManualClock(0.0)
    doors, signed_in = doors_of(f"operator anna {TOKEN}", clock)
    session = signed_in(TOKEN)
    clock.sleep(LONGEST_IDLE - 1)
    assert doors.who(session).name == "anna"  # an open page asks, and that is no use
    clock.sleep(2)
    assert doors.who(session) == NOBODY
    session, step = signed_in(TOKEN), LONGEST_IDLE - 1
    for _ in range(int(LONGEST_SESSION / step)):
        clock.sleep(step)
        assert doors.who(session, used=True).name == "anna"
    clock.sleep(step)
    assert doors.who(session, used=True) == NOBODY


def test_a_sign_in_gives_a_new_session_and_ends_the_old_one() -> None:
    doors, signed_in = doors_of(f"operator anna {TOKEN}\nexpert eve another-token-of-eve", ManualClock(0.0))
    old = signed_in(TOKEN)
    new = signed_in("another-token-of-eve", old)
    assert (doors.who(old), doors.who(new).name) == (NOBODY, "eve")


def test_a_viewer_who_signs_in_a_thousand_times_ends_only_own_sessions() -> None:
    doors, signed_in = doors_of(f"operator anna {TOKEN}\nviewer vera another-token-of-vera", ManualClock(0.0))
    anna = signed_in(TOKEN)
    vera = [signed_in("another-token-of-vera") for _ in range(1000)]
    assert doors.who(anna).name == "anna"
    assert [one for one in vera if doors.who(one) != NOBODY] == vera[-MOST_SESSIONS:]


def test_a_session_ends_when_its_token_goes_from_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, clock = tmp_path / "tokens.txt", ManualClock(0.0)

    def has(text: str) -> None:
        path.write_text(text)
        path.chmod(0o600)
        clock.sleep(REREAD)

    has(f"operator anna {TOKEN}")
    doors = Doors(TokenFile(path, clock), clock)
    session = doors.sign_in(TOKEN)
    assert session is not None
    has(f"expert anna {TOKEN}")
    assert doors.who(session) == Person("anna", PageRole.EXPERT)
    has("viewer vera")  # a wrong file signs nobody out, and is said once
    for _ in range(3):
        clock.sleep(REREAD)
        assert doors.who(session).name == "anna"
    assert caplog.text.count("the tokens read before stay in force: ") == 1
    has("viewer vera another-token-of-vera")
    assert doors.who(session) == NOBODY
    assert doors.sign_in(TOKEN) is None
    assert REREAD <= 60


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("operator anna", "line 1: expected role, name and token, got 2 words"),
        (f"\nboss anna {TOKEN}", "line 2: expected one of viewer, operator, expert, got 'boss'"),
        ("operator anna short", "expected a token of at least 16 characters, got 5"),
        ("operator anna aaaaaaaaaaaaaaaa", "expected a token of 8 different characters or more, got 1"),
        ("operator anna abcabcabcabcabcabc", "expected a token of 8 different characters or more, got 3"),
        ("operator anna #no token", "line 1: expected role, name and token, got 4 words"),
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


def test_a_container_s_secret_has_the_mode_that_its_engine_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdp_facade_clients.web.doors._OF_CONTAINER", str(tmp_path))
    (tmp_path / "page-tokens").write_text(f"viewer vera {TOKEN}")
    (tmp_path / "page-tokens").chmod(0o644)
    assert list(load_tokens(tmp_path / "page-tokens").values()) == [Person("vera", PageRole.VIEWER)]


def test_requests_are_limited_for_each_person() -> None:
    clock = ManualClock(0.0)
    rate = Rate(5, 20, clock)
    for _ in range(20):
        rate.count("anna")
    for _ in range(3):
        with pytest.raises(TooManyRequests):
            rate.count("anna")
    rate.count("eve")
    clock.sleep(0.2)
    rate.count("anna")


def test_the_rates_of_any_number_of_addresses_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdp_facade_clients.web.doors._MOST_KEYS", 3)
    rate = Rate(1, 1, ManualClock(0.0))
    rate.count("anna")
    for number in range(10):
        with pytest.raises(TooManyRequests):
            rate.count("anna")  # who asks again and again is remembered
        rate.count(str(number))
    assert {network("2001:db8::1"), network("2001:db8::ffff")} == {"2001:db8::/64"}
    assert network("192.0.2.7") == network("::ffff:192.0.2.7") == "192.0.2.7"  # also of a server that listens at ::
    assert network("fe80::1%eth0") == "fe80::/64"


@pytest.mark.parametrize(
    ("origin", "site", "own"),
    [
        ("http://sdp:8800", "same-origin", True),
        ("http://sdp:8800", "", True),
        ("https://sdp:8800", "", False),
        ("", "", False),
        ("null", "", False),
        ("http://evil:8800", "", False),
        ("http://sdp:8801", "", False),
        ("http://sdp:8800", "cross-site", False),
        ("file://sdp:8800", "", False),
    ],
)
def test_only_our_own_page_may_act(origin: str, site: str, own: bool) -> None:
    assert is_own_origin(origin, "http://sdp:8800", site) is own
