"""What partials add up to, by hand: sums, times, runs, and the wire forms of summaries."""

import json
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace

from facade.flows.telemetry.ledger import GroupTotals, WindowLedger, seconds
from facade.flows.telemetry.partial import MAX_RUNS, Summary, copy_statistics, gather, merge, split, summary_form
from facade.flows.telemetry.plan import plan
from facade.icd.load import load
from facade.messages import FieldStatistics, Partial, RackSummary

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


def test_totals_are_sums_of_all_that_came_late_or_not():
    """Records that a producer held back while the broker was away were in no total."""
    totals = GroupTotals()
    some = {"a": FieldStatistics(sum=2), "b": FieldStatistics(max=5)}
    totals.add(partial(1, 3, fields=some, runs=[(4, 6)]))
    totals.add(partial(0, 2, fields={"a": FieldStatistics(sum=0.5), "c": FieldStatistics(sum=1)}, runs=[(1, 2)]))
    totals.add(partial(0, 4, late=True, fields={"a": FieldStatistics(sum=100)}, runs=[(3, 3)]))
    totals.add(partial(0, 1, late=True))
    assert (totals.count, totals.late, totals.newest_us) == (5, 5, window(1))
    assert totals.sums == {"a": 102.5, "c": 1}
    assert (totals.seen.runs, totals.seen.records) == ([(1, 6)], 10)
    assert totals.as_partial() == Partial(
        epoch=7, window=0, late=False, count=10, time_min=0, time_max=window(1), runs=[],
        fields={"a": FieldStatistics(sum=102.5), "c": FieldStatistics(sum=1)},
    )  # fmt: skip


@pytest.mark.parametrize(("later", "epoch"), [(0, 7), (1, 8)])
def test_a_new_epoch_is_told_by_a_later_time(later, epoch):
    totals = GroupTotals()
    totals.add(partial(runs=[(1, 1)]))
    totals.add(partial(epoch=8, time_max=window(0) + later, runs=[(5, 5)]))
    assert (totals.epoch, totals.seen.runs) == (epoch, [(5, 5)] if later else [(1, 1)])


def test_the_first_totals_are_nothing_at_all():
    assert GroupTotals().as_partial().count == 0
    assert msgspec.to_builtins(GroupTotals())["epoch"] == -1
    assert seconds(1_500_000) == 1.5


def statistics(**changes) -> FieldStatistics:
    return FieldStatistics(**{"sum": 6, "min": 1, "max": 3, "m2": 2.0, "last": 3, "sketch": {700: 3}, **changes})


@pytest.mark.parametrize(
    ("name", "mine", "theirs", "whole"),
    [
        ("sum", 6, 4, 10),
        ("sum", 6, None, 6),
        ("sum", None, 4, 4),
        ("min", 1, 2, 1),
        ("min", 1, 0, 0),
        ("min", None, 2, 2),
        ("min", 1, None, 1),
        ("max", 3, 2, 3),
        ("max", 3, 4, 4),
        ("max", None, 2, 2),
        ("max", 3, None, 3),
        ("last", 3, 9, 9),
        ("last", 3, None, 3),
        ("sketch", {700: 3}, {700: 1, 701: 2}, {700: 4, 701: 2}),
        ("sketch", None, {701: 2}, {701: 2}),
        ("sketch", {700: 3}, None, {700: 3}),
        ("m2", 2.0, None, 2.0),
    ],
)
def test_statistics_merge_field_by_field(name, mine, theirs, whole):
    into, other = statistics(**{name: mine}), statistics(**{name: theirs})
    a, b = partial(0, 3, fields={"x": into}), partial(1, 2, fields={"x": other})
    merge(a, b)
    assert getattr(a.fields["x"], name) == whole
    if theirs is not None and name == "sketch":
        assert a.fields["x"].sketch is not other.sketch


@pytest.mark.parametrize(
    ("mine", "count", "theirs", "whole"),
    [
        ({"sum": 6, "m2": 2.0}, 3, {"sum": 10, "m2": 0.5}, 2.0 + 0.5 + (5 - 2) ** 2 * 3 * 2 / 5),
        ({"sum": 1.0, "m2": 0.0}, 1, {"sum": 10, "m2": 0.5}, 0.5 + (5 - 1) ** 2 * 1 * 2 / 3),
        ({"sum": 6, "m2": None}, 3, {"sum": 10, "m2": 0.5}, 0.5),
        ({"sum": None, "m2": 2.0}, 3, {"sum": 10, "m2": 0.5}, 0.5),
        ({"sum": 0, "m2": 2.0}, 0, {"sum": 10, "m2": 0.5}, 0.5),
        ({"sum": 6, "m2": 2.0}, 3, {"sum": None, "m2": 0.5}, 2.0),
    ],
)
def test_spreads_merge_with_the_distance_of_the_means(mine, count, theirs, whole):
    a, b = partial(0, count, fields={"x": statistics(**mine)}), partial(1, 2, fields={"x": statistics(**theirs)})
    merge(a, b)
    assert a.fields["x"].m2 == pytest.approx(whole)


@pytest.mark.parametrize(("time", "last", "epoch"), [(-1, 3, 7), (0, 9, 8), (1, 9, 8)])
def test_the_last_value_and_the_epoch_are_the_newer_ones(time, last, epoch):
    into = partial(0, 3, fields={"x": statistics()})
    at = window(0) + time
    merge(into, partial(0, 2, epoch=8, fields={"x": statistics(last=9)}, time_min=at, time_max=at))
    assert (into.fields["x"].last, into.epoch, into.count) == (last, epoch, 5)
    assert (into.time_min, into.time_max) == (window(0) + min(time, 0), window(0) + max(time, 0))


def test_a_field_that_only_the_other_has_is_copied():
    into, other = partial(), partial(fields={"x": statistics()})
    merge(into, other)
    assert into.fields == other.fields
    assert into.fields["x"] is not other.fields["x"]
    assert copy_statistics(statistics(sketch=None)) == statistics(sketch=None)


def test_partials_of_one_epoch_and_window_are_gathered_with_their_runs():
    whole: dict[tuple[int, int, bool], Partial] = {}
    gather(whole, [partial(0, 2, runs=[(1, 2)]), partial(0, 1, runs=[(4, 4)]), partial(0, 1, late=True, runs=[(3, 3)])])
    gather(whole, [partial(0, 1, epoch=8), partial(1, 1)])
    assert [(key[0] - 7, (key[1] - window(0)) // STEP, key[2]) for key in whole] == [
        (0, 0, False), (0, 0, True), (1, 0, False), (0, 1, False),
    ]  # fmt: skip
    assert (whole[7, window(0), False].count, whole[7, window(0), False].runs) == (3, [(1, 2), (4, 4)])


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
        ("ingest-summary", "node", OWN, [{"node": -1}, {"node": 10_000}, {"node": "1"}, {"group": 1}, {"more": 1}]),
        ("telemetry-summary", "node", SHARED, [{"group": "x" * 201}, {"group": 1}, {"node": 1}, {"more": 1}]),
        ("telemetry-summary", None, SHARED, [{"group": None}, {"stream": 1}, {"more": 1}]),
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


@pytest.mark.parametrize("topic", ["ingest.heaps", "flagging"])  # one whose windows are rebuilt, and one in snapshots
@pytest.mark.parametrize("count", [True, False])
@pytest.mark.parametrize(("per_group", "over_all"), [(True, True), (True, False), (False, True)])
def test_a_rack_adds_up_to_its_nodes(topic, count, per_group, over_all):
    some = {"x": FieldStatistics(sum=2, min=1, max=3)}
    rows = [
        (0, partial(0, 2, runs=[(0, 1)], fields=some)), (1, partial(0, 3, fields=some)), (0, partial(1, 1)),
        (1, partial(1, 4, late=True)), (2, partial(1, 0)),
    ]  # fmt: skip
    rack, nodes = (WindowLedger(plan(ICD, topic), (), per_group=per_group, over_all=over_all) for _ in range(2))
    rack.fold_rack(rows, 5.0, **({} if count else {"count": False}))
    for node, one in rows:
        nodes.fold(node, [one], 5.0, **({} if count else {"count": False}))
    kept = count or topic == "ingest.heaps"
    for ledger in (rack, nodes):
        assert [ledger.totals[node].count for node in range(3)] == ([3, 3, 0] if count else [0, 0, 0])
        assert [ledger.totals[node].late for node in range(3)] == ([0, 4, 0] if count else [0, 0, 0])
        assert {one.heard for one in ledger.totals.values()} == {5.0}
        assert [ledger.live((0, 1), now, 3.0) for now in (8.0, 8.5)] == [{0, 1}, set()]
        assert set(ledger._windows) == ({0, 1, 2} if per_group and kept else set())
        found = [(one.count, sorted(groups)) for one, groups in ledger._all_groups.as_list()]
        assert found == ([(5, [0, 1]), (1, [0])] if over_all and count else []), "those are in the snapshot"
    assert rack.totals == nodes.totals
    assert {node: one.as_list() for node, one in rack._windows.items()} == {
        node: one.as_list() for node, one in nodes._windows.items()
    }


def test_what_is_counted_already_is_refused_also_after_a_restart():
    flags, groups = plan(ICD, "flagging"), (1, 2)
    before, after = (WindowLedger(flags, groups, per_group=False, over_all=False) for _ in range(2))
    once = Summary(worker="w", partition=0, group=1, partials=[], log="log", offset_from=0, offset_to=5)
    assert (before.take(1, once, 2.0), before.take(1, once, 2.0, count=False)) == (None, None)
    why = before.take(1, once, 2.0)
    assert why
    before.fold(1, [partial(0, 3)], 2.0)
    after.restore(after.parse(json.loads(json.dumps(before.as_dict()))))
    assert (after.take(1, once, 2.0, count=False), after.take(1, once, 2.0)) == (None, why)
    assert (set(after.totals), after.totals[1].count) == ({1, 2}, 3)


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
    ledger = WindowLedger(PLAN, expected, per_group=False, over_all=False)
    ledger.plan = SimpleNamespace(window=SimpleNamespace(most_groups=2))
    for at in range(known):
        ledger.fold(str(at), [], 1.0)
    assert ledger.keeps(group) is kept


@pytest.mark.parametrize(("expected", "kept"), [((), True), ((7,), True), ((5, 20), False)])
def test_a_rack_is_for_a_ledger_that_keeps_any_of_its_nodes(expected, kept):
    assert WindowLedger(PLAN, expected, per_group=False, over_all=True).keeps_any(range(6, 9)) is kept


def test_long_windows_come_back_from_a_snapshot():
    flags = plan(ICD, "flagging")
    group = flags.group("1")
    before, after = (WindowLedger(flags, (group,), per_group=True, over_all=True) for _ in range(2))
    before.fold(group, [partial(0, 3, fields={"x": statistics()})], FIRST + 1.0)
    after.restore(after.parse(before.as_dict()))
    assert after._windows[group].as_list() == before._windows[group].as_list() != []
    assert after._all_groups.as_list() == before._all_groups.as_list() != []
    assert (after.heard, after.overall()) == (FIRST + 1.0, before.overall())
    after.fold(group, [partial(0, 3)], FIRST + 2.0, count=False)
    assert after.overall() == before.overall()
    after.restore(after.parse({"groups": {}}))
    assert after.shown() is None, "a snapshot may have no windows"


def test_windows_that_are_rebuilt_are_not_taken_from_a_snapshot_too():
    """Their records come again; the snapshot is of a release with longer windows."""
    ledger = WindowLedger(PLAN, (0,), per_group=True, over_all=False)
    ledger.restore(ledger.parse({"groups": {"0": {}}, "windows": {"0": [msgspec.to_builtins(partial())]}}))
    assert ledger._windows == {}
