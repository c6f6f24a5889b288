"""The worker of logs and metrics: it writes their sums and their offsets in one transaction."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from facade.flows.logs.formats import decode
from facade.flows.logs.lines import syslog_columns, syslog_message
from facade.flows.logs.messages import LOGS, METRICS, SUMMARY, TOPICS
from facade.flows.logs.records import LogRecord, MetricRecord, located
from facade.flows.logs.sums import LogSums, MetricSums, summaries
from facade.kernel.bus.dead_letters import ROW
from facade.kernel.bus.port import PartitionBatch, Record, TransactionalLog
from facade.kernel.clock import Clock, Time
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import Suppressed
from facade.kernel.runtime.accounts import RunningAccount
from facade.kernel.runtime.worker import SIGN_OF_LIFE, OffsetRanges, OpenTransaction, TransactionalWorker, as_record

_LOOK = 0.01
"""Shortest wait for more records [s]."""
_IDLE = 0.1
"""Longest wait for the first record of a transaction [s]."""
INTERVAL = 0.5
"""Time between commits while records come [s]; a second of delay is acceptable for logs."""
_BATCH, _MOST_TAKEN = 10_000, 2_000_000
"""Records read at once, and records of one transaction."""
_MOST_DEAD, _MOST_DEAD_BYTES = 10_000, 32_000_000
"""Dead letters, and bytes of them, at which a transaction ends: they are kept whole."""
_RETRY = 0.5
"""Pause after a transaction that failed [s]."""
_MOST_HOSTS = 10_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NOT_SHOWN, _NO_HOST = Suppressed("not-shown"), Suppressed("no-host")
"""A metric without an attribute, or without a known host."""


def log_worker(
    log: TransactionalLog, icd: Icd, *, slot: str, clock: Clock, interval: float = INTERVAL
) -> TransactionalWorker:
    """Return one slot of the group that processes logs and metrics."""
    transaction = OpenTransaction(log, TOPICS, name=f"logs-aggregate-{slot}", clock=clock, age=SIGN_OF_LIFE)
    fold = LogFold(transaction, interval, most_summary=icd.topics[SUMMARY].max_bytes // 2)
    return TransactionalWorker(transaction, fold, retry=_RETRY)


class LogFold:
    """Sums up logs and metrics by host, rack and level."""

    def __init__(self, transaction: OpenTransaction, interval: float, *, most_summary: int) -> None:
        self._transaction, self._interval, self._most_summary = transaction, interval, most_summary
        self._racks: dict[str, str] = {}
        """By host, from the newest key that named it."""
        self.end(is_committed=False)

    def take(self) -> bool:
        """Read records while the time between commits lasts."""
        transaction = self._transaction
        if not transaction.taken:  # the client waits for a whole batch; the first record is awaited alone
            self._fold_all(1, min(max(SIGN_OF_LIFE - transaction.age(), _LOOK), _IDLE))
        if transaction.taken:
            self._fold_all(_BATCH, max(min(self._interval - transaction.age(), _IDLE), _LOOK))
        if transaction.taken >= _MOST_TAKEN or transaction.dead_bytes >= _MOST_DEAD_BYTES:
            return True
        if len(transaction.dead_letters) >= _MOST_DEAD:
            return True
        return transaction.age() >= (self._interval if transaction.taken else SIGN_OF_LIFE)

    def _fold_all(self, limit: int, timeout: float) -> None:
        for run in self._transaction.read(limit, timeout):
            self._fold(run)

    def _fold(self, run: PartitionBatch) -> None:
        account = self._transaction.count(run, 0)
        values, batches = run.values(), 0
        left = self._fold_columns(run, values, account)
        count = len(values) - len(left)
        for index in left:
            form, rows = decode(run.topic, values[index])
            if not isinstance(rows, list):
                count += 1
                self._transaction.settle(run.record(index), rows)
                continue
            count += len(rows)
            batches += form is not None and form.is_batch
            appended = run.append_time(index)
            for at, row in enumerate(rows):
                if isinstance(row, LogRecord):
                    self._add_log(run, index, row, appended, account)
                elif isinstance(row, MetricRecord):
                    self._add_metric(run, index, row, appended, account)
                else:
                    self._transaction.settle(replace(run.record(index), value=row.value), row.why, {ROW: at})
        self._transaction.count(run, count, batches)

    def _fold_columns(self, run: PartitionBatch, values: list[bytes | None], account: RunningAccount) -> Sequence[int]:
        """Count the records that columns can represent; return the others."""
        found = syslog_columns(values) if run.topic == LOGS else None
        if found is None or not len(found.row):
            return range(len(values))
        first = np.zeros(len(found.sources), np.int64)
        first[found.source[::-1]] = found.row[::-1]
        sources = [
            one if one.rack else located(one, *self._place(run, at, one.host))
            for one, at in zip(found.sources, first.tolist(), strict=True)
        ]
        appended = np.fromiter(map(run.append_time, found.row.tolist()), np.int64, len(found.row))
        sums = self._logs.setdefault(run.partition, LogSums())
        late = sums.add_columns(
            found._replace(sources=sources), appended, lambda row: syslog_message(values[found.row[row]] or b"").body
        )
        account.late += late
        account.used += len(found.row) - late
        left = np.ones(len(values), np.bool_)
        left[found.row] = False
        rest: list[int] = np.flatnonzero(left).tolist()
        return rest

    def _add_log(
        self, run: PartitionBatch, index: int, row: LogRecord, appended: Time, account: RunningAccount
    ) -> None:
        if not row.source.rack:
            row.source = located(row.source, *self._place(run, index, row.source.host))
        sums = self._logs.get(run.partition)
        if sums is None:
            sums = self._logs[run.partition] = LogSums()
        if sums.add(row, appended):
            account.late += 1
        else:
            account.used += 1

    def _add_metric(
        self, run: PartitionBatch, index: int, row: MetricRecord, appended: Time, account: RunningAccount
    ) -> None:
        if not row.metric:
            account.settle(_NOT_SHOWN)
            return
        row.host, _ = self._place(run, index, row.host)
        if not row.host:
            account.settle(_NO_HOST)
            return
        self._metrics.setdefault(run.partition, MetricSums()).add(row, appended)
        account.used += 1

    def _place(self, run: PartitionBatch, index: int, host: str) -> tuple[str, str]:
        """Return host and rack of a record: its own names, or the names in its key, ``rack/host`` or the host."""
        first, has_rack, second = (run.record(index).key or b"").decode("ascii", "replace").partition("/")
        # Keys of other shippers are arbitrary: a name has no odd characters.
        rack, named = (one if _NAME.fullmatch(one) else "" for one in ((first, second) if has_rack else ("", first)))
        host = host or named
        if not rack or host != named:
            return host, self._racks.get(host, "")
        if len(self._racks) >= _MOST_HOSTS:
            self._racks.clear()
        if host:
            self._racks[host] = rack
        return host, rack

    def output(self, ranges: OffsetRanges) -> Iterator[Record]:
        """Return the sums of each partition with records."""
        name = self._transaction.name
        for (topic, partition), offsets in ranges.items():
            if offsets.begin == offsets.end:
                continue
            sums = self._metrics.get(partition) if topic == METRICS else self._logs.get(partition)
            if isinstance(sums, LogSums):
                account = self._transaction.accounts[topic, partition]
                judged = account.used + account.late
                assert sums.records == judged, f"{topic}: {sums.records} records are summed up, {judged} used or late"
            for summary in summaries(sums or LogSums(), name, topic, partition, offsets, self._most_summary):
                yield as_record(SUMMARY, f"{topic}/{partition}", summary)

    def end(self, *, is_committed: bool) -> None:
        """Forget the sums."""
        self._logs: dict[int, LogSums] = {}
        self._metrics: dict[int, MetricSums] = {}
