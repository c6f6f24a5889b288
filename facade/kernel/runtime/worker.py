"""The frame of workers: records are consumed and their results written in one transaction.

After a ``kill -9`` the next worker continues with the first record whose outcome is not on the log. The transaction
also has the dead letters and an entry in the account of each partition, hence ``consumed = used + late + suppressed +
dead-lettered`` holds for any committed prefix of the log.

A worker has two parts. The `OpenTransaction` reads records, and has their outcomes since the last commit. The `Fold`
makes results of them, and is all that differs between workers.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from facade.kernel.bus.dead_letters import COUNT, dead_letter, size_of
from facade.kernel.bus.port import Aborted, OffsetRange, PartitionBatch, Record, Revoked, TransactionalLog
from facade.kernel.clock import Clock, as_duration
from facade.kernel.outcome import USED, Outcome, RecordRejected, Unused
from facade.kernel.printable import excerpt
from facade.kernel.runtime.accounts import ACCOUNTS, MOST_ROWS, RunningAccount

_log = logging.getLogger(__name__)

SIGN_OF_LIFE = 1.0
"""Time after which the next commit has an account of a partition without records [s]."""

OffsetRanges = Mapping[tuple[str, int], OffsetRange]
"""Offsets of a transaction, by topic and partition."""


class Fold(Protocol):
    """What a kind of worker makes of records. It keeps no result beyond the end of a transaction."""

    def take(self) -> bool:
        """Read some records from the transaction, and find the outcome of each; return whether it is time to commit."""

    def output(self, ranges: OffsetRanges) -> Iterable[Record]:
        """Return the results of the transaction's records, without accounts and dead letters."""

    def end(self, *, is_committed: bool) -> None:
        """Begin with nothing, after a commit or instead of one."""


class OpenTransaction:
    """The open transaction of a worker: the records read since the last commit, and their outcomes.

    Parameters
    ----------
    topics
        Topics to read.
    name
        Name of the worker, in accounts and log lines.
    by
        Name of the worker in its dead letters; by default its name.
    age
        Age of the first transaction at the start [s]. With an age at which the fold commits without records, the first
        step ends an open transaction of a killed predecessor, which readers of committed records cannot pass.
    """

    def __init__(
        self,
        log: TransactionalLog,
        topics: Collection[str],
        *,
        name: str,
        clock: Clock,
        by: str = "",
        age: float = 0.0,
    ) -> None:
        self.log, self.name, self._by, self._clock = log, name, by or name, clock
        self.totals = {topic: RunningAccount() for topic in topics}
        """Committed records since the start of the process, and uncommitted ones, by topic."""
        self._reported: dict[tuple[str, int], float] = {}
        """Monotonic time of the last account of each topic and partition [s]; partition -1: a topic without partitions
        for this worker."""
        self._busy_since, self._waited = clock.monotonic(), 0.0
        """Monotonic time up to which accounts include the busy time, and the time spent waiting since then [s]."""
        self.forget()
        self._began -= age

    def read(self, limit: int, timeout: float) -> Sequence[PartitionBatch]:
        """Return the next records; the time counts as waiting if fewer than `limit` come."""
        began = self._clock.monotonic()
        runs = self.log.take(limit, timeout)
        if limit == 1 or sum(run.last_offset - run.first_offset + 1 for run in runs) < limit:
            self._waited += self._clock.monotonic() - began
        return runs

    def count(self, run: PartitionBatch, count: int, batches: int = 0) -> RunningAccount:
        """Count the records read, and rows of columnar batches separately; return their account."""
        account = self.accounts.setdefault((run.topic, run.partition), RunningAccount())
        account.batches += batches
        account.consumed += count
        self.taken += count
        self.totals[run.topic].uncommitted += count
        return account

    def settle(self, record: Record, outcome: Outcome, more: Mapping[str, int] | None = None) -> None:
        """Count the outcome of a record; a rejected record becomes a dead letter; `more`: see `dead_letter`."""
        self.accounts[record.topic, record.partition].settle(outcome, count=(more or {}).get(COUNT, 1))
        if isinstance(outcome, RecordRejected):
            self.dead_letters.append(dead_letter(record, outcome, by=self._by, more=more))
            self.dead_bytes += size_of(self.dead_letters[-1])

    def age(self) -> float:
        """Return the time since the transaction began [s]."""
        return self._clock.monotonic() - self._began

    def commit(self, output: Callable[[OffsetRanges], Iterable[Record]]) -> None:
        """Write results, dead letters and accounts, and the positions after the records."""
        now, now_us = self._clock.monotonic(), self._clock.now_us()
        # Step 1: the offsets that the transaction covers, of each partition.
        ranges = self.log.ranges()
        # Step 2: an account for each partition with records, and for each whose sign of life is due.
        accounts = self.accounts | {place: RunningAccount() for place in self._silent(ranges, now)}
        for place in accounts.keys() & ranges.keys():
            accounts[place].cover(ranges[place])
        for place, account in accounts.items():
            _require_sound(place, account)
        lost = self.accounts.keys() - ranges.keys()
        assert not lost, f"records of {lost} have no offsets, and would come again"
        assert self.taken == sum(one.consumed for one in self.accounts.values()), "records are in no account"
        self._tell_work(now)
        # Step 3: results, accounts and dead letters; their order within the transaction does not matter.
        records = [*output(ranges), *self.dead_letters]
        for (topic, partition), account in accounts.items():
            entry = account.entry(self.name, topic, partition, now_us)
            records.append(as_record(ACCOUNTS, f"{topic}/{partition}", entry))
        # Step 4 (`TransactionalProducer`): begin; these records, then positions; the offsets of the group; commit.
        self.log.commit(records)
        # Step 5: forget these records.
        self.forget()
        self._reported |= dict.fromkeys(accounts, now)
        for (topic, _), account in accounts.items():
            self.totals[topic].add(account)

    def give_up(self, reason: Aborted, retry: float) -> None:
        """Forget the records, which come again, and wait after a failure, `retry` [s]."""
        _log.warning("transaction given up worker=%s taken=%d reason=%s", self.name, self.taken, reason)
        self.forget()
        if not isinstance(reason, Revoked):
            self._clock.sleep(retry)
            self._waited += retry

    def forget(self) -> None:
        """Begin with nothing, after a commit or instead of one."""
        self.accounts: dict[tuple[str, int], RunningAccount] = {}
        """Of the partitions with records, by topic and partition."""
        self.dead_letters: list[Record] = []
        self.taken = self.dead_bytes = 0
        for account in self.totals.values():
            account.uncommitted = 0
        self._began = self._clock.monotonic()

    def _tell_work(self, now: float) -> None:
        """Share the time since the last call among the accounts, by their records."""
        spent = max(now - self._busy_since - self._waited, 0.0)
        for account in self.accounts.values():
            account.busy = as_duration(spent * account.consumed / max(self.taken, 1))
        self._busy_since, self._waited = now, 0.0

    def _silent(self, ranges: OffsetRanges, now: float) -> list[tuple[str, int]]:
        """Return the partitions without records whose account is due: as a heartbeat, or with news."""
        topics = {topic for topic, _ in ranges}
        without = [(topic, -1) for topic in self.totals if topic not in topics]
        silence = {place: now - at for place, at in self._reported.items()}
        return [
            place
            for place in (*ranges, *without)
            if place not in self.accounts
            and (not self.taken or _is_news(ranges.get(place)) or silence.get(place, SIGN_OF_LIFE) >= SIGN_OF_LIFE)
        ]


class TransactionalWorker:
    """One slot of a group of workers without state between transactions.

    Parameters
    ----------
    fold
        Makes the results of the transaction's records.
    retry
        Pause after a transaction that failed [s].
    """

    def __init__(self, transaction: OpenTransaction, fold: Fold, *, retry: float) -> None:
        self._transaction, self._fold, self._retry = transaction, fold, retry

    @property
    def accounts(self) -> Mapping[str, RunningAccount]:
        """Return the committed records since the start of the process, and uncommitted ones, by topic."""
        return self._transaction.totals

    def step(self) -> None:
        """Read some records; commit when it is time.

        Raises
        ------
        Fenced
            Another process has taken the slot.
        """
        try:
            if self._fold.take():
                self._commit()
        except Aborted as reason:  # the log has gone back; after other errors it has not
            self._fold.end(is_committed=False)
            self._transaction.give_up(reason, self._retry)

    def finish(self) -> None:
        """Commit the open transaction, so that a planned stop repeats no work, and leave."""
        try:
            if self._transaction.taken:
                self._commit()
        except Aborted as reason:
            _log.warning("last transaction given up worker=%s reason=%s", self._transaction.name, reason)
        self._transaction.log.close()

    def _commit(self) -> None:
        self._transaction.commit(self._fold.output)
        self._fold.end(is_committed=True)


def _require_sound(place: tuple[str, int], account: RunningAccount) -> None:
    """Assert that the account of a partition is right before it is written."""
    assert not account.balance, f"{place}: {account.balance} of {account.consumed} records have no outcome"
    unused, named = account.suppressed + account.dead_lettered, account.reasons.total()
    assert named == unused, f"{place}: {unused} records are unused, for {named} reasons"
    most = account.offset_to - account.offset_from + MOST_ROWS * account.batches
    assert account.consumed <= most, f"{place}: {account.consumed} records, and offsets and batches for {most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatching:
    """Limits of the records in memory, and in one transaction."""

    batch: int = 16
    """Most records taken at once; it limits the memory if all have the largest size."""
    wait: float = 0.2
    """Longest wait for the first record [s]."""
    interval: float = SIGN_OF_LIFE
    """Longest time between two commits, whether records wait or not [s]."""
    limit_bytes: int = 32_000_000
    """Size of the records of one transaction, so that a crash repeats little [bytes]."""
    retry: float = 0.5
    """Pause after a transaction that failed [s]."""


Convert = Callable[[Record], Sequence[Record] | Unused]
"""Returns the results of a record, or the reason why it is unusable."""


class RecordFold:
    """Converts single records."""

    def __init__(self, transaction: OpenTransaction, convert: Convert, batching: RecordBatching) -> None:
        self._transaction, self._convert, self._batching = transaction, convert, batching
        self.end(is_committed=False)

    def take(self) -> bool:
        """Read a batch of records; commit unless more records are waiting, but for a limited time."""
        transaction, limits = self._transaction, self._batching
        before = transaction.taken
        # One record first and then the rest: a call of the client for many records waits for many.
        for timeout, limit in ((limits.wait, 1), (0.0, limits.batch - 1)):
            for run in transaction.read(limit, timeout):
                self._take_all(run)
            if transaction.taken == before:
                break
        if transaction.taken and (transaction.taken - before < limits.batch or self._bytes >= limits.limit_bytes):
            return True
        return transaction.age() >= limits.interval  # records without bytes never reach the limit

    def output(self, ranges: OffsetRanges) -> Sequence[Record]:
        """Return the results of all records."""
        return self._results

    def end(self, *, is_committed: bool) -> None:
        """Forget the results."""
        self._results: list[Record] = []
        self._bytes = 0

    def _take_all(self, run: PartitionBatch) -> None:
        count = len(run.values())
        self._transaction.count(run, count)
        for index in range(count):
            record = run.record(index)
            self._bytes += size_of(record)
            results = self._results_of(record)
            if isinstance(results, Unused):
                self._transaction.settle(record, results)
            else:
                self._results += results
                self._transaction.settle(record, USED)

    def _results_of(self, record: Record) -> Sequence[Record] | Unused:
        try:
            return self._convert(record)
        except Exception as error:
            # A bug with one record would end each worker that reads it, and hold up all records after it.
            _log.exception("record failed topic=%s offset=%d", record.topic, record.offset)
            return RecordRejected("internal", "$", excerpt(f"{type(error).__name__}: {error}"))


def record_worker(
    log: TransactionalLog,
    topic: str,
    convert: Convert,
    *,
    name: str,
    clock: Clock,
    batching: RecordBatching | None = None,
) -> TransactionalWorker:
    """Return one slot of a group of workers that convert single records.

    Parameters
    ----------
    convert
        Returns the results of a record, or the reason why it is unusable.
    name
        Name of the worker, in accounts, dead letters and log lines.
    """
    limits = batching or RecordBatching()
    transaction = OpenTransaction(log, [topic], name=name, clock=clock, age=limits.interval)
    return TransactionalWorker(transaction, RecordFold(transaction, convert, limits), retry=limits.retry)


def as_record(topic: str, key: str, value: msgspec.Struct, partition: int = -1) -> Record:
    """Return a message as a record to write."""
    return Record(topic=topic, key=key.encode(), value=msgspec.json.encode(value), partition=partition)


def _is_news(offsets: OffsetRange | None) -> bool:
    return offsets is not None and (bool(offsets.note) or offsets.begin != offsets.end)
