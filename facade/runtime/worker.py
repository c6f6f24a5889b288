"""The frame of workers that keep nothing: what they take and what comes of it are committed in one transaction.

After a ``kill -9`` the next worker goes on with the first record whose outcome is not on the log. In the same
transaction go the dead letters and an entry in the account of each partition, hence
``consumed = used + late + suppressed + dead-lettered`` holds for any committed prefix of the log.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable

import msgspec

from facade.bus.dead_letters import dead_letter
from facade.bus.port import Aborted, Record, Run, TransactionalLog
from facade.clock import Clock
from facade.outcome import Outcome, Rejected
from facade.runtime.accounts import ACCOUNTS, StreamAccount

_log = logging.getLogger(__name__)


class TransactionalWorker(ABC):
    """One slot of a group of such workers.

    Parameters
    ----------
    topic
        What is taken.
    name
        Of this worker, in accounts, dead letters and log lines.
    retry
        Pause after a transaction that failed [s].
    """

    def __init__(self, log: TransactionalLog, topic: str, *, name: str, clock: Clock, retry: float) -> None:
        self._log, self._topic, self._name, self._clock, self._retry = log, topic, name, clock, retry
        self._encode = msgspec.json.Encoder().encode
        self.account = StreamAccount()
        """What this process has committed since it started, and how much it has taken beyond that."""
        self._start_over()

    def step(self) -> None:
        """Take some records; commit when it is time.

        Raises
        ------
        Fenced
            Another process has taken the slot.
        """
        try:
            self._take()
            if self._is_due():
                self._commit()
        except Aborted as reason:
            _log.warning("transaction given up worker=%s taken=%d reason=%s", self._name, self._taken, reason)
            self._start_over()
            self._clock.sleep(self._retry)

    def finish(self) -> None:
        """Commit what was taken, so that a planned stop repeats no work, and leave."""
        try:
            if self._taken:
                self._commit()
        except Aborted as reason:
            _log.warning("last transaction given up worker=%s reason=%s", self._name, reason)
        self._log.close()

    @abstractmethod
    def _take(self) -> None:
        """Take some records: `_begin` each run of them, and count the fate of each record."""

    @abstractmethod
    def _is_due(self) -> bool:
        """Return whether it is time to commit."""

    @abstractmethod
    def _output(self) -> Iterable[Record]:
        """Return what the transaction is to write, but for accounts and dead letters."""

    @abstractmethod
    def _forget(self) -> None:
        """Begin with nothing, after a commit or in the place of one."""

    def _begin(self, run: Run, count: int) -> StreamAccount:
        """Count what was taken, and give the account that is to say what became of it."""
        account = self._accounts.setdefault(run.partition, StreamAccount())
        account.take(run.first_offset, run.last_offset + 1, count, run.high_watermark)
        self._taken += count
        self.account.uncommitted += count
        return account

    def _settle(self, record: Record, outcome: Outcome) -> None:
        """Count what became of a record; one that is rejected becomes a dead letter."""
        self._accounts[record.partition].settle(outcome)
        if isinstance(outcome, Rejected):
            self._dead_bytes += len(record.value or b"")
            self._dead_letters.append(dead_letter(record, outcome, by=self._name))

    def _idle(self) -> float:
        """Return the time since the last commit [s]."""
        return self._clock.monotonic() - self._began

    def _commit(self) -> None:
        now_us, accounts = round(self._clock.now() * 1e6), self._accounts
        # Also with nothing taken: it is the sign of life.
        entries = [
            self._record(
                ACCOUNTS, f"{self._topic}/{partition}", account.entry(self._name, self._topic, partition, now_us)
            )
            for partition, account in (accounts or {-1: StreamAccount()}).items()
        ]
        self._log.commit([*self._output(), *entries, *self._dead_letters])
        self._start_over()
        for account in accounts.values():
            self.account.add(account)

    def _record(self, topic: str, key: str, value: msgspec.Struct, partition: int = -1) -> Record:
        return Record(topic=topic, key=key.encode(), value=self._encode(value), partition=partition)

    def _start_over(self) -> None:
        self._accounts: dict[int, StreamAccount] = {}
        """By partition."""
        self._dead_letters: list[Record] = []
        self._taken = self._dead_bytes = 0
        self.account.uncommitted = 0
        self._began = self._clock.monotonic()
        self._forget()
