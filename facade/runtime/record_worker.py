"""A worker that makes records of each record that it takes, and commits both in one transaction.

It keeps nothing between transactions: after a ``kill -9`` the next one goes on with the first record whose results
are not on the log. A record that cannot be used is set aside with the reason, in the same transaction, so that it
holds up nothing behind it.
"""

import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from facade.bus.port import PartitionBatch, Record, TransactionalLog
from facade.clock import Clock
from facade.icd.topic_model import Topic
from facade.outcome import USED, RecordRejected, Unused
from facade.printable import excerpt
from facade.runtime.worker import OffsetRanges, TransactionalWorker

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatching:
    """How much is in memory, and in one transaction."""

    batch: int = 16
    """Records taken at once: at most so many of the largest are in memory."""
    wait: float = 0.2
    """Longest wait for the first one [s]."""
    idle_interval: float = 1.0
    """Time between signs of life while none come [s]."""
    limit_bytes: int = 32_000_000
    """Records of one transaction, so that a crash repeats little [bytes]."""
    retry: float = 0.5
    """Pause after a transaction that failed [s]."""


class RecordWorker(TransactionalWorker):
    """One slot of a group of such workers.

    Parameters
    ----------
    name
        Of this worker, in accounts, dead letters and log lines.
    entry
        The topic in the ICD.
    """

    def __init__(
        self,
        log: TransactionalLog,
        topic: str,
        entry: Topic,
        *,
        name: str,
        clock: Clock,
        batching: RecordBatching | None = None,
    ) -> None:
        self._batching = batching or RecordBatching()
        super().__init__(log, {topic: entry.max_bytes}, name=name, clock=clock, retry=self._batching.retry)
        # The first transaction comes at once: it ends one that a killed predecessor left open, behind which
        # no reader of committed records would come.
        self._began -= self._batching.idle_interval

    @abstractmethod
    def convert(self, record: Record) -> Sequence[Record] | Unused:
        """Return what a record leads to, or why it is of no use."""

    def _take(self) -> None:
        before = self._taken
        # First one and then the rest: a call of the client that is to give many waits for many.
        for timeout, limit in ((self._batching.wait, 1), (0.0, self._batching.batch - 1)):
            for run in self._next(limit, timeout):
                self._fold(run)
            if self._taken == before:
                break
        self._is_full = self._taken - before >= self._batching.batch

    def _is_due(self) -> bool:
        if not self._taken:
            return self._idle() >= self._batching.idle_interval
        return not self._is_full or self._bytes >= self._batching.limit_bytes

    def _fold(self, run: PartitionBatch) -> None:
        values = run.values()
        self._begin(run, len(values))
        for index, value in enumerate(values):
            self._bytes += len(value or b"")
            record = run.record(index)
            made = self._convert(record)
            if isinstance(made, Unused):
                self._settle(record, made)
            else:
                self._made += made
                self._settle(record, USED)

    def _convert(self, record: Record) -> Sequence[Record] | Unused:
        try:
            return self.convert(record)
        except Exception as error:
            # A mistake of ours about one record would end each worker that takes it, and hold up all behind it.
            _log.exception("record failed topic=%s offset=%d", record.topic, record.offset)
            return RecordRejected("internal", "$", excerpt(f"{type(error).__name__}: {error}"))

    def _output(self, ranges: OffsetRanges) -> Sequence[Record]:
        return self._made

    def _forget(self) -> None:
        self._made: list[Record] = []
        self._bytes = 0
        self._is_full = False
        """Whether as many were taken as may be at once, so that more may wait."""
