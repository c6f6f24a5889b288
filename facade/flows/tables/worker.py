"""The assembling worker: takes segments, announces each table that is complete, and says what became of others.

It keeps nothing but what is under way. The position that it writes is that of the first record of the oldest
table under way, so after a ``kill -9`` those records come again, and with them some that have been dealt with;
`facade.flows.tables.partition_state` says how they are known. What it writes is one transaction: dead letters, what is
on ``tables`` and ``accounts``, its position, and the group's. The group refuses who has lost its partitions, however
long that one stood still. It begins at its own position, whatever the group says (`facade.flows.tables.recalled`).

A record is counted when its fate is known: those of a table when it ends, so an entry of the account may count records
from before its range. A table is announced once, unless all of it is sent again after a newer one of its product was
complete, ``tables`` was compacted and the worker was started again.
"""

import logging
from dataclasses import dataclass

from facade.bus.offsets import is_log_of
from facade.bus.port import Aborted, Record, TransactionalMember
from facade.clock import Clock
from facade.errors import BusError
from facade.flows.tables.assembly import Assembly, AssemblyLimits, Ended, PartialTable, Repeated
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.messages import CALIBRATION, COMPLETE, FAILED, TABLES
from facade.flows.tables.partition_state import PartitionState, account_record, failure_of
from facade.flows.tables.recalled import Recalled, TablesBus, find, positions
from facade.flows.tables.references import MAY_BE_SENT_AGAIN, References
from facade.flows.tables.segments import Reference, ReferencedTable, SegmentOutcome, SegmentReader
from facade.flows.tables.summaries import Summaries, Summarise
from facade.icd.model import Icd
from facade.messages import TableSegment
from facade.outcome import RecordRejected
from facade.runtime.accounts import RunningAccount
from facade.runtime.worker import TransactionLoop

_log = logging.getLogger(__name__)

MOST_LOOKED_INTO = 64_000_000
"""Larger tables that come as references are verified, and no summary is made of them [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTiming:
    """How much is in memory, and how long things may take."""

    batch: int = 16
    """Records taken at once."""
    wait: float = 0.2
    """Longest wait for the first one [s]."""
    idle_interval: float = 1.0
    """Time between signs of life while nothing is written [s]."""
    retry: float = 0.5
    """Pause after the bus has failed [s]."""
    turn: float = 1.0
    """After so long what was taken waits for the next step [s]: the group must hear of us, also between references."""


class TableWorker(TransactionLoop):
    """One slot of the group that assembles tables.

    Parameters
    ----------
    slot
        Name of the slot; each running worker has its own.
    group
        Consumer group, without the deployment's prefix.
    """

    def __init__(
        self,
        member: TransactionalMember,
        bus: TablesBus,
        icd: Icd,
        *,
        slot: str,
        group: str,
        clock: Clock,
        summarise: Summarise,
        references: References,
        pool: BufferPool,
        limits: AssemblyLimits | None = None,
        timing: WorkerTiming | None = None,
    ) -> None:
        self._member, self._bus, self._clock = member, bus, clock
        self._name, self._group = f"tables-{slot}", group
        self._summaries = Summaries(summarise, icd.topics[TABLES].max_bytes // 2)
        self._timing = timing or WorkerTiming()
        self._assembly = Assembly(pool, limits or AssemblyLimits())
        self._segments = SegmentReader(
            member.take, self._assembly, clock, batch=self._timing.batch, is_wanted=self._begin
        )
        self._references, self._reference_pool = references, BufferPool(MOST_LOOKED_INTO, pool.open_file)
        self._reading: ReferencedTable | None = None
        """The reference that is being read; what was taken behind it waits."""
        self._most_record = icd.topics[CALIBRATION].max_bytes
        self._partitions: dict[int, PartitionState] = {}
        self._signed_at = float("-inf")
        self.account = RunningAccount()
        self.accounts = {CALIBRATION: self.account}
        """What this process has taken since it started: decided, or in flight."""

    def step(self) -> None:
        """Take some records, and write what became of them; see `TransactionLoop`."""
        try:
            super().step()
        finally:
            self.account.uncommitted = sum(state.pending for state in self._partitions.values())

    def _take(self) -> None:
        self._take_more()
        self._follow()
        self._work(self._clock.monotonic() + self._timing.turn)
        for ended in self._assembly.expire(self._clock.monotonic()):
            self._end(ended)

    def _is_due(self) -> bool:
        """Return True: each step writes what there is."""
        return True

    def _give_up(self, reason: BusError) -> None:
        if isinstance(reason, Aborted):  # the bus knows how far this worker has come
            self._drop_all()
        _log.warning("bus failed worker=%s under way=%d reason=%s", self._name, len(self._assembly), reason)
        self._clock.sleep(self._timing.retry)

    def finish(self) -> None:
        """Leave; what is under way will come again to whoever goes on."""
        self._drop_all()
        self._member.close()

    def _take_more(self) -> None:
        """Fill up what is to be looked at; what is left of it may be of partitions that have gone meanwhile."""
        left, before = len(self._segments.waiting), dict(self._member.assignment)
        self._segments.take(self._timing.wait if self._reading is None else 0.0)
        now, waiting = self._member.assignment, self._segments.waiting
        waiting[:left] = [one for one in waiting[:left] if now.get(one.partition) == before.get(one.partition)]

    def _follow(self) -> None:
        """Let go of partitions that went, and find out what is known of those that came."""
        wanted, now = self._member.assignment, self._bus.watch().step([CALIBRATION]).get(CALIBRATION)
        for state in list(self._partitions.values()):
            if wanted.get(state.partition) != state.assigned or (now and not is_log_of(state.counted.log, now.id)):
                self._drop(state.partition)
        gained = [partition for partition in wanted if partition not in self._partitions]
        if gained:
            recalled, troubles = find(self._bus, self._member, self._group, gained)
            self._segments.waiting[:] = [one for one in self._segments.waiting if one.partition not in recalled]
            self._member.go_on({partition: past.counted.begin for partition, past in recalled.items()})
            for partition, past in recalled.items():
                self._gain(partition, wanted[partition], past)
            for trouble in troubles:
                _log.warning("%s worker=%s", trouble, self._name)
            _log.info("partitions assigned worker=%s partitions=%s", self._name, sorted(self._partitions))

    def _gain(self, partition: int, assigned: int, past: Recalled) -> None:
        for table in past.ended.values():
            if (failure := failure_of(table)) is None or failure.reason not in MAY_BE_SENT_AGAIN:
                self._assembly.end((partition, table.table), table, failure)
        state = PartitionState(partition, assigned, past, by=self._name, most=self._most_record)
        self._partitions[partition] = state
        for table in state.lost():
            self._assembly.end((partition, table.table), table, state.lose(table, self._now_us()))
        for table in past.gone:  # it may be sent again: the log on which it was is no more
            state.lose(table, self._now_us())

    def _drop_all(self) -> None:
        for partition in list(self._partitions):
            self._drop(partition)

    def _drop(self, partition: int) -> None:
        self._assembly.drop(partition)
        del self._partitions[partition]
        if self._reading is not None and self._reading.record.partition == partition:
            self._reading.close()
            self._reading = None

    def _under_way(self, partition: int) -> list[PartialTable]:
        return [table for table in self._assembly if table.partition == partition]

    def _work(self, until: float) -> None:
        """Look at what was taken, until a time by the monotonic clock [s]."""
        while self._clock.monotonic() < until:
            if self._reading is not None:
                self._read(self._reading)
            elif self._segments.waiting:
                for record, outcome in self._segments.outcomes(until):
                    self._settle(record, outcome)
            else:
                return

    def _begin(self, record: Record, header: TableSegment | RecordRejected | None) -> bool:
        """Take note of a record; return whether it was not dealt with before."""
        state = self._partitions.get(record.partition)
        if state is None:
            return False
        state.position = record.offset + 1
        if state.is_done(record, header):
            return False
        state.pending += 1
        return True

    def _settle(self, record: Record, outcome: SegmentOutcome) -> None:
        state = self._partitions[record.partition]
        if isinstance(outcome, Ended):
            self._end(outcome)
        elif isinstance(outcome, Reference):
            state.position = record.offset  # it is not dealt with yet
            keep = outcome.header.size <= MOST_LOOKED_INTO
            self._reading = ReferencedTable(record, outcome.header, self._references, self._reference_pool, keep=keep)
        else:
            state.decide(record, outcome)
            if isinstance(outcome, RecordRejected) and not isinstance(outcome, Repeated):
                _log.warning("record set aside %s/%d reason=%s", record.partition, record.offset, outcome.reason)

    def _read(self, reading: ReferencedTable) -> None:
        """Read on in a reference, and report what it refers to once all of that was read."""
        began, record = self._clock.monotonic(), reading.record
        ended = reading.step(began)
        self._assembly.wait(self._clock.monotonic() - began)
        if ended is not None:
            self._reading = None
            self._partitions[record.partition].position = record.offset + 1
            self._end(ended)

    def _end(self, ended: Ended) -> None:
        table, rejected, summary = ended.table, ended.rejected, None
        try:
            if rejected is None:
                unseen = {"note": ended.unseen}
                found = unseen if ended.content is None else self._summaries.of(table.header, ended.content)
                rejected, summary = (found, None) if isinstance(found, RecordRejected) else (None, found)
        finally:
            ended.close()
        if rejected is None or rejected.reason not in MAY_BE_SENT_AGAIN:
            self._assembly.end(table.key, table.header, rejected)
        state = COMPLETE if rejected is None else FAILED
        _log.info("table ended state=%s table=%s reason=%s", state, table.header.table, rejected and rejected.detail)
        self._partitions[table.partition].end(table, self._now_us(), rejected, summary)

    def _commit(self) -> None:
        """Write the fates of records, and how far all is done, in one transaction.

        Raises
        ------
        Aborted
            It is not known to have happened; `tables` and `positions` say it.
        """
        now, now_us, records = self._clock.monotonic(), self._now_us(), list[Record]()
        offsets, moved = dict[int, int](), dict[int, int]()
        for number, state in self._partitions.items():
            # Step 1: dead letters, reports about tables and entries of the account, of each partition.
            under_way = self._under_way(number)
            records += state.letters() + state.reports(under_way, now, now_us)
            records += state.signs(now, now_us, self._timing.idle_interval)
            # Step 2: how far all is done: up to the first record of the oldest table under way.
            offsets[number] = max(state.offset(under_way), state.committed)
            if offsets[number] > state.committed:
                moved[number] = offsets[number]
        # Step 3: a sign of life of a worker without partitions.
        if not self._partitions and now - self._signed_at >= self._timing.idle_interval:
            self._signed_at = now
            records.append(account_record(RunningAccount().entry(self._name, CALIBRATION, -1, now_us)))
        if not records and not moved:
            return
        # Step 4: the worker's positions.
        logs = {number: self._partitions[number].counted.log for number in moved}
        records += positions(self._group, self._name, moved, logs)
        # Step 5: the transaction. The offsets that did not move are in it as well: the group refuses them, and so the
        # transaction, if partitions are not this worker's any more.
        self._member.write(records, offsets)
        # Step 6: forget what is written.
        for number, state in self._partitions.items():
            self.account.add(state.account)
            state.written()
            state.committed = offsets[number]

    def _now_us(self) -> int:
        return round(self._clock.now() * 1e6)
