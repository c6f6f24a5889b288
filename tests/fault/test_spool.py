"""The producer of heap notifications on a real broker: outages, and kill -9 of the producer in one and after it.

Records that waited for a worker that was away are not late. Those that waited for the broker are. Totals have all.
"""

import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from facade.sdp.batches import BatchReader, ReadBatch
from tests.conftest import Deploy
from tests.support.deployment import BUS, ICD, MASTER, Deployment, node_device
from tests.support.processes import Running
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

_AWAY = 12.0
"""Longer than records may be late, and than sessions and transactions last [s]."""

PRODUCER = """
import signal, sys, threading, time
import numpy as np
from facade.sdk.producer.heaps import HeapProducer

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
seq, scan = 0, int(sys.argv[2])
with HeapProducer(0, sys.argv[1], rows=500) as producer:
    producer.start()
    while not stop.wait(0.05):
        ones = np.ones(100, int)
        producer.add_columns(
            scan_id=scan, channel_count=64, seq=np.arange(seq, seq + 100), time=ones * (time.time_ns() // 1000),
            channel_start=ones, received=ones, lost=0 * ones, late=0 * ones, flagged_fraction=0.5 * ones,
            latency=0.5 * ones)
        seq += 100
        producer.flush()
        sys.stdout.write(f"stored {seq}\\n")  # one write: the library's own lines go to the same file
        sys.stdout.flush()
    producer.close(100)
    assert producer.standing.waiting == 0, producer.standing
"""


def start(deployment: Deployment, spool: Path, scan: int) -> Running:
    return deployment.start(f"producer-{scan}", [sys.executable, "-c", PRODUCER, str(spool), str(scan)])


def stored(producer: Running) -> int:
    """Return how many notifications it has said to be in its spool."""
    lines = [line.split() for line in producer.text.rpartition("\n")[0].splitlines()]
    return max((int(words[1]) for words in lines if words[:1] == ["stored"]), default=0)


def on_log(deployment: Deployment) -> tuple[dict[int, list[int]], int]:
    """Return the sequence numbers on the log by scan, and how many the broker took too late for their window."""
    reader, found, late = BatchReader(ICD.messages["heap"], ["seq", "time"]), defaultdict[int, list[int]](list), 0
    window = ICD.topics["ingest.heaps"].window
    assert window is not None
    for message in deployment.messages("ingest.heaps"):
        batch = reader.read(message.value() or b"", tuple(message.headers() or ()))
        assert isinstance(batch, ReadBatch), batch
        bases, columns = batch.header.bases, batch.content.columns
        found[int(batch.header.constants["scan_id"])] += [bases["seq"] + int(one) for one in columns["seq"]]
        times = bases["time"] + columns["time"].astype(int)
        late += int((times < message.timestamp()[1] * 1000 - window.lateness * 1e6).sum())
    return found, late


@pytest.mark.slow
def test_the_spool_outlives_the_broker_and_the_producer(deploy: Deploy, tmp_path: Path) -> None:
    """Each notification that was in the spool is on the log once, in order, and in the totals."""
    deployment = deploy(nodes=1)
    deployment.serve()
    worker = deployment.worker()
    spool, broker = tmp_path / "spool", deployment.broker

    def goes_on(producer: Running, seconds: float = 0.0) -> None:
        before, begin = stored(producer), time.monotonic()
        until(lambda: stored(producer) > before and time.monotonic() - begin > seconds, "the producer stores")

    first = start(deployment, spool, 1)
    until(lambda: deployment.read_one(node_device(0), "heapsTotal"), "the first heaps are counted")
    worker.kill()
    goes_on(first, _AWAY)
    deployment.worker(log="second-worker")
    until(lambda: (deployment.read_one(node_device(0), "heapsTotal") or 0) > stored(first) / 2, "it catches up")
    late_before = on_log(deployment)[1]
    broker.kill()
    goes_on(first, _AWAY)
    first.kill()
    second = start(deployment, spool, 2)
    goes_on(second)
    broker.start()
    until(lambda: on_log(deployment)[0][2], "what was stored goes to the log")
    second.kill()
    third = start(deployment, spool, 3)
    goes_on(third)
    assert third.terminate() == 0, third.tail()

    found, late = on_log(deployment)
    for scan, producer in enumerate((first, second, third), 1):
        assert found[scan] == list(range(len(found[scan]))), f"scan {scan} has holes, repeats or another order"
        assert len(found[scan]) >= stored(producer), f"scan {scan} lacks what was stored"
    count = sum(len(seqs) for seqs in found.values())
    assert late > late_before, "the broker was away for long enough"
    deployment.forget_proxies()

    def figures() -> list[object]:
        totals = [deployment.read(one, "heapsTotal", "heapsLate") for one in (node_device(0), MASTER)]
        return [*totals, deployment.read(BUS, "ingestHeapsConsumed", "ingestHeapsLate", "ingestHeapsBalance")]

    bus = {"ingestHeapsConsumed": count, "ingestHeapsLate": late, "ingestHeapsBalance": 0}
    both = {"heapsTotal": count, "heapsLate": late}
    until_equal(figures, [both, both, bus], "totals are what was sent")
