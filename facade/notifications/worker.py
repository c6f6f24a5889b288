"""The aggregate worker: takes notifications, writes partials, and commits both in one transaction.

The worker keeps nothing between transactions. A record is in the partials of exactly the
transaction that commits its offset, so totals stay exact over ``kill -9``, rebalances and broker
restarts. In the same transaction go the dead letters and an entry in the account of each
partition, hence ``consumed = used + late + suppressed + dead-lettered`` holds for any committed
prefix of the log.
"""

import logging
from dataclasses import dataclass, field

import msgspec
import numpy as np

from facade.bus.dead_letters import dead_letter
from facade.bus.port import Aborted, Record, Run, TransactionalLog
from facade.clock import Clock
from facade.codec.columns import ColumnDecoder
from facade.codec.decode import Reason
from facade.config import Settings
from facade.counters import StreamAccount
from facade.icd.model import Icd
from facade.notifications.partial import Partial, Summary, gather, split
from facade.notifications.plan import MICRO, Plan, plan
from facade.notifications.reduce import AppendTimes, reduce
from facade.racks import Racks

_log = logging.getLogger(__name__)

SOURCE = "ingest.heaps"
SUMMARY = "ingest.summary"
ACCOUNTS = "accounts"


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


@dataclass(slots=True)
class Pending:
    """What the transaction under way will write."""

    partials: dict[tuple[int, int], dict[tuple[int, int, bool], Partial]] = field(default_factory=dict)
    """By partition and node, then by epoch, window and whether late."""
    dead_letters: list[Record] = field(default_factory=list)
    accounts: dict[int, StreamAccount] = field(default_factory=dict)
    """By partition."""
    taken: int = 0
    dead_bytes: int = 0
    """Size of the dead letters' values."""
    lag: int = 0
    """Records behind the newest one of any partition."""


class Worker:
    """One slot of the group that reduces heap notifications.

    Parameters
    ----------
    settings
        The deployment; notifications of nodes that it does not have are dead letters.
    """

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
        self._log = log
        self._clock = clock
        self._slot = slot
        self._pace = pace or Pace()
        self._plan: Plan = plan(icd, SOURCE)
        self._decoder = ColumnDecoder(self._plan.message, icd.messages[self._plan.message])
        self._racks = Racks(settings.rack_size, icd.topics[SUMMARY].partitions)
        self._known = np.zeros(settings.nodes + 1, dtype=np.bool_)
        self._known[: settings.nodes] = True
        self._pending = Pending()
        self._began = clock.monotonic()
        self._encode = msgspec.json.Encoder().encode
        self.account = StreamAccount()
        """What this process has taken since it started: committed, or in flight."""

    def step(self) -> None:
        """Take some records; commit when it is time.

        Raises
        ------
        Fenced
            Another process has taken the slot.
        """
        try:
            left = self._began + self._pace.interval - self._clock.monotonic()
            for run in self._log.take(self._pace.batch, max(left, 0.001)):
                self._fold(run)
            if self._is_due():
                self._commit()
        except Aborted as reason:
            _log.warning("transaction given up slot=%s taken=%d reason=%s", self._slot, self._pending.taken, reason)
            self._start_over()
            self._clock.sleep(self._pace.retry)

    def _is_due(self) -> bool:
        pending, pace = self._pending, self._pace
        if pending.taken >= pace.limit or pending.dead_bytes >= pace.limit_bytes:
            return True
        if not pending.taken:
            wanted = pace.idle_interval
        else:
            wanted = pace.behind_interval if pending.lag > pace.behind else pace.interval
        return self._clock.monotonic() - self._began >= wanted

    def finish(self) -> None:
        """Commit what was taken, so that a planned stop repeats no work, and leave."""
        try:
            if self._pending.taken:
                self._commit()
        except Aborted as reason:
            _log.warning("last transaction given up slot=%s reason=%s", self._slot, reason)
        self._log.close()

    def _fold(self, run: Run) -> None:
        values = run.values()
        account = self._pending.accounts.setdefault(run.partition, StreamAccount())
        account.take(run.first_offset, run.last_offset + 1, len(values), run.high_watermark)
        self._pending.taken += len(values)
        self._pending.lag = max(self._pending.lag, run.high_watermark - run.last_offset)
        self.account.consumed += len(values)
        self.account.in_flight += len(values)
        table = self._decoder.decode(values)
        for entry in table.rejected:
            if entry.reason is Reason.TOMBSTONE:
                account.suppress(entry.reason)
            else:
                self._set_aside(run, entry.index, entry.reason, entry.path, entry.detail)
        index = table.index
        appended = AppendTimes(*run.appended, lambda row: run.append_time(int(index[row])))
        reduced = reduce(table.columns, self._plan, appended, self._known)
        for refused in reduced.refused:
            path, _, detail = refused.detail.partition(": ")
            self._set_aside(run, int(table.index[refused.index]), refused.reason, path, detail)
        account.used += reduced.used
        account.late += reduced.late
        for node, partials in reduced.partials.items():
            gather(self._pending.partials.setdefault((run.partition, node), {}), partials)

    def _set_aside(self, run: Run, index: int, reason: str, path: str, detail: str) -> None:
        self._pending.accounts[run.partition].dead_letter(reason, f"{path}: {detail}")
        record = run.record(index)
        self._pending.dead_bytes += len(record.value or b"")
        self._pending.dead_letters.append(dead_letter(record, reason=reason, path=path, detail=detail, by=self._slot))

    def _commit(self) -> None:
        pending = self._pending
        now_us = round(self._clock.now() * MICRO)
        records = [
            self._record(SUMMARY, str(node), Summary(self._slot, partition, node, [part]), self._racks.partition(node))
            for (partition, node), partials in pending.partials.items()
            for whole in partials.values()
            for part in split(whole)
        ]
        accounts = pending.accounts or {-1: StreamAccount()}
        records += [
            self._record(ACCOUNTS, f"{SOURCE}/{partition}", account.entry(self._slot, SOURCE, partition, now_us))
            for partition, account in accounts.items()
        ]
        self._log.commit([*records, *pending.dead_letters])
        self._start_over()
        for account in pending.accounts.values():
            self.account.add(account)

    def _record(self, topic: str, key: str, value: msgspec.Struct, partition: int = -1) -> Record:
        return Record(topic=topic, key=key.encode(), value=self._encode(value), partition=partition)

    def _start_over(self) -> None:
        self._pending = Pending()
        self.account.consumed -= self.account.in_flight
        self.account.in_flight = 0
        self._began = self._clock.monotonic()
