"""The producer of heap notifications on a real broker: an outage, and kill -9 of the producer in it and after it."""

import sys
from collections import defaultdict
from pathlib import Path

import pytest

from facade.codec.batches import BatchReader, ReadBatch
from tests.conftest import Deploy
from tests.support.deployment import ICD, Deployment
from tests.support.processes import Running
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

PRODUCER = """
import signal, sys, threading, time
import numpy as np
from facade.producer.heaps import HeapProducer

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
seq, scan = 0, int(sys.argv[2])
with HeapProducer(0, sys.argv[1], rows=500) as producer:
    producer.start()
    while not stop.wait(0.01):
        ones = np.ones(200, int)
        producer.add_columns(
            scan_id=scan, channel_count=64, seq=np.arange(seq, seq + 200), time=ones * (time.time_ns() // 1000),
            channel_start=ones, received=ones, lost=0 * ones, late=0 * ones, flagged_fraction=0.5 * ones,
            latency=0.5 * ones)
        seq += 200
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


def on_log(deployment: Deployment) -> dict[int, list[int]]:
    """Return the sequence numbers on the log in their order, by scan."""
    reader, found = BatchReader(ICD.messages["heap"], ["seq", "time"]), defaultdict[int, list[int]](list)
    for message in deployment.messages("ingest.heaps"):
        batch = reader.read(message.value() or b"", tuple(message.headers() or ()))
        assert isinstance(batch, ReadBatch), batch
        base = batch.header.bases["seq"]
        found[int(batch.header.constants["scan_id"])] += [base + int(one) for one in batch.content.columns["seq"]]
    return found


@pytest.mark.slow
def test_the_spool_outlives_the_broker_and_the_producer(deploy: Deploy, tmp_path: Path) -> None:
    """Each notification that was in the spool is on the log once, in order, and the workers count as many."""
    deployment = deploy(nodes=1)
    deployment.serve()
    deployment.worker()
    spool, broker = tmp_path / "spool", deployment.broker
    first = start(deployment, spool, 1)
    until(lambda: stored(first) > 3000, "the first producer stores")
    broker.kill()
    before = stored(first)
    until(lambda: stored(first) > before + 5000, "it goes on without a broker")
    first.kill()
    second = start(deployment, spool, 2)
    until(lambda: stored(second) > 3000, "its successor stores without a broker")
    broker.start()
    until(lambda: on_log(deployment)[2], "what was stored goes to the log")
    second.kill()
    third = start(deployment, spool, 3)
    until(lambda: stored(third) > 3000, "the third producer stores")
    assert third.terminate() == 0, third.tail()
    found = on_log(deployment)
    for scan, producer in enumerate((first, second, third), 1):
        assert found[scan] == list(range(len(found[scan]))), f"scan {scan} has holes, repeats or another order"
        assert len(found[scan]) >= stored(producer), f"scan {scan} lacks what was stored"
    total = sum(len(seqs) for seqs in found.values())
    until_equal(lambda: deployment.account()["ingestHeapsConsumed"], total, "the workers count as many")
