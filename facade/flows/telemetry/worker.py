"""The aggregate worker: takes notifications, writes partials, and commits both in one transaction.

The worker keeps nothing between transactions. A record is in the partials of exactly the
transaction that commits its offset, so totals stay exact over ``kill -9``, rebalances and broker
restarts; see `facade.runtime.worker`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from facade.bus.port import Record, Run, TransactionalLog
from facade.clock import Clock
from facade.codec.columns import ColumnDecoder
from facade.config import Settings
from facade.flows.telemetry.partial import Partial, Summary, gather, split
from facade.flows.telemetry.plan import Plan, plan
from facade.flows.telemetry.reduce import AppendTimes, reduce
from facade.icd.model import Icd
from facade.racks import Racks
from facade.runtime.worker import TransactionalWorker

SOURCE = "ingest.heaps"
SUMMARY = "ingest.summary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a worker divides the stream into transactions."""

    interval: float = 0.1
    """Time between commits while records come [s]."""
    behind_interval: float = 1.0
    """The same while the worker is behind: then throughput counts, not latency [s]."""
    behind: int = 50_000
    """From this lag on the worker is behind [records]."""
    idle_interval: float = 1.0
    """Time between signs of life while none come [s]."""
    batch: int = 10_000
    """Records taken at once; decoding more at once is no faster."""
    limit: int = 1_000_000
    """Most records in one transaction."""
    limit_bytes: int = 32_000_000
    """Most bytes of dead letters in one transaction, as they are kept whole."""
    retry: float = 0.5
    """Pause after a transaction that failed [s]."""


class Worker(TransactionalWorker):
    """One slot of the group that reduces heap notifications.

    Parameters
    ----------
    settings
        The deployment; notifications of nodes that it does not have are dead letters.
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
        pace: Pace | None = None,
    ) -> None:
        self._pace = pace or Pace()
        self._plan: Plan = plan(icd, SOURCE)
        self._decoder = ColumnDecoder(self._plan.message, icd.messages[self._plan.message])
        self._racks = Racks(settings.rack_size, icd.topics[SUMMARY].partitions)
        self._known = np.zeros(settings.nodes + 1, dtype=np.bool_)
        self._known[: settings.nodes] = True
        super().__init__(log, SOURCE, name=slot, clock=clock, retry=self._pace.retry)

    def _take(self) -> None:
        left = self._pace.interval - self._idle()
        for run in self._log.take(self._pace.batch, max(left, 0.001)):
            self._fold(run)

    def _is_due(self) -> bool:
        pace = self._pace
        if self._taken >= pace.limit or self._dead_bytes >= pace.limit_bytes:
            return True
        if not self._taken:
            wanted = pace.idle_interval
        else:
            wanted = pace.behind_interval if self._lag > pace.behind else pace.interval
        return self._idle() >= wanted

    def _fold(self, run: Run) -> None:
        values = run.values()
        account = self._begin(run, len(values))
        self._lag = max(self._lag, run.high_watermark - run.last_offset)
        table = self._decoder.decode(values)
        for at, outcome in table.unused.items():
            self._settle(run.record(at), outcome)
        index = table.index
        appended = AppendTimes(*run.appended, lambda row: run.append_time(int(index[row])))
        reduced = reduce(table.columns, self._plan, appended, self._known)
        for row, rejected in reduced.rejected:
            self._settle(run.record(int(index[row])), rejected)
        account.used += reduced.used
        account.late += reduced.late
        for node, partials in reduced.partials.items():
            gather(self._partials.setdefault((run.partition, node), {}), partials)

    def _output(self) -> Iterator[Record]:
        for (partition, node), partials in self._partials.items():
            for whole in partials.values():
                for part in split(whole):
                    summary = Summary(self._name, partition, node, [part])
                    yield self._record(SUMMARY, str(node), summary, self._racks.partition(node))

    def _forget(self) -> None:
        self._partials: dict[tuple[int, int], dict[tuple[int, int, bool], Partial]] = {}
        """By partition and node, then by epoch, window and whether late."""
        self._lag = 0
