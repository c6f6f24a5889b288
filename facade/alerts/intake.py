"""The intake worker: takes packets, writes the small alert of each, and commits both in one transaction.

It keeps nothing between transactions, as the worker for notifications does not: after a ``kill -9`` the
next one goes on with the first packet whose alert is not on the log. A packet that cannot be used is
set aside with the reason, in the same transaction, so that it holds up nothing behind it.
"""

import logging
from dataclasses import dataclass, field, replace

import msgspec

from facade.alerts.messages import ALERTS, PACKET, PACKETS
from facade.alerts.packets import PacketCodec, PacketReason, Refused
from facade.bus.dead_letters import dead_letter
from facade.bus.port import Aborted, Record, Run, TransactionalLog
from facade.clock import Clock
from facade.counters import StreamAccount
from facade.icd.model import Icd

_log = logging.getLogger(__name__)

ACCOUNTS = "accounts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much is in memory, and in one transaction."""

    batch: int = 16
    """Packets taken at once: at most so many of the largest are in memory."""
    wait: float = 0.2
    """Longest wait for the first one [s]."""
    idle_interval: float = 1.0
    """Time between signs of life while none come [s]."""
    limit_bytes: int = 32_000_000
    """Packets of one transaction, so that a crash repeats little [bytes]."""
    retry: float = 0.5
    """Pause after a transaction that failed [s]."""


@dataclass(slots=True)
class Pending:
    """What the transaction under way will write."""

    alerts: list[Record] = field(default_factory=list)
    dead_letters: list[Record] = field(default_factory=list)
    accounts: dict[int, StreamAccount] = field(default_factory=dict)
    """By partition."""
    taken: int = 0
    packet_bytes: int = 0


class Intake:
    """One slot of the group that takes alert packets.

    Parameters
    ----------
    slot
        Name of the slot; each running worker has its own.

    Raises
    ------
    ConfigError
        The Avro library is not installed.
    """

    def __init__(self, log: TransactionalLog, icd: Icd, *, slot: str, clock: Clock, pace: Pace | None = None) -> None:
        self._log = log
        self._clock = clock
        self._name = f"alerts-intake-{slot}"
        self._pace = pace or Pace()
        self._codec = PacketCodec(icd)
        self._most_packet = icd.topics[PACKETS].max_bytes
        self._pending = Pending()
        # The first transaction comes at once: it ends one that a killed predecessor left open, behind which
        # no reader of the topic alerts would come.
        self._began = clock.monotonic() - self._pace.idle_interval
        self._encode = msgspec.json.Encoder().encode
        self.account = StreamAccount()
        """What this process has taken since it started: committed, or in flight."""

    def step(self) -> None:
        """Take some packets; commit when nothing more waits, or enough is taken.

        Raises
        ------
        Fenced
            Another process has taken the slot.
        """
        try:
            before = self._pending.taken
            # First one and then the rest: a call of the client that is to give many waits for many.
            for timeout, limit in ((self._pace.wait, 1), (0.0, self._pace.batch - 1)):
                for run in self._log.take(limit, timeout):
                    self._take(run)
                if self._pending.taken == before:
                    break
            if self._is_due(taken=self._pending.taken - before):
                self._commit()
        except Aborted as reason:
            _log.warning("transaction given up worker=%s taken=%d reason=%s", self._name, self._pending.taken, reason)
            self._start_over()
            self._clock.sleep(self._pace.retry)

    def finish(self) -> None:
        """Commit what was taken, so that a planned stop repeats no work, and leave."""
        try:
            if self._pending.taken:
                self._commit()
        except Aborted as reason:
            _log.warning("last transaction given up worker=%s reason=%s", self._name, reason)
        self._log.close()

    def _is_due(self, *, taken: int) -> bool:
        pending = self._pending
        if not pending.taken:
            return self._clock.monotonic() - self._began >= self._pace.idle_interval
        return taken < self._pace.batch or pending.packet_bytes >= self._pace.limit_bytes

    def _take(self, run: Run) -> None:
        values = run.values()
        account = self._pending.accounts.setdefault(run.partition, StreamAccount())
        account.take(run.first_offset, run.last_offset + 1, len(values), run.high_watermark)
        self._pending.taken += len(values)
        self.account.consumed += len(values)
        self.account.in_flight += len(values)
        for index, value in enumerate(values):
            self._pending.packet_bytes += len(value or b"")
            record = run.record(index)
            made = self._codec.alert(value, f"{record.partition}/{record.offset}")
            if not isinstance(made, Refused):
                alert, text = made
                self._pending.alerts.append(_record(alert.condition, text, record))
                account.used += 1
            elif made.reason == PacketReason.TOMBSTONE:
                account.suppress(made.reason)
            else:
                account.dead_letter(made.reason, f"{made.path}: {made.detail}")
                self._pending.dead_letters.append(self._letter(record, made))

    def _letter(self, record: Record, why: Refused) -> Record:
        detail = why.detail
        size = len(record.value or b"") + len(record.key or b"") + sum(len(raw) for _, raw in record.headers)
        if size > self._most_packet:
            # Compressed it passed the broker; as it is, no topic takes it, and it would come again for ever.
            record, detail = replace(record, key=None, value=None, headers=()), f"{detail}; left where it is"
        return dead_letter(record, reason=why.reason, path=why.path, detail=detail, by=self._name)

    def _commit(self) -> None:
        pending = self._pending
        now_us = round(self._clock.now() * 1e6)
        accounts = [
            Record(
                topic=ACCOUNTS,
                key=f"{PACKETS}/{partition}".encode(),
                value=self._encode(account.entry(self._name, PACKETS, partition, now_us)),
            )
            for partition, account in (pending.accounts or {-1: StreamAccount()}).items()
        ]
        self._log.commit([*pending.alerts, *accounts, *pending.dead_letters])
        self._start_over()
        for account in pending.accounts.values():
            self.account.add(account)

    def _start_over(self) -> None:
        self._pending = Pending()
        self.account.consumed -= self.account.in_flight
        self.account.in_flight = 0
        self._began = self._clock.monotonic()


def _record(condition: str, text: bytes, packet: Record) -> Record:
    """Make the record of a packet's alert; its header says which packet it is of, for readers that do not wait."""
    place = f"{packet.partition}/{packet.offset}".encode()
    return Record(topic=ALERTS, key=condition.encode(), value=text, headers=((PACKET, place),))
