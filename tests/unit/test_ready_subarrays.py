"""When a test takes a device server of subarrays for ready."""

from types import SimpleNamespace

import pytest

from tests.support.subarrays import Subarrays

REFUSED = ("commands are refused: another device server of the name SdpFacade-subarray is alive",)
AWAY = ("no Kafka broker reachable; last error: none yet",)


@pytest.mark.parametrize(
    ("health", "looks"),
    [([()], 1), ([("no controller of this subarray was heard of",)], 1), ([None, REFUSED, AWAY, ()], 4)],
)
def test_it_is_ready_once_it_has_said_that_it_may_command(monkeypatch, health, looks):
    """The state is known a moment before healthInfo is shown; then the server may still refuse."""
    subarrays = object.__new__(Subarrays)
    told = iter(health)
    monkeypatch.setattr(subarrays, "read", lambda device, name: next(told))
    subarrays.deployment = SimpleNamespace(proxy=lambda device: SimpleNamespace(state=lambda: "ON"))
    subarrays.until_ready("device")
    assert len(health) - len([*told]) == looks
