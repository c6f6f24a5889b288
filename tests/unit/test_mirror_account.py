"""The account of the mirror: what is missing, and was not said to be, is found."""

from typing import Any

from facade.flows.mirror.messages import TelescopeAttribute
from proving.fault_runs.mirror import differences
from proving.mirror_account import MirrorFound, account_of, newest_wrong

NAME = "mid-dish/dish-manager/ska001/achievedpointing"
PUSHED = [100.0, 100.1, 100.2, 100.3, 100.4]


def record(number: int, time: float | None, **more: Any) -> TelescopeAttribute:
    value = None if time is None else [time, 181.0, 45.0]
    base: dict[str, Any] = {"name": NAME, "number": number, "time": 1, "value": value, "type": "DevDouble"}
    return TelescopeAttribute(**{**base, "quality": "VALID", "connection": "CONNECTED", "by": "EVENT", **more})


def test_values_that_are_all_there_balance() -> None:
    """A record that is repeated counts once, and what was pushed before the first one does not count."""
    records = [record(1, 100.1), record(1, 100.1), record(2, 100.2), record(3, 100.3)]
    assert account_of(PUSHED, records) == MirrorFound(pushed=3, mirrored=3)


def test_what_is_missing_with_a_word_is_told_from_what_is_missing_without() -> None:
    """A gap covers what is between it and the record before."""
    said = [record(1, 100.0), record(2, 100.2, gap=True), record(3, 100.3), record(4, 100.4)]
    assert account_of(PUSHED, said) == MirrorFound(pushed=5, mirrored=4, said=1, gaps=1)
    unsaid = [record(1, 100.0), record(2, 100.2), record(3, 100.4, gap=True)]
    assert account_of(PUSHED, unsaid) == MirrorFound(pushed=5, mirrored=3, said=1, unsaid=1, gaps=1)


def test_a_device_that_was_away_has_its_gap_told_with_its_return() -> None:
    """The record of its absence carries no value that counts."""
    away = record(2, 100.0, connection="DISCONNECTED", quality="INVALID")
    records = [record(1, 100.0), away, record(3, 100.3, gap=True)]
    assert account_of(PUSHED, records) == MirrorFound(pushed=4, mirrored=2, said=2, gaps=1)


def test_a_missing_number_and_a_foreign_value_are_found() -> None:
    """A record that was lost shows by the numbers, also where its value is there again."""
    records = [record(1, 100.0), record(3, 100.1), record(4, 99.0), record(5, None)]
    assert account_of(PUSHED, records) == MirrorFound(pushed=2, mirrored=2, foreign=2, misnumbered=1)


def test_numbers_that_are_left_out_and_told_are_no_fault() -> None:
    """In a long outage of the bus only the newest record is kept; a number that goes back is wrong in any case."""
    records = [record(1, 100.0), record(4, 100.3, gap=True)]
    assert account_of(PUSHED, records) == MirrorFound(pushed=4, mirrored=2, said=2, gaps=1)
    assert account_of(PUSHED, [record(4, 100.0), record(1, 100.1, gap=True)]).misnumbered == 1


def test_values_that_come_in_another_order_are_not_missing() -> None:
    """A read may have overtaken an event."""
    records = [record(1, 100.0), record(2, 100.2), record(3, 100.1), record(4, 100.3)]
    assert account_of(PUSHED, records) == MirrorFound(pushed=4, mirrored=4)


def test_the_newest_value_must_be_that_which_was_pushed_last() -> None:
    """An attribute without a record, or whose device is away, is wrong as well."""
    assert newest_wrong({NAME: PUSHED}, {NAME: [record(1, 100.0), record(2, 100.4)]}) == []
    assert newest_wrong({NAME: PUSHED}, {NAME: [record(1, 100.3)]}) == [NAME]
    assert newest_wrong({NAME: PUSHED}, {NAME: [record(1, 100.4, connection="DISCONNECTED")]}) == [NAME]
    assert newest_wrong({NAME: PUSHED}, {}) == [NAME]


def test_numbers_of_two_mirrors_are_two_sequences() -> None:
    """The number of what a mirror that was killed had under way comes again, with a gap."""
    late = [record(7, 100.0, epoch=1), record(8, 100.1, epoch=1), record(8, 100.2, epoch=2, gap=True)]
    assert account_of(PUSHED, late) == MirrorFound(pushed=3, mirrored=3, gaps=1)
    unsaid = [*late[:2], record(8, 100.2, epoch=2)]
    assert account_of(PUSHED, unsaid).misnumbered == 1


def test_what_is_wrong_is_named() -> None:
    assert differences("a/b/c/d", MirrorFound(pushed=5, mirrored=3, said=2, gaps=1)) == []
    wrong = differences("a/b/c/d", MirrorFound(pushed=5, mirrored=3, said=1, unsaid=1, foreign=2, misnumbered=3))
    assert wrong == [
        "a/b/c/d: values missing without a word: expected 0, got 1",
        "a/b/c/d: values that nobody pushed: expected 0, got 2",
        "a/b/c/d: numbers that are missing or came twice: expected 0, got 3",
    ]
    assert differences("a/b/c/d", MirrorFound()) == ["a/b/c/d: expected values, got none"]
