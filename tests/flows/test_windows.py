"""Which window is shown when, of windows that last one second each: watermarks close them, and nothing else does."""

import json
import pickle

import msgspec
import numpy as np
import pytest

from facade.flows.telemetry.plan import plan
from facade.flows.telemetry.watermarks import Watermarks
from facade.kernel.icd.load import load
from facade.kernel.windows.frame import merge
from facade.kernel.windows.newest import Windows
from facade.sdp.messages import Partial, Watermark
from facade.sdp.summaries import as_frames

ICD = load()
PLAN = plan(ICD, "ingest.heaps")
FIRST = 1_800_000_000_000_000
"""Start of window 0 [Unix us]."""
SECOND = 1_000_000
GROUPS = 5
DISORDER = PLAN.rule.disorder_us


def partial(number, count=1, **changes):
    start = FIRST + number * SECOND
    usual = {"epoch": 7, "window": start, "late": False, "time_min": start, "time_max": start, "runs": [], "fields": {}}
    return Partial(count=count, **{**usual, **changes})


def read(number, more=0):
    """Return the watermark that closes a window, or a little more than that."""
    return FIRST + (number + 1) * SECOND + DISORDER + more


def add(found, one, read_to, heard, group=0):
    (rows,) = as_frames(group, [one])
    return found.add(rows, np.full(GROUPS, read_to), heard)


def windows(*numbers, read_to=0, rebuilt=False, of=PLAN):
    found = Windows(of.rule, GROUPS, rebuilt=rebuilt)
    for number in numbers:
        add(found, partial(number), read_to, FIRST + number * SECOND)
    return found


def shown(found, read_to):
    """Return number and count of the window that is shown of group 0."""
    for one in found.shown(np.full(GROUPS, read_to)):
        for group, count in zip(one.rows.group.tolist(), one.rows.count.tolist(), strict=True):
            if group == 0:
                return (one.window - FIRST) // SECOND, count
    return None, None


@pytest.mark.parametrize("topic", ["ingest.heaps", "flagging", "storage"])
def test_the_newest_close_is_that_of_the_last_window_that_is_over(topic):
    found = plan(ICD, topic)
    start = 20_833 * 86_400 * SECOND
    close, rule = found.rule.closed_at(start), found.rule
    assert close == start + round((found.window.length + found.window.disorder) * SECOND)
    assert rule.newest_close(close) == rule.newest_close(close + found.length_us - 1) == close
    assert rule.newest_close(close - 1) == close - found.length_us


@pytest.mark.parametrize(
    ("numbers", "read_to", "number"),
    [
        ((), read(9), None),
        ((0,), 0, None),
        ((0,), read(0, -1), None),
        ((0,), read(0), 0),
        ((0, 1), read(0), 0),
        ((1, 0), read(0), 0),
        ((0, 1, 5), read(1), 1),  # a clock that is ahead cuts no window
        ((0, 1, 5), read(4), 1),
        ((0, 1, 5), read(5), 5),
    ],
)
def test_the_newest_window_that_the_watermark_has_passed_is_shown(numbers, read_to, number):
    assert shown(windows(*numbers), read_to)[0] == number


def test_neither_late_nor_empty_rows_are_in_a_window():
    found = windows(0)
    add(found, partial(0, 4, late=True), 0, FIRST)
    add(found, partial(0, 0), 0, FIRST)
    add(found, partial(0, 4), 0, FIRST)
    assert shown(found, read(0)) == (0, 5)


def test_few_windows_are_kept_and_none_that_was_dropped_begins_anew():
    found = windows()
    for at in range(100):
        add(found, partial(at), read(at - 1), FIRST + at * SECOND)
    assert len(list(found)) == 4, "three that are closed, and the open one"
    add(found, partial(5, 3), read(98), FIRST)
    assert [(one - FIRST) // SECOND for one in found] == [96, 97, 98, 99]
    for at in range(100, 1000):  # a worker of another partition stands still
        add(found, partial(at), read(98), FIRST + at * SECOND)
    kept = [(one - FIRST) // SECOND for one in found]
    assert kept[-1] == 999
    add(found, partial(kept[0] - 1), read(98), FIRST)
    assert shown(found, read(kept[0] - 1))[0] is None, "half of it is gone"
    assert shown(found, read(kept[0]))[0] == kept[0]


@pytest.mark.parametrize(("topic", "ahead"), [("ingest.heaps", 5), ("flagging", 1)])
def test_while_a_worker_stands_still_more_windows_are_kept_for_clocks_that_are_ahead(topic, ahead):
    of = plan(ICD, topic)
    found = windows(of=of)
    for at in range(30):
        add(found, partial(0, window=FIRST + at * of.length_us), 0, FIRST)
    assert len(list(found)) == 3 + 8 + ahead


def test_stragglers_of_many_windows_keep_no_more_of_them():
    """Each begins a window that is closed already: then a window is torn, and another one must go all the same."""
    found = windows()
    for at in range(100):
        add(found, partial(at), read(200), FIRST + at * SECOND)
    assert [(one - FIRST) // SECOND for one in found] == [97, 98, 99]


def test_nothing_is_left_of_windows_that_were_dropped():
    found, sizes = windows(), []
    for at in range(200):
        for read_to in (read(at - 1), read(at)):  # at the second time it is closed already
            add(found, partial(at), read_to, FIRST, 1)
        found.shown(np.full(GROUPS, read(at)))
        sizes.append(len(pickle.dumps(found)))
    assert sizes[100] == sizes[199]


def test_a_window_in_whose_middle_rebuilding_began_is_not_shown():
    """What came before the first record was written before it; a clock that is ahead is so all the time."""
    for first, written, numbers in (
        (0, 0.4, [None, 1]),
        (4, 0.4, [None, None]),
        (0, 1.0, [None, 1]),
        (0, 1.4, [None, None]),
    ):
        found = windows(rebuilt=True)
        add(found, partial(first), 0, FIRST + round(written * SECOND))
        for at in (1, 2):
            add(found, partial(at), 0, FIRST + at * SECOND)
        assert [shown(found, read(at))[0] for at in (0, 1)] == numbers


def test_the_first_row_of_a_group_decides_from_when_on_its_windows_are_whole():
    """Also where it has several rows in one summary, and whatever other groups have."""
    found = windows(rebuilt=True)
    rows = merge([*as_frames(0, [partial(0), partial(1)]), *as_frames(1, [partial(3), partial(4)])])
    found.add(rows, np.zeros(GROUPS), FIRST)
    assert [(one - FIRST) // SECOND for one in found] == [0, 1, 3, 4]
    found.add(merge(as_frames(2, [partial(0), partial(2)])), np.zeros(GROUPS), FIRST + 2 * SECOND)
    assert [len(found.whole(one)) for one in found] == [1, 1, 1, 1, 1], "window 0 of group 2 is cut"


@pytest.mark.parametrize(("read_to", "is_torn"), [(read(0, -1), False), (read(0), True)])
def test_a_straggler_corrects_a_closed_window_and_tears_it_for_its_group_alone(read_to, is_torn):
    found = windows(0)
    assert add(found, partial(0, 3), read_to, FIRST, 1) is is_torn, "what is shown has changed"
    (one,) = found.shown(np.full(GROUPS, read(0)))
    assert (one.rows.count.tolist(), one.is_torn.tolist()) == ([1, 3], [False, is_torn])


def test_each_group_has_the_newest_window_that_its_own_watermark_has_passed():
    """Group 1 is on a partition that is read more slowly, and group 2 has been silent since window 0."""
    found = windows()
    for at in range(3):
        for group in range(2 if at else 3):
            add(found, partial(at, 10 * at + group + 1), 0, FIRST, group)
    times = np.array([read(2), read(1), read(2), *[0] * (GROUPS - 3)])
    rows = {
        (one.window - FIRST) // SECOND: dict(zip(one.rows.group.tolist(), one.rows.count.tolist(), strict=True))
        for one in found.shown(times)
    }
    assert rows == {2: {0: 21}, 1: {1: 12}, 0: {2: 3}}


def mark(partition, read_to, **changes):
    usual = {"worker": "0", "stream": PLAN.topic, "partitions": 2, "log": "a"}
    return Watermark(partition=partition, read_to=read_to, **{**usual, **changes})


def test_all_partitions_of_summaries_have_to_say_that_a_partition_is_read():
    """Of a transaction, a reader may have the summaries of one partition before those of another."""
    found = Watermarks()
    assert found.read_to((), (0, 1)) == 0
    for source, to, read_to in ((0, 0, 10), (1, 0, 20), (1, 1, 30)):
        found.take(mark(source, read_to), to)
        assert found.read_to((), (0, 1)) == 0
    found.take(mark(0, 40), 1)
    assert [found.read_to(sources, (0, 1)) for sources in ((), (0,), (1,), (0, 1))] == [10, 10, 20, 10]
    assert found.read_to((), (1,)) == 30
    found.take(mark(0, 5), 0)
    assert found.read_to((0,), (0, 1)) == 10, "it only grows"
    again = msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(found))), Watermarks, strict=False)
    assert again == found


def test_a_topic_that_has_more_partitions_is_not_read_before_all_of_them_are():
    found = Watermarks()
    assert not found.take(mark(0, 10, partitions=1), 0)
    assert found.read_to((), (0,)) == 10
    assert found.take(mark(0, 20), 0)
    assert not found.take(mark(0, 30, partitions=1), 0), "of a worker that does not know yet"
    assert found.read_to((), (0,)) == 0
    found.take(mark(1, 30), 0)
    assert found.read_to((), (0,)) == 30
    assert [source for source, _ in found.behind((), 31)] == [0, 1]
    found.take(mark(0, 30, partitions=1, log="b"), 0)
    assert found.read_to((), (0,)) == 30, "it was made again with fewer"
