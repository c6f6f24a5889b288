"""Other people's stream processors on the same records as our worker: windows of heap notifications by node and second.

The programs are in `examples/peers`. Each does the part of the work that all of them can do: it reads JSON, and gives
count, sum, least and greatest value of one field in each window. Our worker checks each record by its schema and has
these and more statistics of all fields, numbers of sequences, and an account. So the figures flatter the others.
Each window that a program writes is compared with a plain loop over the same records.
"""

import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from facade.admin.topics import create_topics
from facade.infra import tools
from facade.kernel.bus.kafka.admin import KafkaTopicWatch
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.errors import FacadeError, InfraError
from facade.kernel.icd.topic_model import Topic
from sdp_facade_lab.bench.load import RATE, TOPIC, stream
from sdp_facade_lab.bench.raw import bare_values
from sdp_facade_lab.bench.report import MEGA, BarVerdict, BenchOutcome, ratios
from sdp_facade_lab.bench.throughput import installed, run_worker
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.testbed import Testbed

RESULT = Topic(description="Windows.", key="none", partitions=1, cleanup="delete", max_bytes=1_000_000, qos="bulk")
PROGRAMS = Path(__file__).parents[3] / "examples" / "peers"
_WITHIN = 600.0
"""A program that has not ended by then is not measured [s]."""


class Peer(NamedTuple):
    """A stream processor."""

    name: str
    program: str
    requirements: tuple[str, ...]
    guarantee: str
    """What becomes of its windows when it is killed."""


PEERS = (
    Peer("Quix Streams 3.28.1", "with_quix.py", ("quixstreams==3.28.1",), "exactly once, on"),
    Peer("Faust 0.15.3", "with_faust.py", ("faust-streaming==0.15.3",), "exactly once, on"),
    Peer("Bytewax 0.21.1", "with_bytewax.py", ("bytewax==0.21.1", "confluent-kafka"), "at least once, off in this run"),
)


class Heap(msgspec.Struct):
    """The fields of a notification that are summed up."""

    node: int
    time: int
    latency: float


class Window(msgspec.Struct):
    """A window as the programs write it."""

    node: int
    window: int
    count: int
    sum: float
    least: float
    greatest: float


class Run(msgspec.Struct):
    """A timed run."""

    records: int
    seconds: float
    cpu: float
    """Of its process [s]."""
    windows: int = 0
    """That it wrote; each has the right figures."""

    @property
    def rate(self) -> float:
        return self.records / self.seconds


Windows = Mapping[tuple[int, int], Window]
"""By node and second."""


def stream_processors(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    rate, seconds, rounds = (RATE / 4, 4.0, 1) if quick else (RATE, 20.0, 3)
    failed = dict[str, str]()
    ours: list[Run] = []
    found: dict[str, list[Run]] = {peer.name: [] for peer in PEERS}
    with testbed.deployment("processors") as deployment:
        heaps = stream(deployment, rate)
        testbed.progress.wait(seconds, f"sending {rate:,.0f} notifications/s")
        heaps.end()
        records, right = _plainly(deployment)
        for number in range(rounds):
            timing = run_worker(deployment, records)
            cpu = timing.cpu_per_million * timing.records / MEGA
            ours.append(Run(records=timing.records, seconds=timing.seconds, cpu=cpu))
            for peer in PEERS:
                try:
                    found[peer.name].append(_run(deployment, peer, records, right, number))
                except (FacadeError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
                    failed[peer.name] = str(error).strip().splitlines()[-1][:300]
                testbed.progress.step(f"  round {number + 1}: {peer.name} {found[peer.name][-1:] or failed[peer.name]}")
    measured = {peer: found[peer.name] for peer in PEERS if len(found[peer.name]) == rounds}
    return BenchOutcome(
        what="our worker beside stream processors of others, on the same JSON notifications",
        verdicts=tuple(
            BarVerdict(
                f"worker / {peer.name}, records/s",
                str(ratios((own.rate, theirs.rate) for own, theirs in zip(ours, runs, strict=True))),
            )
            for peer, runs in measured.items()
        ),
        notes=tuple(f"{name}: {why}" for name, why in failed.items()),
        figures={"worker": ours, **found},
        tables={"rates": _table(ours, measured, len(right))},
    )


def _plainly(deployment: Deployment) -> tuple[int, Windows]:
    """Return how many records there are, and what a plain loop makes of them."""
    connection = Connection(deployment.settings, clock=deployment.clock)
    ranges = KafkaTopicWatch(connection).extents([TOPIC])[TOPIC].ranges
    records, taken = sum(end - begin for begin, end in ranges.values()), 0
    values: dict[tuple[int, int], list[float]] = defaultdict(list)
    for batch in bare_values(connection, TOPIC, 0, batch=10_000):
        for value in batch:
            heap = msgspec.json.decode(value, type=Heap)
            values[heap.node, heap.time // MEGA].append(heap.latency)
        if (taken := taken + len(batch)) >= records:
            break
    return records, {
        (node, number): Window(node, number, len(each), sum(each), min(each), max(each))
        for (node, number), each in values.items()
    }


def _run(deployment: Deployment, peer: Peer, records: int, right: Windows, number: int) -> Run:
    settings, target = deployment.settings, f"{Path(peer.program).stem}-{number}"
    state = deployment.folder / target
    state.mkdir()
    arguments = [settings.bootstrap, settings.prefix + TOPIC, settings.prefix + target, str(records), str(state)]
    library = installed(deployment.progress.step, *peer.requirements)
    connection = Connection(settings, clock=deployment.clock)
    create_topics(connection, {target: RESULT})
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / peer.program), *arguments],
        env={**os.environ, "PYTHONPATH": str(library)},
        capture_output=True,
        text=True,
        timeout=_WITHIN,
        check=False,
    )
    figures = [line for line in done.stdout.splitlines() if line.startswith('{"records"')]
    if done.returncode or not figures:
        raise InfraError(f"{peer.name} ended with {done.returncode}: {tools.tail(done.stderr)}")
    found = {
        (one.node, one.window): one
        for record in KafkaBus(connection, client="bench").read_all(target)
        if (one := msgspec.json.decode(record.value or b"", type=Window))
    }
    demand_right(peer, found, right)
    return msgspec.structs.replace(msgspec.json.decode(figures[-1], type=Run), windows=len(found))


def demand_right(peer: Peer, found: Windows, right: Windows) -> None:
    for key, one in found.items():
        expected = right.get(key)
        if (
            expected is None
            or (one.count, one.least, one.greatest) != (expected.count, expected.least, expected.greatest)
            or abs(one.sum - expected.sum) > 1e-9 * abs(expected.sum)
        ):
            raise InfraError(f"{peer.name}: expected {expected or 'no such window'}, got {one}")


def _table(ours: list[Run], measured: Mapping[Peer, list[Run]], windows: int) -> str:
    lines = [
        "| | records/s, median | processor time for a million [s] | guarantee | windows written of"
        f" {windows:,}, all right | statistics of |",
        "| --- | ---: | ---: | --- | ---: | --- |",
        _line("this facade's worker", ours, "exactly once, on", "all, by its totals", "all fields, and an account"),
    ]
    lines += [
        _line(peer.name, runs, peer.guarantee, f"{min(one.windows for one in runs):,}", "one field")
        for peer, runs in measured.items()
    ]
    return "\n".join(lines)


def _line(name: str, runs: list[Run], *rest: str) -> str:
    rate = statistics.median(one.rate for one in runs)
    cpu = statistics.median(one.cpu / one.records * MEGA for one in runs)
    return f"| {name} | {rate:,.0f} | {cpu:.3g} | {' | '.join(rest)} |"
