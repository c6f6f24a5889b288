"""The frame of workers: records are consumed and their results written in one transaction.

After a ``kill -9`` the next worker continues with the first record whose outcome is not on the log. The transaction
also has the dead letters and an entry in the account of each partition, hence ``consumed = used + late + suppressed +
dead-lettered`` holds for any committed prefix of the log.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from facade.bus.dead_letters import COUNT, dead_letter
from facade.bus.port import Aborted, Fenced, OffsetRange, PartitionBatch, Record, Revoked, TransactionalLog
from facade.clock import Clock, as_duration
from facade.errors import BusError
from facade.outcome import USED, Outcome, RecordRejected, Unused
from facade.printable import excerpt
from facade.runtime.accounts import ACCOUNTS, MOST_ROWS, RunningAccount

_log = logging.getLogger(__name__)

SIGN_OF_LIFE = 1.0
"""Longest time between two accounts of a partition without records [s]."""

OffsetRanges = Mapping[tuple[str, int], OffsetRange]
"""Offsets of a transaction, by topic and partition."""


class TransactionLoop(ABC):
    """The loop of a worker: read records, and write their results in one transaction when it is due."""

    def step(self) -> None:
        """Read some records; commit when it is time.

        Raises
        ------
        Fenced
            Another process has taken the slot.
        """
        try:
            self._take()
            if self._is_due():
                self._commit()
        except Fenced:
            raise
        except BusError as reason:
            self._give_up(reason)

    @abstractmethod
    def _take(self) -> None:
        """Read some records, and find the outcome of each."""

    @abstractmethod
    def _is_due(self) -> bool:
        """Return whether it is time to commit."""

    @abstractmethod
    def _commit(self) -> None:
        """Write the results, and the positions after the records, in one transaction."""

    @abstractmethod
    def _give_up(self, reason: BusError) -> None:
        """Forget the records of the open transaction, which come again, and wait."""


class TransactionalWorker(TransactionLoop):
    """One slot of a group of workers without state between transactions.

    Parameters
    ----------
    topics
        Topics to read.
    name
        Name of the worker, in accounts, dead letters and log lines.
    retry
        Pause after a transaction that failed [s].
    """

    def __init__(
        self, log: TransactionalLog, topics: Collection[str], *, name: str, clock: Clock, retry: float
    ) -> None:
        self._log, self._name, self._clock, self._retry = log, name, clock, retry
        self._by = name
        """Name of the reader in its dead letters."""
        self._encode = msgspec.json.Encoder().encode
        self.accounts = {topic: RunningAccount() for topic in topics}
        """Committed records since the start of the process, and uncommitted ones, by topic."""
        self._reported: dict[tuple[str, int], float] = {}
        """Monotonic time of the last account of each topic and partition [s]; partition -1: a topic without partitions
        for this worker."""
        self._busy_since, self._waited = clock.monotonic(), 0.0
        """Monotonic time up to which accounts include the busy time, and the time spent waiting since then [s]."""
        self._start_over()

    def _give_up(self, reason: BusError) -> None:
        if not isinstance(reason, Aborted):  # the log has not gone back
            raise reason
        _log.warning("transaction given up worker=%s taken=%d reason=%s", self._name, self._taken, reason)
        self._start_over()
        if not isinstance(reason, Revoked):
            self._clock.sleep(self._retry)
            self._waited += self._retry

    def finish(self) -> None:
        """Commit the open transaction, so that a planned stop repeats no work, and leave."""
        try:
            if self._taken:
                self._commit()
        except Aborted as reason:
            _log.warning("last transaction given up worker=%s reason=%s", self._name, reason)
        self._log.close()

    @abstractmethod
    def _output(self, ranges: OffsetRanges) -> Iterable[Record]:
        """Return the records to write in the transaction, without accounts and dead letters."""

    @abstractmethod
    def _forget(self) -> None:
        """Begin with nothing, after a commit or instead of one."""

    def _next(self, limit: int, timeout: float) -> Sequence[PartitionBatch]:
        """Return the next records; the time counts as waiting if fewer than `limit` come."""
        began = self._clock.monotonic()
        runs = self._log.take(limit, timeout)
        if limit == 1 or sum(run.last_offset - run.first_offset + 1 for run in runs) < limit:
            self._waited += self._clock.monotonic() - began
        return runs

    def _begin(self, run: PartitionBatch, count: int, batches: int = 0) -> RunningAccount:
        """Count the records read, and rows of columnar batches separately; return their account."""
        account = self._accounts.setdefault((run.topic, run.partition), RunningAccount())
        account.batches += batches
        account.consumed += count
        self._taken += count
        self.accounts[run.topic].uncommitted += count
        return account

    def _settle(self, record: Record, outcome: Outcome, more: Mapping[str, int] | None = None) -> None:
        """Count the outcome of a record; a rejected record becomes a dead letter; `more`: see `dead_letter`."""
        self._accounts[record.topic, record.partition].settle(outcome, count=(more or {}).get(COUNT, 1))
        if isinstance(outcome, RecordRejected):
            self._dead_letters.append(dead_letter(record, outcome, by=self._by, more=more))
            self._dead_bytes += len(self._dead_letters[-1].value or b"")

    def _idle(self) -> float:
        return self._clock.monotonic() - self._began

    def _commit(self) -> None:
        now, now_us = self._clock.monotonic(), self._clock.now_us()
        # Step 1: the offsets that the transaction covers, of each partition.
        ranges = self._log.ranges()
        # Step 2: an account for each partition with records, and for each whose sign of life is due.
        accounts = self._accounts | {place: RunningAccount() for place in self._silent(ranges, now)}
        for place in accounts.keys() & ranges.keys():
            accounts[place].cover(ranges[place])
        for place, account in accounts.items():
            _require_sound(place, account)
        lost = self._accounts.keys() - ranges.keys()
        assert not lost, f"records of {lost} have no offsets, and would come again"
        assert self._taken == sum(one.consumed for one in self._accounts.values()), "records are in no account"
        self._tell_work(now)
        # Step 3: results, accounts and dead letters; their order within the transaction does not matter.
        records = [*self._output(ranges), *self._dead_letters]
        for (topic, partition), account in accounts.items():
            entry = account.entry(self._name, topic, partition, now_us)
            records.append(self._record(ACCOUNTS, f"{topic}/{partition}", entry))
        # Step 4 (`TransactionalProducer`): begin; these records, then positions; the offsets of the group; commit.
        self._log.commit(records)
        # Step 5: forget these records.
        self._start_over()
        self._reported |= dict.fromkeys(accounts, now)
        for (topic, _), account in accounts.items():
            self.accounts[topic].add(account)

    def _tell_work(self, now: float) -> None:
        """Share the time since the last call among the accounts, by their records."""
        spent = max(now - self._busy_since - self._waited, 0.0)
        for account in self._accounts.values():
            account.busy = as_duration(spent * account.consumed / max(self._taken, 1))
        self._busy_since, self._waited = now, 0.0

    def _silent(self, ranges: OffsetRanges, now: float) -> list[tuple[str, int]]:
        """Return the partitions without records whose account is due: as a heartbeat, or with news."""
        topics = {topic for topic, _ in ranges}
        without = [(topic, -1) for topic in self.accounts if topic not in topics]
        return [
            place
            for place in (*ranges, *without)
            if place not in self._accounts
            and (not self._taken or self._is_news(ranges.get(place)) or self._is_silent(place, now))
        ]

    def _is_silent(self, place: tuple[str, int], now: float) -> bool:
        return now - self._reported.get(place, float("-inf")) >= SIGN_OF_LIFE

    @staticmethod
    def _is_news(offsets: OffsetRange | None) -> bool:
        return offsets is not None and (bool(offsets.note) or offsets.begin != offsets.end)

    def _record(self, topic: str, key: str, value: msgspec.Struct, partition: int = -1) -> Record:
        return Record(topic=topic, key=key.encode(), value=self._encode(value), partition=partition)

    def _start_over(self) -> None:
        self._accounts: dict[tuple[str, int], RunningAccount] = {}
        self._dead_letters: list[Record] = []
        self._taken = self._dead_bytes = 0
        for account in self.accounts.values():
            account.uncommitted = 0
        self._began = self._clock.monotonic()
        self._forget()


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
    idle_interval: float = 1.0
    """Time between accounts while no records come [s]."""
    limit_bytes: int = 32_000_000
    """Size of the records of one transaction, so that a crash repeats little [bytes]."""
    retry: float = 0.5
    """Pause after a transaction that failed [s]."""


class RecordWorker(TransactionalWorker):
    """One slot of a group of workers that convert single records.

    Parameters
    ----------
    name
        Name of the worker, in accounts, dead letters and log lines.
    """

    def __init__(
        self,
        log: TransactionalLog,
        topic: str,
        *,
        name: str,
        clock: Clock,
        batching: RecordBatching | None = None,
    ) -> None:
        self._batching = batching or RecordBatching()
        super().__init__(log, [topic], name=name, clock=clock, retry=self._batching.retry)
        # The first transaction comes at once: it ends an open transaction of a killed predecessor, which readers of
        # committed records cannot pass.
        self._began -= self._batching.idle_interval

    @abstractmethod
    def convert(self, record: Record) -> Sequence[Record] | Unused:
        """Return the results of a record, or the reason why it is unusable."""

    def _take(self) -> None:
        before = self._taken
        # One record first and then the rest: a call of the client for many records waits for many.
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
            # A bug with one record would end each worker that reads it, and hold up all records after it.
            _log.exception("record failed topic=%s offset=%d", record.topic, record.offset)
            return RecordRejected("internal", "$", excerpt(f"{type(error).__name__}: {error}"))

    def _output(self, ranges: OffsetRanges) -> Sequence[Record]:
        return self._made

    def _forget(self) -> None:
        self._made: list[Record] = []
        self._bytes = 0
        self._is_full = False
        """Whether the last batch was full, so that more records may be waiting."""
