"""A deployment whose brokers are lost goes on from its archive, through real processes on brokers of another site."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tango
from confluent_kafka import Message

from facade.archive.reading import newest_entries
from facade.archive.stores import FolderStore
from facade.flows.alerts.follower import Follower
from facade.flows.telemetry.simulator.ingest import HeapReport
from facade.infra import local
from facade.kernel.bus.port import Record
from facade.kernel.runtime.snapshots import Snapshot, decode_snapshot
from tests.support.alerting import alert
from tests.support.deployment import BUS, ICD, MASTER, Deployment, subarray_device
from tests.support.processes import Running
from tests.support.tables import cut
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

ALERTS, SUBARRAY = "mid-sdp/alerts/0", subarray_device(1)
SOURCE = "receive/1"
INSTANCES = ("control", "ingest-00", "subarray", "alerts")
AS_THEY_WERE = ("ingest.heaps", "alerts", "commands", "command-acks", "calibration")
"""Topics whose records name no log, and of which Kafka forgets nothing."""
WRITTEN = (*AS_THEY_WERE, "ingest.summary", "accounts", "positions", "snapshots", "state", "tables")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[local.Endpoints]:
    """Return the addresses of a broker and a Tango database of another site."""
    state_dir = tmp_path / "site"
    try:
        yield local.up(local.LocalOptions(state_dir=state_dir, kafka_heap="256m"))
    finally:
        local.down(state_dir, wipe=True)


def started(deployment: Deployment) -> list[Running]:
    """Start all that a deployment has, and wait until it has read what is there."""
    processes = [deployment.worker(), deployment.launch("assemble", "tables", "assemble", "--slot", "0")]
    servers = {name: deployment.server(name, ready=False) for name in INSTANCES}
    for name, server in servers.items():
        deployment.await_server(server, name)
    return [*processes, *servers.values(), deployment.controller()]


def stop(deployment: Deployment, processes: list[Running]) -> None:
    for process in processes:
        process.kill()
        deployment.processes.forget(process.name)
    deployment.forget_proxies()


def sent(deployment: Deployment, scan: int, *, faulty: bool = True) -> HeapReport:
    faults = [word for fault in ("garbage", "duplicates", "gaps") for word in (f"--{fault}", 0.01)] if faulty else []
    options = ["--count", 1000, "--rate", 2000, "--scan-id", scan, *faults]
    return deployment.simulate(*options, name=f"simulate-{scan}").finish()


def counted(*reports: HeapReport, again: int = 0, twice: int = 0) -> dict[str, int]:
    """Return what is to be shown of some scans; what is missing and what came twice is that of the last one.

    `again`: records that were sent once more after all; `twice`: those of them that are of the last scan.
    """
    expected, nodes = [one.expected for one in reports], reports[-1].nodes.values()
    return {
        "consumed": sum(one.consumed for one in expected) + again,
        "used or late": sum(one.used + one.late for one in expected) + again,
        "dead letters": sum(sum(one.dead_lettered.values()) for one in expected),
        "missing": sum(one.missing for one in nodes),
        "twice": sum(one.duplicates for one in nodes) + twice,
        "wrong": 0,
    }


def shown(deployment: Deployment) -> dict[str, Any]:
    bus = ("Consumed", "Used", "Late", "DeadLettered", "Balance", "Overlap", "Skipped")
    found = {name: value or 0 for name, value in deployment.read(BUS, *(f"ingestHeaps{one}" for one in bus)).items()}
    totals = deployment.read(MASTER, "heapsTotal", "heapsMissing", "heapsDuplicated")
    total, missing, twice = (value or 0 for value in totals.values())
    agree = total == found["ingestHeapsUsed"] + found["ingestHeapsLate"]
    return {
        "consumed": found["ingestHeapsConsumed"],
        "used or late": total if agree else -1,
        "dead letters": found["ingestHeapsDeadLettered"],
        "missing": missing,
        "twice": twice,
        "wrong": sum(found[f"ingestHeaps{one}"] for one in ("Balance", "Overlap", "Skipped")),
    }


def numbers(deployment: Deployment) -> dict[str, int]:
    """Return the numbers of the test's alerts, as a client gets them, by text."""
    try:
        return heard(deployment, Follower(0))
    except tango.DevFailed:
        return {}


def heard(deployment: Deployment, client: Follower) -> dict[str, int]:
    """Return the numbers of the test's alerts that a client has not had before, by text."""
    asked = client.seen
    entries = client.add_page(asked, deployment.proxy(ALERTS).GetAlertsSince(asked))
    return {one.alert["text"]: one.sequence for one in entries if one.alert and one.alert["source"] == SOURCE}


def cuts(deployment: Deployment) -> dict[str, int]:
    """Return how often a log was another one, or had lost records, by device server and topic."""
    found = [decode_snapshot(one.value()) for one in deployment.messages("snapshots") if one.value()]
    return {
        f"{one.instance}/{one.topic}": one.account.log_cuts + one.account.skipped + one.account.overlap
        for one in found
        if isinstance(one, Snapshot)
    }


def content(deployment: Deployment) -> dict[str, list[Any]]:
    """Return all there is of records that stay as they were, by topic and in the order of offsets."""

    def read(message: Message) -> tuple[Any, ...]:
        where = message.partition(), message.offset()
        return *where, message.timestamp()[1], message.key(), message.value(), message.headers()

    return {name: sorted(map(read, deployment.messages(name)), key=lambda one: one[:2]) for name in AS_THEY_WERE}


def test_numbers_totals_positions_and_states_go_on_at_another_site(
    infra: local.Endpoints, site: local.Endpoints, tmp_path: Path
) -> None:
    """An archived record is counted once, also if its source sends it again; one that is in no file is missing."""
    folder = tmp_path / "archive"
    store = FolderStore(folder)
    with Deployment(infra, tmp_path, nodes=2, subarrays=1, patient=True) as deployment:
        deployment.move(site)
        deployment.prepare()
        archive = deployment.launch("archive", "archive", "run", folder, "--every", "0.2s")
        processes, client = started(deployment), Follower(0)
        first = sent(deployment, 1)
        deployment.send(*(alert(number, text=f"alert {number}") for number in (1, 2, 3)))
        deployment.send(*cut("table-1", b"abcdef", 2, product="subarray/01/other"))
        until(lambda: len(numbers(deployment)) == 3, "the alerts are shown")
        deployment.proxy(SUBARRAY).command_inout("On")
        until_equal(lambda: deployment.read_one(SUBARRAY, "State"), tango.DevState.ON, "the subarray is on")
        until_equal(lambda: shown(deployment), counted(first), "totals are what was sent")
        until(
            lambda: any(b"COMPLETE" in one.value() for one in deployment.messages("tables")), "the table is announced"
        )
        until(
            lambda: {"SdpFacade-ingest-00/ingest.summary", "SdpFacade-alerts/alerts"} <= cuts(deployment).keys(),
            "there are snapshots",
        )
        stop(deployment, [one for one in processes if one.name != "alerts"])
        untaken = sent(deployment, 2, faulty=False)
        deployment.send(alert(4, text="alert 4"))

        def missing() -> list[str]:
            kept = {(one.topic, one.partition): one.next for one in newest_entries(store, WRITTEN)}
            lasts = {(name, one.partition()): one.offset() for name in WRITTEN for one in deployment.messages(name)}
            return [name for (name, partition), last in lasts.items() if kept.get((name, partition), 0) <= last]

        stop(deployment, [one for one in processes if one.name == "alerts"])
        until_equal(missing, [], "all is in the archive")
        archive.kill()
        deployment.processes.forget(archive.name)
        # The worker itself may have written an alert since then, which is in no file.
        kept = {(one.topic, one.partition): one.next for one in newest_entries(store, WRITTEN)}
        before = {
            name: [one for one in records if one[1] < kept.get((name, one[0]), 0)]
            for name, records in content(deployment).items()
        }
        alerts = deployment.server("alerts")
        until(lambda: "alert 4" in numbers(deployment), "the alert is shown")
        known = heard(deployment, client)
        sent(deployment, 3)
        deployment.send(alert(5, text="alert 5"))
        until(lambda: "alert 5" in numbers(deployment), "an alert is shown that is in no file")
        lost = heard(deployment, client)
        local.stop_services(site.state_dir, local.ServiceName.KAFKA, kill=True)
        stop(deployment, [alerts])

        deployment.move(infra)
        said = deployment.command("archive", "restore", str(folder))
        assert "each at its offset" in said
        after = content(deployment)
        told, after["alerts"] = after["alerts"][-2:], after["alerts"][:-2]
        assert after == before
        assert all(b'"topicsRestored"' in one[4] for one in told)
        assert deployment.create_topics() == [], "topics are as the ICD says"

        started(deployment)
        until_equal(lambda: shown(deployment), counted(first, untaken), "totals go on")
        until_equal(lambda: deployment.read_one(SUBARRAY, "State"), tango.DevState.ON, "the state goes on")
        until_equal(lambda: deployment.read_one(BUS, "ingestHeapsLag"), 0, "offsets that are left out are no lag")
        again = [
            Record(topic="ingest.heaps", partition=partition, key=key, value=value, headers=headers or ())
            for partition, _, _, key, value, headers in before["ingest.heaps"][-20:]
        ]
        deployment.send(*again, alert(6, text="alert 6"))
        until(lambda: "alert 6" in numbers(deployment), "a new alert is shown")
        new = heard(deployment, client)
        assert list(new) == ["alert 6"]
        assert new["alert 6"] > lost["alert 5"] > known["alert 4"], "no number is given twice"
        assert client.made_anew == 0
        assert numbers(deployment) == known | new
        until_equal(lambda: deployment.read_one(ALERTS, "alertsMissing"), 1, "the lost alert is missed")
        many = len(again)
        until_equal(lambda: shown(deployment), counted(first, untaken, again=many, twice=many), "they are known again")
        last = sent(deployment, 4)
        until_equal(lambda: shown(deployment), counted(first, untaken, last, again=many), "each record is counted once")
        assert set(cuts(deployment).values()) == {0}
        issues = deployment.read_one(MASTER, "healthIssues") or ()
        assert not [one for one in issues if "logCut" in one], "an empty stream has lost nothing"
        assert ICD.topics.keys() >= set(WRITTEN)
