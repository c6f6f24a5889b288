"""The ingest simulator against a real broker: the report is what a reader finds."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from facade.bus.kafka.admin import find_range
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.read_range import read_range
from facade.bus.kafka.topics import create_topics
from facade.bus.port import Record
from facade.codec.columns import ColumnDecoder
from facade.config import Settings
from facade.flows.telemetry.simulator.ingest import HeapReport, read_report
from facade.icd.load import load
from facade.infra import local
from facade.sequences import SeenNumbers
from tests.support.waiting import HANG, until

pytestmark = pytest.mark.kafka

ICD = load()
TOPIC = "ingest.heaps"
COMMAND = [str(Path(sys.executable).with_name("sdp-facade")), "simulate", "ingest"]
EVERYTHING = (
    "--gaps 0.001 --duplicates 0.001 --disorder 0.001 --late 0.001 --ahead 0.001 --garbage 0.005"
    " --silence 1:0.5:1 --skew 3:-60"
).split()


def connect(infra: local.Endpoints, prefix: str) -> Connection:
    connection = Connection(Settings(bootstrap=infra.bootstrap, prefix=prefix))
    assert create_topics(connection, {TOPIC: ICD.topics[TOPIC]}) == []
    return connection


def simulate(connection: Connection, file: Path, options: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "--nodes", "4", "--report", str(file), *options],
        env={**os.environ, "KAFKA_BOOTSTRAP": connection.bootstrap, "SDP_TOPIC_PREFIX": connection.prefix},
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(file: Path) -> None:
    until(file.exists, f"{file.name} is written")


def read_all(connection: Connection) -> list[Record]:
    return [*read_range(connection, TOPIC, find_range(connection, TOPIC))]


def compare(records: list[Record], report: HeapReport, *, exact_lateness: bool = True) -> None:
    """Judge each record against the time at which the broker appended it, and count as the report does."""
    assert len(records) == report.sent == report.queued == report.expected.consumed
    table = ColumnDecoder("heap", ICD.messages["heap"]).decode([record.value for record in records])
    refused = Counter(str(entry.reason) for entry in table.unused.values())
    assert {"tombstone": refused.pop("tombstone", 0)} == {"tombstone": 0, **report.expected.suppressed}
    columns = table.columns
    appended = np.array([record.timestamp_us for record in records])[table.index]
    stranger = columns["node"] >= 4
    ahead = (columns["time"] > appended + 5_000_000) & ~stranger
    late = columns["time"] < appended - 10_000_000
    refused.update({"unknown-node": int(stranger.sum()), "time-ahead": int(ahead.sum())})
    assert +refused == report.expected.dead_lettered
    for node, account in report.nodes.items():
        mine = (columns["node"] == int(node)) & ~ahead
        used = mine & ~late
        seen = SeenNumbers(limit=10**9)
        for seq in columns["seq"][mine].tolist():
            seen.add([(seq, seq)], 1)
        assert (account.missing, account.duplicates) == (seen.missing, seen.duplicates)
        assert account.used + account.late == int(mine.sum())
        if not exact_lateness:
            continue
        assert account.late == int((mine & late).sum())
        for name, field in (("received", "received"), ("lost", "lost"), ("late_packets", "late")):
            assert getattr(account, name) == int(columns[field][used].sum())
    assert all(record.key is not None for record in records)


def test_the_report_is_what_arrived(infra: local.Endpoints, tmp_path: Path) -> None:
    """With each fault, counted again from what a reader gets."""
    connection = connect(infra, "simulate-bad.")
    file = tmp_path / "sent.json"
    process = simulate(connection, file, ["--rate", "20000", "--seconds", "2", *EVERYTHING])
    _, stderr = process.communicate(timeout=HANG)
    assert process.returncode == 0, stderr
    report = read_report(file)
    assert report.finished
    assert report.certain
    assert report.stopped_by == "seconds"
    assert report.heaps == 40_000
    assert all(report.fired.values())
    compare(read_all(connection), report)


def test_nothing_is_lost_or_doubled_when_the_broker_dies(infra: local.Endpoints, tmp_path: Path) -> None:
    """The broker is killed in the middle and comes back: what arrived is what the report says."""
    connection = connect(infra, "simulate-killed.")
    file = tmp_path / "sent.json"
    process = simulate(
        connection, file, ["--rate", "5000", "--count", "40000", "--duplicates", "0.01", "--gaps", "0.01"]
    )
    wait_for(file)
    local.stop_services(infra.state_dir, "kafka", kill=True)
    local.start_services(infra.state_dir, "kafka")
    _, stderr = process.communicate(timeout=HANG)
    assert process.returncode == 0, stderr
    report = read_report(file)
    assert report.heaps == 40_000
    assert report.longest_wait > 0.5
    compare(read_all(connection), report, exact_lateness=report.certain)
