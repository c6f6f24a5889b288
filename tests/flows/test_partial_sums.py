"""What partials add up to, by hand: sums, times, runs, and the wire forms of summaries."""

import dataclasses

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from facade.flows.telemetry.ledger import WindowLedger
from facade.flows.telemetry.partial import MAX_RUNS, split, summary_form
from facade.flows.telemetry.plan import plan
from facade.kernel.icd.load import load
from facade.kernel.windows.totals import GroupTotals, Totals
from facade.sdp.messages import FieldStatistics, Partial, RackSummary
from facade.sdp.summaries import as_frames, as_partials
from tests.support.frames import fold, merged

ICD = load()
PLAN = plan(ICD, "ingest.heaps")
STEP, FIRST = PLAN.length_us, 1_800_000_000
"""Length of a window [us], and start of the first one [Unix s]."""


def window(number: int) -> int:
    return FIRST * 1_000_000 + number * STEP


def partial(number: int = 0, count: int = 1, **changes) -> Partial:
    start = window(number)
    usual = {"epoch": 7, "late": False, "time_min": start, "time_max": start, "runs": [], "fields": {}}
    return Partial(window=start, count=count, **{**usual, **changes})


def add(totals: Totals, one: Partial) -> None:
    for rows in as_frames(0, [one]):
        totals.add(rows)


def test_totals_are_sums_of_all_that_came_late_or_not():
    """Records that a producer held back while the broker was away were in no total."""
    totals = Totals(1)
    some = {"a": FieldStatistics(sum=2), "b": FieldStatistics(max=5)}
    add(totals, partial(1, 3, fields=some, runs=[(4, 6)]))
    add(totals, partial(0, 2, fields={"a": FieldStatistics(sum=0.5), "c": FieldStatistics(sum=1)}, runs=[(1, 2)]))
    add(totals, partial(0, 4, late=True, fields={"a": FieldStatistics(sum=100)}, runs=[(3, 3)]))
    add(totals, partial(0, 1, late=True))
    found = totals.of_groups()[0]
    assert (found.count, found.late, found.late_us, found.newest_us) == (5, 5, window(0), window(1))
    assert found.sums == {"a": 102.5, "c": 1}
    assert (found.seen.runs, found.seen.records) == ([(1, 6)], 10)
    assert (totals.missing[0], totals.duplicates[0]) == (0, 4)


def test_totals_come_back_from_a_snapshot():
    before, after = Totals(2), Totals(2)
    add(before, partial(1, 3, fields={"a": FieldStatistics(sum=2.5)}, runs=[(4, 6)]))
    before.hear(np.array([0]), 3, 5.0)
    after.restore(0, before.of_groups()[0])
    assert after.of_groups()[0] == before.of_groups()[0]
    assert after.of_groups()[1] == GroupTotals()
    add(after, partial(1, 1, runs=[(7, 7)]))
    assert (after.missing[0], after.duplicates[0], after.seen(0).runs) == (0, 0, [(4, 7)])


def statistics(**changes) -> FieldStatistics:
    return FieldStatistics(**{"sum": 6, "min": 1, "max": 3, "m2": 2.0, "last": 3, "sketch": {700: 3}, **changes})


@pytest.mark.parametrize(
    ("name", "mine", "theirs", "whole"),
    [
        ("sum", 6, 4, 10),
        ("sum", 6, None, None),
        ("sum", None, 4, None),
        ("min", 1, 2, 1),
        ("min", 1, 0, 0),
        ("min", None, 2, None),
        ("max", 3, 2, 3),
        ("max", 3, 4, 4),
        ("max", 3, None, None),
        ("last", 3, 9, 9),
        ("last", 3, None, None),
        ("sketch", {700: 3}, {700: 1, 701: 2}, {700: 4, 701: 2}),
        ("sketch", None, {701: 2}, None),
        ("sketch", {700: 3}, {}, {700: 3}),
        ("m2", 2.0, None, None),
    ],
)
def test_statistics_merge_field_by_field(name, mine, theirs, whole):
    """One that only one of two workers keeps is not known of the records of both."""
    a = partial(0, 3, fields={"x": statistics(**{name: mine})})
    (found,) = merged(a, partial(0, 2, fields={"x": statistics(**{name: theirs})}))
    assert getattr(found.fields["x"], name) == whole


@pytest.mark.parametrize(("time", "last", "epoch"), [(-1, 3, 7), (0, 9, 8), (1, 9, 8)])
def test_the_last_value_and_the_epoch_are_the_newer_ones(time, last, epoch):
    at = window(0) + time
    other = partial(0, 2, epoch=8, fields={"x": statistics(last=9)}, time_min=at, time_max=at)
    (into,) = merged(partial(0, 3, fields={"x": statistics()}), other, epochs=False)
    assert (into.fields["x"].last, into.epoch, into.count) == (last, epoch, 5)
    assert (into.time_min, into.time_max) == (window(0) + min(time, 0), window(0) + max(time, 0))


def test_a_field_that_only_one_has_is_not_known_of_both():
    (found,) = merged(partial(), partial(fields={"x": statistics()}))
    assert (found.count, found.fields) == (2, {})


def test_many_runs_are_spread_over_entries_that_count_nothing_twice():
    runs = [(2 * at, 2 * at) for at in range(2 * MAX_RUNS + 1)]
    whole = partial(0, len(runs), runs=runs[:MAX_RUNS], fields={"x": statistics()})
    assert split(whole) == [whole]
    parts = split(replace(whole, runs=runs))
    assert [len(part.runs) for part in parts] == [MAX_RUNS, MAX_RUNS, 1]
    assert [run for part in parts for run in part.runs] == runs
    assert [(part.count, len(part.fields)) for part in parts] == [(len(runs), 1), (0, 0), (0, 0)]


SHARED = {
    "schema": "telemetry-summary/1",
    "worker": "w",
    "stream": "flagging",
    "partition": 0,
    "group": "",
    "partials": [],
}
OWN = {"schema": "ingest-summary/1", "worker": "w", "partition": 0, "node": 9999, "partials": []}


@pytest.mark.parametrize(
    ("message", "group", "document", "wrong"),
    [
        ("ingest-summary", "node", OWN, [{"node": -1}, {"node": 10_000}, {"node": "1"}]),
        ("telemetry-summary", "node", SHARED, [{"group": "x" * 201}, {"group": 1}]),
        ("telemetry-summary", None, SHARED, [{"group": None}, {"stream": 1}]),
    ],
)
def test_a_summary_has_the_form_of_its_schema(message, group, document, wrong):
    form = summary_form(ICD.messages[message], group)
    decoded = msgspec.convert(document, form)
    assert decoded.group == document.get("node", "")
    assert form.__name__ == ("Summary" if message == "ingest-summary" else "StreamSummary")
    assert msgspec.to_builtins(decoded) == document
    for change in [*wrong, {"schema": "other/1"}, {"worker": "x" * 201}, {"partition": -1}]:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**document, **change}, form)


def test_the_first_node_has_the_number_0():
    assert msgspec.convert({**OWN, "node": 0}, summary_form(ICD.messages["ingest-summary"], "node")).group == 0


def as_list(windows, window):
    return list(as_partials(windows.whole(window)))


def test_a_rack_that_is_counted_already_is_refused_in_counting_and_in_rebuilding():
    columns = ("epoch", "window", "late", "count", "time_min", "time_max", "runs")
    rack = RackSummary(
        worker="w", stream="ingest.heaps", partition=0, first=0, last=9, log="log", offset_from=0, offset_to=5, part=0,
        node=[], **{name: [] for name in columns}, fields={},
    )  # fmt: skip
    ledger = WindowLedger(PLAN, (), per_group=False, over_all=False)
    assert (ledger.take_rack(rack, 2.0), ledger.take_rack(rack, 2.0, count=False)) == (None, None)
    assert ledger.take_rack(rack, 2.0)
    assert ledger.take_rack(rack, 2.0, count=False)


@pytest.mark.parametrize(
    ("expected", "known", "group", "kept"),
    [((), 0, "new", True), ((), 1, "new", True), ((), 2, "new", False), (("a",), 0, "a", True),
     (("a",), 0, "new", False), ((), 2, "0", True)],
)  # fmt: skip
def test_any_group_is_kept_up_to_a_limit_or_those_expected(expected, known, group, kept):
    few = dataclasses.replace(PLAN, window=replace(PLAN.window, most_groups=2))
    ledger = WindowLedger(few, expected, per_group=False, over_all=False)
    for at in range(known):
        fold(ledger, str(at), [], 1.0)
    assert ledger.keeps(group) is kept


@pytest.mark.parametrize(("expected", "kept"), [((), True), ((7,), True), ((5, 20), False)])
def test_a_rack_is_for_a_ledger_that_keeps_any_of_its_nodes(expected, kept):
    assert WindowLedger(PLAN, expected, per_group=False, over_all=True).keeps_any(range(6, 9)) is kept


def test_long_windows_come_back_from_a_snapshot():
    flags = plan(ICD, "flagging")
    group = flags.group("1")
    before, after = (WindowLedger(flags, (group,), per_group=True, over_all=True) for _ in range(2))
    fold(before, group, [partial(0, 3, fields={"x": statistics()})], FIRST + 1.0)
    after.restore(after.parse(before.as_dict()))
    assert list(after._windows) == list(after._all_groups) == [window(0)]
    for mine, other in ((after._windows, before._windows), (after._all_groups, before._all_groups)):
        assert as_list(mine, window(0)) == as_list(other, window(0))
    assert (after.heard, after.as_dict()) == (FIRST + 1.0, before.as_dict())
    totals = after.totals.of_groups()[0]
    fold(after, group, [partial(0, 3)], FIRST + 1.0, count=False)
    assert after.totals.of_groups()[0] == totals
    after.restore(after.parse({"groups": {}}))
    assert after.shown_over_all() is None, "a snapshot may have no windows"


def test_windows_that_are_rebuilt_are_not_taken_from_a_snapshot_too():
    """Their records come again; the snapshot is of a release with longer windows."""
    ledger = WindowLedger(PLAN, (0,), per_group=True, over_all=False)
    ledger.restore(ledger.parse({"groups": {"0": {}}, "windows": {"0": [msgspec.to_builtins(partial())]}}))
    assert list(ledger._windows) == []
