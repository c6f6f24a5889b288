"""Bad data from the bus is a result, not an exception (rule 1 of the design), on every topic that is read."""

import json
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Message

from facade.flows.telemetry.simulator.garbage import GARBAGE
from tests.conftest import Deploy
from tests.support.deployment import BUS, CLOCK, MASTER, Deployment, expected_totals, node_device, reasons
from tests.support.topics import read_all, send
from tests.support.waiting import until, until_equal

KEY = b"SdpFacade-ingest-00/ingest.summary"
"""Of the snapshots of the rack's device server."""

pytestmark = [pytest.mark.kafka, pytest.mark.tango]


def heap(seq: int, **changes: Any) -> bytes:
    """Return a valid notification of now, unless changed."""
    document = {
        "schema": "heap/1",
        "node": 0,
        "scan_id": 7,
        "seq": seq,
        "time": round(CLOCK.now() * 1e6),
        "channel_start": 0,
        "channel_count": 128,
        "received": 500,
        "lost": 10,
        "late": 2,
        "flagged_fraction": 0.25,
        "latency": 0.002,
    } | changes
    return json.dumps(document).encode()


def letters(deployment: Deployment) -> list[Message]:
    return read_all(deployment.bootstrap, deployment.topic("dead-letters"))


def headers_of(message: Message) -> dict[str, str]:
    return {name: (value or b"").decode(errors="replace") for name, value in message.headers() or ()}


def test_every_kind_of_bad_notification(deploy: Deploy) -> None:
    """Each kind of useless notification, between good ones: the good ones are all used, each bad one is counted under
    its outcome and reason on SdpBus, and its dead letter holds the original bytes, key and headers, where it came
    from, and why and where it is wrong; the device stays readable."""
    deployment = deploy(nodes=2)
    deployment.serve()
    deployment.worker()
    now_us = round(CLOCK.now() * 1e6)
    bad: list[tuple[str, bytes | None, str]] = [
        (kind.name, kind.make(heap(10_000)), str(kind.reason)) for kind in GARBAGE
    ]
    bad += [
        ("far ahead", heap(10_000, time=now_us + 3_600_000_000), "time-ahead"),
        ("year 287000", heap(10_000, time=2**53 - 1), "time-ahead"),
        ("ten megabytes", b'{"schema": "heap/1", "x": "' + b"y" * 10_000_000 + b'"}', "schema"),
        ("unknown node", heap(10_000, node=2), "unknown-node"),
    ]
    records: list[bytes | None] = []
    for seq, (_, value, _) in enumerate(bad):
        records += [heap(seq), value]
    records.append(heap(len(bad)))
    origin = [("origin", b"\x00\xff"), ("trace", b"42")]
    send(
        deployment.bootstrap,
        deployment.topic("ingest.heaps"),
        [(b"0", value) for value in records],
        headers=origin,
        partition=1,
    )
    counts = Counter(reason for _, _, reason in bad)
    until(lambda: (deployment.account()["ingestHeapsConsumed"] or 0) >= len(records), "everything was taken")
    until_equal(
        lambda: reasons(deployment.read_one(BUS, "deadLetterReasons")),
        {f"ingest.heaps {reason}": count for reason, count in counts.items()},
        "each is counted under its reason",
    )
    tombstones = counts.pop("tombstone")
    good = len(bad) + 1
    wanted = {
        "ingestHeapsUsed": good,
        "ingestHeapsSuppressed": tombstones,
        "ingestHeapsDeadLettered": counts.total(),
        "ingestHeapsBalance": 0,
    }
    until_equal(lambda: deployment.read(BUS, *wanted), wanted, "the account")
    unharmed = {"heapsTotal": good, "heapsMissing": 0, "packetsLostTotal": 10 * good}
    until_equal(lambda: deployment.read(node_device(0), *unharmed), unharmed, "neighbours are unharmed")

    by_offset = {int(headers_of(letter)["dl.offset"]): letter for letter in letters(deployment)}
    for index, (name, value, reason) in enumerate(bad):
        offset = 2 * index + 1
        if reason == "tombstone":
            assert offset not in by_offset
            continue
        letter = by_offset.pop(offset)
        added = headers_of(letter)
        assert letter.value() == value, name
        assert letter.key() == b"0"
        assert letter.headers()[:2] == origin
        assert (added["dl.topic"], added["dl.partition"], added["dl.reason"]) == ("ingest.heaps", "1", reason), name
        assert added["dl.path"].startswith("$"), name
        assert added["dl.detail"], name
    assert not by_offset


def test_order_and_age(deploy: Deploy) -> None:
    """Duplicate, swapped and missing sequence numbers and old data times: duplicates, holes and late records are
    counted exactly, and a late record is in no other value."""
    deployment = deploy(nodes=2)
    deployment.serve()
    deployment.worker()
    now_us = round(CLOCK.now() * 1e6)
    numbers = [0, 1, 1, 4, 3, 2, 2, 7, 9, 8]
    values = [heap(seq) for seq in numbers]
    values += [heap(5, time=now_us - 60_000_000), heap(5, time=0)]
    send(deployment.bootstrap, deployment.topic("ingest.heaps"), [(b"0", value) for value in values])
    wanted = {
        "heapsTotal": 10,
        "heapsLate": 2,
        "heapsMissing": 1,  # 6
        "heapsDuplicated": 3,  # 1, 2 and 5
        "packetsReceivedTotal": 5000,
    }
    until_equal(lambda: deployment.read(node_device(0), *wanted), wanted, "counts")
    until_equal(lambda: deployment.read_one(BUS, "ingestHeapsLate"), 2, "and in the account")


@pytest.mark.slow
def test_a_flood_of_garbage_does_not_fill_memory(deploy: Deploy) -> None:
    """90,000 useless records and 36 of 10 MB: each is set aside, the worker's memory does not grow with them, and
    good records among them are used."""
    deployment = deploy(nodes=1)
    deployment.serve()
    worker = deployment.worker()
    topic = deployment.topic("ingest.heaps")

    def flood(rounds: int) -> None:
        for _ in range(rounds):
            send(deployment.bootstrap, topic, [(b"0", b"no JSON at all" * 10)] * 10_000)
        send(deployment.bootstrap, topic, [(b"0", b"x" * 10_000_000)] * 4 * rounds)

    def taken(records: int) -> None:
        until(lambda: (deployment.account()["ingestHeapsConsumed"] or 0) >= records, "the flood was taken")

    flood(3)
    taken(3 * 10_004)
    before = worker.resident
    for _ in range(2):
        flood(3)
    send(deployment.bootstrap, topic, [(b"0", heap(0))])
    taken(9 * 10_004 + 1)
    growth = worker.resident - before
    assert growth < 150_000_000, f"{growth / 1e6:.0f} MB more after twice as many"
    wanted = {"ingestHeapsUsed": 1, "ingestHeapsDeadLettered": 9 * 10_004, "ingestHeapsBalance": 0}
    until_equal(lambda: deployment.read(BUS, *wanted), wanted, "the account")


def summary(node: int = 0, **changes: Any) -> dict[str, Any]:
    """Return a valid summary of one record."""
    now_us = round(CLOCK.now() * 1e6)
    partial = {
        "epoch": 7,
        "window": now_us // 1_000_000 * 1_000_000,
        "late": False,
        "count": 1,
        "time_min": now_us,
        "time_max": now_us,
        "runs": [[1_000_000, 1_000_000]],
        "fields": {"latency": {"sum": 0.001, "min": 0.001, "max": 0.001, "m2": 0.0, "sketch": {"700": 1}}},
    } | changes
    covered = {"log": "log", "offset_from": 0, "offset_to": 1}
    return {"schema": "ingest-summary/1", "worker": "0", "partition": 0, "node": node, "partials": [partial], **covered}


BAD_PARTIALS: dict[str, dict[str, Any]] = {
    "negative count": {"count": -1},
    "huge count": {"count": 10**30},
    "huge time": {"time_max": 10**30},
    "negative window": {"window": -1_000_000},
    "window in the far future": {"window": 2**53 - 1},
    "backward run": {"runs": [[5, 3]]},
    "overlapping runs": {"runs": [[3, 9], [5, 12]]},
    "huge run": {"runs": [[0, 10**30]]},
    "sum beyond a double": {"fields": {"lost": {"sum": 10**400}}},
    "huge sum": {"fields": {"lost": {"sum": 10**30}}},
    "text sum": {"fields": {"lost": {"sum": "many"}}},
    "negative m2": {"fields": {"latency": {"sum": 1.0, "m2": -5.0}}},
    "negative bucket": {"fields": {"latency": {"sketch": {"-5": 1}}}},
    "huge bucket": {"fields": {"latency": {"sketch": {"99999999": 1}}}},
    "negative bucket count": {"fields": {"latency": {"sketch": {"5": -3}}}},
    "no count but fields": {"count": 0, "fields": {"latency": {"sum": 1.0, "m2": 1.0}}},
}


@pytest.mark.slow
def test_bad_summaries(deploy: Deploy) -> None:
    """Whatever stands on the summary topic, device servers go on: a bad record is set aside with a reason or harms no
    value, its neighbours are used, all attributes can be read, and the total stays exact."""
    deployment = deploy(nodes=2)
    deployment.serve()
    deployment.worker()
    report = deployment.simulate("--rate", 1000, "--seconds", 2, "--nodes", 2).finish()
    until_equal(lambda: deployment.read_one(MASTER, "heapsTotal"), report.expected.used, "the good total")
    # The node's device is in another server than the master: its total comes when it comes.
    before = report.nodes["0"].used
    until_equal(lambda: deployment.read_one(node_device(0), "heapsTotal"), before, "the good total of the node")
    garbage: list[bytes | None] = [
        None,
        b"",
        b"nonsense",
        b"{}",
        b"[" * 50_000,
        b"\xff\xfe",
        b'{"schema": "ingest-summary/2"}',
        json.dumps(summary() | {"colour": "green"}).encode(),
        json.dumps(summary() | {"node": "0"}).encode(),
        json.dumps(summary() | {"node": -1}).encode(),
        json.dumps(summary() | {"node": 10**25}).encode(),
        json.dumps(summary() | {"partials": {}}).encode(),
        *(json.dumps(summary(**changes)).encode() for changes in BAD_PARTIALS.values()),
    ]
    topic = deployment.topic("ingest.summary")
    send(deployment.bootstrap, topic, [(b"0", value) for value in garbage], partition=0)
    again = deployment.simulate("--rate", 1000, "--seconds", 2, "--nodes", 2, name="again").finish()
    wanted = before + again.nodes["0"].used
    until_equal(lambda: deployment.read_one(node_device(0), "heapsTotal"), wanted, "neighbours are used")
    used = report.expected.used + again.expected.used
    until_equal(lambda: deployment.read_one(MASTER, "heapsTotal"), used, "the total over all nodes")
    for device in (MASTER, BUS, node_device(0), node_device(1)):
        proxy = deployment.proxy(device)
        for value in proxy.read_attributes(list(proxy.get_attribute_list())):
            assert not value.has_failed, f"{device}/{value.name}"
    until(lambda: deployment.quality(node_device(0), "heapRate") == "INVALID", "silence is still noticed")

    def refused_by(instance: str) -> list[tuple[int, str]]:
        found = map(headers_of, letters(deployment))
        own = [one for one in found if one["dl.topic"] == "ingest.summary" and one["dl.by"] == instance]
        return sorted((int(one["dl.offset"]), one["dl.reason"]) for one in own)

    rejected = len(garbage) - garbage.count(None)  # a record without a value is suppressed, on any topic
    until_equal(lambda: len(refused_by("SdpFacade-control")), rejected, "one reader sets each bad record aside")
    found = refused_by("SdpFacade-control")
    assert len({offset for offset, _ in found}) == rejected, "each once"
    assert "inconsistent" in {reason for _, reason in found}
    assert refused_by("SdpFacade-ingest-00") == []
    until_equal(lambda: deployment.read_one(BUS, "ingestSummaryBalance"), 0, "the balance")


@pytest.mark.slow
def test_bad_accounts_states_and_snapshots(deploy: Deploy) -> None:
    """Bad records on the accounts, state and snapshots topics are set aside with a reason; the device server goes on,
    and neither a bad snapshot nor a bad state stops its next start or changes a total."""
    deployment = deploy(nodes=2)
    servers = deployment.serve()
    deployment.worker()
    report = deployment.simulate("--rate", 1000, "--seconds", 3, "--garbage", 0.01).finish()
    exact = expected_totals(report)
    until_equal(deployment.totals, exact, "the good totals")
    account = {
        "schema": "stream-account/1",
        "worker": "evil",
        "stream": "ingest.heaps",
        "partition": 0,
        "time": 0,
        "offset_from": 0,
        "offset_to": 0,
        "high_watermark": 0,
        "consumed": -5,
        "used": 10**30,
        "late": 0,
        "suppressed": 0,
        "dead_lettered": 0,
        "in_flight": 0,
        "reasons": {},
    }
    nonsense: list[bytes | None] = [None, b"", b"nonsense", b"[" * 50_000, b"{}", b"\xff"]
    state = {"schema": "state/1", "device": MASTER, "attribute": "adminMode", "time": 0, "origin": "test"}
    bad = {
        "accounts": [*nonsense, json.dumps(account).encode()],
        "state": [
            *nonsense,
            json.dumps(state | {"value": "SLEEPING"}).encode(),
            json.dumps(state | {"value": 7}).encode(),
        ],
        "snapshots": [*nonsense, b'{"schema": "snapshot/1", "instance": "x"}'],
    }
    for topic, values in bad.items():
        send(deployment.bootstrap, deployment.topic(topic), [(KEY, value) for value in values])
    more = deployment.simulate("--rate", 1000, "--seconds", 2, "--scan-id", int(CLOCK.now()) + 5, name="more").finish()
    used = report.expected.used + more.expected.used
    until_equal(lambda: deployment.read_one(MASTER, "heapsTotal"), used, "the server goes on")
    until_equal(lambda: deployment.read_one(BUS, "ingestHeapsUsed"), used, "the account as well")
    assert deployment.read_one(MASTER, "adminMode") == 0

    # A snapshot that is JSON of the right form but nonsense inside, newer than the good one.
    evil = {
        "schema": "snapshot/1",
        "instance": "SdpFacade-ingest-00",
        "topic": "ingest.summary",
        "time": 0,
        "offsets": {"zero": 1},
        "rebuild_from": {},
        "account": {},
        "ledger": {"nodes": {"zero": 1}},
        "readings": {node_device(0): {"heapRate": [1.0, 1.0, "SPLENDID"]}},
    }
    of_node = report.nodes["0"].used + more.nodes["0"].used
    variants = [
        evil,
        evil | {"offsets": {}, "ledger": {}},
        evil | {"offsets": {"0": -5}, "ledger": {"nodes": {}}},
        evil | {"offsets": {}, "ledger": {"nodes": {}}},
    ]
    for variant in variants:
        servers["ingest-00"].kill()
        send(deployment.bootstrap, deployment.topic("snapshots"), [(KEY, json.dumps(variant).encode())])
        deployment.forget_proxies()
        servers["ingest-00"] = deployment.server("ingest-00")
        until_equal(lambda: deployment.read_one(node_device(0), "heapsTotal"), of_node, "all is read anew")
    servers["control"].kill()
    deployment.forget_proxies()
    servers["control"] = deployment.server("control")
    until_equal(lambda: deployment.read_one(MASTER, "heapsTotal"), used, "control starts as well")
    until_equal(lambda: deployment.read_one(MASTER, "adminMode"), 0, "its mode is that of before")
