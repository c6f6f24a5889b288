"""Which window is shown when, of windows that last one second each: watermarks close them, and nothing else does."""

import json
import pickle
from types import SimpleNamespace

import msgspec
import pytest

from facade.flows.telemetry.ledger import KEPT_WINDOWS, Windows
from facade.flows.telemetry.plan import plan
from facade.flows.telemetry.watermarks import Watermarks, closed_at, newest_close
from facade.icd.load import load
from facade.messages import Partial, Watermark

ICD = load()
PLAN = plan(ICD, "ingest.heaps")
FIRST = 1_800_000_000_000_000
"""Start of window 0 [Unix us]."""
SECOND = 1_000_000
DISORDER = PLAN.disorder_us


def partial(number, count=1, **changes):
    start = FIRST + number * SECOND
    usual = {"epoch": 7, "window": start, "late": False, "time_min": start, "time_max": start, "runs": [], "fields": {}}
    return Partial(count=count, **{**usual, **changes})


def read(number, more=0):
    """Return the watermark that closes a window, or a little more than that."""
    return FIRST + (number + 1) * SECOND + DISORDER + more


def windows(*numbers, read_to=0, rebuilt=False):
    found = Windows(PLAN, rebuilt=rebuilt)
    for number in numbers:
        found.add(partial(number), read_to, FIRST + number * SECOND)
    return found


def number(found):
    """Return which window is shown."""
    return None if found is None else (found.partial.window - FIRST) // SECOND


@pytest.mark.parametrize("topic", ["ingest.heaps", "flagging", "storage"])
def test_the_newest_close_is_that_of_the_last_window_that_is_over(topic):
    found = plan(ICD, topic)
    start = 20_833 * 86_400 * SECOND
    close = closed_at(found, start)
    assert close == start + round((found.window.length + found.window.disorder) * SECOND)
    assert newest_close(found, close) == newest_close(found, close + found.length_us - 1) == close
    assert newest_close(found, close - 1) == close - found.length_us


@pytest.mark.parametrize(
    ("numbers", "read_to", "shown"),
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
def test_the_newest_window_that_the_watermark_has_passed_is_shown(numbers, read_to, shown):
    assert number(windows(*numbers).shown(read_to)) == shown


def test_neither_late_nor_empty_partials_are_in_a_window():
    found = windows(0)
    found.add(partial(0, 4, late=True), 0, FIRST)
    found.add(partial(0, 0), 0, FIRST)
    found.add(partial(0, 4), 0, FIRST)
    assert found.shown(read(0)).partial.count == 5


def test_few_windows_are_kept_and_none_that_was_dropped_begins_anew():
    found = Windows(PLAN)
    for at in range(100):
        found.add(partial(at), read(at - 1), FIRST + at * SECOND)
    assert len(found.as_list()) == KEPT_WINDOWS + 1
    found.add(partial(5, 3), read(98), FIRST)
    assert sorted((one.window - FIRST) // SECOND for one, _ in found.as_list()) == [96, 97, 98, 99]
    for at in range(100, 1000):  # a worker of another partition stands still
        found.add(partial(at), read(98), FIRST + at * SECOND)
    kept = sorted((one.window - FIRST) // SECOND for one, _ in found.as_list())
    assert kept[-1] == 999
    found.add(partial(kept[0] - 1), read(98), FIRST)
    assert number(found.shown(read(kept[0] - 1))) is None, "half of it is gone"
    assert number(found.shown(read(kept[0]))) == kept[0]


@pytest.mark.parametrize(("topic", "ahead"), [("ingest.heaps", 5), ("flagging", 1)])
def test_while_a_worker_stands_still_more_windows_are_kept_for_clocks_that_are_ahead(topic, ahead):
    found = Windows(plan(ICD, topic))
    for at in range(30):
        found.add(partial(0, window=FIRST + at * plan(ICD, topic).length_us), 0, FIRST)
    assert len(found.as_list()) == KEPT_WINDOWS + 8 + ahead


def test_nothing_is_left_of_windows_that_were_dropped():
    rule = SimpleNamespace(window=PLAN.window, length_us=SECOND, disorder_us=DISORDER)  # a plan cannot be pickled
    found, sizes = Windows(rule), []
    for at in range(200):
        for read_to in (read(at - 1), read(at)):  # at the second time it is closed already
            found.add(partial(at), read_to, FIRST, (1,))
        sizes.append(len(pickle.dumps(found)))
    assert sizes[100] == sizes[199]


def test_a_window_in_whose_middle_rebuilding_began_is_not_shown():
    """What came before the first record was written before it; a clock that is ahead is so all the time."""
    for first, written, shown in (
        (0, 0.4, [None, 1]),
        (4, 0.4, [None, None]),
        (0, 1.0, [None, 1]),
        (0, 1.4, [None, None]),
    ):
        found = Windows(PLAN, rebuilt=True)
        found.add(partial(first), 0, FIRST + round(written * SECOND))
        for at in (1, 2):
            found.add(partial(at), 0, FIRST + at * SECOND)
        assert [number(found.shown(read(at))) for at in (0, 1)] == shown


def test_windows_over_all_groups_have_their_groups_and_come_back_from_a_snapshot():
    found = Windows(PLAN)
    for groups in ((1, 2), (2, 3)):
        found.add(partial(0), 0, FIRST, groups)
    again = Windows(PLAN)
    again.restore(found.as_list())
    assert again.shown(read(0)) == found.shown(read(0))
    assert again.shown(read(0)).groups == {1, 2, 3}


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
