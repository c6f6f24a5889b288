"""One device server with a flow of effects and one that reads committed records, beside aborted transactions."""

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from facade.flows.telemetry.worker import telemetry_worker
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock, SystemClock
from facade.kernel.config import load_settings
from facade.kernel.icd.load import load
from facade.kernel.runtime.composition import Server
from tests.support.alerting import alert
from tests.support.commanding import Sink
from tests.support.heaps import BASE_US, encoded, heap
from tests.support.simulated_bus import MemoryBroker, MemoryTransactionalLog
from tests.support.waiting import until

pytestmark = pytest.mark.kafka
ICD = load()
NODE, ALERTS = "mid-sdp/ingest/0000", "mid-sdp/alerts/0"
_LEFT_OPEN_MS = 600_000
"""So long the broker lets a transaction be open: longer than any machine needs for the test."""


def summaries(heaps: int, now: float) -> list[Record]:
    """Return what a worker writes about some heaps of node 0."""
    clock = ManualClock(now)
    broker = MemoryBroker(clock)
    settings = load_settings({"SDP_INGEST_NODES": "1"})
    worker = telemetry_worker(
        MemoryTransactionalLog(broker, "ingest.heaps", group="aggregate"), ICD, settings, slot="0", clock=clock
    )
    for seq in range(heaps):
        value = encoded(heap(seq=seq, at=now - BASE_US / 1e6))[0]
        broker.append(Record(topic="ingest.heaps", key=b"0", value=value, partition=0))
    while worker.accounts["ingest.heaps"].consumed < heaps:
        worker.step()
        clock.sleep(0.2)
    return broker.read("ingest.summary")


def test_records_that_are_taken_back_are_not_counted_where_alerts_wait_for_nobody(deploy: Callable[..., object]):
    """Telemetry reads committed records; an alert in a transaction that was left open comes at once all the same."""
    deployment = deploy(nodes=1, prepare=False)
    deployment.create_topics()
    settings, clock, sink = load_settings(deployment.environment), SystemClock(), Sink()
    connection = Connection(settings, clock=clock)
    server = Server(
        ICD,
        settings,
        {"SdpIngestNode": [NODE], "SdpAlerts": [ALERTS]},
        sink,
        KafkaBus(connection, client="mixed"),
        instance="mixed",
        clock=clock,
        versions={"versionId": "1"},
    )
    reader = server.event_loop._open()

    def write(producer: Producer, *records: Record) -> None:
        for record in records:
            producer.produce(
                deployment.topic(record.topic), record.value, record.key, partition=max(record.partition, 0)
            )
        producer.flush()

    def transactional(name: str) -> Producer:
        settings = {"transactional.id": deployment.prefix + name, "transaction.timeout.ms": _LEFT_OPEN_MS}
        producer = Producer({"bootstrap.servers": deployment.bootstrap, **settings})
        producer.init_transactions()
        producer.begin_transaction()
        return producer

    taken_back, kept, left_open = (transactional(name) for name in ("taken-back", "kept", "left-open"))
    write(taken_back, *summaries(5, clock.now()))
    taken_back.abort_transaction()
    committed = summaries(3, clock.now())
    mine = [one for one in committed if one.partition == 0]  # that of the only rack
    write(kept, *committed)
    kept.commit_transaction()
    write(left_open, alert())

    def both_are_shown() -> bool:
        server.event_loop.cycle(reader)
        is_read = server.event_loop.accounts["ingest.summary"].consumed >= len(mine)
        shown = is_read and (NODE, "heapsTotal") in sink.shown
        return shown and any(name == "lastAlert" for _, name, _ in sink.pushed)

    try:
        until(both_are_shown, "the heaps that were committed, and the alert that was not")
        assert sink.shown[NODE, "heapsTotal"].value == 3
        assert server.event_loop.accounts["ingest.summary"].consumed == len(mine)
    finally:
        left_open.abort_transaction()
        reader.close()
        server.bus.writer().close(1.0)
