"""A reader's own position beside the topic as it is now: each way in which they can differ has its verdict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facade.kernel.bus.offsets import (
    POSITIONS,
    Extent,
    Placement,
    Position,
    Verdict,
    WorkerPosition,
    compare,
    is_other,
    newest,
    position_record,
)
from facade.kernel.bus.port import Record

MADE_AGAIN, GAP, CUT, NO_PARTITION = Verdict.MADE_AGAIN, Verdict.GAP, Verdict.CUT, Verdict.NO_PARTITION

CASES = {
    "at the end": ("a", {0: 10}, "a", {0: (0, 10)}, {0: 10}, []),
    "at the beginning": ("a", {0: 0}, "a", {0: (0, 10)}, {0: 0}, []),
    "at the oldest record that is left": ("a", {0: 4}, "a", {0: (4, 10)}, {0: 4}, []),
    "everything has expired, and all of it was read": ("a", {0: 10}, "a", {0: (10, 10)}, {0: 10}, []),
    "a position without an id": ("", {0: 5}, "a", {0: (0, 10)}, {0: 5}, []),
    "brokers without ids": ("a", {0: 5}, "", {0: (0, 10)}, {0: 5}, []),
    "made again, and shorter": ("a", {0: 5}, "b", {0: (0, 2)}, {0: 0}, [Placement(MADE_AGAIN, 0, 0, 5)]),
    "made again, and longer": ("a", {0: 5}, "b", {0: (0, 20)}, {0: 0}, [Placement(MADE_AGAIN, 0, 0, 5)]),
    "made again, and cleared in part": (
        "a", {0: 5}, "b", {0: (3, 20)}, {0: 3}, [Placement(MADE_AGAIN, 0, 3, 5), Placement(GAP, 0, 0, 3)],
    ),
    "made again with fewer partitions": (
        "a", {0: 5, 1: 7}, "b", {0: (0, 2)}, {0: 0}, [Placement(MADE_AGAIN, 0, 0, 5), Placement(MADE_AGAIN, 1, 0, 7)],
    ),
    "made again, and never read": ("a", {0: 0}, "b", {0: (0, 2)}, {0: 0}, []),
    "retention was faster": ("a", {0: 5}, "a", {0: (8, 10)}, {0: 8}, [Placement(GAP, 0, 5, 8)]),
    "everything was removed unread": ("a", {0: 5}, "a", {0: (10, 10)}, {0: 10}, [Placement(GAP, 0, 5, 10)]),
    "the tail is lost": ("a", {0: 9}, "a", {0: (0, 6)}, {0: 6}, [Placement(CUT, 0, 6, 9)]),
    "of the future": ("", {0: 2**53 - 1}, "a", {0: (0, 6)}, {0: 6}, [Placement(CUT, 0, 6, 2**53 - 1)]),
    "a partition was added": ("a", {0: 5}, "a", {0: (0, 5), 1: (0, 3)}, {0: 5, 1: 0}, []),
    "a partition was added, and cleared in part": (
        "a", {0: 5}, "a", {0: (0, 5), 1: (2, 3)}, {0: 5, 1: 2}, [Placement(GAP, 1, 0, 2)],
    ),
    "a partition that does not exist": (
        "a", {0: 5, 7: 3}, "a", {0: (0, 5)}, {0: 5}, [Placement(NO_PARTITION, 7, 0, 3)],
    ),
    "each partition has its own verdict": (
        "a", {0: 5, 1: 5, 2: 5}, "a", {0: (6, 9), 1: (0, 4), 2: (0, 9)}, {0: 6, 1: 4, 2: 5},
        [Placement(GAP, 0, 5, 6), Placement(CUT, 1, 4, 5)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_position_is_compared_with_the_topic(case):
    known, offsets, now, ranges, start, found = CASES[case]
    assert compare(Position(known, offsets), Extent(now, ranges)) == (start, found)


_offsets = st.integers(-(2**63), 2**63)
_ranges = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (min(pair), max(pair)))
_ids = st.sampled_from(["", "a", "b"])


@given(_ids, st.dictionaries(st.integers(-1, 5), _offsets), _ids, st.dictionaries(st.integers(0, 3), _ranges))
def test_whatever_a_position_says_reading_begins_on_the_log(known, offsets, now, ranges):
    start, found = compare(Position(known, offsets), Extent(now, ranges))
    assert start.keys() == ranges.keys()
    assert all(first <= start[partition] <= end for partition, (first, end) in ranges.items())
    moved = sum(abs(offsets[one] - at) for one, at in start.items() if one in offsets)
    if not is_other(known, now) and offsets.keys() >= ranges.keys():
        assert sum(one.count for one in found if one.verdict in (GAP, CUT)) == moved
    assert all(one.describe("alerts").startswith("alerts") for one in found)


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        (
            Placement(MADE_AGAIN, 1, 2, 9),
            "tables, partition 1: the topic was deleted and made again: expected offset 9",
        ),
        (Placement(GAP, 1, 5, 8), "tables, partition 1: offsets 5 to 7 were removed before they were read: up to 3"),
        (
            Placement(CUT, 1, 6, 9),
            "tables, partition 1: the log was cut: expected offset 9 next, it goes on at 6; a new",
        ),
        (
            Placement(NO_PARTITION, 7, 0, 3),
            "tables, partition 7: expected it to exist, as 3 is noted as its next offset",
        ),
    ],
)
def test_a_finding_names_topic_partition_and_offsets(finding, words):
    assert finding.describe("tables").startswith(words)


GOOD = WorkerPosition(group="g", topic="t", partition=0, log="a", next=5, worker="g-0")
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "value",
    [b"", b"null", b"\xff", DEEP, b'{"more":' + DEEP + b"}", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"x" * 10**6],
)
def test_an_unusable_position_is_named_and_ends_no_worker(value):
    """Whoever may write one to the topic would else end each worker of the group, at each start."""
    found, troubles = newest([position_record(GOOD), Record(topic=POSITIONS, key=b"g/x/0", value=value)], "g")
    assert found == {("t", 0): GOOD}
    assert len(troubles) == 1
