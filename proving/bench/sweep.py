"""The tables of the papers, measured here: messages of all sizes, codecs, acknowledgements, partitions and clients."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.topics import create_topics, delete_topics
from facade.errors import FacadeError
from facade.icd.topic_model import Topic
from proving import gauges
from proving.bench.report import Outcome
from proving.bench.sweep_points import BASE, FULL, LARGE, MOST_PROCESSES, QUICK, Point, Timing, points
from proving.bench.sweep_report import Delay, Flow, Found, Large, Sent, Taken, delay_of
from proving.deployment import Deployment
from proving.roles import Role
from proving.testbed import Testbed

_STEADY_RATE, _STEADY_BYTES = 1_000.0, 20e6
"""Of the phase `latency`: messages/s, or as many as make so many bytes/s, at least two a second."""


def sweep(testbed: Testbed, *, quick: bool) -> Outcome:
    """Measure the points one after the other."""
    pace, plan = QUICK if quick else FULL, points(quick=quick)
    with testbed.deployment("sweep") as deployment:
        deployment.progress.step("  a point that does not count, so that the broker is warm")
        measure(deployment, BASE, pace, "warm")
        found = list(_all(deployment, plan, pace))
    return Outcome(
        name="sweep",
        what="the tables of the papers: messages through one broker, one axis at a time around a base point",
        how=(
            f"base point: {BASE.size} B, one partition, one producer, one consumer, no compression, acks=all, linger"
            f" {BASE.linger:g} ms; {len(plan)} points, no full product of all axes",
            f"{pace.seconds:g} s or {pace.most / 1e6:,.0f} MB of each point; latency for {pace.steady:g} s at"
            f" {_STEADY_RATE:,.0f} messages/s, or fewer that make {_STEADY_BYTES / 1e6:g} MB/s",
            "clients are Python processes with confluent_kafka alone; one broker, so acks=all waits for one replica",
        ),
        verdicts=(),
        notes=tuple(f"{one.point.series}: {one.failure}" for one in found if one.failure),
        figures={"points": found},
    )


def _all(deployment: Deployment, plan: Sequence[Point], pace: Timing) -> Iterator[Found]:
    for number, point in enumerate(plan):
        try:
            found = complete(measure(deployment, point, pace, f"p{number}"))
        except FacadeError as error:
            found = Found(point=point, failure=str(error))
        deployment.progress.step(f"  {number + 1} of {len(plan)}: {_line(found)}")
        yield found


def complete(found: Found) -> Found:
    """Return what was found, as failed where a consumer gave up before it had all."""
    lost = sum(flow.lost for flow in found.flows.values())
    return msgspec.structs.replace(found, failure=f"{lost:,} messages were not received") if lost else found


def measure(deployment: Deployment, point: Point, pace: Timing, name: str) -> Found:
    """Measure one point; its topics are called after it.

    Raises
    ------
    FacadeError
        The broker or a client fails.
    """
    found = Found(point=point)
    with _topics(deployment, point, name) as connection:
        for phase in point.phases:
            match phase:
                case "segments":
                    found = msgspec.structs.replace(found, large=_segments(deployment, point, pace, name))
                case "in":
                    flow, delay = _Run(deployment, point, f"{name}.split").send(pace)
                    stored = _stored(deployment, connection, "split") / max(1, flow.messages)
                    found = msgspec.structs.replace(found, flows={"in": flow}, stored=stored, delay=delay)
                case "out":
                    flow = _Run(deployment, point, f"{name}.split").take(found.flows["in"].messages)
                    found = msgspec.structs.replace(found, flows={**found.flows, "out": flow})
                case _:
                    found = _both(deployment, point, pace, f"{name}.{phase}", found)
    return found


def _both(deployment: Deployment, point: Point, pace: Timing, topic: str, found: Found) -> Found:
    steady = topic.endswith("latency")
    sent, taken, behind, delay = _Run(deployment, point, topic).both(pace, steady=steady)
    if steady:
        return msgspec.structs.replace(found, delay=delay, flows={**found.flows, "latency": taken})
    return msgspec.structs.replace(found, behind=behind, flows={**found.flows, "stream-in": sent, "stream-out": taken})


class _Run:
    """One phase of a point."""

    def __init__(self, deployment: Deployment, point: Point, topic: str) -> None:
        self._deployment, self._point, self._topic = deployment, point, topic
        self._total = deployment.folder / f"{topic}.total"

    def send(self, pace: Timing) -> tuple[Flow, Delay | None]:
        """Send without consumers."""
        producers = self._producers(pace, 0.0)
        gauge = _Gauge(self._deployment)
        sent = self._release(producers)
        return _sent(sent, gauge), delay_of([call for one in sent for call in one.calls])

    def take(self, total: int) -> Flow:
        """Receive what was sent before."""
        self._total.write_text(str(total))
        gauge = _Gauge(self._deployment)
        return _taken(self._results(self._consumers(stamped=False)), total, gauge)

    def both(self, pace: Timing, *, steady: bool) -> tuple[Flow, Flow, float, Delay | None]:
        """Send and receive at once."""
        rate = max(2.0, min(_STEADY_RATE, _STEADY_BYTES / self._point.size)) if steady else 0.0
        consumers = self._consumers(stamped=steady)
        for role in consumers:
            self._deployment.await_ready(role)
        producers = self._producers(pace, rate)
        gauge = _Gauge(self._deployment)
        sent = self._release(producers)
        total = sum(one.messages for one in sent)
        self._total.write_text(str(total))
        taken = self._results(consumers)
        behind = max(one.ended for one in taken) - max(one.ended for one in sent)
        into = _sent(sent, gauge, [one.cpu for one in taken])
        return into, _taken(taken, total, gauge), behind, taken[0].delay

    def _producers(self, pace: Timing, rate: float) -> list[Role]:
        point = self._point
        most = point.messages or max(3, pace.most // point.size)
        task: dict[str, Any] = {
            "topic": self._topic,
            "size": point.size,
            "seconds": 600.0 if point.messages else pace.steady if rate else pace.seconds,
            "most": max(1, most // point.producers),
            "rate": rate / point.producers,
            "one_by_one": point.one_by_one,
            "own": _own(point),
        }
        play, processes = self._deployment.play, min(point.producers, MOST_PROCESSES)
        clients = [len(range(n, point.producers, processes)) for n in range(processes)]
        roles = [
            play("sweep-produce", name=f"produce-{n}", ends=True, clients=count, **task)
            for n, count in enumerate(clients)
        ]
        for role in roles:
            self._deployment.await_ready(role)
        return roles

    def _release(self, producers: Sequence[Role]) -> list[Sent]:
        for role in producers:
            role.release()
        return [self._deployment.result(role, Sent) for role in producers]

    def _consumers(self, *, stamped: bool) -> list[Role]:
        point = self._point
        task: dict[str, Any] = {
            "topic": self._topic,
            "members": point.members,
            "partitions": point.partitions,
            "size": point.size,
            "total": str(self._total),
            "stamped": stamped,
        }
        play = self._deployment.play
        return [
            play("sweep-consume", name=f"consume-{n}", ends=True, group=f"{self._topic}.{n}", **task)
            for n in range(point.groups)
        ]

    def _results(self, consumers: Sequence[Role]) -> list[Taken]:
        return [self._deployment.result(role, Taken) for role in consumers]


class _Gauge:
    """What the broker, and the whole machine, use from now on."""

    def __init__(self, deployment: Deployment) -> None:
        self._pid = deployment.broker.pid
        self._clock, self._began = deployment.clock, deployment.clock.monotonic()
        self._broker, self._machine = gauges.cpu(self._pid), _busy()

    def broker(self) -> tuple[float, float]:
        """Return what the broker used [s] and its memory [MB]."""
        return gauges.cpu(self._pid) - self._broker, gauges.resident(self._pid)

    def others(self, clients: float) -> float:
        """Return how many cores are in use by others than the broker and clients with this processor time [s]."""
        used = _busy() - self._machine - clients - gauges.cpu(self._pid) + self._broker
        return round(max(0.0, used / (self._clock.monotonic() - self._began)), 3)


def _busy() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _sent(found: Sequence[Sent], gauge: _Gauge, further: Sequence[float] = ()) -> Flow:
    messages, cpu, broker = sum(one.messages for one in found), sum(one.cpu for one in found), gauge.broker()
    seconds = max(one.ended for one in found) - min(one.began for one in found)
    return Flow(
        messages=messages,
        rate=messages / seconds,
        seconds=seconds,
        cpu=cpu,
        peak_mb=max(one.peak_mb for one in found),
        others=gauge.others(cpu + sum(further)),
        broker_cpu=broker[0],
        broker_mb=broker[1],
    )


def _taken(found: Sequence[Taken], total: int, gauge: _Gauge) -> Flow:
    seconds, broker = max(one.ended for one in found) - min(one.began for one in found), gauge.broker()
    return Flow(
        messages=sum(one.messages for one in found),
        lost=sum(total - one.messages for one in found),
        rate=sum(one.timed for one in found) / seconds if seconds else 0.0,
        seconds=seconds,
        cpu=sum(one.cpu for one in found),
        peak_mb=max(one.peak_mb for one in found),
        broker_cpu=broker[0],
        broker_mb=broker[1],
    )


def _segments(deployment: Deployment, point: Point, pace: Timing, name: str) -> dict[str, Large]:
    task: dict[str, Any] = {"topic": f"{name}.split", "size": point.size, "whole": LARGE, "count": pace.large}
    sender = deployment.play("sweep-send-large", ends=True, own=_own(point), **task)
    deployment.await_ready(sender)
    sender.release()
    sent = deployment.result(sender, Large)
    return {"in": sent, "out": deployment.result(deployment.play("sweep-take-large", ends=True, **task), Large)}


def _own(point: Point) -> Mapping[str, Any]:
    """Return what a point wants of a producer, by the client's names."""
    own = {"acks": point.acks, "compression.type": point.codec, "linger.ms": point.linger}
    own |= {"batch.num.messages": point.batch} if point.batch else {}
    return own | ({"batch.size": point.batch_bytes} if point.batch_bytes else {})


@contextmanager
def _topics(deployment: Deployment, point: Point, name: str) -> Iterator[Connection]:
    """Make the topics of a point; they are deleted at its end, or they would fill the disk."""
    settings = msgspec.structs.replace(deployment.settings, prefix=f"{deployment.settings.prefix}{name}.")
    connection = Connection(settings, clock=deployment.clock)
    topic = Topic(
        description="A point of the sweep.",
        key="none",
        partitions=point.partitions,
        cleanup="delete",
        max_bytes=104_000_000,
        qos="bulk",
        config={} if point.unpacked else {"compression.type": "producer"},
    )
    split = {"split"} if {"in", "segments"} & set(point.phases) else set[str]()
    create_topics(connection, dict.fromkeys(sorted(split | ({"stream", "latency"} & set(point.phases))), topic))
    try:
        yield connection
    finally:
        delete_topics(connection)


def _stored(deployment: Deployment, connection: Connection, topic: str) -> int:
    """Return the size of a topic in the broker's files [bytes]."""
    os.sync()  # and what is still to be written does not disturb the next phase
    return bytes_on_disk(deployment.endpoints.state_dir, connection.topic(topic))


def bytes_on_disk(state_dir: Path, topic: str) -> int:
    """Return the size of a topic's segments [bytes]; other topics may vanish meanwhile."""
    files = (state_dir / "kafka" / "data").glob(f"{topic}-*/*.log")
    return sum(file.stat().st_size for file in files)


def _line(found: Found) -> str:
    point = found.point
    changed = {name: getattr(point, name) for name in point.__struct_fields__ if name not in ("series", "phases")}
    text = " ".join(f"{name} {value}" for name, value in changed.items() if value != getattr(BASE, name))
    parts = [f"{name} {flow.rate:,.0f}/s" for name, flow in found.flows.items() if name != "latency"]
    if found.delay:
        parts.append(f"p50 {found.delay.p50 * 1e3:.2f} ms, p99 {found.delay.p99 * 1e3:.2f} ms")
    parts += [f"100 MB {name} {sum(one.each) / len(one.each):.2f} s" for name, one in found.large.items() if one.each]
    return f"{point.series} ({text or 'base'}): {found.failure or '; '.join(parts)}"
