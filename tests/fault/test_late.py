"""Records that waited: for a worker they are not late, for the broker they are late, and totals have them all."""

import time
from pathlib import Path

import pytest

from facade.codec.batches import BatchReader, ReadBatch
from tests.conftest import Deploy
from tests.fault.test_spool import start, stored
from tests.support.deployment import BUS, ICD, MASTER, Deployment, node_device
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

_AWAY = 12.0
"""Longer than records may be late [s]."""


def on_log(deployment: Deployment) -> tuple[int, int]:
    """Return how many notifications are on the log, and how many of them the broker took too late for their window."""
    reader, window = BatchReader(ICD.messages["heap"], ["seq", "time"]), ICD.topics["ingest.heaps"].window
    assert window is not None
    count = late = 0
    for message in deployment.messages("ingest.heaps"):
        batch = reader.read(message.value() or b"", tuple(message.headers() or ()))
        assert isinstance(batch, ReadBatch), batch
        times = batch.header.bases["time"] + batch.content.columns["time"].astype(int)
        count += batch.rows
        late += int((times < message.timestamp()[1] * 1000 - window.lateness * 1e6).sum())
    return count, late


@pytest.mark.slow
def test_totals_have_what_a_producer_held_back_and_what_waits_for_a_worker_is_not_late(
    deploy: Deploy, tmp_path: Path
) -> None:
    """After an outage of the broker 2.8 million of 44.7 million heaps were in no total."""
    deployment = deploy(nodes=1)
    deployment.serve()
    worker = deployment.worker()
    producer = start(deployment, tmp_path / "spool", 1)

    def wait_for(seconds: float) -> None:
        before, begin = stored(producer), time.monotonic()
        until(lambda: stored(producer) > before and time.monotonic() - begin > seconds, "the producer goes on")

    def figures() -> dict[str, object]:
        node = deployment.read(node_device(0), "heapsTotal", "heapsLate")
        master = deployment.read(MASTER, "heapsTotal", "heapsLate")
        return {**{f"master {name}": value for name, value in master.items()}, **node, **account()}

    def account() -> dict[str, object]:
        bus = deployment.read(BUS, "ingestHeapsUsed", "ingestHeapsLate", "ingestHeapsBalance")
        used, late, balance = bus.values()
        return {"used and late": (used or 0) + (late or 0), "late": late, "balance": balance}

    until(lambda: deployment.read_one(node_device(0), "heapsTotal"), "the first heaps are counted")
    worker.kill()
    wait_for(_AWAY)
    deployment.worker(log="second-worker")
    until(lambda: (deployment.read_one(node_device(0), "heapsTotal") or 0) > stored(producer) / 2, "it catches up")
    before = on_log(deployment)[1]
    deployment.broker.kill()
    wait_for(_AWAY)
    deployment.broker.start()
    assert producer.terminate() == 0, producer.tail()
    count, late = on_log(deployment)
    assert count == stored(producer)
    assert late > before, "the broker was away for long enough"
    both = {"heapsTotal": count, "heapsLate": late}
    wanted = {**{f"master {name}": value for name, value in both.items()}, **both}
    deployment.forget_proxies()
    until_equal(figures, wanted | {"used and late": count, "late": late, "balance": 0}, "totals are what was sent")
