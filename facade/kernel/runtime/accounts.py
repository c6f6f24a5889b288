"""The account of a stream: each record ends as exactly one of used, late, suppressed or dead-lettered.

``consumed = used + late + suppressed + dead_lettered + in_flight`` at all times; `balance` is the difference, and a
value other than 0 is a bug that operators see.
"""

from collections import Counter
from typing import Literal

from facade.kernel import messages
from facade.kernel.bus.offsets import ACCOUNTS as ACCOUNTS
from facade.kernel.bus.port import OffsetRange
from facade.kernel.clock import NEVER, NOTHING, Time
from facade.kernel.messages import AccountTotals as AccountTotals
from facade.kernel.outcome import Outcome, Suppressed, Used

OVERLAP = "overlap"
"""Reason of a record that is refused because its offsets are counted already."""

WRONG_FRAMES = 8
"""Most producers with wrong frames that one entry names."""

Deviation = Literal["overlap", "skipped", "corrected", "log_cuts", "wrong_frames"]
_AND = " | "
_LONGEST = 900
"""Longest text of a deviation [characters]."""
MOST_ROWS = 100_000
"""Most rows of a columnar batch, or of another record with several rows."""
_MOST = 2**53 - 1
"""Largest count in a message."""
_ADDED = ("consumed", "used", "late", "suppressed", "dead_lettered", "corrected", "skipped", "redriven")
AccountEntry = messages.StreamAccount
"""Outcomes of the records of one transaction."""


class RunningAccount:
    """Sums the outcomes of the records of one stream, or of one partition of it."""

    def __init__(self) -> None:
        self.consumed = 0
        self.used = 0
        self.late = 0
        self.batches = 0
        """Columnar batches consumed; each of their rows is a record consumed."""
        self.busy = NOTHING
        """Time that a worker was busy with these records."""
        self.suppressed = 0
        self.dead_lettered = 0
        self.in_flight = 0
        self.uncommitted = 0
        """Records of the open transaction, not yet in `consumed`: they come again if it fails, and `consumed` never
        falls."""
        self.reasons: Counter[str] = Counter()
        self.last_error = ""
        self.last_error_at = NEVER
        """Time of that error; 0: unknown."""
        self.hanging = ""
        """Description of the records behind a hanging transaction."""
        self.behind = 0
        """Records on the topic that were not yet read at the last check."""
        self.offset_from = -1
        self.offset_to = -1
        self.high_watermark = -1
        self.log = ""
        """Log of the offsets, see `facade.kernel.bus.port.OffsetRange`; empty text: unknown."""
        self.partitions = 0
        self.overlap = self.skipped = self.corrected = self.log_cuts = 0
        """Counts of positions that disagreed with the log; see `deviate`. Each log cut begins an epoch of totals."""
        self.wrong_frames: list[str] = []
        """Texts about wrong frames of columnar batches, in an account that is not committed yet."""
        self.redriven = 0
        """Dead letters that were put back, so that they are consumed again."""
        self.deviations: dict[str, str] = {}
        """Text of the newest deviation of each kind and partition, and older ones as far as there is room."""

    @property
    def balance(self) -> int:
        """Records missing from the account (positive) or counted twice (negative)."""
        return self.consumed - self.used - self.late - self.suppressed - self.dead_lettered - self.in_flight

    def cover(self, offsets: OffsetRange) -> None:
        """Add the offsets of the transaction, and a disagreement found at its begin."""
        assert offsets.begin <= offsets.end, f"{offsets.log}: offsets {offsets.begin} to {offsets.end} go back"
        self.log, self.offset_from, self.offset_to = offsets.log, offsets.begin, offsets.end
        self.high_watermark, self.partitions = offsets.high_watermark, offsets.partitions
        if offsets.note:
            self.last_error = offsets.note[:500]
            self.deviate("corrected", 1, offsets.note)

    def deviate(self, what: Deviation, count: int, text: str) -> None:
        """Count records for which a reader's position and the log disagreed.

        `text`: partition, offsets, and the event.
        """
        assert count >= 0, f"{what}: a figure that only rises cannot take {count}: {text}"
        setattr(self, what, min(getattr(self, what) + count, _MOST))
        self._say(what, text)

    def _say(self, what: str, text: str) -> None:
        """Store a deviation's text: the newest of each partition first, then older ones as far as there is room."""
        texts = [text[:_LONGEST], *(one for one in self.deviations.get(what, "").split(_AND) if one and one != text)]
        newest = {_place(one): one for one in reversed(texts)}
        said, *others = sorted(texts, key=lambda one: newest[_place(one)] is not one)
        for one in others:
            if len(said) + len(_AND) + len(one) <= _LONGEST:
                said += _AND + one
        self.deviations[what] = said

    def settle(self, outcome: Outcome, at_us: Time = NEVER, *, count: int = 1) -> None:
        """Count the outcome of one record, or of `count` records in one; `at_us`: time of the outcome."""
        assert count >= 0, f"an outcome of {count} records would take others back: {outcome}"
        if isinstance(outcome, Used):
            self.used += count
            return
        self.reasons[outcome.reason] += count
        if isinstance(outcome, Suppressed):
            self.suppressed += count
        else:
            if outcome.reason == OVERLAP:
                self.deviate("overlap", 1, outcome.detail)
            self.dead_lettered += count
            self.last_error, self.last_error_at = str(outcome)[:500], at_us

    def add(self, other: "RunningAccount | AccountEntry") -> None:
        """Add the outcomes of further records; records in flight are left out."""
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reasons.update(other.reasons)
        if isinstance(other, RunningAccount):
            self.overlap += other.overlap
            self.log_cuts += other.log_cuts
            self.hanging = self.hanging or other.hanging
            for what, said in other.deviations.items():
                for text in reversed(said.split(_AND)):
                    self._say(what, text)
        else:
            for text in other.wrong_frames:
                self._say("wrong_frames", text)
            if other.corrected:
                self._say("corrected", other.last_error)
                if other.skipped:
                    self._say("skipped", other.last_error)
        # The errors of an entry are as old as the entry.
        at_us = other.time if isinstance(other, AccountEntry) else other.last_error_at
        if other.last_error and at_us >= self.last_error_at:
            self.last_error, self.last_error_at = other.last_error, at_us
        if other.offset_to >= 0:
            self.offset_to = other.offset_to
        if other.high_watermark >= 0:
            self.high_watermark = other.high_watermark

    def totals(self) -> "AccountTotals":
        """Return the totals for a snapshot."""
        values = {name: getattr(self, name) for name in AccountTotals.__struct_fields__}
        return AccountTotals(**{**values, "reasons": dict(self.reasons), "deviations": dict(self.deviations)})

    def restore(self, totals: "AccountTotals") -> None:
        """Take the totals from a snapshot."""
        for name in AccountTotals.__struct_fields__:
            setattr(self, name, getattr(totals, name))
        self.reasons = Counter(totals.reasons)
        self.deviations = dict(totals.deviations)

    def entry(self, worker: str, stream: str, partition: int, time: Time) -> AccountEntry:
        """Return the message."""
        own = {name: getattr(self, name) for name in AccountEntry.__struct_fields__ if hasattr(self, name)}
        where = {"worker": worker, "stream": stream, "partition": partition, "time": time}
        return AccountEntry(**{**own, **where, "reasons": dict(self.reasons)})


def _place(text: str) -> str:
    return text.partition(":")[0]
