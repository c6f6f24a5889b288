"""The pure parts of the demo: an account with one wrong number fails and names it; latency and pace."""

import msgspec
import pytest

from facade.flows.telemetry.simulator.account import Expected, NodeAccount
from facade.flows.telemetry.simulator.faults import Faults
from facade.flows.telemetry.simulator.ingest import HeapReport
from proving.demo.account import DemoCounts, compare, disagreements, waited

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


def tampered(part: str, name: str, by: int = 1, node: int | None = None) -> DemoCounts:
    found = msgspec.convert(msgspec.to_builtins(FOUND), DemoCounts, strict=False)
    figures = getattr(found, part) if node is None else found.nodes[node]
    figures[name] = figures.get(name, 0) + by
    return found


@pytest.mark.parametrize("name", sorted(FOUND.bus))
@pytest.mark.parametrize("by", [-1, 1])
def test_one_record_more_or_less_on_the_bus_is_named(name: str, by: int) -> None:
    (failure,) = disagreements(SENT, compare(SENT, tampered("bus", name, by)))
    assert failure == f"SdpBus: {name}: expected {FOUND.bus[name]:,}, got {FOUND.bus[name] + by:,}"


@pytest.mark.parametrize("name", sorted(FOUND.nodes[0]))
@pytest.mark.parametrize("node", [0, 1])
def test_one_record_too_many_on_a_node_is_named(node: int, name: str) -> None:
    (failure,) = disagreements(SENT, compare(SENT, tampered("nodes", name, node=node)))
    assert failure.startswith(f"node {node}: {name}: expected {FOUND.nodes[node][name]:,}, got")


def test_records_that_the_broker_took_late_are_late_and_not_lost() -> None:
    """It let 667,126 records wait for up to 16 s once; by its clock they were late, and the demo called that wrong."""
    sent = msgspec.structs.replace(SENT, certain=False, longest_wait=16.0)
    late = {"ingestHeapsUsed": -300, "ingestHeapsLate": 300}
    bus = {name: value + late.get(name, 0) for name, value in FOUND.bus.items()}
    first = {**FOUND.nodes[0], "packetsReceivedTotal": 1}
    first |= {"heapsTotal": first["heapsTotal"] - 300, "heapsLate": first["heapsLate"] + 300}
    found = msgspec.structs.replace(FOUND, bus=bus, nodes={**FOUND.nodes, 0: first})
    assert disagreements(sent, compare(sent, found)) == []
    assert "waited up to 16.0 s" in waited(sent)
    lost = msgspec.structs.replace(found, nodes={**FOUND.nodes, 0: {**first, "heapsTotal": first["heapsTotal"] - 1}})
    (failure,) = disagreements(sent, compare(sent, lost))
    assert failure == "node 0: heapsTotal + heapsLate: expected 603, got 602"
    assert waited(SENT) == ""
    assert len(disagreements(SENT, compare(SENT, found))) == 5
