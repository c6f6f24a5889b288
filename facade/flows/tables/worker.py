"""The assembling worker: consumes segments, and announces each table that is complete or has failed.

It keeps only tables under way. After a ``kill -9`` their records come again, together with some settled ones;
`facade.flows.tables.partition_state` recognises them. One transaction has dead letters, messages on ``tables`` and
``accounts``, the position and the group's offset. The group refuses a worker that has lost its partitions. A worker
begins at its own position, not at the group's.

The records of a table are counted when it ends, so an entry of the account may count records from before its range. A
table is announced once, unless three things happen: it is sent again completely after more than twenty newer ones of
its product, ``tables`` was compacted, and the worker was restarted.
"""

import logging
from typing import Any

from facade.flows.tables.assembly import (
    Assembly,
    AssemblyLimits,
    Ended,
    PartialTable,
    Repeated,
    SegmentOutcome,
    SegmentReader,
    complete,
)
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.messages import CALIBRATION, COMPLETE, FAILED, TABLES, account_record, failure_of
from facade.flows.tables.partition_state import PartitionState
from facade.flows.tables.recall import Recalled, TablesBus, recall
from facade.flows.tables.references import MAY_BE_SENT_AGAIN, ReferenceReader, References
from facade.flows.tables.summaries import Summarise, summary_of
from facade.kernel.bus.offsets import is_log_of
from facade.kernel.bus.port import Aborted, Fenced, Record, TransactionalMember
from facade.kernel.clock import Clock
from facade.kernel.errors import BusError
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import RecordRejected
from facade.kernel.runtime.accounts import RunningAccount
from facade.sdp.messages import TableSegment

_log = logging.getLogger(__name__)

MOST_LOOKED_INTO = 64_000_000
"""Size above which a referenced table is only verified, and has no summary [bytes]."""


BATCH = 16
_WAIT = 0.2
"""Longest wait for the first record [s]."""
_IDLE = 1.0
"""Time between accounts while nothing is written [s]."""
_RETRY = 0.5
"""Pause after a failure of the bus [s]."""
_TURN = 1.0
"""Longest time of a step [s]: the worker must poll the group between references."""


class TableWorker:
    """One slot of the group that assembles tables."""

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
        batch: int = BATCH,
    ) -> None:
        self._member, self._bus, self._clock = member, bus, clock
        self._name, self._group = f"tables-{slot}", group
        self._summarise, self._most_summary = summarise, icd.topics[TABLES].max_bytes // 2
        self._assembly = Assembly(pool, limits or AssemblyLimits())
        self._segments = SegmentReader(member.take, self._assembly, clock, batch=batch, is_wanted=self._begin)
        self._references, self._reference_pool = references, BufferPool(MOST_LOOKED_INTO, pool.open_file)
        self._reading: tuple[Record, TableSegment, ReferenceReader] | None = None
        """The reference being read; later records wait."""
        self._partitions: dict[int, PartitionState] = {}
        self._is_in_doubt = False
        """Whether a transaction failed with an unknown outcome."""
        self._signed_at = float("-inf")
        self.account = RunningAccount()
        self.accounts = {CALIBRATION: self.account}
        """Records of this process since its start, settled or not."""

    def step(self) -> None:
        """Read some records, and write their outcomes.

        Raises
        ------
        Fenced
            Another process has taken the slot.
        """
        try:
            self._take()
            self._commit()
        except Fenced:
            raise
        except BusError as reason:
            self._is_in_doubt = self._is_in_doubt or isinstance(reason, Aborted)
            _log.warning("bus failed worker=%s under way=%d reason=%s", self._name, len(self._assembly), reason)
            self._clock.sleep(_RETRY)
        finally:
            unwritten = sum(state.account.consumed for state in self._partitions.values())
            in_flight = sum(table.records for table in self._assembly)
            self.account.uncommitted = unwritten + in_flight + (self._reading is not None)

    def _take(self) -> None:
        self._take_more()
        self._follow()
        self._work(self._clock.monotonic() + _TURN)
        for ended in self._assembly.expire(self._clock.monotonic()):
            self._end(ended)

    def finish(self) -> None:
        """Leave the group; records of tables under way come again to the next worker."""
        for partition in list(self._partitions):
            self._drop(partition)
        self._member.close()

    def _take_more(self) -> None:
        left, before = len(self._segments.waiting), dict(self._member.assignment)
        self._segments.take(_WAIT if self._reading is None else 0.0)
        now, waiting = self._member.assignment, self._segments.waiting
        waiting[:left] = [one for one in waiting[:left] if now.get(one.partition) == before.get(one.partition)]

    def _follow(self) -> None:
        wanted, now = self._member.assignment, self._bus.watch().step([CALIBRATION]).get(CALIBRATION)
        for state in list(self._partitions.values()):
            if wanted.get(state.partition) != state.assigned or (now and not is_log_of(state.log, now.id)):
                self._drop(state.partition)
        if self._is_in_doubt:
            self._find_out()
        gained = [partition for partition in wanted if partition not in self._partitions]
        if gained:
            recalled, troubles = recall(self._bus, self._member, self._group, gained)
            self._segments.waiting[:] = [one for one in self._segments.waiting if one.partition not in recalled]
            self._member.go_on({partition: past.begin for partition, past in recalled.items()})
            for partition, past in recalled.items():
                self._gain(partition, wanted[partition], past)
            for trouble in troubles:
                _log.warning("%s worker=%s", trouble, self._name)
            _log.info("partitions assigned worker=%s partitions=%s", self._name, sorted(self._partitions))

    def _find_out(self) -> None:
        """Learn what became of a failed transaction, and go on with the tables under way.

        They are not read again: if transactions failed again and again, a large table would never be complete.
        """
        if self._partitions:
            recalled, _ = recall(self._bus, self._member, self._group, list(self._partitions))
            for partition, past in recalled.items():
                happened = self._partitions[partition].has_happened(past)
                if happened is None:
                    self._drop(partition)
                elif happened:
                    self._written(self._partitions[partition])
            self._member.go_on({})  # each partition is read on from where it is
        self._is_in_doubt = False

    def _gain(self, partition: int, assigned: int, past: Recalled) -> None:
        for table in past.ended.values():
            if (failure := failure_of(table)) is None or failure.reason not in MAY_BE_SENT_AGAIN:
                self._assembly.end((partition, table.table), table, failure)
        for versions in past.complete.values():
            for name, fingerprint in versions.items():
                if name not in past.under_way:  # after 10,000 others a table is forgotten, and may be sent again
                    self._assembly.was_complete((partition, name), fingerprint)
        state = PartitionState(partition, assigned, past, by=self._name)
        self._partitions[partition] = state
        for table in past.lost:
            rejected = state.lose(table, self._clock.now_us())
            if table.log == state.log:  # otherwise it may be sent again: its log no longer exists
                self._assembly.end((partition, table.table), table, rejected)

    def _drop(self, partition: int) -> None:
        self._assembly.drop(partition)
        del self._partitions[partition]
        if self._reading is not None and self._reading[0].partition == partition:
            self._reading[2].close()
            self._reading = None

    def _work(self, until: float) -> None:
        while self._clock.monotonic() < until:
            if self._reading is not None:
                self._read(*self._reading)
            elif self._segments.waiting:
                for record, outcome in self._segments.outcomes(until):
                    self._settle(record, outcome)
            else:
                return

    def _begin(self, record: Record, header: TableSegment | RecordRejected | None) -> bool:
        state = self._partitions.get(record.partition)
        if state is None:
            return False
        state.position = record.offset + 1
        return not state.is_done(record, header)

    def _settle(self, record: Record, outcome: SegmentOutcome) -> None:
        state = self._partitions[record.partition]
        if isinstance(outcome, Ended):
            self._end(outcome)
        elif isinstance(outcome, TableSegment):
            state.position = record.offset  # it has no outcome yet
            about = str(outcome.url), outcome.size, outcome.sha256
            keep = outcome.size <= MOST_LOOKED_INTO
            reader = ReferenceReader(self._references, *about, self._reference_pool, keep=keep)
            self._reading = record, outcome, reader
        else:
            state.decide(record, outcome)
            if isinstance(outcome, RecordRejected) and not isinstance(outcome, Repeated):
                _log.warning("record set aside %s/%d reason=%s", record.partition, record.offset, outcome.reason)

    def _read(self, record: Record, header: TableSegment, reader: ReferenceReader) -> None:
        began = self._clock.monotonic()
        has_ended = reader.step()
        self._assembly.wait(self._clock.monotonic() - began)
        if not has_ended:
            return
        self._reading = None
        self._partitions[record.partition].position = record.offset + 1
        table = PartialTable(
            header=header,
            partition=record.partition,
            first_offset=record.offset,
            newest=record,
            buffer=reader.buffer,
            touched=began,
            records=1,
        )
        self._end(complete(table) if reader.rejected is None else Ended(table, reader.rejected))

    def _end(self, ended: Ended) -> None:
        table, rejected, summary = ended.table, ended.rejected, None
        try:
            if rejected is None:
                found: dict[str, Any] | RecordRejected = {"note": ended.unseen}
                if ended.content is not None:
                    found = summary_of(self._summarise, table.header, ended.content, self._most_summary)
                rejected, summary = (found, None) if isinstance(found, RecordRejected) else (None, found)
        finally:
            ended.close()
        if rejected is None or rejected.reason not in MAY_BE_SENT_AGAIN:
            self._assembly.end(table.key, table.header, rejected)
        state = COMPLETE if rejected is None else FAILED
        _log.info("table ended state=%s table=%s reason=%s", state, table.header.table, rejected and rejected.detail)
        self._partitions[table.partition].end(table, self._clock.now_us(), rejected, summary)

    def _commit(self) -> None:
        now, now_us, records = self._clock.monotonic(), self._clock.now_us(), list[Record]()
        # Step 1: whether a sign of life is due: accounts, and the progress of tables under way.
        is_due = now - self._signed_at >= _IDLE
        # Step 2: dead letters, reports about tables, position and account of each partition.
        for number, state in self._partitions.items():
            under_way = [table for table in self._assembly if table.partition == number]
            records += state.write(under_way, now_us, group=self._group, is_due=is_due)
        if is_due and not self._partitions:
            records.append(account_record(RunningAccount().entry(self._name, CALIBRATION, -1, now_us)))
        if not records:
            return
        # Step 3: the transaction. It also has the unchanged offsets: the group refuses them, and with them the
        # transaction, if the partitions belong to another worker now.
        self._member.write(records, {number: state.tried.next for number, state in self._partitions.items()})
        # Step 4: forget all written records.
        self._signed_at = now if is_due else self._signed_at
        for state in self._partitions.values():
            self._written(state)

    def _written(self, state: PartitionState) -> None:
        self.account.add(state.account)
        state.written()
