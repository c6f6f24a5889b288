"""Heaps by rack: rates, latency and completeness, from the summaries of the aggregate workers.

Every used or late heap notification has a sequence number, which counts from one within a node and a scan. Missing
numbers are those between the lowest and the highest one that never came; a number that came again is doubled. Numbers
before the lowest and after the highest are unknown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from facade import sketch
from facade.bus.offsets import CountedOffsets, Gap, LogCut, Overlap
from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.flows.archive.night.span import Night
from facade.icd.model import Icd
from facade.messages import FieldColumns, FieldStatistics, IngestSummary, RackSummary, Watermark
from facade.outcome import INCONSISTENT, USED, Outcome, RecordRejected
from facade.racks import Racks
from facade.sequences import HeapRange, SeenNumbers

SUMMARIES = "ingest.summary"
_HEAPS = "ingest.heaps"
_PACKETS = ("received", "lost", "late")
"""Fields of a heap notification: packets received in time, lost, and late."""
_LATENCY = "latency"
_OPEN_SCANS = 4
"""Scans of a node whose numbers may still come; older scans are settled."""
_decode = BatchDecoder[IngestSummary | RackSummary | Watermark](IngestSummary, RackSummary, Watermark).decode_one


class ReportColumns(NamedTuple):
    """Rows of a summary as columns of one length; a row has some records of one node, scan and window."""

    node: Sequence[int]
    epoch: Sequence[int]
    window: Sequence[int]
    late: Sequence[bool]
    records: Sequence[int]
    runs: Sequence[Sequence[HeapRange]]
    latency: Sequence[Mapping[int, int]]
    """Sketches."""
    received: Sequence[int | float]
    """Packets of the heaps in each row; so are the following columns."""
    lost: Sequence[int | float]
    too_late: Sequence[int | float]


@dataclass(slots=True)
class HeapSlot:
    """Heaps of a rack whose data time is in one slot."""

    count: int = 0
    latency: dict[int, int] = field(default_factory=dict)
    """Sketch, see `facade.sketch`."""

    def add(self, count: int, latency: Mapping[int, int]) -> None:
        """Count records."""
        self.count += count
        mine = self.latency
        for bucket, number in latency.items():
            mine[bucket] = mine.get(bucket, 0) + number


@dataclass(slots=True)
class RackFigures:
    """Heaps of the nodes of one rack."""

    first: int
    last: int
    """The first and the last node of the rack."""
    slots: list[HeapSlot]
    nodes: set[int] = field(default_factory=set)
    used: int = 0
    late: int = 0
    packets: list[int | float] = field(default_factory=lambda: [0] * len(_PACKETS))
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

    def add(self, columns: ReportColumns, slot_of: Callable[[int], int]) -> None:
        """Count the rows of a summary; `slot_of` returns the slot of a window."""
        for at, numbers in enumerate((columns.received, columns.lost, columns.too_late)):
            self.packets[at] += sum(numbers)
        # A summary has few windows, and most have one.
        slots = {window: self.slots[slot_of(window)] for window in {*columns.window}}
        for late, records, window, latency in zip(
            columns.late, columns.records, columns.window, columns.latency, strict=True
        ):
            if late:
                self.late += records
            else:
                self.used += records
                slots[window].add(records, latency)
        self.nodes.update(columns.node)
        for node, epoch, records, runs in zip(columns.node, columns.epoch, columns.records, columns.runs, strict=True):
            self._seen(node, epoch).add(runs, records)

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
        self._night, self._racks = night, Racks(rack_size, 1)
        self._by_nodes: dict[tuple[int, int], RackFigures] = {}
        self._counted: dict[tuple[int, int, int], CountedOffsets] = {}

    @property
    def racks(self) -> list[RackFigures]:
        """Return the racks in the order of their nodes."""
        return [self._by_nodes[nodes] for nodes in sorted(self._by_nodes)]

    def quantile(self, slot: HeapSlot, q: float) -> float | None:
        """Return a quantile of the latency [s]; None: there are no heaps."""
        return sketch.quantile(slot.latency, q, self._error)

    def latency(self, rack: RackFigures, q: float) -> float | None:
        """Return a quantile of the latency of all heaps of a rack [s]."""
        whole = HeapSlot()
        for one in rack.slots:
            whole.add(one.count, one.latency)
        return self.quantile(whole, q)

    def take(self, record: Record) -> Outcome:
        """Process a summary."""
        summary = _decode(record.value)
        if isinstance(summary, Watermark):
            return USED
        if isinstance(summary, RackSummary):
            covers = nodes = summary.first, summary.last
            columns, is_contiguous = _of_rack(summary), summary.contiguous
        elif isinstance(summary, IngestSummary):
            whole = self._racks.nodes(self._racks.rack(summary.node))
            covers, nodes = (summary.node, summary.node), (whole[0], whole[-1])
            columns, is_contiguous = _of_node(summary), False
        else:
            return summary
        if why := self._trouble(columns):
            return RecordRejected(INCONSISTENT, "$", why)
        rack = self._by_nodes.get(nodes)
        if rack is None:
            rack = self._by_nodes[nodes] = RackFigures(*nodes, [HeapSlot() for _ in self._night.slots])
        # Each summary of an older worker, without offsets, counts.
        found = self._cover((summary.partition, *covers), summary) if summary.log else None
        if isinstance(found, Overlap):
            return RecordRejected(INCONSISTENT, "$.offset_from", str(found))
        if isinstance(found, Gap) and is_contiguous:
            rack.uncovered += found.records
        rack.add(columns, self._night.slot)
        return USED

    def _trouble(self, columns: ReportColumns) -> str | None:
        """Return the reason why columns cannot be counted, or None."""
        if len({*map(len, columns)}) > 1:
            return "expected columns of one length"
        for runs in columns.runs:
            before = -1
            for first, last in runs:
                if not before < first <= last:
                    return "runs: expected ascending runs without overlap"
                before = last
        if max(map(max, filter(None, columns.latency)), default=0) > self._largest:
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


def _of_node(summary: IngestSummary) -> ReportColumns:
    found, size = summary.partials, len(summary.partials)
    empty = FieldStatistics()
    sums = ([one.fields.get(name, empty).sum or 0 for one in found] for name in _PACKETS)
    return ReportColumns(
        [summary.node] * size,
        [one.epoch for one in found],
        [one.window for one in found],
        [one.late for one in found],
        [one.count for one in found],
        [one.runs for one in found],
        [one.fields.get(_LATENCY, empty).sketch or {} for one in found],
        *sums,
    )


def _of_rack(summary: RackSummary) -> ReportColumns:
    size, fields, empty = len(summary.node), summary.fields, FieldColumns()
    sketches: Sequence[Mapping[int, int]] = fields.get(_LATENCY, empty).sketch or [{}] * size
    sums = (fields.get(name, empty).sum or [0] * size for name in _PACKETS)
    first = summary.node, summary.epoch, summary.window, summary.late, summary.count, summary.runs
    return ReportColumns(*first, sketches, *sums)
