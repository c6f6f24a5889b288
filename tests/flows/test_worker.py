"""The worker on the simulation's brokers: every record in exactly one place, whatever goes wrong around it."""

import itertools
import json
import random
from collections import Counter, defaultdict
from itertools import pairwise

import jsonschema
import msgspec
import pytest

from facade.flows.telemetry.plan import plan, windowed
from facade.flows.telemetry.simulator.garbage import GARBAGE
from facade.flows.telemetry.worker import BatchLimits, telemetry_worker
from facade.kernel.bus.dead_letters import original
from facade.kernel.bus.port import Aborted, Record, Revoked
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.runtime import metrics
from facade.kernel.runtime.accounts import AccountEntry
from facade.kernel.runtime.worker import TransactionalWorker
from facade.sdp.messages import RackSummary
from tests.support.heaps import BASE_US, encoded, heap
from tests.support.simulated_bus import MemoryBroker, MemoryTransactionalLog
from tests.support.summaries import partials

ICD = load()
NOW = BASE_US / 1e6 + 1.0
PLAN = plan(ICD, "ingest.heaps")
NODES = 4


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def broker(clock: ManualClock) -> MemoryBroker:
    return MemoryBroker(clock)


def worker(broker, fault=lambda: None, **limits) -> TransactionalWorker:
    log = MemoryTransactionalLog(broker, "ingest.heaps", group="aggregate", fault=fault)
    return telemetry_worker(log, ICD, Settings(nodes=NODES), slot="0", clock=broker.clock, limits=BatchLimits(**limits))


def send(broker, *values, node=0):
    for value in values:
        broker.append(Record(topic="ingest.heaps", key=str(node).encode(), value=value, partition=node % 2))


def work(broker, worker, seconds=1.0):
    until = broker.clock.monotonic() + seconds
    while broker.clock.monotonic() < until:
        worker.step()
        broker.clock.sleep(0.01)


def totals(broker):
    entries = [msgspec.json.decode(r.value, type=AccountEntry) for r in broker.read("accounts")]
    found = Counter()
    for entry in entries:
        for name in ("consumed", "used", "late", "suppressed", "dead_lettered"):
            found[name] += getattr(entry, name)
        found.update({f"reason {reason}": count for reason, count in entry.reasons.items()})
    return found


def used_by_node(broker):
    counts = Counter()
    for node, partial in partials([record.value for record in broker.read("ingest.summary")], PLAN):
        counts[node] += 0 if partial.late else partial.count
    return counts


def test_what_is_written_obeys_the_published_schemas(broker):
    """The wire forms in Python and the JSON Schemas that other languages use are the same."""
    send(broker, *encoded(*(heap(seq=i, at=i / 10) for i in range(20))), b"junk", None)
    work(broker, worker(broker), 2.0)
    seen = set()
    for record in broker.read("ingest.summary") + broker.read("accounts"):
        document = json.loads(record.value)
        name = document["schema"].partition("/")[0]
        jsonschema.validate(document, ICD.messages[name])
        seen.add(name)
    assert seen == {"rack-summary", "watermark", "stream-account"}


@pytest.mark.parametrize("kind", GARBAGE, ids=lambda kind: kind.name)
def test_a_bad_record_is_a_counted_result_and_hides_no_neighbour(broker, kind):
    """Design rule 1, for every kind of malformed record, first, last and in the middle."""
    good = encoded(*(heap(seq=i) for i in range(4)))
    bad = kind.make(encoded(heap(seq=99))[0])
    send(broker, bad, good[0], good[1], bad, bad, good[2], good[3], bad)
    work(broker, worker(broker))
    found = totals(broker)
    assert found["used"] == 4
    outcome = kind.outcome.replace("-", "_")
    assert (found["consumed"], found[outcome], found[f"reason {kind.reason}"]) == (8, 4, 4)
    letters = broker.read("dead-letters")
    if outcome == "suppressed":
        assert letters == []
        return
    assert [letter.value for letter in letters] == [bad] * 4
    assert [original(letter).offset for letter in letters] == [0, 3, 4, 7]
    headers = dict(letters[0].headers)
    assert headers["dl.topic"] == b"ingest.heaps"
    assert headers["dl.reason"].decode() == kind.reason
    assert headers["dl.path"].startswith(b"$")
    assert headers["dl.detail"]
    assert headers["dl.by"] == b"aggregate-0"


@pytest.mark.parametrize(("why", "pause"), [(Aborted, 5.0), (Revoked, 0.0)])
def test_it_pauses_after_a_failure_and_not_when_partitions_move(broker, why, pause):
    """A pause while partitions are dealt out would hold up all windows."""

    def fault():
        raise why("played")

    send(broker, *encoded(heap()))
    one = worker(broker, fault, retry=5.0, interval=0.0, longest_interval=0.0)
    before = broker.clock.monotonic()
    one.step()
    assert pause <= broker.clock.monotonic() - before < pause + 1.0


def test_a_planned_stop_commits_what_was_taken(broker):
    send(broker, *encoded(heap(seq=0), heap(seq=1)))
    one = worker(broker, interval=100.0)
    one.step()
    assert broker.read("ingest.summary") == []
    one.finish()
    assert totals(broker)["used"] == 2


def test_an_idle_worker_gives_a_sign_of_life_each_second(broker):
    work(broker, worker(broker), 5.05)
    entries = [msgspec.json.decode(r.value, type=AccountEntry) for r in broker.read("accounts")]
    counts = Counter((entry.stream, entry.partition) for entry in entries)
    others = {(topic, -1) for topic in windowed(ICD) if topic != "ingest.heaps"}
    assert counts.keys() == {("ingest.heaps", 0), ("ingest.heaps", 1), *others}
    assert all(4 <= count <= 6 for count in counts.values()), "with the first watermark, which comes at once"


def test_while_behind_transactions_are_longer(broker):
    """Throughput counts then, not latency: fewer commits for the same records."""
    send(broker, *encoded(*(heap(seq=i) for i in range(300))))
    commits = []
    one = worker(broker, lambda: commits.append(1), batch=10, behind=50, interval=0.05, behind_interval=0.5)
    work(broker, one, 0.4)
    assert not commits
    work(broker, one, 1.0)
    assert totals(broker)["used"] == 300


@pytest.mark.parametrize(
    ("nodes", "cells_per_second", "apart", "steps"),
    [(1, 40 / 3, 0.1, 400), (2, 40 / 3, 0.15, 400), (4, 40 / 3, 0.25, 400), (4, 2.0, 0.25, 400)],
)
def test_commits_of_many_groups_are_further_apart(broker, nodes, cells_per_second, apart, steps):
    """Each group of each transaction is work for all readers; but no client waits longer than 0.25 s for that."""
    commits = []
    one = worker(broker, lambda: commits.append(broker.clock.monotonic()), cells_per_second=cells_per_second)
    for seq in range(steps):
        for node in range(nodes):
            send(broker, *encoded(heap(node=node, seq=seq)), node=node)
        one.step()
        broker.clock.sleep(0.01)
    gaps = [after - before for before, after in pairwise(sorted(set(commits)))]
    assert len(gaps) > 10
    assert max(gaps[1:]) <= apart + 0.05, gaps
    closes = steps // 100 + 2
    assert sum(gap < apart - 0.001 for gap in gaps) <= closes, f"but for those that close a window each second: {gaps}"
    found = totals(broker)
    assert found["used"] + found["late"] >= 0.9 * nodes * steps, "they are in the totals, but for the open transaction"


def test_a_worker_with_many_groups_looks_ten_times_a_second_what_there_is_to_do(broker):
    """In a replay at ten times, a quarter of a second is 2.5 s of the night: half of the windows were not shown."""
    waits = []

    class Log(MemoryTransactionalLog):
        def take(self, limit, timeout):
            waits.append(timeout)
            return super().take(limit, timeout)

    log = Log(broker, "ingest.heaps", group="aggregate")
    limits = BatchLimits(cells_per_second=1)
    one = telemetry_worker(log, ICD, Settings(nodes=4), slot="0", clock=broker.clock, limits=limits)
    for seq in range(100):
        send(broker, *encoded(*(heap(node=node, seq=seq) for node in range(4))))
        one.step()
        broker.clock.sleep(0.01)
    assert 0.09 < max(waits) <= 0.1


def test_partials_of_one_rack_are_on_one_partition(broker):
    log = MemoryTransactionalLog(broker, "ingest.heaps", group="aggregate")
    one = telemetry_worker(log, ICD, Settings(nodes=8, rack_size=2), slot="0", clock=broker.clock)
    send(broker, *encoded(*(heap(node=n) for n in range(8))))
    work(broker, one)
    placed = defaultdict(set)
    for record in broker.read("ingest.summary"):
        if record.key.startswith(b"watermark/"):
            continue
        placed[record.partition].add(record.key)
        nodes = [node for node, _ in partials([record.value], PLAN)]
        assert not nodes or b"%d-%d" % (min(nodes), max(nodes)) == record.key
    assert placed == {0: {b"0-1"}, 1: {b"2-3"}, 2: {b"4-5"}, 3: {b"6-7"}}


def test_a_transaction_that_is_given_up_makes_no_count_go_down(broker, monkeypatch):
    """Prometheus would take it for a restart; what is not committed is a gauge of its own."""

    def exported():
        found = [sample for metric in registries[0].collect() for sample in metric.samples]
        samples = [sample for sample in found if sample.labels.get("stream") == "ingest.heaps"]
        counts = {(s.name, s.labels.get("outcome")): s.value for s in samples if s.name.endswith("_total")}
        open_now = sum(s.value for s in samples if s.name == "sdp_stream_uncommitted_records")
        return counts, open_now

    def fault():
        if next(faults):
            raise Aborted("played")

    registries, faults = [], itertools.cycle([False, True])
    one = worker(broker, fault, batch=5, retry=0.01)
    monkeypatch.setenv(metrics.VARIABLE, "1")
    monkeypatch.setattr("prometheus_client.start_http_server", lambda *_, registry, **__: registries.append(registry))
    wanted = metrics.MetricFamily("sdp_workers_wanted", "Of a kind.", ("worker",), lambda: {("w",): 3})
    metrics.serve_metrics(one.accounts, [wanted])
    assert registries[0].get_sample_value("sdp_workers_wanted", {"worker": "w"}) == 3.0
    before, most_open = exported()[0], 0
    for i in range(200):
        send(broker, *encoded(heap(seq=i)))
        one.step()
        counts, open_now = exported()
        assert all(counts[name] >= before[name] for name in before)
        assert one.accounts["ingest.heaps"].balance == 0
        before, most_open = counts, max(most_open, open_now)
        broker.clock.sleep(0.03)
    work(broker, one)
    counts, open_now = exported()
    assert most_open > 0 == open_now
    assert counts["sdp_stream_consumed_records_total", None] == 200
    assert counts["sdp_stream_outcome_records_total", "used"] == 200


def test_accounts_say_for_how_long_the_worker_was_busy(broker, monkeypatch):
    """Not while it waits for records, and with what its transactions take."""
    take, commit = MemoryTransactionalLog.take, MemoryTransactionalLog.commit

    def wait(log, limit, timeout):
        broker.clock.sleep(timeout)
        return take(log, limit, timeout)

    def slow(log, records):
        broker.clock.sleep(0.05)
        commit(log, records)

    monkeypatch.setattr(MemoryTransactionalLog, "take", wait)
    monkeypatch.setattr(MemoryTransactionalLog, "commit", slow)
    one = worker(broker, interval=0.1)
    for i in range(100):
        send(broker, *encoded(heap(seq=i)), node=i)
        one.step()
    entries = [msgspec.json.decode(r.value, type=AccountEntry) for r in broker.read("accounts")]
    busy = sum(entry.busy for entry in entries) / 1e6
    transactions = len({entry.time for entry in entries})
    assert transactions > 10
    assert 0.05 * (transactions - 2) <= busy <= 0.05 * transactions
    assert {entry.partition for entry in entries if entry.busy} == {0, 1}


def test_dead_letters_in_memory_are_bounded(broker):
    """Records that are kept whole make their transaction end early."""
    send(broker, *[b"x" * 1000] * 50)
    one = worker(broker, batch=5, limit_bytes=10_000, interval=100.0)
    for _ in range(10):
        one.step()
        assert one.accounts["ingest.heaps"].uncommitted <= 10
    assert one.accounts["ingest.heaps"].dead_lettered == 50


def chains(broker) -> dict[bytes, list[tuple[int, int]]]:
    """Return the offsets that the summaries of each rack stand for, of partition 0 of heaps."""
    found = defaultdict(list)
    for record in broker.read("ingest.summary"):
        if record.key.startswith(b"watermark/"):
            continue
        summary = msgspec.json.decode(record.value, type=RackSummary)
        if summary.partition == 0:
            assert summary.contiguous
            found[record.key].append((summary.offset_from, summary.offset_to))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_each_transaction_says_something_of_each_rack(broker, seed):
    """So a reader sees by the offsets that a summary was lost, also of a rack without records."""
    dice = random.Random(seed)

    def fault():
        if dice.random() < 0.3:
            raise Aborted("injected")

    for turn in range(20):
        log = MemoryTransactionalLog(broker, "ingest.heaps", group="aggregate", fault=fault)
        limits = BatchLimits(retry=0.01)
        one = telemetry_worker(log, ICD, Settings(nodes=4, rack_size=2), slot="0", clock=broker.clock, limits=limits)
        send(broker, *encoded(heap(seq=turn), heap(node=dice.randrange(4))), *[b"junk", None][: dice.randrange(3)])
        work(broker, one, seconds=0.5)
        log.close()
    found = chains(broker)
    assert found.keys() == {b"0-1", b"2-3"}
    for spans in found.values():
        assert len(spans) > 10
        assert all(before[1] == after[0] for before, after in pairwise(spans)), spans


def test_readers_are_told_in_silence_as_well(broker):
    """Nothing would show otherwise that the last summary was lost."""
    one = worker(broker)
    send(broker, *encoded(heap()))
    work(broker, one, seconds=35.0)
    (spans,) = chains(broker).values()
    assert spans[:1] == [(0, 1)] or spans[:2] == [(0, 0), (0, 1)]
    assert spans[-3:] == [(1, 1)] * 3
    assert len(spans) <= 5
