"""The intake worker: takes packets, writes the small alert of each, and commits both in one transaction.

It keeps nothing between transactions, as the worker for notifications does not: after a ``kill -9`` the
next one goes on with the first packet whose alert is not on the log. A packet that cannot be used is
set aside with the reason, in the same transaction, so that it holds up nothing behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from facade.bus.port import Record, Run, TransactionalLog
from facade.clock import Clock
from facade.flows.alerts.messages import ALERTS, PACKET, PACKETS
from facade.flows.alerts.packets import PacketCodec
from facade.icd.model import Icd
from facade.outcome import Rejected
from facade.runtime.worker import TransactionalWorker


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


class Intake(TransactionalWorker):
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
        self._pace = pace or Pace()
        self._codec = PacketCodec(icd)
        self._most_packet = icd.topics[PACKETS].max_bytes
        super().__init__(log, PACKETS, name=f"alerts-intake-{slot}", clock=clock, retry=self._pace.retry)
        # The first transaction comes at once: it ends one that a killed predecessor left open, behind which
        # no reader of the topic alerts would come.
        self._began -= self._pace.idle_interval

    def _take(self) -> None:
        before = self._taken
        # First one and then the rest: a call of the client that is to give many waits for many.
        for timeout, limit in ((self._pace.wait, 1), (0.0, self._pace.batch - 1)):
            for run in self._log.take(limit, timeout):
                self._fold(run)
            if self._taken == before:
                break
        self._is_full = self._taken - before >= self._pace.batch

    def _is_due(self) -> bool:
        if not self._taken:
            return self._idle() >= self._pace.idle_interval
        return not self._is_full or self._packet_bytes >= self._pace.limit_bytes

    def _fold(self, run: Run) -> None:
        values = run.values()
        account = self._begin(run, len(values))
        for index, value in enumerate(values):
            self._packet_bytes += len(value or b"")
            record = run.record(index)
            made = self._codec.alert(value, f"{record.partition}/{record.offset}")
            if isinstance(made, tuple):
                alert, text = made
                self._alerts.append(_record(alert.condition, text, record))
                account.used += 1
            elif isinstance(made, Rejected):
                self._reject(record, made)
            else:
                account.settle(made)

    def _reject(self, record: Record, why: Rejected) -> None:
        size = len(record.value or b"") + len(record.key or b"") + sum(len(raw) for _, raw in record.headers)
        if size > self._most_packet:
            # Compressed it passed the broker; as it is, no topic takes it, and it would come again for ever.
            record = replace(record, key=None, value=None, headers=())
            why = replace(why, detail=f"{why.detail}; left where it is")
        self._settle(record, why)

    def _output(self) -> Sequence[Record]:
        return self._alerts

    def _forget(self) -> None:
        self._alerts: list[Record] = []
        self._packet_bytes = 0
        self._is_full = False
        """Whether as many were taken as may be at once, so that more may wait."""


def _record(condition: str, text: bytes, packet: Record) -> Record:
    """Make the record of a packet's alert; its header says which packet it is of, for readers that do not wait."""
    place = f"{packet.partition}/{packet.offset}".encode()
    return Record(topic=ALERTS, key=condition.encode(), value=text, headers=((PACKET, place),))
