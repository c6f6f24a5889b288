"""What a fenced member of a group does, by what had happened before and when."""

import pytest

from facade.kernel.bus.kafka.group import joins_anew

NEVER = 0.0


@pytest.mark.parametrize(
    ("joined_at", "down_at", "lost_at", "expected"),
    [
        pytest.param(10.0, NEVER, NEVER, False, id="nothing before it: another process"),
        pytest.param(10.0, 92.0, NEVER, True, id="the broker was away"),
        pytest.param(10.0, 20.0, NEVER, False, id="the broker was away long ago"),
        pytest.param(95.0, 92.0, NEVER, False, id="the broker was away before it joined: it joins anew once"),
        pytest.param(10.0, NEVER, 90.0, True, id="the broker hung: the session was lost well before"),
        pytest.param(10.0, NEVER, 100.0, False, id="the session is lost with the fence: another process"),
        pytest.param(10.0, NEVER, 99.0, False, id="the session is lost while the fence is under way: another process"),
        pytest.param(10.0, NEVER, 20.0, False, id="the session was lost long ago"),
        pytest.param(95.0, NEVER, 90.0, False, id="the session was lost before it joined: it joins anew once"),
    ],
)
def test_what_a_member_that_was_fenced_does(joined_at: float, down_at: float, lost_at: float, expected: bool) -> None:
    """By the times at which it joined, the broker was away, and its session was lost, when it is 100 s."""
    assert joins_anew(100.0, joined_at=joined_at, down_at=down_at, lost_at=lost_at) is expected
