"""Windowed topics other than heaps, from simulator to Tango through real processes; a worker is killed meanwhile."""

import json

import pytest

from tests.conftest import Deploy
from tests.support.deployment import BUS, MASTER, node_device
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]


def test_totals_of_several_streams_are_what_was_sent(deploy: Deploy) -> None:
    """One worker takes them all; a kill loses nothing and counts nothing twice."""
    deployment = deploy(nodes=2)
    worker = deployment.worker()
    deployment.serve()
    sent = {topic: deployment.folder / f"{topic}.json" for topic in ("ingest.buffers", "storage")}
    started = [
        deployment.launch(
            f"send-{topic}", "simulate", "telemetry", topic, "--rate", 100, "--count", 300, "--report", file, ends=True
        )
        for topic, file in sent.items()
    ]
    until(lambda: deployment.read_one(node_device(0), "bufferDroppedTotal"), "the first totals")
    worker.kill()
    deployment.worker(log="aggregate-again")
    until(lambda: not any(process.running for process in started), "all is sent")
    accounts = {topic: json.loads(file.read_text())["groups"] for topic, file in sent.items()}
    buffers = {node: accounts["ingest.buffers"][str(node)]["sums"]["dropped"] for node in range(2)}
    until_equal(
        lambda: {node: deployment.read_one(node_device(node), "bufferDroppedTotal") for node in range(2)},
        buffers,
        "totals by node",
    )
    products = accounts["storage"][""]["sums"]["products"]
    until_equal(lambda: deployment.read_one(MASTER, "productsStoredTotal"), products, "the total without groups")
    names = ("ingestBuffersUsed", "ingestBuffersBalance", "storageUsed", "storageBalance", "telemetrySummaryBalance")
    wanted = dict(zip(names, (300, 0, 300, 0, 0), strict=True))
    until_equal(lambda: deployment.read(BUS, *wanted), wanted, "the accounts")
