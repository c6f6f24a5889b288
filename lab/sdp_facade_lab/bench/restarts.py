"""Waits while workers come and go, and while the bus is away."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import tango
from confluent_kafka.admin import NewPartitions

from facade.flows.telemetry.simulator.ingest import read_report
from facade.infra.processes import Process
from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.kafka.reader import KafkaReader
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import as_seconds
from facade.kernel.errors import InfraError
from facade.kernel.runtime.accounts import ACCOUNTS, AccountEntry
from sdp_facade_lab.bench.load import TOPIC
from sdp_facade_lab.bench.report import BarVerdict, BenchOutcome, at_most, none_of
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.roles import RoleContext
from sdp_facade_lab.testbed import Testbed

_COUNTED_WITHIN = 1.0
"""Longest wait of a record through a planned change [s]."""
_RATE, _NODES = 10_000, 32
"""Notifications/s of each of two simulators, and their nodes: enough for a node on each partition."""
_PARTITIONS, _MORE = 4, 6
_BEFORE = 0.5
"""Time before a change from which on it may hold up appended records [s]."""
_ANSWER = 10.0
_KILL = "a worker is killed"

Instants = npt.NDArray[np.float64]


class SentCoverage(msgspec.Struct, frozen=True, array_like=True):
    """When it was known up to where a partition is accounted for."""

    at: float
    """[Unix s]."""
    partition: int
    end: int
    consumed: int


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of records at one change."""

    longest: float
    """[s]."""
    records: int


def watch(context: RoleContext) -> list[SentCoverage]:
    found: list[SentCoverage] = []
    connection = Connection(context.settings, clock=context.clock)
    reader = KafkaReader(connection, {ACCOUNTS: None}, start={}, health=BusHealth())
    decode = msgspec.json.Decoder(AccountEntry).decode
    context.announce()
    while not context.called_off:
        for record in reader.take(1000, 0.01):
            entry = decode(record.value or b"")
            if entry.stream == TOPIC and entry.partition >= 0:
                found.append(SentCoverage(context.clock.now(), entry.partition, entry.offset_to, entry.consumed))
    reader.close()
    return found


def elastic(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    seconds = 6.0 if quick else 12.0
    rounds = 1 if quick else 3
    with testbed.deployment("elastic", partitions=_PARTITIONS, nodes=2 * _NODES) as made:
        run = _Run(made, seconds)
        for slot in (0, 1):
            made.worker(slot)
        run.simulate(0)
        watcher = made.play(watch)
        made.await_ready(watcher)
        made.progress.wait(10.0, "warming up")
        run.phase("nothing is changed", lambda: None)
        for _ in range(rounds):
            run.phase("a worker is added", lambda: made.worker(2))
            run.phase("a worker is stopped", lambda: made.processes.stop("aggregate-2"))
            run.phase("a worker is stopped and started again", run.restart)
        run.phase("partitions are added", run.grow)
        run.phase(_KILL, lambda: made.processes.kill("aggregate-1"))
        sent = run.end()
        watcher.call_off()
        covered = made.result(watcher, list[SentCoverage])
        waits, counted = run.waits(covered), sum(one.consumed for one in covered)
    return BenchOutcome(
        what="from the appending of a record to the account that covers it, through planned changes of workers",
        verdicts=(*_judge(waits), none_of("notifications counted less those sent", counted - sent)),
    )


def _judge(waits: Mapping[str, Waits]) -> Iterator[BarVerdict]:
    for name, one in waits.items():
        what = f"longest wait, {name}"
        if name == _KILL:  # which is not planned
            yield BarVerdict(what, f"{one.longest:.4g} s")
        else:
            yield at_most(what, one.longest if one.records else None, _COUNTED_WITHIN, "s")


class _Run:
    """The changes of a run, with their times."""

    def __init__(self, made: Deployment, seconds: float) -> None:
        self._made, self._seconds = made, seconds
        self._phases: list[tuple[str, float, float]] = []
        """Name, begin and end [Unix s]."""

    def simulate(self, number: int) -> None:
        name = f"simulate-{number}"
        report = self._made.folder / f"{name}.json"
        self._made.launch(
            name, "simulate", "ingest", "--rate", _RATE, "--nodes", _NODES, "--first-node", number * _NODES,
            "--scan-id", number + 1, "--report", report,
        )  # fmt: skip
        self._made.progress.demand(report.exists, 30.0, "the first records")

    def phase(self, name: str, change: Callable[[], Any]) -> None:
        begin = self._made.clock.now() - _BEFORE
        change()
        self._made.progress.wait(self._seconds, name)
        self._made.processes.check()
        self._phases.append((name, begin, self._made.clock.now() - _BEFORE))

    def restart(self) -> None:
        self._made.processes.stop("aggregate-1")
        self._made.processes.start_again("aggregate-1")

    def grow(self) -> None:
        """Add partitions, and simulate further nodes at once, whose producer knows of them."""
        topic = self._made.connection.topic(TOPIC)
        for one in self._made.connection.admin().create_partitions([NewPartitions(topic, _MORE)]).values():
            one.result(_ANSWER)
        self.simulate(1)

    def end(self) -> int:
        """Stop sending, wait until all is accounted for, and return how many were sent."""
        sent = 0
        for number in (0, 1):
            self._made.processes.stop(f"simulate-{number}")
            sent += read_report(self._made.folder / f"simulate-{number}.json").sent
        self._made.progress.wait(8.0, "the last transactions")
        return sent

    def waits(self, covered: list[SentCoverage]) -> dict[str, Waits]:
        appended = self._appended()
        found: dict[str, Waits] = {}
        for name, begin, end in self._phases:
            longest, records = 0.0, 0
            for partition, times in appended.items():
                known = sorted((one.at, one.end) for one in covered if one.partition == partition)
                at, ends = np.array([one[0] for one in known]), np.maximum.accumulate([one[1] for one in known])
                chosen = np.flatnonzero((begin <= times) & (times < end))
                index = np.searchsorted(ends, chosen, side="right")
                if len(index) and index.max() == len(ends):
                    raise InfraError(f"records of partition {partition} that are appended are not accounted for")
                if len(chosen):
                    longest = max(longest, float((at[index] - times[chosen]).max()))
                records += len(chosen)
            before = found.get(name, Waits(longest=0.0, records=0))
            found[name] = Waits(longest=max(longest, before.longest), records=records + before.records)
            self._made.progress.step(f"  {name}: longest wait {longest:.3f} s of {records:,} records")
        return found

    def _appended(self) -> dict[int, Instants]:
        """Return when each record was appended, by partition [Unix s]."""
        connection, times = self._made.connection, dict[int, list[float]]()
        for record in read_range(connection, TOPIC, find_range(connection, TOPIC)):
            times.setdefault(record.partition, []).append(as_seconds(record.timestamp_us))
        return {partition: np.array(found) for partition, found in times.items()}


ANSWER_BAR = 500.0
"""Time-out of a call by TM's clients [ms]."""
END_BAR = 5.0
"""From SIGTERM to the end of a process [s]; supervisors kill after ten."""


def outage(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    """Give commands and write adminMode while the broker is frozen, then killed; end all processes without it."""
    calls = 10 if quick else 40
    with testbed.system("outage", nodes=1, subarrays=1) as running:
        (master,), (subarray,) = running.devices("SdpMaster"), running.devices("SdpSubarray")
        one, other = running.proxy(master), running.proxy(subarray)
        running.progress.demand(lambda: _may_command(one) and _may_command(other), 60.0, "commands may be given")
        tried: dict[str, Callable[[], Any]] = {
            "a command": lambda: other.command_inout("On"),
            "adminMode": lambda: one.write_attribute("adminMode", 1),
        }
        with running.broker.frozen():
            took = {f"{name}, broker frozen": refused(running, call, calls) for name, call in tried.items()}
        running.broker.kill()
        try:
            took |= {f"{name}, broker killed": refused(running, call, calls) for name, call in tried.items()}
            ends = {process.name: _end(running, process) for process in list(running.processes)}
        finally:
            running.broker.start()
    slowest = max(ends, key=lambda name: ends[name])
    return BenchOutcome(
        what="time until a call is refused, and until a process has ended after SIGTERM, with no broker to ask",
        verdicts=(
            *refusals(took),
            at_most(f"longest end ({slowest})", ends[slowest], END_BAR, "s"),
            none_of("calls that were taken", sum(calls - len(part) for part in took.values())),
        ),
    )


def refusals(took: Mapping[str, list[float]]) -> Iterator[BarVerdict]:
    for name, part in took.items():
        yield at_most(f"longest refusal of {name}", max(part, default=None), ANSWER_BAR, "ms")


def _may_command(proxy: Any) -> bool:
    refused = any("commands are refused" in line for line in proxy.healthInfo or ())
    return bool(proxy.state() != tango.DevState.UNKNOWN) and not refused


def refused(running: Deployment, call: Callable[[], Any], calls: int) -> list[float]:
    """Return how long each call took that was refused [ms]."""
    took = []
    for _ in range(calls):
        begin = running.clock.monotonic()
        try:
            call()
        except tango.DevFailed:
            took.append((running.clock.monotonic() - begin) * 1e3)
    return took


def _end(running: Deployment, process: Process) -> float:
    begin = running.clock.monotonic()
    process.stop(60.0)
    return running.clock.monotonic() - begin
