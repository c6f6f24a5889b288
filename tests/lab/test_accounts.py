"""The accounts of proofs find each kind of wrong: of heaps, alerts, blocks and mirrored values."""

import json
from collections import Counter
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from facade.flows.alerts.simulator.stream import SourceAccount
from facade.flows.mirror.messages import TelescopeAttribute
from facade.flows.telemetry.simulator.account import Expected, NodeAccount
from facade.flows.telemetry.simulator.faults import Faults
from facade.flows.telemetry.simulator.ingest import HeapReport
from facade.kernel.console import Console
from facade.kernel.icd.load import load
from facade.sdp.messages import ProcessingBlock
from sdp_facade_lab.demo.report import DemoReport, print_account, print_verdict
from sdp_facade_lab.fault_runs.alerts import (
    AlarmStanding,
    FollowerReport,
    FoundAlerts,
    account,
)
from sdp_facade_lab.fault_runs.blocks import (
    ATTRIBUTES,
    CONDITION,
    SUBARRAYS,
    Confirmed,
    FoundBlocks,
    differences,
    failed_now,
    newest,
    plan,
)
from sdp_facade_lab.fault_runs.overload import ClientResult, Overload
from sdp_facade_lab.heap_account import HeapCounts, compare, disagreements
from sdp_facade_lab.mirror_account import MirrorFound, account_of

HEAPS_OF_NODES = {
    "0": NodeAccount(
        used=600, late=3, received=6000, lost=7, late_packets=2, missing=4, duplicates=1, lowest_seq=0, highest_seq=605
    ),
    "1": NodeAccount(
        used=380, late=0, received=3800, lost=0, late_packets=0, missing=0, duplicates=2, lowest_seq=0, highest_seq=379
    ),
}
SENT_HEAPS = HeapReport(
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
    nodes=HEAPS_OF_NODES,
)
FOUND_HEAPS = HeapCounts(
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
@pytest.mark.parametrize("name", [*FOUND_HEAPS.bus, *(f"node 1: {name}" for name in FOUND_HEAPS.nodes[1])])
def test_one_record_lost_or_doubled_is_named(name: str, by: int) -> None:
    found = msgspec.convert(msgspec.to_builtins(FOUND_HEAPS), HeapCounts, strict=False)
    figures, what = (found.bus, name) if name in FOUND_HEAPS.bus else (found.nodes[1], name.removeprefix("node 1: "))
    figures[what] += by
    (failure,) = disagreements(SENT_HEAPS, compare(SENT_HEAPS, found))
    assert f"{what}: expected {figures[what] - by:,}, got {figures[what]:,}" in failure


def test_notifications_that_waited_for_the_broker_are_told_in_the_account_and_in_the_verdict() -> None:
    """2.8 million of 44.7 million heaps were late after an outage: "345 late ... Everything balances"."""
    sent = msgspec.structs.replace(SENT_HEAPS, certain=False, longest_wait=60.0)
    found = msgspec.convert(msgspec.to_builtins(FOUND_HEAPS), HeapCounts, strict=False)
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


CLIENT = FollowerReport(
    by_event=3, by_page=1, again=2, overtaken=1, overflowed=0, unusable=0, renewed=1, silence=0.5, lost=[]
)
KEY = ("receiveOverrun", "source/00")
STANDING = AlarmStanding(state="UNACK", severity="ALARM", text="late", occurrence=4, raised_at=1)
SENT = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4")]
SHOWN = {"condition": KEY[0], "source": KEY[1], "state": "UNACK", "severity": "ALARM", "text": "late", "occurrence": 4}


def found_alerts(**changes) -> FoundAlerts:
    fields = {
        "sent": SENT,
        "received": [(number, one) for number, (_, one) in enumerate(SENT, 1)],
        "client": CLIENT,
        "wanted": {KEY: STANDING, ("storageLow", "b"): AlarmStanding()},
        "shown": [SHOWN],
    }
    return FoundAlerts(**fields | changes)


@pytest.mark.parametrize(
    ("change", "row", "says"),
    [
        ({"received": [(1, b"1"), (2, b"2"), (3, b"3")]}, "lost", "was sent and never received: number 4"),
        (
            {"received": [(1, b"1"), (2, b"2"), (2, b"2"), (3, b"3"), (4, b"4")]},
            "given to the client twice",
            "was given to the client twice: number 2",
        ),
        ({"shown": []}, "... in another state", "expected UNACK, got NORM"),
    ],
)
def test_what_is_wrong_is_counted_and_named(change, row, says):
    made = account(found_alerts(**change))
    assert dict(made.rows)[row] == 1
    assert any(says in text for text in made.wrong), made.wrong


@pytest.mark.parametrize(
    ("alerts", "said"),
    [({"a": 2, "facade": 1}, []), ({"a": 1}, ["client 0: 1 of 2 alerts, up to number 3 of 3: []"])],
)
def test_an_alert_that_a_client_lost_in_an_overload_is_told(alerts: dict[str, int], said: list[str]) -> None:
    """Its numbers rise up to the newest one all the same."""
    run: Any = SimpleNamespace(
        wrong=[], rows=[], _clients=2, _following=1, _read=lambda *_: 0, deployment=SimpleNamespace(icd=load())
    )
    sent: Any = SimpleNamespace(sent=2, sources={"a": SourceAccount(count=2)})
    clients = [ClientResult(0, True, 3, [], alerts), ClientResult(1, True, 3, [])]
    Overload._judge(run, SENT_HEAPS, sent, 0.0, 3, clients)
    assert run.wrong == said


RECORDS = 1_000
MASTER = "mid-sdp/control/0"
FIRST = "mid-sdp/subarray/01"


def everything_told() -> dict[str, Confirmed]:
    told: dict[str, Confirmed] = {}
    for number in range(1, SUBARRAYS + 1):
        steps = plan(7, number, RECORDS)
        told |= newest(number, steps, [(10 * at + number,) * 2 for at in range(1, len(steps) + 1)])
    return told


def values(blocks: dict[str, Confirmed]) -> dict[str, Any]:
    counts = Counter(one.state for one in blocks.values())
    running = [
        {"pb_id": name, "state": one.state} for name, one in blocks.items() if one.state not in ("FINISHED", "FAILED")
    ]
    failed = max((name for name in blocks if blocks[name].state == "FAILED"), key=lambda name: blocks[name].time)
    return {
        **{attribute: counts[state] for state, attribute in ATTRIBUTES.items()},
        "processingBlocks": tuple(map(json.dumps, running)),
        "newestFailure": json.dumps({"pb_id": failed}),
    }


def all_is_well() -> FoundBlocks:
    told = everything_told()
    topic = {name: ProcessingBlock(pb_id=name, **{**one._asdict(), "kind": "batch"}) for name, one in told.items()}
    shown = {MASTER: values(told)}
    for number in range(1, SUBARRAYS + 1):
        own = {name: one for name, one in told.items() if one.subarray == number}
        shown[f"mid-sdp/subarray/{number:02d}"] = values(own)
    alarms = [block_alarm(number, "UNACK", failed_now(told, number)[0]) for number in range(1, SUBARRAYS)]
    return FoundBlocks(
        told=told, topic=topic, shown=shown, alarms=[*alarms, block_alarm(SUBARRAYS, "RTNUN", "an older one")]
    )


def block_alarm(number: int, state: str, name: str) -> dict[str, Any]:
    return {
        "condition": CONDITION,
        "source": f"sdp-facade/subarray/{number:02d}",
        "state": state,
        "text": f"{name} failed",
    }


def a_block_is_lost(found: FoundBlocks) -> None:
    del found.topic[min(found.topic)]  # type: ignore[attr-defined]


def a_removed_block_is_back(found: FoundBlocks) -> None:
    found.topic["pb-more"] = found.topic[min(found.topic)]  # type: ignore[index]


def an_alarm_is_missing(found: FoundBlocks) -> None:
    del found.alarms[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (a_block_is_lost, "newest record of pb-fault1-004-00000: expected Confirmed"),
        (a_removed_block_is_back, "newest record of pb-more: expected none, got Confirmed"),
        (an_alarm_is_missing, "processingBlockFailed of subarray 01: expected an active alarm, got none"),
    ],
)
def test_what_is_wrong_is_named(change: Any, named: str) -> None:
    found = all_is_well()
    change(found)
    assert any(line.startswith(named) for line in differences(found, MASTER)), differences(found, MASTER)


NAME = "mid-dish/dish-manager/ska001/achievedpointing"
PUSHED = [100.0, 100.1, 100.2, 100.3, 100.4]


def record(number: int, time: float | None, **more: Any) -> TelescopeAttribute:
    value = None if time is None else [time, 181.0, 45.0]
    base: dict[str, Any] = {"name": NAME, "number": number, "time": 1, "value": value, "type": "DevDouble"}
    return TelescopeAttribute(**{**base, "quality": "VALID", "connection": "CONNECTED", "by": "EVENT", **more})


def test_what_is_missing_with_a_word_is_told_from_what_is_missing_without() -> None:
    """A gap covers what is between it and the record before."""
    said = [record(1, 100.0), record(2, 100.2, gap=True), record(3, 100.3), record(4, 100.4)]
    assert account_of(PUSHED, said) == MirrorFound(pushed=5, mirrored=4, said=1, gaps=1)
    unsaid = [record(1, 100.0), record(2, 100.2), record(3, 100.4, gap=True)]
    assert account_of(PUSHED, unsaid) == MirrorFound(pushed=5, mirrored=3, said=1, unsaid=1, gaps=1)


def test_a_missing_number_and_a_foreign_value_are_found() -> None:
    """A record that was lost shows by the numbers, also where its value is there again."""
    records = [record(1, 100.0), record(3, 100.1), record(4, 99.0), record(5, None)]
    assert account_of(PUSHED, records) == MirrorFound(pushed=2, mirrored=2, foreign=2, misnumbered=1)
