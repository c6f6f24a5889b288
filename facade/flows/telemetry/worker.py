"""The aggregate worker: takes records of all windowed topics, writes partials, and commits both in one transaction.

The worker keeps nothing between transactions. A record is in the partials of exactly the
transaction that commits its offset, so totals stay exact over ``kill -9``, rebalances and broker
restarts; see `facade.runtime.worker`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from facade.bus.port import Record, Run, TransactionalLog
from facade.clock import Clock
from facade.codec.columns import ColumnDecoder
from facade.config import Settings
from facade.flows.telemetry.groups import groups
from facade.flows.telemetry.partial import Group, gather, split
from facade.flows.telemetry.plan import Plan, plans
from facade.flows.telemetry.reduce import AppendTimes, reduce
from facade.icd.model import Icd
from facade.messages import Partial
from facade.racks import Racks
from facade.runtime.worker import SIGN_OF_LIFE, Spans, TransactionalWorker

_LOOK = 0.01
"""Shortest wait for more records [s]."""
_IDLE = 0.1
"""Longest wait for the first record of a transaction [s]: so soon a worker learns that it is to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How a worker divides the streams into transactions."""

    interval: float = 0.1
    """Time between commits while records come [s]."""
    behind_interval: float = 1.0
    """The same while the worker is behind: then throughput counts, not latency [s]."""
    behind: int = 50_000
    """From this lag on the worker is behind [records]."""
    idle_interval: float = SIGN_OF_LIFE
    """Time between commits while none come [s]."""
    batch: int = 10_000
    """Records taken at once; decoding more at once is no faster."""
    limit: int = 1_000_000
    """Most records in one transaction."""
    limit_bytes: int = 32_000_000
    """Most bytes of dead letters in one transaction, as they are kept whole."""
    retry: float = 0.5
    """Pause after a transaction that failed [s]."""


class _Stream:
    """What the worker needs for one windowed topic."""

    def __init__(self, plan: Plan, icd: Icd, settings: Settings) -> None:
        self.plan = plan
        self.decoder = ColumnDecoder(plan.message, icd.messages[plan.message])
        self.groups = groups(plan, settings)
        self.racks = Racks(settings.rack_size, icd.topics[plan.window.summary].partitions)

    def partition(self, group: Group) -> int:
        """Return the partition of the summary topic for a group; -1: by the key."""
        if self.plan.window.groups == "node" and isinstance(group, int):
            return self.racks.partition(group)
        return -1


class Worker(TransactionalWorker):
    """One slot of the group that aggregates all windowed topics.

    Parameters
    ----------
    settings
        The deployment; records of groups that it does not have are dead letters.
    """

    _lag: int
    """Records behind the newest one of any partition."""

    def __init__(
        self,
        log: TransactionalLog,
        icd: Icd,
        settings: Settings,
        *,
        slot: str,
        clock: Clock,
        limits: BatchLimits | None = None,
    ) -> None:
        self._limits = limits or BatchLimits()
        self._streams = {topic: _Stream(plan, icd, settings) for topic, plan in plans(icd).items()}
        most_bytes = {topic: icd.topics[topic].max_bytes for topic in self._streams}
        super().__init__(log, most_bytes, name=slot, clock=clock, retry=self._limits.retry)
        self._by = f"aggregate-{slot}"  # a slot alone says nothing to who reads the letter

    def _take(self) -> None:
        before = self._taken
        if not before:  # the client waits for a whole batch; for the first record it waits alone
            idle = min(max(self._limits.idle_interval - self._idle(), _LOOK), _IDLE)
            for run in self._log.take(1, idle):
                self._fold(run)
            if not self._taken:
                return
        left = self._limits.interval - self._idle()
        for run in self._log.take(self._limits.batch - (self._taken - before), max(left, _LOOK)):
            self._fold(run)

    def _is_due(self) -> bool:
        limits = self._limits
        if self._taken >= limits.limit or self._dead_bytes >= limits.limit_bytes:
            return True
        if not self._taken:
            wanted = limits.idle_interval
        else:
            wanted = limits.behind_interval if self._lag > limits.behind else limits.interval
        return self._idle() >= wanted

    def _fold(self, run: Run) -> None:
        stream, values = self._streams[run.topic], run.values()
        account = self._begin(run, len(values))
        self._lag = max(self._lag, run.high_watermark - run.last_offset)
        table = stream.decoder.decode(values)
        for at, outcome in table.unused.items():
            self._settle(run.record(at), outcome)
        index = table.index
        appended = AppendTimes(*run.appended, lambda row: run.append_time(int(index[row])))
        reduced = reduce(table.columns, stream.plan, appended, stream.groups)
        for row, rejected in reduced.rejected:
            self._settle(run.record(int(index[row])), rejected)
        account.used += reduced.used
        account.late += reduced.late
        for group, partials in reduced.partials.items():
            gather(self._partials.setdefault((run.topic, run.partition, group), {}), partials)

    def _output(self, spans: Spans) -> Iterator[Record]:
        for (topic, partition, group), partials in self._partials.items():
            stream, span = self._streams[topic], spans[topic, partition]
            plan, to = stream.plan, stream.partition(group)
            parts = (part for whole in partials.values() for part in split(whole))
            for number, part in enumerate(parts):
                summary = plan.summary(self._name, partition, group, part, span, number)
                yield self._record(plan.window.summary, plan.key(group), summary, to)

    def _forget(self) -> None:
        self._partials: dict[tuple[str, int, Group], dict[tuple[int, int, bool], Partial]] = {}
        """By topic, partition and group, then by epoch, window and whether late."""
        self._lag = 0
