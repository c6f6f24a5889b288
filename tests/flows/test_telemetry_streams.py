"""Any windowed topic: aggregated exactly-once and shown, with nothing but TOML and a JSON Schema of its own."""

import json
import random
import re
import shutil

import msgspec
import pytest
import typer

from facade.flows.telemetry.composition import TelemetryFlow
from facade.flows.telemetry.ledger import WindowLedger
from facade.flows.telemetry.plan import plan, windowed
from facade.flows.telemetry.simulator.telemetry_cli import RecordStream
from facade.flows.telemetry.view import TelemetryView
from facade.flows.telemetry.worker import BatchLimits, telemetry_worker
from facade.kernel.bus.port import Aborted, OffsetRange, Record
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import USED
from facade.kernel.reading import Quality
from facade.kernel.resources import resource
from facade.kernel.runtime.accounts import AccountEntry
from facade.kernel.runtime.composition import Server
from facade.sdp.racks import Racks
from tests.support.commanding import Sink
from tests.support.simulated_bus import MemoryBroker, MemoryBus, MemoryTransactionalLog

DAY = 86_400.0
MIDNIGHT = 20_833 * DAY
"""A time at which windows of every length begin [Unix s]."""
SETTINGS = Settings(nodes=4, subarrays=2, rack_size=2)
SHIPPED = ("ingest.buffers", "flagging", "storage")

TOPIC = """
[topics."workflows"]
description = "Work that waits, by the name of the workflow."
message = "queue"
key = "name of the workflow"
writers = ["controller"]
readers = ["aggregate"]
partitions = 2
cleanup = "delete"
retention = 3600.0
timestamp = "LogAppendTime"
qos = "telemetry"

[topics."workflows".window]
length = 60.0
lateness = 30.0
ahead = 5.0
disorder = 1.0
time = "time"
group = "workflow"
most_groups = 3
quantile_error = 0.05
"""
MESSAGE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.org/queue/1",
    "title": "Queue report",
    "description": "How much work waits for a workflow.",
    "type": "object",
    "additionalProperties": False,
    "required": ["schema", "workflow", "state", "paused", "time", "waiting", "age"],
    "properties": {
        "schema": {"const": "queue/1", "description": "Name and version."},
        "workflow": {"type": "string", "maxLength": 40, "description": "Name of the workflow; also the key."},
        "state": {"type": "string", "enum": ["OPEN", "CLOSED"], "description": "What it does."},
        "paused": {"type": "boolean", "description": "Whether it is held."},
        "time": {"type": "integer", "minimum": 0, "maximum": 9007199254740991, "x-unit": "us", "description": "When."},
        "waiting": {"type": "integer", "minimum": 0, "maximum": 100000, "description": "Jobs that wait."},
        "age": {"type": "number", "minimum": 0, "maximum": 86400, "x-unit": "s", "description": "Age of the oldest."},
    },
}
ATTRIBUTES = """
[[attributes]]
name = "jobsWaiting"
type = "DevLong64"
label = "Jobs waiting"
description = "Most jobs that waited in the window."
source = { topic = "workflows", field = "waiting", rule = "max" }
stale_after = 180.0

[[attributes]]
name = "jobsWaitingTotal"
type = "DevLong64"
label = "Jobs waiting, total"
description = "Sum of all reports."
source = { topic = "workflows", field = "waiting", rule = "sum", over = "total" }
stale_after = 0.0

[[attributes]]
name = "jobAge"
type = "DevDouble"
label = "Job age"
description = "Age that 90 % of the reports did not pass."
source = { topic = "workflows", field = "age", rule = "quantile", q = 0.9 }
stale_after = 180.0
limits = { max_alarm = 1e5 }

"""


@pytest.fixture(scope="module")
def icd(tmp_path_factory: pytest.TempPathFactory) -> Icd:
    """Load the shipped interface with one more stream: TOML and a schema, and no code."""
    folder = tmp_path_factory.mktemp("interface") / "schemas"
    shutil.copytree(resource("schemas"), folder)
    (folder / "messages" / "queue.schema.json").write_text(json.dumps(MESSAGE))
    topics, master = folder / "icd" / "topics.toml", folder / "icd" / "SdpMaster.toml"
    topics.write_text(topics.read_text() + TOPIC)
    master.write_text(master.read_text().replace("[[commands]]", ATTRIBUTES + "[[commands]]", 1))
    return load(folder)


class Site:
    """A worker and device servers on the simulation's brokers, under one clock."""

    def __init__(self, icd: Icd, fault=lambda: None) -> None:
        self.icd, self.fault = icd, fault
        self.clock = ManualClock(MIDNIGHT + 3600.0)
        self.broker = MemoryBroker(self.clock, {name: topic.partitions for name, topic in icd.topics.items()})
        self.restart_worker()

    def restart_worker(self) -> None:
        self.broker.scheduler.settle()  # what the former one has sent comes before anything of the next one
        log = MemoryTransactionalLog(self.broker, *windowed(self.icd), group="aggregate", fault=self.fault)
        self.worker = telemetry_worker(
            log, self.icd, SETTINGS, slot="0", clock=self.clock, limits=BatchLimits(retry=0.01)
        )

    def server(self, instance: str, **devices: list[str]):
        """Start a device server; the bus remembers its snapshots."""
        sink = Sink()
        service = Server(
            self.icd, SETTINGS, devices, sink, MemoryBus(self.broker), instance=instance, clock=self.clock, versions={}
        )
        return service.event_loop, service.event_loop._open(), sink

    def stream(self, topic: str, groups=None, **ranges) -> RecordStream:
        found = plan(self.icd, topic)
        return RecordStream(
            found, self.icd.messages[found.message], groups or list(found.groups(SETTINGS)), ranges=ranges
        )

    def send(self, stream: RecordStream, count: int) -> None:
        for key, value in zip(*stream.take(count, self.clock.now_us()), strict=True):
            self.broker.append(Record(topic=stream.plan.topic, key=key, value=value))

    def run(self, seconds: float, *servers, step: float = 0.05) -> None:
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            self.worker.step()
            for event_loop, reader, _ in servers:
                event_loop.cycle(reader)
            self.clock.sleep(step)

    def used(self) -> dict[str, int]:
        entries = [msgspec.json.decode(one.value, type=AccountEntry) for one in self.broker.read("accounts")]
        return {name: sum(one.used for one in entries if one.stream == name) for name in windowed(self.icd)}


MASTER = "mid-sdp/control/0"


def nodes(*numbers: int) -> list[str]:
    return [f"mid-sdp/ingest/{number:04d}" for number in numbers]


def test_one_worker_aggregates_all_topics_exactly_once_through_faults(icd: Icd) -> None:
    """Transactions fail and workers are killed at random; every record of every topic is in the totals once."""
    dice, failed = random.Random(7), []

    def fault() -> None:
        if dice.random() < 0.3:
            failed.append(1)
            raise Aborted("played")

    site = Site(icd, fault)
    streams = {name: site.stream(name) for name in SHIPPED}
    streams["workflows"] = site.stream("workflows", ["imaging", "calibration"])
    control = site.server("control", SdpMaster=[MASTER])
    racks = [site.server(f"ingest-0{rack}", SdpIngestNode=nodes(2 * rack, 2 * rack + 1)) for rack in (0, 1)]
    quality = site.server("quality", SdpQuality=["mid-sdp/quality/01", "mid-sdp/quality/02"])
    servers = [control, *racks, quality]
    for _ in range(60):
        for stream in streams.values():
            site.send(stream, dice.randrange(4))
        site.run(0.3, *servers)
        if dice.random() < 0.2:
            site.restart_worker()
    site.fault = lambda: None
    site.restart_worker()
    site.run(3.0, *servers)
    assert failed, "the fault never fired"
    assert {name: site.used()[name] for name in streams} == {name: one.given for name, one in streams.items()}
    shown = {key: one.value for server in servers for key, one in server[2].shown.items()}
    for node, account in streams["ingest.buffers"].accounts.items():
        assert shown[nodes(node)[0], "bufferDroppedTotal"] == account.sums["dropped"]
    for subarray, account in streams["flagging"].accounts.items():
        assert shown[f"mid-sdp/quality/{subarray:02d}", "visibilitiesFlaggedTotal"] == account.sums["flagged"]
        assert shown[f"mid-sdp/quality/{subarray:02d}", "flaggingReportsMissing"] == 0
    assert shown[MASTER, "productsStoredTotal"] == streams["storage"].accounts[""].sums["products"]
    both = streams["workflows"].accounts.values()
    assert shown[MASTER, "jobsWaitingTotal"] == sum(account.sums["waiting"] for account in both)


def test_devices_are_looked_at_when_something_of_their_stream_came_or_time_has_passed(
    icd: Icd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of 375 nodes made 22,500 looks a second, most of which could find nothing new."""
    site, looks, changed = Site(icd), [], TelemetryView.changed

    def count(view, ledger, now):
        looks.append(ledger.plan.topic)
        return changed(view, ledger, now)

    monkeypatch.setattr(TelemetryView, "changed", count)
    server, stream = site.server("ingest-00", SdpIngestNode=nodes(0)), site.stream("ingest.buffers", [0])
    for _ in range(20):
        site.send(stream, 1)
        site.run(0.1, server)
    assert looks.count("ingest.heaps") <= 9, "of time alone four times a second"
    assert looks.count("ingest.buffers") > 9


def test_a_daily_report_is_shown_when_the_day_is_over(icd: Icd) -> None:
    """Nobody speaks of the next day for many hours; a worker reads on, and says that nothing more came."""
    site = Site(icd)
    server = site.server("control", SdpMaster=[MASTER])
    stream = site.stream("storage", used=(5e15, 6e15))
    site.send(stream, 1)
    site.run(2.0, server)
    window = icd.topics["storage"].window
    assert server[2].shown[MASTER, "productsStoredTotal"].value == stream.accounts[""].sums["products"]
    site.run(MIDNIGHT + DAY + window.disorder - 1800.0 - site.clock.now(), server, step=1800.0)
    site.run(MIDNIGHT + DAY + window.disorder - 10.0 - site.clock.now(), server, step=300.0)
    site.run(MIDNIGHT + DAY + window.disorder - site.clock.now(), server, step=1.0)
    assert (MASTER, "storageUsed") not in server[2].shown
    site.run(2.0, server, step=0.5)
    reading = server[2].shown[MASTER, "storageUsed"]
    assert reading.value == pytest.approx(stream.accounts[""].last["used"])
    assert reading.quality is Quality.VALID
    site.run(176_400.0, server, step=3600.0)
    site.run(3_000.0, server, step=600.0)
    assert server[2].shown[MASTER, "storageUsed"].quality is Quality.VALID
    site.run(1200.0, server, step=60.0)
    assert server[2].shown[MASTER, "storageUsed"].quality is Quality.INVALID
    assert server[2].shown[MASTER, "productsStoredTotal"].quality is Quality.VALID


@pytest.mark.parametrize("topic", ["storage", "workflows"])
def test_a_long_window_survives_restarts_of_the_device_server(icd: Icd, topic: str) -> None:
    """Each life sees some of its records; none is counted twice, however far back the reader begins."""
    site = Site(icd)
    stream = site.stream(topic, ["imaging", "calibration"] if topic == "workflows" else None)
    for _ in range(4):
        server = site.server("control", SdpMaster=[MASTER])
        for _ in range(3):
            site.send(stream, 2)
            site.run(2.5, server)
        server[0].write_snapshots(server[1])
    length, lateness = icd.topics[topic].window.length, icd.topics[topic].window.lateness
    server = site.server("control", SdpMaster=[MASTER])
    site.clock.sleep(length + lateness + 60.0)
    site.run(4.0, server)
    shown = {name: one.value for (_, name), one in server[2].shown.items()}
    if topic == "storage":
        assert shown["productsStored"] == shown["productsStoredTotal"] == stream.accounts[""].sums["products"]
    else:
        assert shown["jobsWaitingTotal"] == sum(one.sums["waiting"] for one in stream.accounts.values())
        assert shown["jobAge"] > 0


def test_readings_come_back_though_the_snapshot_of_another_flow_cannot_be_read(icd: Icd) -> None:
    """Those of all flows of a device server were in the snapshot of the first one."""
    site = Site(icd)
    server = site.server("ingest-00", SdpIngestNode=nodes(0, 1))
    stream = site.stream("ingest.buffers")
    site.send(stream, 4)
    site.run(3.0, server)
    server[0].write_snapshots(server[1])
    first, *others = server[0].accounts
    assert others, "there is one flow only"
    key = f"ingest-00/{first}".encode()
    *_, last = (one for one in site.broker.read("snapshots") if one.key == key)
    changed = msgspec.json.decode(last.value or b"") | {"ledger": {"streams": "of another form"}}
    site.broker.append(Record(topic="snapshots", key=key, value=msgspec.json.encode(changed)))
    shown = site.server("ingest-00", SdpIngestNode=nodes(0, 1))[2].shown
    assert shown[nodes(0)[0], "bufferDroppedTotal"].value == stream.accounts[0].sums["dropped"]


def test_groups_that_the_deployment_does_not_have_are_dead_letters(icd: Icd) -> None:
    site = Site(icd)
    site.send(site.stream("ingest.buffers", [3, 4]), 2)
    site.send(site.stream("flagging", [2, 3]), 2)
    site.send(site.stream("workflows", ["a", "b", "c"]), 3)
    site.run(1.0)  # names are taken in the order in which they come
    site.send(site.stream("workflows", ["d\x1b"]), 1)
    site.run(1.0)
    letters = {dict(one.headers)["dl.topic"]: dict(one.headers) for one in site.broker.read("dead-letters")}
    assert {topic: of["dl.reason"] for topic, of in letters.items()} == {
        b"ingest.buffers": b"unknown-node",
        b"flagging": b"unknown-subarray",
        b"workflows": b"unknown-group",
    }
    assert letters[b"workflows"]["dl.path"] == b"$.workflow"
    assert letters[b"workflows"]["dl.detail"] == b"group d\\u001b is not part of this deployment"
    assert site.worker.accounts["workflows"].last_error.isprintable()
    assert {name: site.used()[name] for name in ("ingest.buffers", "flagging", "workflows")} == {
        "ingest.buffers": 1,
        "flagging": 1,
        "workflows": 3,
    }


def test_what_a_mistake_says_carries_no_control_characters(icd: Icd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text may quote what the record holds."""
    site = Site(icd)
    server = site.server("quality", SdpQuality=["mid-sdp/quality/01"])

    def fold(*_: object, **__: object) -> None:
        raise ValueError("\x1b[2J")

    monkeypatch.setattr(server[0]._flows["telemetry.summary"], "fold", fold)
    site.send(site.stream("flagging", [1]), 1)
    site.run(1.0, server)
    account = server[0].accounts["telemetry.summary"]
    assert account.last_error == "internal: $: ValueError: \\u001b[2J"
    assert account.balance == 0


def test_summaries_of_a_newer_worker_are_left_out(icd: Icd) -> None:
    """A stream that this server does not know yet is none of its business; the other groups neither."""
    site = Site(icd)
    server = site.server("ingest-00", SdpIngestNode=nodes(0, 1))
    plan_ = plan(icd, "ingest.buffers")
    one = plan_.summary("0", 0, 3, site_partial(), OffsetRange("a", 0, 1))
    site.broker.append(Record(topic="telemetry.summary", key=b"k", value=msgspec.json.encode(one), partition=0))
    other = msgspec.structs.replace(one, stream="logs")
    site.broker.append(Record(topic="telemetry.summary", key=b"k", value=msgspec.json.encode(other), partition=0))
    odd = msgspec.structs.replace(one, group="x")
    site.broker.append(Record(topic="telemetry.summary", key=b"k", value=msgspec.json.encode(odd), partition=0))
    site.run(1.0, server)
    account = server[0].accounts["telemetry.summary"]
    assert dict(account.reasons) == {"other-device": 1, "other-stream": 1, "other-server": 1}
    assert account.balance == 0


@pytest.mark.parametrize("stream", ["ingest.buffers", "flagging"])
def test_a_summary_that_contradicts_itself_becomes_one_dead_letter(icd: Icd, stream: str) -> None:
    """Each server that keeps its group wrote one. The server that sets it aside need not show the stream."""
    site = Site(icd)
    servers = [
        site.server("control", SdpMaster=[MASTER]),
        site.server("ingest-00", SdpIngestNode=nodes(0, 1)),
        site.server("quality", SdpQuality=["mid-sdp/quality/01"]),
    ]
    one = plan(icd, stream).summary("0", 0, 1, site_partial(), OffsetRange("a", 0, 1))
    bad = msgspec.structs.replace(one, offset_from=5)
    site.broker.append(Record(topic="telemetry.summary", key=b"k", value=msgspec.json.encode(bad), partition=0))
    site.run(1.0, *servers)
    (letter,) = site.broker.read("dead-letters")
    assert dict(letter.headers)["dl.by"] == b"control"
    accounts = [server[0].accounts["telemetry.summary"] for server in servers]
    assert [dict(one.reasons) for one in accounts] == [{"inconsistent": 1}, {"other-server": 1}, {"other-server": 1}]


def site_partial():
    from facade.sdp.messages import Partial

    return Partial(epoch=0, window=0, late=True, count=1, time_min=0, time_max=0, runs=[], fields={})


def test_a_lost_summary_of_a_group_that_is_no_node_is_named(icd: Icd) -> None:
    """Each in turn, between two others of its group. The groups skip transactions, which is no loss."""
    site, plan_ = Site(icd), plan(icd, "workflows")
    streams = [site.stream("workflows", [name]) for name in ("imaging", "calibration")]
    for turn in range(12):
        for every, stream in enumerate(streams, 1):
            site.send(stream, 3 if turn % every == 0 else 0)
        site.run(1.5)
    records = [one for one in site.broker.read("telemetry.summary") if one.key.startswith(b"workflows/")]
    summaries = [json.loads(one.value) for one in records]
    named = 0

    def read(some: list[Record]) -> list[str]:
        ledger = WindowLedger(plan_, (), per_group=True, over_all=False)
        flow = TelemetryFlow("telemetry.summary", {plan_.topic: plan_}, {plan_.topic: ledger}, [], None, Racks(2, 1))
        assert [flow.fold(one, count=True) for one in some] == [USED] * len(some)
        return [text for _, text in flow.lost_before()]

    assert read(records) == []
    for at, lost in enumerate(summaries):
        mine = [number for number, one in enumerate(summaries) if one["group"] == lost["group"]]
        found = read([*records[:at], *records[at + 1 :]])
        if at in (mine[0], mine[-1]):
            assert found == [], "nothing before it was read, or nothing came after it"
            continue
        named += 1
        (text,) = found
        assert f"to {lost['offset_to'] - 1} have lost summaries" in text
    assert named > 5


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("ingest.buffers", "--group", "abc"), "--group: expected numbers as the groups of ingest.buffers, got abc"),
        *(
            (("storage", "--range", text), f"used, free, products, got {text}")
            for text in ("used=nan:1", "used=0:nan", "used=0:inf", "products=0:1e19", "used=-1e308:1e308")
        ),
    ],
)
def test_an_option_of_the_simulator_that_makes_no_sense_is_refused_in_words(
    words: tuple[str, ...], refusal: str
) -> None:
    with pytest.raises((ConfigError, typer.BadParameter), match=re.escape(refusal)):
        app(["simulate", "telemetry", *words, "--count", "0", "--bootstrap", "127.0.0.1:1"], standalone_mode=False)
