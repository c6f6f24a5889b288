"""Batches with frames give the windows, totals, accounts and dead letters that their columns give."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_columnar_differential import TYPES, work
from tests.support.columnar import columnar, summed
from tests.support.examples import examples
from tests.support.heaps import heap

drawn = st.builds(
    heap,
    node=st.integers(0, 4),  # 4 is of another deployment
    seq=st.integers(0, 40),
    scan_id=st.integers(1, 2),
    at=st.one_of(st.floats(-10.5, 7), st.floats(-0.01, 0.01)),  # from late to ahead, and at the end of a window
    received=st.integers(0, 2**31 - 1),
    lost=st.integers(-1, 3),  # now and then a bad row
    flagged_fraction=st.floats(0, 1),
    latency=st.floats(0, 3600),
)
WHOLE, FLOATS = ("count", "time_min", "time_max", "runs"), ("sum", "m2")


def batches(documents, size):
    """Return the records of a producer for each node and scan, without frames."""
    by_node = {}
    for one in documents:
        by_node.setdefault((one["node"], one["scan_id"]), []).append(one)
    for rows in by_node.values():
        for at in range(0, len(rows), size):
            part = rows[at : at + size]
            yield columnar(part, types=TYPES, producer=f"ingest-{part[0]['node']}", sequence=at)


def comparable(found):
    """Return results with the sums of floats apart: they may differ in their last digits."""
    counts, letters, rows = found
    plain, sums = [], []
    for node, text in rows:
        one = json.loads(text)
        for name, statistics in one["fields"].items():
            for what in FLOATS:
                if isinstance(value := statistics.pop(what, None), float):
                    sums.append(((node, one["window"], one["epoch"], name, what), value))
                elif value is not None:
                    statistics[f"whole {what}"] = value
        plain.append((node, one))
    return (counts, letters, sorted(plain, key=repr)), dict(sums)


@given(
    st.lists(drawn, min_size=1, max_size=60, unique_by=lambda one: one["time"]),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.booleans(),
)
@settings(max_examples=examples(100), deadline=None)
def test_frames_say_what_columns_say(documents, size, recomputed, mixed):
    """Whichever are recomputed, and if only some batches have a frame, in every statistic."""
    records = [*batches(documents, size)]
    with_frames = [summed(one) if not mixed or number % 2 else one for number, one in enumerate(records)]
    expected, sums = comparable(work(records))
    found, found_sums = comparable(work(with_frames, recomputed=recomputed))
    assert found == expected
    assert found_sums == pytest.approx(sums, rel=1e-9, abs=1e-9)
