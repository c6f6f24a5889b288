"""The same notifications, as JSON and as columns, give the same partials, accounts and dead letters."""

import json
from collections import Counter
from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from facade.flows.telemetry.plan import plan
from facade.flows.telemetry.worker import BatchLimits, telemetry_worker
from facade.kernel.bus.dead_letters import original
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.sdp.batches import is_batch
from facade.sdp.messages import StreamAccount
from tests.support.columnar import columnar
from tests.support.examples import examples
from tests.support.heaps import BASE_US, encoded, heap
from tests.support.simulated_bus import MemoryBroker, MemoryTransactionalLog
from tests.support.summaries import partials

ICD = load()
PLAN = plan(ICD, "ingest.heaps")
PARTITIONS = {name: topic.partitions for name, topic in ICD.topics.items()}
TYPES = {
    "seq": "int64", "time": "int64", "received": "int64", "lost": "int64", "late": "int64",
    "channel_start": "int32", "channel_count": "int32", "flagged_fraction": "float64", "latency": "float64",
}  # fmt: skip

good = st.builds(
    heap,
    node=st.integers(0, 4),
    seq=st.integers(0, 40),
    at=st.floats(-20, 12, allow_nan=False),
    scan_id=st.integers(1, 2),
    received=st.integers(0, 2**31 - 1),
    flagged_fraction=st.floats(0, 1),
    latency=st.floats(0, 3600),
)
bad = st.one_of(
    st.builds(lambda one, lost: one | {"lost": lost}, good, st.sampled_from([-1, 2**31, 2**62, -(2**62)])),
    st.builds(lambda one, latency: one | {"latency": latency}, good, st.sampled_from([-1.0, 3601.0])),
    st.builds(lambda one, node: one | {"node": node}, good, st.sampled_from([-1, 10_000])),
)


def work(records, **limits):
    """Return what a worker makes of some records: counts, dead letters, partials."""
    clock = ManualClock(BASE_US / 1e6 + 1.0)
    broker = MemoryBroker(clock, PARTITIONS)
    # The worker takes the first record alone; behind this one, all others are reduced at once, so sums are the same.
    for record in [Record(topic="ingest.heaps", key=b"0", value=None), *records]:
        broker.append(replace(record, partition=0))
    log = MemoryTransactionalLog(broker, "ingest.heaps", group="aggregate", fault=lambda: None)
    worker = telemetry_worker(log, ICD, Settings(nodes=4), slot="0", clock=clock, limits=BatchLimits(**limits))
    for _ in range(5):
        worker.step()
        clock.sleep(0.1)
    counts = Counter()
    for one in broker.read("accounts"):
        entry = msgspec.json.decode(one.value, type=StreamAccount)
        counts.update({name: getattr(entry, name) for name in ("consumed", "used", "late", "dead_lettered")})
        counts.update(entry.reasons)
        counts.update({"wrong frames": len(entry.wrong_frames)})
    letters = []
    for one in broker.read("dead-letters"):
        said = dict(one.headers)
        value = original(one).value
        text = repr(value) if is_batch(value) else json.dumps(json.loads(value))
        letters.append((said["dl.reason"], said["dl.path"], text))
    found = partials([one.value for one in broker.read("ingest.summary")], PLAN)
    return counts, sorted(letters), sorted((node, msgspec.json.encode(one)) for node, one in found)


@given(st.lists(st.one_of(good, good, good, bad), min_size=1, max_size=40), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_both_encodings_say_the_same(documents, whole):
    """Nodes and scans as columns, in one batch or in several, with good and bad rows in any order."""
    size = len(documents) if whole else 7
    # Each batch has a good row at its end: one without is set aside whole.
    parts = [[*documents[at : at + size], heap(node=1, seq=at)] for at in range(0, len(documents), size)]
    values = encoded(*(one for part in parts for one in part))
    as_json = work([Record(topic="ingest.heaps", key=b"0", value=value) for value in values])
    as_columns = work([columnar(part, constants=(), bases=(), types=TYPES) for part in parts])
    assert as_columns == as_json


@given(st.lists(good.filter(lambda one: one["time"] < BASE_US + 5_000_000), min_size=1, max_size=60), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_a_node_and_scan_in_each_batch_says_the_same(documents, mixed):
    """As producers write them: constants, bases, narrow types; some records JSON, some columns, if `mixed`."""
    by_node = {}
    for one in documents:
        by_node.setdefault((one["node"] % 4, one["scan_id"]), []).append(one | {"node": one["node"] % 4})
    types = {"received": "uint32", "time": "uint32", "seq": "uint8"}
    whole = [encoded(*part) for part in by_node.values()]
    as_json = work([Record(topic="ingest.heaps", key=b"0", value=value) for part in whole for value in part])
    records = []
    for number, (part, values) in enumerate(zip(by_node.values(), whole, strict=True)):
        if mixed and number % 2:
            records += [Record(topic="ingest.heaps", key=b"0", value=value) for value in values]
        else:
            records.append(columnar(part, types={**TYPES, **types}))
    assert work(records) == as_json
