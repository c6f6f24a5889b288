"""Processes that are timed: our worker, and a loop that only consumes.

Both time themselves from the moment the client gives the first records, so that start-up, the
group's join and the first contact with the transaction coordinator are left out. The records of
the first batch are not counted in either, because they were fetched before the time began.
"""

import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from facade.flows.telemetry.worker import BatchLimits, telemetry_worker
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.port import Aborted, BusHealth, PartitionBatch, Record, TransactionalLog
from facade.kernel.clock import Clock
from facade.kernel.icd.load import load
from facade.kernel.runtime.worker import TransactionalWorker
from sdp_facade_lab import gauges
from sdp_facade_lab.bench.load import TOPIC
from sdp_facade_lab.bench.raw import bare_batches
from sdp_facade_lab.roles import RoleContext

_GATE_PAUSE = 0.05
_EXHAUSTED = 1.5
"""Time without records after which a gated worker has done its share [s]."""
_GC_THRESHOLD = 100_000
"""As `sdp-facade aggregate` and `logs aggregate` set it."""


class ProgressMark(msgspec.Struct, frozen=True, array_like=True):
    """How far a process was at some moment."""

    time: float
    """Monotonic time of the machine, comparable between processes [s]."""
    records: int
    cpu: float
    """Of the process [s]."""
    broker_cpu: float
    """[s]."""


class RoleTiming(msgspec.Struct, frozen=True, kw_only=True):
    """What a timed process says about itself."""

    marks: list[ProgressMark]
    """The first one when the first records came, then one per batch or per transaction."""
    given_up: list[float] = []
    """When transactions were given up, whose records were taken, and counted, again (monotonic) [s]."""

    @property
    def records(self) -> int:
        return self.marks[-1].records - self.marks[0].records

    @property
    def seconds(self) -> float:
        """Return the time they took [s]."""
        return self.marks[-1].time - self.marks[0].time

    @property
    def rate(self) -> float:
        """Return the speed [records/s]."""
        return self.records / self.seconds

    @property
    def cpu_per_million(self) -> float:
        """Return the processor time of the process for a million records [s]."""
        return (self.marks[-1].cpu - self.marks[0].cpu) / self.records * 1e6

    @property
    def broker_cpu_per_million(self) -> float:
        """Return the broker's processor time for a million records [s]."""
        return (self.marks[-1].broker_cpu - self.marks[0].broker_cpu) / self.records * 1e6


class Meter:
    """Collects marks."""

    def __init__(self, clock: Clock, broker_pid: int) -> None:
        self._clock, self._broker_pid = clock, broker_pid
        self.marks: list[ProgressMark] = []

    def mark(self, records: int) -> None:
        if self.marks and self.marks[-1].records == records:
            return  # nothing but time has passed
        self.marks.append(
            ProgressMark(self._clock.monotonic(), records, gauges.own_cpu(), gauges.cpu(self._broker_pid))
        )

    def timing(self, given_up: Sequence[float] = ()) -> RoleTiming:
        return RoleTiming(marks=self.marks, given_up=list(given_up))


class TimedLog(KafkaTransactionalLog):
    """A transactional log that notes when records are taken and committed, and may wait at a gate first.

    At the gate it takes a record now and then: a member that takes nothing leaves the group.
    """

    def __init__(self, context: RoleContext, topic: str, meter: Meter, *, gated: bool, **member: Any) -> None:
        super().__init__(Connection(context.settings, clock=context.clock), topic, health=BusHealth(), **member)
        self._context, self._meter, self._gated, self._records = context, meter, gated, 0
        self._took_at = context.clock.monotonic()
        self.given_up: list[float] = []

    def take(self, limit: int, timeout: float) -> Sequence[PartitionBatch]:
        if self._gated and not self._context.released:
            self._context.clock.sleep(_GATE_PAUSE)
            limit, timeout = 1, 0.0
        else:
            self._gated = False
        try:
            runs = super().take(limit, timeout)
        except Aborted:
            self._note_failure()
            raise
        if runs:
            self._records += sum(run.last_offset - run.first_offset + 1 for run in runs)
            self._took_at = self._context.clock.monotonic()
            if self._gated:
                self._context.announce()
            elif not self._meter.marks:
                self._meter.mark(self._records)
        return runs

    def commit(self, records: Iterable[Record]) -> None:
        try:
            super().commit(records)
        except Aborted:
            self._note_failure()
            raise
        if self._meter.marks:
            self._meter.mark(self._records)

    @property
    def is_exhausted(self) -> bool:
        """Return whether there have been no records for a while, with the gate open."""
        return not self._gated and self._context.clock.monotonic() - self._took_at > _EXHAUSTED

    def _note_failure(self) -> None:
        if self._gated:
            self._context.retract()  # the group is being rebalanced: this share is not the final one
        else:
            self.given_up.append(self._context.clock.monotonic())


def worker(
    context: RoleContext, *, group: str, slot: str, records: int, broker_pid: int, gated: bool = False, rows: int = 1
) -> RoleTiming:
    def make(log: TransactionalLog) -> TransactionalWorker:
        return telemetry_worker(log, load(), context.settings, slot=slot, clock=context.clock)

    return time_worker(context, TOPIC, make, records * rows, group=group, slot=slot, broker_pid=broker_pid, gated=gated)


def time_worker(
    context: RoleContext,
    topic: str,
    make: Callable[[TransactionalLog], TransactionalWorker],
    records: int,
    *,
    group: str,
    slot: str,
    broker_pid: int,
    gated: bool = False,
) -> RoleTiming:
    gc.set_threshold(_GC_THRESHOLD)
    meter = Meter(context.clock, broker_pid)
    timed = TimedLog(context, topic, meter, gated=gated, group=group, slot=slot)
    timed.commit([])  # makes the producer known to the transaction coordinator, before the time begins
    work = make(timed)
    account = work.accounts[topic]
    while account.consumed + account.uncommitted < records and not (gated and timed.is_exhausted):
        work.step()
    work.finish()
    if account.used + account.late < account.consumed:
        raise Aborted(f"of {account.consumed} simulated records only {account.used} were used")
    return meter.timing(timed.given_up)


def bare(context: RoleContext, *, group: str, records: int, broker_pid: int) -> RoleTiming:
    gc.set_threshold(_GC_THRESHOLD)
    meter, taken = Meter(context.clock, broker_pid), 0
    for count in bare_batches(
        Connection(context.settings, clock=context.clock), TOPIC, group=group, batch=BatchLimits().batch
    ):
        taken += count
        # A look at the clocks for each batch would cost more than the batch's share of the loop.
        if count and (not meter.marks or taken >= records):
            meter.mark(taken)
        if taken >= records:
            break
    return meter.timing()
