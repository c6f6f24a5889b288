"""The position of a flow on its topic, the outcomes of its records, and its snapshot for the next start."""

import logging
from collections import deque
from collections.abc import Mapping

from facade.kernel.bus.offsets import Extent, Placement, Position, Verdict, compare, is_other
from facade.kernel.bus.port import Record
from facade.kernel.bus.signatures import SIGNATURE
from facade.kernel.clock import NEVER, Clock, Time
from facade.kernel.codec.decode import UNREADABLE
from facade.kernel.codec.plausible import KEY, TIME_UNIT
from facade.kernel.errors import BusError
from facade.kernel.outcome import INCONSISTENT, USED, Outcome, RecordRejected, Suppressed
from facade.kernel.printable import excerpt
from facade.kernel.runtime import snapshots
from facade.kernel.runtime.accounts import Deviation, RunningAccount
from facade.kernel.runtime.columns import stored
from facade.kernel.runtime.flow import Flow, LastReadings
from facade.kernel.runtime.snapshots import Snapshot

_log = logging.getLogger(__name__)

_FIGURES: Mapping[Verdict, Deviation] = {
    Verdict.GAP: "skipped",
    Verdict.CUT: "log_cuts",
    Verdict.MADE_AGAIN: "log_cuts",
    Verdict.NO_PARTITION: "corrected",
}
"""Figure of the account for each finding."""
_OTHER_SERVER = Suppressed("other-server")
"""No reader of the topic can use the record, and another device server writes its dead letter."""
_JUDGED_ALIKE = UNREADABLE | {INCONSISTENT, KEY, SIGNATURE, TIME_UNIT}
"""Reasons that every reader of a topic finds."""

_HANGS = 40.0
"""A transaction never lasts longer [s]: the longest time-out of 20 s, and the broker's check each 10 s."""
_LONGEST = 1000


class Progress:
    """The position of one flow on its topic.

    Parameters
    ----------
    keep
        Age of records that are read again after a restart, to rebuild windows [s].
    sets_aside
        Whether this device server writes the dead letters of records that no reader of the topic can use; otherwise
        another one does.
    """

    def __init__(self, flow: Flow, *, keep: float, clock: Clock, sets_aside: bool = True) -> None:
        self.flow = flow
        self._sets_aside = sets_aside
        self._set_aside = Position("", {})
        """Position of the previous run, if this one reads the topic from its beginning."""
        self.account = RunningAccount()
        self.topic_id = ""
        """Id of the topic of the offsets; empty text: unknown."""
        self.next: dict[int, int] = {}
        """Next offset to count, by partition."""
        self._first: dict[int, int] = {}
        """First offset on the log when it was last opened, by partition."""
        self._stands: dict[int, tuple[int, float]] = {}
        """Position on each partition, and since when it is unchanged [monotonic s]."""
        self._keep = keep
        self._clock = clock
        self._past: deque[tuple[float, dict[int, int]]] = deque()
        """Earlier values of `next` with their time [monotonic s], oldest first."""

    def take(self, record: Record) -> Outcome:
        """Fold a record, and count its outcome, unless the snapshot counts it already."""
        count = record.offset >= self.next.get(record.partition, 0)
        outcome = self._fold(record, count=count)
        if not self._sets_aside and isinstance(outcome, RecordRejected) and outcome.reason in _JUDGED_ALIKE:
            outcome = _OTHER_SERVER
        if not count:
            return USED
        self.next[record.partition] = record.offset + 1
        before = self.account.balance
        self.account.consumed += 1
        # The record's own time, as old errors come again with a topic that is read at each start.
        at_us = min(max(record.timestamp_us, NEVER), self._clock.now_us())
        self.account.settle(outcome, at_us)
        assert self.account.balance == before, f"{self.flow.topic}: a record has no outcome, or two: {outcome}"
        for lost, text in self.flow.lost_before():
            self.account.deviate("skipped", lost, text)
            self.account.last_error, self.account.last_error_at = text[:_LONGEST], at_us
        return outcome

    def is_set_aside(self, record: Record) -> bool:
        """Return whether the previous run has written the dead letter of a record."""
        return record.offset < self._set_aside.offsets.get(record.partition, 0)

    def reach(self, offsets: Mapping[int, int]) -> None:
        """Note the next offset of a reader: also after end markers of transactions, which are no records."""
        for partition, at in offsets.items():
            self.next[partition] = max(at, self.next.get(partition, 0))

    def note_behind(self, reached: Mapping[int, int], behind: Mapping[int, int], *, is_connected: bool) -> None:
        """Note the number of waiting records, by partition, and whether a hanging transaction holds them back.

        Records that are read again after a restart, and were counted before it, do not count as waiting.

        Readers of committed records get nothing of a partition with a hanging transaction, until the same producer
        writes there again.
        """
        now, hangs = self._clock.monotonic(), []
        self.account.behind = 0
        for partition, read in sorted(behind.items()):
            at = self.next.get(partition, 0)
            count = max(read - max(at - reached.get(partition, at), 0), 0)
            self.account.behind += count
            before, since = self._stands.get(partition, (-1, now))
            if before != at or not count or not is_connected:
                since = now
            self._stands[partition] = at, since
            if now - since > _HANGS:
                hangs.append(
                    f"{self.flow.topic}, partition {partition}: {count} records from offset {at} on are not given for"
                    f" {now - since:.0f} s"
                )
        self.account.hanging = "; ".join(hangs)[:_LONGEST]

    def place(self, now: Extent) -> list[Placement]:
        """Compare the position with the topic as it is now, and move to the offset found; return the differences."""
        topic = Extent(now.id, {one: ends for one, ends in now.ranges.items() if self._reads(one)})
        known = {one: at for one, at in self.next.items() if self._reads(one)}
        start, found = compare(Position(self.topic_id, known), topic)
        if not (self.topic_id or self.next):  # nothing has been read yet; the previous run may know another log
            found = [one for one in compare(self._set_aside, topic)[1] if one.is_log_cut and self._reads(one.partition)]
            known = {one.partition: one.after for one in found}
        # The positions on partitions of other servers hold when this server gets them back.
        others = (
            {}
            if is_other(self.topic_id, topic.id)
            else {one: self.next[one] for one in self.next.keys() - known.keys()}
        )
        rebuild = self.rebuild_from()
        self.topic_id, self.next = topic.id or self.topic_id, others | start
        ends = {} if is_other(self._set_aside.topic_id, topic.id) else topic.ranges
        before = {one: min(at, ends[one][1]) for one, at in self._set_aside.offsets.items() if one in ends}
        self._set_aside = Position(self._set_aside.topic_id, before)
        self._first = {one: first for one, (first, _) in topic.ranges.items()}
        self._past.clear()
        self._past.append((self._clock.monotonic(), {one: min(rebuild.get(one, at), at) for one, at in start.items()}))
        self.flow.place(topic, known, start)
        for finding in found:
            text, figure = finding.describe(self.flow.topic), _FIGURES[finding.verdict]
            self.account.deviate(figure, finding.count if figure == "skipped" else 1, text)
            self.account.last_error, self.account.last_error_at = text, self._clock.now_us()
        return found

    def _reads(self, partition: int) -> bool:
        return self.flow.partitions is None or partition in self.flow.partitions

    def lacks(self, partitions: int) -> bool:
        """Return whether a topic of `partitions` partitions has unknown ones."""
        return self.flow.partitions is None and len(self._first) < partitions

    def on_log(self, offsets: dict[int, int]) -> dict[int, int]:
        """Return offsets that are on the log: the first ones instead of removed ones."""
        return {partition: max(at, self._first.get(partition, at)) for partition, at in offsets.items()}

    def rebuild_from(self) -> dict[int, int]:
        """Return the start offsets for the next start."""
        past = self._past[0][1] if self._past else {}
        return {partition: past.get(partition, 0) for partition in self.next}

    def snapshot(self, instance: str, remembered: LastReadings, *, now: Time, monotonic: float) -> Snapshot:
        """Return the snapshot for the next start, with the columns of the flow."""
        self._past.append((monotonic, dict(self.next)))
        while len(self._past) > 1 and monotonic - self._past[1][0] >= self._keep:
            self._past.popleft()
        later = {one for one, at in self.rebuild_from().items() if at > self.next[one]}
        assert not later, f"{self.flow.topic}, partitions {later}: windows would be rebuilt from behind {self.next}"
        return Snapshot(
            instance=instance,
            topic=self.flow.topic,
            topic_id=self.topic_id,
            time=now,
            offsets=dict(self.next),
            rebuild_from=self.rebuild_from(),
            account=self.account.totals(),
            ledger=self.flow.as_dict(),
            readings=snapshots.store_readings(remembered),
            columns=stored(self.flow.columns),
        )

    def restore(self, snapshot: Snapshot, monotonic: float) -> LastReadings:
        """Restore a snapshot; return its readings.

        Raises
        ------
        ValueError, msgspec.ValidationError
            It has another form; nothing has changed.
        """
        if not self.flow.durable:
            self.flow.restore(snapshot.ledger)
            self._set_aside = Position(snapshot.topic_id, snapshot.offsets)
            # After a failure of the bus the same snapshot is restored again.
            if cuts := snapshot.account.log_cuts - self.account.log_cuts:
                self.account.deviate("log_cuts", cuts, snapshot.account.deviations.get("log_cuts", ""))
            return {}
        # All or nothing: everything that can fail comes before the first change.
        readings = snapshots.load_readings(snapshot)
        self.flow.restore(snapshot.ledger)
        self.topic_id, self.next = snapshot.topic_id, dict(snapshot.offsets)
        self._past.append((monotonic, snapshot.rebuild_from))
        self.account.restore(snapshot.account)
        return readings

    def _fold(self, record: Record, *, count: bool) -> Outcome:
        try:
            return self.flow.fold(record, count=count)
        except BusError:
            raise  # the flow has asked the bus, in vain: the loop reads the record again
        except Exception as error:
            # A bug with one record must not lose the other records of its batch.
            _log.exception("record failed topic=%s offset=%d", record.topic, record.offset)
            return RecordRejected("internal", "$", excerpt(f"{type(error).__name__}: {error}"))
