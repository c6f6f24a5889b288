"""Producers that sum up their own batches, on a real broker: two lie, an alarm names them, and totals are exact."""

import json
from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np
import pytest

from facade.flows.telemetry.summed import BatchSums
from facade.sdk.producer.heaps import HeapProducer
from facade.sdp.batches import FRAME, HeaderPairs
from tests.conftest import Deploy
from tests.support.deployment import BUS, CLOCK, MASTER, node_device
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

ROWS, BATCHES = 100, 40
LOST = 3
"""Lost packets of each notification."""


class Lying:
    """Sums up batches, and says one too many of something from a batch on."""

    def __init__(self, sums: BatchSums, since: int, *path: str) -> None:
        self._sums, self._since, self._path, self._made = sums, since, path, 0

    def with_frame(self, headers: HeaderPairs, value: bytes) -> HeaderPairs:
        *others, (name, text) = self._sums.with_frame(headers, value)
        assert name == FRAME
        frame = json.loads(text)
        if self._made >= self._since:
            *outer, last = self._path
            reduce(getitem, outer, frame["partials"][0])[last] += 1
        self._made += 1
        return (*others, (name, json.dumps(frame).encode()))


def test_producers_that_lie_are_named_and_change_no_total(deploy: Deploy, tmp_path: Path) -> None:
    """One contradicts itself from some batch on, the other one lies about a sum from the beginning."""
    deployment = deploy(nodes=3)
    deployment.worker()
    deployment.serve()
    lies = {1: (BATCHES // 2, "count"), 2: (0, "fields", "lost", "sum")}
    for node in range(3):
        with HeapProducer(node, tmp_path / str(node), settings=deployment.settings, rows=ROWS, summed=True) as producer:
            if node in lies:
                producer._sums = Lying(producer._sums, *lies[node])
            producer.start()
            for batch in range(BATCHES):
                ones = np.ones(ROWS, int)
                producer.add_columns(
                    scan_id=1, channel_count=64, seq=np.arange(ROWS) + batch * ROWS, time=ones * CLOCK.now_us(),
                    channel_start=ones, received=ones, lost=LOST * ones, late=0 * ones, flagged_fraction=0.5 * ones,
                    latency=0.5 * ones,
                )  # fmt: skip
            producer.close(100)
            assert producer.standing.waiting == 0, producer.standing
    sent = ROWS * BATCHES
    until_equal(
        lambda: [deployment.read(node_device(node), "heapsTotal", "packetsLostTotal") for node in range(3)],
        [{"heapsTotal": sent, "packetsLostTotal": LOST * sent}] * 3,
        "totals are what was sent",
    )

    def text() -> str:
        issues = map(json.loads, deployment.read_one(MASTER, "healthIssues") or ())
        return "".join(one["text"] for one in issues if one.get("condition") == "frameWrong")

    until(lambda: text().count("frame of node-") == 2, "both are named")
    assert "frame of node-1-" in text()
    assert f"fields.lost.sum: expected {LOST * ROWS} by the columns, got {LOST * ROWS + 1}" in text()

    def raised() -> set[str]:
        return {json.loads(one.value())["condition"] for one in deployment.messages("alerts")}

    until(lambda: "frameWrong" in raised(), "the alarm is raised")
    assert deployment.read(BUS, "ingestHeapsUsed", "ingestHeapsBalance") == {
        "ingestHeapsUsed": 3 * sent,
        "ingestHeapsBalance": 0,
    }
