"""The pure parts of the demo: an account with one wrong number fails and names it; latency and pace."""

import io
import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from clients.events import Event, immutable
from facade.files import write_json
from facade.flows.telemetry.simulator.account import Expected, NodeAccount
from facade.flows.telemetry.simulator.faults import Faults
from facade.flows.telemetry.simulator.report import Report
from facade.reading import Quality
from proving.demo.account import Found, compare, disagreements, waited
from proving.demo.report import DemoReport
from proving.demo.tables import print_account, print_figures, print_verdict
from proving.demo.timing import event_rates, notification_latency, window_latency, without_rereads

NODES = {
    "0": NodeAccount(
        used=600, late=3, received=6000, lost=7, late_packets=2, missing=4, duplicates=1, lowest_seq=0, highest_seq=605
    ),
    "1": NodeAccount(
        used=380, late=0, received=3800, lost=0, late_packets=0, missing=0, duplicates=2, lowest_seq=0, highest_seq=379
    ),
}
SENT = Report(
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
FOUND = Found(
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


def tampered(part: str, name: str, by: int = 1, node: int | None = None) -> Found:
    found = msgspec.convert(msgspec.to_builtins(FOUND), Found, strict=False)
    figures = getattr(found, part) if node is None else found.nodes[node]
    figures[name] = figures.get(name, 0) + by
    return found


def test_an_account_that_agrees_has_no_failures() -> None:
    lines = compare(SENT, FOUND)
    assert len(lines) == 11 + 3 + 4 + 2 * 7
    assert all(line.agrees for line in lines)
    assert disagreements(SENT, lines) == []


@pytest.mark.parametrize("name", sorted(FOUND.bus))
@pytest.mark.parametrize("by", [-1, 1])
def test_one_record_more_or_less_on_the_bus_is_named(name: str, by: int) -> None:
    (failure,) = disagreements(SENT, compare(SENT, tampered("bus", name, by)))
    assert failure == f"SdpBus: {name}: expected {FOUND.bus[name]:,}, got {FOUND.bus[name] + by:,}"


@pytest.mark.parametrize("name", sorted(FOUND.master))
def test_one_record_too_many_on_the_master_is_named(name: str) -> None:
    (failure,) = disagreements(SENT, compare(SENT, tampered("master", name)))
    assert failure.startswith(f"SdpMaster: {name}: expected {FOUND.master[name]:,}, got")


@pytest.mark.parametrize("name", sorted(FOUND.nodes[0]))
@pytest.mark.parametrize("node", [0, 1])
def test_one_record_too_many_on_a_node_is_named(node: int, name: str) -> None:
    (failure,) = disagreements(SENT, compare(SENT, tampered("nodes", name, node=node)))
    assert failure.startswith(f"node {node}: {name}: expected {FOUND.nodes[node][name]:,}, got")


@pytest.mark.parametrize("reason", ["schema", "tombstone", "never-sent"])
def test_a_wrong_reason_is_named(reason: str) -> None:
    """A reason that the simulator never provoked counts as well."""
    (failure,) = disagreements(SENT, compare(SENT, tampered("reasons", reason)))
    assert f"reason {reason}: expected" in failure


def test_what_cannot_be_read_does_not_agree() -> None:
    found = msgspec.structs.replace(FOUND, nodes={0: FOUND.nodes[0]})
    failures = disagreements(SENT, compare(SENT, found))
    assert len(failures) == 7
    assert failures[0] == "node 1: heapsTotal: expected 380, got nothing that can be read"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"finished": False}, "not finished"),
        ({"undelivered": 4}, "got 4 undelivered"),
    ],
)
def test_a_simulator_that_is_not_sure_is_a_failure(change: dict[str, object], says: str) -> None:
    sent = msgspec.structs.replace(SENT, **change)
    (failure,) = disagreements(sent, compare(sent, FOUND))
    assert says in failure


def test_records_that_were_never_confirmed_are_a_failure() -> None:
    sent = msgspec.structs.replace(SENT, sent=999)
    failures = disagreements(sent, compare(sent, FOUND))
    assert failures == ["simulator: sent: expected 1,000 records, got 999"]


def event(received: float, time: float, value: float = 1.0, quality: Quality = Quality.VALID) -> Event:
    return Event(value=value, quality=quality, time=time, received=received)


def test_latency_of_notifications_is_spread_over_the_window() -> None:
    """A window that is shown 0.2 s after its end holds heaps from 0.2 to 1.2 s old."""
    spread = notification_latency([event(101.2, 100.999_999), event(102.2, 101.999_999)])
    assert spread is not None
    assert spread.p50 == pytest.approx(700, abs=10)
    assert spread.p99 == pytest.approx(1190, abs=10)
    assert spread.count == 200
    assert notification_latency([]) is None


def test_latency_of_a_window_counts_from_its_end() -> None:
    spread = window_latency([event(101.2, 100.999), event(102.4, 101.5)])
    assert spread is not None
    assert (spread.p50, spread.longest, spread.count) == (pytest.approx(300), pytest.approx(400), 2)
    assert window_latency([]) is None


def test_a_value_that_is_read_again_is_no_event() -> None:
    events = [event(1.0, 0.9), event(1.5, 0.9), event(2.0, 1.9), event(2.1, 1.9, quality=Quality.INVALID)]
    assert [one.received for one in without_rereads(events)] == [1.0, 2.0, 2.1]


KEY, OTHER = ("a/b/1", "heapRate"), ("a/b/2", "heapRate")


def test_the_closest_events_and_the_busiest_attribute_are_found() -> None:
    events = {KEY: [event(t, t) for t in (1.0, 2.0, 2.5, 3.5)], OTHER: [event(t, t) for t in (1.0, 1.7, 2.4, 3.1)]}
    found = event_rates(events, {KEY: 0.4, OTHER: 0.8}, [])
    assert found is not None
    assert (found.closest, found.bunch.events, found.bunch.shortest) == ("a/b/2/heapRate", 4, 0.8)
    assert found.bunch.within == pytest.approx(2.1)
    assert (found.busiest, found.busiest_rate) == ("a/b/2/heapRate", pytest.approx(1 / 0.7))
    assert found.busiest_limit == pytest.approx(1.25)
    assert (found.events, found.attributes) == (8, 2)


@pytest.mark.parametrize(
    "unusual",
    [
        pytest.param(lambda: [event(5.0, 5), event(5.1, 5.1)], id="within-a-restart"),
        pytest.param(lambda: [event(9.0, 9), event(9.1, 9.1, quality=Quality.ALARM)], id="change-of-quality"),
    ],
)
def test_restarts_and_changes_of_quality_say_nothing_about_the_pace(unusual: Callable[[], list[Event]]) -> None:
    events = {KEY: sorted([event(1.0, 1), event(2.0, 2), *unusual()], key=lambda one: one.received)}
    found = event_rates(events, {KEY: 0.8}, [(4.0, 8.0)])
    assert found is not None
    assert (found.bunch.events, found.bunch.within) == (2, pytest.approx(1.0))


def test_a_few_quick_events_are_no_rate() -> None:
    """Three at the start come close together; what counts is what goes on."""
    events = {
        KEY: [event(t, t) for t in (1.0, 1.5, 2.0)],
        OTHER: [event(t, t) for t in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)],
    }
    found = event_rates(events, {KEY: 0.8, OTHER: 0.8}, [])
    assert found is not None
    assert (found.busiest, found.busiest_rate, found.busiest_gaps) == ("a/b/2/heapRate", pytest.approx(1.0), 6)


def test_too_few_events_have_no_pace() -> None:
    assert event_rates({KEY: [event(1.0, 1)]}, {KEY: 0.8}, []) is None
    assert event_rates({KEY: [event(1.0, 1), event(2.0, 2)]}, {}, []) is None


def test_the_report_survives_its_file(tmp_path: Path) -> None:
    lines = compare(SENT, FOUND)
    report = DemoReport(began=1.0, nodes=2, rate=50.0, seconds=10.0, balanced=True, account=lines, sent=SENT)
    file = tmp_path / "deep" / "report.json"
    write_json(file, report)
    assert msgspec.json.decode(file.read_bytes(), type=DemoReport) == report
    assert [path.name for path in file.parent.iterdir()] == ["report.json"]


def test_what_differs_is_seen_on_the_screen() -> None:
    lines = compare(SENT, tampered("nodes", "heapsTotal", node=1))
    report = DemoReport(began=1.0, nodes=2, rate=50.0, seconds=10.0, failures=disagreements(SENT, lines))
    console = Console(record=True, width=120, file=io.StringIO())
    print_account(console, SENT, lines)
    print_figures(console, report)
    print_verdict(console, report, Path("report.json"))
    text = console.export_text()
    assert "1,000 sent = 980 used + 3 late + 5 suppressed + 12 dead-lettered" in text
    assert "381 (380)" in text
    assert text.count("DIFFERS") == 1
    assert "failure: node 1: heapsTotal: expected 380, got 381" in text


def test_arrays_with_nan_are_equal_if_their_values_are() -> None:
    """Else each look at an image with a hole would count as a new event."""
    first, second = (immutable(np.array([1.0, math.nan])) for _ in range(2))
    assert first == second
    assert immutable(("a", "b")) == ("a", "b")
    assert immutable(np.array([1.0, 2.0])) != first


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
