"""A topic full of columnar batches."""

import io
import os

import numpy as np
import pyarrow as pa

from facade.bus.kafka.connection import Connection
from facade.bus.port import Record
from facade.codec.batches import header_of
from facade.errors import InfraError
from facade.flows.telemetry.simulator.faults import MICRO
from proving.bench.load import NODES, TOPIC, Filled
from proving.bench.raw import RawSender
from proving.deployment import Deployment
from proving.roles import RoleContext

ROWS = 3_180
"""Of a batch: a tenth of a second of one node."""
_TEMPLATES = 16
"""Different batches for each node; what changes otherwise is in their headers."""
_MOST_WAITING = 500


def fill_batches(
    deployment: Deployment, batches: int, *, nodes: int = NODES, partitions: int = 2, scan_id: int = 1
) -> Filled:
    """Fill a topic in a process of its own, and wait until the disk is quiet again."""
    deployment.progress.step(f"  filling the topic with {batches:,} batches of {nodes} nodes")
    role = deployment.play(
        "fill-columnar", ends=True, records=batches, scan_id=scan_id, nodes=nodes, partitions=partitions
    )
    filled = deployment.result(role, Filled, 1800.0)
    os.sync()
    return filled


def fill(context: RoleContext, *, records: int, scan_id: int, nodes: int, partitions: int) -> Filled:
    """Put batches of some nodes on the topic as fast as the broker takes them."""
    clock, dice = context.clock, np.random.default_rng(1)
    sender = RawSender(Connection(context.settings, clock=clock), "none")
    values = [_batch(dice) for _ in range(_TEMPLATES)]
    begin, size = clock.monotonic(), 0
    for number in range(records):
        node, turn = number % nodes, number // nodes
        now_us = round(clock.now() * MICRO)
        constants = {"node": node, "scan_id": scan_id, "channel_count": 16_384}
        bases = {"seq": turn * ROWS, "time": now_us - MICRO // 10}
        headers = header_of(
            "heap/1", ROWS, constants=constants, bases=bases, producer=f"bench-{scan_id}-{node}", sequence=turn
        )
        value = values[number % _TEMPLATES]
        while number - sender.delivered[TOPIC] - sender.refused[TOPIC] > _MOST_WAITING:
            sender.flush(0.005)
        sender.send(Record(topic=TOPIC, key=b"%d" % node, value=value, headers=headers, partition=node % partitions))
        size += len(value)
    sender.flush(120.0)
    if sender.delivered[TOPIC] != records:
        raise InfraError(f"{records - sender.delivered[TOPIC]} of {records} batches were not delivered")
    return Filled(records=records, value_bytes=size, seconds=clock.monotonic() - begin)


def _batch(dice: np.random.Generator) -> bytes:
    lost = (dice.random(ROWS) < 0.01).astype(np.uint16)
    columns = {
        "seq": np.arange(ROWS, dtype=np.uint16),
        "time": np.linspace(0, MICRO // 10, ROWS).astype(np.uint32),
        "channel_start": np.full(ROWS, 0, np.uint16),
        "received": 4096 - lost,
        "lost": lost,
        "late": np.zeros(ROWS, np.uint16),
        "flagged_fraction": dice.random(ROWS).astype(np.float32),
        "latency": dice.gamma(2.0, 0.1, ROWS).astype(np.float32),
    }
    batch = pa.record_batch([pa.array(column) for column in columns.values()], names=list(columns))
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
