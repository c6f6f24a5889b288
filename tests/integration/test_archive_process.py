"""The archive worker as a process on a real broker: killed again and again, the files have what is on the bus."""

import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from facade.archive.files import ArchiveError
from facade.archive.history import HistoryArchive, Point
from facade.archive.post_mortem import digest_of, post_mortems
from facade.archive.recording import HISTORY
from facade.archive.stores import FolderStore, open_store
from facade.flows.alerts.messages import Alert, alert_record
from facade.kernel.bus.port import Record
from facade.kernel.clock import SystemClock, utc_text
from tests.conftest import Deploy
from tests.support.archives import kept
from tests.support.deployment import Deployment
from tests.support.processes import Running
from tests.support.waiting import HANG, until

pytestmark = pytest.mark.kafka

NO_TANGO = "127.0.0.1:1"
COMPACTED = "state"
TOPICS = ("alerts", COMPACTED, "ingest.heaps")
Known = set[tuple[object, ...]]
EACH = 1000
KILLS = 2
SHARDS = 2
"""Workers that share the partitions."""


def upstream(deployment: Deployment, first: int) -> None:
    """Write to all topics, partly in transactions, of which one is aborted: its records are never archived."""
    deployment.send(
        *(
            Record(topic=topic, key=b"%d" % (number % 7), value=b"%d" % number, headers=(("n", b"%d" % number),))
            for number in range(first, first + EACH)
            for topic in TOPICS
        )
    )
    producer = Producer({"bootstrap.servers": deployment.bootstrap, "transactional.id": f"{deployment.prefix}upstream"})
    producer.init_transactions(HANG)
    for value in (b"committed", b"aborted", None):
        producer.begin_transaction()
        for topic in TOPICS:
            producer.produce(deployment.topic(topic), value, b"key")
        (producer.abort_transaction if value == b"aborted" else producer.commit_transaction)(HANG)


def on_the_bus(deployment: Deployment) -> Known:
    return {
        (
            topic,
            one.partition(),
            one.offset(),
            one.timestamp()[1] * 1000,
            one.key(),
            one.value(),
            *(one.headers() or ()),
        )
        for topic in TOPICS
        for one in deployment.messages(topic)
    }


def in_the_archive(store: FolderStore) -> Known:
    found = kept(store)
    known = {
        (one.topic, one.partition, one.offset, one.timestamp_us, one.key, one.value, *one.headers) for one in found
    }
    assert len(known) == len(found), "none is there twice"
    return known


def test_a_worker_that_is_killed_archives_each_record_once(deploy: Deploy, tmp_path: Path) -> None:
    deployment = deploy(prepare=False, tango_host=NO_TANGO)
    deployment.create_topics()
    folder = tmp_path / "archive"
    store = FolderStore(folder)
    words = ["sdp-facade", "archive", "run", str(folder), "--every", "0.2s"]
    words += [word for topic in TOPICS for word in ("--only", topic)]

    def start(shard: int) -> Running:
        return deployment.start(f"archive-{shard}", [*words, "--slot", f"{shard - 1}", "--shard", f"{shard}/{SHARDS}"])

    workers = {shard: start(shard) for shard in range(1, SHARDS + 1)}
    for number in range(KILLS):
        before = len(store.names())
        upstream(deployment, number * EACH)
        until(lambda before=before: len(store.names()) > before, "a further file is there")
        for shard, worker in workers.items():
            worker.kill()
            workers[shard] = start(shard)
    until(lambda: on_the_bus(deployment) <= in_the_archive(store), "all records are in files", every=0.5)
    assert [worker.terminate() for worker in workers.values()] == [0] * SHARDS
    said = {one.key() for topic in ("archive-reports", "alerts") for one in deployment.messages(topic)}
    assert {b"mid-sdp/archive/0/diskFree", b"archiveFailing"} <= said, "it reports itself, and clears old alarms"

    more = in_the_archive(store) - on_the_bus(deployment)
    assert {topic for topic, *_ in more} <= {COMPACTED}, "which the bus forgets"
    done = deployment.run("archive", "verify", folder)
    assert (done.returncode, done.stderr) == (0, b""), done.stdout


def test_a_device_server_that_is_killed_leaves_a_gap_in_the_history(deploy: Deploy, tmp_path: Path) -> None:
    """Nobody has subscribed to anything."""
    deployment = deploy(nodes=1)
    folder = tmp_path / "archive"
    archive, name = HistoryArchive(FolderStore(folder)), "mid-sdp/bus/0/connected"

    def points() -> list[Point]:
        try:
            return archive.read(name, 0, sys.maxsize // 1000).points
        except ArchiveError:  # there is no file yet, or none with the attribute
            return []

    words = ["sdp-facade", "archive", "run", str(folder), "--every", "0.2s", "--only", HISTORY]
    worker = deployment.start("archive", words)
    server = deployment.server("control", SDP_HISTORY="true")
    until(lambda: any(one.value for _, one in points()), "the history has the value")
    server.kill()
    before = points()[-1]
    deployment.server("control", name="control-again", SDP_HISTORY="true")
    until(lambda: any(one.gap for at, one in points() if at > before[0]), "the history has a gap")
    until(lambda: points()[-1][1].value, "the history has the newest value")
    assert worker.terminate() == 0

    printed = deployment.command("history", str(folder), name, "--since", "1h").splitlines()
    assert printed[0].split() == ["time", "(UTC)", "quality", "value"]
    assert any(line.startswith("-- values may be missing from ") for line in printed)
    assert printed[-1].endswith("true")
    assert f"{name} " in deployment.command("history", str(folder), "--at", utc_text(archive.extent()[1]))


def test_a_critical_alarm_has_a_post_mortem_whatever_is_killed(deploy: Deploy, tmp_path: Path) -> None:
    deployment = deploy(prepare=False, tango_host=NO_TANGO)
    deployment.create_topics()
    folder, place = tmp_path / "archive", f"{tmp_path / 'post-mortems'}"
    words = ["sdp-facade", "archive", "run", str(folder), "--every", "0.2s", "--post-mortems", place]
    words += ["--only", "alerts", "--only", COMPACTED]

    def keys() -> set[bytes | None]:
        return {one.key for name in open_store(place).inner() for one in kept(open_store(f"{place}/{name}"))}

    worker = deployment.start("archive", words)
    now = SystemClock().now_us()
    alert = Alert(
        condition="logCut", source="bus", severity="CRITICAL", state="ACTIVE", text="x", raised_at=now, sequence=1
    )
    deployment.send(Record(topic=COMPACTED, key=b"before", value=b"{}"), alert_record(alert))
    until(lambda: b"logCut" in keys(), "the alarm has a post-mortem")
    worker.kill()
    deployment.send(Record(topic=COMPACTED, key=b"behind", value=b"{}"))
    again = deployment.start("archive-again", words)
    until(lambda: b"behind" in {one.key for one in kept(FolderStore(folder))}, "a file has what came behind")
    again.kill()  # the next one looks at once
    again = deployment.start("archive-third", words)
    until(lambda: {b"before", b"behind", b"logCut"} <= keys(), "its records are whole")
    assert again.terminate() == 0
    (one,) = post_mortems(place)
    assert (one.alarm, one.title) == (digest_of("logCut", "bus"), "logCut-bus")
    deployment.command("archive", "verify", f"{place}/{one.name}")
