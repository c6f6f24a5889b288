"""Columnar batches in the worker: what is counted, what is set aside, and what of it goes back."""

import gc
import json
from dataclasses import replace

import msgspec
import pytest

from facade.admin.redrive import RedriveFate, Selection, accounted, plan, put_back
from facade.flows.telemetry.reduce import Together
from facade.flows.telemetry.worker import BatchLimits
from facade.kernel.bus.dead_letters import original
from facade.kernel.bus.port import Record
from facade.sdp.messages import StreamAccount
from facade.sdp.stream_accounts import WorkerAccounts
from tests.flows.test_worker import ICD, broker, clock, totals, used_by_node, work, worker
from tests.support.columnar import CONSTANTS, columnar, stream
from tests.support.heaps import heap

__all__ = ["broker", "clock"]

HEAPS = [heap(node=1, seq=i, at=i / 100) for i in range(50)]
GOOD = columnar(HEAPS)


def letters(broker):
    return [({k: v.decode() for k, v in one.headers}, original(one)) for one in broker.read("dead-letters")]


def test_accounts_count_notifications(broker):
    """Of two batches and a record of JSON; the entries are believed by whoever adds them up."""
    for record in (GOOD, GOOD, Record(topic="ingest.heaps", key=b"1", value=json.dumps(HEAPS[0]).encode())):
        broker.append(record)
    work(broker, worker(broker))
    found = totals(broker)
    assert (found["consumed"], found["used"]) == (101, 101)
    assert used_by_node(broker) == {1: 101}
    accounts = WorkerAccounts()
    for entry in broker.read("accounts"):
        accounts.fold(entry, count=True)
    assert accounts.streams["ingest.heaps"].account.consumed == 101
    assert accounts.streams["ingest.heaps"].account.balance == 0


@pytest.mark.parametrize(("rows_behind", "commits"), [(1000, True), (100, False)])
def test_of_batches_more_may_wait_until_a_worker_is_behind(broker, rows_behind, commits):
    """Its windows would come a second later, though it takes what waits within a moment."""
    for begin in range(0, 300, 10):
        broker.append(columnar([heap(node=1, seq=i, at=i / 100) for i in range(begin, begin + 10)]))
    done = []
    limits = {"behind": 5, "behind_rows": rows_behind, "interval": 0.05, "behind_interval": 0.5, "rows": 1}
    work(broker, worker(broker, lambda: done.append(1), **limits), 0.3)
    assert bool(done) == commits


def test_a_bad_row_is_a_dead_letter_of_its_own(broker):
    """It is JSON with its number; its neighbours count; mended or not, it goes back as a record of JSON."""
    rows = [
        HEAPS[0],
        HEAPS[1] | {"latency": float("nan")},
        HEAPS[2] | {"lost": None},
        HEAPS[3] | {"latency": -1.0},
        HEAPS[4],
    ]
    broker.append(replace(columnar(rows), headers=(*columnar(rows).headers, ("traceparent", b"t"), ("frame", b"{}"))))
    work(broker, worker(broker))
    found = totals(broker)
    assert (found["consumed"], found["used"], found["dead_lettered"], found["reason schema"]) == (5, 2, 3, 3)
    said = letters(broker)
    assert [one["dl.row"] for one, _ in said] == ["1", "2", "3"]
    assert [one["dl.path"] for one, _ in said] == ["$.latency", "$.lost", "$.latency"]
    whole = [json.loads(record.value) for _, record in said]
    assert whole == [rows[1] | {"latency": None}, rows[2], rows[3]]
    assert [record.headers for _, record in said] == [(("traceparent", b"t"),)] * 3
    everything = broker.read("dead-letters")
    redrive = plan(everything, ICD, Selection())
    assert {fate for *_, fate in redrive.counts} == {RedriveFate.PUT_BACK}
    assert len(redrive.chosen) == 3
    for one in [one for letter in everything for one in put_back(letter)]:
        broker.append(one)
    assert {fate for *_, fate in plan(broker.read("dead-letters"), ICD, Selection()).counts} == {RedriveFate.DONE}


REFUSED = {
    "bytes": (replace(GOOD, value=GOOD.value[:-100]), "arrow", "$"),
    "rows": (columnar(HEAPS, rows=49), "rows", "headers.batch.rows"),
    "message": (columnar(HEAPS, message="heap/2"), "version", "headers.batch.message"),
    "a column too few": (replace(GOOD, value=stream({"seq": [1] * 50})), "columns", "$"),
    "both": (columnar(HEAPS, constants_of={"seq": 1}), "columns", "$.seq"),
    "time as a constant": (columnar(HEAPS, constants=(*CONSTANTS, "time")), "columns", "headers.batch.constants.time"),
    "a fraction for a number": (columnar(HEAPS, constants_of={"node": 1.5}), "schema", "headers.batch.constants.node"),
    "no such node": (columnar(HEAPS, constants_of={"node": 77}), "unknown-node", "$.node"),
    "floats for integers": (columnar(HEAPS, types={"lost": "float64"}), "columns", "$.lost"),
    "a base of nothing": (columnar(HEAPS, bases_of={"latency": 1}), "columns", "headers.batch.bases.latency"),
}


@pytest.mark.parametrize(("record", "reason", "path"), REFUSED.values(), ids=REFUSED)
def test_a_batch_that_cannot_be_read_counts_what_it_claims(broker, record, reason, path):
    """It is one dead letter, whole; the batches and records beside it are used."""
    for one in (GOOD, replace(record, key=b"1"), GOOD):
        broker.append(one)
    work(broker, worker(broker))
    claimed = msgspec.json.decode(dict(record.headers)["batch"])["rows"]
    found = totals(broker)
    assert (found["consumed"], found["used"], found["dead_lettered"]) == (100 + claimed, 100, claimed)
    ((said, letter),) = letters(broker)
    assert (said["dl.reason"], said["dl.path"], said["dl.count"]) == (reason, path, str(claimed))
    assert (letter.value, letter.headers) == (record.value, record.headers)
    (entry,) = accounted(broker.read("dead-letters"), 0)
    assert msgspec.json.decode(entry.value, type=StreamAccount).redriven == claimed


@pytest.mark.parametrize(
    "headers", [(), (("batch", b"{}"),), (("batch", b'{"schema":"batch/1","message":"heap/1","rows":65537}'),)]
)
def test_a_batch_without_a_header_that_can_be_read_counts_once(broker, headers):
    broker.append(replace(GOOD, headers=headers))
    work(broker, worker(broker))
    found = totals(broker)
    assert (found["consumed"], found["dead_lettered"]) == (1, 1)


def test_dead_letters_of_rows_are_bounded(broker):
    """Where the bad rows of a batch are too many for a transaction, it is set aside whole, and can be put back."""
    broker.append(columnar([*HEAPS, *(one | {"latency": -1.0} for one in HEAPS)]))
    work(broker, worker(broker, letters=49))
    ((said, letter),) = letters(broker)
    assert (said["dl.count"], said["dl.reason"], letter.value[:4]) == ("100", "schema", b"\xff\xff\xff\xff")
    assert totals(broker)["dead_lettered"] == 100
    assert totals(broker)["used"] == 0


def test_a_take_is_bounded_in_rows(broker):
    """After batches were seen, so many records are taken at once as have the rows wanted."""
    for _ in range(20):
        broker.append(GOOD)
    one = worker(broker, rows=200)
    work(broker, one)
    assert totals(broker)["used"] == 1000
    assert one._fold._most == 4
    assert BatchLimits().rows <= 1_000_000


def test_what_was_reduced_is_gone_at_once(broker):
    """The collector of cycles comes too rarely for columns: a worker grew by gigabytes."""
    for _ in range(20):
        broker.append(GOOD)
    gc.collect()
    gc.disable()
    try:
        work(broker, worker(broker, rows=200))
        assert not [one for one in gc.get_objects() if isinstance(one, Together)]
    finally:
        gc.enable()
