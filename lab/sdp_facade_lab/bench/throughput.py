"""How much a worker counts: JSON and columnar batches, one worker and two, how its cost grows, and the memo's facade.

The facade that SDP memo 052 sketches reads the same records, without validation, transactions, subscribers and
database, and has one figure of a message instead of all of the ICD's. But it does another job: it shows every message
in Tango, and the worker beside it shows none, which is the device server's part.
"""

import itertools
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import tango
from tango import server

from facade.infra import tools
from facade.infra.ports import choose_port
from facade.kernel.errors import InfraError
from sdp_facade_lab.bench.load import NODES, ROWS, TOPIC, fill_batches, fill_topic
from sdp_facade_lab.bench.report import MEGA, BarVerdict, BenchOutcome, at_least, ratios
from sdp_facade_lab.bench.throughput_roles import Meter, RoleTiming, bare, worker
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.roles import Play, RoleContext, RoleProcess, command_line
from sdp_facade_lab.testbed import Testbed

WORKER_BAR = 0.5
TWO_WORKERS_BAR = 1.6

_numbers = itertools.count()
_WARM = 300_000
"""Records of each worker that are not counted when workers are compared: more than a client fetches ahead."""


def one_worker(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    records, pairs = (1_000_000, 2) if quick else (4_000_000, 3)
    timings: list[tuple[RoleTiming, RoleTiming]] = []
    with testbed.deployment("worker") as deployment:
        fill_topic(deployment, records)
        testbed.progress.step("  a run that does not count, so that both find the page cache warm")
        run(deployment, bare, records)
        for pair in range(pairs):
            timings.append((run_worker(deployment, records), run(deployment, bare, records)))
            testbed.progress.step(f"  pair {pair + 1} of {pairs}: {timings[-1][0].rate / 1e6:.2f} M/s")
    wall = ratios((worker.rate, bare.rate) for worker, bare in timings)
    return BenchOutcome(
        what="one worker (all reducers, validation, transactions) beside a bare consume() loop, records/s",
        verdicts=(at_least("worker / bare", wall, WORKER_BAR),),
        notes=(f"worker {statistics.median(worker.rate for worker, _ in timings) / 1e6:.2f} M/s",),
    )


def two_workers(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    records, pairs = (4_000_000, 2) if quick else (10_000_000, 3)
    found: list[tuple[float, float]] = []
    ceilings: list[float] = []
    cores = len(os.sched_getaffinity(0))
    with testbed.deployment("two", partitions=2) as deployment:
        fill_topic(deployment, records)
        for pair in range(pairs):
            two, one = (together(deployment, count, records) for count in (2, 1))
            found.append((together_rate(two, _WARM), together_rate(one, _WARM)))
            cpu = (one[0].cpu_per_million + one[0].broker_cpu_per_million) / MEGA
            ceilings.append(cores / cpu / found[-1][1])
            testbed.progress.step(
                f"  pair {pair + 1} of {pairs}: two {found[-1][0] / 1e6:.2f} M/s, one {found[-1][1] / 1e6:.2f} M/s"
            )
    ceiling = statistics.median(ceilings)
    notes = [
        f"two workers {statistics.median(two for two, _ in found) / 1e6:.2f} M/s,"
        f" one {statistics.median(one for _, one in found) / 1e6:.2f} M/s",
        f"one worker and its broker use {cores / ceiling:.2f} cores,"
        f" so {cores} cores allow at most {ceiling:.2f} times its speed",
    ]
    if ceiling < TWO_WORKERS_BAR:
        notes.append("this machine has too few cores to show the bar; what was found says little about scaling")
    return BenchOutcome(
        what="two worker processes beside one on the same two partitions, records/s",
        verdicts=(at_least("two workers / one", ratios(found), TWO_WORKERS_BAR),),
        notes=tuple(notes),
    )


def together_rate(timings: Sequence[RoleTiming], warm: int) -> float:
    """Return how many records per second some workers commit together while all of them work."""
    times = [np.array([mark.time for mark in timing.marks]) for timing in timings]
    counts = [np.array([mark.records - timing.marks[0].records for mark in timing.marks]) for timing in timings]
    begin = max(float(np.interp(warm, count, time)) for time, count in zip(times, counts, strict=True))
    end = min(float(time[-1]) for time in times)
    # The first worker to end leaves the group; the others abort their open transactions after the counted time.
    if any(begin <= time < end for timing in timings for time in timing.given_up):
        raise InfraError("a worker gave up a transaction while it was timed, so its records were counted twice")
    if end - begin < 0.5:
        raise InfraError(f"the workers worked together for {max(end - begin, 0):.2f} s only; expected at least 0.5 s")
    done = (
        float(np.interp(end, time, count) - np.interp(begin, time, count))
        for time, count in zip(times, counts, strict=True)
    )
    return sum(done) / (end - begin)


def run_worker(deployment: Deployment, records: int, **task: Any) -> RoleTiming:
    return run(deployment, worker, records, slot="0", **task)


def run(deployment: Deployment, role: Play, records: int, **task: Any) -> RoleTiming:
    """Time a role over a topic's first records, in a group of its own."""
    task = {"group": f"{role.__name__}-{next(_numbers)}", "records": records, **task}
    made = deployment.play(role, ends=True, broker_pid=deployment.broker.pid, **task)
    return deployment.result(made, RoleTiming)


def together(deployment: Deployment, count: int, records: int, **more: Any) -> list[RoleTiming]:
    """Time workers of one group that begin at the same moment."""
    task: dict[str, Any] = {"records": records, "broker_pid": deployment.broker.pid, "gated": True, **more}
    task |= {"group": f"together-{next(_numbers)}"}
    members = [
        deployment.play(worker, name=f"worker-{slot}", ends=True, slot=str(slot), **task) for slot in range(count)
    ]
    deployment.progress.demand(
        lambda: all(one.is_ready for one in members) or not all(one.is_alive for one in members),
        60.0,
        f"{count} workers share the partitions",
    )
    for one in members:
        one.release()
    return [deployment.result(one, RoleTiming) for one in members]


RATE_BAR, SUMMED_BAR = 20e6, 47.7e6
RATIO_BAR = 0.35
_WARM_BATCHES = 1_500
"""Batches of each worker that are not counted when two work: more than a client fetches ahead."""


def columnar(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    batches, pairs = (12_000, 2) if quick else (24_000, 3)
    both: list[list[RoleTiming]] = []
    workers: list[RoleTiming] = []
    bares: list[RoleTiming] = []
    with testbed.deployment("columnar", partitions=2) as deployment:
        fill_batches(deployment, batches)
        run(deployment, bare, batches)  # so that all runs find the page cache warm
        for pair in range(pairs):
            both.append(together(deployment, 2, batches, rows=ROWS))
            workers.append(run(deployment, worker, batches, slot="0", rows=ROWS))
            bares.append(run(deployment, bare, batches))
            say = f"one worker {workers[-1].rate * ROWS / 1e6:.1f} M/s, bare {bares[-1].rate * ROWS / 1e6:.1f} M/s"
            testbed.progress.step(f"  pair {pair + 1} of {pairs}: {say}")
    with testbed.deployment("columnar-summed", partitions=2) as deployment:
        fill_batches(deployment, batches, summed=True)
        run(deployment, bare, batches)
        summed = [together(deployment, 2, batches, rows=ROWS) for _ in range(pairs)]
    rates, rates_of_sums = (
        [together_rate(timings, _WARM_BATCHES) * ROWS for timings in found] for found in (both, summed)
    )
    rate, rate_of_sums = statistics.median(rates), statistics.median(rates_of_sums)
    return BenchOutcome(
        what="columnar notifications drained exactly-once by two workers (all reducers, validation, transactions)",
        verdicts=(
            BarVerdict("two workers", _millions(rates), bar=f">= {RATE_BAR / 1e6:g} M/s", reached=rate >= RATE_BAR),
            BarVerdict(
                "two workers, batches that their producers have summed up",
                _millions(rates_of_sums),
                bar=f">= {SUMMED_BAR / 1e6:g} M/s",
                reached=rate_of_sums >= SUMMED_BAR,
            ),
            at_least(
                "one worker / bare", ratios((w.rate, b.rate) for w, b in zip(workers, bares, strict=True)), RATIO_BAR
            ),
        ),
    )


def _millions(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates) / 1e6:.1f} M/s ({min(rates) / 1e6:.1f} to {max(rates) / 1e6:.1f})"


TOLERANCE: Final = 0.1
_NODES: Final = (NODES, 64, 1_500)
_WORKERS: Final = (1, 2, 4, 8)
_NODES_OF_WORKERS: Final = 64
"""A multiple of the partitions, so that each has as many nodes as the others."""

Costs = Mapping[int, Sequence[float]]
"""Processor time of a notification [s], one figure a run, by how many nodes or workers there were."""


def growth(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    runs, records, batches = (2, 500_000, 6_000) if quick else (3, 2_000_000, 24_000)
    found: dict[str, Costs] = {}
    for name, counts, measure, amount in (
        ("nodes, JSON", _NODES, _json, records),
        ("nodes, columnar", _NODES, _columnar, batches),
        ("workers and partitions, columnar", _WORKERS, _together, batches),
    ):
        found[name] = {count: measure(testbed, count, amount, runs) for count in counts}
        testbed.progress.step(f"  {_cost_in_words(name, found[name])}")
    return BenchOutcome(
        what="processor time of workers for a notification, as nodes or workers and partitions become more",
        verdicts=tuple(_verdict(name, costs) for name, costs in found.items()),
        notes=tuple(_cost_in_words(name, costs) for name, costs in found.items()),
    )


def _json(testbed: Testbed, nodes: int, records: int, runs: int) -> list[float]:
    with testbed.deployment(f"growth-json-{nodes}", nodes=nodes) as made:
        fill_topic(made, records, nodes=nodes)
        return [cost([run_worker(made, records)]) for _ in range(runs)]


def _columnar(testbed: Testbed, nodes: int, batches: int, runs: int) -> list[float]:
    with testbed.deployment(f"growth-columnar-{nodes}", nodes=nodes) as made:
        fill_batches(made, batches, nodes=nodes, partitions=1)
        return [cost([run_worker(made, batches, rows=ROWS)]) / ROWS for _ in range(runs)]


def _together(testbed: Testbed, workers: int, batches: int, runs: int) -> list[float]:
    with testbed.deployment(f"growth-workers-{workers}", partitions=workers, nodes=_NODES_OF_WORKERS) as made:
        fill_batches(made, batches, nodes=_NODES_OF_WORKERS, partitions=workers)
        return [cost(together(made, workers, batches, rows=ROWS)) / ROWS for _ in range(runs)]


def cost(timings: Sequence[RoleTiming]) -> float:
    """Return the processor time that some workers took together for a record [s]."""
    spent = sum(one.marks[-1].cpu - one.marks[0].cpu for one in timings if one.marks)
    return spent / sum(one.records for one in timings if one.marks)


def _cost_in_words(name: str, costs: Costs) -> str:
    return f"{name}: " + ", ".join(f"{count}: {statistics.median(each) * 1e9:.1f} ns" for count, each in costs.items())


def _verdict(name: str, costs: Costs) -> BarVerdict:
    medians = [statistics.median(each) for each in costs.values()]
    deviation = max(medians, key=lambda one: abs(one / medians[0] - 1)) / medians[0] - 1
    return BarVerdict(
        f"{name}: furthest from the first, {min(costs)} to {max(costs)}",
        f"{deviation:+.0%}",
        bar=f"within {TOLERANCE:.0%}",
        reached=abs(deviation) <= TOLERANCE,
    )


DEVICE = "bench/sdp/1"

_PATIENCE_MS = 15_000


class SdpNode(server.Device):
    """The device that section 11 of SDP memo 052 sketches: one attribute that a client writes."""

    def init_device(self) -> None:
        super().init_device()
        self._value = 0
        self.set_change_event("widgetx", True, False)

    @server.attribute(dtype="DevLong64", access=tango.AttrWriteType.READ_WRITE)
    def widgetx(self) -> int:
        return self._value

    @widgetx.write
    def set_widgetx(self, value: int) -> None:
        self._value = value
        self.push_change_event("widgetx", value)


def sink(context: RoleContext, *, port: int) -> None:
    """Serve the device to which the facade of SDP memo 052 writes, without a database."""
    address = ["-nodb", "-dlist", DEVICE, "-ORBendPoint", f"giop:tcp:127.0.0.1:{port}"]
    server.run((SdpNode,), args=["SdpNode", "bench", *address], post_init_callback=context.announce)


def write_one_by_one(context: RoleContext, *, device: str, records: int, broker_pid: int) -> RoleTiming:
    """Do what SDP memo 052 sketches, line by line: one attribute write per message."""
    from kafka import KafkaConsumer  # of the folder that the measurement puts on the path

    sdp_node = tango.DeviceProxy(device)
    consumer = KafkaConsumer(
        context.settings.prefix + TOPIC,
        bootstrap_servers=context.settings.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=_PATIENCE_MS,
    )
    done, meter = 0, Meter(context.clock, broker_pid)
    for message in consumer:
        if not done:
            meter.mark(done)
        msg = json.loads(str(message.value, "utf-8"))
        sdp_node.widgetx = msg["seq"]
        done += 1
        if done > records:
            break
    meter.mark(done)
    return meter.timing()


OURS = "worker"
MEMO = {f"the facade of SDP memo 052, kafka-python {version}": version for version in ("2.3.3", "3.0.12")}

Round = dict[str, RoleTiming]
"""What each way needed, in one round."""


def peers(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    records, memo_records = (1_000_000, 10_000) if quick else (4_000_000, 40_000)
    rounds = 1 if quick else 3
    found: list[Round] = []
    with testbed.deployment("peers") as deployment:
        fill_topic(deployment, records)
        for number in range(rounds):
            made: Round = {OURS: run_worker(deployment, records)}
            for what, version in MEMO.items():
                made[what] = _memo(deployment, memo_records, version)
            found.append(made)
            testbed.progress.step(f"  round {number + 1} of {rounds}")
    return BenchOutcome(
        what="our worker, without Tango, beside the memo's facade with it, notifications/s on the same topic",
        verdicts=verdicts(found),
    )


def verdicts(found: list[Round]) -> tuple[BarVerdict, ...]:
    made = []
    for peer in (what for what in found[0] if what != OURS):
        wall = ratios((one[OURS].rate, one[peer].rate) for one in found)
        core = ratios((one[peer].cpu_per_million, one[OURS].cpu_per_million) for one in found)
        made.append(BarVerdict(f"worker / {peer}, records/s", str(wall)))
        made.append(BarVerdict(f"worker / {peer}, records/s per core", str(core)))
    return tuple(made)


def installed(report: tools.Notify, *words: str) -> Path:
    """Return a folder with a library, which pip installs there the first time; `words`: its arguments."""

    def install(folder: Path) -> None:
        report(f"  {words[0]}: pip installs it (once)")
        argv = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), *words]
        tools.run(argv, what=f"installing {words[0]}")

    return tools.installed_once(f"peer-{words[0].replace('==', '-')}", install, report)


def _memo(deployment: Deployment, records: int, version: str) -> RoleTiming:
    port, library = choose_port(), str(installed(deployment.progress.step, f"kafka-python=={version}", "--no-deps"))
    served = deployment.play(sink, port=port)
    deployment.await_ready(served)
    try:
        address = f"tango://127.0.0.1:{port}/{DEVICE}#dbase=no"
        task = {"device": address, "records": records, "broker_pid": deployment.broker.pid}
        argv = command_line(write_one_by_one, deployment.folder / "memo.log", task)
        environment = {**deployment.environment, "PYTHONPATH": library}
        return deployment.result(
            deployment.processes.start(RoleProcess, "memo", argv, environment, ends=True), RoleTiming
        )
    finally:
        served.stop(2.0)
