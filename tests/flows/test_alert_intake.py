"""The intake worker on the simulation's brokers: the alert of each packet once on the log, whatever goes wrong."""

import json
from collections import Counter

import jsonschema
import msgspec
import pytest

from facade.flows.alerts.messages import Alert, decode_alert
from facade.flows.alerts.packets import PacketCodec, PacketContent, intake_worker
from facade.kernel.bus.dead_letters import original
from facade.kernel.bus.port import TRANSACTION, Record
from facade.kernel.clock import ManualClock
from facade.kernel.icd.load import load
from facade.kernel.runtime.accounts import AccountEntry
from facade.kernel.runtime.worker import RecordBatching, TransactionalWorker
from tests.support.alerting import Bench
from tests.support.simulated_bus import MemoryBroker, MemoryTransactionalLog

ICD = load()
CODEC = PacketCodec(ICD)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(ManualClock())


def intake(broker, fault=lambda: None, **pace) -> TransactionalWorker:
    log = MemoryTransactionalLog(broker, "alert-packets", group="alerts-intake", fault=fault)
    return intake_worker(log, ICD, slot="0", clock=broker.clock, batching=RecordBatching(**pace))


def packet(sequence: int, source="lsst/001", size=100, **fields) -> bytes:
    content = {"severity": "INFO", "state": "ACTIVE", "text": "5 sigma", "raised_at": 10**15, **fields}
    alert = Alert(condition="transientDetected", source=source, sequence=sequence, **content)
    return CODEC.encode(alert, [PacketContent("difference", "application/fits", bytes([sequence % 256]) * size)])


def send(broker, *values, partition=0, **more):
    for value in values:
        broker.append(Record(topic="alert-packets", key=b"k", value=value, partition=partition, **more))


def work(broker, worker, steps=10):
    for _ in range(steps):
        worker.step()
        broker.clock.sleep(0.1)


def taken(broker) -> list[Alert]:
    return [decode_alert(record.value) for record in broker.read("alerts")]


def totals(broker) -> Counter:
    found = Counter()
    for record in broker.read("accounts"):
        entry = msgspec.json.decode(record.value, type=AccountEntry)
        for name in ("consumed", "used", "suppressed", "dead_lettered"):
            found[name] += getattr(entry, name)
        found.update(entry.reasons)
    return +found


def test_each_packet_becomes_one_small_alert(broker):
    for partition in range(10):
        send(broker, *(packet(n, f"lsst/{partition}", size=68_000) for n in range(5)), partition=partition)
    work(broker, intake(broker))
    found = taken(broker)
    for partition in range(10):
        mine = [one for one in found if one.source == f"lsst/{partition}"]
        assert [one.sequence for one in mine] == list(range(5))
        assert [one.attachments[0].packet for one in mine] == [f"{partition}/{offset}" for offset in range(5)]
    assert {record.key for record in broker.read("alerts")} == {b"transientDetected"}
    assert max(len(record.value) for record in broker.read("alerts")) < 500
    assert totals(broker) == {"consumed": 50, "used": 50}


def test_what_is_written_obeys_the_published_schemas(broker):
    send(broker, packet(1), b"junk", None)
    work(broker, intake(broker), 20)
    for topic, schema in (("alerts", "alert"), ("accounts", "stream-account")):
        assert broker.read(topic)
        for record in broker.read(topic):
            jsonschema.validate(json.loads(record.value), ICD.messages[schema])


def test_the_device_server_shows_them_and_the_packets_can_be_found():
    """The whole way: packet, alert, alarm."""
    bench = Bench()
    server = bench.server()
    send(bench.broker, packet(1, raised_at=bench.now_us), partition=4)
    work(bench.broker, intake(bench.broker))
    server.cycle()
    assert server.state("transientDetected", "lsst/001") == "UNACK"
    (event,) = server.events()
    assert event["alert"]["attachments"][0]["packet"] == "4/0"


def test_packets_of_a_topic_that_was_made_again_are_new_ones():
    """Its offsets begin with 0 again, and the alerts of both topics are on one log."""
    bench = Bench()
    server = bench.server()
    for life in ("first", "second"):
        send(bench.broker, *(packet(n, f"{life}/{n}", raised_at=bench.now_us) for n in range(3)), partition=4)
        work(bench.broker, intake(bench.broker))
        bench.broker.make_again("alert-packets")
    server.cycle()
    sources = [event["alert"]["source"] for event in server.events()]
    assert sources == [f"{life}/{n}" for life in ("first", "second") for n in range(3)]


def test_the_alert_of_a_packet_that_was_put_back_says_so(broker):
    """So its device server knows that its place on the log is not its place among the alerts of its source."""
    send(broker, packet(1), headers=(("redriven.from", b"0:5"), ("x", b"y"), ("redriven.first", b"alert-packets/0/1")))
    work(broker, intake(broker))
    (record,) = broker.read("alerts")
    assert [name for name, _ in record.headers] == ["packet", "redriven.from", "redriven.first", "transaction"]


@pytest.mark.parametrize("bad", [b"junk", b"", packet(1)[:-1], packet(2, severity="BAD")], ids=range(4))
def test_a_bad_packet_is_set_aside_and_hides_no_neighbour(broker, bad):
    """First, last, twice in the middle."""
    send(broker, bad, packet(1), bad, bad, packet(2), bad, headers=(("h", b"v"),))
    work(broker, intake(broker))
    assert [one.sequence for one in taken(broker)] == [1, 2]
    letters = broker.read("dead-letters")
    assert [original(letter) for letter in letters] == [
        record for record in broker.read("alert-packets") if record.value == bad
    ]
    headers = dict(letters[0].headers)
    assert headers["dl.by"] == b"alerts-intake-0"
    assert headers["dl.reason"]
    assert headers["dl.detail"]
    found = totals(broker)
    assert (found["consumed"], found["used"], found["dead_lettered"]) == (6, 2, 4)


def test_a_tombstone_is_counted_and_no_dead_letter(broker):
    send(broker, None, packet(1))
    work(broker, intake(broker))
    assert totals(broker) == {"consumed": 2, "used": 1, "suppressed": 1, "tombstone": 1}
    assert broker.read("dead-letters") == []


@pytest.mark.parametrize(
    "poison",
    [
        {"value": bytes(20_000_000)},
        {"value": b"x", "key": bytes(20_000_000)},
        {"value": b"x", "headers": tuple((f"{number:01000d}", b"") for number in range(20_000))},
    ],
    ids=["value", "key", "names of headers"],
)
def test_what_was_small_only_while_compressed_does_not_come_again_for_ever(broker, poison):
    """No topic would take it as a dead letter: the letter says where it is, and goes without it."""
    broker.append(Record(**{"topic": "alert-packets", "key": b"k", "partition": 0, **poison}))
    send(broker, packet(1))
    work(broker, intake(broker))
    assert [one.sequence for one in taken(broker)] == [1]
    (letter,) = broker.read("dead-letters")
    assert (letter.key, letter.value) == (None, None)
    assert all(name.startswith("dl.") for name, _ in letter.headers if name != TRANSACTION)
    assert (original(letter).partition, original(letter).offset) == (0, 0)
    assert dict(letter.headers)["dl.detail"].endswith(b"left where it is")


def test_transactions_are_bounded_by_the_bytes_of_their_packets(broker):
    """While more waits they are filled up to the limit, but for the first, and nothing that waits is left."""
    send(broker, *(packet(n, size=10_000) for n in range(100)))
    per_commit, seen = [], 0
    worker = intake(broker, batch=5, limit_bytes=200_000)
    for _ in range(30):
        worker.step()
        if len(broker.read("alerts")) > seen:
            per_commit.append(len(broker.read("alerts")) - seen)
            seen = len(broker.read("alerts"))
    assert per_commit == [5, 20, 20, 20, 20, 15]


@pytest.mark.parametrize("value", [b"", None, packet(1)], ids=["no bytes", "tombstone", "packet"])
def test_while_more_waits_a_transaction_ends_after_a_second(broker, value):
    """Records without bytes reach no limit of bytes, and the alerts of a backlog must not wait for its end."""
    send(broker, *[value] * 200)
    worker = intake(broker, batch=5)
    for _ in range(10):
        worker.step()
        broker.clock.sleep(0.25)
    assert totals(broker)["consumed"] >= 25
    work(broker, worker, 50)
    assert totals(broker)["consumed"] == 200


def test_the_first_transaction_comes_at_once(broker):
    """It ends what a killed predecessor left open, which would hold up all readers of the topic alerts."""
    commits = []
    intake(broker, lambda: commits.append(1)).step()
    assert commits


def test_a_mistake_of_ours_about_one_packet_ends_no_worker(broker, monkeypatch):
    worker = intake(broker)
    alert = PacketCodec.alert

    def failing(codec, value, place):
        if place.endswith("/1"):
            raise ZeroDivisionError("a mistake")
        return alert(codec, value, place)

    monkeypatch.setattr(PacketCodec, "alert", failing)
    send(broker, packet(1), packet(2), packet(3))
    work(broker, worker)
    assert [one.sequence for one in taken(broker)] == [1, 3]
    (letter,) = broker.read("dead-letters")
    assert original(letter).value == packet(2)
    assert totals(broker)["dead_lettered"] == 1
