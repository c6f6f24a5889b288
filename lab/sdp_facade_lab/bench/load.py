"""What flows on a measured system: heap notifications, as JSON and as columnar batches, and tables."""

import io
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from facade.flows.tables.producer import TableProducer
from facade.flows.telemetry.simulator.faults import Scenario
from facade.flows.telemetry.simulator.heaps import HeapStream
from facade.flows.telemetry.simulator.ingest import HeapReport, read_report
from facade.flows.telemetry.summed import sums_of
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaStreamWriter
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.clock import SECOND
from facade.kernel.errors import InfraError
from facade.kernel.icd.load import load
from facade.sdp.batches import header_of
from sdp_facade_lab import gauges
from sdp_facade_lab.bench.raw import RawSender
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.roles import Play, RoleContext

TOPIC = "ingest.heaps"
SIMULATOR = "simulate"
NODES = 4
METRICS = 3.0
"""[MB/s], the figure of SDP memo 052 for quality metrics."""
TABLE, TABLE_EACH = 100_000_000, 5.0
"""Size of a large table [bytes], and time from one to the next [s]."""
RATE = 127_200.0
"""Heaps/s of four nodes: a 375th of the telescope's 47.7 M/s."""

_BATCH = 10_000
MOST_WAITING = 200_000
"""Records under way while filling: so few that none gets old before it is appended."""

KeyedValues = tuple[Sequence[bytes | None], Sequence[bytes | None]]
"""Keys and values."""


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """What filling a topic amounts to."""

    records: int
    value_bytes: int
    seconds: float
    cpu: float = 0.0
    """Of the process that filled, where that was measured [s]."""


def fill(context: RoleContext, *, records: int, scan_id: int, nodes: int = NODES) -> Filled:
    stream = HeapStream(Scenario(nodes=nodes, rate=RATE, seed=1, scan_id=scan_id))

    def batches() -> Iterator[KeyedValues]:
        while stream.given < records:
            batch = stream.take(min(_BATCH, records - stream.given), context.clock.now_us())
            yield batch.keys, batch.values

    return pour(context, TOPIC, batches(), records)


def pour(context: RoleContext, topic: str, batches: Iterable[KeyedValues], records: int) -> Filled:
    clock, health = context.clock, BusHealth()
    writer = KafkaStreamWriter(Connection(context.settings, clock=clock), health=health, client="bench-fill")
    writer.require_topic(topic, 10.0)
    begin, value_bytes, sent = clock.monotonic(), 0, 0
    for keys, values in batches:
        while writer.backlog > MOST_WAITING:
            writer.poll(0.005)
        value_bytes += sum(len(value or b"") for value in values)
        writer.send_many(topic, keys, values)
        sent += len(values)
    writer.flush(120.0)
    if writer.delivered != sent:
        raise InfraError(f"{sent - writer.delivered} of {sent} records were not delivered: {health.last_error}")
    return Filled(records=records, value_bytes=value_bytes, seconds=clock.monotonic() - begin)


def send_tables(context: RoleContext) -> None:
    content, clock = random.Random(1).randbytes(TABLE), context.clock  # noqa: S311 - bytes that do not compress
    producer = TableProducer(KafkaBus(Connection(context.settings, clock=clock), client="bench").writer(), clock)
    while not context.called_off:
        begin = clock.monotonic()
        producer.send("subarray/01/sky", "sky-model", content, "application/x-bench")
        context.announce()
        clock.sleep(max(0.0, TABLE_EACH - (clock.monotonic() - begin)))


def fill_topic(deployment: Deployment, records: int, *, scan_id: int = 1, nodes: int = NODES) -> Filled:
    """Fill a topic in a process of its own, and wait until the disk is quiet again."""
    say = deployment.progress.step
    say(f"  filling {deployment.settings.prefix}{TOPIC} with {records:,} notifications of {nodes} nodes")
    filled = _filled(deployment, fill, records=records, scan_id=scan_id, nodes=nodes)
    say(
        f"  filled: {filled.value_bytes / 1e6:,.0f} MB, {filled.value_bytes / records:.0f} B each,"
        f" {records / filled.seconds:,.0f}/s"
    )
    return filled


class LoadStream:
    """`sdp-facade simulate ingest` at a steady rate, as processes of a deployment, each with a part of its nodes."""

    def __init__(
        self, deployment: Deployment, rate: float, *, columnar: bool = False, summed: bool = False, senders: int = 1
    ) -> None:
        self._deployment = deployment
        form = ["--columnar"] * columnar + ["--summed"] * summed
        nodes = deployment.settings.nodes
        self._files: dict[str, Path] = {}
        for number in range(senders):
            name = SIMULATOR + f"-{number}" * (number > 0)
            self._files[name] = file = deployment.folder / f"{name}.sent.json"
            file.unlink(missing_ok=True)
            first, end = nodes * number // senders, nodes * (number + 1) // senders
            part = ["--first-node", first, "--nodes", end - first, "--rate", rate * (end - first) / nodes]
            deployment.launch(name, "simulate", "ingest", *part, "--report", file, *form)

    def report(self) -> HeapReport:
        """Return the account so far, at most a second old, of all processes together."""
        first, *others = map(read_report, self._files.values())
        for one in others:
            first = msgspec.structs.replace(
                first,
                rate=first.rate + one.rate,
                sent=first.sent + one.sent,
                slipped=max(first.slipped, one.slipped),
                longest_wait=max(first.longest_wait, one.longest_wait),
                nodes=first.nodes | one.nodes,
            )
        return first

    def end(self) -> HeapReport:
        for name in self._files:
            self._deployment.processes.stop(name)
        return self.report()

    def is_sending(self) -> bool:
        """Return whether first records were sent; raise if none ever will be."""
        self._deployment.processes.check()
        return all(file.exists() for file in self._files.values())


def stream(deployment: Deployment, rate: float, **form: Any) -> LoadStream:
    """Begin to send, in a form as `LoadStream` has it."""
    made = LoadStream(deployment, rate, **form)
    deployment.progress.demand(made.is_sending, 30.0, "the first records")
    return made


def large(deployment: Deployment) -> str:
    """Let large things come instead of the notifications: metrics, and tables that are assembled; return what."""
    deployment.processes.kill(SIMULATOR)
    deployment.launch("assemble", "tables", "assemble")
    deployment.launch("quality-simulator", "simulate", "quality", f"--megabytes-per-second={METRICS:g}")
    deployment.await_ready(deployment.play(send_tables))
    return f"{METRICS:g} MB/s of metrics, {TABLE // 1_000_000} MB tables"


ROWS = 3_180
"""Of a batch: a tenth of a second of one node."""
_TEMPLATES = 16
"""Different batches for each node; what changes otherwise is in their headers."""
_MOST_BATCHES = 500


def fill_batches(
    deployment: Deployment,
    batches: int,
    *,
    nodes: int = NODES,
    partitions: int = 2,
    scan_id: int = 1,
    summed: bool = False,
) -> Filled:
    deployment.progress.step(f"  filling the topic with {batches:,} batches of {nodes} nodes")
    how: dict[str, Any] = {"scan_id": scan_id, "nodes": nodes, "partitions": partitions, "summed": summed}
    return _filled(deployment, fill_columnar, records=batches, **how)


def _filled(deployment: Deployment, role: Play, **task: Any) -> Filled:
    filled = deployment.result(deployment.play(role, ends=True, **task), Filled, 1800.0)
    os.sync()  # or the broker's pages are written out while the first run is timed, and only then
    return filled


def fill_columnar(
    context: RoleContext, *, records: int, scan_id: int, nodes: int, partitions: int, summed: bool = False
) -> Filled:
    sums = sums_of(load(), TOPIC) if summed else None
    clock, dice = context.clock, np.random.default_rng(1)
    sender = RawSender(Connection(context.settings, clock=clock), "none")
    values = [_batch(dice) for _ in range(_TEMPLATES)]
    begin, cpu, size = clock.monotonic(), gauges.own_cpu(), 0
    for number in range(records):
        node, turn = number % nodes, number // nodes
        now_us = clock.now_us()
        constants = {"node": node, "scan_id": scan_id, "channel_count": 16_384}
        bases = {"seq": turn * ROWS, "time": int(now_us - SECOND // 10)}
        headers = header_of(
            "heap/1", ROWS, constants=constants, bases=bases, producer=f"bench-{scan_id}-{node}", sequence=turn
        )
        value = values[number % _TEMPLATES]
        headers = headers if sums is None else sums.with_frame(headers, value)
        while number - sender.delivered[TOPIC] - sender.refused[TOPIC] > _MOST_BATCHES:
            sender.flush(0.005)
        sender.send(Record(topic=TOPIC, key=b"%d" % node, value=value, headers=headers, partition=node % partitions))
        size += len(value)
    sender.flush(120.0)
    if sender.delivered[TOPIC] != records:
        raise InfraError(f"{records - sender.delivered[TOPIC]} of {records} batches were not delivered")
    seconds = clock.monotonic() - begin
    return Filled(records=records, value_bytes=size, seconds=seconds, cpu=gauges.own_cpu() - cpu)


def _batch(dice: np.random.Generator) -> bytes:
    lost = (dice.random(ROWS) < 0.01).astype(np.uint16)
    columns = {
        "seq": np.arange(ROWS, dtype=np.uint16),
        "time": np.linspace(0, int(SECOND // 10), ROWS).astype(np.uint32),
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
