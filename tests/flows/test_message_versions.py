"""Old and new writers and readers of one message at a time: one exact total, in each encoding."""

import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from facade.admin.redrive import Selection, put_back
from facade.admin.redrive import plan as plan_redrive
from facade.flows.alerts import packets
from facade.flows.telemetry.plan import plan
from facade.flows.telemetry.worker import BatchLimits, telemetry_worker
from facade.kernel.bus.dead_letters import original
from facade.kernel.bus.port import Aborted, Record
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import inspect, load
from facade.kernel.icd.model import Icd
from facade.kernel.resources import resource
from facade.kernel.runtime.accounts import AccountEntry
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.worker import TransactionalWorker
from facade.sdp.batches import is_batch
from tests.flows.test_alert_packets import APART, changed, written_by
from tests.support.columnar import columnar
from tests.support.commanding import Sink
from tests.support.heaps import BASE_US, heap
from tests.support.simulated_bus import MemoryBroker, MemoryBus, MemoryTransactionalLog
from tests.support.summaries import partials

TOPIC = "ingest.heaps"
SETTINGS = Settings(nodes=4)
PACKETS = {"type": "integer", "minimum": 0, "maximum": 2147483647, "x-unit": "packets"}
ATTRIBUTE = """
[[attributes]]
name = "packetsRepeatedTotal"
type = "DevLong64"
label = "Packets repeated, total"
description = "Packets that came twice."
source = { topic = "ingest.heaps", field = "repeated", rule = "sum", over = "total" }
stale_after = 0.0

"""


def write_interfaces(folder: Path) -> tuple[Path, Path]:
    """Write an interface with ``heap/1``, and the next one: a field is renamed, one is new, and one is gone."""
    old, new = folder / "old", folder / "new"
    shutil.copytree(resource("schemas"), old)
    schema = json.loads((old / "messages" / "heap.schema.json").read_text())
    schema["properties"]["beam"] = {"type": "integer", "minimum": 0, "maximum": 7, "description": "Beam."}
    schema["required"] += ["beam"]
    schema.pop("examples")
    (old / "messages" / "heap.schema.json").write_text(json.dumps(schema))
    shutil.copytree(old, new)
    (new / "messages" / "heap.schema.json").rename(new / "messages" / "heap-1.schema.json")
    fields = schema["properties"]
    del fields["beam"]
    fields["schema"] = fields["schema"] | {"const": "heap/2"}
    fields["packets_lost"] = fields.pop("lost") | {"x-aliases": ["lost"]}
    fields["repeated"] = {**PACKETS, "default": 0, "description": "Packets that came twice."}
    schema |= {"$id": schema["$id"].replace("heap/1", "heap/2"), "required": list(fields)}
    (new / "messages" / "heap.schema.json").write_text(json.dumps(schema))
    for path in (new / "icd").glob("Sdp*.toml"):
        path.write_text(path.read_text().replace('"lost"', '"packets_lost"'))
    node = new / "icd" / "SdpIngestNode.toml"
    node.write_text(node.read_text().replace("[[attributes]]", ATTRIBUTE + "[[attributes]]", 1))
    return old, new


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_interfaces(tmp_path_factory.mktemp("interfaces"))


@pytest.fixture(scope="module")
def icds(folders: tuple[Path, Path]) -> tuple[Icd, Icd]:
    return load(folders[0]), load(folders[1])


def old_heap(**fields) -> dict:
    return heap(**fields) | {"beam": 3}


def new_heap(lost: int = 0, repeated: int = 0, **fields) -> dict:
    found = heap(**fields)
    del found["lost"]
    return found | {"schema": "heap/2", "packets_lost": lost, "repeated": repeated}


def in_json(heaps: list[dict]) -> list[Record]:
    key = str(heaps[0]["node"]).encode()
    return [Record(topic=TOPIC, key=key, value=json.dumps(one).encode(), partition=0) for one in heaps]


def in_columns(heaps: list[dict]) -> list[Record]:
    types = {"packets_lost": "uint16", "repeated": "uint16", "beam": "uint8"}
    return [replace(columnar(heaps, types=types), partition=0)]


def in_both(heaps: list[dict]) -> list[Record]:
    half = len(heaps) // 2
    return [*in_json(heaps[:half]), *in_columns(heaps[half:])]


WRITERS = {"json": in_json, "arrow": in_columns, "both": in_both}


class Site:
    """Workers of one or two releases on the simulation's brokers."""

    def __init__(self, icd: Icd, fault=lambda: None) -> None:
        self.clock = ManualClock(BASE_US / 1e6 + 1.0)
        self.broker = MemoryBroker(self.clock, {name: topic.partitions for name, topic in icd.topics.items()})
        self.fault = fault

    def worker(self, icd: Icd) -> TransactionalWorker:
        """Start the worker in its only slot, in the place of the former one."""
        self.broker.scheduler.settle()
        log = MemoryTransactionalLog(self.broker, TOPIC, group="aggregate", fault=self.fault)
        return telemetry_worker(log, icd, SETTINGS, slot="0", clock=self.clock, limits=BatchLimits(retry=0.01))

    def send(self, records: list[Record]) -> None:
        for one in records:
            self.broker.append(one)

    def work(self, worker: TransactionalWorker, seconds: float = 1.0) -> None:
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            worker.step()
            self.clock.sleep(0.01)

    def shown(self, icd: Icd, *names: str) -> list[object]:
        """Return what the devices of a release show after they have read all summaries."""
        devices, sink = [f"mid-sdp/ingest/{node:04d}" for node in range(SETTINGS.nodes)], Sink()
        bus = MemoryBus(self.broker)
        server = Server(
            icd, SETTINGS, {"SdpIngestNode": devices}, sink, bus, instance="ingest-00", clock=self.clock, versions={}
        )
        reader = server.event_loop._open()
        for _ in range(20):
            server.event_loop.cycle(reader)
            self.clock.sleep(0.05)
        return [
            sum(sink.shown[device, name].value for device in devices if (device, name) in sink.shown) for name in names
        ]

    def totals(self, icd: Icd) -> Counter[str]:
        """Return what the summaries say, and the account."""
        found = Counter[str]()
        for node, one in partials([record.value for record in self.broker.read("ingest.summary")], plan(icd, TOPIC)):
            found[f"node {node}"] += one.count
            for name, statistics in one.fields.items():
                found[name] += statistics.sum or 0
        for record in self.broker.read("accounts"):
            entry = msgspec.json.decode(record.value, type=AccountEntry)
            found["used"] += entry.used
            found["dead letters"] += entry.dead_lettered
        return found


@pytest.mark.parametrize("new_writer", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("old_writer", WRITERS.values(), ids=WRITERS)
def test_two_producers_of_two_versions_have_one_exact_total(icds, old_writer, new_writer):
    """Their records alternate on one partition; transactions fail at random."""
    dice = random.Random(1)

    def fault() -> None:
        if dice.random() < 0.3:
            raise Aborted("played")

    site = Site(icds[1], fault)
    worker = site.worker(icds[1])
    for turn in range(20):
        seqs = range(10 * turn, 10 * turn + 10)
        old = old_writer([old_heap(node=1, seq=i, at=i / 1000, lost=2) for i in seqs])
        new = new_writer([new_heap(node=2, seq=i, at=i / 1000, lost=3, repeated=1) for i in seqs])
        mixed = [*old, *new]
        dice.shuffle(mixed)
        site.send(mixed)
        site.work(worker, 0.15)
        if dice.random() < 0.3:
            worker = site.worker(icds[1])
    site.fault = lambda: None
    site.work(site.worker(icds[1]))
    found = site.totals(icds[1])
    assert (found["node 1"], found["node 2"], found["used"], found["dead letters"]) == (200, 200, 400, 0)
    assert (found["lost"], found["repeated"]) == (200 * 2 + 200 * 3, 200)
    assert found["latency"] == pytest.approx(400 * 0.002)


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_a_writer_that_is_ahead_of_the_readers_costs_nothing_in_the_end(icds, writer):
    """Its records are dead letters of the old worker; the new worker has them after they are put back."""
    old, new = icds
    site = Site(new)
    heaps = [new_heap(node=2, seq=i, at=i / 1000, lost=3, repeated=1) for i in range(10)]
    site.send([*in_json([old_heap(node=1, seq=i, at=i / 1000, lost=2) for i in range(10)]), *writer(heaps)])
    site.work(site.worker(old))
    assert site.totals(old)["dead letters"] == 10
    letters = site.broker.read("dead-letters")
    assert {dict(one.headers)["dl.reason"] for one in letters} == {b"version"}
    assert {dict(one.headers)["dl.detail"] for one in letters} == {b"expected 'heap/1', got 'heap/2'"}
    worker = site.worker(new)
    redrive = plan_redrive(letters, new, Selection())
    assert len(redrive.chosen) == len(letters)
    site.send([one for letter in letters for one in put_back(letter)])
    site.work(worker)
    found = site.totals(new)
    assert (found["node 1"], found["node 2"], found["used"]) == (10, 10, 20)
    assert (found["lost"], found["repeated"]) == (10 * 2 + 10 * 3, 10)
    assert site.shown(new, "heapsTotal", "packetsLostTotal", "packetsRepeatedTotal") == [20, 50, 10]
    assert site.shown(old, "heapsTotal", "packetsLostTotal") == [20, 50]


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_an_unknown_version_is_a_dead_letter_that_names_the_known_ones(icds, writer):
    """Its neighbours of both known versions count."""
    site = Site(icds[1])
    later = [new_heap(node=2, seq=i) | {"schema": "heap/3"} for i in range(4)]
    site.send([*in_json([old_heap(node=1), new_heap(node=2)]), *writer(later), *in_columns([old_heap(node=3)])])
    site.work(site.worker(icds[1]))
    found = site.totals(icds[1])
    assert (found["used"], found["dead letters"]) == (3, 4)
    for letter in site.broker.read("dead-letters"):
        headers = dict(letter.headers)
        assert headers["dl.reason"] == b"version"
        assert headers["dl.path"] == (b"headers.batch.message" if is_batch(original(letter).value) else b"$.schema")
        assert headers["dl.detail"].decode() == "expected 'heap/2' or 'heap/1', got 'heap/3'"


def test_a_batch_of_a_later_release_counts_without_the_columns_that_are_new(icds):
    """One of them has no value in a row, and one has a base; a bad row is a dead letter without them."""
    site = Site(icds[0])
    rows = [old_heap(node=1, seq=i, lost=2) | {"further": None if i == 1 else i, "added": i} for i in range(4)]
    rows[3]["latency"] = -1.0
    types = {"further": "uint8", "added": "uint8", "beam": "uint8"}
    later = columnar(rows, types=types, bases=("seq", "time", "added"), constants_of={"more": 7.5})
    site.send([replace(later, partition=0), *in_columns([old_heap(node=1, seq=9, lost=1)])])
    site.work(site.worker(icds[0]))
    found = site.totals(icds[0])
    assert (found["used"], found["dead letters"], found["lost"]) == (4, 1, 3 * 2 + 1)
    (letter,) = site.broker.read("dead-letters")
    assert json.loads(original(letter).value).keys() == old_heap().keys()


def test_packets_of_writers_of_three_avro_schemas_are_counted_together(monkeypatch):
    """Each is read by its writer's schema; one of an unknown schema is a dead letter."""
    known = ("a field less", "a field more, at the end")
    monkeypatch.setattr(packets, "other_schemas", lambda: {name: APART[name] for name in known})
    written = {name: written_by(name) for name in APART}
    own, icd = changed(), load()
    broker = MemoryBroker(ManualClock(), {name: topic.partitions for name, topic in icd.topics.items()})
    for value in [own, *(written[name] for name in known), written["no attachments"]] * 25:
        broker.append(Record(topic="alert-packets", key=b"k", value=value, partition=0))
    log = MemoryTransactionalLog(broker, "alert-packets", group="alerts-intake")
    worker = packets.intake_worker(log, icd, slot="0", clock=broker.clock)
    for _ in range(20):
        worker.step()
        broker.clock.sleep(0.1)
    assert len(broker.read("alerts")) == 75
    (reason,) = {dict(letter.headers)["dl.reason"] for letter in broker.read("dead-letters")}
    assert (len(broker.read("dead-letters")), reason) == (25, b"unknown-schema")


BAD = {
    "a renamed field by its new name": (
        {("packets_lost" if k == "lost" else k): v for k, v in old_heap().items()},
        "$",
    ),
    "a field too few": ({k: v for k, v in old_heap().items() if k != "lost"}, "$"),
    "beyond the limit": (old_heap(lost=2**40), "$.lost"),
    "no whole number": (old_heap(lost=0.5), "$.lost"),
}


@pytest.mark.parametrize(("document", "path"), BAD.values(), ids=BAD)
def test_an_earlier_version_is_judged_by_its_own_schema(icds, document, path):
    site = Site(icds[1])
    site.send(in_json([document, old_heap(node=1), new_heap(node=2)]))
    site.work(site.worker(icds[1]))
    (letter,) = site.broker.read("dead-letters")
    assert (dict(letter.headers)["dl.reason"], dict(letter.headers)["dl.path"].decode()) == (b"schema", path)
    assert site.totals(icds[1])["used"] == 2


def test_a_bad_row_of_an_earlier_version_is_a_dead_letter_in_the_current_version(icds):
    """Put back when mended, it counts as a row of the batch that it was in."""
    site = Site(icds[1])
    rows = [old_heap(node=1, seq=i) for i in range(3)]
    rows[1]["latency"] = -1.0
    site.send(in_columns(rows))
    site.work(site.worker(icds[1]))
    (letter,) = site.broker.read("dead-letters")
    row = json.loads(original(letter).value)
    assert (row["schema"], row["packets_lost"], row["repeated"], row["latency"]) == ("heap/2", 0, 0, -1.0)
    assert "beam" not in row


WRONG = {
    "another type": (
        "heap-1",
        "lost",
        {"type": "number"},
        "properties.lost: expected type, limits and unit of packets_",
    ),
    "other limits": (
        "heap-1",
        "received",
        {"maximum": 9},
        "properties.received: expected type, limits and unit of rec",
    ),
    "no default": ("heap", "repeated", {"default": None}, "properties.repeated: expected the field or an alias of it"),
    "no alias": (
        "heap",
        "packets_lost",
        {"x-aliases": None},
        "properties.packets_lost: expected the field or an alias of it",
    ),
    **{
        f"default {value!r}": ("heap", "repeated", {"default": value}, "properties.repeated: expected a default of rep")
        for value in ("none", 3.5, True, -7, 10**10)
    },
    "no older number": ("heap-1", "schema", {"const": "heap/2"}, "properties.schema.const: expected 'heap/' and 1"),
}


@pytest.mark.parametrize(("message", "field", "change", "expected"), WRONG.values(), ids=WRONG)
def test_versions_that_cannot_be_counted_together_are_refused(folders, tmp_path, message, field, change, expected):
    folder = tmp_path / "schemas"
    shutil.copytree(folders[1], folder)
    path = folder / "messages" / f"{message}.schema.json"
    schema = json.loads(path.read_text())
    changed = schema["properties"][field] | change
    schema["properties"][field] = {key: value for key, value in changed.items() if value is not None}
    path.write_text(json.dumps(schema))
    findings = [str(one) for one in inspect(folder)[1]]
    assert any(f"heap-1.schema.json: {expected}" in one for one in findings), findings


@pytest.mark.needs("sdp_facade_lab")
def test_the_next_release_of_the_rolling_upgrade_is_a_good_interface(tmp_path):
    """`sdp-facade prove rolling` writes it, and replaces each process by one of it."""
    from sdp_facade_lab.fault_runs.rolling import write_release

    write_release(tmp_path)
    icd = load(tmp_path / "schemas")
    assert {name for name in icd.messages if name.startswith("receive-buffer")} == {
        "receive-buffer",
        "receive-buffer-1",
    }


def test_only_messages_of_windows_have_earlier_versions(folders, tmp_path):
    """Readers of other messages take one version."""
    folder = tmp_path / "schemas"
    shutil.copytree(folders[1], folder)
    text = (folder / "messages" / "state.schema.json").read_text()
    (folder / "messages" / "state-1.schema.json").write_text(text)
    (finding,) = inspect(folder)[1]
    assert str(finding).startswith(
        "state-1.schema.json: expected an earlier version of a message of a topic with a window"
    )
