"""A night of an archive is played again, and the same comes of it; if not, it is named."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from typer.testing import CliRunner

from facade.admin.bus_checks import used_by
from facade.admin.cluster import FoundTopic
from facade.admin.topics import broker_settings
from facade.archive import compare as comparing
from facade.archive import replay_cli
from facade.archive.compare import ArchiveComparison, compare
from facade.archive.reading import read_records
from facade.archive.replay import ReplayPlan, plan_replay, play, require_place
from facade.archive.stores import FolderStore, Store
from facade.flows.telemetry.worker import BatchLimits, telemetry_worker
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.bus.offsets import Extent
from facade.kernel.bus.port import Headers, PartitionColumns, Record
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock, utc_text
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.config import Settings
from facade.kernel.errors import BusError, ConfigError
from facade.sdp.messages import (
    AlertState,
    CommandAck,
    IngestSummary,
    LogCount,
    LogSummary,
    NodeMetric,
    RackSummary,
    ShipperSequence,
    StreamAccount,
    Table,
)
from facade.sdp.replay import inputs
from facade.tools import bus
from sdp_facade_lab.demo import archiving
from sdp_facade_lab.recorded_night import uncompared
from tests.support.archives import HOUR, ICD, START, archive
from tests.support.columnar import columnar, summed
from tests.support.heaps import BASE_US, encoded, heap
from tests.support.simulated_bus import MemoryBroker, MemoryTransactionalLog

pytestmark = pytest.mark.needs("facade.tools", "sdp_facade_lab")

SECOND = 1_000_000
HEAPS, SUMMARY, BUFFERS, SHARED = "ingest.heaps", "ingest.summary", "ingest.buffers", "telemetry.summary"
STREAMS = (HEAPS, BUFFERS)
SECONDS = 5


class Bus:
    """A bus with an aggregate worker."""

    def __init__(self, now_s: float, limits: BatchLimits | None = None) -> None:
        self.clock = ManualClock(now_s)
        self.broker = MemoryBroker(self.clock, {name: topic.partitions for name, topic in ICD.topics.items()})
        log = MemoryTransactionalLog(self.broker, *STREAMS, group="aggregate")
        self.worker = telemetry_worker(log, ICD, Settings(nodes=4), slot="0", clock=self.clock, limits=limits)
        self.failed = 0

    def send(self, value: bytes | None, *, topic: str = HEAPS, node: int = 0, headers: Headers = ()) -> None:
        at = round(self.clock.now() * 1000) * 1000  # Kafka's time has milliseconds
        key = b"%d" % node
        one = Record(topic=topic, key=key, value=value, headers=headers, partition=node % 2, timestamp_us=at)
        self.broker.append(one)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 100)):
            self.worker.step()
            self.clock.sleep(0.01)

    def archived(self, folder: Path, changed: Callable[[Record], Record] = lambda record: record) -> FolderStore:
        """Return an archive of all that is on the bus."""
        names = [name for name in ICD.topics if self.broker.read(name)]
        copied = MemoryLog({name: self.broker.partitions[name] for name in names})
        for name in names:
            for record in self.broker.read(name):
                copied.append(changed(record))
        archive(copied, store := FolderStore(folder), *names)
        return store

    # As a replay writes

    def copy(self, columns: PartitionColumns) -> None:
        for record in columns.records():
            self.broker.append(record)

    def poll(self, timeout: float = 0.0) -> None:
        pass

    def flush(self, timeout: float) -> bool:
        return True


def buffer(node: int, at_us: int) -> bytes:
    return b'{"schema":"receive-buffer/1","node":%d,"time":%d,"fill":0.%d,"dropped":%d}' % (node, at_us, node + 1, node)


@cache
def night() -> Bus:
    """Play some seconds of heaps with all kinds of faults, and of other reports."""
    bus = Bus(BASE_US / 1e6)
    for tick in range(SECONDS * 50):
        node, at = tick % 4, tick / 50
        one = heap(node, tick // 4, at=at, latency=0.1 + tick / 3000, flagged_fraction=tick % 7 / 7, received=tick)
        if tick % 23 != 7:  # a gap
            bus.send(*encoded(one), node=node)
        if tick % 31 == 0:
            bus.send(*encoded(one), node=node)  # twice
        if tick % 41 == 0:
            bus.send(*encoded(heap(node, 9000 + tick, at=at - 11)), node=node)  # late
            bus.send(*encoded(heap(node, 8000 + tick, at=at + 6)), node=node)  # ahead of the time
            bus.send((b"{}", b"\xff", None, *encoded(heap(99)))[tick // 41 % 4], node=node)
        if tick % 60 == 30:
            many = columnar([heap(node, 5000 + tick + row, at=at + row / 1000, latency=row / 7) for row in range(20)])
            many = summed(many) if tick % 120 == 30 else many
            bus.send(many.value, node=node, headers=many.headers)
        if tick % 10 == 0:
            bus.send(buffer(node, BASE_US + round(at * 1e6)), topic=BUFFERS, node=node)
        bus.run(0.02)
    bus.run(2)
    return bus


TIMES = START, START + HOUR


def replayed(store: Store, *only: str, limits: BatchLimits | None = None) -> Bus:
    """Play an archive at once, a day later, and cut transactions elsewhere than the original did."""
    bus = Bus(BASE_US / 1e6 + 86400, limits or BatchLimits(batch=37, interval=0.03, behind=1))
    plan = plan_replay(store, ICD, *TIMES, prefix="replay.", only=only)
    play(store, plan, bus, bus.clock, report=lambda *_: None)
    bus.run(3)
    return bus


def found(comparison: ArchiveComparison) -> dict[str, tuple[int, int]]:
    return {kind.name: (kind.compared, kind.differing) for kind in comparison.kinds}


def differences(comparison: ArchiveComparison) -> list[str]:
    return [one for kind in comparison.kinds for one in kind.differences]


# A night and its replay


def test_a_replay_gives_the_same_windows_however_its_transactions_are_cut(tmp_path: Path) -> None:
    original = night()
    store = original.archived(tmp_path / "night")
    again = replayed(store)
    assert len(again.broker.read(SUMMARY)) != len(original.broker.read(SUMMARY)), "cut elsewhere"
    for topic in STREAMS:
        assert again.broker.read(topic) == original.broker.read(topic), "key, headers, value, partition, offset, time"
    comparison = compare(store, again.archived(tmp_path / "replay"), ICD)
    assert differences(comparison) == []
    counts = {name: compared for name, (compared, _) in found(comparison).items()}
    assert counts[f"windows of {HEAPS}"] > 4 * SECONDS, "also those of late records"
    assert counts[f"windows of {BUFFERS}"] >= 2 * SECONDS
    assert counts["balances"] == 2
    third = replayed(store, limits=BatchLimits(batch=5, interval=0.02, behind=1)).archived(tmp_path / "third")
    assert compare(store, third, ICD).digest == comparison.digest
    letters = [[one.value for one in bus.broker.read("dead-letters")] for bus in (original, again)]
    assert letters[0]
    assert sorted(letters[0], key=repr) == sorted(letters[1], key=repr)


def test_a_changed_value_is_named_with_both_values(tmp_path: Path) -> None:
    bus = night()
    store = bus.archived(tmp_path / "night")
    place = next(
        (record.partition, record.offset)
        for record in bus.broker.read(SUMMARY)
        if record.value and b'"latency"' in record.value
    )

    def spoil(record: Record) -> Record:
        if (record.topic, record.partition, record.offset) != (SUMMARY, *place):
            return record
        summary = msgspec.json.decode(record.value or b"", type=RackSummary)
        (columns,) = [columns for name, columns in summary.fields.items() if name == "latency"]
        assert columns.max is not None
        columns.max[summary.late.index(False)] = 77.5
        return replace(record, value=msgspec.json.encode(summary))

    comparison = compare(store, bus.archived(tmp_path / "spoiled", spoil), ICD)
    (difference,) = differences(comparison)
    assert difference.startswith(f"{HEAPS}, node ")
    assert ", window 2027-01-15T08:00:0" in difference
    assert "latency.max: 0." in difference
    assert difference.endswith("in A, 77.5 in B")
    assert found(comparison)[f"windows of {HEAPS}"][1] == 1
    done = CliRunner().invoke(app, ["archive", "compare", str(tmp_path / "night"), str(tmp_path / "spoiled")])
    assert done.exit_code == 1
    assert f"differs: {difference}" in done.output


def test_what_only_one_archive_has_differs(tmp_path: Path) -> None:
    bus = night()
    a, b = bus.archived(tmp_path / "a"), replayed(bus.archived(tmp_path / "c"), HEAPS).archived(tmp_path / "b")
    kinds = {kind.name: kind for kind in compare(a, b, ICD).kinds}
    assert kinds[f"windows of {BUFFERS}"].note == "not compared: only A has the topic"
    assert kinds[f"windows of {HEAPS}"].differing == 0
    log = MemoryLog({HEAPS: 1, SUMMARY: 1, BUFFERS: 1})
    for topic in (HEAPS, BUFFERS):  # no worker took them
        log.append(Record(topic=topic, key=None, value=b"", partition=0, timestamp_us=START))
    archive(log, empty := FolderStore(tmp_path / "empty"), HEAPS, BUFFERS)
    comparison = compare(empty, a, ICD)
    assert found(comparison).pop("balances") == (0, 0)
    assert all(compared == differing > 0 for name, (compared, differing) in found(comparison).items() if compared)
    assert len(differences(comparison)) == 20, "ten of each kind"
    assert all(one.endswith(": only in B") for one in differences(comparison))
    with pytest.raises(ConfigError, match="got none in common"):
        compare(empty, empty, ICD)


def test_a_replay_without_a_kind_of_results_is_not_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is equal: the replay has lost the tables, neither has balances, and a message is broken."""
    acks, tables = [("command-acks", ack("1", "COMPLETED"))], [("tables", table("p"))]
    a = archive_of(tmp_path / "a", *acks, *tables, ("alert-state", alarm("x")))
    comparison = compare(a, archive_of(tmp_path / "b", *acks, ("command-acks", b"{}")), ICD)
    assert differences(comparison) == []
    needed = ("command outcomes", "balances")
    left = uncompared(comparison, needed, without=["alarm states"])
    assert left == [
        "balances: expected results to compare, got none",
        "tables: not compared: only A has the topic",
        "expected records that can be decoded, got 0 and 1 others",
    ]
    assert uncompared(compare(a, a, ICD), needed[:1]) == []

    def played(speed: str, needed: Sequence[str]) -> tuple[ArchiveComparison, list[str]]:
        return comparison, uncompared(comparison, needed)

    monkeypatch.setattr(archiving, "RecordedNight", lambda *_: Mock(replay=played))
    scenario = archiving.ArchiveScenario(Mock(**{"options.controller": True, "options.logs": False}), Mock())
    assert [line[1:] for line in scenario._play_again()] == [(0, 0), (0, 5)]


def test_windows_of_a_time_are_compared(tmp_path: Path) -> None:
    store = night().archived(tmp_path / "night")
    comparison = compare(store, store, ICD, START + SECOND, START + 3 * SECOND)
    assert found(comparison) == {f"windows of {HEAPS}": (8, 0), f"windows of {BUFFERS}": (4, 0), "balances": (0, 0)}
    assert {kind.note for kind in comparison.kinds} == {
        "without late records, which belong to no window",
        "not compared: it is about offsets, not about a time",
    }
    assert {kind.note for kind in compare(store, store, ICD).kinds} == {""}


@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_of_equally_new_values_the_last_one_on_the_log_counts(tmp_path: Path, pause: float) -> None:
    bus = Bus(BASE_US / 1e6)
    for seq, channel in enumerate((5, 9, 3)):
        bus.send(*encoded(heap(1, seq, channel_start=channel)), node=1)
        bus.run(pause)
    bus.run(2)
    store = bus.archived(tmp_path / "night")
    again = replayed(store).archived(tmp_path / "replay")
    assert differences(compare(store, again, ICD)) == []


# Other results


def put(log: MemoryLog, topic: str, message: msgspec.Struct | bytes | None, at_us: int = START, **more: Any) -> None:
    value = msgspec.json.encode(message) if isinstance(message, msgspec.Struct) else message
    log.append(Record(**{"topic": topic, "key": b"k", "value": value, "partition": 0, "timestamp_us": at_us, **more}))


def ack(name: str, status: Any, **more: Any) -> CommandAck:
    about = {"device": "mid-sdp/subarray/01", "command": "Scan", "time": START, "origin": "c"}
    return CommandAck(**about | {"id": name, "status": status, **more})


def table(product: str, digest: str = "0", **more: Any) -> Table:
    about = {"kind": "gains", "content_type": "x/y", "state": "COMPLETE", "size": 4, "received": 4}
    about |= {"table": "t", "product": product, "sha256": digest * 64, "sent_at": START, "time": START}
    return Table(**about | more)


def alarm(condition: str, **more: Any) -> AlertState:
    return AlertState(**{"condition": condition, "source": "s", "state": "UNACK", "through": 1} | more)


def archive_of(folder: Path, *messages: tuple[str, Any]) -> FolderStore:
    log = MemoryLog(dict.fromkeys({topic for topic, _ in messages}, 1))
    for topic, message in messages:
        put(log, topic, message)
    archive(log, store := FolderStore(folder), *{topic for topic, _ in messages})
    return store


def test_outcomes_tables_and_alarms_are_compared(tmp_path: Path) -> None:
    acks, tables, alarms = "command-acks", "tables", "alert-state"
    a = archive_of(
        tmp_path / "a",
        *((acks, one) for one in (ack("1", "ACCEPTED"), ack("1", "COMPLETED"), ack("1", "TIMED_OUT"))),
        *((acks, one) for one in (ack("2", "FAILED", text="no"), ack("3", "ACCEPTED"), None, b"{}")),
        *((tables, one) for one in (table("p", state="ASSEMBLING", received=1), table("p"), table("q", "1"))),
        *((alarms, one) for one in (alarm("x"), alarm("x", text="b"), alarm("y"))),
    )
    b = archive_of(
        tmp_path / "b",
        *((acks, one) for one in (ack("1", "COMPLETED", time=START + 1, progress=9), ack("2", "COMPLETED"))),
        *((tables, one) for one in (table("p", time=START + HOUR, partition=3), table("q", "2"))),
        *((alarms, one) for one in (alarm("x", text="b", through=9), alarm("y", severity="ALARM"))),
    )
    comparison = compare(a, b, ICD)
    assert found(comparison) == {"command outcomes": (3, 2), "alarm states": (2, 1), "tables": (3, 2)}
    assert differences(comparison) == [
        'command 2: status: "FAILED" in A, "COMPLETED" in B',
        'command 2: text: "no" in A, "" in B',
        "command 3: only in A",
        'alarm y@s: severity: "INFO" in A, "ALARM" in B',
        f"table of q with digest {'1' * 64}: only in A",
        f"table of q with digest {'2' * 64}: only in B",
    ]
    assert comparison.undecoded == (1, 0)
    assert [*found(compare(a, archive_of(tmp_path / "c", (acks, ack("1", "ACCEPTED"))), ICD)).values()][1:] == [
        (0, 0)
    ] * 2


def test_alarms_are_compared_as_they_were_at_the_end_of_the_time(tmp_path: Path) -> None:
    later = alarm("x", state="NORM", changed_at=START + SECOND)
    a = archive_of(tmp_path / "a", ("alert-state", alarm("x", changed_at=START)), ("alert-state", later))
    b = archive_of(tmp_path / "b", ("alert-state", alarm("x", changed_at=START)))
    assert found(compare(a, b, ICD, START, START + SECOND)) == {"alarm states": (1, 0)}
    assert differences(compare(a, b, ICD)) == ['alarm x@s: state: "NORM" in A, "UNACK" in B']


def test_a_time_that_ends_before_it_begins_is_refused(tmp_path: Path) -> None:
    """Only the states of alarms before its end were compared, and nothing differed."""
    archive_of(tmp_path / "a", ("alert-state", alarm("x")), ("command-acks", ack("1", "COMPLETED")))
    times = ["--from", "2027-01-16", "--to", "2027-01-15T12:00"]
    done = CliRunner().invoke(app, ["archive", "compare", *[str(tmp_path / "a")] * 2, *times])
    assert "--from, --to: expected a begin before the end" in str(done.exception)


def test_a_balance_that_differs_is_named(tmp_path: Path) -> None:
    def account(stream: str, **more: Any) -> tuple[str, StreamAccount]:
        about = {"worker": "w", "partition": 0, "time": START, "offset_from": 0, "offset_to": 1, "high_watermark": 1}
        about |= dict.fromkeys(("consumed", "used", "late", "suppressed", "dead_lettered", "in_flight"), 0)
        return "accounts", StreamAccount(**about | {"stream": stream, "reasons": {}} | more)

    bad = {"dead_lettered": 1, "reasons": {"invalid": 1}}
    idle = account("metrics", partition=-1)
    a = archive_of(tmp_path / "a", account(HEAPS, consumed=2, used=1, **bad), account(HEAPS, consumed=1, used=1), idle)
    b = archive_of(tmp_path / "b", account(HEAPS, consumed=3, used=2, dead_lettered=1, reasons={"odd": 1}))
    comparison = compare(a, b, ICD)
    assert found(comparison) == {"balances": (1, 1)}
    assert differences(comparison) == [
        f"balance of {HEAPS}: reason invalid: 1 in A, nothing in B",
        f"balance of {HEAPS}: reason odd: nothing in A, 1 in B",
    ]


def test_sums_of_logs_do_not_depend_on_the_transactions(tmp_path: Path) -> None:
    def counted(count: int, oldest: int, newest: int) -> LogCount:
        return LogCount("flagger", 5, count, oldest, newest, host="n7", rack="r01")

    def summary(first: int, **more: Any) -> tuple[str, LogSummary]:
        about = {"worker": "w", "stream": "logs", "partition": 0, "log": "", "part": 0}
        return "logs.summary", LogSummary(**about | {"offset_from": first, "offset_to": first + 9} | more)

    def metric(at: int, value: float) -> NodeMetric:
        return NodeMetric("n7", "cpu", at, value)

    def shipped(*runs: tuple[int, int]) -> list[ShipperSequence]:
        return [ShipperSequence("n7", [*runs])]

    parts = (
        summary(0, counts=[counted(3, 10, 20)], sequences=shipped((1, 2), (4, 4)), metrics=[metric(10, 0.1)]),
        summary(9, counts=[counted(2, 5, 15)], sequences=shipped((5, 6)), metrics=[metric(15, 0.2)]),
    )
    a = archive_of(tmp_path / "a", *parts)
    about = {"sequences": shipped((1, 2), (4, 6)), "metrics": [metric(15, 0.2)]}
    b, c = (archive_of(tmp_path / f"{n}", summary(0, counts=[counted(n, 5, 20)], **about)) for n in (5, 6))
    assert found(compare(a, b, ICD)) == {"sums of logs": (3, 0)}
    assert differences(compare(a, c, ICD)) == ["logs, r01 n7 flagger, severity 5: count: 5 in A, 6 in B"]


def test_sums_may_differ_in_their_last_digits_only(tmp_path: Path) -> None:
    def summary(folder: str, total: float) -> FolderStore:
        text = (
            b'{"schema":"ingest-summary/1","worker":"w","partition":0,"node":1,"partials":[{"epoch":1,"window":%d,'
            b'"late":false,"count":2,"time_min":1,"time_max":2,"runs":[],"fields":{"latency":{"sum":%.17g}}}]}'
        ) % (START, total)
        return archive_of(tmp_path / folder, (SUMMARY, text))

    original = summary("a", 0.3)
    alike, other = (compare(original, summary(str(one), one), ICD) for one in (0.1 + 0.2, 0.3 + 1e-8))
    assert (differences(alike), alike.digest) == ([], compare(original, original, ICD).digest)
    assert [one.partition("latency.sum: ")[2] for one in differences(other)] == ["0.3 in A, 0.30000001 in B"]


# What is played


def test_inputs_are_what_programs_of_sdp_write() -> None:
    found = set(inputs(ICD))
    wanted = {HEAPS, BUFFERS, "state", "commands", "command-acks", "alerts", "alert-packets", "calibration", "quality"}
    wanted |= {"orders", "alert-actions", "settings"}  # people do this, and device servers write it down
    assert wanted <= found
    derived = {SUMMARY, SHARED, "accounts", "positions", "snapshots", "tables", "alert-state", "dead-letters"}
    assert not found & (derived | {"heartbeats", "logs.summary"})


@dataclass
class Copies:
    """Takes records, and says when, by the clock of the test."""

    clock: ManualClock
    fails: int = 0
    unknown: bool = False

    def __post_init__(self) -> None:
        self.taken: list[tuple[float, Record]] = []
        self.failed = 0

    def copy(self, columns: PartitionColumns) -> None:
        self.taken.extend((self.clock.now(), record) for record in columns.records())

    def poll(self, timeout: float = 0.0) -> None:
        self.failed = self.fails

    def flush(self, timeout: float) -> bool:
        self.poll()
        return not self.unknown


def states(folder: Path, *times_us: int) -> FolderStore:
    log = MemoryLog({"state": 1, "alerts": 1, "processing-blocks": 2})
    topics = "state", "alerts", "processing-blocks"
    for number, at in enumerate(times_us):
        topic = topics[number % 3]
        partition = number % 2 if number % 3 == 2 else 0
        put(log, topic, b"%d" % number, at, partition=partition, headers=(("h", b"\xff"),))
    archive(log, store := FolderStore(folder), *topics)
    return store


def planned(store: Store, *only: str, prefix: str = "replay.", times: tuple[int, int] = TIMES) -> ReplayPlan:
    return plan_replay(store, ICD, *times, prefix=prefix, only=only)


def test_topics_are_merged_by_time_and_partitions_keep_their_order(tmp_path: Path) -> None:
    store = states(tmp_path, *(START + (number * 7 % 50) * 1000 * (number % 3 != 0) for number in range(300)))
    copies = Copies(ManualClock())
    plan = planned(store)
    assert play(store, plan, copies, copies.clock, report=lambda *_: None) == 300
    records = [record for _, record in copies.taken]
    for topic in plan.inputs:
        for partition in (0, 1):
            assert [one for one in records if (one.topic, one.partition) == (topic, partition)] == [
                one for one in read_records(store, topic, *TIMES) if one.partition == partition
            ]
    of_states = [number for number, one in enumerate(records) if one.topic == "state"]
    assert of_states == [*range(100)], "the oldest come first"
    offsets = [one.offset for one in records if (one.topic, one.partition) == ("processing-blocks", 1)]
    assert offsets == [*range(50)], "also where times go back"


@pytest.mark.parametrize(("speed", "wanted"), [(1.0, [0, 5, 9]), (10.0, [0, 0.5, 0.9]), (math.inf, [0, 0, 0])])
def test_records_come_at_their_pace_and_the_progress_is_told(tmp_path: Path, speed: float, wanted: list[float]) -> None:
    store = states(tmp_path, *(START + second * SECOND for second in (60, 65, 69)))
    copies, told = Copies(ManualClock()), []
    began = copies.clock.now()
    play(store, planned(store), copies, copies.clock, speed=speed, report=lambda *said: told.append(said))
    assert [at - began for at, _ in copies.taken] == pytest.approx(wanted)
    assert [said[:2] for said in told][-1] == (START + 69 * SECOND, 3)
    assert len(told) == {1.0: 4 + 1}.get(speed, 1)


def test_a_record_that_is_not_confirmed_ends_the_replay_with_an_error(tmp_path: Path) -> None:
    store = states(tmp_path, START, START + SECOND)
    for copies in (Copies(ManualClock(), fails=1), Copies(ManualClock(), unknown=True)):
        with pytest.raises(BusError, match="not confirmed"):
            play(store, planned(store), copies, copies.clock, report=lambda *_: None)


def test_alerts_of_packets_are_left_to_the_worker_that_makes_them(tmp_path: Path) -> None:
    log = MemoryLog({"alerts": 1, "alert-packets": 1})
    put(log, "alerts", b"own")
    put(log, "alerts", b"of a packet", headers=(("packet", b"l/0/0"),))
    put(log, "alert-packets", b"packet")
    archive(log, store := FolderStore(tmp_path), "alerts", "alert-packets")

    def values(*only: str) -> set[bytes | None]:
        copies = Copies(ManualClock())
        play(store, planned(store, *only), copies, copies.clock, report=lambda *_: None)
        return {record.value for _, record in copies.taken}

    assert values() == {b"own", b"packet"}
    assert values("alerts") == {b"own", b"of a packet"}


def test_topics_keep_the_time_of_records_and_all_records(tmp_path: Path) -> None:
    log = MemoryLog({HEAPS: 5, "alerts": 1})
    put(log, HEAPS, b"{}", partition=4)
    put(log, "alerts", b"{}")
    archive(log, store := FolderStore(tmp_path), HEAPS, "alerts")
    topics = planned(store).topics
    assert topics.keys() == ICD.topics.keys()
    assert (topics[HEAPS].partitions, topics[SUMMARY].partitions) == (5, ICD.topics[SUMMARY].partitions)
    settings = {name: broker_settings(topic) for name, topic in topics.items()}
    assert {one["retention.ms"] for one in settings.values()} == {"-1"}
    kept = {name for name, one in settings.items() if one["message.timestamp.type"] == "CreateTime"}
    assert {*inputs(ICD)} <= kept
    assert SUMMARY not in kept, "readers judge silence by it"


def test_the_newest_record_may_be_before_the_clock_of_a_broker_went_back(tmp_path: Path) -> None:
    log, store = MemoryLog({"state": 1}), FolderStore(tmp_path)
    for seconds in (50, 20):
        put(log, "state", b"%d" % seconds, START + seconds * SECOND)
        archive(log, store, "state")
    assert len(store.names()) == 2
    copies, plan = Copies(ManualClock()), planned(store)
    assert plan.end_us == START + 50 * SECOND + 1000
    assert play(store, plan, copies, copies.clock, report=lambda *_: None) == 2


# What is refused


@pytest.mark.parametrize(
    ("times", "only", "prefix", "what"),
    [
        ((START - 1, START + HOUR), (), "replay.", "both within the archive, which is from 2027-01-15T08:00"),
        ((START, START + HOUR + 1), (), "replay.", "both within the archive"),
        ((START + 1, START + 1), (), "replay.", "a begin before the end"),
        ((START + 2 * SECOND, START + HOUR), (), "replay.", "expected records to play"),
        (TIMES, (), "test.", "not the one of the archive's deployment, got 'test.'"),
        (TIMES, (), "", "SDP_TOPIC_PREFIX"),
        (TIMES, ("quality",), "replay.", "nothing of it is in the archive"),
        (TIMES, (SUMMARY,), "replay.", "no program of SDP writes it"),
    ],
)
def test_a_plan_is_refused(tmp_path: Path, times: tuple[int, int], only: Sequence[str], prefix: str, what: str) -> None:
    store = states(tmp_path, START, START + SECOND)
    with pytest.raises(ConfigError, match=what):
        planned(store, *only, prefix=prefix, times=times)


def test_damaged_files_of_another_month_do_not_refuse_a_night(tmp_path: Path) -> None:
    summary = b'{"schema":"ingest-summary/1","worker":"w","partition":0,"node":1,"partials":[]}'
    log, store = MemoryLog({"state": 1, SUMMARY: 1}), FolderStore(tmp_path)
    for hour in (0, 700, 1400, 1401):
        put(log, "state", b"%d" % hour, START + hour * HOUR)
        put(log, SUMMARY, summary, START + hour * HOUR)
    archive(log, store, "state", SUMMARY)
    times = START + 700 * HOUR, START + 701 * HOUR
    for name in store.names("state"):
        if name.endswith(("00.parquet", "02.parquet")):
            (tmp_path / name).write_bytes(b"damaged")
    copies = Copies(ManualClock())
    assert play(store, planned(store, times=times), copies, copies.clock, report=lambda *_: None) == 1
    (first,) = (name for name in store.names(SUMMARY) if name.endswith("00.parquet"))
    (tmp_path / first).write_bytes(b"damaged")
    decode = BatchDecoder(IngestSummary).decode_one
    assert len([*comparing._Side(store, ICD, *times)._decoded(SUMMARY, decode)]) == 3, "written then or later"


def at_brokers(plan: ReplayPlan, names: Iterable[str], **changes: str) -> dict[str, FoundTopic]:
    def settings(name: str) -> dict[str, str]:
        return {"min.insync.replicas": "1", **broker_settings(plan.topics[name]), **changes}

    return {
        name: FoundTopic(partitions=plan.topics[name].partitions, replicas=1, settings=settings(name)) for name in names
    }


def test_only_empty_topics_that_a_replay_made_are_written(tmp_path: Path) -> None:
    plan = planned(states(tmp_path, START, START + SECOND), "alerts")
    found = at_brokers(plan, plan.topics)
    used, empty = ({name: Extent(name, {0: (0, end)})} for name, end in (("state", 7), ("alerts", 0)))
    require_place(plan, "replay.", {}, {}, 1)
    require_place(plan, "replay.", found, used | empty, 1)  # another topic may be played later
    with pytest.raises(ConfigError, match=r"replay\.alerts: expected no records"):
        require_place(plan, "replay.", found, {"alerts": Extent("alerts", {0: (0, 7)})}, 1)
    for changes in ({"message.timestamp.type": "LogAppendTime"}, {"retention.ms": "3600000"}):
        made = at_brokers(plan, ["state"], **changes)
        with pytest.raises(ConfigError, match=r"replay\.state: expected no topics, .*choose a new SDP_TOPIC_PREFIX"):
            require_place(plan, "replay.", made, {}, 1)


def test_the_check_of_the_bus_knows_topics_of_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(states(tmp_path, START, START + SECOND))
    for replay, wanted in ((False, [("FAILED", "a replay of an archive has made them")]), (True, [])):
        icd = used_by(settings := Settings(replay=replay), ICD)
        monkeypatch.setattr(bus.brokers, "inspect_topics", lambda *_, icd=icd: at_brokers(plan, icd.topics))
        said = bus._topics(Connection(settings), icd, settings, {}, {})
        assert [(one.level, one.text) for one in said if one.level != "NOTE"] == wanted


def test_a_folder_with_a_space_is_one_word_of_the_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"KAFKA_BOOTSTRAP": "127.0.0.1:1", "SDP_TOPIC_PREFIX": "replay."}.items():
        monkeypatch.setenv(name, value)
    for name in (
        "inspect_topics",
        "KafkaTopicWatch",
        "require_place",
        "create_topics",
        "KafkaStreamWriter",
        "KafkaBus",
    ):
        monkeypatch.setattr(replay_cli, name, Mock())
    monkeypatch.setattr(replay_cli, "play", lambda *_, **__: 1)
    states(place := tmp_path / "my archive", START, START + SECOND)
    times = ["--from", utc_text(START), "--to", utc_text(START + SECOND)]
    done = CliRunner().invoke(app, ["archive", "replay", str(place), *times], catch_exceptions=False)
    assert f"archive compare '{place}' FOLDER" in done.output.replace("\n", "")


@pytest.mark.parametrize("speed", ["0", "-1", "fast", "inf", "nan", ""])
def test_odd_speeds_are_refused(tmp_path: Path, speed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "127.0.0.1:1")
    words = ["archive", "replay", str(tmp_path), "--from", "2027-01-15", "--to", "2027-01-16", "--speed", speed]
    assert "--speed: expected a number above 0, or max" in str(CliRunner().invoke(app, words).exception)


def test_a_step_longer_than_a_day_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setattr(replay_cli, "newest_position", lambda bus: None)
    said = [f"{CliRunner().invoke(app, ['archive', 'replay-control', 'step', one]).exception}" for one in ("1d", "2d")]
    assert ["LENGTH: expected at most 1d" in one for one in said] == [False, True]


def test_before_a_comparison_it_is_said_which_alarm_states_differ() -> None:
    said = " ".join(CliRunner().invoke(app, ["archive", "compare", "--help"]).output.split())
    assert "differ if its device servers ran without SDP_REPLAY=true" in said
