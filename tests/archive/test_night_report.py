"""The report of a night: its figures beside hand-worked ones, and the page that shows them."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from facade.archive.files import ArchiveError
from facade.archive.night.html import number, percent
from facade.archive.night.page import render
from facade.archive.night.report import NightReport, read_night
from facade.archive.night.span import Night, choose_night
from facade.archive.stores import FolderStore
from facade.flows.alerts.ledger import AlarmLedger
from facade.flows.alerts.messages import Alert, state_record
from facade.flows.telemetry.worker import telemetry_worker
from facade.kernel.bus.dead_letters import dead_letter
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.bus.port import Record
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import ConfigError
from facade.kernel.outcome import RecordRejected
from tests.archive.test_archive import ChangingBus
from tests.support.archives import ICD, archive
from tests.support.heaps import BASE_US, encoded, heap
from tests.support.simulated_bus import MemoryBroker, MemoryTransactionalLog

NIGHT = choose_night("2027-01-14", None, None)
NOON = NIGHT.begin_us
SECOND, MINUTE, HOUR = 1_000_000, 60_000_000, 3_600_000_000
MARKUP = "<script>alert(1)</script>&\"'"
DEVICE = "mid-sdp/subarray/01"


def on(topic: str, value: Mapping[str, Any] | bytes | None, at_us: int, key: str = "k", headers: Any = ()) -> Record:
    raw = json.dumps(value).encode() if isinstance(value, Mapping) else value
    return Record(topic=topic, key=key.encode(), value=raw, headers=headers, partition=0, timestamp_us=at_us)


def made(folder: Path, records: Iterable[Record], night: Night = NIGHT) -> NightReport:
    """Archive some records, and make the report."""
    found = sorted(records, key=lambda one: one.timestamp_us)
    log = MemoryLog({topic: ICD.topics[topic].partitions for topic in {one.topic for one in found}})
    for one in found:
        log.append(one)
    archive(log, FolderStore(folder), *{one.topic for one in found})
    return read_night(FolderStore(folder), ICD, night, 50)


def rows(report: NightReport, view: str) -> list[tuple[Any, ...]]:
    """Return the rows of a view of `figures.sql`."""
    return [*report.table(view)[1]]


# Comments


def test_comments_about_alarms_and_all_else_are_in_the_order_of_time(tmp_path: Path) -> None:
    acted = {"schema": "alert-action/1", "id": "1", "condition": "linkDown", "source": "a", "origin": "alerts"}
    said = {"schema": "page-act/1", "act": "comment", "person": "eve", "target": "id-7", "origin": "page"}
    times = [NOON + at * SECOND for at in range(4)]
    by_anna = acted | {"operator": "anna"}
    report = made(
        tmp_path,
        [
            on("page-acts", said | {"text": MARKUP, "time": times[2]}, times[2]),
            on("page-acts", said | {"text": "no", "time": times[3], "refused": True}, times[3]),
            on("page-acts", said | {"act": "sign-in", "text": "", "time": times[3]}, times[3]),
            on("alert-actions", by_anna | {"action": "SHELVE", "comment": "known", "time": times[1]}, times[1]),
            on("alert-actions", by_anna | {"action": "ACKNOWLEDGE", "comment": "", "time": times[0]}, times[0]),
        ],
    )
    assert [row[1:] for row in rows(report, "comments")] == [
        ("anna", "linkDown@a, SHELVE", "known"), ("eve", "id-7", MARKUP)
    ]  # fmt: skip
    page = render(report, "/data", NIGHT.end_us)
    assert MARKUP not in page
    assert "<caption>Comments in the order of time</caption>" in page


# Alarms


def totals(report: NightReport) -> dict[str, Any]:
    names = ("annunciated", "average", "flood_fraction", "covered")
    return {name: report.value(f"{name} FROM alarm_totals") for name in names}


def alarm(
    at_us: int, name: str = "linkDown", raised: int = 1, state: str = "UNACK", source: str = "a", **more: Any
) -> Record:
    """Return a record of the state of an alarm; `raised`: how often it has been raised."""
    document = {"schema": "alert-state/1", "condition": name, "source": source, "state": state, "through": 9}
    document |= {"raised": raised, "occurrence": raised, "raised_at": at_us, "changed_at": at_us, **more}
    return on("alert-state", document, at_us, f"{name}@{source}")


def alarms(*times: float, name: str = "linkDown") -> list[Record]:
    """Return the records of one alarm that is raised at some times after noon [s]."""
    return [alarm(NOON + round(at * SECOND), name, raised) for raised, at in enumerate(times, 1)]


def each_once(*times: float) -> list[Record]:
    """Return the records of alarms that are raised once each, at some times after noon [s]."""
    return [record for at, time in enumerate(times) for record in alarms(time, name=f"alarm{at}")]


def forgotten(at_us: int, name: str = "linkDown") -> Record:
    return on("alert-state", None, at_us, f"{name}@a")


@pytest.mark.parametrize(
    ("records", "annunciated", "floods", "chattering", "stale"),
    [
        pytest.param(alarms(*(3600 * hour for hour in range(24))), 24, 0, [], [], id="once an hour"),
        pytest.param(each_once(*range(10)), 10, 0, [], [], id="10 in 10 minutes are no flood"),
        pytest.param(each_once(*range(11)), 11, 1, [], [], id="11 in 10 minutes are a flood"),
        pytest.param(each_once(*range(594, 605)), 11, 0, [], [], id="11 over two periods"),
        pytest.param(each_once(*range(11), *range(86_389, 86_400)), 22, 2, [], [], id="first and last period"),
        pytest.param(alarms(0, 20, 59.999), 3, 0, [3], [], id="3 in less than a minute"),
        pytest.param(alarms(0, 30, 60, 90, 120), 5, 0, [], [], id="2 in any minute"),
        pytest.param(alarms(0, 10, 20, 30, 300, 310), 6, 0, [4], [], id="the worst minute counts"),
        pytest.param([alarm(NOON, raised=1), alarm(NOON + SECOND, raised=4)], 4, 0, [4], [], id="3 in one record"),
        pytest.param([alarm(NOON), alarm(NOON + SECOND, state="ACKED")], 1, 0, [], [], id="acknowledged"),
        pytest.param(
            [alarm(NOON), forgotten(NOON + HOUR), alarm(NOON + 2 * HOUR)], 2, 0, [], [], id="raised after its rest"
        ),
        pytest.param([alarm(NOON), alarm(NOON + SECOND, raised=1, occurrence=2)], 2, 0, [], [], id="and in one record"),
        pytest.param(
            [alarm(NOON - 13 * HOUR), alarm(NOON + 12 * HOUR, state="RTNUN")], 0, 0, [], [25.0], id="25 h and clears"
        ),
        pytest.param([alarm(NOON - HOUR)], 0, 0, [], [25.0], id="stands at the end"),
        pytest.param([alarm(NOON)], 1, 0, [], [], id="24 h are not more than 24 h"),
        pytest.param([alarm(NOON - 26 * HOUR), alarm(NOON, state="NORM")], 0, 0, [], [], id="cleared before the night"),
        pytest.param(
            [alarm(NOON - 13 * HOUR), forgotten(NOON + 12 * HOUR)], 0, 0, [], [25.0], id="25 h and is forgotten"
        ),
        pytest.param(
            [alarm(NOON - 26 * HOUR), alarm(NOON - HOUR, state="NORM"), alarm(NOON + HOUR, raised=2)], 1, 0, [], [],
            id="a break ends it",
        ),
        pytest.param(
            [alarm(NOON + HOUR, raised=7, state="ACKED", raised_at=NOON - 100 * HOUR)], 0, 0, [], [124.0],
            id="raised before the archive began",
        ),
        pytest.param(
            [alarm(NOON, state="NORM", raised=0, pending="RAISE"), alarm(NOON + MINUTE)], 1, 0, [], [], id="on-delay"
        ),
    ],
)  # fmt: skip
def test_figures_of_alarms_are_those_worked_by_hand(
    tmp_path: Path, records: Sequence[Record], annunciated: int, floods: int, chattering: list[int], stale: list[float]
) -> None:
    report = made(tmp_path, [*records, alarm(NOON + HOUR, "other", raised=0, state="NORM")])
    assert report.value("sum(alarms) FROM alarm_periods") == annunciated
    assert sum(number for _, number, _ in rows(report, "alarm_slots")) == annunciated
    assert totals(report) == {
        "annunciated": annunciated,
        "average": pytest.approx(annunciated / 144),
        "flood_fraction": pytest.approx(floods / 144),
        "covered": 0,
    }
    assert [most for _, _, most in rows(report, "chattering")] == chattering
    assert [long for _, _, _, long in rows(report, "stale")] == [f"{hours:g} h" for hours in stale]


def test_the_worst_ten_and_their_share(tmp_path: Path) -> None:
    records = [
        one
        for times in range(1, 13)
        for one in alarms(*(700 * at + times for at in range(times)), name=f"alarm{times:02d}")
    ]
    found = rows(made(tmp_path, records), "worst")
    assert [(condition, times) for condition, _, times, _ in found] == [(f"alarm{n:02d}", n) for n in range(12, 2, -1)]
    assert (found[0][3], found[9][3]) == (percent(12 / 78, 1), percent(3 / 78, 1))


@pytest.mark.parametrize("seed", range(5))
def test_annunciated_alarms_are_the_occurrences_that_the_ledger_of_alarms_counts(tmp_path: Path, seed: int) -> None:
    rng, ledger, records, at_us = random.Random(seed), AlarmLedger(ICD.conditions), [], NOON
    sequences, occurrences = Counter[str](), 0
    for offset in range(400):
        at_us += rng.choice((100_000, SECOND, 20 * SECOND, 200 * SECOND))
        source = rng.choice("abcd")
        sequences[source] += 1
        state, severity = rng.choice(("ACTIVE", "CLEARED")), rng.choice(("WARNING", "ALARM", "CRITICAL"))
        alert = Alert(
            condition="linkDown", source=source, severity=severity, state=state, text="", raised_at=at_us,
            sequence=sequences[source],
        )  # fmt: skip
        ledger.apply(alert, offset, at_us, redriven=False)
        if rng.random() < 0.5:  # a device server writes what came of many alerts as one
            changed = ledger.take_touched(at_us)
            records += [replace(state_record(*one), timestamp_us=at_us, partition=0) for one in changed]
            occurrences += len(ledger.take_occurrences())
    found = totals(made(tmp_path, records))
    assert found["annunciated"] + found["covered"] == occurrences > 50


@pytest.mark.parametrize("covered", [{"shelved_until": NOON + 9 * HOUR}, {"out_of_service": True}])
def test_alarms_that_nobody_sees_are_counted_apart(tmp_path: Path, covered: dict[str, Any]) -> None:
    found = totals(made(tmp_path, [alarm(NOON, **covered), alarm(NOON + HOUR, raised=2)]))
    assert (found["annunciated"], found["covered"]) == (1, 1)


def test_so_are_alarms_that_another_one_explains(tmp_path: Path) -> None:
    hidden = {"annunciated": False}
    report = made(
        tmp_path,
        [
            alarm(NOON, **hidden),
            alarm(NOON + SECOND, "other", **hidden),
            alarm(NOON + SECOND, state="NORM", **hidden),
            alarm(NOON + MINUTE, raised=2),
            alarm(NOON + 2 * MINUTE, "other"),
        ],
    )
    found = totals(report)
    assert (found["annunciated"], found["covered"]) == (2, 2), "one came again, and the cause of the other has ended"


def test_a_part_of_a_period_counts_by_its_length(tmp_path: Path) -> None:
    night = Night(NOON, NOON + 15 * MINUTE)
    found = totals(made(tmp_path, each_once(*range(600, 611)), night))
    assert found["flood_fraction"] == pytest.approx(5 / 15)
    assert found["average"] == pytest.approx(11 / 1.5)


def test_a_state_that_claims_more_occurrences_than_there_can_be_counts_none(tmp_path: Path) -> None:
    report = made(tmp_path, [alarm(NOON), alarm(NOON + SECOND, raised=200_000), alarm(NOON + HOUR, raised=200_001)])
    assert totals(report)["annunciated"] == 2
    assert report.value("refused FROM alarm_totals") == 1


# Heaps


def telemetry(*heaps: Mapping[str, Any] | bytes) -> list[Record]:
    """Return what the aggregate worker writes of some heaps."""
    broker = MemoryBroker(ManualClock(BASE_US / 1e6), {name: topic.partitions for name, topic in ICD.topics.items()})
    log = MemoryTransactionalLog(broker, "ingest.heaps", group="aggregate", fault=lambda: None)
    worker = telemetry_worker(log, ICD, Settings(nodes=4, rack_size=2), slot="0", clock=broker.clock)
    for one in heaps:
        value = one if isinstance(one, bytes) else encoded(dict(one))[0]
        broker.append(Record(topic="ingest.heaps", key=b"0", value=value, partition=0))
    until = broker.clock.monotonic() + 3.0
    while broker.clock.monotonic() < until:
        worker.step()
        broker.clock.sleep(0.01)
    return [one for topic in ("ingest.summary", "dead-letters", "accounts") for one in broker.read(topic)]


def test_a_lost_and_a_doubled_heap_are_in_the_completeness_of_their_rack(tmp_path: Path) -> None:
    # Node 0: 0 to 9 without 4, and 6 twice. Node 1: 0 to 4. Node 2, of the other rack: 0 to 2, with two packets lost.
    first = [heap(0, seq, seq / 100, latency=0.010) for seq in (0, 1, 2, 3, 5, 6, 6, 7, 8, 9)]
    second = [heap(1, seq, seq / 100, latency=0.030) for seq in range(5)]
    other = [heap(2, seq, seq / 100, lost=2 * (seq == 1)) for seq in range(3)]
    report = made(tmp_path, telemetry(*first, *second, *other, b"junk", b"{}"))
    one, two = report.telemetry.racks
    assert (one.nodes, two.nodes) == ({0, 1}, {2})
    assert (one.used, one.distinct, one.missing, one.doubled, one.late, one.uncovered) == (15, 14, 1, 1, 0, 0)
    assert one.completeness == 14 / 15
    assert one.packets == [15 * 512, 0, 0]
    assert (two.used, two.missing, two.doubled, two.completeness) == (3, 0, 0, 1.0)
    assert two.packets == [3 * 512, 2, 0]
    slot = NIGHT.slot(BASE_US)
    assert [at for at, found in enumerate(report.telemetry.slots(one)) if found.count] == [slot]
    assert report.telemetry.slots(one)[slot].count / NIGHT.slot_seconds(slot) == 15 / 3600
    assert report.telemetry.latency(one, 0.5) == pytest.approx(0.010, rel=0.011)
    assert report.telemetry.latency(one, 0.99) == pytest.approx(0.030, rel=0.011)
    account = report.streams["ingest.heaps"].account
    assert (account.consumed, account.used, account.dead_lettered, account.balance) == (20, 18, 2, 0)


def test_late_heaps_count_and_are_in_no_rate(tmp_path: Path) -> None:
    report = made(tmp_path, telemetry(heap(0, 0), heap(0, 1, -30.0), heap(0, 2)))
    (rack,) = (one for one in report.telemetry.racks if one.first == 0)
    assert (rack.used, rack.late, rack.missing, rack.completeness) == (2, 1, 0, 1.0)
    assert rack.packets[0] == 3 * 512, "packets received of all three"
    assert sum(one.count for one in report.telemetry.slots(rack)) == 2


def summary(first: int, after: int, **changes: Any) -> Record:
    """Return the summary of a rack with one row, whose sequence numbers are its offsets."""
    document = {
        "schema": "rack-summary/1", "worker": "0", "stream": "ingest.heaps", "partition": 0, "first": 0, "last": 1,
        "log": "x", "offset_from": first, "offset_to": after, "part": 0, "contiguous": True, "node": [0],
        "epoch": [7], "window": [BASE_US], "late": [False], "count": [after - first], "time_min": [BASE_US],
        "time_max": [BASE_US], "runs": [[[first, after - 1]]], "fields": {}, **changes,
    }  # fmt: skip
    return on("ingest.summary", document, BASE_US)


def test_a_summary_counts_once_and_one_that_is_lost_is_told(tmp_path: Path) -> None:
    report = made(tmp_path, [summary(0, 4), summary(0, 4), summary(7, 9)])
    (rack,) = report.telemetry.racks
    assert (rack.used, rack.doubled, rack.missing, rack.uncovered) == (6, 0, 3, 3)
    assert report.topics["ingest.summary"].unusable == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"count": []},
        {"runs": [[[5, 4]]]},
        {"runs": [[[4, 4], [3, 3]]]},
        {"fields": {"lost": {"sum": [1, 2]}}},
        {"fields": {"latency": {"sketch": [{"999999999999999": 1}]}}},
        {"fields": {"latency": {"sum": [10**400]}}},
    ],
)
def test_a_summary_that_contradicts_itself_changes_no_figure(tmp_path: Path, changes: dict[str, Any]) -> None:
    report = made(tmp_path, [summary(0, 4), summary(4, 5, **changes), summary(4, 5)])
    (rack,) = report.telemetry.racks
    assert (rack.used, rack.distinct, rack.missing, rack.uncovered) == (5, 5, 0, 0)
    assert report.topics["ingest.summary"].unusable == 1


def test_summaries_of_nodes_by_older_workers_count_for_their_rack(tmp_path: Path) -> None:
    sums = {"received": {"sum": 9}, "latency": {"sketch": {"700": 3}}}
    part = {"epoch": 7, "window": BASE_US, "late": False, "time_min": BASE_US, "time_max": BASE_US, "fields": sums}
    records = [
        on(
            "ingest.summary",
            {
                "schema": "ingest-summary/1", "worker": "0", "partition": 0, "node": node,
                "partials": [part | {"count": 3, "runs": [[0, 2]]}],
            },
            BASE_US,
        )
        for node in (0, 49, 50)
    ]  # fmt: skip
    racks = made(tmp_path, records).telemetry.racks
    found = [(one.nodes, one.used, one.distinct, one.packets[0]) for one in racks]
    assert found == [({0, 49}, 6, 6, 18), ({50}, 3, 3, 9)]


# Dead letters, commands, tables, quality


def letter(reason: str, topic: str = "alerts", at_us: int = NOON, count: int | None = None) -> Record:
    of = Record(topic=topic, key=b"k", value=b"x", partition=0, offset=3, timestamp_us=at_us)
    more = None if count is None else {"count": count}
    found = dead_letter(of, RecordRejected(reason, "$.seq", f"expected {MARKUP}"), by="alerts", more=more)
    return on("dead-letters", found.value, at_us, "k", found.headers)


def test_dead_letters_are_counted_by_topic_and_reason(tmp_path: Path) -> None:
    records = [
        letter("schema"),
        letter("schema", at_us=NOON + HOUR),
        letter("schema", "logs"),
        letter("columns", count=40),
    ]
    records += [letter("redriven"), on("dead-letters", b"no dead letter", NOON)]
    report = made(tmp_path, records)
    found = rows(report, "dead_letter_rows")
    assert [row[:3] for row in found] == [("columns", "alerts", 40), ("schema", "alerts", 2), ("schema", "logs", 1)]
    assert found[1][3:] == (
        "2027-01-14 12:00:00.000 UTC",
        "2027-01-14 13:00:00.000 UTC",
        "alerts",
        f"$.seq expected {MARKUP}",
    )
    assert report.value("count(*) FILTER (is_mark) FROM dead_letters") == 1
    assert report.topics["dead-letters"].unusable == 1


def command(name: str, at_us: int = NOON, **more: Any) -> Record:
    document = {
        "schema": "command/1", "id": f"id-{name}", "device": DEVICE, "command": name, "argument": None,
        "transaction_id": "t", "issued": at_us, "not_after": at_us, "deadline": at_us, "ceiling": at_us,
        "repeatable": False, "origin": "subarray", **more,
    }  # fmt: skip
    return on("commands", document, at_us + SECOND)


def ack(name: str, status: str, at_us: int, **more: Any) -> Record:
    document = {
        "schema": "command-ack/1", "id": f"id-{name}", "device": DEVICE, "command": name, "status": status,
        "time": at_us, "origin": "controller", **more,
    }  # fmt: skip
    return on("command-acks", document, at_us)


def refusal(name: str, at_us: int) -> Record:
    document = {
        "schema": "command-refusal/1", "device": DEVICE, "command": name, "reason": "API_CommandNotAllowed",
        "text": "no", "time": at_us, "origin": "subarray",
    }  # fmt: skip
    return on("command-refusals", document, at_us)


def test_the_first_final_acknowledgement_is_the_outcome_and_a_command_may_have_none(tmp_path: Path) -> None:
    report = made(
        tmp_path,
        [
            command("Configure", NOON, client="tm"),
            ack("Configure", "ACCEPTED", NOON + 2 * SECOND),
            ack("Configure", "COMPLETED", NOON + 5 * SECOND, text="done"),
            ack("Configure", "FAILED", NOON + 6 * SECOND),
            command("Scan", NOON + HOUR),
            ack("Scan", "IN_PROGRESS", NOON + HOUR + SECOND),
            command("Order", NOON + 2 * HOUR, parent="id-Scan"),
            command("Order", NOON + 3 * HOUR, parent="id-Scan"),
            ack("Order", "ABORTED", NOON + 2 * HOUR + 3 * SECOND),
            ack("Yesterday", "COMPLETED", NOON + SECOND),
            refusal("End", NOON + 4 * HOUR),
        ],
    )
    found = [(name, by, *outcome) for _, name, _, by, *outcome in rows(report, "command_rows")]
    assert found == [
        ("Configure", "tm", "COMPLETED", "5", "done"),
        ("Scan", "subarray", "OPEN", "", ""),
        ("Order", "order of id-Scan", "ABORTED", "2", ""),
        ("End", "subarray", "REFUSED", "0", "API_CommandNotAllowed: no"),
    ]


def table(name: str, state: str, at_us: int, **more: Any) -> Record:
    document = {
        "schema": "table/1", "table": name, "product": "subarray/01/gains", "kind": "gains", "content_type": "x/y",
        "state": state, "size": 2_000_000, "received": 0, "sha256": "0" * 64, "sent_at": at_us - 3 * SECOND,
        "time": at_us, **more,
    }  # fmt: skip
    return on("tables", document, at_us)


def metric(at_us: int, name: str = "snr") -> Record:
    document = {
        "schema": "metric/1", "subarray": 1, "metric": name, "time": at_us, "encoding": "npy", "shape": [1],
        "dtype": "float64", "unit": "1",
    }  # fmt: skip
    return on("quality", b"bytes", at_us, "k", (("metric", json.dumps(document).encode()),))


def test_tables_and_quality(tmp_path: Path) -> None:
    report = made(
        tmp_path,
        [
            table("a", "ASSEMBLING", NOON),
            table("a", "COMPLETE", NOON + SECOND),
            table("a", "COMPLETE", NOON + MINUTE),
            table("b", "COMPLETE", NOON + HOUR, sent_at=NOON + HOUR - 9 * SECOND),
            table("c", "FAILED", NOON + 2 * HOUR, reason="a segment is missing"),
            table("d", "ASSEMBLING", NOON + 3 * HOUR),
            table("e", "ASSEMBLING", NOON + 3 * HOUR),
            on("tables", None, NOON + 4 * HOUR, "subarray/01/gains!e"),
            *(metric(NOON + at * SECOND) for at in (0, 10, 70, 80)),
            on("quality", b"bytes", NOON),
        ],
    )
    assert rows(report, "products") == [("subarray/01/gains", "gains", 2, 4.0, 9.0, 1, 1, "a segment is missing")]
    ((name, *_, arrays, _, _, gap),) = rows(report, "metrics")
    assert (name, arrays, gap) == ("snr", 4, 60.0)
    assert report.topics["quality"].unusable == 1


# Accidents


def beats(name: str, incarnation: str, *seconds: float, stops: bool = False) -> list[Record]:
    """Return signs of life at some times after noon [s]; `stops`: the last one says goodbye."""
    return [
        on(
            "heartbeats",
            {
                "schema": "heartbeat/1", "component": name, "incarnation": incarnation, "devices": [],
                "time": NOON + round(at * SECOND), "interval": 1.0, "role": "worker",
                "stopping": stops and at == seconds[-1],
            },
            NOON + round(at * SECOND),
        )
        for at in seconds
    ]  # fmt: skip


ALWAYS = beats("always", "x", *range(60))


@pytest.mark.parametrize(
    ("records", "restarts", "unsaid", "silences", "texts"),
    [
        ([beats("w", "1", *range(60))], 0, 0, 0, []),
        ([beats("w", "1", *range(20)), beats("w", "2", *range(30, 60))], 1, 1, 0, ["30 w restarted without"]),
        (
            [beats("w", "1", *range(20), stops=True), beats("w", "2", *range(21, 60))], 1, 0, 0,
            ["21 w restarted after an orderly end; away for 2.0 s"],
        ),
        ([beats("w", "1", *range(20), *range(30, 60))], 0, 0, 1, ["19 w silent for 11.0 s; the same process went on"]),
        ([beats("w", "1", *range(20))], 0, 0, 1, ["19 w silent from then until the end"]),
        ([beats("w", "1", *range(20), stops=True)], 0, 0, 0, ["19 w ended in order, and was not started again"]),
        ([beats("w", "1", *range(30, 60))], 0, 0, 0, ["30 w heard for the first time"]),
        (
            [beats("w", "1", 0, 2, 4), beats("w", "2", *range(5, 60)), beats("w", "1", 6.5, stops=True)], 1, 1, 0,
            ["5 w restarted without"],
        ),
        (
            [beats("w", "1", *range(0, 60, 2)), beats("w", "2", *range(1, 60, 2))], 1, 1, 0,
            ["1 w restarted without", "2 w two processes give signs of life under this name"],
        ),
    ],
)  # fmt: skip
def test_restarts_and_silence_of_a_component(
    tmp_path: Path, records: list[list[Record]], restarts: int, unsaid: int, silences: int, texts: list[str]
) -> None:
    report = made(tmp_path, [*ALWAYS, *(one for part in records for one in part)])
    (line,) = (one for one in rows(report, "components") if one[0] == "w")
    assert line[2:5] == (restarts, unsaid, silences)
    said = [f"{int(at[17:19])} {component} {text}" for at, component, text in rows(report, "interruptions")]
    assert len(said) == len(texts)
    assert all(one.startswith(text) for one, text in zip(said, texts, strict=True)), said


def test_while_nobody_is_heard_nothing_is_known_of_anybody(tmp_path: Path) -> None:
    report = made(tmp_path, [*beats("v", "1", 0, 1, 600, 601), *beats("w", "2", 0, 1, 600, 601)])
    assert [row[:2] for row in rows(report, "interruptions")] == [("2027-01-14 12:00:01.000 UTC", "all components")]
    assert [row[4] for row in rows(report, "components")] == [0, 0]


# What is missing, and times


def test_records_that_cannot_be_used_are_counted_and_named(tmp_path: Path) -> None:
    records = [on("commands", b"junk", NOON), on("commands", {"schema": "command/1"}, NOON), command("Scan")]
    line = made(tmp_path, records).topics["commands"]
    assert (line.records, line.unusable) == (3, 2)
    assert line.example.startswith("partition 0, offset 0: not-json: $: ")


def test_only_records_of_the_night_count(tmp_path: Path) -> None:
    records = [letter("schema", at_us=at) for at in (NOON - 1000, NOON, NIGHT.end_us - 1000, NIGHT.end_us)]
    (line,) = rows(made(tmp_path, records), "dead_letter_rows")
    assert line[2:5] == (2, "2027-01-14 12:00:00.000 UTC", "2027-01-15 11:59:59.999 UTC")


def test_a_time_without_records_is_an_error_that_names_those_of_the_archive(tmp_path: Path) -> None:
    with pytest.raises(
        ArchiveError, match=r"from hour 2027-01-12T12 to 2027-01-17T12 \(UTC\), got 2027-01-14 12:00:00"
    ):
        made(tmp_path, [letter("schema", at_us=NOON - 48 * HOUR), letter("schema", at_us=NOON + 72 * HOUR)])


@pytest.mark.parametrize(
    ("gone", "night", "said"),
    [
        ([], NIGHT, []),
        ([0], NIGHT, ["files before number 1, of 2027-01-14T13 UTC, were removed"]),
        (
            [0, 2],
            NIGHT,
            [
                "files before number 1, of 2027-01-14T13 UTC, were removed",
                "hour=2027-01-14T15/0000-00000003.parquet: expected number 2, got 3: a file is missing",
                "hour=2027-01-14T15/0000-00000003.parquet: offsets 2 to 2 were not taken: up to 1 records are missing",
            ],
        ),
        ([0], Night(NOON + HOUR, NIGHT.end_us), []),
        ([2], Night(NOON, NOON + HOUR), []),
        ([2], Night(NOON, NOON + HOUR + 1), ["a file is missing", "offsets 2 to 2 were not taken"]),
        ([1], Night(NOON + 2 * HOUR, NOON + 3 * HOUR), ["a file is missing", "offsets 1 to 1 were not taken"]),
        ([1], Night(NOON + 3 * HOUR, NOON + 4 * HOUR), []),
        ([0, 1, 2], Night(NOON, NOON + 4 * HOUR), ["files before number 3, of 2027-01-14T15 UTC"]),
    ],
)
def test_figures_that_may_lack_the_records_of_removed_files_are_told(
    gone: list[int], night: Night, said: list[str], tmp_path: Path
) -> None:
    made(tmp_path, [letter("schema", at_us=NOON + hour * HOUR) for hour in range(4)])
    for missing in gone:
        (file,) = tmp_path.rglob(f"*-{missing:08d}.parquet")
        file.unlink()
    report = read_night(FolderStore(tmp_path), ICD, night, 50)
    found = report.topics["dead-letters"].missing
    assert len(found) == len(said)
    assert all(text in one for one, text in zip(found, said, strict=True))
    page = Parsed(render(report, "/data", night.end_us))
    assert ("; figures may lack these records" in page.text) is bool(said)
    assert ("`sdp-facade archive verify /data` names each missing and each damaged file" in page.text) is bool(said)


def test_records_that_no_file_has_are_told(tmp_path: Path) -> None:
    """Kafka had removed them before the worker took them: no file is missing."""
    bus, store = ChangingBus(MemoryLog({"dead-letters": 1}), "dead-letters"), FolderStore(tmp_path)
    bus.send(letter("schema"))
    archive(bus, store, "dead-letters")
    for at in range(1, 5):
        bus.send(letter("schema", at_us=NOON + at * SECOND))
    bus.first = 3
    archive(bus, store, "dead-letters")
    line = read_night(store, ICD, NIGHT, 50).topics["dead-letters"]
    assert line.records == 3
    assert [one.partition(": ")[2] for one in line.missing] == [
        "offsets 1 to 2 were not taken: up to 2 records are missing"
    ]
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--night", "2027-01-14", "-o", str(tmp_path / "x.html")])
    assert "note: " + line.missing[0] in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((None, None, None), "either --night, or --from and --to"),
        (("2026-11-21", "2026-11-21", None), "either --night, or --from and --to"),
        ((None, "2026-11-21T18:00", None), "either --night, or --from and --to"),
        (("21.11.2026", None, None), "--night: expected a date"),
        (("9999-12-31", None, None), "--night: expected a date"),
        ((None, "noon", "2026-11-21"), "--from: expected a time"),
        ((None, "2026-11-21T18:00", "2026-11-21T17:00"), "--to: expected a time after 2026-11-21 18:00:00 UTC"),
        ((None, "1971-01-01", "2970-12-31"), "--from, --to: expected at most a year, got 365,242 days"),
    ],
)
def test_a_time_that_is_none_is_refused(options: tuple[str | None, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose_night(*options)


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100.0 %"), (0.99999, "99.9 %"), (1 / 144, "0.7 %"), (0.5, "50.0 %"), (0.0, "0.0 %")]
)
def test_what_is_not_whole_is_not_shown_as_100_percent(share: float, text: str) -> None:
    assert percent(share, 1) == text


# The page


class Parsed(HTMLParser):
    """A page as a browser reads it, with its tables as lists of rows."""

    EMPTY = frozenset({"meta", "path", "circle", "rect"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.tables: dict[str, list[list[str]]] = {}
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self._caption = ""
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.names += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if "href" in given else []
        assert not {"src", "onload", "onclick", "onerror"} & given.keys()
        if tag not in self.EMPTY:
            self._open.append(tag)
        if tag == "table":
            self._rows, self._caption = [], ""
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.EMPTY:
            return
        assert self._open.pop() == tag
        if tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        self.text += data
        if "caption" in self._open:
            self._caption += data
        elif self._open and self._open[-1] in ("td", "th"):
            self._rows[-1][-1] += data


def full_night() -> list[Record]:
    """Return records of each topic, with markup in each text from the bus."""
    return [
        *telemetry(heap(0, 0), heap(0, 1), heap(0, 3), heap(0, 3)),
        *alarms(0, 1, 2),
        alarm(NOON - 30 * HOUR, "old", source=MARKUP),
        letter(MARKUP, MARKUP),
        command("Scan", NOON, client=MARKUP, device=MARKUP, command=MARKUP),
        ack("Scan", "FAILED", NOON + 4 * SECOND, text=MARKUP),
        command("Configure", NOON + HOUR),
        refusal("End", NOON + 2 * HOUR),
        table("a", "FAILED", NOON, reason=MARKUP, product=MARKUP, kind=MARKUP),
        metric(NOON),
        *beats(MARKUP, "1", *range(5)),
        *beats(MARKUP, "2", *range(6, 9)),
        on("commands", {"schema": MARKUP}, NOON),
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Parsed:
    return Parsed(render(made(tmp_path_factory.mktemp("night"), full_night()), f"/data/{MARKUP}", NIGHT.end_us))


def test_the_page_has_the_figures(page: Parsed) -> None:
    heaps = dict(zip(*page.tables["Heaps of each rack"][:2], strict=True))
    assert (heaps["Nodes"], heaps["Used"], heaps["Complete"]) == ("0", "4", "75.0000 %"), "node 1 was not heard"
    assert (heaps["Missing"], heaps["Doubled"]) == ("1", "1")
    slots = page.tables["Nodes 0: rate and latency of heaps in slots of 1 h"]
    assert ["2027-01-15 08:00 UTC", "4", number(4 / 3600)] in [row[:3] for row in slots]
    figures = {name: value for name, value, _ in page.tables["Performance of the alarm system"]}
    assert figures["Alarms"] == "3"
    assert figures["Average in 10 minutes"] == number(3 / 144)
    assert figures["Chattering alarms (3 or more in a minute)"] == "1"
    assert figures["Stale alarms (active for more than 24 h)"] == "1"
    assert figures["Share of the ten most frequent alarms"] == "100.0 %"
    assert ["Configure", "OPEN", "1", "", ""] in page.tables["Commands by outcome"]
    given = page.tables["Commands in the order in which they were given"]
    assert given[1] == ["2027-01-14 12:00:00.000 UTC", MARKUP, MARKUP, MARKUP, "FAILED", "4", MARKUP]
    assert [row[:3] for row in page.tables["Records that could not be used, by reason"][1:]] == [[MARKUP, MARKUP, "1"]]
    assert page.tables["Workers, device servers and controllers"][1][:4] == [MARKUP, "worker", "1", "1"]
    assert "commands, records that could not be used: 1; the first: partition 0, offset 0: version:" in page.text
    assert "Night of 2027-01-14" in page.text
    assert "From 2027-01-14 12:00:00 UTC to 2027-01-15 12:00:00 UTC (24 h)" in page.text


def test_the_page_stands_alone_and_markup_from_the_bus_is_text(page: Parsed) -> None:
    assert not {"script", "link", "img", "iframe", "object"} & {*page.tags}
    assert page.text.count(MARKUP) > 10
    assert all(link.removeprefix("#") in page.names for link in page.links)
    assert len(page.names) == len({*page.names})


def test_the_page_is_for_screen_readers_too(page: Parsed) -> None:
    assert page.tags.count("svg") == page.tags.count("desc") == page.tags.count("figure") > 2
    assert page.tags.count("table") == page.tags.count("caption")
    assert [tag for tag in page.tags if tag in ("h1", "h2", "h3")][:3] == ["h1", "h2", "h2"]
    assert "rate: from 0 to 0.00111 heaps/s, highest in the slot of 2027-01-15 08:00 UTC" in page.text


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    folder, file = tmp_path / "archive", tmp_path / "night.html"
    made(folder, full_night())
    words = ["report", str(folder), "--night", "2027-01-14", "--output", str(file)]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (0, f"{file}\n"), done.exception
    assert Parsed(file.read_text()).tables
    assert [one.name for one in tmp_path.iterdir() if one != folder] == ["night.html"]
    wrong = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "none" / "night.html")])
    assert "cannot be written: No such file or directory" in str(wrong.exception)


def test_a_page_of_a_time_that_has_not_ended_says_it(tmp_path: Path, page: Parsed) -> None:
    early = Parsed(render(made(tmp_path / "early", full_night()), "/data", NIGHT.end_us - 1))
    assert "This time had not ended when the report was written." in early.text
    assert "had not ended" not in page.text


def test_the_page_says_of_which_topics_there_is_nothing(tmp_path: Path) -> None:
    records = [letter("schema"), on("tables", None, NOON - HOUR)]
    page = Parsed(render(made(tmp_path, records), "/data", NIGHT.end_us))
    assert "The topic alert-state was not kept, or had no records: the archive has no file of it." in page.text
    assert "The archive has no records of the topic tables of this time." in page.text
    assert "Performance of the alarm system" not in page.tables
    assert ["alert-state", "0", "", "no file", "0"] in page.tables["Records of this time, by topic"]
