"""Topics full of realistic heap notifications, and streams of them at a steady rate."""

import os
import random
from pathlib import Path
from typing import Any

import msgspec

from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.producer import KafkaStreamWriter
from facade.bus.port import BusHealth
from facade.errors import InfraError
from facade.flows.tables.producer import TableProducer
from facade.flows.telemetry.simulator.faults import MICRO, Scenario
from facade.flows.telemetry.simulator.heaps import HeapStream
from facade.flows.telemetry.simulator.report import Report, read_report
from proving.deployment import Deployment
from proving.roles import RoleContext

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
_MOST_WAITING = 200_000
"""Records under way while filling: so few that none gets old before it is appended."""


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """What filling a topic amounts to."""

    records: int
    value_bytes: int
    seconds: float


def fill(context: RoleContext, *, records: int, scan_id: int, nodes: int = NODES) -> Filled:
    """Put heap notifications of some nodes on the topic as fast as they can be made."""
    clock = context.clock
    connection, health = Connection(context.settings, clock=clock), BusHealth()
    writer = KafkaStreamWriter(connection, health=health, client="bench-fill")
    writer.require_topic(TOPIC, 10.0)
    stream = HeapStream(Scenario(nodes=nodes, rate=RATE, seed=1, scan_id=scan_id))
    begin, value_bytes = clock.monotonic(), 0
    while stream.given < records:
        while writer.backlog > _MOST_WAITING:
            writer.poll(0.005)
        batch = stream.take(min(_BATCH, records - stream.given), round(clock.now() * MICRO))
        value_bytes += sum(len(value) for value in batch.values if value is not None)
        writer.send_many(TOPIC, batch.keys, batch.values)
    writer.flush(120.0)
    if writer.delivered != records:
        raise InfraError(f"{records - writer.delivered} of {records} records were not delivered: {health.last_error}")
    return Filled(records=records, value_bytes=value_bytes, seconds=clock.monotonic() - begin)


def send_tables(context: RoleContext) -> None:
    """Send the same table again and again, under a new id each time, with pauses."""
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
    role = deployment.play("fill", ends=True, records=records, scan_id=scan_id, nodes=nodes)
    filled = deployment.result(role, Filled, 1800.0)
    os.sync()  # or the broker's pages are written out while the first run is timed, and only then
    say(
        f"  filled: {filled.value_bytes / 1e6:,.0f} MB, {filled.value_bytes / records:.0f} B each,"
        f" {records / filled.seconds:,.0f}/s"
    )
    return filled


class Stream:
    """`sdp-facade simulate ingest` at a steady rate, as processes of a deployment, each with a part of its nodes."""

    def __init__(self, deployment: Deployment, rate: float, *, columnar: bool = False, senders: int = 1) -> None:
        self._deployment = deployment
        nodes = deployment.settings.nodes
        self._files: dict[str, Path] = {}
        for number in range(senders):
            name = SIMULATOR + f"-{number}" * (number > 0)
            self._files[name] = file = deployment.folder / f"{name}.sent.json"
            file.unlink(missing_ok=True)
            first, end = nodes * number // senders, nodes * (number + 1) // senders
            part = ["--first-node", first, "--nodes", end - first, "--rate", rate * (end - first) / nodes]
            deployment.launch(name, "simulate", "ingest", *part, "--report", file, *["--columnar"] * columnar)

    def report(self) -> Report:
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

    def end(self) -> Report:
        """Stop sending and give the account of what was sent."""
        for name in self._files:
            self._deployment.processes.stop(name)
        return self.report()

    def is_sending(self) -> bool:
        """Return whether first records were sent; raise if none ever will be."""
        self._deployment.processes.check()
        return all(file.exists() for file in self._files.values())


def stream(deployment: Deployment, rate: float, *, columnar: bool = False, senders: int = 1) -> Stream:
    """Start the notifications, and wait for the first of them."""
    made = Stream(deployment, rate, columnar=columnar, senders=senders)
    deployment.progress.demand(made.is_sending, 30.0, "the first records")
    return made


def large(deployment: Deployment) -> str:
    """Let large things come instead of the notifications: metrics, and tables that are assembled; return what."""
    deployment.processes.kill(SIMULATOR)
    deployment.launch("assemble", "tables", "assemble")
    deployment.launch("quality-simulator", "simulate", "quality", f"--megabytes-per-second={METRICS:g}")
    deployment.await_ready(deployment.play("send-tables"))
    return f"{METRICS:g} MB/s of metrics, {TABLE // 1_000_000} MB tables"


def rate_kept(report: Report) -> dict[str, Any]:
    """Say whether a stream kept its rate."""
    return {
        "rate": report.rate,
        "sent": report.sent,
        "seconds": report.elapsed,
        "slipped_s": report.slipped,
        "longest_wait_s": report.longest_wait,
    }
