"""The account of the demo sees a lost and a doubled record."""

import msgspec
import pytest

from facade.flows.telemetry.simulator.account import Expected, NodeAccount
from facade.flows.telemetry.simulator.faults import Faults
from facade.flows.telemetry.simulator.ingest import HeapReport
from proving.demo.account import DemoCounts, compare, disagreements

NODES = {
    "0": NodeAccount(
        used=600, late=3, received=6000, lost=7, late_packets=2, missing=4, duplicates=1, lowest_seq=0, highest_seq=605
    ),
    "1": NodeAccount(
        used=380, late=0, received=3800, lost=0, late_packets=0, missing=0, duplicates=2, lowest_seq=0, highest_seq=379
    ),
}
SENT = HeapReport(
    finished=True,
    stopped_by="signal",
    topic="test.ingest.heaps",
    seed=1,
    first_node=0,
    node_count=2,
    scan_id=1,
    rate=100.0,
    faults=Faults(),
    began=0.0,
    elapsed=10.0,
    slipped=0.0,
    heaps=980,
    queued=1000,
    sent=1000,
    backlog=0,
    undelivered=0,
    longest_wait=0.1,
    certain=True,
    last_error="",
    fired={},
    garbage={},
    expected=Expected(
        consumed=1000, used=980, late=3, suppressed={"tombstone": 5}, dead_lettered={"schema": 10, "not-json": 2}
    ),
    nodes=NODES,
)
FOUND = DemoCounts(
    bus={
        "ingestHeapsConsumed": 1000,
        "ingestHeapsUsed": 980,
        "ingestHeapsLate": 3,
        "ingestHeapsSuppressed": 5,
        "ingestHeapsDeadLettered": 12,
        "ingestHeapsInFlight": 0,
        "ingestHeapsBalance": 0,
        "ingestHeapsLag": 0,
        "ingestSummaryBalance": 0,
        "ingestSummaryLag": 0,
        "ingestSummaryDeadLettered": 0,
    },
    reasons={"schema": 10, "tombstone": 5, "not-json": 2},
    master={"heapsTotal": 980, "heapsLate": 3, "heapsMissing": 4, "heapsDuplicated": 3},
    nodes={
        0: {
            "heapsTotal": 600,
            "heapsLate": 3,
            "heapsMissing": 4,
            "heapsDuplicated": 1,
            "packetsReceivedTotal": 6000,
            "packetsLostTotal": 7,
            "packetsLateTotal": 2,
        },
        1: {
            "heapsTotal": 380,
            "heapsLate": 0,
            "heapsMissing": 0,
            "heapsDuplicated": 2,
            "packetsReceivedTotal": 3800,
            "packetsLostTotal": 0,
            "packetsLateTotal": 0,
        },
    },
)


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("name", [*FOUND.bus, *(f"node 1: {name}" for name in FOUND.nodes[1])])
def test_one_record_lost_or_doubled_is_named(name: str, by: int) -> None:
    found = msgspec.convert(msgspec.to_builtins(FOUND), DemoCounts, strict=False)
    figures, what = (found.bus, name) if name in FOUND.bus else (found.nodes[1], name.removeprefix("node 1: "))
    figures[what] += by
    (failure,) = disagreements(SENT, compare(SENT, found))
    assert f"{what}: expected {figures[what] - by:,}, got {figures[what]:,}" in failure
