"""Heaps by rack: rates, latency and completeness, from the summaries of the aggregate workers.

Every used or late heap notification has a sequence number, which counts from one within a node and a scan. Missing
numbers are those between the lowest and the highest one that never came; a number that came again is doubled. Numbers
before the lowest and after the highest are unknown.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from facade.archive.night.span import Night
from facade.archive.sums import SummaryTopic, Summed
from facade.flows.telemetry.consistency import go_back
from facade.kernel import sketch
from facade.kernel.bus.offsets import CountedOffsets, Gap, LogCut, Overlap
from facade.kernel.bus.port import Record
from facade.kernel.clock import Time
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import INCONSISTENT, USED, Outcome, RecordRejected
from facade.kernel.sequences import SeenNumbers
from facade.kernel.windows.frame import Array, Counts, FieldArrays, Frame, distinct, merge
from facade.sdp.messages import IngestSummary, RackSummary, TelemetrySummary, Watermark
from facade.sdp.racks import Racks

SUMMARIES = "ingest.summary"
_HEAPS = "ingest.heaps"
_PACKETS = ("received", "lost", "late")
"""Fields of a heap notification: packets received in time, lost, and late."""
_LATENCY = "latency"
_WANTED = dict.fromkeys(_PACKETS, ("sum",)) | {_LATENCY: ("sum", "m2", "sketch")}
"""Statistics that the report needs."""
_OPEN_SCANS = 4
"""Scans of a node whose numbers may still come; older scans are settled."""
_MOST_FRAMES = 64
"""Summaries of a rack that are kept before they are merged."""


@dataclass(frozen=True, slots=True)
class HeapSlot:
    """Heaps of a rack whose data time is in one slot."""

    count: int = 0
    latency: Mapping[int, int] = field(default_factory=dict)
    """Sketch, see `facade.kernel.sketch`."""


@dataclass(slots=True)
class RackFigures:
    """Heaps of the nodes of one rack."""

    first: int
    last: int
    """The first and the last node of the rack."""
    nodes: set[int] = field(default_factory=set)
    distinct: int = 0
    missing: int = 0
    doubled: int = 0
    uncovered: int = 0
    """Offsets of heaps whose summaries are missing in the archive, though their worker has written them."""
    scans: dict[int, dict[int, SeenNumbers]] = field(default_factory=dict)
    """Unsettled scans, by node and scan."""

    @property
    def completeness(self) -> float | None:
        """Return the share of received sequence numbers; None: there were none."""
        expected = self.distinct + self.missing
        return self.distinct / expected if expected else None

    _sums: Frame | None = None
    """Sums over the nodes; the window is the number of the slot."""
    _rows: list[Frame] = field(default_factory=list)
    """Rows of the newest summaries, which are in no sum yet."""

    def add(self, rows: Frame, slot_of: Callable[[Time], int]) -> None:
        """Count the rows of a summary; `slot_of` returns the slot of a window."""
        # A summary has few windows, and most have one.
        slots, nothing = {window: slot_of(Time(window)) for window in distinct(rows.window)}, np.zeros_like(rows.group)
        fields = {name: _summed(rows.fields.get(name), nothing) for name in _PACKETS}
        fields[_LATENCY] = _latency(rows.fields.get(_LATENCY, FieldArrays()), nothing)
        window = np.array([slots[window] for window in rows.window.tolist()], dtype=np.int64)
        self._rows.append(replace(rows, window=window, fields=fields))
        if len(self._rows) >= _MOST_FRAMES:
            self._fold()

    def _fold(self) -> None:
        """Count the rows that are in no sum yet; many at once, because the work is done for arrays."""
        rows, self._rows = [one for one in self._rows if len(one)], []
        if not rows:
            return
        of_scans = merge([replace(one, window=_none(one), late=_none(one), fields={}) for one in rows])
        scans = (of_scans.group.tolist(), of_scans.epoch.tolist(), of_scans.count.tolist())
        for node, epoch, records, runs in zip(*scans, of_scans.runs.as_lists(len(of_scans)), strict=True):
            self._seen(node, epoch).add(runs, records)
        self.nodes.update(of_scans.group.tolist())
        sums = [
            replace(one, group=_none(one), epoch=_none(one))
            for one in (one.take(one.count > 0).without_runs() for one in rows)  # further runs have no records
            if len(one)
        ]
        if sums:
            self._sums = merge([*([] if self._sums is None else [self._sums]), *sums])

    @property
    def sums(self) -> Frame | None:
        """Return the sums, with one row for the heaps of each slot, and one for its late ones; None: no heaps."""
        self._fold()
        return self._sums

    @property
    def used(self) -> int:
        """Return the number of heaps that came in time."""
        return 0 if self.sums is None else int(self.sums.count[~self.sums.late].sum())

    @property
    def late(self) -> int:
        """Return the number of heaps that came too late for their window."""
        return 0 if self.sums is None else int(self.sums.count[self.sums.late].sum())

    @property
    def packets(self) -> list[int | float]:
        """Return the packets received in time, lost, and late."""
        sums = self.sums
        return [0 if sums is None else _sum(sums.fields[name]).sum().item() for name in _PACKETS]

    def slots(self, number: int) -> list[HeapSlot]:
        """Return the heaps of each slot that came in time."""
        return self._slots(self.sums, number)

    def whole(self) -> HeapSlot:
        """Return all heaps that came in time."""
        return self._slots(self._together(), 1)[0]

    @property
    def deviation(self) -> float | None:
        """Return the standard deviation of the latency of all heaps that came in time [s]; None: it is not known."""
        together = self._together()
        if together is None or together.late[0] or (m2 := together.fields[_LATENCY].m2) is None or np.isnan(m2[0]):
            return None
        return math.sqrt(m2[0] / together.count[0])

    def _together(self) -> Frame | None:
        """Return the sums of the heaps in time, and then of the late ones."""
        sums = self.sums
        return None if sums is None else merge([replace(sums, window=np.zeros_like(sums.window))])

    @staticmethod
    def _slots(sums: Frame | None, number: int) -> list[HeapSlot]:
        found = [HeapSlot() for _ in range(number)]
        if sums is not None and (sketch := sums.fields[_LATENCY].sketch) is not None:
            rows = zip(
                sums.late.tolist(), sums.window.tolist(), sums.count.tolist(), sketch.as_dicts(len(sums)), strict=True
            )
            for late, slot, count, latency in rows:
                if not late:
                    found[slot] = HeapSlot(count, latency)
        return found

    def _seen(self, node: int, epoch: int) -> SeenNumbers:
        scans = self.scans.setdefault(node, {})
        seen = scans.get(epoch)
        if seen is None:
            if len(scans) == _OPEN_SCANS:
                self._settle(scans.pop(next(iter(scans))))
            seen = scans[epoch] = SeenNumbers()
        return seen

    def settle(self) -> None:
        """Count the sequence numbers of all scans."""
        self._fold()
        for scans in self.scans.values():
            for seen in scans.values():
                self._settle(seen)
        self.scans.clear()

    def _settle(self, seen: SeenNumbers) -> None:
        self.distinct += seen.records - seen.duplicates
        self.missing += seen.missing
        self.doubled += seen.duplicates


class NightTelemetry:
    """Heaps of all racks."""

    def __init__(self, icd: Icd, night: Night, rack_size: int) -> None:
        window = icd.topics[_HEAPS].window
        self._error = (window.quantile_error if window else None) or 0.01
        self._largest = sketch.largest_bucket(self._error)
        self._summaries = SummaryTopic(icd, SUMMARIES, _WANTED)
        self._night, self._racks = night, Racks(rack_size, 1)
        self._by_nodes: dict[tuple[int, int], RackFigures] = {}
        self._counted: dict[tuple[int, int, int], CountedOffsets] = {}

    @property
    def racks(self) -> list[RackFigures]:
        """Return the racks in the order of their nodes."""
        return [self._by_nodes[nodes] for nodes in sorted(self._by_nodes)]

    def quantile(self, slot: HeapSlot, q: float) -> float | None:
        """Return a quantile of the latency [s]; None: there are no heaps."""
        bucket, count = np.array(sorted(slot.latency.items()), dtype=np.int64).reshape(-1, 2).T
        (found,) = sketch.quantiles(0 * bucket, bucket, count, rows=1, q=q, error=self._error).tolist()
        return None if math.isnan(found) else found

    def latency(self, rack: RackFigures, q: float) -> float | None:
        """Return a quantile of the latency of all heaps of a rack [s]."""
        return self.quantile(rack.whole(), q)

    def slots(self, rack: RackFigures) -> list[HeapSlot]:
        """Return the heaps of a rack in each slot of the night."""
        return rack.slots(len(self._night.slots))

    def take(self, record: Record) -> Outcome:
        """Process a summary."""
        found = self._summaries.decode(record.value)
        if isinstance(found, Watermark):
            return USED
        if not isinstance(found, Summed):
            return found
        summary, frames = found.summary, found.frames
        if isinstance(summary, TelemetrySummary):  # none of a rack's heaps
            return RecordRejected(INCONSISTENT, "$", "expected heaps of nodes")
        if isinstance(summary, RackSummary):
            covers = nodes = summary.first, summary.last
            is_contiguous = summary.contiguous
        else:
            whole = self._racks.nodes(self._racks.rack(summary.node))
            covers, nodes = (summary.node, summary.node), (whole[0], whole[-1])
            is_contiguous = False
        if why := next(filter(None, map(self._trouble, frames)), None):
            return RecordRejected(INCONSISTENT, "$", why)
        rack = self._by_nodes.get(nodes)
        if rack is None:
            rack = self._by_nodes[nodes] = RackFigures(*nodes)
        # Each summary of an older worker, without offsets, counts.
        trouble = self._cover((summary.partition, *covers), summary) if summary.log else None
        if isinstance(trouble, Overlap):
            return RecordRejected(INCONSISTENT, "$.offset_from", str(trouble))
        if isinstance(trouble, Gap) and is_contiguous:
            rack.uncovered += trouble.records
        for rows in frames:
            rack.add(rows, self._night.slot)
        return USED

    def _trouble(self, rows: Frame) -> str | None:
        """Return the reason why rows cannot be counted, or None."""
        if go_back(rows.runs).any():
            return "runs: expected ascending runs without overlap"
        latency = rows.fields.get(_LATENCY, FieldArrays()).sketch
        if latency is not None and latency.bucket.max(initial=0) > self._largest:
            return f"{_LATENCY}: expected bucket numbers up to {self._largest}"
        return None

    def end(self) -> None:
        """Count the records that had to wait for the end of the night."""
        for rack in self._by_nodes.values():
            rack.settle()

    def _cover(self, key: tuple[int, int, int], summary: IngestSummary | RackSummary) -> Overlap | Gap | LogCut | None:
        """Count the offsets of a summary, to prevent double counts."""
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = CountedOffsets(summary.log, summary.offset_from, summary.offset_from)
        return counted.take(summary.log, summary.offset_from, summary.offset_to, summary.part)


def _none(rows: Frame) -> Array:
    return np.zeros(len(rows), dtype=np.int64)


def _summed(found: FieldArrays | None, nothing: Array) -> FieldArrays:
    return FieldArrays(sum=nothing if found is None or found.sum is None else found.sum)


def _latency(found: FieldArrays, nothing: Array) -> FieldArrays:
    unknown = np.full(len(nothing), np.nan)
    return FieldArrays(
        sum=unknown if found.sum is None else found.sum,
        m2=unknown if found.m2 is None else found.m2,
        sketch=Counts(*[nothing[:0]] * 3) if found.sketch is None else found.sketch,
    )


def _sum(found: FieldArrays) -> Array:
    return np.zeros(1, dtype=np.int64) if found.sum is None else found.sum
