"""The simulated ingest stream as columnar batches: the same heaps as its records of JSON."""

import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from facade.flows.telemetry.simulator.columnar import ColumnarHeapStream
from facade.flows.telemetry.simulator.faults import Scenario
from facade.flows.telemetry.simulator.heaps import HeapStream
from facade.kernel.icd.load import load
from facade.sdp.batches import BatchReader, ReadBatch, is_batch
from tests.flows.test_simulate_heaps import FAULTS, NOW_US
from tests.support.columnar import SUMS

ICD = load()
SIZE, ROUNDS = 9_001, 2
"""Heaps of a call: more than a block has, and no whole number of rounds."""


def by_node(values: list[bytes | None]) -> tuple[dict[int, list[dict[str, Any]]], list[bytes | None]]:
    """Return the heaps of each node in order, and what is none."""
    heaps, others = defaultdict(list), []
    for value in values:
        try:
            heap = json.loads(value or b"")
            heaps[heap["node"]].append(heap)
        except (ValueError, TypeError, KeyError, RecursionError):
            others.append(value)
    return heaps, others


def expand(reader: BatchReader, keys, values, headers) -> list[bytes | None]:
    """Return a record of JSON for each row of each batch."""
    found: list[bytes | None] = []
    for key, value, header in zip(keys, values, headers, strict=True):
        if not is_batch(value):
            assert header == ()
            found.append(value)
            continue
        batch = reader.read(value, header)
        assert isinstance(batch, ReadBatch), batch
        rows = [reader.row(batch, row) for row in range(batch.rows)]
        assert {b"%d" % json.loads(row)["node"] for row in rows} == {key}
        found += rows
    return found


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in ("garbage", "everything", "certain")])
def test_the_heaps_are_those_of_the_other_form(fault):
    first = 7 if fault not in ("silence", "skew", "loss") else 0  # those name their nodes
    scenario = Scenario(nodes=40, rate=1000.0, seed=5, first_node=first, faults=FAULTS[fault])
    plain, columnar = HeapStream(scenario), ColumnarHeapStream(scenario)
    reader = BatchReader(ICD.messages["heap"], ["seq", "time"])
    for turn in range(1, ROUNDS + 1):
        now = NOW_US + turn * 9_001_000
        expected, none = by_node(plain.take(SIZE, now).values)
        got, others = by_node(expand(reader, *columnar.take(SIZE, now)))
        assert none == others == []
        assert got.keys() == expected.keys()
        for node, heaps in expected.items():
            for name in heaps[0].keys() - {"flagged_fraction", "latency"}:
                assert [heap[name] for heap in got[node]] == [heap[name] for heap in heaps], name
            for name in ("flagged_fraction", "latency"):  # of 32 bits
                assert np.allclose([h[name] for h in got[node]], [h[name] for h in heaps], rtol=1e-6, atol=0), name
    assert columnar.account.expected() == plain.account.expected()
    assert columnar.account.nodes() == plain.account.nodes()
    assert columnar.given == plain.given == SIZE * ROUNDS


def test_each_batch_may_have_its_sums():
    """Of what is in it: also of heaps that are sent twice, late or ahead."""
    scenario = Scenario(nodes=3, rate=1000.0, seed=5, faults=FAULTS["everything"])
    plain, with_sums = ColumnarHeapStream(scenario), ColumnarHeapStream(scenario, SUMS)
    keys, values, headers = plain.take(SIZE, NOW_US)
    found = with_sums.take(SIZE, NOW_US)
    assert (found.keys, found.values) == (keys, values)
    both = zip(headers, values, strict=True)
    assert found.headers == [SUMS.with_frame(one, value) if one else () for one, value in both]
    assert {one[-1][0] for one in found.headers if one} == {"frame"}


def test_a_batch_ends_with_its_window():
    """By the time at which its heaps are due, so that the last batch of a window comes before the window is closed."""
    stream = ColumnarHeapStream(Scenario(nodes=3, rate=1000.0, seed=5))
    reader = BatchReader(ICD.messages["heap"], ["seq", "time"])
    windows = []
    for number in (1, 2):
        _, values, headers = stream.take(2_500, NOW_US + number * 2_500_000)
        for value, header in zip(values, headers, strict=True):
            batch = reader.read(value, header)
            times = batch.content.columns["time"].astype(np.int64) + batch.header.bases["time"] - NOW_US
            (window,) = {*(times // 1_000_000).tolist()}
            windows.append(window)
    assert windows == [*[0] * 3, *[1] * 3, *[2] * 3, *[2] * 3, *[3] * 3, *[4] * 3, 5]


def test_garbage_stands_between_batches_as_json():
    """As many of each kind as in the other form, behind the batch of its node, and counted alike."""
    scenario = Scenario(nodes=3, rate=1000.0, seed=5, faults=FAULTS["everything"])
    plain, columnar = HeapStream(scenario), ColumnarHeapStream(scenario)
    plain.take(SIZE, NOW_US)
    keys, values, headers = columnar.take(SIZE, NOW_US)
    batches = sum(is_batch(value) for value in values)
    assert len(values) == batches + columnar.account.fired["garbage"]
    assert columnar.account.garbage == plain.account.garbage
    assert columnar.account.expected() == plain.account.expected()
    assert len({len(keys), len(values), len(headers)}) == 1
