"""How far a flow is on its topic, what became of the records, and what the next start must know of it."""

import logging
from collections import deque

from facade.bus.port import Record
from facade.clock import Clock
from facade.codec.decode import printable
from facade.outcome import USED, Outcome, Rejected
from facade.runtime import snapshots
from facade.runtime.accounts import StreamAccount
from facade.runtime.flow import Flow, LastReadings
from facade.runtime.snapshots import Snapshot

_log = logging.getLogger(__name__)


class Progress:
    """The place of one flow on its topic.

    Parameters
    ----------
    keep
        How far back records are given again after a restart, to rebuild windows [s].
    """

    def __init__(self, flow: Flow, *, keep: float, clock: Clock) -> None:
        self.flow = flow
        self.account = StreamAccount()
        self.next: dict[int, int] = {}
        """Next offset to count, by partition."""
        self._keep = keep
        self._clock = clock
        self._past: deque[tuple[float, dict[int, int]]] = deque()
        """Earlier values of `next` with their time [monotonic s], oldest first."""

    def take(self, record: Record) -> Outcome:
        """Give a record to the flow, and count what became of it, unless the snapshot counts it already."""
        count = record.offset >= self.next.get(record.partition, 0)
        outcome = self._fold(record, count=count)
        if not count:
            return USED
        self.next[record.partition] = record.offset + 1
        self.account.consumed += 1
        # The record's own time, as a topic that is read anew at each start brings old errors again.
        at_us = min(max(record.timestamp_us, 0), round(self._clock.now() * 1e6))
        self.account.settle(outcome, at_us)
        return outcome

    def rebuild_from(self) -> dict[int, int]:
        """Return the offsets from which on the next start is to read."""
        past = self._past[0][1] if self._past else {}
        return {partition: past.get(partition, 0) for partition in self.next}

    def snapshot(self, instance: str, remembered: LastReadings, *, now: float, monotonic: float) -> Snapshot:
        """Say where the next start goes on, and with what."""
        self._past.append((monotonic, dict(self.next)))
        while len(self._past) > 1 and monotonic - self._past[1][0] >= self._keep:
            self._past.popleft()
        return Snapshot(
            instance=instance,
            topic=self.flow.topic,
            time=round(now * 1e6),
            offsets=dict(self.next),
            rebuild_from=self.rebuild_from(),
            account=self.account.totals(),
            ledger=self.flow.as_dict(),
            readings=snapshots.store_readings(remembered),
        )

    def restore(self, snapshot: Snapshot, monotonic: float) -> LastReadings:
        """Go on from a snapshot; give what was shown then.

        Raises
        ------
        ValueError, msgspec.ValidationError
            It has another form; nothing has changed.
        """
        # All or nothing: whatever can fail comes before the first change.
        readings = snapshots.load_readings(snapshot.readings)
        self.flow.restore(snapshot.ledger)
        self.next = dict(snapshot.offsets)
        self._past.append((monotonic, snapshot.rebuild_from))
        self.account.restore(snapshot.account)
        return readings

    def _fold(self, record: Record, *, count: bool) -> Outcome:
        try:
            return self.flow.fold(record, count=count)
        except Exception as error:
            # A mistake of ours about one record must not take those with it that came along.
            _log.exception("record failed topic=%s offset=%d", record.topic, record.offset)
            return Rejected("internal", "$", printable(f"{type(error).__name__}: {error}"))
