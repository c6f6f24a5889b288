"""A deployment whose topics are gone goes on from its archive, through real processes on a real broker."""

import json
from pathlib import Path
from typing import Any

import pytest
import tango
from confluent_kafka import Message

from facade.flows.archive.reading import newest_entries
from facade.flows.archive.stores import FolderStore
from facade.flows.telemetry.simulator.ingest import HeapReport
from facade.runtime.snapshots import Snapshot, decode_snapshot
from tests.conftest import Deploy
from tests.support import topics
from tests.support.alerting import alert
from tests.support.deployment import BUS, ICD, MASTER, Deployment, subarray_device
from tests.support.processes import Running
from tests.support.tables import cut
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

ALERTS, SUBARRAY = "mid-sdp/alerts/0", subarray_device(1)
INSTANCES = ("control", "ingest-00", "subarray", "alerts")
SOURCE = "receive/1"
AS_THEY_WERE = ("ingest.heaps", "alerts", "commands", "command-acks", "calibration")
"""Topics whose records name no log, and of which Kafka forgets nothing."""
WRITTEN = (*AS_THEY_WERE, "ingest.summary", "accounts", "positions", "snapshots", "state", "tables")


def started(deployment: Deployment) -> list[Running]:
    """Start all that a deployment has, and wait until it has read what is there."""
    processes = [deployment.worker(), deployment.launch("assemble", "tables", "assemble")]
    servers = {name: deployment.server(name, ready=False) for name in INSTANCES}
    for name, server in servers.items():
        deployment.await_server(server, name)
    return [*processes, *servers.values(), deployment.controller()]


def stop(deployment: Deployment, processes: list[Running]) -> None:
    for process in processes:
        process.kill()
        deployment.processes.forget(process.name)
    deployment.forget_proxies()


def sent(deployment: Deployment, scan: int) -> HeapReport:
    faults = [word for fault in ("garbage", "duplicates", "gaps") for word in (f"--{fault}", 0.01)]
    options = ["--count", 1000, "--rate", 2000, "--scan-id", scan, *faults]
    return deployment.simulate(*options, name=f"simulate-{scan}").finish()


def counted(*reports: HeapReport) -> dict[str, int]:
    """Return what is to be shown of some scans; what is missing and what came twice is that of the last one."""
    expected, nodes = [one.expected for one in reports], reports[-1].nodes.values()
    return {
        "consumed": sum(one.consumed for one in expected),
        "used or late": sum(one.used + one.late for one in expected),
        "dead letters": sum(sum(one.dead_lettered.values()) for one in expected),
        "missing": sum(one.missing for one in nodes),
        "twice": sum(one.duplicates for one in nodes),
        "wrong": 0,
    }


def shown(deployment: Deployment) -> dict[str, Any]:
    bus = ("Consumed", "Used", "Late", "DeadLettered", "Balance", "Overlap", "Skipped")
    found = {name: value or 0 for name, value in deployment.read(BUS, *(f"ingestHeaps{one}" for one in bus)).items()}
    totals = deployment.read(MASTER, "heapsTotal", "heapsLate", "heapsMissing", "heapsDuplicated")
    used, late, missing, twice = (value or 0 for value in totals.values())
    agree = used + late == found["ingestHeapsUsed"] + found["ingestHeapsLate"]
    return {
        "consumed": found["ingestHeapsConsumed"],
        "used or late": used + late if agree else -1,
        "dead letters": found["ingestHeapsDeadLettered"],
        "missing": missing,
        "twice": twice,
        "wrong": sum(found[f"ingestHeaps{one}"] for one in ("Balance", "Overlap", "Skipped")),
    }


def numbers(deployment: Deployment) -> dict[str, int]:
    """Return the numbers of the test's alerts, as a client gets them, by text."""
    try:
        entries = json.loads(deployment.proxy(ALERTS).GetAlertsSince(0))["entries"]
    except tango.DevFailed:
        return {}
    alerts = [(entry["sequence"], entry["alert"]) for entry in entries if entry.get("alert")]
    return {one["text"]: number for number, one in alerts if one["source"] == SOURCE}


def offsets(deployment: Deployment) -> dict[str, int]:
    """Return the numbers that the same alerts have by their offsets on the bus, which begin with 0."""
    records = [(json.loads(one.value()), one.offset()) for one in deployment.messages("alerts")]
    return {one["text"]: at + 1 for one, at in records if one.get("source") == SOURCE}


def cuts(deployment: Deployment) -> dict[str, int]:
    """Return how often a log was another one, or had lost records, by device server and topic."""
    found = [decode_snapshot(one.value()) for one in deployment.messages("snapshots") if one.value()]
    return {
        f"{one.instance}/{one.topic}": one.account.log_cuts + one.account.skipped + one.account.overlap
        for one in found
        if isinstance(one, Snapshot)
    }


def content(message: Message) -> tuple[object, ...]:
    where = message.partition(), message.offset()
    return *where, message.timestamp()[1], message.key(), message.value(), message.headers()


def test_numbers_totals_positions_and_states_go_on(deploy: Deploy, tmp_path: Path) -> None:
    """What nobody had taken when all was lost is counted afterwards, and nothing is counted twice."""
    deployment, folder = deploy(nodes=2, subarrays=1, patient=True), tmp_path / "archive"
    store = FolderStore(folder)
    archive = deployment.launch("archive", "archive", "run", folder, "--every", "0.2s")
    processes = started(deployment)
    first = sent(deployment, 1)
    deployment.send(*(alert(number, text=f"alert {number}") for number in (1, 2, 3)))
    deployment.send(*cut("table-1", b"abcdef", 2, product="subarray/01/other"))
    until(lambda: len(numbers(deployment)) == 3, "the alerts are shown")
    deployment.proxy(SUBARRAY).command_inout("On")
    until_equal(lambda: deployment.read_one(SUBARRAY, "State"), tango.DevState.ON, "the subarray is on")
    until_equal(lambda: shown(deployment), counted(first), "totals are what was sent")
    until(lambda: any(b"COMPLETE" in one.value() for one in deployment.messages("tables")), "the table is announced")
    until(
        lambda: {"SdpFacade-ingest-00/ingest.summary", "SdpFacade-alerts/alerts"} <= cuts(deployment).keys(),
        "there are snapshots",
    )
    stop(deployment, processes)
    untaken = sent(deployment, 2)
    deployment.send(alert(4, text="alert 4"))

    def missing() -> list[str]:
        kept = {(one.topic, one.partition): one.next for one in newest_entries(store, WRITTEN)}
        lasts = {(name, one.partition()): one.offset() for name in WRITTEN for one in deployment.messages(name)}
        return [name for (name, partition), last in lasts.items() if kept.get((name, partition), 0) <= last]

    until_equal(missing, [], "all is in the archive")
    assert archive.terminate() == 0
    deployment.processes.forget(archive.name)
    known = offsets(deployment)
    before = {name: sorted(map(content, deployment.messages(name)), key=lambda one: one[:2]) for name in AS_THEY_WERE}

    topics.delete(deployment.bootstrap, deployment.prefix)
    said = deployment.command("archive", "restore", str(folder))
    assert "each at its offset" in said
    after = {name: sorted(map(content, deployment.messages(name)), key=lambda one: one[:2]) for name in AS_THEY_WERE}
    assert after == before
    assert deployment.create_topics() == [], "topics are as the ICD says"

    started(deployment)
    until_equal(lambda: shown(deployment), counted(first, untaken), "totals go on")
    until(lambda: "alert 4" in numbers(deployment), "the alert that nobody had seen is shown")
    until_equal(lambda: deployment.read_one(SUBARRAY, "State"), tango.DevState.ON, "the state goes on")
    last = sent(deployment, 3)
    deployment.send(alert(5, text="alert 5"))
    until_equal(lambda: numbers(deployment), known | offsets(deployment), "numbers go on")
    assert len(numbers(deployment)) == 5
    until_equal(lambda: shown(deployment), counted(first, untaken, last), "each record is counted once")
    assert set(cuts(deployment).values()) == {0}
    assert ICD.topics.keys() >= set(WRITTEN)
