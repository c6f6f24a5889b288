"""Partials are exact and merge in any order: reduced in pieces or at once, the result is the same."""

import dataclasses
import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from facade.flows.telemetry.plan import plan
from facade.flows.telemetry.reduce import AppendTimes, _NamedGroups, _NumberedGroups, reduce
from facade.kernel import sketch
from facade.kernel.icd.load import load
from facade.kernel.sequences import SeenNumbers, size, union
from facade.kernel.windows.frame import merge
from facade.sdp.columns import ColumnDecoder
from facade.sdp.messages import Partial
from facade.sdp.summaries import as_partials
from tests.support.heaps import BASE_US, encoded, heap

ICD = load()
PLAN = plan(ICD, "ingest.heaps")
DECODER = ColumnDecoder("heap", ICD.messages["heap"])
KNOWN = _NumberedGroups("node", range(3))
NOW_US = BASE_US + 5_000_000

heaps = st.lists(
    st.builds(
        heap,
        node=st.integers(0, 3),
        seq=st.integers(0, 40),
        at=st.floats(-20, 12, allow_nan=False),
        scan_id=st.integers(1, 2),
        received=st.integers(0, 2**31 - 1),
        lost=st.integers(0, 100),
        late=st.integers(0, 3),
        flagged_fraction=st.floats(0, 1),
        latency=st.floats(0, 3600),
    ),
    max_size=60,
)


def reduced(documents, at=lambda row: NOW_US, first=NOW_US, last=NOW_US):
    table = DECODER.decode(encoded(*documents))
    assert not table.unused
    return reduce(table.columns, PLAN, AppendTimes(first, last, at), KNOWN)


def gathered(results):
    """Return what the frames of some results amount to, by node, epoch, window and lateness."""
    frames = [result.frame for result in results if result.frame is not None]
    rows = as_partials(merge(frames)) if frames else ()
    return {(node, one.epoch, one.window, one.late): one for node, one in rows}


def assert_same(a: Partial, b: Partial) -> None:
    assert (a.epoch, a.window, a.late, a.count, a.time_min, a.time_max, a.runs) == (
        b.epoch, b.window, b.late, b.count, b.time_min, b.time_max, b.runs)  # fmt: skip
    assert a.fields.keys() == b.fields.keys()
    for name, mine in a.fields.items():
        other = b.fields[name]
        assert (mine.min, mine.max, mine.sketch) == (other.min, other.max, other.sketch), name
        for statistic in ("sum", "m2"):
            x, y = getattr(mine, statistic), getattr(other, statistic)
            assert (x is None) == (y is None)
            if x is not None:
                scale = max(abs(x), (mine.max or 1.0) ** 2 * a.count, 1e-300)
                assert abs(x - y) <= 1e-9 * scale, (name, statistic, x, y)


@given(heaps, st.lists(st.integers(0, 60), max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_any_cut_and_any_order_of_merging_gives_the_same_partials(documents, cuts, random):
    """Design rule 3: partials are mergeable; nothing depends on how records were batched."""
    edges = [0, *sorted(cuts), len(documents)]
    pieces = [documents[a:b] for a, b in itertools.pairwise(edges)]
    results = [reduced(piece) for piece in pieces]
    random.shuffle(results)
    at_once, in_pieces = gathered([reduced(documents)]), gathered(results)
    assert at_once.keys() == in_pieces.keys()
    for key, partial in at_once.items():
        assert_same(partial, in_pieces[key])


@given(heaps)
@settings(max_examples=150, deadline=None)
def test_a_reduction_is_what_a_loop_over_the_records_finds(documents):
    """Every record is used, late or refused, once; every statistic is that of the plain definition."""
    result = reduced(documents)
    lateness, ahead = PLAN.window.lateness * 1e6, PLAN.window.ahead * 1e6
    groups, refused = defaultdict(list), []
    for index, document in enumerate(documents):
        if document["time"] > NOW_US + ahead:
            refused.append((index, "time-ahead"))
        elif document["node"] == 3:
            refused.append((index, "unknown-node"))
        else:
            late = document["time"] < NOW_US - lateness
            window = 0 if late else document["time"] // 1_000_000 * 1_000_000
            groups[document["node"], document["scan_id"], window, late].append(document)
    assert sorted((row, entry.reason) for row, entry in result.rejected) == refused
    assert result.late == sum(len(g) for key, g in groups.items() if key[3])
    assert result.used == sum(len(g) for key, g in groups.items() if not key[3])
    found = gathered([result])
    assert found.keys() == groups.keys()
    for key, group in groups.items():
        partial = found[key]
        assert partial.count == len(group)
        assert (partial.time_min, partial.time_max) == (min(d["time"] for d in group), max(d["time"] for d in group))
        assert partial.runs == _runs({d["seq"] for d in group})
        for field in PLAN.fields:
            values = [d[field.name] for d in group]
            mine = partial.fields[field.name]
            if mine.sum is not None:
                assert mine.sum == pytest.approx(math.fsum(values), rel=1e-12)
                if field.integer:
                    assert mine.sum == sum(values)
            assert mine.min in (None, min(values))
            assert mine.max in (None, max(values))
            if mine.m2 is not None:
                mean = math.fsum(values) / len(values)
                scale = max(values) ** 2 * len(values)
                assert abs(mine.m2 - math.fsum((v - mean) ** 2 for v in values)) <= 1e-9 * scale + 1e-300
            if mine.last is not None:
                newest = max(d["time"] for d in group)
                assert mine.last == [d[field.name] for d in group if d["time"] == newest][-1]
            if mine.sketch is not None:
                assert sum(mine.sketch.values()) == len(values)


def test_a_record_that_is_refused_by_its_time_takes_no_number_of_a_name():
    few = dataclasses.replace(PLAN, window=replace(PLAN.window, most_groups=1))
    table = DECODER.decode(encoded(heap(at=100), heap()))
    columns = {**table.columns, "node": np.array(["refused", "used"], dtype=object)}
    result = reduce(columns, few, AppendTimes(NOW_US, NOW_US, lambda row: NOW_US), _NamedGroups("node", few))
    assert [(row, entry.reason) for row, entry in result.rejected] == [(0, "time-ahead")]
    assert result.used == 1


def _runs(numbers):
    runs = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


@given(st.lists(st.floats(-20, 12, allow_nan=False), min_size=1, max_size=30), st.integers(1, 29))
@settings(max_examples=100, deadline=None)
def test_late_and_ahead_do_not_depend_on_how_the_log_is_cut(ages, cut):
    """Append times differ within a batch; each record is judged by its own."""
    documents = [heap(seq=i, at=age) for i, age in enumerate(ages)]
    appended = [NOW_US + i * 400_000 for i in range(len(documents))]

    def judged(low, high):
        if low >= high:
            return 0, 0, 0
        r = reduced(documents[low:high], lambda row: appended[low + row], appended[low], appended[high - 1])
        return r.used, r.late, len(r.rejected)

    at_once = judged(0, len(documents))
    parts = [judged(0, min(cut, len(documents))), judged(min(cut, len(documents)), len(documents))]
    assert at_once == tuple(map(sum, zip(*parts, strict=True)))


@given(st.lists(st.floats(0, 3600), min_size=1, max_size=200), st.floats(0, 1), st.sampled_from([0.001, 0.01, 0.05]))
@settings(max_examples=300, deadline=None)
def test_a_quantile_is_within_the_stated_error(values, q, error):
    """DDSketch's bound: relative error of the value at rank floor(q (n - 1)); absolute below the floor."""
    counts = defaultdict(int)
    for bucket in sketch.buckets(np.array(values), error).tolist():
        counts[bucket] += 1
    exact = sorted(values)[math.floor(q * (len(values) - 1))]
    row, bucket = np.repeat((0, 2), len(counts)), np.array(sorted(counts) * 2)
    count = np.array([counts[one] for one in sorted(counts)] * 2)
    first, none, other, nothing = sketch.quantiles(row, bucket, count, rows=4, q=q, error=error).tolist()
    assert first == other
    assert math.isnan(none)
    assert math.isnan(nothing)
    assert abs(first - exact) <= error * exact * (1 + 1e-9) + sketch.FLOOR


def test_no_values_have_no_quantile():
    empty = np.zeros(0, dtype=np.int64)
    assert np.isnan(sketch.quantiles(empty, empty, empty, rows=2, q=0.5, error=0.01)).all()


number_sets = st.sets(st.integers(0, 80), max_size=40)


@given(number_sets, number_sets)
@settings(max_examples=300, deadline=None)
def test_the_union_of_runs_is_that_of_the_sets(a, b):
    joined = union(_runs(a), _runs(b))
    assert joined == _runs(a | b)
    assert size(joined) == len(a | b)


@given(st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=20), max_size=12))
@settings(max_examples=300, deadline=None)
def test_missing_and_duplicates_are_those_of_the_sequence(batches):
    seen = SeenNumbers()
    for batch in batches:
        seen.add(_runs(set(batch)), len(batch))
    numbers = [n for batch in batches for n in batch]
    distinct = set(numbers)
    assert seen.duplicates == len(numbers) - len(distinct)
    assert seen.missing == (max(distinct) - min(distinct) + 1 - len(distinct) if distinct else 0)


@given(st.permutations(range(0, 400, 2)), st.integers(4, 40))
@settings(max_examples=50, deadline=None)
def test_sequences_stay_bounded_and_never_go_negative(numbers, limit):
    """Hostile numbering costs bounded memory; what is settled stays counted."""
    seen = SeenNumbers(limit=limit)
    for number in numbers:
        seen.add([(number, number)], 1)
        assert len(seen.runs) <= limit
        assert seen.missing >= 0
        assert 0 <= seen.duplicates <= seen.records
    assert seen.records == len(numbers)


def test_numbers_in_order_with_a_hole_are_counted_exactly_over_a_settled_floor():
    seen = SeenNumbers(limit=4)
    for number in range(0, 100, 2):
        seen.add([(number, number)], 1)
    assert (seen.missing, seen.duplicates) == (49, 0)
