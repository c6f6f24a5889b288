"""The account of the mirror: what is missing, and was not said to be, is found."""

from typing import Any

from facade.flows.mirror.messages import TelescopeAttribute
from sdp_facade_lab.mirror_account import MirrorFound, account_of

NAME = "mid-dish/dish-manager/ska001/achievedpointing"
PUSHED = [100.0, 100.1, 100.2, 100.3, 100.4]


def record(number: int, time: float | None, **more: Any) -> TelescopeAttribute:
    value = None if time is None else [time, 181.0, 45.0]
    base: dict[str, Any] = {"name": NAME, "number": number, "time": 1, "value": value, "type": "DevDouble"}
    return TelescopeAttribute(**{**base, "quality": "VALID", "connection": "CONNECTED", "by": "EVENT", **more})


def test_what_is_missing_with_a_word_is_told_from_what_is_missing_without() -> None:
    """A gap covers what is between it and the record before."""
    said = [record(1, 100.0), record(2, 100.2, gap=True), record(3, 100.3), record(4, 100.4)]
    assert account_of(PUSHED, said) == MirrorFound(pushed=5, mirrored=4, said=1, gaps=1)
    unsaid = [record(1, 100.0), record(2, 100.2), record(3, 100.4, gap=True)]
    assert account_of(PUSHED, unsaid) == MirrorFound(pushed=5, mirrored=3, said=1, unsaid=1, gaps=1)


def test_a_missing_number_and_a_foreign_value_are_found() -> None:
    """A record that was lost shows by the numbers, also where its value is there again."""
    records = [record(1, 100.0), record(3, 100.1), record(4, 99.0), record(5, None)]
    assert account_of(PUSHED, records) == MirrorFound(pushed=2, mirrored=2, foreign=2, misnumbered=1)
