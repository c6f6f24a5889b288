"""The account of notifications sees a lost and a doubled record."""

from io import StringIO
from pathlib import Path

import msgspec
import pytest

from facade.flows.telemetry.simulator.account import Expected, NodeAccount
from facade.flows.telemetry.simulator.faults import Faults
from facade.flows.telemetry.simulator.ingest import HeapReport
from facade.kernel.console import Console
from sdp_facade_lab.demo.report import DemoReport, print_account, print_verdict
from sdp_facade_lab.heap_account import HeapCounts, compare, disagreements

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
FOUND = HeapCounts(
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
    master={"heapsTotal": 983, "heapsLate": 3, "heapsMissing": 4, "heapsDuplicated": 3},
    nodes={
        0: {
            "heapsTotal": 603,
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
    found = msgspec.convert(msgspec.to_builtins(FOUND), HeapCounts, strict=False)
    figures, what = (found.bus, name) if name in FOUND.bus else (found.nodes[1], name.removeprefix("node 1: "))
    figures[what] += by
    (failure,) = disagreements(SENT, compare(SENT, found))
    assert f"{what}: expected {figures[what] - by:,}, got {figures[what]:,}" in failure


def test_notifications_that_waited_for_the_broker_are_told_in_the_account_and_in_the_verdict() -> None:
    """2.8 million of 44.7 million heaps were late after an outage: "345 late ... Everything balances"."""
    sent = msgspec.structs.replace(SENT, certain=False, longest_wait=60.0)
    found = msgspec.convert(msgspec.to_builtins(FOUND), HeapCounts, strict=False)
    found.bus.update(ingestHeapsUsed=383, ingestHeapsLate=600)
    found.master["heapsLate"] = found.nodes[0]["heapsLate"] = 600
    report = DemoReport(began=0.0, nodes=2, rate=50.0, seconds=10.0, balanced=True, sent=sent, late=600)
    report.account = compare(sent, found)
    assert disagreements(sent, report.account) == []
    assert {"heapsTotal", "packetsReceivedTotal"} <= {line.what for line in report.account if line.where == "node 0"}
    console = Console(file=(written := StringIO()), width=200)
    print_account(console, report, sent)
    print_verdict(console, report, Path("report.json"))
    text = written.getvalue()
    assert "1,000 sent = 983 used or late + 5 suppressed + 12 dead-lettered" in text
    assert "600 of them (60.00%) came too late for the window that showed it: 3 were to, and 597 waited" in text
    assert "Everything balances to the last record (597 of which no window showed in time) and every limit" in text
    found.nodes[0]["heapsTotal"] -= 1
    (failure,) = disagreements(sent, compare(sent, found))
    assert "heapsTotal: expected 603, got 602" in failure, "totals are exact whatever was late"
