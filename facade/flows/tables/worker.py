"""The assembling worker: takes segments, announces each table that is complete, and says what became of others.

It keeps nothing but what is under way. The offset that it commits is that of the first record of the oldest
table under way, so after a ``kill -9`` those records come again, and with them some that have been dealt with;
`facade.flows.tables.partition_state` says how they are told. What it writes goes in three steps: dead letters,
then what is on ``tables`` and ``accounts``, then the offset; each waits until all in-sync replicas have it.

A record is counted when its fate is known: those of a table all at once when it ends, so an entry of the account may
count records from before its own range of offsets. Killed within the milliseconds between two of those steps, or after
a write that nobody confirmed, dead letters and their counts may be repeated; a table is announced once nevertheless.
Only a whole table that is sent again, after a newer one of its product was complete, ``tables`` was compacted and the
worker was started again, is not known any more.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from facade.bus.port import Fenced, GroupMember, Record, Writer
from facade.clock import Clock
from facade.errors import BusError
from facade.flows.tables.assembly import Assembly, Duplicate, Ended, Key, Limits, UnderWay
from facade.flows.tables.claims import NOT_ITS_FAULT, Claims
from facade.flows.tables.messages import (
    CALIBRATION,
    COMPLETE,
    FAILED,
    TABLES,
    HeaderReader,
    Refused,
    Said,
    SegmentHeader,
    encode,
)
from facade.flows.tables.partition_state import ACCOUNTS, Share, recall, refusal
from facade.flows.tables.roots import without_secrets
from facade.flows.tables.spool import Spool
from facade.flows.tables.summaries import Summaries, Summarise
from facade.icd.model import Icd
from facade.outcome import TOMBSTONE, USED, Suppressed
from facade.runtime.accounts import StreamAccount

_log = logging.getLogger(__name__)

_DUPLICATE = Suppressed("duplicate")


class Bus(Protocol):
    """Where the past is read and the outcomes are written."""

    def read_all(self, topic: str) -> list[Record]:
        """Return everything that is on a topic."""

    def writer(self) -> Writer:
        """Return the writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much is in memory, and how long things may take."""

    batch: int = 16
    """Records taken at once."""
    wait: float = 0.2
    """Longest wait for the first one [s]."""
    idle_interval: float = 1.0
    """Time between signs of life while nothing is written [s]."""
    patience: float = 30.0
    """Longest wait for the brokers to confirm what is written [s]."""
    retry: float = 0.5
    """Pause after the bus has failed [s]."""
    turn: float = 30.0
    """After so long what was taken waits for the next step [s]: the group must hear of us, also between references."""


class Assembler:
    """One slot of the group that assembles tables.

    Parameters
    ----------
    slot
        Name of the slot; each running worker has its own.
    """

    def __init__(
        self,
        member: GroupMember,
        bus: Bus,
        icd: Icd,
        *,
        slot: str,
        clock: Clock,
        summarise: Summarise,
        claims: Claims,
        spool: Spool,
        limits: Limits | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._member, self._bus, self._clock = member, bus, clock
        self._name = f"tables-{slot}"
        self._summaries = Summaries(summarise, icd.topics[TABLES].max_bytes // 2)
        self._claims = claims
        self._assembly = Assembly(spool, limits or Limits())
        self._pace = pace or Pace()
        self._headers = HeaderReader(icd)
        self._most_record = icd.topics[CALIBRATION].max_bytes
        self._shares: dict[int, Share] = {}
        self._taken: Sequence[Record] = ()
        """Records that have not been looked into: what is on `tables` could not be read, or a step took long."""
        self._is_unsure = False
        """Whether a write has failed, of which nobody knows whether it will arrive."""
        self._told_at = float("-inf")
        self.account = StreamAccount()
        """What this process has taken since it started: decided, or in flight."""

    def step(self) -> None:
        """Take some records, and write what became of them.

        Raises
        ------
        Fenced
            Another process has taken the slot.
        """
        try:
            self._take_more()
            self._follow()
            if self._is_unsure:
                self._write_again()
            began = self._clock.monotonic()
            while self._taken and self._clock.monotonic() - began < self._pace.turn:
                record, *self._taken = self._taken
                self._take(record)
            for ended in self._assembly.expire(self._clock.monotonic()):
                self._end(ended)
            self._write()
        except Fenced:
            raise
        except BusError as reason:
            _log.warning("bus failed worker=%s under way=%d reason=%s", self._name, len(self._assembly), reason)
            self._clock.sleep(self._pace.retry)

    def finish(self) -> None:
        """Leave; what is under way will come again to whoever goes on."""
        for partition in list(self._shares):
            self._drop(partition)
        self._member.close()

    def _take_more(self) -> None:
        """Fill up what is to be looked into; what is left of it may be of partitions that have gone meanwhile."""
        room = self._pace.batch - len(self._taken)
        if room > 0:
            before = dict(self._member.assignment)
            more = self._member.take(room, 0.0 if self._taken else self._pace.wait)
            now = self._member.assignment
            left = [one for one in self._taken if now.get(one.partition) == before.get(one.partition)]
            self._taken = [*left, *more]

    def _follow(self) -> None:
        """Let go of partitions that went, and find out what is known of those that came."""
        wanted = self._member.assignment
        for share in list(self._shares.values()):
            if wanted.get(share.partition) != share.assigned:
                self._drop(share.partition)
        gained = [partition for partition in wanted if partition not in self._shares]
        if not gained:
            return
        recalled = recall(self._bus.read_all(TABLES), gained)
        for partition, past in recalled.items():
            for table in past.ended.values():
                self._remember((partition, table.table), table.said, refusal(table))
            self._shares[partition] = Share(partition, wanted[partition], past, by=self._name, most=self._most_record)
        _log.info("partitions assigned worker=%s partitions=%s", self._name, sorted(self._shares))

    def _drop(self, partition: int) -> None:
        records = sum(table.records for table in self._under_way(partition))
        self.account.uncommitted -= records
        self._assembly.drop(partition)
        del self._shares[partition]

    def _under_way(self, partition: int) -> list[UnderWay]:
        return [table for table in self._assembly if table.partition == partition]

    def _take(self, record: Record) -> None:
        share = self._shares.get(record.partition)
        if share is None:
            return
        for table in share.begin(record.offset):
            self._assembly.end((record.partition, table.table), table.said, share.lose(table, self._now_us()))
        share.position = record.offset + 1
        header = None if record.value is None else self._headers.read(record)
        if share.is_done(record, header):
            return
        self.account.uncommitted += 1
        if header is None:
            self._decide(record, TOMBSTONE)
        elif isinstance(header, Refused):
            self._decide(record, header)
        elif header.count == 0:
            self._check_claim(share, header, record)
        else:
            for event in self._assembly.add(header, record, self._clock.monotonic()):
                if isinstance(event, Ended):
                    self._end(event)
                else:
                    self._decide(record, _DUPLICATE if isinstance(event, Duplicate) else event)

    def _decide(self, record: Record, fate: Refused | Suppressed) -> None:
        """Count a record that is no part of a table."""
        share = self._shares[record.partition]
        self.account.uncommitted -= 1
        if share.decided_before(record):
            return
        self.account.consumed += 1
        share.decide(record, fate)
        self.account.settle(fate)
        if isinstance(fate, Refused) and fate.letter:
            _log.warning("record set aside %s/%d reason=%s", record.partition, record.offset, fate.reason)

    def _end(self, ended: Ended) -> None:
        table, refused, summary = ended.table, ended.refused, None
        if ended.content is not None:
            try:
                seen = not ended.unseen
                summary = self._summaries.of(table.header, ended.content) if seen else {"note": ended.unseen}
            finally:
                ended.close()
        if isinstance(summary, str):
            refused = Refused("content", "$", summary)
            self._assembly.end(table.key, table.header.said, refused)
        self.account.uncommitted -= table.records
        self.account.consumed += table.records
        if refused is None:
            self.account.used += table.records
        else:
            self.account.dead_lettered += table.records
            self.account.reasons[refused.reason] += table.records
        state = COMPLETE if refused is None else FAILED
        _log.info("table ended state=%s table=%s reason=%s", state, table.header.table, refused and refused.detail)
        self._shares[table.partition].end(table, self._now_us(), refused, summary)

    def _check_claim(self, share: Share, header: SegmentHeader, record: Record) -> None:
        """Verify a reference, and announce what it refers to."""
        known = self._assembly.judge(header, record.partition)
        if known is not None:
            self._decide(record, _DUPLICATE if isinstance(known, Duplicate) else known)
            return
        began = self._clock.monotonic()
        found = self._claims.look(str(header.url), header.size, header.sha256)
        self._assembly.wait(self._clock.monotonic() - began)
        refused = found if isinstance(found, Refused) else None
        summary: dict[str, Any] | str | None = None
        if isinstance(found, memoryview):
            summary = self._summaries.of(header, found)
        elif refused is None:
            summary = {"note": "too large to be looked into where it is"}
        if isinstance(summary, str):
            refused = Refused("content", "$", summary)
        self._remember((record.partition, header.table), header.said, refused)
        if refused is not None:
            header = msgspec.structs.replace(header, url=without_secrets(str(header.url)))
        share.refer(record, header, self._now_us(), refused, summary)
        self.account.uncommitted -= 1
        self.account.consumed += 1
        self.account.settle(refused or USED)

    def _remember(self, key: Key, said: Said, refused: Refused | None) -> None:
        """Remember that a table has ended, unless it may be sent again."""
        if refused is None or refused.reason not in NOT_ITS_FAULT:
            self._assembly.end(key, said, refused)

    def _write_again(self) -> None:
        """Write what a failed write was to say, except for the ends that have arrived after all."""
        known = self._bus.read_all(TABLES)
        for share in self._shares.values():
            share.forget(known)
        self._write()

    def _write(self) -> None:
        writer, now = self._bus.writer(), self._clock.monotonic()
        letters, words = [], []
        for share in self._shares.values():
            letters += share.letters()
            words += share.words(self._under_way(share.partition), now, self._now_us())
        if letters or words:
            self._prove()
        self._is_unsure = bool(letters or words)
        for records in filter(None, (letters, words)):
            writer.send_all_durably(records, self._pace.patience)
            self._told_at = now
        self._is_unsure = False
        for share in self._shares.values():
            share.written()
        if now - self._told_at >= self._pace.idle_interval:
            self._told_at = now
            entry = StreamAccount().entry(self._name, CALIBRATION, -1, self._now_us())
            writer.send(Record(topic=ACCOUNTS, key=f"{CALIBRATION}/-1".encode(), value=encode(entry)))
        self._commit()

    def _prove(self) -> None:
        """Find out, by a commit that changes nothing, that all partitions are ours still.

        Who stood still, or could not write for long, may have lost one without having heard: its next owner has
        announced what is to be announced, and a newer version may be complete by now.
        """
        known = {number: max(share.committed, share.begun) for number, share in self._shares.items()}
        if places := {number: offset for number, offset in known.items() if offset >= 0}:
            self._member.commit(places)

    def _commit(self) -> None:
        offsets = {number: share.offset(self._under_way(number)) for number, share in self._shares.items()}
        moved = {number: offset for number, offset in offsets.items() if offset > self._shares[number].committed}
        if moved:
            self._member.commit(moved)
            for number, offset in moved.items():
                self._shares[number].committed = offset

    def _now_us(self) -> int:
        return round(self._clock.now() * 1e6)
